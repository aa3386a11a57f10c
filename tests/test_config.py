"""What a `genai_config.json` says about stages, in every layout."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle_fixtures import build_pipeline, read_config, write_config
from turnout.bundle import GenaiConfig
from turnout.errors import ConfigError

CORPUS = Path(
    os.environ.get("TURNOUT_CORPUS", Path(__file__).parents[1] / ".." / "shared" / "corpus")
)
CONFIGS = {path.name.split("_")[0]: path for path in (CORPUS / "genai_configs").glob("*.json")}
needs_corpus = pytest.mark.skipif(not CONFIGS, reason="the corpus is not here: set TURNOUT_CORPUS")

CPU, OPENVINO, QNN = "CPUExecutionProvider", "OpenVINOExecutionProvider", "QNNExecutionProvider"


def config_of(**model: Any) -> GenaiConfig:
    return GenaiConfig.parse(json.dumps({"model": {"type": "decoder-pipeline", **model}}, indent=2))


def pipeline_of(*stages: tuple[str, dict[str, Any]], decoder: dict[str, Any] | None = None) -> Any:
    return config_of(decoder={**(decoder or {}), "pipeline": [dict(stages)]}).stages()


def options(*providers: dict[str, Any], **free: Any) -> dict[str, Any]:
    return {"session_options": {**free, "provider_options": list(providers)}}


def test_a_flat_bundle_has_one_stage_named_decoder() -> None:
    (stage,) = config_of(
        decoder={
            "filename": "model.onnx",
            **options({"OpenVINO": {"device_type": "NPU"}}, log_id="x"),
        }
    ).stages()
    assert (stage.name, stage.section, stage.filename) == ("decoder", "decoder", "model.onnx")
    assert stage.path == ("model", "decoder")
    assert (stage.run_on_prompt, stage.run_on_token_gen, stage.inherits) == (True, True, False)
    assert (stage.ep, stage.providers[0].name) == (OPENVINO, "OpenVINO")
    assert stage.providers[0].options == {"device_type": "NPU"}
    assert stage.effective_options == {"log_id": "x"}
    assert stage.in_decoder


@pytest.mark.parametrize("layout", ["one object", "many objects", "plain object"])
def test_three_layouts_of_a_pipeline_give_the_same_stages(layout: str) -> None:
    stages = {
        "embeddings": {"filename": "e.onnx", "inputs": ["ids"], "outputs": ["h"]},
        "context": {"filename": "c.onnx", "run_on_token_gen": False},
        "iterator": {"filename": "i.onnx", "run_on_prompt": False},
        "lm_head": {"filename": "l.onnx", "is_lm_head": True},
    }
    shapes: dict[str, Any] = {
        "one object": [stages],
        "many objects": [{name: stage} for name, stage in stages.items()],
        "plain object": stages,
    }
    found = config_of(decoder={"pipeline": shapes[layout]}).stages()
    assert [stage.name for stage in found] == ["embeddings", "context", "iterator", "lm_head"]
    assert [stage.filename for stage in found] == ["e.onnx", "c.onnx", "i.onnx", "l.onnx"]
    assert [stage.run_on_prompt for stage in found] == [True, True, False, True]
    assert [stage.run_on_token_gen for stage in found] == [True, False, True, True]
    assert [stage.is_lm_head for stage in found] == [False, False, False, True]
    assert (found[0].inputs, found[0].outputs) == (("ids",), ("h",))
    config = config_of(decoder={"pipeline": shapes[layout]})
    assert [config.get((*stage.path, "filename")) for stage in found] == [
        stage.filename for stage in found
    ]


def test_an_empty_pipeline_beside_a_file_is_a_flat_bundle() -> None:
    (stage,) = config_of(decoder={"filename": "m.onnx", "pipeline": []}).stages()
    assert stage.path == ("model", "decoder")


def test_sections_that_feed_the_decoder_come_first() -> None:
    stages = config_of(
        decoder={"filename": "d.onnx"},
        embedding={"filename": "e.onnx", "inputs": {"input_ids": "ids"}},
        speech={"filename": "s.onnx"},
        vision={"filename": "v.onnx"},
        joiner={"filename": "j.onnx"},
        mtp={"filename": "m.onnx"},
        eos_token_id=[1, 2],
    ).stages()
    names = [stage.name for stage in stages]
    assert names == ["vision", "speech", "embedding", "decoder", "joiner", "mtp"]
    runs = {stage.name: (stage.run_on_prompt, stage.run_on_token_gen) for stage in stages}
    assert runs["vision"] == runs["speech"] == (True, False)
    assert runs["embedding"] == runs["decoder"] == (True, True)
    assert runs["mtp"] == (False, True)
    assert stages[2].inputs == ("ids",)


def test_only_the_middle_of_a_vision_pipeline_takes_options() -> None:
    """Read in onnxruntime-genai's `QwenVisionPipeline`, which passes none to the others."""
    parts = {
        "patch_embed": {"filename": "p.onnx", **options({"OpenVINO": {}})},
        "vision_attn": {"filename": "a.onnx"},
        "patch_merger": {"filename": "m.onnx"},
    }
    decoder = {"filename": "d.onnx", **options({"OpenVINO": {}})}
    stages = config_of(vision={"pipeline": [parts]}, decoder=decoder).stages()
    assert [stage.ep for stage in stages] == [CPU, OPENVINO, CPU, OPENVINO]
    assert [stage.takes_options for stage in stages] == [False, True, False, True]
    parts["vision_attn"]["run_on_cpu"] = True
    stages = config_of(vision={"pipeline": [parts]}, decoder=decoder).stages()
    assert [stage.ep for stage in stages] == [CPU, CPU, CPU, OPENVINO]


