"""Processes of routes that go wrong, each in one way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from turnout.errors import GenerationError, LoadError
from turnout.perf.child import Serving
from turnout.processes import Heard

# Requests that are answered before the fault.
BEFORE = 2


class Faulty(Serving):
    """Serves, until it is time for the fault."""

    def __init__(self) -> None:
        super().__init__()
        self._left = BEFORE

    def __call__(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        if question["do"] == "load":
            self.loading()
        elif question["do"] == "request":
            self._left -= 1
            if self._left < 0:
                self.asked()
        return super().__call__(question, tell)

    def loading(self) -> None:
        pass

    def asked(self) -> None:
        pass


class Crashing(Faulty):
    def asked(self) -> None:
        os.write(2, b"the native library says why\n")
        os.kill(os.getpid(), signal.SIGSEGV)


class Hanging(Faulty):
    def asked(self) -> None:
        time.sleep(600)


class Starved(Faulty):
    """As the system does it where memory runs out."""

    def asked(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Refusing(Faulty):
    def loading(self) -> None:
        raise LoadError("It does not load.", found="no weights", fix="bring some")


class Interrupting(Faulty):
    """Sends its parent what Ctrl-C does, and is then too slow to answer."""

    def asked(self) -> None:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)


class Slow(Faulty):
    def loading(self) -> None:
        time.sleep(600)


class Exhausted(Faulty):
    """As libraries say it where memory runs out."""

    def asked(self) -> None:
        raise GenerationError("The runtime could not compute a token.", found="std::bad_alloc")
