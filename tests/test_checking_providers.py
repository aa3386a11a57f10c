"""Checks of EPs and their options. What the runtime does with the same configs is asked of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import build_flat, build_pipeline, read_config, write_config
from checking_fixtures import failures
from turnout import build, catalog
from turnout.bundle import Bundle, GenaiConfig
from turnout.checking import Finding, Subject, providers
from turnout.errors import ConfigError
from turnout.machine import Inventory

CORPUS = Path(
    os.environ.get("TURNOUT_CORPUS", Path(__file__).parents[2] / "shared" / "corpus")
).resolve()
MACHINES = Path(__file__).parent / "data" / "inventories"
TINY = Path(__file__).parent / "data" / "tiny"
CPU_ONLY: dict[str, Any] = {"provider_options": []}


def subject(model: dict[str, Any], machine: str | None = None) -> Subject:
    model = {"type": "llama", "context_length": 64, **model}
    text = json.dumps({"model": model}, indent=1)
    inventory = None
    if machine is not None:
        inventory = Inventory.from_json((MACHINES / f"{machine}.json").read_text("utf-8"))
    return Subject(GenaiConfig.parse(text, "genai_config.json"), None, inventory)


def flat(options: Any) -> Subject:
    return subject({"decoder": {"filename": "model.onnx", "session_options": options}})


def on(*entries: Any) -> Subject:
    return flat({"provider_options": list(entries)})


def pipeline(decoder: Any, **stages: Any) -> Subject:
    """A pipeline with the decoder's session options, and those of its stages (None: without)."""
    made = {
        name: {"filename": f"{name}.onnx"} | ({} if own is None else {"session_options": own})
        for name, own in stages.items()
    }
    return subject(
        {
            "type": "decoder-pipeline",
            "decoder": {"session_options": decoder, "pipeline": [made]},
        }
    )


def found(checked: Subject) -> list[Finding]:
    return list(providers.check(checked))


def codes(checked: Subject) -> list[str]:
    return [finding.code for finding in found(checked)]


OPENVINO = {"provider_options": [{"OpenVINO": {"device_type": "CPU"}}]}


def test_every_rule_has_a_bad_example_that_it_finds_and_a_good_one_that_it_does_not() -> None:
    for rule in providers.RULES:
        for example, expected in ((rule.bad, True), (rule.good, False)):
            if not example.startswith("{"):
                continue  # of what is on disk
            document = json.loads(example)
            document["model"].setdefault("decoder", {})
            config = GenaiConfig.parse(json.dumps(document), "genai_config.json")
            told = codes(Subject(config))
            assert (rule.code in told) is expected, (rule.code, told)
            assert expected or not told, (rule.code, told)


# --- what the runtime says of the same ------------------------------------------------------------

