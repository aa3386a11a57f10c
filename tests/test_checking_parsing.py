"""What the runtime's parser refuses: said in full, and exactly where the runtime refuses."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzzing
from config_generator import random_config
from runtime_parser import RuntimeParser, disagreement
from turnout.bundle.jsontext import Node
from turnout.checking import dialect
from turnout.checking.findings import Finding
from turnout.checking.parsing import check_bytes

CORPUS = Path(
    os.environ.get("TURNOUT_CORPUS", Path(__file__).parents[1] / ".." / "shared" / "corpus")
)
CONFIGS = sorted((CORPUS / "genai_configs").glob("*.json"))
needs_corpus = pytest.mark.skipif(not CONFIGS, reason="the corpus is not here: set TURNOUT_CORPUS")

MODEL = '"type": "llama", "context_length": 8'

# Small configs of every layout, each of which the runtime takes.
OWN = [
    f'{{"model": {{{MODEL}, "decoder": {{"filename": "model.onnx", "num_hidden_layers": 2}}}}}}',
    f'{{"model": {{{MODEL}, "eos_token_id": [1, 2], "decoder": {{"pipeline": [{{"a": '
    '{"filename": "a.onnx", "inputs": ["x"], "outputs": ["y"], "run_on_prompt": true}, "b": '
    '{"filename": "b.onnx", "is_lm_head": true, "reset_session_idx": 0}}]}}}',
    f'{{"model": {{{MODEL}, "decoder": {{"sliding_window": {{"window_size": 64, "layers": [0]}}, '
    '"pipeline": [{"a": {"filename": "a.onnx"}}, {"b": {"filename": "b.onnx", "session_options": '
    '{"log_id": "x", "provider_options": [{"OpenVINO": {"device_type": "NPU"}}]}}}]}}}',
    f'{{"model": {{{MODEL}, "vision": {{"filename": "v.onnx", "pipeline": {{"vision_attn": '
    '{"filename": "w.onnx", "run_on_cpu": true}}}, "speech": {"filename": "s.onnx"}, '
    '"embedding": {"filename": "e.onnx"}, "encoder": {"filename": "c.onnx"}, "joiner": '
    '{"filename": "j.onnx"}, "vad": {"filename": "d.onnx", "threshold": 0.5}, "mtp": '
    '{"filename": "m.onnx", "head_size": 4}}, "search": {"do_sample": true, "top_p": 0.9}, '
    '"engine": {"dynamic_batching": {"block_size": 16}}, "speculative": {"ngram_size": 2}}',
]


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> RuntimeParser:
    return RuntimeParser(tmp_path_factory.mktemp("parser"))


def findings_of(text: str | bytes, genai: str = "") -> list[Finding]:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return list(check_bytes(data, "genai_config.json", genai))


def only(text: str | bytes) -> Finding:
    (finding,) = findings_of(text)
    return finding


def config(model: str = "", rest: str = "") -> str:
    return f'{{"model": {{{MODEL}{", " + model if model else ""}}}{", " + rest if rest else ""}}}'


@needs_corpus
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name[:40])
def test_real_configs_are_taken_and_refused_as_the_runtime_does(
    path: Path, parser: RuntimeParser
) -> None:
    assert disagreement(parser, path.read_bytes()) is None


@pytest.mark.parametrize("text", OWN)
def test_our_own_configs_are_taken_by_both(text: str, parser: RuntimeParser) -> None:
    assert parser.refusal(text) is None
    assert findings_of(text) == []


# What a text may look like at its edges; the runtime is the judge of each.
SYNTAX = [
    "", " ", "{", "[]", "5", '"x"', "true", "tru", "t", "null", "{}", '{"a"}', '{"a":}', "{,}",
    "{'a': 1}", config() + " trailing", config() + "{", "  " + config(), "\ufeff" + config(),
    config() + "\0", config() + "\x0b", "\x0c" + config(), "// x\n" + config(),
    config().replace(":", " : "), config(rest='"x": t'), config(rest='"x": tru'),
    config(rest='"x": nul'), config(rest='"x": null'), config(rest='"x": {}'),
    config(rest='"x": []'), config(rest='"x": t, "y": f'), config("t"), config('"zzz": f'),
    config('"zzz": t, "yyy": n'), config('"pad_token_id": t'), config('"pad_token_id": n'),
    config('"pad_token_id": 08'), config('"pad_token_id": 8.'), config('"pad_token_id": 8.0'),
    config('"pad_token_id": 8e0'), config('"pad_token_id": 8e'), config('"pad_token_id": +8'),
    config('"pad_token_id": -'), config('"pad_token_id": - 1'), config('"pad_token_id": -inf'),
    config('"log_eps": -inf'), config('"log_eps": -INFINITY'), config('"log_eps": -nan'),
    config('"log_eps": -nan(1_a)'), config('"log_eps": -nan('), config('"log_eps": inf'),
    config('"log_eps": .5'), config('"log_eps": -.5'), config('"log_eps": 1e999'),
    config('"log_eps": 1e-999'), config('"log_eps": 0e-999'), config('"log_eps": 5e-324'),
    config('"log_eps": 0x10'), config('"log_eps": 1_0'), config('"log_eps": ' + "9" * 400),
    config('"eos_token_id": [1,]'), config('"eos_token_id": [,]'), config('"eos_token_id": [1 2]'),
    config('"eos_token_id": [t]'), config('"eos_token_id": [t, 1]'),
    config('"eos_token_id": [[1]]'),
    config('"eos_token_id": [null]'), config('"eos_token_id": [true]'),
    config('"eos_token_id": []'),
    config('"tokenizer_dir": "a\\qb"'), config('"tokenizer_dir": "a\\/b"'),
    config('"tokenizer_dir": "a\nb"'), config('"tokenizer_dir": "a\0b"'),
    config('"tokenizer_dir": "a\0'), config('"tokenizer_dir": "a'), config('"tokenizer_dir": "a\\'),
    config('"tokenizer_dir": "\\u0061"'), config('"tokenizer_dir": "\\u00'),
    config('"tokenizer_dir": "\\ud83d\\ude00"'), config('"tokenizer_dir": "é😀"'),
    config('"tokenizer_dir": "\udcff\udcfe"'), config('"\udcff": 1'), config(",") , config()[:-1],
    config() [:-2], config('"type": 5'), config('"decoder": {"x": ' + "[" * 200),
    config('"decoder": ' + '{"decoder": ' * 150), '{"a": 1' + ", \"a\": 1" * 50 + "}",
    '{"model": {"type": "llama"}, "model": {"context_length": 8}}',
    '{"model": {"context_length": 8}, "model": {"context_length": 0}}',
    '{"model": {"context_length": 8}, "model": 5}', '{"model": 5}', '{"model": [1]}',
    '{"model": {"type": "nemotron_speech"}}', '{"model": {"type": "streaming_enc_dec_asr"}}',
    '{"model": {"type": "whisper"}}', '{"": {"context_length": 8}}',
]  # fmt: skip


@pytest.mark.parametrize("text", SYNTAX, ids=range(len(SYNTAX)))
def test_texts_are_read_as_the_runtime_reads_them(text: str, parser: RuntimeParser) -> None:
    assert disagreement(parser, text) is None


# Documents at the edges of what is checked as a whole.
WHOLE = [
    '"decoder": {"filename": "/a"}', '"decoder": {"filename": "/a", "filename": "a"}',
    '"decoder": {"filename": "a"}, "decoder": {"filename": "../a"}',
    '"decoder": {"filename": "../a"}, "decoder": {"filename": "a"}',
    '"decoder": {"filename": "../a"}, "decoder": {}', '"draft": {"filename": "/a"}',
    '"draft": {"pipeline": [{"a": {"filename": "/a"}}]}', '"decoder": {"filename": "C:\\\\x"}',
    '"decoder": {"pipeline": [{"a": {"filename": "/a"}}]}',
    '"decoder": {"pipeline": [{"a": {"filename": "/a"}, "a": {"filename": "b"}}]}',
    '"decoder": {"pipeline": {"a": {"filename": "b"}, "a": {"filename": "../b"}}}',
    '"decoder": {"pipeline": [{"a": {"filename": "/a"}}, {"a": {"filename": "b"}}]}',
    '"decoder": {"pipeline": [{"a": {"filename": "b"}}, {"a": {"filename": "/a"}}]}',
    '"decoder": {"pipeline": [{"a": {"filename": "/a"}}]}, "decoder": {"pipeline": {}}',
    '"vision": {"pipeline": [{"a": {"filename": "/a"}}, {"a": {"filename": "b"}}]}',
    '"decoder": {"pipeline": [{"a": 5}]}', '"decoder": {"pipeline": [5]}',
    '"decoder": {"pipeline": {}}', '"decoder": {"pipeline": []}', '"decoder": {"pipeline": [{}]}',
    '"decoder": {"filename": "a..b"}', '"decoder": {"filename": "a/..b/c"}',
    '"decoder": {"filename": "a/.."}', '"decoder": {"filename": ".."}',
    '"decoder": {"filename": ""}',
    '"vision": {"config_filename": "../p.json"}', '"speech": {"adapter_filename": "/p"}',
    '"mtp": {"filename": "/a"}', '"dspark": {"filename": "/a"}',
    '"decoder": {"session_options": {"provider_options": "x"}}',
    '"decoder": {"session_options": {"provider_options": {}}}',
    '"decoder": {"session_options": {"provider_options": [{}]}}',
    '"decoder": {"session_options": {"provider_options": [{"a": {}, "b": {"c": "d"}}]}}',
    '"decoder": {"session_options": {"provider_options": [{"a": "b"}]}}',
    '"decoder": {"session_options": {"provider_options": [{"a": {"b": {}}}]}}',
    '"decoder": {"session_options": {"provider_options": [{"a": {"b": 1}}]}}',
    '"decoder": {"session_options": {"ep.share_ep_contexts": true}}',
    '"decoder": {"session_options": {"ep.share_ep_contexts": "1", "x": []}}',
    '"decoder": {"run_options": {"a": 1}}', '"decoder": {"run_options": {"a": "1"}}',
    '"decoder": {"state_groups": []}', '"draft": {"state_groups": []}',
    '"draft": {"state_groups": [{}]}',
]  # fmt: skip


@pytest.mark.parametrize("model", WHOLE)
def test_documents_are_judged_as_a_whole_as_the_runtime_does(
    model: str, parser: RuntimeParser
) -> None:
    assert disagreement(parser, config(model)) is None


MANY = pytest.param(3_000, marks=pytest.mark.slow)


@pytest.mark.parametrize("count", [700, MANY])
def test_generated_configs_are_taken_and_refused_as_the_runtime_does(
    count: int, parser: RuntimeParser
) -> None:
    """Values of every kind and at every bound, along the table of keys."""
    taken = 0
    for seed in range(count):
        text = random_config(random.Random(seed))
        assert disagreement(parser, text) is None
        taken += parser.refusal(text) is None
    # Neither always yes nor always no.
    assert count / 6 < taken < count * 5 / 6


@pytest.mark.parametrize("count", [300, MANY])
@pytest.mark.parametrize("source", ["own", pytest.param("corpus", marks=needs_corpus)])
def test_mutated_configs_are_taken_and_refused_as_the_runtime_does(
    source: str, count: int, parser: RuntimeParser
) -> None:
    texts = OWN if source == "own" else [path.read_text("utf-8", "replace") for path in CONFIGS]
    sound = [text for text in texts if parser.refusal(text) is None]
    assert len(sound) >= len(OWN)
    taken = 0
    for seed in range(count):
        rng = random.Random(seed)
        data = fuzzing.mutate_config(rng, rng.choice(sound))
        assert disagreement(parser, data) is None
        taken += parser.refusal(data) is None
    assert count / 15 < taken < count * 14 / 15


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(alphabet=st.sampled_from('{}[]":,tfn0123456789.-+eE \\/ua\n\0é'), max_size=40))
def test_texts_of_a_few_characters_never_divide_check_and_runtime(
    parser: RuntimeParser, text: str
) -> None:
    assert disagreement(parser, text) is None
    assert disagreement(parser, config(rest=f'"x": {text}')) is None
    assert disagreement(parser, config(f'"tokenizer_dir": "{text}"')) is None


def test_what_json_reads_is_read_the_same() -> None:
    text = config('"eos_token_id": [1, -2, 3.5e2], "tokenizer_dir": "a\\n\\"é"', '"x": null')
    root: Node = dialect.read(text).root
    assert root.data() == json.loads(text)


def test_an_unknown_key_names_the_key_that_was_meant() -> None:
    """G#525, V#1810: a config of another version, or a slip."""
    finding = only(config('"vocab_sze": 32'))
    assert (finding.code, finding.severity, finding.path) == ("T105", "error", "model.vocab_sze")
    assert finding.fix == "write vocab_size, if that is meant"
    assert (finding.line, finding.column) == (1, 50)


