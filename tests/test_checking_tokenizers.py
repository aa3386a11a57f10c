"""Tokenizer and chat template: what checks say, and what onnxruntime-genai's tokenizer does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import build_flat, generate, read_config, write_config
from session_fixtures import edit_json
from test_checking_files import POINTER
from turnout.bundle import Bundle
from turnout.checking import Finding, Subject, tokenizers
from turnout.checking.vocabulary import read_vocabulary

Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_flat(tmp_path / "bundle")


def findings(folder: Path) -> list[Finding]:
    bundle = Bundle.open(folder)
    return list(tokenizers.check(Subject(bundle.config, bundle)))


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in findings(folder)]


def encode(folder: Path, text: str = "hello </s>") -> list[int]:
    """Ids of the runtime's own tokenizer."""
    import onnxruntime_genai as og

    return [int(number) for number in og.Tokenizer(og.Config(str(folder))).encode(text)]


def template(folder: Path) -> str:
    """A conversation through the runtime's own chat template."""
    import onnxruntime_genai as og

    messages = json.dumps([{"role": "user", "content": "hi"}])
    tokenizer = og.Tokenizer(og.Config(str(folder)))
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True))


def config(**values: Any) -> Change:
    """Sets keys of tokenizer_config.json; those that are ... are removed."""

    def change(document: dict[str, Any]) -> None:
        document.update(values)
        for key in [key for key, value in values.items() if value is ...]:
            del document[key]

    return lambda folder: edit_json(folder / "tokenizer_config.json", change)


