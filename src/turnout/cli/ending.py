"""Signals that end a command as Ctrl-C does: what it made halfway goes again, or is kept."""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

PATIENCE = 5

Handler = Callable[[int, object], None]


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

    with _handled(("SIGTERM", "SIGHUP"), end):
        yield


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

    with _handled(("SIGINT", "SIGTERM", "SIGHUP"), handle) as numbers:
        try:
            yield found
        finally:
            if found.number is not None:
                # While the interpreter ends, one more would only change the code that it ends with.
                for number in numbers:
                    atexit.register(signal.signal, number, signal.SIG_IGN)


@contextlib.contextmanager
def _handled(names: Sequence[str], handle: Handler) -> Iterator[list[int]]:
    """Let `handle` have the signals of those names that this system has, whose numbers these are.

    Not one that is ignored (by `nohup`), which is meant to be.
    """
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, handle) for number in heeded]
    try:
        yield heeded
    finally:
        for number, handler in zip(heeded, before, strict=True):
            signal.signal(number, handler)
