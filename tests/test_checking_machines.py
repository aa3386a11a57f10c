"""Checks of a config against the inventories of machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnout.bundle import GenaiConfig
from turnout.checking import Finding, Subject, machines
from turnout.machine import Inventory

MACHINES = Path(__file__).parent / "data" / "inventories"
INTEL, NVIDIA, SNAPDRAGON = "intel-laptop", "nvidia-workstation", "snapdragon-laptop"


def machine(name: str, *changes: tuple[str, str]) -> Inventory:
    text = (MACHINES / f"{name}.json").read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return Inventory.from_json(text)


def on(inventory: Inventory | None, *entries: Any, stages: int = 1) -> list[Finding]:
    """Findings for a pipeline of which each stage has these provider entries."""
    made = {
        f"stage{n}": {"filename": "m.onnx", "session_options": {"provider_options": list(entries)}}
        for n in range(stages)
    }
    model = {"type": "decoder-pipeline", "context_length": 64, "decoder": {"pipeline": [made]}}
    config = GenaiConfig.parse(json.dumps({"model": model}), "genai_config.json")
    return list(machines.check(Subject(config, None, inventory)))


def test_without_a_machine_nothing_is_said_of_one() -> None:
    assert on(None, {"QNN": {"backend_type": "htp"}}) == []


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        (INTEL, {"cpu": {}}),
        (INTEL, {}),
        (INTEL, {"OpenVINO": {}}),
        (INTEL, {"openvino": {"device_type": "NPU"}}),
        (INTEL, {"OpenVINO": {"device_filtering_options": {"hardware_device_type": "gpu"}}}),
        # What is refused anywhere is said by the checks of providers.
        (INTEL, {"OpenVINO": {"device_type": "npu"}}),
        (INTEL, {"OpenVINO": {"device_type": "AUTO:GPU,CPU"}}),
        (NVIDIA, {"cuda": {}}),
        (NVIDIA, {"NvTensorRtRtx": {"device_id": "1"}}),
        (SNAPDRAGON, {"QNN": {"backend_type": "htp"}}),
        (SNAPDRAGON, {"QNN": {"backend_path": "QnnGpu.dll"}}),
        (SNAPDRAGON, {"QNN": {"soc_model": "60"}}),
        (SNAPDRAGON, {"WebGPU": {}}),
        # Every onnxruntime has it, and it computes nothing.
        (INTEL, {"AZURE": {}}),
    ],
)
def test_what_the_machine_has_is_not_mentioned(name: str, entry: dict[str, Any]) -> None:
    assert on(machine(name), entry) == []


@pytest.mark.parametrize(
    ("name", "entry", "fix"),
    [
        (
            INTEL,
            {"QNN": {"backend_type": "htp"}},
            "pip install onnxruntime-qnn (on windows-x86_64 it can only compile, not run)",
        ),
        (NVIDIA, {"OpenVINO": {}}, "pip install onnxruntime-ep-openvino"),
        (SNAPDRAGON, {"OpenVINO": {}}, "no package of openvino is known for windows-arm64"),
        (INTEL, {"VitisAI": {}}, "vitisai comes with AMD's Ryzen AI software"),
        (INTEL, {"acme": {}}, "TURNOUT_EP_PATH=acme=PATH"),
    ],
)
def test_an_ep_that_the_machine_lacks_is_an_error_that_says_how_to_get_it(
    name: str, entry: dict[str, Any], fix: str
) -> None:
    """V#1962, W#452: it would say "not supported in this build" when it is loaded there."""
    (finding,) = on(machine(name), entry)
    assert (finding.code, finding.severity) == ("T420", "error")
    assert fix in str(finding.fix)
    assert "the machine has" in str(finding.found)
    (ep,) = entry
    assert finding.path.endswith(f"provider_options[0].{ep}")


def test_one_finding_names_all_stages_of_an_ep() -> None:
    (finding,) = on(machine(INTEL), {"cuda": {}}, stages=3)
    assert "stage0, stage1, stage2" in finding.message


def test_an_ep_that_is_broken_is_an_error_with_its_problem() -> None:
    broken = machine(
        INTEL,
        (
            '"version": "1.8.1",',
            '"version": "1.8.1", "problem": "missing library x.so", "fix": "install x",',
        ),
    )
    (finding,) = on(broken, {"OpenVINO": {"device_type": "NPU"}})
    assert (finding.code, finding.found, finding.fix) == (
        "T421",
        "missing library x.so",
        "install x",
    )


NO_NPU = (
    ',\n        {"kind": "npu", "vendor": "Intel", "vendor_id": 32902,'
    ' "metadata": {"ov_device": "NPU"}}',
    "",
)
TWO_GPUS = ('"ov_device": "GPU"', '"ov_device": "GPU.0"')


@pytest.mark.parametrize(
    ("changes", "options", "device"),
    [
        ([NO_NPU], {"device_type": "NPU"}, "NPU"),
        ([NO_NPU], {"device_filtering_options": {"hardware_device_type": "npu"}}, "npu"),
        ([], {"device_type": "GPU.1"}, "GPU.1"),
        # The only GPU is called GPU, and the name is looked for as it is written.
        ([], {"device_type": "GPU.0"}, "GPU.0"),
        ([TWO_GPUS], {"device_type": "GPU.1"}, "GPU.1"),
        ([TWO_GPUS], {"device_type": "GPU.0"}, None),
        ([TWO_GPUS], {"device_type": "GPU"}, None),
        # The plugin does not read it, so the CPU is what takes effect.
        ([NO_NPU], {"device_id": "NPU"}, None),
    ],
)
def test_a_device_that_the_machine_lacks_is_an_error(
    changes: list[tuple[str, str]], options: dict[str, Any], device: str | None
) -> None:
    """W#569: no other device is taken for the one that is named."""
    told = on(machine(INTEL, *changes), {"OpenVINO": options})
    if device is None:
        assert told == []
        return
    (finding,) = told
    assert (finding.code, finding.severity) == ("T422", "error")
    assert f"openvino finds no {device} for stage stage0" in finding.message
    assert "--device" in str(finding.fix)


def test_the_built_in_generation_reads_a_device_id() -> None:
    built_in = machine(INTEL, NO_NPU, ('"onnxruntime-ep-openvino"', '"built-in"'))
    (finding,) = on(built_in, {"OpenVINO": {"device_id": "NPU"}})
    assert (finding.code, finding.path.rpartition(".")[2]) == ("T422", "device_id")


@pytest.mark.parametrize("options", [{"backend_type": "cpu"}, {"backend_path": "QnnCpu.dll"}])
def test_a_device_that_can_only_compile_is_a_warning(options: dict[str, str]) -> None:
    """W#860: QNN lists the CPU of the machine, and cannot run on it."""
    (finding,) = on(machine(SNAPDRAGON), {"QNN": options})
    assert (finding.code, finding.severity) == ("T423", "warning")


def test_every_inventory_that_is_shipped_says_that_it_was_written_by_hand() -> None:
    files = sorted(MACHINES.glob("*.json"))
    assert [file.stem for file in files] == [INTEL, NVIDIA, SNAPDRAGON]
    document = (Path(__file__).parents[1] / "docs" / "machine.md").read_text("utf-8")
    for file in files:
        assert str(machine(file.stem).comment).startswith("Written by hand")
        assert file.name in document
