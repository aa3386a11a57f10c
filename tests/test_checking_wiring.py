"""Checks of how stages and graphs fit together, each beside what the runtime itself then does.

Bundles are those of `bundle_fixtures` with one change. `SAME` in a table means that the runtime
gives the answer of the unchanged bundle, `NONSENSE` another one without failing, and a text
what its error says.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from bundle_fixtures import build_flat, build_pipeline, generate, read_config, write_config
from checking_fixtures import (
    CONFIGS,
    NONSENSE,
    SAME,
    Edit,
    changed,
    example_tells,
    found_alone,
    found_in,
    needing_no_files,
    needs_corpus,
    places_of,
)
from turnout.bundle import GenaiConfig
from turnout.bundle.modeltypes import (
    COMPOSED_TYPES,
    DECODER_TYPES,
    KNOWN_TYPES,
    PIPELINE,
    PIPELINE_TYPES,
)
from turnout.checking import Finding, Rule, Subject, check, wiring
from turnout.errors import ConfigError

MISSING_INPUT = "Missing Input"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("wiring")
    return {
        "pipeline": build_pipeline(root / "pipeline"),
        "two": build_pipeline(root / "two", two_sessions=True),
        "flat": build_flat(root / "flat"),
    }


@pytest.fixture(scope="module")
def answer(bundles: dict[str, Path]) -> list[int]:
    """What each of the three answers: they have the same weights."""
    answers = [generate(folder) for folder in bundles.values()]
    assert answers[0] == answers[1] == answers[2]
    return answers[0]


def findings(folder: Path) -> list[Finding]:
    return found_in(wiring.check, folder)


def alone(config: Any) -> list[Finding]:
    """The findings of a config without any file."""
    return found_alone(wiring.check, config)


def where(found: list[Finding]) -> dict[str, str]:
    """Paths by code, below the pipeline or the model."""
    return places_of(found, "model.", "decoder.", "pipeline[0].")


def stages(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config["model"]["decoder"]["pipeline"][0]
    return found


def of(stage: str, **values: Any) -> Edit:
    return lambda config: stages(config)[stage].update(values)


def add(stage: str, key: str, name: str) -> Edit:
    return lambda config: stages(config)[stage][key].append(name)


def drop(stage: str, key: str, name: str) -> Edit:
    return lambda config: stages(config)[stage][key].remove(name)


def role(side: str, **names: str) -> Edit:
    return lambda config: config["model"]["decoder"][side].update(names)


def reordered(*names: str) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        old = stages(config)
        config["model"]["decoder"]["pipeline"] = [{name: old[name] for name in names}]

    return edit


def nothing(config: dict[str, Any]) -> None:
    """The bundle as it is."""


CHANGES: dict[str, tuple[str, Edit, str, dict[str, str]]] = {
    "nothing, pipeline": ("pipeline", nothing, SAME, {}),
    "nothing, two sessions": ("two", nothing, SAME, {}),
    "nothing, flat": ("flat", nothing, SAME, {}),
    # names between stages
    "an input of another name": (
        "pipeline",
        of("lm_head", inputs=["norm"]),
        MISSING_INPUT,
        {"T206": "transformer.outputs[0]", "T213": "lm_head.inputs", "T214": "lm_head.inputs"},
    ),
    "an input too many, which nobody gives": (
        "pipeline",
        add("lm_head", "inputs", "scale"),
        SAME,
        {"T213": "lm_head.inputs"},
    ),
    "an input too many, from the runtime": (
        "pipeline",
        add("lm_head", "inputs", "input_ids"),
        "Invalid input name: input_ids",
        {"T212": "lm_head.inputs"},
    ),
    "an input too many, from a stage": (
        "pipeline",
        add("lm_head", "inputs", "hidden"),
        "Invalid input name: hidden",
        {"T212": "lm_head.inputs"},
    ),
    "an input too many, from a stage behind it": (
        "pipeline",
        add("embeddings", "inputs", "normed"),
        "Invalid input name: normed",
        {"T212": "embeddings.inputs"},
    ),
    "an input too many, its own output": (
        "pipeline",
        add("transformer", "inputs", "normed"),
        SAME,
        {"T213": "transformer.inputs"},
    ),
    "an input too many, from a stage behind it, for prompts alone": (
        "two",
        add("context", "inputs", "logits"),
        SAME,
        {"T213": "context.inputs"},
    ),
    "an input too many, which the runtime gives where a graph has it": (
        "pipeline",
        add("lm_head", "inputs", "attention_mask"),
        SAME,
        {"T213": "lm_head.inputs"},
    ),
    "an input too many, of a layer that is not": (
        "pipeline",
        add("transformer", "inputs", "past_key_values.9.key"),
        SAME,
        {"T213": "transformer.inputs"},
    ),
    "an input too many, which the runtime keeps": (
        "pipeline",
        add("lm_head", "inputs", "present.0.key"),
        SAME,
        {"T213": "lm_head.inputs"},
    ),
    "an output too many": (
        "pipeline",
        add("embeddings", "outputs", "extra"),
        "Invalid output name: extra",
        {"T206": "embeddings.outputs[1]", "T211": "embeddings.outputs"},
    ),
    "an input not listed": (
        "pipeline",
        drop("transformer", "inputs", "past_key_values.1.key"),
        MISSING_INPUT,
        {"T214": "transformer.inputs"},
    ),
    "no outputs": (
        "pipeline",
        of("lm_head", outputs=[]),
        "At least one output should be requested",
        {"T200": "lm_head.outputs", "T204": "pipeline"},
    ),
    # order and phases
    "stages in the wrong order": (
        "pipeline",
        reordered("embeddings", "lm_head", "transformer"),
        MISSING_INPUT,
        {"T202": "lm_head.inputs[0]"},
    ),
    "no prefill stage": (
        "two",
        of("context", run_on_prompt=False),
        MISSING_INPUT,
        {"T203": "lm_head.inputs[0]", "T205": "context"},
    ),
    "no decode stage": (
        "two",
        of("iterator", run_on_token_gen=False),
        "MatMul",  # its input is still that of the prompt
        {"T203": "lm_head.inputs[0]", "T205": "iterator"},
    ),
    "embeddings for prompts alone": (
        "two",
        of("embeddings", run_on_token_gen=False),
        "Concat",
        {"T203": "iterator.inputs[0]"},
    ),
    "no logits for tokens": (
        "two",
        of("lm_head", run_on_token_gen=False),
        NONSENSE,
        {"T204": "lm_head.run_on_token_gen"},
    ),
    "no logits for prompts": (
        "two",
        of("lm_head", run_on_prompt=False),
        NONSENSE,
        {"T204": "lm_head.run_on_prompt"},
    ),
    # marks and numbers
    "the head not marked": ("pipeline", of("lm_head", is_lm_head=False), SAME, {}),
    "another stage marked too": (
        "pipeline",
        of("embeddings", is_lm_head=True),
        SAME,
        {"T208": "embeddings.is_lm_head"},
    ),
    "a reset of no session": (
        "pipeline",
        of("transformer", reset_session_idx=3),
        "Invalid reset_session_idx 3",
        {"T209": "transformer.reset_session_idx"},
    ),
    "a reset below none": ("pipeline", of("transformer", reset_session_idx=-5), SAME, {}),
    # forwarding
    "forwarding what is no output": (
        "pipeline",
        of("embeddings", output_names_forwarder={"hiden": "x"}),
        SAME,
        {"T210": "embeddings.output_names_forwarder.hiden"},
    ),
    "forwarding the logits": (
        "pipeline",
        of("lm_head", output_names_forwarder={"logits": "x"}),
        SAME,
        {"T210": "lm_head.output_names_forwarder.logits"},
    ),
    "forwarding away": (
        "pipeline",
        of("embeddings", output_names_forwarder={"hidden": "other"}),
        MISSING_INPUT,
        {"T201": "transformer.inputs[0]"},
    ),
    "forwarding as what the runtime gives": (
        "pipeline",
        of("embeddings", output_names_forwarder={"hidden": "input_ids"}),
        MISSING_INPUT,
        {"T201": "transformer.inputs[0]"},
    ),
    # caches
    "a cache not written": (
        "pipeline",
        drop("transformer", "outputs", "present.1.key"),
        NONSENSE,
        {"T215": "transformer.outputs", "T250": "transformer.outputs"},
    ),
    "present keys of another name, pipeline": (
        "pipeline",
        role("outputs", present_key_names="now.%d.key"),
        NONSENSE,
        {"T215": "outputs.present_key_names"},
    ),
    "present keys of another name, flat": (
        "flat",
        role("outputs", present_key_names="now.%d.key"),
        "Invalid output name: now.0.key",
        {"T211": "outputs.present_key_names"},
    ),
    "past values of another name": (
        "flat",
        role("inputs", past_value_names="past_values.%d"),
        "Invalid input name: past_values.0",
        {"T212": "inputs.past_value_names", "T216": "inputs.past_value_names"},
    ),
    "past keys by a hexadecimal number": (
        "flat",
        role("inputs", past_key_names="past_key_values.%x.key"),
        SAME,
        {},
    ),
    "present keys by a number of two digits": (
        "flat",
        role("outputs", present_key_names="present.%02d.key"),
        "Invalid output name: present.00.key",
        {"T211": "outputs.present_key_names"},
    ),
    "past values without a name": (
        "flat",
        role("inputs", past_value_names=""),
        "input name cannot be empty",
        {"T216": "inputs.past_value_names"},
    ),
    "present values without a name": (
        "flat",
        role("outputs", present_value_names=""),
        "output name cannot be empty",
        {"T216": "outputs.present_value_names"},
    ),
    "present keys and values by one name": (
        "flat",
        role("outputs", present_value_names="present.%d.key"),
        NONSENSE,
        {"T216": "outputs.present_value_names"},
    ),
    "present keys and values by one name, pipeline": (
        "pipeline",
        role("outputs", present_value_names="present.%d.key"),
        NONSENSE,
        {"T216": "outputs.present_value_names"},
    ),
    "past keys and values exchanged": (
        "flat",
        role(
            "inputs",
            past_key_names="past_key_values.%d.value",
            past_value_names="past_key_values.%d.key",
        ),
        NONSENSE,
        {"T216": "inputs.past_key_names"},
    ),
    "present keys and values exchanged, pipeline": (
        "pipeline",
        role("outputs", present_key_names="present.%d.value", present_value_names="present.%d.key"),
        NONSENSE,
        {"T216": "outputs.present_key_names"},
    ),
    "present keys without a number": (
        "flat",
        role("outputs", present_key_names="present.0.key"),
        NONSENSE,
        {"T216": "outputs.present_key_names"},
    ),
    # a flat decoder
    "token ids of another name": (
        "flat",
        role("inputs", input_ids="tokens"),
        "Model input was not found: tokens",
        {"T201": "inputs", "T212": "inputs.input_ids"},
    ),
    "logits of another name": (
        "flat",
        role("outputs", logits="lgts"),
        "Model output was not found: lgts",
        {"T211": "outputs.logits"},
    ),
    "logits of another name, pipeline": (
        "pipeline",
        role("outputs", logits="lgts"),
        "Model output was not found: lgts",
        {"T204": "pipeline", "T206": "lm_head.outputs[0]"},
    ),
    # types
    "a pipeline under a decoder's type": (
        "pipeline",
        lambda config: config["model"].update(type="llama"),
        "The model path is a directory",
        {"T219": "type"},
    ),
    "a pipeline's type without one": (
        "flat",
        lambda config: config["model"].update(type="decoder-pipeline"),
        "Model input was not found: input_ids",
        {"T219": "type"},
    ),
    "an unknown type": (
        "flat",
        lambda config: config["model"].update(type="Llama"),
        "Unsupported model_type",
        {"T218": "type"},
    ),
    "a type that joins keys and values": (
        "flat",
        lambda config: config["model"].update(type="gpt2"),
        "Model input was not found: ",
        {"T216": "inputs.past_names"},
    ),
    "embeddings of another graph": (
        "flat",
        lambda config: config["model"].update(embedding={"filename": "model.onnx"}),
        "Decoder-only CPU embedding requires the dynamic-batching Engine",
        {"T219": "embedding"},
    ),
    "a pipeline with a draft": (
        "pipeline",
        lambda config: config["model"].update(draft={"filename": "transformer.onnx"}),
        "Speculative decoding does not support pipeline models",
        {"T219": "draft"},
    ),
    "a type with images, and none": (
        "flat",
        lambda config: config["model"].update(type="gemma3"),
        "The model path is a directory",
        {"T219": "type"},
    ),
    "a type with sound, and none": (
        "flat",
        lambda config: config["model"].update(
            type="phi4mm", vision={"filename": "model.onnx"}, embedding={"filename": "model.onnx"}
        ),
        "speech.config_filename is set but speech.filename is missing",
        {"T219": "speech"},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_and_does_in_the_runtime_what_its_rule_says(
    name: str, bundles: dict[str, Path], answer: list[int], tmp_path: Path
) -> None:
    base, edit, outcome, expected = CHANGES[name]
    folder = changed(bundles[base], tmp_path / "b", edit)
    found = findings(folder)
    assert where(found) == expected
    severities = {finding.severity for finding in found}
    try:
        got = generate(folder)
    except Exception as error:
        assert outcome in str(error)
        assert "error" in severities
    else:
        assert outcome == (SAME if got == answer else NONSENSE)
        assert ("error" in severities) == (outcome == NONSENSE)


def test_past_names_that_no_pattern_fits_are_one_finding_each_for_keys_and_values(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    edit = role("inputs", past_key_names="past_keys.%d", past_value_names="past_values.%d")
    folder = changed(bundles["flat"], tmp_path / "b", edit)
    found = findings(folder)
    assert [(f.code, f.path, f.found, f.expected) for f in found] == [
        (
            "T216",
            "model.decoder.inputs.past_key_names",
            "past_keys.%d",
            "past_key_values.%d.key",
        ),
        (
            "T216",
            "model.decoder.inputs.past_value_names",
            "past_values.%d",
            "past_key_values.%d.value",
        ),
    ]
    with pytest.raises(Exception, match=MISSING_INPUT):
        generate(folder)


def test_prompts_of_one_token_run_the_decode_stages(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    """Without its prefill stage the bundle still answers them, without its decode stage not."""
    folder = changed(bundles["two"], tmp_path / "p", of("context", run_on_prompt=False))
    assert generate(folder, prompt=(5,)) == generate(bundles["pipeline"], prompt=(5,))
    folder = changed(bundles["two"], tmp_path / "t", of("iterator", run_on_token_gen=False))
    with pytest.raises(Exception, match=MISSING_INPUT):
        generate(folder, prompt=(5,))
    (finding,) = [f for f in findings(folder) if f.code == "T203"]
    assert "prompts of one token" in finding.message


def test_an_output_that_is_needed_and_not_listed_crashes_the_runtime_and_is_found(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(bundles["pipeline"], tmp_path / "b", of("embeddings", outputs=[]))
    assert where(findings(folder)) == {
        "T200": "embeddings.outputs",
        "T201": "transformer.inputs[0]",
    }
    code = f"import bundle_fixtures as f; f.generate(f.Path({str(folder)!r}))"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, check=False
    )
    assert ran.returncode != 0  # a bus error or a segmentation fault


UNOPENED = ("vad", "vision", "speech", "encoder", "joiner", "mtp", "dflash2", "dspark")


@pytest.mark.parametrize("section", [*UNOPENED, "embedding"])
def test_a_section_that_is_not_opened_is_worth_knowing_and_its_missing_file_no_error(
    section: str, bundles: dict[str, Path], answer: list[int], tmp_path: Path
) -> None:
    for base in ("pipeline", "flat") if section in UNOPENED else ("pipeline",):
        folder = changed(
            bundles[base],
            tmp_path / base,
            lambda config: config["model"].update({section: {"filename": "nowhere.onnx"}}),
        )
        told = {finding.code for finding in check(folder).findings} - {"T111"}
        assert told == {"T253"}
        assert generate(folder) == answer


def answers(folder: Path) -> subprocess.CompletedProcess[str]:
    """Two generators of one model, in a process of their own, which may be killed."""
    code = (
        "import numpy as np, onnxruntime_genai as og\n"
        f"model = og.Model({str(folder)!r})\n"
        "for _ in range(2):\n"
        "    params = og.GeneratorParams(model)\n"
        "    params.set_search_options(max_length=12)\n"
        "    generator = og.Generator(model, params)\n"
        "    generator.append_tokens(np.array([[5, 6, 7]], dtype=np.int32))\n"
        "    tokens = []\n"
        "    for _ in range(6):\n"
        "        generator.generate_next_token()\n"
        "        tokens.append(int(generator.get_next_tokens()[0]))\n"
        "    print(tokens, flush=True)\n"
        "    del generator\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def identity_of(name: str) -> Callable[[onnx.GraphProto], object]:
    """One more output, a copy of that one."""

    def edit(graph: onnx.GraphProto) -> None:
        graph.node.append(helper.make_node("Identity", [name], ["more"], name="more"))
        graph.output.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, None))

    return edit


@pytest.mark.parametrize("stage", ["embeddings", "transformer", "lm_head"])
def test_an_output_that_is_not_listed_kills_the_process_after_its_answer_and_is_found(
    stage: str, bundles: dict[str, Path], answer: list[int], tmp_path: Path
) -> None:
    """Whatever the stage: the runtime frees the output twice. Listed, it is only unused."""
    folder = changed(bundles["pipeline"], tmp_path / "b", nothing)
    name = {"embeddings": "hidden", "transformer": "normed", "lm_head": "logits"}[stage]
    rewrite(folder / f"{stage}.onnx", identity_of(name))
    assert where(findings(folder)) == {"T250": f"{stage}.outputs"}
    ran = answers(folder)
    assert ran.stdout.splitlines()[:1] == [str(answer)]
    assert ran.returncode not in {0, 1}  # by a signal, not by an exception
    config = read_config(folder)
    add(stage, "outputs", "more")(config)
    write_config(folder, config)
    (unused,) = findings(folder)
    assert (unused.code, unused.severity) == ("T206", "info")
    assert unused.fix is not None
    assert "outputs" not in unused.fix
    ran = answers(folder)
    assert ran.stdout.splitlines() == [str(answer)] * 2
    assert ran.returncode == 0


CLOSING = {
    # the stage, what it closes, the expected code
    "itself": ("transformer", 1, None),
    "a stage that runs after it": ("transformer", 2, None),
    "a stage before it": ("transformer", 0, "T251"),
    "of two sessions, the prefill stage": ("iterator", 1, "T252"),
    "of two sessions, the decode stage": ("context", 2, None),
    "of two sessions, what runs always": ("lm_head", 0, "T251"),
}


@pytest.mark.parametrize("name", CLOSING)
def test_a_session_that_is_left_closed_kills_the_second_generator_and_is_found(
    name: str, bundles: dict[str, Path], answer: list[int], tmp_path: Path
) -> None:
    stage, index, code = CLOSING[name]
    base = "two" if name.startswith("of two") else "pipeline"
    folder = changed(bundles[base], tmp_path / "b", of(stage, reset_session_idx=index))
    expected = {code: f"{stage}.reset_session_idx"} if code else {}
    assert where(findings(folder)) == expected
    ran = answers(folder)
    assert ran.stdout.splitlines() == [str(answer)] * (1 if code else 2)
    assert (ran.returncode == 0) == (code is None)


def unread(name: str, kind: int) -> Callable[[onnx.GraphProto], object]:
    """One more input, which no node reads."""
    value = helper.make_tensor_value_info(name, kind, ["batch", "sequence"])
    return lambda graph: graph.input.append(value)


@pytest.mark.parametrize("base", ["pipeline", "flat"])
@pytest.mark.parametrize("name", ["spare", "attention_mask", "position_ids"])
def test_an_input_that_no_node_reads_need_not_be_given(
    name: str, base: str, bundles: dict[str, Path], answer: list[int], tmp_path: Path
) -> None:
    folder = changed(bundles[base], tmp_path / "b", nothing)
    file = "model.onnx" if base == "flat" else "lm_head.onnx"
    rewrite(folder / file, unread(name, TensorProto.INT64))
    assert findings(folder) == []
    assert generate(folder) == answer


def rewrite(path: Path, edit: Callable[[onnx.GraphProto], object]) -> None:
    model = onnx.load(str(path), load_external_data=False)
    edit(model.graph)
    path.write_bytes(model.SerializeToString())


def cast_input(name: str, kind: int) -> Callable[[onnx.GraphProto], object]:
    """The input `name` in another type, and the graph as it was behind it."""

    def edit(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.input[:] = [f"{name}_cast" if other == name else other for other in node.input]
        cast = helper.make_node("Cast", [name], [f"{name}_cast"], to=TensorProto.FLOAT)
        graph.node.insert(0, cast)
        (value,) = [value for value in graph.input if value.name == name]
        value.type.tensor_type.elem_type = kind

    return edit


def test_a_stage_that_takes_another_type_than_it_is_given_is_found(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(bundles["pipeline"], tmp_path / "b", nothing)
    rewrite(folder / "lm_head.onnx", cast_input("normed", TensorProto.DOUBLE))
    (finding,) = findings(folder)
    assert (finding.code, finding.path) == ("T217", "model.decoder.pipeline[0].lm_head.inputs")
    assert finding.found == "float32[batch,sequence,16]"
    assert finding.expected == "float64[batch,sequence,16]"
    with pytest.raises(Exception, match="Unexpected input data type"):
        generate(folder)


def test_two_stages_that_take_one_name_in_two_types_are_found(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(bundles["two"], tmp_path / "b", nothing)
    rewrite(folder / "iterator.onnx", cast_input("hidden", TensorProto.DOUBLE))
    assert {finding.code for finding in findings(folder)} == {"T217"}
    with pytest.raises(Exception, match="Model input type mismatch: hidden"):
        generate(folder)


def test_an_input_with_a_value_of_its_own_need_not_be_given(
    bundles: dict[str, Path], answer: list[int], tmp_path: Path
) -> None:
    def optional(graph: onnx.GraphProto) -> None:
        graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))

    folder = changed(bundles["pipeline"], tmp_path / "b", nothing)
    # The transformer has an initializer of that name, so this makes it an optional input.
    rewrite(folder / "transformer.onnx", optional)
    assert findings(folder) == []
    assert generate(folder) == answer


WINDOW = {"window_size": 4, "alignment": "left", "slide_key_value_cache": False}


def windowed(*stages: tuple[str, dict[str, Any]], **decoder: Any) -> dict[str, Any]:
    return {
        "model": {
            "type": "decoder-pipeline",
            "decoder": {"sliding_window": WINDOW, **decoder, "pipeline": [dict(stages)]},
        }
    }


def test_with_windows_a_head_that_is_not_marked_is_worth_knowing() -> None:
    embed = ("embed", {"inputs": ["input_ids"], "outputs": ["h"]})
    head = {"inputs": ["h"], "outputs": ["logits"]}
    (finding,) = alone(windowed(embed, ("head", head)))
    assert (finding.code, finding.severity) == ("T208", "info")
    assert alone(windowed(embed, ("head", {**head, "is_lm_head": True}))) == []


def test_with_windows_a_marked_stage_that_others_need_is_an_error() -> None:
    embed = ("embed", {"inputs": ["input_ids"], "outputs": ["h"], "is_lm_head": True})
    head = ("head", {"inputs": ["h"], "outputs": ["logits"], "is_lm_head": True})
    assert where(alone(windowed(embed, head))) == {"T207": "embed.is_lm_head"}


def test_lengths_are_given_in_pairs() -> None:
    """Those that a window goes with; tried on a bundle built with a static prefill."""
    inputs = ["input_ids", "past_sequence_length", "total_sequence_length"]
    stage = ("all", {"inputs": inputs, "outputs": ["logits"], "is_lm_head": True})
    assert alone(windowed(stage)) == []
    found = alone(windowed(stage, inputs={"past_sequence_length": "past_seq_len"}))
    assert {finding.path for finding in found} == {
        "model.decoder.pipeline[0].all.inputs[1]",
        "model.decoder.pipeline[0].all.inputs[2]",
    }
    config = windowed(stage)
    del config["model"]["decoder"]["sliding_window"]
    found = alone(config)
    assert [finding.code for finding in found] == ["T201", "T201"]
    assert "sliding_window" in str(found[0].fix)


def test_a_lone_config_is_checked_by_what_its_stages_list() -> None:
    embed = ("embed", {"inputs": ["input_ids"], "outputs": ["h", "unused"]})
    head = ("head", {"inputs": ["x"], "outputs": ["logits"]})
    config = windowed(embed, head)
    del config["model"]["decoder"]["sliding_window"]
    found = alone(config)
    assert [(f.code, f.path, f.severity) for f in found] == [
        ("T201", "model.decoder.pipeline[0].head.inputs[0]", "error"),
        ("T206", "model.decoder.pipeline[0].embed.outputs[0]", "info"),
        ("T206", "model.decoder.pipeline[0].embed.outputs[1]", "info"),
    ]
    column = json.dumps(config).index('"x"') + 1
    assert (found[0].line, found[0].column) == (1, column)


def test_a_config_cannot_ask_for_findings_without_end() -> None:
    names = [f"x{index}" for index in range(5000)]
    config = {
        "model": {
            "type": "decoder-pipeline",
            "decoder": {"pipeline": [{"s": {"inputs": names, "outputs": ["logits"]}}]},
        }
    }
    assert [finding.code for finding in alone(config)] == ["T201"] * 500


@pytest.mark.parametrize(
    "broken",
    [
        {"type": 5, "decoder": {"pipeline": [{"s": {"output_names_forwarder": [1]}}]}},
        {"type": None, "decoder": {"inputs": "x", "outputs": 3, "sliding_window": []}},
        {
            "type": "decoder-pipeline",
            "decoder": {
                "inputs": {"past_key_names": 7, "input_ids": None},
                "outputs": {"logits": {}},
                "pipeline": {"s": {"reset_session_idx": 1e400, "output_names_forwarder": {"a": 1}}},
            },
        },
        {"type": "lfm2", "decoder": {"inputs": {"past_key_names": "%s%n%d" * 40}}},
    ],
)
def test_values_of_any_kind_are_no_reason_to_fail(broken: dict[str, Any]) -> None:
    text = json.dumps({"model": broken}).replace("Infinity", "1e300")
    with contextlib.suppress(ConfigError):  # stages that cannot be read are for the caller
        list(wiring.check(Subject(GenaiConfig.parse(text))))


def test_the_types_of_the_table_are_those_that_the_runtime_knows(tmp_path: Path) -> None:
    """Every type is tried on a flat bundle and on a pipeline."""
    import onnxruntime_genai as og

    said: dict[str, dict[str, str]] = {}
    for layout, build in (("flat", build_flat), ("pipeline", build_pipeline)):
        folder = build(tmp_path / layout)
        config = read_config(folder)
        for kind in sorted(KNOWN_TYPES | {"Llama", "qwen2_vl", "sd"}):
            config["model"]["type"] = kind
            write_config(folder, config)
            try:
                og.Model(og.Config(str(folder)))
                said.setdefault(kind, {})[layout] = "loads"
            except Exception as error:
                said.setdefault(kind, {})[layout] = str(error)
    for kind, by_layout in said.items():
        unknown = {text.startswith("Unsupported model_type") for text in by_layout.values()}
        assert unknown == {kind not in KNOWN_TYPES}, kind
        if kind != PIPELINE:  # it loads without a pipeline, and has no inputs then
            # gpt2 joins its keys and values, and lfm2 wants layer_types: no bundle for them here.
            assert (by_layout["flat"] == "loads") == (kind in DECODER_TYPES), kind
        assert (by_layout["pipeline"] == "loads") == (kind in PIPELINE_TYPES), kind
    assert not DECODER_TYPES & COMPOSED_TYPES


@needs_corpus
def test_the_corpus_has_wrong_types_and_no_wrong_wiring() -> None:
    """What the runtime's own project and others publish: pipelines of 3 to 9 stages among them."""
    clean = set()
    for path in CONFIGS:
        with contextlib.suppress(ConfigError):
            config = GenaiConfig.load(path)
            found = list(wiring.check(Subject(config)))
            # 89 closes its prefill stage to save memory, which breaks the second generator.
            known = {"T208", "T218", "T219"} | ({"T252"} if path.name[:3] == "89_" else set())
            assert {finding.code for finding in found} <= known, path.name
            if config.model_type == PIPELINE and not found:
                clean.add(path.name.split("_")[0])
    assert clean >= {"21", "40", "113"}


@needs_corpus
def test_types_of_the_corpus_are_judged_as_the_runtime_judges_them() -> None:
    by_number = {path.name.split("_")[0]: path for path in CONFIGS}
    expected = {"13": "T218", "17": "T218", "61": "T218", "87": "T219", "101": "T219", "64": None}
    for number, code in expected.items():
        config = GenaiConfig.load(by_number[number])
        codes = {finding.code for finding in wiring.check(Subject(config))} - {"T208"}
        assert codes == ({code} if code else set()), number


def test_every_rule_explains_itself() -> None:
    codes = [rule.code for rule in wiring.RULES]
    assert len(set(codes)) == len(codes)
    assert all("T200" <= code <= "T219" or "T250" <= code <= "T259" for code in codes)
    assert all(rule.why and rule.bad and rule.good for rule in wiring.RULES)


@pytest.mark.parametrize("rule", needing_no_files(wiring.RULES), ids=lambda rule: rule.code)
def test_the_examples_of_a_rule_are_true(rule: Rule) -> None:
    """Of those that need no files: the bad one is found, the good one is not."""
    assert example_tells(wiring.check, rule, rule.bad)
    if rule.good.endswith("}"):
        assert not example_tells(wiring.check, rule, rule.good)
