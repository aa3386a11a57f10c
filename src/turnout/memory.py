"""RSS, PSS and private memory of a process, in bytes.

Three figures, because one alone misleads: weights mapped from a file count in RSS and
cost nothing twice; PSS divides them among the processes that map them; private
anonymous memory is what a process holds for itself, such as weights packed again.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Linux 4.14 and newer; `Anonymous` there is private anonymous memory.
_ROLLUP = "/proc/{pid}/smaps_rollup"
_ROLLUP_LINE = re.compile(r"^(Rss|Pss|Anonymous):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Bytes of one process at one moment; None where the platform does not tell."""

    rss: int | None
    pss: int | None
    private: int | None

    def to_json(self) -> dict[str, int | None]:
        """The figures by name, with the unit in it."""
        return {
            "rss_bytes": self.rss,
            "pss_bytes": self.pss,
            "private_bytes": self.private,
        }


def measure(pid: int | None = None) -> Memory:
    """Memory of process `pid` (None: this one); all None for a process that is gone.

    `private` is private anonymous memory on Linux, and the unique set size elsewhere.
    """
    try:
        return from_smaps_rollup(Path(_ROLLUP.format(pid=pid or os.getpid())).read_text("ascii"))
    except (OSError, ValueError):
        return _from_psutil(pid)


def from_smaps_rollup(text: str) -> Memory:
    """The figures of a `/proc/<pid>/smaps_rollup` document. `ValueError` if it is none."""
    found = {name: int(kib) * 1024 for name, kib in _ROLLUP_LINE.findall(text)}
    if "Rss" not in found:
        raise ValueError("not a smaps_rollup document")
    return Memory(found["Rss"], found.get("Pss"), found.get("Anonymous"))


def _from_psutil(pid: int | None) -> Memory:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        process = psutil.Process(pid)
        info: Any = process.memory_info()
        # macOS refuses this for other users' processes; the RSS is still worth having.
        with contextlib.suppress(psutil.Error, AttributeError):
            info = process.memory_full_info()
    except psutil.Error:
        return Memory(None, None, None)
    return Memory(info.rss, getattr(info, "pss", None), getattr(info, "uss", None))