FLAT_CASES: list[tuple[Any, str]] = [
    (CPU_ONLY, ""),
    ({"provider_options": [{}]}, ""),
    ({"provider_options": [{"cpu": {}}, {"CPUExecutionProvider": {}}]}, ""),
    ({"provider_options": [{"cpu": {"x": "1"}}]}, "T401"),
    ({"provider_options": [{"CPUExecutionProvider": {"x": "1"}}]}, "T401"),
    ({"provider_options": "OpenVINO"}, ""),
    ({"session.disable_cpu_ep_fallback": "1"}, "T416"),
    ({"session.disable_cpu_ep_fallback": "true"}, ""),
    ({"provider_options": [{"foo": {}}]}, "T408"),
    ({"intra_op_num_threads": -1}, ""),
    ({"ep.context_enable": "1"}, ""),
    ({"provider_options": [{"AZURE": {}}]}, ""),
    ({"provider_options": [{"azure": {}}]}, "T408"),
    *(
        ({"provider_options": [{name: {}}]}, "T433")
        for name in ("tensorrt", "TensorRT", "migraphx", "coreml", "rocm", "xnnpack", "Xnnpack")
    ),
    ({"log_severity_level": -1}, ""),
    ({"log_severity_level": 4}, ""),
    ({"log_severity_level": 5}, "T432"),
    ({"log_severity_level": -2}, "T432"),
    ({"optimization.minimal_build_optimizations": "apply"}, ""),
    ({"optimization.minimal_build_optimizations": "save"}, "T432"),
    ({"optimization.minimal_build_optimizations": "x"}, "T432"),
    ({"session.dynamic_block_base": " 4x"}, ""),
    ({"session.dynamic_block_base": "-3"}, ""),
    ({"session.dynamic_block_base": ""}, "T432"),
    ({"session.dynamic_block_base": "abc"}, "T432"),
    ({"session.dynamic_block_base": "99999999999"}, "T432"),
    ({"session.resource_cuda_partitioning_settings": ""}, ""),
    ({"session.resource_cuda_partitioning_settings": "1,"}, ""),
    ({"session.resource_cuda_partitioning_settings": "1"}, "T432"),
    ({"session.resource_cuda_partitioning_settings": "a,b"}, "T432"),
    ({"session.load_model_format": "ORT"}, "T432"),
    ({"session.load_model_format": "ort"}, ""),
    ({"": "x"}, "T432"),
    ({"k" * 1024: "x"}, ""),
    ({"k" * 1025: "x"}, "T432"),
    ({"foo": "x" * 8192}, ""),
    ({"foo": "x" * 8193}, "T432"),
]
RUN_CASES = [
    ({"memory.enable_memory_arena_shrinkage": "cpu:0"}, ""),
    ({"memory.enable_memory_arena_shrinkage": "cpu:0;cpu"}, ""),
    ({"memory.enable_memory_arena_shrinkage": ""}, ""),
    ({"memory.enable_memory_arena_shrinkage": "CPU:0"}, "T432"),
    ({"memory.enable_memory_arena_shrinkage": "cpu:x"}, "T432"),
    ({"terminate_session": "0"}, ""),
    ({"terminate_session": "1"}, "T432"),
    ({"gpu_graph_id": "1"}, ""),
    ({"gpu_graph_id": "x"}, "T432"),
    ({"anything": "x"}, ""),
    ({"": "x"}, "T432"),
]
OPENVINO_CASES: list[tuple[Any, str]] = [
    ({"provider_options": [{"OpenVINO": {}}, {"OpenVINO": {}}]}, ""),
    ({"provider_options": [{"OpenVINO": {}}, {"openvino": {}}]}, "T404"),
    ({"provider_options": [{"OpenVINO": {}}, {"OpenVINOExecutionProvider": {}}]}, "T404"),
    ({"provider_options": [{"OpenVINOExecutionProvider.AUTO": {}}]}, ""),
    ({"provider_options": [{}, {"OpenVINO": {}}, {"cpu": {}}]}, ""),
    ({"provider_options": [{"OpenVINO": {"device_type": "cpu"}}]}, "T410"),
    ({"provider_options": [{"OpenVINO": {"num_of_threads": "2"}}]}, ""),
    ({"session.disable_cpu_ep_fallback": "1", **OPENVINO}, ""),
]
PIPELINE_CASES: list[tuple[Any, Any, str]] = [
    (OPENVINO, None, "T406"),
    (OPENVINO, {}, "T406"),
    (OPENVINO, OPENVINO, "T406"),
    (CPU_ONLY, OPENVINO, ""),
    (CPU_ONLY, None, ""),
]


def errors(folder: Path) -> str:
    """The code of the one thing that is said to fail, "" if nothing is."""
    bundle = Bundle.open(folder)
    told = providers.check(Subject(bundle.config, bundle))
    return ",".join(f.code for f in told if f.severity == "error" or f.code == "T408")


def write_flat(folder: Path, options: Any) -> Path:
    build_flat(folder)
    config = read_config(folder)
    config["model"]["decoder"]["session_options"] = options
    write_config(folder, config)
    return folder