def test_a_stage_without_options_uses_those_of_the_decoder() -> None:
    own, none, empty, both = pipeline_of(
        ("own", options({"qnn": {"soc_model": "60"}}, log_id="own")),
        ("none", {}),
        ("empty", {"session_options": {}}),
        ("both", {**options({"openvino": {"b": "2"}}, x="1"), "inherit_session_options": True}),
        decoder=options({"OpenVINO": {"a": "1", "b": "1"}}, {"qnn": {}}, log_id="top"),
    )
    assert (own.ep, own.inherits, own.effective_options) == (QNN, False, {"log_id": "own"})
    assert (none.ep, none.inherits, none.effective_options) == (OPENVINO, True, {"log_id": "top"})
    assert (none.session_options, none.has_session_options) == ({}, False)
    assert (empty.ep, empty.inherits, empty.effective_options) == (CPU, False, {})
    assert (both.inherits, both.effective_options) == (True, {"log_id": "top", "x": "1"})
    assert [(entry.ep, entry.options) for entry in both.providers] == [
        (OPENVINO, {"a": "1", "b": "2"}),
        (QNN, {}),
    ]


def test_other_sections_use_the_decoders_options_or_their_own_and_a_draft_only_its_own() -> None:
    stages = config_of(
        decoder={"filename": "d.onnx", **options({"OpenVINO": {}})},
        vision={"filename": "v.onnx"},
        embedding={"filename": "e.onnx", **options()},
        draft={"filename": "r.onnx"},
    ).stages()
    assert {stage.name: stage.ep for stage in stages} == {
        "vision": OPENVINO,
        "embedding": CPU,
        "decoder": OPENVINO,
        "draft": CPU,
    }


@pytest.mark.parametrize("name", ["cpu", "CPU", "CPUExecutionProvider", "cpuexecutionprovider"])
def test_a_stage_that_names_the_cpu_in_any_case_is_a_cpu_stage(name: str) -> None:
    (stage,) = config_of(decoder={"filename": "m.onnx", **options({name: {}})}).stages()
    assert stage.ep == CPU
    assert [(entry.name, entry.ep) for entry in stage.providers] == [(name, CPU)]


def test_the_first_ep_that_is_not_the_cpus_takes_effect() -> None:
    (stage,) = config_of(
        decoder={"filename": "m.onnx", **options({"cpu": {}}, {"acme": {}}, {"qnn": {}})}
    ).stages()
    assert stage.ep == "acme"


def test_device_filters_are_kept_apart_from_options() -> None:
    device = {"hardware_device_type": "npu", "hardware_vendor_id": 32902}
    entry = {"OpenVINO": {"device_filtering_options": device, "cache_dir": "x"}}
    (stage,) = config_of(decoder={"filename": "m.onnx", **options(entry)}).stages()
    assert stage.providers[0].options == {"cache_dir": "x"}
    assert stage.providers[0].device_filter == device


def test_parts_that_a_section_names_beside_its_graph_are_stages() -> None:
    stages = config_of(
        moonshine={"encoder_filename": "e.onnx", "cross_kv_filename": "k.onnx", "max_seq_len": 4},
        audio_output={"depthformer": {"filename": "d.onnx"}, "codebook_size": 2},
        vision={
            "filename": "v.onnx",
            "config_filename": "p.json",
            "adapter_filename": "a.onnx_adapter",
        },
        decoder={"filename": "m.onnx"},
    ).stages()
    assert {stage.name: stage.filename for stage in stages} == {
        "vision": "v.onnx",
        "decoder": "m.onnx",
        "moonshine.encoder": "e.onnx",
        "moonshine.cross_kv": "k.onnx",
        "audio_output.depthformer": "d.onnx",
    }


