"""The table of execution providers. Expected values are written by hand from the runtimes' own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from turnout import catalog

CPU, OPENVINO, QNN = "CPUExecutionProvider", "OpenVINOExecutionProvider", "QNNExecutionProvider"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("cpu", CPU),
        ("CPU", CPU),
        ("CPUExecutionProvider", CPU),
        ("cpuexecutionprovider", CPU),
        ("openvino", OPENVINO),
        ("OpenVINO", OPENVINO),
        ("ov", OPENVINO),
        ("OPENVINOEXECUTIONPROVIDER", OPENVINO),
        ("OpenVINOExecutionProvider.AUTO", OPENVINO),
        ("qnn", QNN),
        ("QNN", QNN),
        ("dml", "DmlExecutionProvider"),
        ("DirectML", "DmlExecutionProvider"),
        ("cuda", "CUDAExecutionProvider"),
        ("NvTensorRtRtx", "NvTensorRTRTXExecutionProvider"),
        ("trt-rtx", "NvTensorRTRTXExecutionProvider"),
        ("tensorrt", "TensorrtExecutionProvider"),
        ("webgpu", "WebGpuExecutionProvider"),
        ("RyzenAI", "RyzenAILightExecutionProvider"),
        ("RyzenAIExecutionProvider", "RyzenAILightExecutionProvider"),
        ("AMDGPU", "AMDGPUExecutionProvider"),
        (" vitisai ", "VitisAIExecutionProvider"),
    ],
)
def test_a_name_is_known_by_alias_and_full_name_in_any_case(written: str, name: str) -> None:
    """A7: nothing depends on how an EP's name is spelled (full names were once not recognised)."""
    assert catalog.canonical(written) == name
    found = catalog.find(written)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("name", ["ggml", "MLXExecutionProvider", "cpu.1", "", "openvino.auto"])
def test_a_name_that_the_table_does_not_know_passes_through(name: str) -> None:
    assert catalog.find(name) is None
    assert catalog.canonical(name) == name
    assert catalog.alias_of(name) == name


def test_every_alias_and_name_means_one_ep() -> None:
    words = [w for ep in catalog.EPS for w in {ep.name.lower(), ep.alias, *ep.aliases}]
    assert len(words) == len(set(words))
    assert [ep.alias for ep in catalog.EPS if catalog.find(ep.alias) is not ep] == []


def test_the_canonical_names_are_those_of_onnxruntime() -> None:
    """Peer: `get_all_providers` lists every EP that onnxruntime knows of."""
    code = "import onnxruntime as o; print(*o.get_all_providers())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    theirs = set(out.stdout.split())
    ours = {ep.name for ep in catalog.EPS}
    # Plugins, and one that was removed: onnxruntime does not list these.
    elsewhere = {"ryzenai", "amdgpu", "rocm", "nvtensorrtrtx"}
    assert {name for name in ours if catalog.alias_of(name) not in elsewhere} <= theirs


def test_devices_are_of_the_three_kinds_and_only_the_cpu_ep_is_everywhere() -> None:
    for ep in catalog.EPS:
        assert ep.devices
        assert set(ep.devices) | set(ep.compile_only_on) <= set(catalog.DEVICES)
        assert not set(ep.devices) & set(ep.compile_only_on)
        assert set(ep.defaults) <= set(ep.devices)
    assert [ep.alias for ep in catalog.EPS if ep.builtin] == ["cpu"]
    assert catalog.EPS[0] is catalog.CPU


def test_every_ep_says_how_to_get_it() -> None:
    for ep in catalog.EPS:
        assert ep.builtin or ep.packages or ep.otherwise, ep.alias


