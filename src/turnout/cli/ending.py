"""Signals that end a command as Ctrl-C does: what it made halfway goes again, or is kept."""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
from collections.abc import Iterator

PATIENCE = 5


@contextlib.contextmanager
def ended_cleanly(*, when: bool = True) -> Iterator[None]:
    """Let a plain `kill`, or a terminal that closes, unwind what is done as Ctrl-C does.

    Not where `when` is false: what leaves nothing halfway ends at once instead, as it did.
    """
    if not when:
        yield
        return

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    # One that is ignored (by `nohup`) is meant to be.
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, end) for number in heeded]
    try:
        yield
    finally:
        for number, handler in zip(heeded, before, strict=True):
            signal.signal(number, handler)


class Interruption:
    """Which signal came, None while none has."""

    number: int | None = None

    @property
    def exit_code(self) -> int:
        """What shells say of a command that ended by it."""
        return 128 + (self.number or signal.SIGINT)


@contextlib.contextmanager
def interrupted_once() -> Iterator[Interruption]:
    """Let the first Ctrl-C, `kill` or closed terminal raise `KeyboardInterrupt`, and it alone.

    For a command that has something to save then: people press Ctrl-C twice. A signal that comes
    after `PATIENCE` others does raise again, as it is meant.
    """
    found, seen = Interruption(), 0

    def handle(number: int, _: object) -> None:
        nonlocal seen
        seen += 1
        if found.number is None or seen > PATIENCE:
            found.number = found.number or number
            raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    # One that is ignored (by `nohup`) is meant to be.
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, handle) for number in heeded]
    try:
        yield found
    finally:
        for number, handler in zip(heeded, before, strict=True):
            signal.signal(number, handler)
            if found.number is not None:
                # While the interpreter ends, one more would only change the code that it ends with.
                atexit.register(signal.signal, number, signal.SIG_IGN)
