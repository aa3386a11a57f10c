"""Tokenizer files in detail: what checks say, and what onnxruntime-genai's tokenizer does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import build_flat
from session_fixtures import edit_json
from test_checking_tokenizers import codes, encode, template
from turnout.checking.templates import flaw_of
from turnout.checking.tokenizer_values import PRE_TOKENIZERS

Edit = Callable[[dict[str, Any]], object]
CONFIG, VOCABULARY = "tokenizer_config.json", "tokenizer.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_flat(tmp_path / "bundle")


def fails(call: Callable[[Path], object], folder: Path) -> str:
    """What the runtime says where it fails, "" where it does not."""
    try:
        call(folder)
    except Exception as error:
        return str(error) or "?"
    return ""


def model(**values: Any) -> Edit:
    return lambda document: document["model"].update(values)


def piece(number: Any) -> Edit:
    return lambda document: document["model"]["vocab"].update(zz=number)


def added(**values: Any) -> Edit:
    return lambda document: document["added_tokens"].append({"content": "<q>", "id": 5} | values)


def pre(kind: Any, *inner: Any) -> Edit:
    return lambda document: document.update(pre_tokenizer={"type": kind, "pretokenizers": inner})


def top(**values: Any) -> Edit:
    return lambda document: document.update(values)


def decoder(number: str, entry: Any) -> Edit:
    return lambda document: document.update(added_tokens_decoder={number: entry})


WRONG = "type must be "
VALUES: list[tuple[str, Edit, str]] = [
    (VOCABULARY, model(vocab=None), WRONG),
    (VOCABULARY, model(vocab=[]), WRONG),
    (VOCABULARY, lambda document: document["model"].clear(), WRONG),
    (VOCABULARY, model(merges=5), "Cannot know how to parse"),
    (VOCABULARY, model(merges=[5]), "Cannot know how to parse"),
    (VOCABULARY, model(merges=["word"]), "Cannot know how to parse"),
    (VOCABULARY, model(merges=[["a"]]), "out_of_range"),
    (VOCABULARY, model(merges=[[1, 2]]), WRONG),
    (VOCABULARY, model(merges=None), ""),
    (VOCABULARY, model(merges=[]), ""),
    (VOCABULARY, model(merges=["a b", ["a", "b"], "a b c", "# #"]), ""),
    (VOCABULARY, model(type=None), ""),
    (VOCABULARY, model(dropout="x", unk_token=5), ""),
    (VOCABULARY, piece("7"), WRONG),
    (VOCABULARY, piece(None), WRONG),
    (VOCABULARY, piece(7.5), ""),
    (VOCABULARY, piece(True), ""),
    (VOCABULARY, added(id="5"), WRONG),
    (VOCABULARY, added(id=None), WRONG),
    (VOCABULARY, added(content=5), WRONG),
    (VOCABULARY, added(special="yes"), WRONG),
    (VOCABULARY, added(lstrip=None), WRONG),
    (VOCABULARY, added(special=True, lstrip=False), ""),
    (VOCABULARY, top(added_tokens=["<q>"]), "cannot use value"),
    (VOCABULARY, top(added_tokens="<q>"), "cannot use value"),
    (VOCABULARY, top(added_tokens=False), "cannot use value"),
    (VOCABULARY, top(added_tokens=None), ""),
    (VOCABULARY, pre("Unknown"), "Unsupported pretokenizer"),
    (VOCABULARY, pre(5), WRONG),
    (VOCABULARY, pre("Sequence", {"type": "Unknown"}), "Unsupported pretokenizer"),
    (VOCABULARY, pre("Sequence", {"type": "Digits"}, {"type": "ByteLevel"}), ""),
    (VOCABULARY, pre(None), ""),
    (VOCABULARY, top(pre_tokenizer=5, normalizer={"type": "Unknown"}, decoder=None), ""),
    *[
        (CONFIG, top(**{token: value}), WRONG)
        for token in ("bos_token", "eos_token", "unk_token")
        for value in (5, True, [], {"content": 5})
    ],
    (CONFIG, top(bos_token=None, unk_token={"content": "<s>"}, pad_token=5), ""),
    (CONFIG, top(clean_up_tokenization_spaces=None), WRONG),
    (CONFIG, top(clean_up_tokenization_spaces="true"), WRONG),
    (CONFIG, top(clean_up_tokenization_spaces=True), ""),
    (CONFIG, top(model_max_length="8192"), WRONG),
    (CONFIG, top(model_max_length=True), WRONG),
    (CONFIG, top(model_max_length=1e30), ""),
    (CONFIG, top(tiktoken_file=None), WRONG),
    (CONFIG, top(add_bos_token="yes", legacy=5), ""),
    (CONFIG, decoder("x", {"content": "q"}), "stoi"),
    (CONFIG, decoder("5", 5), "cannot use value"),
    (CONFIG, decoder("5", {"content": 5}), WRONG),
    (CONFIG, decoder("5", {"content": "q", "special": "yes"}), WRONG),
    (CONFIG, decoder("5", {"content": "q", "id": "5"}), ""),
    (CONFIG, top(added_tokens_decoder=[]), ""),
]


@pytest.mark.parametrize(("file", "edit", "message"), VALUES)
def test_values_are_told_where_the_runtime_does_not_take_them(
    folder: Path, file: str, edit: Edit, message: str
) -> None:
    edit_json(folder / file, edit)
    found = fails(encode, folder)
    assert message in found
    assert bool(found) == bool(message)
    assert ("T339" in codes(folder)) == bool(message)


def test_merges_that_are_missing_are_told(folder: Path) -> None:
    """The runtime fails with "Cannot know how to parse" most times, and not in every process."""
    edit_json(folder / VOCABULARY, lambda document: document["model"].pop("merges"))
    assert "T339" in codes(folder)


def test_the_pre_tokenizers_are_those_that_the_runtime_takes(folder: Path) -> None:
    for kind in (*PRE_TOKENIZERS, "FixedLength", "Delimiter"):
        edit_json(folder / VOCABULARY, pre(kind))
        assert bool(fails(encode, folder)) == (kind not in PRE_TOKENIZERS)


@pytest.mark.slow
@pytest.mark.parametrize("merges", [["# #", "a b"], ["#version: 0.2", "a b"], ["a b", ""]])
def test_merges_that_keep_the_runtime_reading_for_ever_are_told(
    folder: Path, merges: list[str]
) -> None:
    edit_json(folder / VOCABULARY, model(merges=merges))
    assert codes(folder) == ["T339"]
    code = "import sys, onnxruntime_genai as og; og.Tokenizer(og.Config(sys.argv[1]))"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", code, str(folder)], timeout=5, check=False)


TAIL = b"\0\0\0"
TEXTS: list[tuple[str, Callable[[bytes], bytes], str | None]] = [
    (VOCABULARY, lambda text: text + b"and more", "T340"),
    (VOCABULARY, lambda text: text + TAIL, "T340"),
    (VOCABULARY, lambda text: text + b"{}", "T340"),
    (VOCABULARY, lambda text: b"\n" + text + b" \n\t", None),
    (VOCABULARY, lambda text: b"\xef\xbb\xbf" + text, None),
    (VOCABULARY, lambda text: text.rstrip()[:-1], "T331"),
    (VOCABULARY, lambda text: text.rstrip()[:-2], "T331"),
    (VOCABULARY, lambda text: b"// a comment\n" + text, "T331"),
    (VOCABULARY, lambda text: text.rstrip()[:-1] + b',"x": NaN}', "T331"),
    (VOCABULARY, lambda text: text.rstrip()[:-1] + b",}", "T331"),
    (CONFIG, lambda text: text + TAIL, "T340"),
    (CONFIG, lambda text: text + TAIL + b"more", "T340"),
    (CONFIG, lambda text: b"// a comment\n" + text, "T340"),
    (CONFIG, lambda text: text + b"/* a comment */", "T340"),
    (CONFIG, lambda text: text.rstrip()[:-1] + b',"x": "// none"}', None),
    (CONFIG, lambda text: text + b"and more", "T331"),
    (CONFIG, lambda text: text + b"{}", "T331"),
    (CONFIG, lambda text: b"# a comment\n" + text, "T331"),
    (CONFIG, lambda text: text.rstrip()[:-1] + b',"x": Infinity}', "T331"),
    (CONFIG, lambda text: text.rstrip()[:-1], "T331"),
]


@pytest.mark.parametrize(("file", "edit", "code"), TEXTS)
def test_what_is_no_json_is_an_error_where_the_runtime_refuses_it(
    folder: Path, file: str, edit: Callable[[bytes], bytes], code: str | None
) -> None:
    path = folder / file
    path.write_bytes(edit(path.read_bytes()))
    assert codes(folder) == ([code] if code else [])
    assert bool(fails(encode, folder)) == (code == "T331")


TALK = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
GOOD = [
    TALK,
    "{%- for m in messages -%}x{%- endfor -%}",
    "{%\nfor m in messages if m\n%}x{%endfor%}",
    "{% for m in [] %}x{% else %}y{% endfor %}",
    "{% if false %}a{% elif true %}b{% else %}c{% endif %}",
    "{% for m in messages %}{% if m %}{% continue %}{% endif %}{% break %}{% endfor %}",
    "{% set a = '%}' %}{% set b %}x{% endset %}{{ a + b }}",
    "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1) }}{% generation %}x{% endgeneration %}",
    "{{ '}}' }}{{ \"{% foo\" }}{{ 'a\\'}}b' }}",
    "{{ {'a': {'b': 1}}}}",
    "{# {% for it's #}x",
    "a }} b %} c #} { d } { { e } }",
]
BAD = [
    "{% if x",
    "{{ x",
    "{# x",
    "{{ 'a }}",
    "{{ (1 }}",
    "{% for m in messages %}x",
    "{% if true %}x",
    "{% set a %}x",
    "{% macro f() %}x",
    "{% filter trim %}x",
    "{% generation %}x",
    "{% endfor %}",
    "{% else %}",
    "{% elif x %}",
    "{% for m in messages %}{% if true %}x{% endfor %}{% endif %}",
    "{% if true %}a{% else %}b{% else %}c{% endif %}",
    "{% if true %}a{% else %}b{% elif true %}c{% endif %}",
    "{% for m in messages %}x{% endfor m %}",
    "{% for m in messages %}x{% end for %}",
    "{% FOR m in messages %}x{% endfor %}",
    "{%+ if true +%}x{% endif %}",
    "{% for m messages %}x{% endfor %}",
    "{% if %}x{% endif %}",
    "{% raw %}x{% endraw %}",
    "{% include 'x' %}",
    "{% do 1 %}",
    "{% macro f() %}x{{ caller() }}{% endmacro %}{% call f() %}y{% endcall %}",
    "{% with a = 1 %}x{% endwith %}",
    "{% %}",
    "{{ }}",
    "{{ {% }}",
]


@pytest.mark.parametrize(
    ("text", "is_good"), [*((t, True) for t in GOOD), *((t, False) for t in BAD)]
)
def test_templates_are_told_where_the_runtime_cannot_read_them(
    folder: Path, text: str, is_good: bool
) -> None:
    text = text if text in {TALK, "{{ x", "{# x", "{% if x"} else text + TALK
    edit_json(folder / CONFIG, top(chat_template=text))
    said = fails(template, folder)
    assert said == "" if is_good else "Invalid or unsupported chat template" in said
    assert codes(folder) == ([] if is_good else ["T333"])


def test_a_template_in_a_file_of_its_own_is_read_alike(folder: Path) -> None:
    edit_json(folder / CONFIG, lambda document: document.pop("chat_template"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}")
    assert codes(folder) == ["T333"]


def test_the_flaw_names_the_line() -> None:
    assert flaw_of("a\nb {# x\n #}\n{% endif %}") == (
        "{% endif %} in line 4, which ends no open block"
    )
    assert flaw_of("\n{{ 'x }}") == "{{ without }} in line 2"
    assert flaw_of("{% for m in x %}{% if m %}") == "{% if %} without its end"
    assert flaw_of("'" * 100_000 + "{{" + "(" * 100_000) == "{{ without }} in line 1"


def test_a_few_ids_of_its_own_beyond_the_model_are_a_warning(folder: Path) -> None:
    edit_json(folder / VOCABULARY, piece(10**6))
    assert codes(folder) == ["T337"]
    assert encode(folder, "hello")
    pieces = {f"z{number}": 1000 + number for number in range(5)}
    edit_json(folder / VOCABULARY, lambda document: document["model"]["vocab"].update(pieces))
    assert codes(folder) == ["T335"]
    assert json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))["model"]["vocab"]


def test_a_list_of_pieces_without_a_type_is_no_list_of_merges(folder: Path) -> None:
    """As T5's file of 2020 is, of which the runtime makes a tokenizer."""
    pieces = {"vocab": [["<unk>", 0.0], ["\u2581a", -2.0]], "unk_id": 0}
    edit_json(folder / VOCABULARY, top(model=pieces))
    edit_json(folder / CONFIG, top(tokenizer_class="T5Tokenizer"))
    assert not fails(encode, folder)
    assert "T339" not in codes(folder)
