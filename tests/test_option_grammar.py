"""How provider options are written, and what becomes of them. The peers are the plugins."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bundle_fixtures import build_flat, read_config, write_config
from checking_fixtures import failures
from turnout import catalog
from turnout.bundle import GenaiConfig
from turnout.catalog import BUILT_IN, PLUGIN, judge, read_device_type
from turnout.errors import UsageError
from turnout.machine import Inventory
from turnout.routing import OptionRequest, Route, RouteRequest, StageRequest, resolve

MACHINES = Path(__file__).parent / "data" / "inventories"


def ep(name: str) -> catalog.Ep:
    found = catalog.find(name)
    assert found is not None
    return found


def fates(name: str, options: dict[str, str], generation: str = PLUGIN) -> dict[str | None, str]:
    return {v.option: v.fate for v in judge(ep(name), options, generation)}


# --- device_type ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mode", "devices", "precision", "kind"),
    [
        ("CPU", None, ("CPU",), None, "cpu"),
        ("GPU", None, ("GPU",), None, "gpu"),
        ("GPU.1", None, ("GPU.1",), None, "gpu"),
        ("NPU", None, ("NPU",), None, "npu"),
        ("CPU_FP32", None, ("CPU",), "FP32", "cpu"),
        ("GPU.0_FP16", None, ("GPU.0",), "FP16", "gpu"),
        ("AUTO", "AUTO", (), None, None),
        ("AUTO:GPU,CPU", "AUTO", ("GPU", "CPU"), None, None),
        ("AUTO:GPU, CPU", "AUTO", ("GPU", "CPU"), None, None),
        ("AUTO:CPU", "AUTO", ("CPU",), None, "cpu"),
        ("HETERO:GPU.1,GPU.0,CPU", "HETERO", ("GPU.1", "GPU.0", "CPU"), None, None),
        ("MULTI:GPU.0,GPU.1", "MULTI", ("GPU.0", "GPU.1"), None, "gpu"),
    ],
)
def test_a_device_type_names_one_device_or_a_list(
    text: str, mode: str | None, devices: tuple[str, ...], precision: str | None, kind: str | None
) -> None:
    """B13: every form that the EP built into onnxruntime-openvino reads."""
    read = read_device_type(text)
    assert (read.mode, read.devices, read.precision, read.kind) == (mode, devices, precision, kind)


@pytest.mark.parametrize(
    ("text", "expected", "fix"),
    [
        ("", "CPU, GPU, GPU.N or NPU", None),
        ("VPU", "CPU, GPU, GPU.N or NPU", None),
        ("cpu", "CPU, GPU, GPU.N or NPU", "write CPU"),
        ("auto:gpu,cpu", "AUTO:", "write AUTO:GPU,CPU"),
        ("GPU.", "GPU.N", None),
        ("GPU.x", "GPU.N", None),
        ("GPU.01", "GPU.N", None),
        ("GPU,CPU", "after AUTO:", None),
        ("CPU.0", "CPU without a number", None),
        ("NPU.1", "NPU without a number", None),
        ("CPU_FP16", "FP32, ACCURACY", None),
        ("NPU_FP32", "FP16, ACCURACY", None),
        ("AUTO:", "devices after AUTO:", None),
        ("HETERO", "CPU, GPU, GPU.N or NPU", None),
        ("MULTI:GPU,", "devices after MULTI:", None),
        ("AUTO:GPU,,CPU", "devices after AUTO:", None),
        ("AUTO:GPU,CPU,GPU", "GPU stands twice", None),
        ("AUTO:GPU_FP16,CPU", "no precision", None),
        ("SPLIT:GPU,CPU", "AUTO:, HETERO: or MULTI:", None),
        ("AUTO:" + "GPU," * 70 + "CPU", "at most 64 devices", None),
    ],
)
def test_a_device_type_that_means_nothing_says_what_is_due(
    text: str, expected: str, fix: str | None
) -> None:
    """B13: empty lists, duplicates, wrong indices and case are named."""
    with pytest.raises(UsageError, match=re.escape(expected)) as raised:
        read_device_type(text)
    assert fix is None or f"fix: {fix}" in str(raised.value)
    assert (fix is not None) is ("fix: " in str(raised.value))


# --- OpenVINO as a plugin, by the plugin itself ---------------------------------------------------

DEEP = '{"NPU":' + '{"A":' * 7 + '{"B":"1"}' + "}" * 8
# option, value, and whether the plugin 1.8.1 runs it (measured, and measured again below).
MEASURED = [
    ("device_type", "CPU", True),
    ("device_type", "", True),
    ("device_type", "PU", True),
    ("device_type", "cpu", False),
    ("device_type", " CPU", False),
    ("device_type", "CPU.0", False),
    ("device_type", "CPU_FP32", False),
    ("device_type", "AUTO", False),
    ("device_type", "AUTO:CPU", False),
    ("device_type", "HETERO:CPU", False),
    ("device_id", "NPU", True),
    ("device_id", "CPU_FP32", True),
    ("device_luid", "1", True),
    ("precision", "junk", True),
    ("num_of_threads", "x", True),
    ("num_streams", "0", True),
    ("model_priority", "junk", True),
    ("enable_opencl_throttling", "junk", True),
    ("enable_qdq_optimizer", "junk", True),
    ("disable_dynamic_shapes", "junk", True),
    ("layout", "junk", True),
    ("context", "1", True),
    ("nonsense", "1", True),
    ("dump_subgraphs", "junk", True),
    ("cache_dir", "cache", True),
    ("enable_causallm", "True", True),
    ("enable_causallm", "False", True),
    ("enable_causallm", "0", True),
    ("enable_causallm", "", True),
    ("enable_causallm", "true", False),
    ("enable_causallm", "TRUE", False),
    ("enable_causallm", "1", False),
    ("enable_causallm", "yes", False),
    ("hint_enable_gqa", "TRUE", True),
    ("hint_enable_gqa", "junk", False),
    ("reshape_input", "", True),
    ("reshape_input", "input_ids[1,1..8]", True),
    ("reshape_input", "input_ids [1,1..8],", True),
    ("reshape_input", "junk", False),
    ("reshape_input", "input_ids[]", False),
    ("reshape_input", "[1,1..8]", False),
    ("reshape_input", "input_ids[1,-1]", False),
    ("reshape_input", "input_ids[1,8..1]", False),
    ("reshape_input", "input_ids[1,1..99999999999999999999]", False),
    ("load_config", "", True),
    ("load_config", "{}", True),
    ("load_config", '{"CPU":{"NUM_STREAMS":"1"}}', True),
    ("load_config", '{"CPU":{"NUM_STREAMS":1}}', True),
    ("load_config", '{"CPU":{"ENABLE_CPU_PINNING":true}}', True),
    ("load_config", '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}', True),
    ("load_config", '{"CPU":{"INFERENCE_PRECISION_HINT":"FP16 "}}', True),
    ("load_config", '{"CPU":{"INFERENCE_PRECISION_HINT":"fp32"}}', False),
    ("load_config", '{"CPU":{"INFERENCE_PRECISION_HINT":"i8"}}', False),
    ("load_config", '{"NPU":{"INFERENCE_PRECISION_HINT":"i8"}}', True),
    ("load_config", '{"CPU":{"PERFORMANCE_HINT":"LATENCY"}}', True),
    ("load_config", '{"CPU":{"PERFORMANCE_HINT":""}}', False),
    ("load_config", '{"CPU":{"EXECUTION_MODE_HINT":""}}', True),
    ("load_config", '{"CPU":{"EXECUTION_MODE_HINT":"accuracy"}}', False),
    ("load_config", '{"cpu":{"NOPE":"1"}}', True),
    ("load_config", '{"NPU":{"NOPE":"1"}}', True),
    ("load_config", DEEP, True),
    ("load_config", DEEP.replace('"1"', '{"C":"1"}'), False),
    ("load_config", "{", False),
    ("load_config", "[]", False),
    ("load_config", '{"NUM_STREAMS":"1"}', False),
    ("load_config", '{"cpu":"x"}', False),
    ("load_config", '{"CPU":{"NUM_STREAMS":null}}', False),
    ("load_config", '{"NPU":{"X":[1]}}', False),
    ("load_config", '{"NPU":{"X":NaN}}', False),
    ("load_config", '{"NPU":{"X":"1"},}', False),
]


@pytest.mark.parametrize(("option", "value", "runs"), MEASURED)
def test_what_the_plugin_of_openvino_refuses_is_known(option: str, value: str, runs: bool) -> None:
    """B13, B20: validated as the plugin reads it, not as the built-in EP did."""
    assert (fates("openvino", {option: value}).get(option) == "refused") is not runs


@pytest.mark.slow
@pytest.mark.openvino
def test_the_plugin_runs_what_is_said_to_run_and_nothing_else(tmp_path: Path) -> None:
    """B13: the table above by the real plugin, so that a new version of it is noticed."""
    folder = build_flat(tmp_path / "bundle")
    config = read_config(folder)
    folders = []
    for index, (option, value, _) in enumerate(MEASURED):
        other = tmp_path / str(index)
        other.mkdir()
        for file in folder.iterdir():
            (other / file.name).hardlink_to(file)
        (other / "genai_config.json").unlink()
        entry = {"OpenVINO": {option: value}}
        config["model"]["decoder"]["session_options"]["provider_options"] = [entry]
        write_config(other, config)
        folders.append(other)
    told = {str(row): not said for row, said in zip(MEASURED, failures(folders), strict=True)}
    assert told == {str(row): row[2] for row in MEASURED}


@pytest.mark.parametrize(
    ("option", "value", "fate"),
    [
        ("device_type", "PU", "valueless"),
        ("device_type", "", "valueless"),
        ("device_id", "CPU", "ignored"),
        ("num_of_threads", "4", "ignored"),
        ("precision", "FP32", "ignored"),
        ("disable_dynamic_shapes", "true", "ignored"),
        ("load_config", '{"cpu":{"X":"1"}}', "valueless"),
        ("load_config", "settings.json", "valueless"),
        ("nonsense", "1", "unknown"),
    ],
)
def test_what_the_plugin_passes_over_is_said(option: str, value: str, fate: str) -> None:
    """B20: options that were removed do not vanish in silence."""
    assert fates("openvino", {option: value}) == {option: fate}


def test_what_replaces_an_option_is_what_the_plugin_itself_advises() -> None:
    """B20: its log says "Please set it via the load_config as: ..."."""
    advised = {
        "num_of_threads": "INFERENCE_NUM_THREADS",
        "num_streams": "NUM_STREAMS",
        "precision": "INFERENCE_PRECISION_HINT",
        "model_priority": "MODEL_PRIORITY",
        "enable_opencl_throttling": "PLUGIN_THROTTLE",
        "enable_qdq_optimizer": "NPU_QDQ_OPTIMIZATION",
    }
    for option, property_name in advised.items():
        (verdict,) = judge(ep("openvino"), {option: "1"})
        assert property_name in str(verdict.fix)


# --- the generation built into onnxruntime-openvino ----------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"device_type": "AUTO:GPU,CPU"}, {}),
        ({"device_type": "HETERO:GPU.0,CPU"}, {}),
        ({"device_type": "cpu"}, {"device_type": "refused"}),
        ({"device_type": "CPU_FP32"}, {"device_type": "valueless"}),
        ({"device_id": "GPU"}, {"device_id": "deprecated"}),
        ({"device_id": "CPU_FP32"}, {"device_id": "refused"}),
        ({"device_type": "GPU", "precision": "FP16"}, {"precision": "deprecated"}),
        ({"device_type": "CPU", "precision": "FP16"}, {"precision": "refused"}),
        ({"device_type": "NPU", "precision": "FP32"}, {"precision": "refused"}),
        ({"num_of_threads": "4"}, {"num_of_threads": "deprecated"}),
        ({"num_of_threads": "-1"}, {"num_of_threads": "refused"}),
        ({"enable_opencl_throttling": "yes"}, {"enable_opencl_throttling": "refused"}),
        ({"enable_causallm": "true"}, {"enable_causallm": "refused"}),
        ({"model_priority": "URGENT"}, {"model_priority": "valueless"}),
        ({"hint_enable_gqa": "true"}, {"hint_enable_gqa": "unknown"}),
    ],
)
def test_the_built_in_ep_of_openvino_reads_more(
    options: dict[str, str], expected: dict[str | None, str]
) -> None:
    """B13: by `ParseProviderInfo`, `ParseDeviceType` and `ParsePrecision` of its source."""
    assert fates("openvino", options, BUILT_IN) == expected


# --- other EPs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # onnxruntime-qnn 2.7.0 on x86-64: these two fail, the rest is passed over with a line.
        ("qnn", {"backend_type": "htp", "backend_path": "x.so"}, {"backend_path": "refused"}),
        ("qnn", {"backend_type": "htp", "device_id": "x"}, {"device_id": "refused"}),
        ("qnn", {"backend_type": "HTP"}, {"backend_type": "valueless"}),
        (
            "qnn",
            {"backend_type": "htp", "htp_performance_mode": "fast"},
            {"htp_performance_mode": "valueless"},
        ),
        ("qnn", {"backend_type": "htp", "soc_model": "SM8750"}, {}),
        ("qnn", {"backend_type": "htp", "htp_perfomance_mode": "burst"},
         {"htp_perfomance_mode": "unknown"}),
        ("qnn", {"htp_performance_mode": "burst"}, {None: "missing"}),
        ("webgpu", {"enableGraphCapture": "1", "validationMode": "disabled"}, {}),
        ("webgpu", {"enableGraphCapture": "true"}, {"enableGraphCapture": "refused"}),
        ("coreml", {"MLComputeUnits": "ALL"}, {}),
        ("coreml", {"MLComputeUnits": "GPU"}, {"MLComputeUnits": "refused"}),
        ("dml", {"device_id": "1"}, {"device_id": "ignored"}),
        ("dml", {"device_index": "1"}, {}),
        ("cuda", {"enable_cuda_graph": "0"}, {}),
        ("cuda", {"enable_cuda_graph": "yes"}, {"enable_cuda_graph": "valueless"}),
        ("nvtensorrtrtx", {"nv_cuda_graph_enable": "1"}, {"nv_cuda_graph_enable": "deprecated"}),
        ("ryzenai", {"hybrid_opt_anything": "1"}, {}),
        ("cpu", {"num_threads": "4"}, {"num_threads": "refused"}),
    ],
)  # fmt: skip
def test_options_of_other_eps_are_judged_by_what_is_known_of_them(
    name: str, options: dict[str, str], expected: dict[str | None, str]
) -> None:
    assert fates(name, options) == expected


def test_a_near_miss_is_pointed_out() -> None:
    (verdict,) = judge(ep("qnn"), {"backend_type": "htp", "htp_perfomance_mode": "burst"})[:1]
    assert verdict.fix == "did you mean htp_performance_mode?"


def test_cuda_reads_the_strategy_of_its_arena_as_a_number_when_it_is_built_in() -> None:
    """onnxruntime-genai parses it as one, against onnxruntime's documentation."""
    options = {"arena_extend_strategy": "kNextPowerOfTwo"}
    assert fates("cuda", options, BUILT_IN) == {"arena_extend_strategy": "valueless"}


