"""Signals that end a command as Ctrl-C does: what it made halfway goes again."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator


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
