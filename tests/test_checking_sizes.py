"""Checks of numbers, each beside what the runtime itself does with the same bundle.

`SAME` in a table means that the runtime gives the answer of the unchanged bundle, `NONSENSE`
another one without failing, and a text what its error says.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bundle_fixtures import build_flat, build_pipeline, read_config, write_config
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
from turnout import build
from turnout.bundle import Bundle, GenaiConfig
from turnout.checking import Finding, Rule, Subject, sizes, wiring
from turnout.errors import ConfigError

TINY = Path(__file__).parent / "data" / "tiny"

# Two windows of 32, the second one filled up.
PROMPT = tuple(range(60, 100))
GQA_LENGTH = "total_sequence_length must equal"


def answer_of(folder: Path, prompt: Sequence[int] = PROMPT, **search: Any) -> list[int]:
    """Greedy tokens through onnxruntime-genai, with the bundle's own settings but those given."""
    import onnxruntime_genai as og

    model = og.Model(og.Config(str(folder)))
    params = og.GeneratorParams(model)
    if search:
        params.set_search_options(**search)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([prompt], dtype=np.int32))
    tokens = []
    for _ in range(5):
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    return tokens


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A flat bundle and one of windows with GroupQueryAttention, and one that grows by Concat."""
    root = tmp_path_factory.mktemp("sizes")
    build(TINY / "llama-f32.gguf", root / "flat", layout="flat")
    build(TINY / "llama-f32.gguf", root / "static", static_prefill=32)
    build(TINY / "llama-f32.gguf", root / "pipeline")
    build_flat(root / "concat")
    build_pipeline(root / "stages")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def answers(bundles: dict[str, Path]) -> dict[str, list[int]]:
    found = {name: answer_of(folder, _prompt(name)) for name, folder in bundles.items()}
    assert found["flat"] == found["static"] == found["pipeline"]
    assert found["concat"] == found["stages"]
    return found


def _prompt(name: str) -> tuple[int, ...]:
    return (5, 6, 7) if name in {"concat", "stages"} else PROMPT


def findings(folder: Path) -> list[Finding]:
    return found_in(sizes.check, folder)


def alone(config: Any) -> list[Finding]:
    """The findings of a config without any file."""
    return found_alone(sizes.check, config)


def where(found: list[Finding]) -> dict[str, str]:
    """Paths by code, below the model."""
    return places_of(found, "model.", "decoder.")


def model(**values: Any) -> Edit:
    return lambda config: config["model"].update(values)


def decoder(**values: Any) -> Edit:
    return lambda config: config["model"]["decoder"].update(values)


def window(**values: Any) -> Edit:
    return lambda config: config["model"]["decoder"].setdefault("sliding_window", {}).update(values)


def search(**values: Any) -> Edit:
    return lambda config: config["search"].update(values)


def without(*path: str) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        node = config
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return edit


def both(*edits: Edit) -> Edit:
    return lambda config: [edit(config) for edit in edits]


def nothing(config: dict[str, Any]) -> None:
    """The bundle as it is."""


IGNORED: dict[str, tuple[Edit, dict[str, str]]] = {
    "layers, fewer": (decoder(num_hidden_layers=1), {"T221": "num_hidden_layers"}),
    "layers, more": (decoder(num_hidden_layers=9), {"T222": "num_hidden_layers"}),
    "layers, none": (without("model", "decoder", "num_hidden_layers"), {}),
    "head size, smaller": (decoder(head_size=8), {"T223": "head_size"}),
    "head size, larger": (decoder(head_size=32), {"T223": "head_size"}),
    "key-value heads": (decoder(num_key_value_heads=4), {"T223": "num_key_value_heads"}),
    "hidden size": (decoder(hidden_size=32), {"T225": "hidden_size"}),
    "heads": (decoder(num_attention_heads=3), {"T243": "num_key_value_heads"}),
    "no shared buffer, head size": (
        both(decoder(head_size=8), search(past_present_share_buffer=False)),
        {"T223": "head_size"},
    ),
}


@pytest.mark.parametrize("bundle", ["flat", "pipeline", "static"])
@pytest.mark.parametrize("name", IGNORED)
def test_sizes_that_a_graph_fixes_are_ignored_in_the_config_and_never_an_error(
    name: str,
    bundle: str,
    bundles: dict[str, Path],
    answers: dict[str, list[int]],
    tmp_path: Path,
) -> None:
    edit, expected = IGNORED[name]
    folder = changed(bundles[bundle], tmp_path / "b", edit)
    found = findings(folder)
    if name == "hidden size" and bundle == "flat":
        expected = {}  # its graph starts from ids, and shows no hidden states
    assert where(found) == expected
    assert {finding.severity for finding in found} <= {"warning", "info"}
    assert answer_of(folder) == answers[bundle]


CHANGES: dict[str, tuple[str, Edit, str, dict[str, str]]] = {
    "nothing, flat": ("flat", nothing, SAME, {}),
    "nothing, pipeline": ("pipeline", nothing, SAME, {}),
    "nothing, static": ("static", nothing, SAME, {}),
    "nothing, concat": ("concat", nothing, SAME, {}),
    "nothing, stages": ("stages", nothing, SAME, {}),
    # vocabulary and ids
    "vocabulary, smaller": (
        "flat",
        model(vocab_size=300),
        "Got invalid dimensions for output: logits",
        {"T226": "vocab_size"},
    ),
    "vocabulary, larger": (
        "static",
        model(vocab_size=400),
        "Got invalid dimensions for output: logits",
        {"T226": "vocab_size", "T247": "vocab_size"},
    ),
    "vocabulary, none": (
        "flat",
        without("model", "vocab_size"),
        "vocab_size must be 1 or greater",
        {"T227": "vocab_size"},
    ),
    "end of text outside": (
        "flat",
        model(eos_token_id=320),
        "must be in range",
        {"T228": "eos_token_id"},
    ),
    "one end of text of several outside": (
        "flat",
        model(eos_token_id=[2, 999]),
        "must be in range",
        {"T228": "eos_token_id"},
    ),
    "no end of text": (
        "flat",
        without("model", "eos_token_id"),
        SAME,
        {"T231": "eos_token_id"},
    ),
    "no end of text and padding outside": (
        "flat",
        both(without("model", "eos_token_id"), model(pad_token_id=999)),
        "must be in range",
        {"T228": "pad_token_id", "T229": "pad_token_id", "T231": "eos_token_id"},
    ),
    "start of text outside": ("flat", model(bos_token_id=999), SAME, {"T229": "bos_token_id"}),
    "no start of text": ("flat", model(bos_token_id=-1), SAME, {}),
    "padding outside": ("flat", model(pad_token_id=999), SAME, {"T229": "pad_token_id"}),
    "padding outside, windows": (
        "static",
        model(pad_token_id=999),
        "indices element out of data bounds",
        {"T230": "pad_token_id"},
    ),
    "padding in the prompt, no windows": ("flat", model(pad_token_id=65), SAME, {}),
    "padding in the prompt, windows": (
        "static",
        model(pad_token_id=65),
        NONSENSE,
        {"T233": "pad_token_id"},
    ),
    # search
    "too long": (
        "flat",
        search(max_length=9999),
        "cannot be greater than model context_length",
        {"T234": "search.max_length"},
    ),
    "length of the context": ("flat", search(max_length=0), SAME, {}),
    "negative length": (
        "flat",
        search(max_length=-1),
        "Could not allocate",
        {"T235": "search.max_length"},
    ),
    "beams": (
        "flat",
        search(num_beams=33),
        "num_beams (33) must be in",
        {"T235": "search.num_beams"},
    ),
    "batch": (
        "flat",
        search(batch_size=0),
        "batch_size (0) must be in",
        {"T235": "search.batch_size"},
    ),
    "sequences": (
        "flat",
        search(num_return_sequences=2),
        "num_return_sequences (2) must be in",
        {"T235": "search.num_return_sequences"},
    ),
    "drawing with beams": (
        "flat",
        search(do_sample=True, num_beams=2),
        "cannot be used with a beam search",
        {"T235": "search.do_sample"},
    ),
    "top_p": (
        "flat",
        search(do_sample=True, top_p=1.5),
        "top_p must be between",
        {"T235": "search.top_p"},
    ),
    "top_p, not drawing": ("flat", search(top_p=1.5), SAME, {}),
    "top_k": (
        "flat",
        search(do_sample=True, top_k=321),
        "top_k (321) must be less",
        {"T235": "search.top_k"},
    ),
    "top_k, not drawing": ("flat", search(top_k=321), SAME, {}),
    "top_k at temperature 0": ("flat", search(do_sample=True, top_k=321, temperature=0), SAME, {}),
    # windows
    "window, other than the graph's": (
        "static",
        window(window_size=16),
        "Got invalid dimensions for input: inputs_embeds",
        {"T237": "sliding_window.window_size"},
    ),
    "window, no divisor": (
        "static",
        window(window_size=33),
        "Got invalid dimensions for input: inputs_embeds",
        {"T237": "sliding_window.window_size", "T241": "sliding_window.window_size"},
    ),
    "no window": (
        "static",
        without("model", "decoder", "sliding_window"),
        "Got invalid dimensions for input: inputs_embeds",
        {"T237": "pipeline[1].context"},
    ),
    "no window over the inputs": (
        "static",
        window(slide_inputs=False),
        "Got invalid dimensions for input: inputs_embeds",
        {"T237": "pipeline[1].context"},
    ),
    "window longer than the sequence": (
        "static",
        search(max_length=20),
        "exceeds max length",
        {"T236": "sliding_window.window_size"},
    ),
    "padding in front": (
        "static",
        window(alignment="right"),
        NONSENSE,
        {"T239": "sliding_window.alignment"},
    ),
    "padding in front by default": (
        "static",
        without("model", "decoder", "sliding_window", "alignment"),
        NONSENSE,
        {"T239": "sliding_window.alignment"},
    ),
    "beams with windows": (
        "static",
        search(num_beams=2),
        "Batch beam size must be 1",
        {"T242": "search.num_beams"},
    ),
    "longer than the cache": (
        "static",
        both(model(context_length=512), search(max_length=300)),
        GQA_LENGTH,
        {"T240": "search.max_length"},
    ),
    "shorter than the cache": ("static", search(max_length=200), SAME, {}),
    "sliding cache of a pipeline": ("static", window(slide_key_value_cache=True), SAME, {}),
    "windows over one graph": (
        "flat",
        window(window_size=32, slide_key_value_cache=False),
        GQA_LENGTH,
        {"T238": "sliding_window"},
    ),
    "windows over one graph, by Concat": (
        "concat",
        window(window_size=2, slide_key_value_cache=False),
        NONSENSE,
        {"T238": "sliding_window"},
    ),
    "windows over caches that grow": (
        "pipeline",
        window(window_size=32, slide_key_value_cache=False, alignment="left"),
        NONSENSE,
        {"T238": "sliding_window"},
    ),
    "windows over caches that grow, by Concat": (
        "stages",
        window(window_size=2, slide_key_value_cache=False, alignment="left"),
        "Concat",
        {"T238": "sliding_window"},
    ),
    "a window for attention alone": (
        "flat",
        window(window_size=240, slide_inputs=False, slide_key_value_cache=False),
        SAME,
        {},
    ),
    "a window that is longer than the sequence": (
        "flat",
        window(window_size=32, slide_inputs=False, slide_key_value_cache=False),
        SAME,
        {"T249": "sliding_window.window_size"},
    ),
    "a window that is shorter than the sequence": (
        "flat",
        window(window_size=8, slide_inputs=False, slide_key_value_cache=False),
        "GroupQueryAttention",
        {"T249": "sliding_window.window_size"},
    ),
    "a window, and no buffer": (
        "flat",
        both(
            window(window_size=8, slide_inputs=False, slide_key_value_cache=False),
            search(past_present_share_buffer=False),
        ),
        SAME,
        {},
    ),
    "a window over one layer, and no buffer": (
        "flat",
        both(
            window(window_size=8, slide_inputs=False, slide_key_value_cache=False, layers=[0]),
            search(past_present_share_buffer=False),
        ),
        "GroupQueryAttention",
        {"T249": "sliding_window.window_size"},
    ),
    "a window over prompts alone, by Concat": (
        "stages",
        window(window_size=2, slide_inputs=False),
        "Concat",
        {"T249": "sliding_window.window_size"},
    ),
    "a window over prompts alone": (
        "pipeline",
        window(window_size=2, slide_inputs=False),
        SAME,
        {},
    ),
    "a sliding cache of floats": (
        "flat",
        window(window_size=32, slide_inputs=False),
        "Expected input data type to be uint8_t",
        {"T245": "sliding_window.slide_key_value_cache"},
    ),
    # buffers and types
    "a shared buffer by Concat": (
        "concat",
        search(past_present_share_buffer=True),
        "Concat",
        {"T246": "search.past_present_share_buffer"},
    ),
    "layer types of another length, ordinary type": (
        "pipeline",
        decoder(layer_types=["full_attention"]),
        "layer_types array size (1) does not match num_hidden_layers (2)",
        {"T244": "layer_types"},
    ),
    "layer types that the graph has not": (
        "flat",
        decoder(layer_types=["full_attention", "sliding_attention"]),
        "Model input was not found: past_key_values.1.conv_state",
        {"T244": "layer_types"},
    ),
    "layer types that say nothing new": (
        "flat",
        decoder(layer_types=["full_attention"] * 2),
        SAME,
        {},
    ),
    "no layer types": ("flat", decoder(layer_types=[]), SAME, {}),
    "negative heads": (
        "flat",
        decoder(num_key_value_heads=-1),
        "Tensor",
        {"T224": "num_key_value_heads"},
    ),
    "negative head size": (
        "pipeline",
        decoder(head_size=-2),
        "Tensor",
        {"T224": "head_size"},
    ),
    # what programs get that set nothing
    "several prompts": (
        "flat",
        search(batch_size=2),
        NONSENSE,
        {"T270": "search.batch_size"},
    ),
    "a penalty of nothing": (
        "flat",
        search(repetition_penalty=0.0),
        NONSENSE,
        {"T270": "search.repetition_penalty"},
    ),
    "a penalty": ("flat", search(repetition_penalty=1.0), SAME, {}),
    "no room": (
        "flat",
        search(max_length=15),
        "exceeds max length",
        {"T270": "search.max_length"},
    ),
    "layer types": (
        "flat",
        model(type="lfm2"),
        "layer_types array size (0) does not match num_hidden_layers (2)",
        {"T244": "layer_types"},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_and_does_in_the_runtime_what_its_rule_says(
    name: str, bundles: dict[str, Path], answers: dict[str, list[int]], tmp_path: Path
) -> None:
    base, edit, outcome, expected = CHANGES[name]
    folder = changed(bundles[base], tmp_path / "b", edit)
    found = findings(folder)
    assert where(found) == expected
    severities = {finding.severity for finding in found}
    try:
        got = answer_of(folder, _prompt(base))
    except Exception as error:
        assert outcome in str(error)
        # A program that sets its own length, or stays below the window, is not refused.
        assert "error" in severities or set(expected) <= {"T234", "T249", "T270"}
    else:
        assert outcome == (SAME if got == answers[base] else NONSENSE)
        # That a prompt holds an ordinary token is as it happens: a warning.
        doubtful = set(expected) <= {"T233", "T270"}
        assert ("error" in severities) == (outcome == NONSENSE and not doubtful)


@pytest.mark.parametrize("size", [0, -32])
def test_a_window_of_no_tokens_kills_the_process_and_is_found(
    size: int, bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(bundles["static"], tmp_path / "b", window(window_size=size))
    assert where(findings(folder))["T236"] == "sliding_window.window_size"
    code = f"import test_checking_sizes as t; t.answer_of(t.Path({str(folder)!r}))"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, check=False
    )
    assert ran.returncode < 0 or ran.returncode > 1  # by a signal, not by an exception


def opened(folder: Path, axis: int) -> None:
    """Leave one axis of every cache of the graph open."""
    path = folder / "model.onnx"
    graph = onnx.load(str(path), load_external_data=False)
    for value in (*graph.graph.input, *graph.graph.output):
        if value.name.startswith("p") and value.name[-3:] in {"key", "lue"}:
            dimension = value.type.tensor_type.shape.dim[axis]
            dimension.Clear()
            dimension.dim_param = "open"
    path.write_bytes(graph.SerializeToString())


@pytest.mark.parametrize(
    ("axis", "key", "right"), [(1, "num_key_value_heads", 2), (3, "head_size", 16)]
)
def test_sizes_that_a_graph_leaves_open_must_be_given(
    axis: int,
    key: str,
    right: int,
    bundles: dict[str, Path],
    answers: dict[str, list[int]],
    tmp_path: Path,
) -> None:
    folder = changed(bundles["flat"], tmp_path / "right", decoder(**{key: right}))
    opened(folder, axis)
    assert findings(folder) == []
    assert answer_of(folder) == answers["flat"]
    folder = changed(bundles["flat"], tmp_path / "none", without("model", "decoder", key))
    opened(folder, axis)
    assert where(findings(folder)) == {"T224": key}
    with pytest.raises(Exception, match="past_key"):
        answer_of(folder)


def declare(file: Path, name: str, axis: int, size: int) -> None:
    """Declare an input or output of a graph in another size, whatever it computes."""
    model_ = onnx.load(str(file), load_external_data=False)
    for value in (*model_.graph.input, *model_.graph.output):
        if value.name == name:
            value.type.tensor_type.shape.dim[axis].dim_value = size
    file.write_bytes(model_.SerializeToString())


def test_what_is_declared_wrongly_alone_is_a_warning(
    bundles: dict[str, Path], answers: dict[str, list[int]], tmp_path: Path
) -> None:
    """onnxruntime goes by what the graphs compute; the config and the next stage are right."""
    folder = changed(bundles["stages"], tmp_path / "b", nothing)
    declare(folder / "embeddings.onnx", "hidden", 2, 17)
    declare(folder / "lm_head.onnx", "logits", 2, 261)
    bundle = Bundle.open(folder)
    subject = Subject(bundle.config, bundle)
    told = [*sizes.check(subject), *wiring.check(subject)]
    assert [(finding.code, finding.severity) for finding in told] == [
        ("T248", "warning"),
        ("T254", "warning"),
    ]
    assert answer_of(folder, _prompt("stages")) == answers["stages"]


def test_an_input_of_another_size_than_its_stage_is_given_is_an_error(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(bundles["stages"], tmp_path / "b", nothing)
    declare(folder / "lm_head.onnx", "normed", 2, 17)
    bundle = Bundle.open(folder)
    (finding,) = wiring.check(Subject(bundle.config, bundle))
    assert (finding.code, finding.severity) == ("T217", "error")
    with pytest.raises(Exception, match="Incompatible dimensions"):
        answer_of(folder, _prompt("stages"))


@pytest.mark.parametrize(("name", "fails"), [("key", True), ("value", False)])
def test_windows_want_keys_of_fixed_length(
    name: str, fails: bool, bundles: dict[str, Path], answers: dict[str, list[int]], tmp_path: Path
) -> None:
    """T238: the runtime looks at the keys alone to see that a cache does not grow."""
    folder = changed(bundles["static"], tmp_path / "b", search(max_length=100))
    path = folder / "context.onnx"
    graph = onnx.load(str(path), load_external_data=False)
    for value in graph.graph.input:
        if value.name == f"past_key_values.0.{name}":
            value.type.tensor_type.shape.dim[2].Clear()
            value.type.tensor_type.shape.dim[2].dim_param = "open"
    path.write_bytes(graph.SerializeToString())
    assert ("T238" in {finding.code for finding in findings(folder)}) is fails
    if fails:
        with pytest.raises(Exception, match="Got invalid dimensions"):
            answer_of(folder)
    else:
        assert answer_of(folder) == answers["static"]


def test_attention_that_evicts_is_made_for_a_window(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    """Of both graphs the caches are cut to the window; one of them is right with that."""
    edit = window(window_size=8, slide_inputs=False, slide_key_value_cache=False)
    folder = changed(bundles["flat"], tmp_path / "b", edit)
    path = folder / "model.onnx"
    graph = onnx.load(str(path), load_external_data=False)
    for node in graph.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 1))
            node.attribute.append(onnx.helper.make_attribute("local_window_size", 8))
    path.write_bytes(graph.SerializeToString())
    assert findings(folder) == []
    assert len(answer_of(folder)) == 5


PAD_TOKENS = {
    # id, what the tokenizer says of it, the expected code
    "an end that the chat template writes": (259, {}, "T232"),
    "an ordinary byte": (65, {}, "T233"),
    "an end that it does not write": (257, {}, None),
    "an end that it names": (257, {"chat_template": "{{ eos_token }}"}, "T232"),
    "a start that it names": (256, {"chat_template": "{{ bos_token }}"}, "T232"),
    "a byte that no text has": (255, {}, None),
    "no token": (300, {}, None),
}


@pytest.mark.parametrize("name", PAD_TOKENS)
def test_a_pad_id_is_judged_by_the_tokenizer(name: str, tmp_path: Path) -> None:
    from bundle_fixtures import write_tokenizer

    token, said, code = PAD_TOKENS[name]
    folder = build_flat(tmp_path / "b", model={"pad_token_id": token, "vocab_size": 320})
    write_tokenizer(folder, **said)
    config = read_config(folder)
    window(window_size=4)(config)
    write_config(folder, config)
    found = {finding.code for finding in findings(folder)} & {"T232", "T233"}
    assert found == ({code} if code else set())


def test_a_token_that_the_tokenizer_puts_before_every_prompt_is_no_padding(tmp_path: Path) -> None:
    folder = build_flat(tmp_path / "b", model={"pad_token_id": 256})
    config = read_config(folder)
    window(window_size=4)(config)
    write_config(folder, config)
    assert "T232" not in where(findings(folder))
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text("utf-8"))
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
    }
    path.write_text(json.dumps(document), "utf-8")
    assert where(findings(folder))["T232"] == "pad_token_id"


def test_without_a_tokenizer_the_token_that_ends_answers_is_a_doubtful_padding() -> None:
    config = {
        "model": {
            "type": "decoder-pipeline",
            "vocab_size": 10,
            "context_length": 64,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "decoder": {"sliding_window": {"window_size": 4}, "pipeline": [{"s": {}}]},
        }
    }
    (finding,) = alone(config)
    assert (finding.code, finding.severity, finding.path) == (
        "T233",
        "warning",
        "model.pad_token_id",
    )
    config["model"]["pad_token_id"] = 3
    assert alone(config) == []


@pytest.mark.parametrize(
    "options", [{}, {"layout": "flat"}, {"two_sessions": True}, {"static_prefill": 32}]
)
@pytest.mark.parametrize("source", sorted(path.stem for path in TINY.glob("*.gguf")))
def test_what_is_built_here_has_nothing_to_find(
    source: str, options: dict[str, Any], tmp_path: Path
) -> None:
    build(TINY / f"{source}.gguf", tmp_path / "b", **options)
    bundle = Bundle.open(tmp_path / "b")
    subject = Subject(bundle.config, bundle)
    assert [*sizes.check(subject), *wiring.check(subject)] == []
    # A config alone says less, and nothing else: only the tokenizer knows its padding is unused.
    lone = Subject(bundle.config)
    assert [*sizes.check(lone), *wiring.check(lone)] == []


@needs_corpus
def test_numbers_of_the_corpus_are_right_but_for_one_doubtful_padding() -> None:
    found = {}
    for path in CONFIGS:
        with contextlib.suppress(ConfigError):
            config = GenaiConfig.load(path)
            codes = [finding.code for finding in sizes.check(Subject(config))]
            if codes:
                found[path.name.split("_")[0]] = codes
    # 89 pads with the token that ends its model's answers, which its chat template writes.
    assert found == {"89": ["T233"]}


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "llama", "vocab_size": "x", "eos_token_id": [None, "a", 1e300, True]},
        {"type": "llama", "vocab_size": 1e300, "eos_token_id": {}, "pad_token_id": []},
        {
            "type": "decoder-pipeline",
            "vocab_size": 10**300,
            "decoder": {
                "pipeline": [{"s": {}}],
                "sliding_window": {"window_size": "4", "alignment": 3},
                "num_attention_heads": 0,
                "num_key_value_heads": -1,
                "layer_types": 4,
            },
        },
        {"type": "lfm2", "decoder": {"num_hidden_layers": 10**9, "layer_types": {}}},
    ],
)
def test_values_of_any_kind_are_no_reason_to_fail(broken: dict[str, Any]) -> None:
    tried: tuple[Any, ...] = ({}, {"top_p": 1e999, "do_sample": True, "num_beams": 2.5}, [], None)
    for settings in tried:
        text = json.dumps({"model": broken, "search": settings}).replace("Infinity", "1e300")
        with contextlib.suppress(ConfigError):
            list(sizes.check(Subject(GenaiConfig.parse(text))))


def test_every_rule_explains_itself() -> None:
    codes = [rule.code for rule in sizes.RULES]
    assert len(set(codes)) == len(codes)
    assert all("T220" <= code <= "T249" or "T270" <= code <= "T279" for code in codes)
    assert all(rule.why and rule.bad and rule.good for rule in sizes.RULES)


@pytest.mark.parametrize("rule", needing_no_files(sizes.RULES), ids=lambda rule: rule.code)
def test_the_examples_of_a_rule_are_true(rule: Rule) -> None:
    """Of those that need no files: the bad one is found, the good one is not."""
    assert example_tells(sizes.check, rule, rule.bad)
    if rule.good.endswith("}"):
        assert not example_tells(sizes.check, rule, rule.good)
