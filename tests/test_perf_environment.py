"""What a report says of the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from turnout.perf import environment


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: Some  CPU @ 2.60GHz\nflags\t: fpu\n", "Some CPU @ 2.60GHz"),
        ("processor : 0\n\nModel : Raspberry Pi 5\n", "Raspberry Pi 5"),
    ],
)
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux has it")
def test_the_processors_name_is_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    monkeypatch.setattr(environment, "_CPUINFO", path)
    assert environment.cpu_name() == name


def test_where_the_system_does_not_tell_the_kind_of_processor_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.sys, "platform", "linux")
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "nothing")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert environment.cpu_name() == "riscv64"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity")
def test_cores_that_this_process_may_not_use_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    assert environment._usable_cores() == 3
