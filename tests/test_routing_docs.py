"""What docs/routing.md says of placements can be seen as it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from session_fixtures import Bundles, Terminal

pytest_plugins = ("session_plugin",)

TEXT = (Path(__file__).parents[1] / "docs" / "routing.md").read_text("utf-8")


def code(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def placed(turnout: Terminal, bundle: Path, folder: Path, *options: str) -> list[dict[str, int]]:
    """Runs of nodes by EP, stage after stage, by following the document."""
    (option,) = re.findall(r"--session-option (\S+)", code(""))
    done = turnout("generate", bundle, "the", "-q", "--session-option", option, *options)
    assert done.code == 0, done.err
    ran = subprocess.run(
        [sys.executable, "-c", code("python")],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return [ast.literal_eval(line.split(" ", 1)[1]) for line in ran.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_profile_of_every_stage_names_the_eps_of_its_nodes(
    turnout: Terminal, bundles: Bundles, folder: Path
) -> None:
    """A15: until it is measured, what fell back can be seen by profiling."""
    stages = placed(turnout, bundles("pipeline"), folder, "--max-new-tokens", "2")
    assert len(stages) == 3
    assert all(list(eps) == ["CPUExecutionProvider"] for eps in stages)


@pytest.mark.openvino
def test_a_stage_that_is_reported_on_openvino_runs_its_attention_on_the_cpu_ep(
    turnout: Terminal, bundles: Bundles, folder: Path
) -> None:
    """A15: the EP of a stage is what its session was given, not what computed every node."""
    options = ("--ep", "openvino", "--max-new-tokens", "2")
    stages = placed(turnout, bundles("pipeline"), folder, *options)
    assert any(set(eps) == {"CPUExecutionProvider", "OpenVINOExecutionProvider"} for eps in stages)


@pytest.mark.openvino
def test_falling_back_can_be_refused(turnout: Terminal, bundles: Bundles) -> None:
    (option,) = re.findall(r"`--session-option (session\.\S+)`", TEXT)
    path = bundles("pipeline")
    done = turnout("generate", path, "the", "--ep", "openvino", "--session-option", option)
    assert done.code == 1
    assert "transformer" in done.err
