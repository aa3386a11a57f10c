"""Memory of a process, against hand-made documents and against what was really allocated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from turnout import memory

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