def test_options_have_one_meaning_in_a_generation() -> None:
    for known in catalog.EPS:
        for generation in catalog.GENERATIONS:
            names = [o.name for o in known.options if generation in o.generations]
            assert len(names) == len(set(names)), known.alias
        named = {option.name for option in known.options}
        assert not known.all_options_known or set(known.device_options) <= named, known.alias
        assert set(known.exclusive_options) <= named


def test_a_default_is_never_doubted() -> None:
    for known in catalog.EPS:
        for options in known.defaults.values():
            for generation in catalog.GENERATIONS:
                assert judge(known, options, generation) == (), known.alias


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000,
        '{"a":' * 50_000,
        "[" * 100_000,
        "input_ids[" + "1," * 100_000,
        "GPU." + "9" * 10_000,
    ],
)
def test_hostile_values_are_judged_at_once(text: str) -> None:
    for option in ("device_type", "load_config", "reshape_input", "enable_causallm", "x" * 90_000):
        assert len(judge(ep("openvino"), {option: text})) == 1


# --- routes --------------------------------------------------------------------------------------


def machine(name: str = "intel-laptop", source: str | None = None) -> Inventory:
    text = (MACHINES / f"{name}.json").read_text("utf-8")
    if source is not None:
        text = text.replace('"source": "onnxruntime-ep-openvino"', f'"source": "{source}"')
    return Inventory.from_json(text)


