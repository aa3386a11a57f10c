"""`turnout devices` as a person and as a program would call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from session_fixtures import Terminal
from turnout import catalog
from turnout.cli.devices import app
from turnout.machine import Inventory

pytest_plugins = ("session_plugin",)

INVENTORIES = Path(__file__).parent / "data" / "inventories"


# The command; how many processes it started, and what it imported itself, on stderr.
WATCHED = """
import json, sys
events = []
sys.addaudithook(lambda event, _: events.append(event))
from turnout.cli.main import main
try:
    main()
finally:
    heavy = {"numpy", "onnx", "onnx_ir", "onnxruntime", "onnxruntime_genai", "tokenizers"}
    answer = [events.count("subprocess.Popen"), sorted(heavy & set(sys.modules))]
    print(json.dumps(answer), file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_devices_shows_what_is_here_and_what_is_missing_by_one_look() -> None:
    """G#2006: list the devices. The CPU EP is on every machine."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, "devices"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("cpu "))
    assert "built-in" in row
    assert "onnxruntime-genai 0." in done.stdout
    inventory = Inventory.discover()
    for ep in inventory.missing:
        assert f"pip install {ep.package}" in done.stdout
    # Runtimes are loaded by one child, and by one more for each plugin that breaks it.
    children, imported = json.loads(done.stderr)
    assert 1 <= children <= 1 + len(inventory.problems)
    assert imported == []


def test_json_is_one_inventory_document_with_what_is_missing(turnout: Terminal) -> None:
    done = turnout("devices", "--json")
    assert done.code == 0
    assert done.json["schema_version"] == 1
    assert "missing" in done.json
    read = Inventory.from_json(done.out)
    assert read.ep("cpu") is not None


def test_a_broken_plugin_is_shown_with_the_reason_and_the_fix(
    turnout: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_EP_PATH", f"qnn={tmp_path / 'gone.so'}")
    done = turnout("devices")
    assert done.code == 0
    assert "qnn is installed but broken (TURNOUT_EP_PATH):" in done.out
    assert f"problem: there is no file {tmp_path / 'gone.so'}" in done.out
    assert "fix: correct the path in TURNOUT_EP_PATH" in done.out
    assert "pip install onnxruntime-qnn" not in done.out


def test_a_malformed_environment_variable_is_wrong_usage(
    turnout: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_EP_PATH", "nonsense")
    done = turnout("devices")
    assert (done.code, done.out) == (2, "")
    assert "TURNOUT_EP_PATH is malformed" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("snapdragon-laptop", ["qnn     cpu (compile only)", "qnn     npu", "dml     gpu"]),
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


def test_an_ep_without_devices_is_shown_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The OpenVINO plugin on a processor that is not Intel's, and an EP that nobody knows."""
    here = Inventory.from_json((INVENTORIES / "intel-laptop.json").read_text("utf-8"))
    idle = [
        msgspec.structs.replace(ep, devices=()) for ep in here.eps if ep.name != catalog.CPU.name
    ]
    unknown = msgspec.structs.replace(idle[0], name="ElsewhereExecutionProvider")
    machine = msgspec.structs.replace(here, eps=(*idle, unknown))
    monkeypatch.setattr(Inventory, "discover", staticmethod(lambda: machine))
    done = CliRunner().invoke(app, ["--quiet"])
    assert done.exit_code == 0
    assert (
        "openvino finds no device: its plugin offers Intel's hardware alone; if that is here,"
        " check its driver\n"
    ) in done.stdout
    assert f"{unknown.alias} finds no device: check the device's driver\n" in done.stdout
