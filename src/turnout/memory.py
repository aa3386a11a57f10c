"""RSS, PSS and private memory of a process, in bytes, at a moment and at its most.

Three figures, because one alone misleads: weights mapped from a file count in RSS and
cost nothing twice; PSS divides them among the processes that map them; private
anonymous memory is what a process holds for itself, such as weights packed again.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

# Linux 4.14 and newer; `Anonymous` there is private anonymous memory.
_ROLLUP = "/proc/{pid}/smaps_rollup"
# Counters that the kernel keeps anyway: reading them takes no lock of the process.
_STATUS = "/proc/{pid}/status"
_STATUS_LINE = re.compile(r"^(VmHWM|VmRSS|RssAnon):\s+(\d+) kB$", re.MULTILINE)
_VMSTAT = Path("/proc/vmstat")
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
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


# Finding a process's children goes through all processes of the system.
_CHILDREN_EVERY = 5


class Sample(NamedTuple):
    """RSS and private memory, in bytes, at a time in seconds of the sampler's clock."""

    at_s: float
    rss: int
    private: int | None


class Sampler:
    """Watches one process from a thread of this one, while it is asked to.

    with sampler.watching():
        ...                   # `samples` and `peak` get what is seen meanwhile

    A sample costs the process nothing: it is read from counters of the system. PSS is not, since
    finding it out holds the process up; `seen` takes what was measured in another way. `children`:
    look at what the process has started, too, which takes longer.
    """

    def __init__(
        self, pid: int, *, every_s: float = 0.05, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._pid = pid
        self._every_s = every_s
        self._clock = clock
        self.samples: list[Sample] = []
        self.peak = Memory(None, None, None)
        self.children_peak = Memory(None, None, None)

    @contextlib.contextmanager
    def watching(self, *, children: bool = False) -> Iterator[None]:
        """Sample in the block, at its begin and at its end as well."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done, children), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def seen(self, memory: Memory) -> None:
        """Take into the peak what was measured of the process."""
        self.peak = _most(self.peak, memory)

    def _watch(self, done: threading.Event, children: bool) -> None:
        turn = 0
        while True:
            ending = done.is_set()
            self._look(children and (ending or turn % _CHILDREN_EVERY == 0))
            if ending:
                return
            turn += 1
            done.wait(self._every_s)

    def _look(self, children: bool) -> None:
        at = self._clock()
        now, peak_rss = _quickly(self._pid)
        if now.rss is not None:
            self.samples.append(Sample(at, now.rss, now.private))
            self.peak = _most(self.peak, now, Memory(peak_rss, None, None))
        if children:
            self.children_peak = _most(self.children_peak, _descendants(self._pid))


def _most(*seen: Memory) -> Memory:
    """The largest of each figure."""
    return Memory(
        max((m.rss for m in seen if m.rss is not None), default=None),
        max((m.pss for m in seen if m.pss is not None), default=None),
        max((m.private for m in seen if m.private is not None), default=None),
    )


def _quickly(pid: int) -> tuple[Memory, int | None]:
    """RSS and private memory now, and the most RSS that the system remembers."""
    try:
        text = Path(_STATUS.format(pid=pid)).read_text("utf-8", errors="replace")
    except OSError:
        return _quickly_elsewhere(pid)
    found = {name: int(kib) * 1024 for name, kib in _STATUS_LINE.findall(text)}
    # A process that has ended and was not waited for has a status without these.
    return Memory(found.get("VmRSS"), None, found.get("RssAnon")), found.get("VmHWM")


def _quickly_elsewhere(pid: int) -> tuple[Memory, int | None]:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        info: Any = psutil.Process(pid).memory_info()
    except psutil.Error:
        return Memory(None, None, None), None
    # Windows alone has the last two.
    private = getattr(info, "private", None)
    return Memory(info.rss, None, private), getattr(info, "peak_wset", None)


def _descendants(pid: int) -> Memory:
    """RSS and private memory of all that a process started, and what that started, together."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        found = [_quickly(child.pid)[0] for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return Memory(None, None, None)
    private = [memory.private for memory in found if memory.private is not None]
    return Memory(
        sum(memory.rss or 0 for memory in found),
        None,
        sum(private) if private or not found else None,
    )


def oom_kills() -> int | None:
    """How many processes Linux has ended for lack of memory; None where it does not tell."""
    try:
        found = _OOM_KILLS.search(_VMSTAT.read_text("ascii"))
    except (OSError, ValueError):
        return None
    return int(found[1]) if found else None


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