def test_what_is_an_error_fails_in_the_runtime_and_what_is_none_runs(tmp_path: Path) -> None:
    folders = [write_flat(tmp_path / str(n), case[0]) for n, case in enumerate(FLAT_CASES)]
    expected = [case[1] for case in FLAT_CASES]
    for number, (options, code) in enumerate(RUN_CASES):
        folder = build_flat(tmp_path / f"run {number}")
        config = read_config(folder)
        config["model"]["decoder"]["run_options"] = options
        write_config(folder, config)
        folders.append(folder)
        expected.append(code)
    assert [errors(folder) for folder in folders] == expected
    ran = failures(folders)
    assert [not text for text in ran] == [not code for code in expected], ran
    assert "does not support provider options" in ran[3]
    assert "fallback to CPU EP has been explicitly disabled" in ran[6]


@pytest.mark.openvino
def test_what_is_an_error_on_openvino_fails_in_the_runtime(tmp_path: Path) -> None:
    folders = [write_flat(tmp_path / str(n), case[0]) for n, case in enumerate(OPENVINO_CASES)]
    expected = [case[1] for case in OPENVINO_CASES]
    for number, (decoder, stages, code) in enumerate(PIPELINE_CASES):
        folder = build_pipeline(tmp_path / f"pipeline {number}")
        config = read_config(folder)
        config["model"]["decoder"]["session_options"] = decoder
        for stage in config["model"]["decoder"]["pipeline"][0].values():
            stage.pop("session_options", None)
            if stages is not None:
                stage["session_options"] = stages
        write_config(folder, config)
        folders.append(folder)
        expected.append(code)
    assert [errors(folder) for folder in folders] == expected
    ran = failures(folders)
    assert [not text for text in ran] == [not code for code in expected], ran
    assert "already been registered" in ran[1]
    assert "resides on the primary device type" in ran[len(OPENVINO_CASES)]


@pytest.mark.openvino
def test_a_context_that_is_enabled_writes_files_beside_the_bundle(tmp_path: Path) -> None:
    """T415: what the finding says is what happens."""
    folder = write_flat(tmp_path / "b", {"ep.context_enable": "1", **OPENVINO})
    before = set(folder.iterdir())
    bundle = Bundle.open(folder)
    (finding,) = providers.check(Subject(bundle.config, bundle))
    assert (finding.code, finding.severity) == ("T415", "warning")
    assert failures([folder]) == [""]
    written = set(folder.iterdir()) - before
    assert {path.suffix for path in written} == {".onnx", ".bin"}
    assert "model_ctx.onnx by the first load" in finding.message
    # And what was written makes the next load fail, which is an error then.
    (finding,) = providers.check(Subject(bundle.config, bundle))
    assert (finding.code, finding.severity, finding.found) == ("T431", "error", "model_ctx.onnx")
    assert "exists already" in failures([folder])[0]


@pytest.mark.openvino
def test_a_context_that_is_enabled_may_say_where_it_is_written(tmp_path: Path) -> None:
    options = {"ep.context_enable": "1", "ep.context_file_path": "other.onnx", **OPENVINO}
    folder = write_flat(tmp_path / "b", options)
    (folder / "model_ctx.onnx").write_bytes(b"in nobody's way")
    bundle = Bundle.open(folder)
    assert codes(Subject(bundle.config, bundle)) == ["T415"]
    assert failures([folder]) == [""]
    assert codes(Subject(bundle.config, bundle)) == ["T431"]
    assert "exists already" in failures([folder])[0]


BROKEN = {"load_config": '{"CPU": {"NOPE": "1"}}'}


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("entries", "loads"),
    [
        ([{"OpenVINO": {}}, {"openvino": BROKEN}], True),
        ([{"OpenVINO": BROKEN}, {"openvino": {}}], False),
        ([{"OpenVINO": {}, "OpenVINOExecutionProvider": BROKEN}], True),
        ([{"openvino": {}}, {"OpenVINO": {"device_type": "NPU"}}], True),
    ],
)
def test_of_two_spellings_a_stage_takes_the_first_with_its_options(
    entries: list[Any], loads: bool, tmp_path: Path
) -> None:
    folder = build_pipeline(tmp_path / "b", providers={"transformer": entries})
    bundle = Bundle.open(folder)
    told = found(Subject(bundle.config, bundle))
    assert [(finding.code, finding.severity) for finding in told] == [("T430", "warning")]
    (text,) = failures([folder])
    assert (text == "") is loads
    assert loads or "NOPE" in text