@pytest.mark.parametrize(
    ("ep", "options", "device"),
    [
        ("cpu", {}, "cpu"),
        ("openvino", {}, "cpu"),  # what onnxruntime-genai falls back to
        ("openvino", {"num_streams": "2"}, "cpu"),
        ("openvino", {"device_type": "CPU"}, "cpu"),
        ("openvino", {"device_type": "NPU"}, "npu"),
        ("openvino", {"device_type": "GPU.1"}, "gpu"),
        ("openvino", {"device_type": "CPU_FP32"}, "cpu"),
        ("openvino", {"device_type": "AUTO:GPU,CPU"}, None),
        ("openvino", {"device_type": "HETERO:NPU,CPU"}, None),
        ("openvino", {"device_type": "MULTI:GPU,CPU"}, None),
        ("openvino", {"device_type": "AUTO"}, None),
        ("openvino", {"device_type": "HETERO:GPU.0,GPU.1"}, "gpu"),
        # The plugin does not read it (measured), so the CPU is what takes effect.
        ("openvino", {"device_id": "NPU"}, "cpu"),
        ("qnn", {}, None),
        ("qnn", {"backend_type": "htp"}, "npu"),
        ("qnn", {"backend_type": "gpu"}, "gpu"),
        ("qnn", {"backend_path": "QnnHtp.dll"}, "npu"),
        ("qnn", {"backend_path": "C:\\qnn\\QnnHtp.dll"}, "npu"),
        ("qnn", {"backend_path": "/opt/qnn/libQnnGpu.so"}, "gpu"),
        ("qnn", {"backend_path": "libQnnCpu.so"}, "cpu"),
        ("cuda", {"device_id": "1"}, "gpu"),
        ("coreml", {"MLComputeUnits": "CPUAndNeuralEngine"}, "npu"),
        ("coreml", {}, None),
    ],
)
def test_the_device_that_options_select_is_read(
    ep: str, options: dict[str, str], device: str | None
) -> None:
    """B13: `CPU`, `GPU.1`, `NPU`, `AUTO:...`, `HETERO:...`, `MULTI:...`, deprecated `device_id`."""
    found = catalog.find(ep)
    assert found is not None
    assert found.device_of(options) == device


def test_a_deprecated_device_id_selects_only_where_the_ep_reads_it() -> None:
    """B13: the EP that onnxruntime-openvino has built in reads `device_id`, the plugin does not."""
    found = catalog.find("openvino")
    assert found is not None
    assert found.device_of({"device_id": "NPU"}, catalog.BUILT_IN) == "npu"
    assert found.device_of({"device_id": "NPU"}, catalog.PLUGIN) == "cpu"
    # Where it is read, it has the last word (`ParseProviderInfo`).
    assert found.device_of({"device_type": "GPU", "device_id": "NPU"}, catalog.BUILT_IN) == "npu"
    assert found.device_of({"device_type": "GPU", "device_id": "NPU"}, catalog.PLUGIN) == "gpu"


def test_a_default_for_a_device_selects_that_device() -> None:
    for ep in catalog.EPS:
        for device, options in ep.defaults.items():
            assert ep.device_of(options) == device, ep.alias


def test_the_cpu_ep_takes_no_options() -> None:
    """A4: onnxruntime-genai refuses options on its `cpu` entry."""
    assert not catalog.CPU.takes_options
    assert catalog.CPU.written_name == "cpu"


@pytest.mark.parametrize(
    ("ep", "platform", "package"),
    [
        ("openvino", "linux-x86_64", "onnxruntime-ep-openvino"),
        ("openvino", "macos-arm64", None),
        ("qnn", "windows-arm64", "onnxruntime-qnn"),
        ("qnn", "linux-arm64", "onnxruntime-qnn"),
        ("cuda", "linux-arm64", "onnxruntime-genai-cuda"),
        ("migraphx", "linux-arm64", None),
        ("webgpu", "macos-arm64", "onnxruntime-ep-webgpu"),
        ("dml", "linux-x86_64", None),
        ("vitisai", "windows-x86_64", None),
    ],
)
def test_a_package_is_named_only_for_platforms_that_it_serves(
    ep: str, platform: str, package: str | None
) -> None:
    found = catalog.find(ep)
    assert found is not None
    offered = found.package_for(platform)
    assert (offered.name if offered is not None else None) == package
