"""Looking at this machine in a child process, so that a broken plugin breaks nothing else.

A native library can crash or hang while it is loaded. The child says which plugin it is about to
try; when it dies, that one is reported as broken and a new child tries the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec

from turnout.errors import MachineError
from turnout.machine.inventory import InstalledEp, Inventory
from turnout.machine.origins import from_environment

# Loading every known plugin takes well under a second; drivers of real devices take longer.
TIMEOUT_S = 60.0


def discover(timeout: float = TIMEOUT_S) -> Inventory:
    """The inventory of this machine; see `Inventory.discover`. `timeout` in seconds.

    Raises `MachineError`, and `UsageError` for a malformed `TURNOUT_EP_PATH`.
    """
    tuple(from_environment())  # a mistake there is the caller's, not the child's
    broken: dict[str, InstalledEp] = {}
    while True:
        child = _Child.run(list(broken), timeout)
        if child.inventory is not None:
            return _with_broken(child.inventory, tuple(broken.values()))
        culprit = child.trying
        if culprit is None or culprit["key"] in broken:
            raise MachineError(
                "The runtimes of this machine could not be looked at.",
                found=child.ending,
                where=sys.executable,
                fix="check that onnxruntime and onnxruntime-genai import",
            )
        broken[culprit["key"]] = InstalledEp(
            name=culprit["name"],
            source=culprit["source"],
            library=culprit["library"],
            problem=f"its library {child.ending} while it was loaded",
            fix="install another version of it, or uninstall it",
        )


@dataclass
class _Child:
    """What one child left: the inventory, or which plugin it was trying and how it ended."""

    inventory: Inventory | None = None
    trying: dict[str, Any] | None = None
    ending: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def run(cls, skip: list[str], timeout: float) -> _Child:
        command = [sys.executable, "-P", "-m", "turnout.machine.probe", *skip]
        # The same modules as here, wherever they were found.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=timeout, check=False, env=environment
            )
            ending, output = _ending(done.returncode, done.stderr), done.stdout
        except subprocess.TimeoutExpired as expired:
            ending, output = f"did not answer within {timeout:g} s", expired.stdout or b""
        except OSError as error:
            raise MachineError(
                "No child process could be started to look at this machine.", found=error
            ) from error
        child = cls(ending=ending)
        for line in output.splitlines():
            child._read(line)
        return child

    def _read(self, line: bytes) -> None:
        message = json.loads(line)
        if "inventory" in message:
            self.inventory = msgspec.convert(message["inventory"], Inventory)
        elif "trying" in message:
            self.trying = message["trying"]
        else:
            self.trying = None


def _ending(code: int, stderr: bytes) -> str:
    if code < 0:
        try:
            return f"crashed ({signal.Signals(-code).name})"
        except ValueError:
            return f"crashed (signal {-code})"
    last = stderr.decode(errors="replace").strip().splitlines()
    return f"ended with code {code}" + (f": {last[-1]}" if last else "")


def _with_broken(inventory: Inventory, broken: tuple[InstalledEp, ...]) -> Inventory:
    if not broken:
        return inventory
    named = {ep.name for ep in inventory.eps}
    eps = inventory.eps + tuple(ep for ep in broken if ep.name not in named)
    installed = {ep.name for ep in eps}
    missing = tuple(ep for ep in inventory.missing if ep.name not in installed)
    return msgspec.structs.replace(inventory, eps=eps, missing=missing)