@pytest.mark.openvino
def test_an_option_for_a_whole_decoder_is_refused_on_a_stage_and_doubted_on_fused_attention(
    tmp_path: Path,
) -> None:
    whole = {"OpenVINO": {"device_type": "CPU", "enable_causallm": "True"}}
    folders = [
        build_pipeline(tmp_path / stage, providers={stage: [whole]})
        for stage in ("embeddings", "transformer", "lm_head")
    ]
    assert [errors(folder) for folder in folders] == ["T434"] * 3
    fused = build(TINY / "llama-f32.gguf", tmp_path / "fused", layout="flat")
    config = read_config(fused)
    config["model"]["decoder"]["session_options"] = {"provider_options": [whole]}
    write_config(fused, config)
    bundle = Bundle.open(fused)
    (finding,) = found(Subject(bundle.config, bundle))
    assert (finding.code, finding.severity) == ("T435", "warning")
    assert finding.path.endswith("OpenVINO.enable_causallm")
    *stages, flat = failures([*folders, fused])
    assert all(stages)
    assert "partitioned into" in flat


# --- places and words -----------------------------------------------------------------------------


def test_a_finding_names_the_option_its_value_and_its_line() -> None:
    (finding,) = found(on({"OpenVINO": {"device_type": "cpu"}}))
    assert finding.to_json() == {
        "code": "T410",
        "severity": "error",
        "kind": "route",
        "path": "model.decoder.session_options.provider_options[0].OpenVINO.device_type",
        "message": "openvino does not take this value of device_type (as a plugin).",
        "found": "device_type=cpu",
        "expected": "one device: CPU, GPU, GPU.N or NPU",
        "fix": "write CPU",
        "line": 11,
        "column": 23,
    }


def test_the_generation_of_the_machine_is_the_one_that_is_judged() -> None:
    """B13: what the plugin refuses, the EP built into onnxruntime-openvino may read."""
    checked = on({"OpenVINO": {"device_type": "AUTO:GPU,CPU"}})
    assert codes(checked) == ["T410"]
    text = (MACHINES / "intel-laptop.json").read_text("utf-8")
    text = text.replace('"source": "onnxruntime-ep-openvino"', '"source": "built-in"')
    assert codes(Subject(checked.config, None, Inventory.from_json(text))) == []


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"OpenVINO": {"device_type": "PU"}}, "T411"),
        ({"OpenVINO": {"num_streams": "2"}}, "T412"),
        ({"OpenVINO": {"device_id": "GPU"}}, "T412"),
        ({"OpenVINO": {"nonsense": "2"}}, "T413"),
        ({"QNN": {"soc_model": "60"}}, "T414"),
        ({"QNN": {"backend_type": "htp", "backend_path": "QnnHtp.dll"}}, "T410"),
        ({"QNN": {"backend_path": "C:\\qnn\\QnnHtp.dll"}}, "T417"),
        ({"QNN": {"backend_path": "\\\\server\\QnnHtp.dll"}}, "T417"),
        ({"OpenVINO": {"cache_dir": "/tmp/cache"}}, "T417"),
        ({"OpenVINO": {"load_config": '{"CPU":{"CACHE_DIR":"/tmp/cache"}}'}}, "T417"),
        ({"OpenVIN": {}}, "T408"),
    ],
)
def test_what_will_not_do_what_it_says_is_told(entry: dict[str, Any], code: str) -> None:
    """B20: options that were removed or renamed are named before anything is loaded."""
    assert codes(on(entry)) == [code]


