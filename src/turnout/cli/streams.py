"""Standard streams that are closed, or that native code prints to."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

STDOUT, STDERR = 1, 2


def open_closed() -> None:
    """Give the standard streams that are closed (`2>&-`) an empty input, and outputs to nowhere.

    A file that is opened later would otherwise take their place, and get what native code prints.
    """
    for number in (0, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, hence this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = _nowhere("r")
    if sys.stdout is None:
        sys.stdout = _nowhere("w")
    if sys.stderr is None:
        sys.stderr = _nowhere("w")


def _nowhere(mode: str) -> TextIO:
    return open(os.devnull, mode, encoding="utf-8")  # type: ignore[return-value]  # noqa: PTH123


@contextlib.contextmanager
def results_only() -> Iterator[None]:
    """Send to stderr what native code prints on stdout; `sys.stdout` still goes to the real one.

    Libraries of EPs print when they are loaded. A terminal is left alone: it shows both, and
    editing a line needs the real stdout.
    """
    shown = sys.stdout
    if not _is_stdout(shown) or shown.isatty():
        yield
        return
    shown.flush()
    kept = os.dup(STDOUT)
    results = open(kept, "w", encoding=shown.encoding, errors=shown.errors)  # noqa: PTH123, SIM115
    os.dup2(STDERR, STDOUT)
    sys.stdout = results
    try:
        yield
        results.flush()
    finally:
        sys.stdout = shown
        _flush_native()
        os.dup2(kept, STDOUT)
        # What could not be written was said by the flush above, or something worse was.
        with contextlib.suppress(OSError):
            results.close()


def _is_stdout(stream: TextIO) -> bool:
    try:
        return stream.fileno() == STDOUT
    except OSError:  # a stream of tests, in memory
        return False


def _flush_native() -> None:
    """Write what native code has printed and C still holds."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
        library.fflush(None)
