"""Ctrl-C as a request to stop, so that a text ends cleanly between two tokens."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopFlag:
    """Whether stopping was asked for. Calling it answers; `set` asks."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        """Whether stopping was asked for."""
        return self._asked

    def set(self) -> None:
        """Ask to stop."""
        self._asked = True


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[StopFlag]:
    """A flag that the first Ctrl-C sets; the second raises `KeyboardInterrupt` as usual.

    Outside the main thread, where signals cannot be handled, the flag is never set.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if flag() and callable(before):
            before(number, frame)
        flag.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


@contextlib.contextmanager
def killed_by_interrupt() -> Iterator[None]:
    """Within, Ctrl-C ends the process at once, unwinding nothing.

    For native calls that may never end and hold Python's lock, so that no handler would run.
    No effect outside the main thread, or where interrupts are ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or before is None or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