@pytest.mark.parametrize(
    "entry",
    [
        {"OpenVINO": {"device_type": "GPU.1", "cache_dir": "cache"}},
        {"OpenVINO": {"device_filtering_options": {"hardware_device_type": "npu"}}},
        {"OpenVINO": {"load_config": '{"NPU":{"MAX_PROMPT_LEN":"4096"}}'}},
        {"OpenVINO": {"enable_causallm": "True"}},
        {"QNN": {"backend_path": "QnnHtp.dll", "htp_performance_mode": "burst", "soc_model": "60"}},
        {"QNN": {"device_filtering_options": {"hardware_device_type": "npu"}}},
        {"RyzenAI": {"external_data_file": "model_jit.pb.bin", "hybrid_opt_x": "1"}},
        {"webgpu": {"enableGraphCapture": "1"}},
        {"cuda": {"enable_cuda_graph": "0"}},
        {"dml": {}},
    ],
)  # fmt: skip
def test_what_works_is_not_mentioned(entry: dict[str, Any]) -> None:
    assert codes(on(entry)) == []


def test_a_plugin_that_nobody_knows_is_a_name_that_only_a_machine_can_judge() -> None:
    checked = on({"ggml": {"threads": "4"}})
    assert codes(checked) == ["T408"]
    machine = Inventory.from_json((MACHINES / "intel-laptop.json").read_text("utf-8"))
    assert codes(Subject(checked.config, None, machine)) == []


def test_an_empty_element_alone_is_how_builders_write_the_cpu_ep() -> None:
    assert codes(on({})) == []
    assert codes(on({}, {"OpenVINO": {}})) == ["T403"]


def test_several_eps_are_told_in_their_order() -> None:
    (finding,) = found(on({"cuda": {}}, {"OpenVINO": {}}, {"cpu": {}}))
    assert (finding.code, finding.severity, finding.found) == ("T405", "info", "cuda, openvino")


def test_options_that_a_stage_inherits_are_told_once_and_where_they_are() -> None:
    checked = pipeline(OPENVINO_THREADS, context=None, iterator=None)
    told = found(checked)
    assert [finding.code for finding in told] == ["T412", "T406"]
    assert told[0].path == "model.decoder.session_options.provider_options[0].OpenVINO.num_streams"


OPENVINO_THREADS = {"provider_options": [{"OpenVINO": {"num_streams": "1"}}]}


@pytest.mark.parametrize(
    ("decoder", "stage", "told"),
    [
        # By IntermediatePipelineState::SupportsPrimaryDevice: no such hardware was at hand.
        ("dml", None, ["T406"]),
        ("webgpu", None, ["T406"]),
        ("cuda", None, []),
        ("cuda", {"provider_options": [{"cuda": {}}]}, []),
        ("cuda", {"provider_options": []}, ["T406"]),
        ("vitisai", None, []),
        ("cpu", None, []),
    ],
)
def test_an_ep_on_the_decoder_of_a_pipeline_fails_by_whose_memory_its_inputs_are_in(
    decoder: str, stage: Any, told: list[str]
) -> None:
    assert codes(pipeline({"provider_options": [{decoder: {}}]}, only=stage)) == told


def test_qnn_on_the_decoder_of_a_pipeline_is_fine() -> None:
    options = {"provider_options": [{"qnn": {"backend_type": "htp"}}]}
    assert codes(pipeline(options, context=None, lm_head=CPU_ONLY)) == []


def test_session_options_of_a_vision_pipeline_that_nothing_reads_are_told() -> None:
    stages = {
        name: {"filename": f"{name}.onnx", "session_options": OPENVINO}
        for name in ("vision_patch", "vision_attn")
    }
    model = {
        "decoder": {"filename": "model.onnx"},
        "vision": {"pipeline": [stages]},
    }
    (finding,) = found(subject(model))
    assert finding.code == "T407"
    assert finding.path == "model.vision.pipeline[0].vision_patch.session_options"