def flat(options: dict[str, str]) -> GenaiConfig:
    entries = [{"OpenVINO": options}]
    decoder = {"filename": "m.onnx", "session_options": {"provider_options": entries}}
    model = {"type": "llama", "context_length": 64, "decoder": decoder}
    return GenaiConfig.parse(json.dumps({"model": model}), "genai_config.json")


def route(config: GenaiConfig, inventory: Inventory, *options: str, **asked: str | None) -> Route:
    given = tuple(OptionRequest(None, *text.split("=", 1)) for text in options)
    return resolve(config, inventory, RouteRequest(provider_options=given, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["cpu", "AUTO:GPU,CPU", "CPU_FP32"])
def test_a_route_to_an_ep_that_would_refuse_its_options_is_an_error(value: str) -> None:
    """B13: said before anything is loaded, with the option, its value, and the stage."""
    with pytest.raises(UsageError) as raised:
        route(flat({"device_type": value}), machine(), ep="openvino")
    for line in (
        "openvino does not take this value of device_type (as a plugin).",
        f"found: device_type={value}",
        "expected: one device: CPU, GPU, GPU.N or NPU",
        "where: stage decoder",
    ):
        assert line in str(raised.value)


def test_the_generation_that_is_installed_decides() -> None:
    """B13: the same bundle runs on the EP that onnxruntime-openvino has built in."""
    config = flat({"device_type": "AUTO:GPU,CPU"})
    found = route(config, machine(source="built-in"), ep="openvino")
    assert found.warnings == ()
    assert not found.changes


def test_an_option_that_is_asked_for_is_judged_too() -> None:
    with pytest.raises(UsageError, match="enable_causallm") as raised:
        route(flat({"device_type": "CPU"}), machine(), "enable_causallm=true")
    assert "fix: write True" in str(raised.value)


def test_an_option_that_does_nothing_is_a_line_and_is_written_as_it_was_asked() -> None:
    """B20: an option that the EP reads no more does not break anything, and is named."""
    found = route(flat({"device_type": "CPU"}), machine(), "num_of_threads=2")
    assert found.warnings == (
        "stage decoder: openvino does not read the option num_of_threads (as a plugin); write it"
        ' in load_config as {"CPU": {"INFERENCE_NUM_THREADS": "2"}}',
    )
    assert found.stages[0].options == {"device_type": "CPU", "num_of_threads": "2"}


def test_what_a_bundle_says_of_stages_that_are_left_alone_is_not_judged_by_a_route() -> None:
    config = flat({"device_type": "cpu", "nonsense": "1"})
    assert route(config, machine()).warnings == ()
    assert len(route(config, machine(), "num_streams=1").warnings) == 1


def test_stages_with_the_same_doubt_share_a_line() -> None:
    stages = {
        name: {
            "filename": f"{name}.onnx",
            "session_options": {
                "provider_options": [{"OpenVINO": {"device_type": "CPU", "num_streams": "1"}}]
            },
        }
        for name in ("context", "iterator")
    }
    model = {"type": "decoder-pipeline", "context_length": 64, "decoder": {"pipeline": [stages]}}
    config = GenaiConfig.parse(json.dumps({"model": model}), "genai_config.json")
    (line,) = route(config, machine(), ep="openvino").warnings
    assert line.startswith("stages context, iterator: openvino does not read the option")
    request = RouteRequest(stages=(StageRequest("context", "openvino"),))
    (line,) = resolve(config, machine(), request).warnings
    assert line.startswith("stage context: ")
