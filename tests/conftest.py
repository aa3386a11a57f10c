"""What every test process needs."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell starts its background jobs with interrupts ignored, and children inherit that: the
    # tests of Ctrl-C would then test nothing. A handler is reset to the default in children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