def write(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


LATIN = '{"tokenizer_class": "é"}'.encode("latin-1")
NO_TEMPLATE = config(chat_template=...)
# What is done; what is found; whether the runtime makes a tokenizer, and whether its own
# template works then.
CASES: dict[str, tuple[Change, list[str], bool, bool]] = {
    "nothing": (lambda f: None, [], True, True),
    "no tokenizer.json": (lambda f: (f / "tokenizer.json").unlink(), ["T330"], False, False),
    "no config": (lambda f: (f / "tokenizer_config.json").unlink(), ["T330"], False, False),
    "sentencepiece": (
        lambda f: (f / "tokenizer.json").rename(f / "tokenizer.model"),
        ["T330"],
        False,
        False,
    ),
    "empty": (write("tokenizer.json", b""), ["T331"], False, False),
    "array": (write("tokenizer.json", b"[]"), ["T331"], False, False),
    "no model": (write("tokenizer.json", b"{}"), ["T331"], False, False),
    "pointer": (write("tokenizer.json", POINTER), ["T331"], False, False),
    "config no JSON": (write("tokenizer_config.json", b"{"), ["T331"], False, False),
    "config an array": (write("tokenizer_config.json", b"[]"), ["T331"], False, False),
    "config latin": (write("tokenizer_config.json", LATIN), ["T331"], False, False),
    "config a pointer": (write("tokenizer_config.json", POINTER), ["T331"], False, False),
    "module no JSON": (write("tokenizer_module.json", b"{"), ["T331"], False, False),
    "tiktoken": (config(tiktoken_file="gone.tiktoken"), ["T330"], False, False),
    "no template": (NO_TEMPLATE, ["T332"], True, False),
    "empty template": (config(chat_template=""), ["T332"], True, False),
    "null template": (config(chat_template=None), ["T333"], False, False),
    "named templates": (
        config(chat_template=[{"name": "default", "template": "x"}]),
        ["T333"],
        False,
        False,
    ),
    "jinja": (both(NO_TEMPLATE, write("chat_template.jinja", b"x")), [], True, True),
    "jinja latin": (
        both(NO_TEMPLATE, write("chat_template.jinja", b"\xe9")),
        ["T333"],
        True,
        False,
    ),
    "jinja unused": (write("chat_template.jinja", b"\xe9"), [], True, True),
    "template json": (
        both(NO_TEMPLATE, write("chat_template.json", b'{"chat_template": "x"}')),
        [],
        True,
        True,
    ),
    "template no json": (
        both(NO_TEMPLATE, write("chat_template.json", b"{")),
        ["T333"],
        False,
        False,
    ),
    "no class": (config(tokenizer_class=...), ["T338"], True, False),
    "no class and template": (
        config(tokenizer_class=..., chat_template=...),
        ["T332"],
        True,
        False,
    ),
    "null class": (config(tokenizer_class=None), ["T334"], False, False),
    "unknown class": (config(tokenizer_class="BertTokenizer"), ["T334"], False, False),
    "no class, WordPiece": (
        both(
            config(tokenizer_class=...),
            lambda f: edit_json(
                f / "tokenizer.json", lambda d: d["model"].update(type="WordPiece")
            ),
        ),
        ["T334"],
        False,
        False,
    ),
    "others": (
        both(*(write(f"{n}.json", b"{") for n in ("special_tokens_map", "generation_config"))),
        [],
        True,
        True,
    ),
    "byte order mark": (
        lambda f: (f / "tokenizer.json").write_bytes(
            b"\xef\xbb\xbf" + (f / "tokenizer.json").read_bytes()
        ),
        [],
        True,
        True,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_tokenizers_are_judged_as_the_runtime_judges_them(folder: Path, case: str) -> None:
    change, expected, makes, templates = CASES[case]
    change(folder)
    assert codes(folder) == expected
    try:
        encode(folder)
    except Exception as error:
        assert not makes, error
    else:
        assert makes
    try:
        template(folder)
    except Exception as error:
        assert not templates, error
    else:
        assert templates


def test_a_model_without_tokenizer_loads_until_it_meets_text(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert generate(folder)
    (finding,) = findings(folder)
    assert (finding.severity, finding.path) == ("error", "tokenizer.json")


def test_a_truncated_vocabulary_is_told(folder: Path) -> None:
    content = (folder / "tokenizer.json").read_bytes()
    for length in (10, len(content) // 2, len(content) - 2):
        (folder / "tokenizer.json").write_bytes(content[:length])
        assert codes(folder) == ["T331"]


@pytest.mark.parametrize("name", sorted(tokenizers.CLASSES - {""}))
@pytest.mark.parametrize("suffix", ["", "Fast"])
def test_every_class_of_the_table_makes_a_tokenizer(folder: Path, name: str, suffix: str) -> None:
    config(tokenizer_class=name + suffix)(folder)
    assert codes(folder) == []
    assert encode(folder)


@pytest.mark.parametrize(
    "name",
    ["BartTokenizer", "BertTokenizer", "CohereTokenizerFast", "FalconTokenizer",
     "NemotronTokenizer", "RobertaTokenizer", "llamatokenizer", "LlamaTokenizerFastFast",
     "PhiTokenizer", "BloomTokenizerFast", "DeepseekTokenizer", "Qwen2Tokenizer2"],
)  # fmt: skip
def test_classes_that_are_not_in_the_table_make_none(folder: Path, name: str) -> None:
    config(tokenizer_class=name)(folder)
    (finding,) = findings(folder)
    assert (finding.code, finding.found) == ("T334", repr(name))
    with pytest.raises(Exception, match="Unsupported tokenizer class"):
        encode(folder)


class TestFolder:
    """`model.tokenizer_dir`."""

    def name(self, folder: Path, value: str) -> None:
        document = read_config(folder)
        document["model"]["tokenizer_dir"] = value
        write_config(folder, document)

    def test_files_are_looked_for_there(self, folder: Path) -> None:
        (folder / "tok").mkdir()
        self.name(folder, "tok")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).rename(folder / "tok" / name)
        assert codes(folder) == []
        assert encode(folder)
        (folder / "tok" / "tokenizer.json").unlink()
        assert [f.path for f in findings(folder)] == ["tok/tokenizer.json"]

    @pytest.mark.parametrize(
        ("value", "code"),
        [("gone", "T330"), ("model.onnx", "T330"), ("/tmp", "T302"), ("../bundle", "T302")],
    )
    def test_one_that_is_none_or_outside_is_told(self, folder: Path, value: str, code: str) -> None:
        self.name(folder, value)
        assert [(f.code, f.path) for f in findings(folder)] == [(code, "model.tokenizer_dir")]
        if code == "T330":
            with pytest.raises(Exception, match="Cannot find the directory"):
                encode(folder)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json"]
)
def test_a_file_behind_a_link_out_of_the_bundle_is_told(folder: Path, name: str) -> None:
    outside = folder.parent / "outside.json"
    outside.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    assert [(f.code, f.path) for f in findings(folder)] == [("T302", name)]


class TestIds:
    """Ids that the model knows nothing of."""

    def add_token(self, folder: Path, number: int) -> None:
        token = {"id": number, "content": "<new>", "special": True}
        edit_json(folder / "tokenizer.json", lambda d: d["added_tokens"].append(token))

    def test_an_added_token_outside_is_a_warning(self, folder: Path) -> None:
        self.add_token(folder, 260)
        (finding,) = findings(folder)
        assert (finding.code, finding.severity, finding.path) == (
            "T337", "warning", "tokenizer.json",
        )  # fmt: skip
        assert (finding.found, finding.expected) == ("ids up to 260", "ids below vocab_size, 260")
        ids = encode(folder, "a<new>")
        assert ids[-1] == 260
        with pytest.raises(RuntimeError, match="indices element out of data bounds"):
            generate(folder, ids)
        assert generate(folder, ids[:-1])

    def test_one_that_the_config_adds_is_told_as_well(self, folder: Path) -> None:
        config(added_tokens_decoder={"999": {"content": "<new>", "special": True}})(folder)
        assert codes(folder) == ["T337"]
        assert encode(folder, "<new>") == [999]

    def test_the_largest_id_is_within(self, folder: Path) -> None:
        document = read_config(folder)
        document["model"].update(vocab_size=259, eos_token_id=257, pad_token_id=257)
        write_config(folder, document)
        (finding,) = findings(folder)  # 256 letters and four added tokens
        assert finding.code == "T337"
        assert "1 added tokens outside the model's vocabulary: '<|end|>'." in finding.message

    def test_a_vocabulary_larger_than_the_models_is_an_error(self, folder: Path) -> None:
        """Another model's tokenizer."""
        vocabulary = {f"t{index}": 256 + index for index in range(1000)}
        edit_json(folder / "tokenizer.json", lambda d: d["model"]["vocab"].update(vocabulary))
        (finding,) = findings(folder)
        assert (finding.code, finding.severity) == ("T335", "error")
        assert finding.found == "ids up to 1255"

    @pytest.mark.parametrize(
        ("eos", "ends", "warned"),
        [
            ("</s>", 257, False),
            ("</s>", [259, 257], False),
            ("</s>", 259, True),
            ("</s>", [258, 259], True),
            ({"content": "</s>", "special": True}, 259, True),
            ("<no such token>", 259, False),
            (None, 259, False),
            ("a", 259, True),
        ],
    )
    def test_the_tokenizers_end_of_text_should_end_answers(
        self, folder: Path, eos: Any, ends: Any, warned: bool
    ) -> None:
        config(eos_token=eos)(folder)
        document = read_config(folder)
        document["model"]["eos_token_id"] = ends
        write_config(folder, document)
        found = findings(folder)
        assert [(f.code, f.severity, f.path) for f in found] == (
            [("T336", "warning", "model.eos_token_id")] if warned else []
        )

    @pytest.mark.parametrize("value", ["many", None, True, -1, 2.5, [], {}, 10**30])
    def test_a_vocab_size_of_another_kind_is_left_to_other_checks(
        self, folder: Path, value: Any
    ) -> None:
        document = read_config(folder)
        document["model"].update(vocab_size=value, eos_token_id=value)
        write_config(folder, document)
        assert "T335" not in codes(folder)


UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5], ["b", -2]]}


