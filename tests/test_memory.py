"""Memory of a process, against hand-made documents and against what was really allocated."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnout import memory
from turnout.processes import kill_tree

ROLLUP = """\
55792cf37000-7ffd6dad6000 ---p 00000000 00:00 0                          [rollup]
Rss:                1764 kB
Pss:                 425 kB
Pss_Anon:            116 kB
Private_Dirty:       117 kB
Anonymous:           118 kB
Swap:                  0 kB
"""


def test_the_figures_of_a_rollup_are_bytes() -> None:
    found = memory.from_smaps_rollup(ROLLUP)
    assert found == memory.Memory(rss=1_806_336, pss=435_200, private=120_832)
    assert found.to_json() == {
        "rss_bytes": 1_806_336,
        "pss_bytes": 435_200,
        "private_bytes": 120_832,
    }


def test_another_document_is_no_rollup() -> None:
    with pytest.raises(ValueError, match="smaps_rollup"):
        memory.from_smaps_rollup("Name: python\n")


def test_memory_that_is_written_is_counted_as_private() -> None:
    before = memory.measure()
    held = bytearray(b"\1") * (64 << 20)
    after = memory.measure()
    assert before.rss is not None
    assert after.rss is not None
    assert after.rss - before.rss > 60 << 20
    assert before.private is not None
    assert after.private is not None
    assert after.private - before.private > 60 << 20
    del held


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="smaps are Linux's")
def test_a_mapped_file_is_resident_but_not_private(tmp_path: Path) -> None:
    import mmap

    path = tmp_path / "weights"
    path.write_bytes(b"\1" * (32 << 20))
    before = memory.measure()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == (32 << 20) // mmap.PAGESIZE
        after = memory.measure()
    assert before.rss is not None
    assert after.rss is not None
    assert after.rss - before.rss > 30 << 20
    assert before.private is not None
    assert after.private is not None
    assert after.private - before.private < 8 << 20


def test_another_process_is_measured_and_one_that_is_gone_has_no_figures() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        found = memory.measure(child.pid)
        assert found.rss is not None
        assert found.rss > 1 << 20
    finally:
        child.communicate(b"\n")
    assert memory.measure(child.pid) == memory.Memory(None, None, None)


def test_without_a_rollup_psutil_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other platforms: the file is not there."""
    monkeypatch.setattr(memory, "_ROLLUP", "/nowhere/{pid}")
    found = memory.measure()
    assert found.rss is not None
    assert found.rss > 1 << 20
    assert found.private is not None


# Holds as many megabytes as it is told to, line by line, and says so.
HOLDING = """
import sys
for line in sys.stdin:
    held = None
    held = bytearray(b"\\1") * (int(line) << 20)
    print(len(held), flush=True)
"""


class Holding:
    """A process that allocates known amounts."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hold(1)

    def hold(self, megabytes: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{megabytes}\n")
        self.process.stdin.flush()
        assert int(self.process.stdout.readline()) == megabytes << 20


@pytest.fixture
def holding() -> Iterator[Holding]:
    made = Holding()
    yield made
    made.process.kill()
    made.process.wait()


def test_a_sampler_sees_what_a_process_allocates_and_remembers_the_most(holding: Holding) -> None:
    sampler = memory.Sampler(holding.process.pid, every_s=0.005)
    with sampler.watching():
        before = sampler_waits(sampler)
        holding.hold(96)
        most = sampler_waits(sampler)
        holding.hold(16)
        after = sampler_waits(sampler)
    assert 94 << 20 < most.rss - before.rss < 100 << 20
    assert 14 << 20 < after.rss - before.rss < 20 << 20
    assert sampler.peak.rss is not None
    assert most.rss <= sampler.peak.rss < most.rss + (4 << 20)
    if most.private is not None:
        assert before.private is not None
        assert 94 << 20 < most.private - before.private < 100 << 20
        assert sampler.peak.private == max(sample.private or 0 for sample in sampler.samples)


def sampler_waits(sampler: memory.Sampler) -> memory.Sample:
    """The second sample from now on: the first may have been under way."""
    count = len(sampler.samples) + 2
    deadline = time.monotonic() + 30
    while len(sampler.samples) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return sampler.samples[-1]


@pytest.mark.skipif(sys.platform == "darwin", reason="the system keeps no high-water mark")
def test_a_peak_between_two_samples_is_not_lost(holding: Holding) -> None:
    sampler = memory.Sampler(holding.process.pid, every_s=600)
    with sampler.watching():
        sampler_begins(sampler)
        before = sampler.samples[0]
        holding.hold(96)
        holding.hold(1)
    assert len(sampler.samples) == 2
    assert sampler.peak.rss is not None
    assert sampler.peak.rss - before.rss > 94 << 20
    assert sampler.samples[1].rss - before.rss < 8 << 20


def sampler_begins(sampler: memory.Sampler) -> None:
    deadline = time.monotonic() + 30
    while not sampler.samples:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_children_hold_is_kept_apart() -> None:
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDING!r}])"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdin is not None
        assert parent.stdout is not None
        sampler = memory.Sampler(parent.pid, every_s=600)
        for megabytes in (1, 64):
            parent.stdin.write(f"{megabytes}\n")
            parent.stdin.flush()
            parent.stdout.readline()
            with sampler.watching(children=True):
                pass
            if megabytes == 1:
                before = sampler.children_peak.rss or 0
        after = sampler.children_peak.rss or 0
    finally:
        kill_tree(parent.pid)
        parent.wait()
    assert before > 0
    assert 62 << 20 < after - before < 68 << 20
    assert sampler.peak.rss is not None
    assert sampler.peak.rss < after


def test_samples_are_timed_by_the_clock_that_is_given() -> None:
    times = iter([10.0, 12.5])
    sampler = memory.Sampler(os.getpid(), every_s=600, clock=lambda: next(times))
    with sampler.watching():
        sampler_begins(sampler)
    assert [sample.at_s for sample in sampler.samples] == [10.0, 12.5]


def test_a_process_that_is_gone_gives_no_samples(holding: Holding) -> None:
    holding.process.kill()
    holding.process.wait()
    sampler = memory.Sampler(holding.process.pid)
    with sampler.watching(children=True):
        pass
    assert sampler.samples == []
    assert sampler.peak == memory.Memory(None, None, None)


def test_processes_that_the_system_ended_for_lack_of_memory_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "vmstat"
    monkeypatch.setattr(memory, "_VMSTAT", path)
    assert memory.oom_kills() is None
    path.write_text("pgfault 12\noom_kill 7\nnuma_hit 3\n")
    assert memory.oom_kills() == 7
    path.write_text("pgfault 12\n")
    assert memory.oom_kills() is None


def test_where_the_system_keeps_no_counters_psutil_is_asked(
    holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows and macOS."""
    monkeypatch.setattr(memory, "_STATUS", "/nowhere/{pid}")
    sampler = memory.Sampler(holding.process.pid, every_s=0.005)
    with sampler.watching():
        before = sampler_waits(sampler)
        holding.hold(96)
        after = sampler_waits(sampler)
    assert 94 << 20 < after.rss - before.rss < 100 << 20
    assert sampler.peak.rss == max(sample.rss for sample in sampler.samples)