def test_equal_names_in_two_sections_are_told_apart() -> None:
    stages = config_of(
        vision={"pipeline": [{"embeddings": {"filename": "v.onnx"}}]},
        decoder={"pipeline": [{"embeddings": {"filename": "e.onnx"}}]},
    ).stages()
    assert [stage.name for stage in stages] == ["embeddings", "decoder.embeddings"]


@pytest.mark.parametrize(
    "pipeline",
    [
        '[{"a": {"filename": "1"}}, {"b": {}}, {"a": {"filename": "2"}}]',
        '[{"a": {"filename": "1"}, "b": {}, "a": {"filename": "2"}}]',
        '{"a": {"filename": "1"}, "b": {}, "a": {"filename": "2"}}',
    ],
)
def test_stages_of_one_name_are_one_where_the_first_stands(pipeline: str) -> None:
    config = GenaiConfig.parse(f'{{"model": {{"decoder": {{"pipeline": {pipeline}}}}}}}')
    assert [(stage.name, stage.filename) for stage in config.stages()] == [("a", "2"), ("b", None)]


def test_stages_that_come_by_one_name_otherwise_are_refused() -> None:
    pipeline = {"decoder.x": {}}
    config = config_of(decoder={"pipeline": [pipeline], "x_filename": "x.onnx"})
    with pytest.raises(ConfigError, match=r"Two stages are named 'decoder\.x'"):
        config.stages()