def test_a_fallback_that_is_forbidden_is_told_for_the_stages_on_the_cpu_ep() -> None:
    options = {"session.disable_cpu_ep_fallback": "1"}
    both = pipeline(CPU_ONLY, embeddings=options, transformer={**options, **OPENVINO})
    (finding,) = found(both)
    assert (finding.code, "embeddings" in finding.message) == ("T416", True)
    assert codes(flat({"session.disable_cpu_ep_fallback": "0"})) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"enable_profiling": "p"}, ["T418"]),
        ({"enable_profiling": "/tmp/p"}, ["T418", "T417"]),
        ({"ep.context_file_path": "/x/model_ctx.onnx"}, ["T417"]),
        ({"intra_op_num_threads": -4}, ["T419"]),
        ({"intra_op_num_threads": 100_000}, ["T419"]),
        ({"intra_op_num_threads": 99, "inter_op_num_threads": 1}, []),
        ({"inter_op_num_threads": 4}, ["T419"]),
        ({"intra_op_num_threads": True, "inter_op_num_threads": "x"}, []),
        ({"log_id": "x", "ep.context_enable": "1"}, []),
        ({"ep.context_enable": "1", **OPENVINO}, ["T415"]),
    ],
)
def test_session_options_that_are_odd_are_told(options: dict[str, Any], told: list[str]) -> None:
    """W#1051: an absolute path in a config works on one machine alone."""
    assert codes(flat(options)) == told


# --- no false alarms, and no crash ----------------------------------------------------------------


def test_the_fixtures_that_run_have_nothing_to_mention(tmp_path: Path) -> None:
    for name, folder in (
        ("flat", build_flat(tmp_path / "flat")),
        ("pipeline", build_pipeline(tmp_path / "pipeline")),
        ("sessions", build_pipeline(tmp_path / "sessions", two_sessions=True)),
        ("ov", build_pipeline(tmp_path / "ov", providers={"transformer": [{"OpenVINO": {}}]})),
    ):
        bundle = Bundle.open(folder)
        assert list(providers.check(Subject(bundle.config, bundle))) == [], name


def corpus() -> Iterator[Path]:
    yield from sorted((CORPUS / "genai_configs").glob("*.json"))


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")
def test_configs_of_other_people_give_no_false_alarm() -> None:
    """Three recipes for QNN leave its backend to the device: worth knowing, no more."""
    told: dict[str, int] = {}
    for path in corpus():
        try:
            checked = Subject(GenaiConfig.parse(path.read_text("utf-8"), path.name))
            checked.config.stages()
        except ConfigError:
            continue
        for finding in found(checked):
            assert finding.severity == "info", (path.name, finding)
            told[finding.code] = told.get(finding.code, 0) + 1
    assert set(told) <= {"T414"}


@pytest.mark.parametrize(
    "options",
    [
        {"provider_options": [{"OpenVINO": {f"o{n}": "/x" for n in range(20_000)}}]},
        {"provider_options": [{"OpenVINO": {"device_type": "x" * 100_000}}] * 500},
        {"provider_options": [{}] * 20_000 + [{"cpu": {"x": "1"}}]},
        {"intra_op_num_threads": 1e300, "inter_op_num_threads": -1e300},
        {"enable_profiling": "x" * 1_000_000},
        {"provider_options": "x" * 1_000_000},
        {"provider_options": {"OpenVINO": {}}},
        {"provider_options": 4},
    ],
)
def test_strange_values_give_few_findings_and_no_crash(options: Any) -> None:
    checked = pipeline(options, only=CPU_ONLY)
    start = time.perf_counter()
    told = found(checked)
    assert time.perf_counter() - start < 5
    assert len(told) < 100
    assert all(len(str(finding.to_json())) < 3_000 for finding in told)


def test_more_findings_of_a_kind_than_anyone_reads_are_counted() -> None:
    told = found(on({"OpenVINO": {f"option{n}": "1" for n in range(50)}}))
    assert len(told) == 21
    assert told[-1].message == "There are 30 more findings of this kind, the last one here."


def test_the_catalogs_own_defaults_are_never_mentioned() -> None:
    for ep in catalog.EPS:
        for options in ep.defaults.values():
            assert codes(on({ep.written_name: dict(options)})) == [], ep.alias