def test_an_unknown_key_names_the_section_that_it_belongs_to() -> None:
    finding = only(config('"top_p": 0.5'))
    assert finding.code == "T105"
    assert finding.fix == "move it to search"


def test_a_list_where_a_number_is_due_names_field_and_fix() -> None:
    """G#384: `pad_token_id` as a list."""
    finding = only(config('"pad_token_id": [0]'))
    assert (finding.code, finding.path) == ("T106", "model.pad_token_id")
    assert (finding.found, finding.expected) == ("a list", "a whole number")
    assert finding.fix == "write one number, without the brackets"


@pytest.mark.parametrize(
    ("model", "found", "expected", "fix"),
    [
        ('"blank_id": "3"', 'the string "3"', "a whole number", "write the value without quotes"),
        ('"tokenizer_dir": 5', "the number 5", "a string", "write the value in double quotes"),
        ('"pad_token_id": null', "null", "a whole number", "remove the key: null is never taken"),
        ('"eos_token_id": {}', "an object", "a whole number or a list of whole numbers", None),
        ('"decoder": {"pipeline": 1}', "the number 1", "a list of objects or an object", None),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_says_what_is_due(
    model: str, found: str, expected: str, fix: str | None
) -> None:
    finding = only(config(model))
    assert (finding.code, finding.found) == ("T106", found)
    assert (finding.expected, finding.fix) == (expected, fix)


def test_all_that_is_wrong_is_said_and_not_only_the_first() -> None:
    found = findings_of(config('"a": 1, "b": 2, "vocab_size": 1.5', '"search": {"top_k": null}'))
    assert [(f.code, f.path) for f in found] == [
        ("T105", "model.a"),
        ("T105", "model.b"),
        ("T107", "model.vocab_size"),
        ("T106", "search.top_k"),
    ]


def test_a_key_that_the_asked_version_does_not_know_names_the_version_that_does() -> None:
    """G#525: say which version knows it."""
    text = config(rest='"search": {"audio_top_k": 4}')
    (old,) = findings_of(text, "0.17.1")
    assert (old.code, old.severity) == ("T105", "error")
    assert old.expected == "onnxruntime-genai 0.18.0 or newer"
    (new,) = findings_of(text, "0.18.0")
    assert (new.code, new.severity) == ("T111", "info")
    assert "0.18.0" in new.message


def test_a_key_that_is_refused_is_not_said_to_be_new() -> None:
    groups = '[{"kind": "fixed_conv", "layer_ids": [0], "bindings": {}}]'
    text = config(f'"decoder": {{"num_hidden_layers": 1, "state_groups": {groups}}}')
    at_bindings = [f.code for f in findings_of(text) if f.path.endswith("bindings")]
    assert at_bindings == ["T113"]


@pytest.mark.parametrize(
    ("data", "code", "line", "column"),
    [
        (b'\xef\xbb\xbf{"model": {}}', "T103", 1, 1),
        ('{"model": {}}'.encode("utf-16"), "T103", 1, 1),
        (b'{\n "model": {"a": 1,}}', "T101", 2, 19),
        (b'{\n "model": // x\n {}}', "T101", 2, 11),
        (b'{"model": {"type": "\\u0061"}}', "T102", 1, 21),
        (b"", "T101", 1, 1),
    ],
)
def test_what_cannot_be_read_says_where(data: bytes, code: str, line: int, column: int) -> None:
    finding = only(data)
    assert (finding.code, finding.line, finding.column) == (code, line, column)
    assert finding.severity == "error"


def test_what_only_the_runtime_reads_is_a_warning() -> None:
    findings = findings_of(config('"pad_token_id": 08') + " and more")
    assert [(f.code, f.severity, f.found) for f in findings] == [
        ("T104", "warning", "the number 08"),
        ("T104", "warning", "text after the end of the document"),
    ]


def test_a_key_that_stands_twice_is_a_warning() -> None:
    finding = only(config('"pad_token_id": 1, "pad_token_id": 2'))
    assert (finding.code, finding.path, finding.column) == ("T110", "model.pad_token_id", 69)


def test_a_setting_at_the_top_level_is_said_to_be_ignored() -> None:
    finding = only(config(rest='"temperature": 0.5'))
    assert (finding.code, finding.severity) == ("T112", "info")


def test_a_config_of_many_mistakes_costs_no_more_than_its_size() -> None:
    text = config(", ".join(f'"vocab_sz{i}": 1' for i in range(50_000)))
    assert sum(1 for _ in check_bytes(text.encode(), "c")) == 50_000
    first, *_ = check_bytes(text.encode(), "c")
    assert first.fix == "write vocab_size, if that is meant"