@pytest.mark.parametrize(
    ("model", "where", "found", "expected"),
    [
        ('[]', "model (line 2, column 10)", "an array", "an object"),
        ('{"decoder": "x"}', "model.decoder", "the string 'x'", "an object"),
        ('{"decoder": {"filename": 5}}', "model.decoder.filename", "the number '5'", "a string"),
        ('{"decoder": {"filename": null}}', "model.decoder.filename", "null", "a string"),
        ('{"decoder": {"pipeline": "x"}}', "model.decoder.pipeline", "the string 'x'", "an array"),
        ('{"decoder": {"pipeline": [1]}}', "model.decoder.pipeline[0]", "the number '1'",
         "an object"),
        ('{"decoder": {"pipeline": [{"a": 1}]}}', "model.decoder.pipeline[0].a", "the number '1'",
         "an object"),
        ('{"decoder": {"pipeline": [{"a": {"run_on_prompt": "no"}}]}}',
         "model.decoder.pipeline[0].a.run_on_prompt", "the string 'no'", "a bool"),
        ('{"decoder": {"pipeline": [{"a": {"inputs": ["x", 1]}}]}}',
         "model.decoder.pipeline[0].a.inputs[1]", "the number '1'", "a string"),
        ('{"decoder": {"session_options": []}}', "model.decoder.session_options", "an array",
         "an object"),
        ('{"decoder": {"session_options": {"provider_options": {}}}}',
         "model.decoder.session_options.provider_options", "an object", "an array"),
        ('{"decoder": {"session_options": {"provider_options": ["cpu"]}}}',
         "model.decoder.session_options.provider_options[0]", "the string 'cpu'", "an object"),
        ('{"decoder": {"session_options": {"provider_options": [{"qnn": {"x": true}}]}}}',
         "model.decoder.session_options.provider_options[0].qnn.x", "the bool 'True'", "a string"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused_with_its_path(
    model: str, where: str, found: str, expected: str
) -> None:
    config = GenaiConfig.parse(f'{{\n"model": {model}\n}}', "c.json")
    with pytest.raises(ConfigError) as caught:
        config.stages()
    assert caught.value.facts["where"].startswith(f"c.json, {where}")
    assert caught.value.facts["found"] == found
    assert caught.value.facts["expected"] == expected


def test_a_document_without_a_model_says_what_it_has() -> None:
    with pytest.raises(ConfigError, match="has no model") as caught:
        GenaiConfig.parse('{"version": 2, "pipeline": {}}').stages()
    assert caught.value.facts["found"] == "version, pipeline"
    with pytest.raises(ConfigError, match="no configuration"):
        GenaiConfig.parse("[]")


def test_edits_make_a_new_config_and_keep_the_old_one() -> None:
    config = config_of(decoder={"filename": "m.onnx"}, context_length=128)
    edited = config.edit(("model", "decoder", "filename"), "n.onnx")
    assert edited.stages()[0].filename == "n.onnx"
    assert config.stages()[0].filename == "m.onnx"
    assert edited.text == config.text.replace("m.onnx", "n.onnx")
    assert config.edit(("model", "context_length"), 128) is config
    assert config.remove(("model", "nothing")) is config
    assert edited.remove(("model", "context_length")).context_length is None
    assert (config.model_type, config.context_length) == ("decoder-pipeline", 128)


def test_a_config_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no regular file"):
        GenaiConfig.load(tmp_path)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(ConfigError, match="too large"):
        GenaiConfig.load(large)


@needs_corpus
@pytest.mark.parametrize("number", sorted(CONFIGS), ids=str)
def test_every_real_config_gives_stages_or_a_precise_refusal(number: str) -> None:
    not_json = {"15"}
    no_model = {"23", "25", "26", "27", "30", "31", "84", "85", "110"}
    path = CONFIGS[number]
    if number in not_json | no_model:
        with pytest.raises(ConfigError) as caught:
            GenaiConfig.load(path).stages()
        assert ("is not JSON" if number in not_json else "has no model") in caught.value.problem
        assert str(path) in caught.value.facts["where"]
        return
    config = GenaiConfig.load(path)
    assert config.text.encode() == path.read_bytes()
    for stage in config.stages():
        assert config.root.find(stage.path) is not None
    without_decoder = {"17", "61"}
    assert bool(config.stages()) == (number not in without_decoder)


@needs_corpus
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("113", "embeddings cpu PT, context qnn P, iterator qnn T, lm_head cpu PT"),
        ("89", "embeddings cpu PT, context_ctx qnn P, iterator_ctx qnn T, lm_head cpu PT"),
        ("91", "vision qnn P, embedding cpu PT, embeddings cpu T, context_ctx qnn P, "
               "iterator_ctx qnn T, lm_head cpu PT"),
        ("92", "vision qnn P, embedding qnn PT, context_ctx qnn P, iterator_ctx qnn T, "
               "lm_head qnn PT"),
        ("40", "embeddings cpu PT, transformer cuda PT, language_model_head cpu PT"),
        ("67", "vision dml P, embedding dml PT, decoder dml PT"),
        ("65", "encoder cpu P, decoder cpu PT"),
        ("117", "decoder openvino PT"),
    ],
)  # fmt: skip
def test_stages_of_real_configs_read_by_hand(number: str, expected: str) -> None:
    from turnout.catalog import alias_of

    shown = [
        f"{stage.name} {alias_of(stage.ep)} "
        + "P" * stage.run_on_prompt
        + "T" * stage.run_on_token_gen
        for stage in GenaiConfig.load(CONFIGS[number]).stages()
    ]
    assert ", ".join(shown) == expected


@needs_corpus
def test_an_edit_of_a_real_config_keeps_every_other_line() -> None:
    config = GenaiConfig.load(CONFIGS["89"])
    stage = next(stage for stage in config.stages() if stage.name == "context_ctx")
    edited = config.edit((*stage.path, "session_options", "provider_options"), [{"cpu": {}}])
    start = config.text.index('"qnn": {')
    end = config.text.index("}", start) + 1
    assert edited.text == config.text[:start] + '"cpu": {}' + config.text[end:]


@pytest.mark.parametrize(
    ("change", "profiled"),
    [
        ({}, True),
        ({"session_options": {}}, False),
        ({"session_options": {}, "inherit_session_options": True}, True),
        ({"inherit_session_options": True}, True),
    ],
)
def test_the_runtime_inherits_options_as_stages_say(
    tmp_path: Path, change: dict[str, Any], profiled: bool
) -> None:
    """The decoder's `enable_profiling` reaches the stage in onnxruntime-genai, and in `Stage`."""
    import onnxruntime_genai as og

    folder = build_pipeline(tmp_path / "bundle")
    config = read_config(folder)
    stages = config["model"]["decoder"]["pipeline"][0]
    config["model"]["decoder"]["session_options"]["enable_profiling"] = str(tmp_path / "profile")
    for name in ("embeddings", "lm_head"):  # their profiles would take the same file name
        stages[name]["session_options"] = {}
    stages["transformer"].update(change)
    write_config(folder, config)

    model = og.Model(og.Config(str(folder)))
    params = og.GeneratorParams(model)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([[1, 2]], dtype=np.int32))
    del generator, params, model
    gc.collect()

    stage = GenaiConfig.load(folder / "genai_config.json").stages()[1]
    assert bool(list(tmp_path.glob("profile*"))) is profiled
    assert ("enable_profiling" in stage.effective_options) is profiled
