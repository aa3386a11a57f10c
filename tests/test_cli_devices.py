"""`turnout devices` as a person and as a program would call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnout import catalog
from turnout.cli.devices import app
from turnout.machine import Inventory

INVENTORIES = Path(__file__).parent / "data" / "inventories"


def turnout(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "turnout", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        check=False,
    )


def test_devices_shows_what_is_here_and_what_is_missing_within_two_seconds() -> None:
    """W#2006: list the devices. The CPU EP is on every machine."""
    start = time.monotonic()
    done = turnout("devices")
    elapsed = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    row = next(line for line in done.stdout.splitlines() if line.startswith("cpu "))
    assert "built-in" in row
    assert "onnxruntime-genai 0." in done.stdout
    missing = Inventory.discover().missing
    for ep in missing:
        assert f"pip install {ep.package}" in done.stdout
    assert elapsed < 2 * float(os.environ.get("TURNOUT_TEST_SLOWNESS", "4"))


def test_json_is_one_inventory_document_with_what_is_missing() -> None:
    done = turnout("devices", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert "missing" in document
    read = Inventory.from_json(done.stdout)
    assert read.ep("cpu") is not None


def test_a_broken_plugin_is_shown_with_the_reason_and_the_fix(tmp_path: Path) -> None:
    done = turnout("devices", TURNOUT_EP_PATH=f"qnn={tmp_path / 'gone.so'}")
    assert done.returncode == 0
    assert "qnn is installed but broken (TURNOUT_EP_PATH):" in done.stdout
    assert f"problem: there is no file {tmp_path / 'gone.so'}" in done.stdout
    assert "fix: correct the path in TURNOUT_EP_PATH" in done.stdout
    assert "pip install onnxruntime-qnn" not in done.stdout


def test_a_malformed_environment_variable_is_wrong_usage() -> None:
    done = turnout("devices", TURNOUT_EP_PATH="nonsense")
    assert done.returncode == 2
    assert "TURNOUT_EP_PATH is malformed" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("snapdragon-laptop", ["qnn     cpu (compile only)", "qnn     npu", "webgpu  gpu"]),
        ("intel-laptop", ["openvino  npu", "openvino  gpu", "openvino  cpu"]),
        ("nvidia-workstation", ["cuda           gpu", "nvtensorrtrtx  gpu"]),
    ],
)
def test_machines_that_are_not_here_are_shown_as_they_would_be(
    machine: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W#860: a device that can only be compiled for is marked."""
    text = (INVENTORIES / f"{machine}.json").read_text("utf-8")
    inventory = Inventory.from_json(text)
    monkeypatch.setattr(Inventory, "discover", staticmethod(lambda: inventory))
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    for line in expected:
        assert line in result.output
    for ep in inventory.missing:
        assert catalog.alias_of(ep.name) in result.output


def test_quiet_leaves_out_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = Inventory.from_json((INVENTORIES / "intel-laptop.json").read_text("utf-8"))
    monkeypatch.setattr(Inventory, "discover", staticmethod(lambda: inventory))
    assert "Not installed" not in CliRunner().invoke(app, ["--quiet"]).output
    assert "Not installed" in CliRunner().invoke(app, []).output


def test_verbose_says_where_libraries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = Inventory.from_json((INVENTORIES / "nvidia-workstation.json").read_text("utf-8"))
    monkeypatch.setattr(Inventory, "discover", staticmethod(lambda: inventory))
    output = CliRunner().invoke(app, ["-v"]).output
    assert "nvtensorrtrtx: /opt/venv/lib" in output