def test_vocabularies_of_each_layout_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    added = [{"id": 7, "content": '"vocab": {'}, {"id": "8", "content": "x"}, 3]
    for indent in (None, 2):
        document = {"added_tokens": added, "model": UNIGRAM}
        path.write_text(json.dumps(document, indent=indent))
        found = read_vocabulary(path)
        assert (found.kind, found.pieces, found.added) == (
            "Unigram",
            {"<unk>": 0, "a": 1, "b": 2},
            {'"vocab": {': 7},
        )
    path.write_text('{"model": {"vocab": {"type": 0, "é": 1}, "merges": [["a", "b"]]}}')
    assert read_vocabulary(path).pieces == {"type": 0, "é": 1}
    assert read_vocabulary(path).kind == ""


@pytest.mark.parametrize(
    "text",
    [
        b'{"model": {"vocab": {"a": }}}',
        b'{"model": {"vocab": ' + b"[" * 100_000 + b"}",
        b'{"model": {"vocab": {"a": ' + b"9" * 5000 + b"}}}",
        b"\xff\xfe{\0}\0",
        b'{"model": {"type": "BPE", "vocab": {"a": 1e999, "b": NaN, "c": true, "d": "1"}}}',
        b'{"model": {"vocab": [[], [1], "x", null]}, "added_tokens": [[], {"id": 1}]}',
        b'{"model": {"vocab": 3}, "added_tokens": 3}',
    ],
)
def test_no_vocabulary_makes_a_check_raise(folder: Path, text: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(text)
    assert set(codes(folder)) <= {"T331", "T339"}


def test_a_large_vocabulary_is_read_as_a_small_one_is(folder: Path) -> None:
    """Of the size of Gemma's: 262,144 pieces and half a million merges, 23 MB."""
    words = [f"▁piece{index:06}" for index in range(262_144)]
    model = {
        "type": "BPE",
        "vocab": {word: index for index, word in enumerate(words)},
        "merges": [[word, word[:6]] for word in words] * 2,
    }
    eos = {"id": 0, "content": "</s>"}
    document = {"added_tokens": [eos], "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    assert (folder / "tokenizer.json").stat().st_size > 20e6
    for size, expected in ((262_144, ["T336"]), (260, ["T335", "T336"])):
        config = read_config(folder)
        config["model"].update(vocab_size=size, eos_token_id=1)
        write_config(folder, config)
        assert codes(folder) == expected
