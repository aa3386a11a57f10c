"""Tokenizers written from GGUF files, encoded and decoded by onnxruntime-genai itself.

Expected ids come from llama.cpp (tests/data), from the `tokenizers` package given llama.cpp's
own expressions, and from a plain implementation of SentencePiece's joining.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
import string as ascii_sets
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gguf_fixtures import (
    Value,
    bpe_metadata,
    byte_alphabet,
    f32s,
    flag,
    i32s,
    spm_metadata,
    string,
    strings,
    u32,
    write_gguf,
)
from og_fixtures import tokenizer_model
from real_model import smollm2
from turnout.building import tokenizer_bpe, tokenizer_spm
from turnout.building.gguf import GgufFile
from turnout.building.tokenizer import TokenizerFacts, write_tokenizer
from turnout.building.tokenizer_vocabulary import read_vocabulary
from turnout.errors import GgufError, UnsupportedModelError

DATA = Path(__file__).parent / "data"
TINY = json.loads((DATA / "tiny" / "tiny.json").read_text(encoding="utf-8"))["models"]
SMOLLM2 = json.loads((DATA / "smollm2-135m-q4_1.json").read_text(encoding="utf-8"))
Metadata = dict[str | bytes, Value]

# llama.cpp's `llm_tokenizer_bpe`, as it stands there.
LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA_CPP = {
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "smollm": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}
CORPUS = [
    "It's 12345 o'clock; I'll say WE'LL can't, won't  and   1,000,000 more!!\n\n\tthe cat's hat\n",
    "def f(x):\n    return {'a': [1, 22, 333]}  # note\n\n\n    if x != 3.14159: print(\"no\")\r\n",
    "naïve café “quoted” — 日本の首都は東京です。 हिन्दी भाषा 🙂🚀 🙂🚀 →→ ²³½ ١٢٣٤ １２３４\n",
    "| a | b |\n|---|---|\n| 100 | 2000 |\n====== the and the and, the. 0000 1111\n",
] * 20
PIECES = [
    *"aAsStTdDlLeEmM0123456789'\"!.,-=+<>|~$^(){}#*/_\t",
    *("  ", " ", "   ", "\n", "\n\n", "\r\n", "'s", "'ll", "'LL", "'Re", "12345", "000"),
    *("the", " the", " and", "é", "ï", "日本", "の", "は", "“", "”", "—", "…", "\u3000", "\u00a0"),
    *("<|begin|>", "<|end|>", "<|", "|>"),
]
OTHER_SYMBOLS = ["🙂", "🚀", "©", "€", "→", "`", "\u0301", "\u200d", "ि", "हि", "²", "½", "١٢"]


def built(tmp_path: Path, metadata: Metadata) -> tuple[TokenizerFacts, Any]:
    """The facts, and onnxruntime-genai's tokenizer over the files."""
    with GgufFile.open(write_gguf(tmp_path / "m.gguf", metadata)) as gguf:
        facts = write_tokenizer(gguf, tmp_path)
    return facts, tokenizer_model(tmp_path, facts.vocab_size)


def refused(
    tmp_path: Path, metadata: Metadata, kind: type[Exception] = GgufError
) -> GgufError | UnsupportedModelError:
    path = write_gguf(tmp_path / "m.gguf", metadata)
    with GgufFile.open(path) as gguf, pytest.raises(kind) as caught:
        write_tokenizer(gguf, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]
    assert isinstance(caught.value, GgufError | UnsupportedModelError)
    return caught.value


def fuzzed(max_examples: int, *, derandomize: bool) -> Any:
    return settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=derandomize,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def config(tmp_path: Path) -> dict[str, Any]:
    text = (tmp_path / "tokenizer_config.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


class TestLlamaCppsIds:
    @pytest.mark.parametrize("model", TINY, ids=[model["file"] for model in TINY])
    def test_every_string_of_every_tiny_model_is_encoded_like_llama_cpp_does(
        self, tmp_path: Path, model: dict[str, Any]
    ) -> None:
        with GgufFile.open(DATA / "tiny" / model["file"]) as gguf:
            facts = write_tokenizer(gguf, tmp_path)
        tokenizer = tokenizer_model(tmp_path, facts.vocab_size)
        assert len(model["tokenization"]) >= 16
        for case in model["tokenization"]:
            assert tokenizer.encode(case["text"]).tolist() == case["ids"], case["text"]

    @pytest.mark.slow
    def test_smollm2_prompts_and_chats_have_the_reference_ids(self, tmp_path: Path) -> None:
        with GgufFile.open(smollm2()) as gguf:
            facts = write_tokenizer(gguf, tmp_path)
        assert (facts.bos_id, facts.eos_ids, facts.adds_bos, facts.pre) == (
            1,
            (2,),
            False,
            "smollm",
        )
        tokenizer = tokenizer_model(tmp_path, facts.vocab_size)
        for prompt in SMOLLM2["prompts"]:
            text = prompt["text"]
            if prompt["chat"]:
                message = json.dumps([{"role": "user", "content": text}])
                text = tokenizer.apply_chat_template(message, add_generation_prompt=True)
                assert text == prompt["rendered"]
            assert tokenizer.encode(text).tolist() == prompt["token_ids"]
        # 21 of 256 bytes are no tokens of this file: control characters must not become -1.
        assert tokenizer.encode("\x04\x16").tolist() == [facts.unknown_id] * 2


@cache
def trained_merges(pre: str) -> tuple[str, ...]:
    """Merges such as a tokenizer with this pre-tokenizer would learn, in order."""
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=900, min_frequency=2, show_progress=False, initial_alphabet=byte_alphabet()
    )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = llama_cpp_words(pre)
    tokenizer.train_from_iterator(CORPUS, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tuple(f"{left} {right}" for left, right in merges)


def llama_cpp_words(pre: str) -> Any:
    steps = [
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(step), "isolated")
        for step in LLAMA_CPP[pre]
    ]
    as_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizers.pre_tokenizers.Sequence([*steps, as_bytes])


@pytest.fixture(scope="module", params=sorted(LLAMA_CPP))
def byte_level(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any, Any]:
    """A pre-tokenizer's name, the `tokenizers` package's tokenizer, and the built one."""
    pre = request.param
    merges = trained_merges(pre)
    assert len(merges) > 150
    metadata = bpe_metadata(merges, pre=pre)
    _, mine = built(tmp_path_factory.mktemp(pre), metadata)
    special = ["<|begin|>", "<|end|>"]
    tokens = [*special, *byte_alphabet()]
    tokens += dict.fromkeys(merge.replace(" ", "", 1) for merge in merges)
    theirs = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[(m.split(" ")[0], m.split(" ")[1]) for m in merges],
            ignore_merges=pre == "llama-bpe",
        )
    )
    theirs.pre_tokenizer = llama_cpp_words(pre)
    theirs.add_special_tokens(special)
    return pre, theirs, mine


def is_encoded_as_llama_cpp_has_it(byte_level: tuple[str, Any, Any], data: st.DataObject) -> None:
    pre, theirs, mine = byte_level
    pieces = PIECES if pre == "default" else PIECES + OTHER_SYMBOLS
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=14)))
    if pre in {"llama-bpe", "qwen2"}:
        assume(not re.search(r"[^\S\r\n][\r\n]+[^\S\r\n]", text))
    assert mine.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids


class TestWords:
    @fuzzed(100, derandomize=True)
    @given(data=st.data())
    def test_texts_are_encoded_as_llama_cpps_expressions_have_it(
        self, byte_level: tuple[str, Any, Any], data: st.DataObject
    ) -> None:
        is_encoded_as_llama_cpp_has_it(byte_level, data)

    @pytest.mark.slow
    @fuzzed(2000, derandomize=False)
    @given(data=st.data())
    def test_other_texts_each_time_are_encoded_so_too(
        self, byte_level: tuple[str, Any, Any], data: st.DataObject
    ) -> None:
        is_encoded_as_llama_cpp_has_it(byte_level, data)

    def test_the_corpus_itself_is_encoded_so_and_decoded_back(
        self, byte_level: tuple[str, Any, Any]
    ) -> None:
        pre, theirs, mine = byte_level
        for text in CORPUS[:4]:
            ids = mine.encode(text).tolist()
            assert mine.decode(ids) == text
            if pre != "default":
                assert ids == theirs.encode(text, add_special_tokens=False).ids
            assert len(ids) < 0.7 * len(text.encode())

    @pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
    def test_a_line_of_blanks_before_an_indented_line_is_the_runtimes_known_difference(
        self, tmp_path: Path, pre: str
    ) -> None:
        r"""docs/tokenizers.md: the runtime's `\s*[\r\n]+` gives nothing back."""
        metadata = bpe_metadata(["Ġ Ċ", "Ċ ĠĊ", "Ċ Ċ"], pre=pre)
        _, tokenizer = built(tmp_path, metadata)
        made = {text: len(tokenizer.encode(text)) for text in ("\n \n", "\n\n b", "\n \n b")}
        # llama.cpp: 1, 3 and 3, the last as "\n \n", " b".
        assert made == {"\n \n": 1, "\n\n b": 3, "\n \n b": 4}
        assert tokenizer.decode(tokenizer.encode("\n \n b")) == "\n \n b"

    def test_the_next_line_control_is_no_blank_to_the_runtime(self, tmp_path: Path) -> None:
        """docs/tokenizers.md: U+0085 is the one blank of llama.cpp that is a symbol here."""
        lead = byte_alphabet()[0xC2]
        _, tokenizer = built(tmp_path, bpe_metadata([f"Ġ {lead}"], pre="smollm"))
        words = [word for word, _ in llama_cpp_words("smollm").pre_tokenize_str(" \x85x")]
        assert words == ["Ġ", f"{lead}ħ", "x"]  # so llama.cpp never joins the first two
        assert len(tokenizer.encode(" \x85x")) == 3
        assert len(tokenizer.encode(" \xa0x")) == 4

    def test_a_text_ends_at_a_nul_for_the_runtime(self, tmp_path: Path) -> None:
        _, tokenizer = built(tmp_path, bpe_metadata([]))
        assert tokenizer.encode("a\0b").tolist() == tokenizer.encode("a").tolist()

    @pytest.mark.parametrize(
        ("alias", "same"),
        [
            ("llama3", "llama-bpe"),
            ("llama-v3", "llama-bpe"),
            ("falcon3", "llama-bpe"),
            ("deepseek-r1-qwen", "qwen2"),
        ],
    )
    def test_names_for_which_llama_cpp_does_the_same_are_taken(
        self, tmp_path: Path, alias: str, same: str
    ) -> None:
        facts, tokenizer = built(tmp_path, bpe_metadata(["1 2", "12 3", "123 4"], pre=alias))
        assert facts.pre == same
        # Digits come in threes for Llama 3 and alone for Qwen.
        assert len(tokenizer.encode("1234")) == (2 if same == "llama-bpe" else 4)

    def test_default_takes_no_contractions_and_digits_in_threes(self, tmp_path: Path) -> None:
        merges = ["' s", "1 2", "12 3", "123 4", "Ġ 1", "Ġ !", "Ġ a"]
        _, tokenizer = built(tmp_path, bpe_metadata(merges, pre="default"))
        texts = {"'s": 2, "1234": 2, " 1": 2, " !": 2, " a": 1, "12": 1, "123": 1}
        assert {text: len(tokenizer.encode(text)) for text in texts} == texts

    def test_symbols_after_a_space_are_the_known_difference_of_default(
        self, tmp_path: Path
    ) -> None:
        """docs/tokenizers.md: the runtime has no class for punctuation alone."""
        face = "".join(byte_alphabet()[byte] for byte in "🙂".encode()[:1])
        _, tokenizer = built(tmp_path, bpe_metadata([f"Ġ {face}"], pre="default"))
        assert len(tokenizer.encode(" 🙂")) == 5  # llama.cpp: 4
        assert tokenizer.decode(tokenizer.encode(" 🙂")) == " 🙂"


class TestBytes:
    def test_a_byte_without_a_token_becomes_the_unknown_token(self, tmp_path: Path) -> None:
        metadata = bpe_metadata([], bytes_left_out=[4, 0xFF], unknown_token_id=u32(0))
        facts, tokenizer = built(tmp_path, metadata)
        assert facts.unknown_id == 0
        ids = tokenizer.encode("a\x04b").tolist()
        assert ids[1] == 0
        assert tokenizer.decode(ids) == "ab"

    @pytest.mark.parametrize("kind", [1, 5])
    def test_a_token_outside_the_byte_alphabet_is_decoded_all_the_same(
        self, tmp_path: Path, kind: int
    ) -> None:
        """The runtime fails with "map::at" on such a token as it stands in the file."""
        metadata = bpe_metadata([], extra=[("日本 ok", kind)])
        facts, tokenizer = built(tmp_path, metadata)
        assert tokenizer.decode([facts.vocab_size - 1]) == "日本 ok"

    def test_characters_of_several_tokens_are_streamed_whole(self, tmp_path: Path) -> None:
        _, tokenizer = built(tmp_path, bpe_metadata(["Ġ a"]))
        text = "é日🙂 a"
        stream = tokenizer.create_stream()
        parts = [stream.decode(index) for index in tokenizer.encode(text).tolist()]
        assert "".join(parts) == text
        assert parts == ["", "é", "", "", "日", "", "", "", "🙂", " a"]


class TestSpecialTokens:
    def test_are_recognized_in_text_and_left_out_of_answers(self, tmp_path: Path) -> None:
        extra = [("<tool>", 4), ("<|turn|>", 3), ("<|never|>", 5)]
        facts, tokenizer = built(tmp_path, bpe_metadata([], extra=extra))
        tool, turn = facts.vocab_size - 3, facts.vocab_size - 2
        ids = tokenizer.encode("a<|turn|>b<tool>c<|begin|>").tolist()
        assert (ids[1], ids[3], ids[5]) == (turn, tool, 0)
        # Of user-defined tokens the text stays.
        assert tokenizer.decode(ids) == "ab<tool>c"
        assert len(tokenizer.encode("<|never|>")) == 9

    def test_the_end_token_is_special_even_where_the_file_calls_it_normal(
        self, tmp_path: Path
    ) -> None:
        metadata = bpe_metadata([], extra=[("<|im_end|>", 1)], eos_token_id=u32(258))
        facts, tokenizer = built(tmp_path, metadata)
        assert facts.eos_ids == (258,)
        assert tokenizer.encode("<|im_end|>").tolist() == [258]

    @pytest.mark.parametrize(
        ("changes", "eos"),
        [
            ({}, (1,)),
            ({"eot_token_id": u32(258)}, (1, 258)),
            ({"eot_token_id": u32(1), "eom_token_id": u32(259)}, (1, 259)),
            ({"eos_token_id": None, "eot_token_id": u32(258)}, (258,)),
        ],
    )
    def test_all_ends_that_the_file_names_end_an_answer(
        self, tmp_path: Path, changes: dict[str, Value | None], eos: tuple[int, ...]
    ) -> None:
        extra = [("<|x|>", 3), ("<|y|>", 3)]
        facts, _ = built(tmp_path, bpe_metadata([], extra=extra, **changes))
        assert facts.eos_ids == eos

    def test_an_end_of_turn_that_the_template_writes_ends_an_answer(self, tmp_path: Path) -> None:
        metadata = bpe_metadata([], extra=[("<|eot_id|>", 3), ("<|im_end|>", 3)])
        metadata["tokenizer.chat_template"] = string("{{ messages[0].content }}<|eot_id|>")
        facts, _ = built(tmp_path, metadata)
        assert facts.eos_ids == (1, 258)

    @pytest.mark.parametrize(
        ("pre", "said", "adds"),
        [
            ("qwen2", None, False),
            ("llama-bpe", None, True),
            ("llama-bpe", 0, False),
            ("qwen2", 1, True),
        ],
    )
    def test_the_begin_token_is_added_on_request_only_and_the_bundle_says_whether(
        self, tmp_path: Path, pre: str, said: int | None, adds: bool
    ) -> None:
        wish = {} if said is None else {"add_bos_token": flag(said)}
        facts, tokenizer = built(tmp_path, bpe_metadata([], pre=pre, **wish))
        assert facts.adds_bos is adds
        assert config(tmp_path)["add_bos_token"] is adds
        plain = tokenizer.encode("ab").tolist()
        assert plain[0] != facts.bos_id
        tokenizer.update_options(add_special_tokens="true")
        assert tokenizer.encode("ab").tolist() == ([0] if adds else []) + plain

    def test_no_begin_token_is_added_by_default_where_the_file_names_none(
        self, tmp_path: Path
    ) -> None:
        facts, _ = built(tmp_path, bpe_metadata([], pre="llama-bpe", bos_token_id=None))
        assert (facts.bos_id, facts.adds_bos) == (None, False)

    def test_the_wish_for_an_end_token_is_kept(self, tmp_path: Path) -> None:
        facts, _ = built(tmp_path, bpe_metadata([], add_eos_token=flag(1)))
        assert facts.adds_eos
        assert config(tmp_path)["add_eos_token"] is True


class TestUnusedId:
    """An id that no prompt contains: static bundles pad with it and count up to it."""

    def test_is_the_last_token_that_the_file_calls_unused(self, tmp_path: Path) -> None:
        extra = [("[PAD1]", 5), ("[PAD2]", 5), ("<|x|>", 3)]
        facts, tokenizer = built(tmp_path, bpe_metadata([], extra=extra))
        assert facts.unused_id == 259
        assert 259 not in tokenizer.encode("[PAD2] [PAD2][PAD2]")

    def test_is_no_unused_token_that_a_text_is_encoded_to(self, tmp_path: Path) -> None:
        facts, tokenizer = built(tmp_path, bpe_metadata(["a b"], extra=[("xy", 5)]))
        assert tokenizer.encode("xy").tolist() == [facts.vocab_size - 1]  # a word is its token
        assert facts.unused_id == 2 + 255

    def test_is_a_byte_that_no_text_has_where_nothing_is_unused(self, tmp_path: Path) -> None:
        facts, _ = built(tmp_path, bpe_metadata([], extra=[("<|x|>", 3)]))
        assert facts.unused_id == 2 + 255

    def test_is_otherwise_the_last_control_token_without_a_meaning(self, tmp_path: Path) -> None:
        metadata = bpe_metadata(
            [],
            special=("<|begin|>", "<|end|>", "<|spare|>", "<|user|>", "<|pad|>"),
            bytes_left_out=[0xC0, 0xC1, *range(0xF5, 0x100)],
            padding_token_id=u32(4),
        )
        metadata["tokenizer.chat_template"] = string("<|user|>{{ messages[0].content }}")
        facts, _ = built(tmp_path, metadata)
        assert (facts.pad_id, facts.unused_id) == (4, 2)

    def test_is_none_where_every_id_may_be_needed(self, tmp_path: Path) -> None:
        metadata = bpe_metadata([], bytes_left_out=[0xC0, 0xC1, *range(0xF5, 0x100)])
        assert built(tmp_path, metadata)[0].unused_id is None

    def test_is_a_byte_for_sentencepiece(self, tmp_path: Path) -> None:
        facts, _ = built(tmp_path, spm_metadata({"▁": -1, "a": -2}))
        assert facts.unused_id == 3 + 0xFF


class TestChatTemplate:
    TEMPLATE = (
        "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}"
        "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )

    def test_is_rendered_by_the_runtime_as_jinja_renders_it(self, tmp_path: Path) -> None:
        import jinja2

        metadata = bpe_metadata([])
        metadata["tokenizer.chat_template"] = string(self.TEMPLATE)
        facts, tokenizer = built(tmp_path, metadata)
        messages = [
            {"role": "system", "content": "Be 'brief' — ünïcode \\ \"too\"."},
            {"role": "user", "content": "  hi\n"},
        ]
        rendered = tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True)
        expected = jinja2.Environment(keep_trailing_newline=True).from_string(self.TEMPLATE)
        assert rendered == expected.render(
            messages=messages,
            add_generation_prompt=True,
            bos_token="<|begin|>",
            eos_token="<|end|>",
        )
        assert facts.chat_template == self.TEMPLATE
        # The begin token is in the text, and recognized: nobody must add a second one.
        assert tokenizer.encode(rendered).tolist()[0] == facts.bos_id

    def test_is_absent_where_the_file_has_none(self, tmp_path: Path) -> None:
        facts, tokenizer = built(tmp_path, bpe_metadata([]))
        assert facts.chat_template is None
        with pytest.raises(RuntimeError, match="Empty chat template"):
            tokenizer.apply_chat_template('[{"role": "user", "content": "a"}]')


def joined(text: str, pieces: Sequence[str], scores: Sequence[float], special: int) -> list[int]:
    """SentencePiece's joining as llama.cpp does it: the best neighbours first, then the left.

    The first `special` pieces are recognized in the text; a space stands before every other
    part of it.
    """
    ids = {piece: index for index, piece in enumerate(pieces)}
    out: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, pieces[:special])) + ")", text):
        if part in pieces[:special]:
            out.append(ids[part])
        elif part:
            for piece in _join(list((" " + part).replace(" ", "▁")), ids, scores):
                fallback = [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
                out += [ids[piece]] if piece in ids else fallback
    return out


def _join(symbols: list[str], ids: dict[str, int], scores: Sequence[float]) -> list[str]:
    after = [*range(1, len(symbols)), -1]
    before = list(range(-1, len(symbols) - 1))
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and symbols[left] + symbols[right] in ids:
            pair = symbols[left] + symbols[right]
            heapq.heappush(queue, (-scores[ids[pair]], left, right, pair))

    for index in range(1, len(symbols)):
        offer(index - 1, index)
    while queue:
        _, left, right, pair = heapq.heappop(queue)
        if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != pair:
            continue
        symbols[left], symbols[right] = pair, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [symbol for symbol in symbols if symbol]


@cache
def trained_pieces() -> dict[str, float]:
    """Pieces and scores such as SentencePiece's BPE learns: characters, then merges, falling."""
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, min_frequency=2, show_progress=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator([re.sub(r"\s", " ", line) for line in CORPUS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merged = ["".join(pair) for pair in model["merges"]]
    single = [piece for piece in model["vocab"] if len(piece) == 1 and piece not in "🚀東"]
    pieces = [piece for piece in dict.fromkeys(merged) if set(piece) <= set(single)]
    return {piece: -float(rank) for rank, piece in enumerate([*pieces, *single])}


def tiny_spm() -> tuple[list[str], list[float], int]:
    with GgufFile.open(DATA / "tiny" / "llama-spm.gguf") as gguf:
        tokens = gguf.strings("tokenizer.ggml.tokens")
        return tokens, gguf.numbers("tokenizer.ggml.scores"), 3


@pytest.fixture(scope="module", params=["tiny", "trained"])
def sentencepiece(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], list[float], int, Any]:
    folder = tmp_path_factory.mktemp("spm")
    if request.param == "tiny":
        tokens, scores, special = tiny_spm()
        with GgufFile.open(DATA / "tiny" / "llama-spm.gguf") as gguf:
            facts = write_tokenizer(gguf, folder)
        return tokens, scores, special, tokenizer_model(folder, facts.vocab_size)
    pieces = trained_pieces()
    assert len(pieces) > 200
    _, tokenizer = built(folder, spm_metadata(pieces))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return tokens, [0.0] * 259 + list(pieces.values()), 3, tokenizer


SPM_PIECES = [
    *("the", "cat", " ", "  ", "and", " and", "an", "in", "er", "re", "ing", " world", " the"),
    *"abcdehnst019.,'=(\n\t",
    *("é", "日", "本", "東", "🙂", "🚀", "▁", "<s>", "</s>", "<unk>", "<0x41>", "print", "return"),
]


def is_joined_by_score(sentencepiece: tuple[list[str], list[float], int, Any], text: str) -> None:
    tokens, scores, special, tokenizer = sentencepiece
    assert tokenizer.encode(text).tolist() == joined(text, tokens, scores, special)


class TestSentencePiece:
    @fuzzed(200, derandomize=True)
    @given(parts=st.lists(st.sampled_from(SPM_PIECES), max_size=16))
    def test_texts_are_joined_by_score_over_the_whole_text(
        self, sentencepiece: tuple[list[str], list[float], int, Any], parts: list[str]
    ) -> None:
        is_joined_by_score(sentencepiece, "".join(parts))

    @pytest.mark.slow
    @fuzzed(4000, derandomize=False)
    @given(parts=st.lists(st.sampled_from(SPM_PIECES), max_size=16))
    def test_other_texts_each_time_are_joined_so_too(
        self, sentencepiece: tuple[list[str], list[float], int, Any], parts: list[str]
    ) -> None:
        is_joined_by_score(sentencepiece, "".join(parts))

    def test_long_texts_of_words_are_joined_so_too(
        self, sentencepiece: tuple[list[str], list[float], int, Any]
    ) -> None:
        is_joined_by_score(sentencepiece, " ".join(CORPUS[:3] * 5))

    def test_a_run_of_more_than_a_hundred_pieces_without_a_blank_is_cut_by_the_runtime(
        self, tmp_path: Path
    ) -> None:
        """docs/tokenizers.md: the known difference of the runtime's SentencePiece."""
        pieces = {"ab": -1.0, "a": -2.0, "b": -3.0, "▁": -4.0}
        facts, tokenizer = built(tmp_path, spm_metadata(pieces))
        ids = tokenizer.encode("ab" * 200).tolist()
        assert facts.vocab_size == 263
        assert tokenizer.decode(ids) == " " + "ab" * 200
        assert len(ids) - (1 + 200) in range(5)

    def test_bytes_stand_for_what_is_no_piece_and_come_back_whole(
        self, sentencepiece: tuple[list[str], list[float], int, Any]
    ) -> None:
        tokens, _, _, tokenizer = sentencepiece
        text = "東京 🚀\n日"
        ids = tokenizer.encode(text).tolist()
        assert [tokens[index] for index in ids[1:4]] == ["<0xE6>", "<0x9D>", "<0xB1>"]
        # The space that encoding put in front is given back: nothing special stood before.
        assert tokenizer.decode(ids) == " " + text
        assert tokenizer.decode([1, *ids]) == text
        stream = tokenizer.create_stream()
        parts = [stream.decode(index) for index in ids]
        assert "".join(parts) == " " + text
        assert parts[1:4] == ["", "", "東"]

    @pytest.mark.parametrize("prefix", [None, 1, 0])
    def test_a_space_is_put_in_front_unless_the_file_says_no(
        self, tmp_path: Path, prefix: int | None
    ) -> None:
        wish = {} if prefix is None else {"add_space_prefix": flag(prefix)}
        pieces = {"▁a": -1.0, "a": -2.0, "▁": -3.0}
        facts, tokenizer = built(tmp_path, spm_metadata(pieces, **wish))
        assert facts.adds_space is (prefix != 0)
        assert tokenizer.encode("a").tolist() == ([259] if prefix != 0 else [260])
        assert tokenizer.decode(tokenizer.encode("a")) == (" a" if prefix != 0 else "a")

    def test_the_kinds_ids_are_taken_where_the_file_names_none(self, tmp_path: Path) -> None:
        facts, tokenizer = built(tmp_path, spm_metadata({"▁": -1.0}))
        assert (facts.unknown_id, facts.bos_id, facts.eos_ids, facts.pad_id) == (0, 1, (2,), None)
        assert facts.adds_bos
        tokenizer.update_options(add_special_tokens="true")
        assert tokenizer.encode("")[:1].tolist() == [1]

    def test_a_vocabulary_without_bytes_is_refused(self, tmp_path: Path) -> None:
        metadata = spm_metadata({"▁": -1.0})
        tokens = ["<unk>", "<s>", "</s>", "▁"]
        metadata["tokenizer.ggml.tokens"] = strings(tokens)
        metadata["tokenizer.ggml.token_type"] = i32s([2, 3, 3, 1])
        metadata["tokenizer.ggml.scores"] = f32s([0, 0, 0, -1])
        error = refused(tmp_path, metadata, UnsupportedModelError)
        assert "no byte fallback" in error.problem

    @pytest.mark.parametrize("scores", [[0.0] * 5, [float("nan")] * 260])
    def test_scores_that_do_not_fit_are_refused(self, tmp_path: Path, scores: list[float]) -> None:
        error = refused(tmp_path, spm_metadata({"▁": -1.0}, scores=f32s(scores)))
        assert "tokenizer.ggml.scores" in error.facts["where"]


BROKEN: list[tuple[str, dict[str, Value | None], str, str]] = [
    ("no tokens", {"tokens": None}, "tokens", "an array of strings"),
    ("no types", {"token_type": None}, "token_type", "an array of integers"),
    ("no merges", {"merges": None}, "merges", "an array of strings"),
    ("empty", {"tokens": strings([]), "token_type": i32s([])}, "tokens", "0 tokens"),
    ("fewer types", {"token_type": i32s([3, 3])}, "token_type", "2 types"),
    ("a type 9", {"token_type": i32s([3, 3, *[9] * 256])}, "token_type", "9 for token 2"),
    ("end beyond", {"eos_token_id": u32(258)}, "eos_token_id", "258"),
    ("begin beyond", {"bos_token_id": u32(1 << 31)}, "bos_token_id", "2147483648"),
    ("pad as text", {"padding_token_id": string("x")}, "padding_token_id", "'x'"),
    ("no end", {"eos_token_id": None}, "", ""),
    ("merge of no tokens", {"merges": strings(["a b"])}, "merges", "'a b' at index 0"),
    ("merge of one word", {"merges": strings(["ab"])}, "merges", "'ab' at index 0"),
    ("merge of nothing", {"merges": strings([""])}, "merges", "'' at index 0"),
    ("begin wished for, not named", {"add_bos_token": flag(1), "bos_token_id": None},
     "add_bos_token", "no tokenizer.ggml.bos_token_id"),
    ("begin that is a letter", {"add_bos_token": flag(1), "bos_token_id": u32(99)},
     "add_bos_token", "the ordinary"),
    ("template as number", {"chat_template": u32(1)}, "", ""),
]  # fmt: skip


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "key", "found"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN]
    )
    def test_metadata_that_contradicts_itself_is_refused_by_key(
        self, tmp_path: Path, changes: dict[str, Value | None], key: str, found: str
    ) -> None:
        metadata = bpe_metadata([], **changes)
        template = metadata.pop("tokenizer.ggml.chat_template", None)
        if template is not None:
            metadata["tokenizer.chat_template"] = template
        error = refused(tmp_path, metadata)
        said = str(error)
        assert f"tokenizer.ggml.{key}" in said or not key
        assert found in said

    def test_tokens_that_are_not_utf8_are_refused(self, tmp_path: Path) -> None:
        metadata = bpe_metadata([], tokens=strings([b"ok", b"\xc3"]), token_type=i32s([1, 1]))
        assert "Element 1" in refused(tmp_path, metadata).problem

    @pytest.mark.parametrize("extra", [[("!", 1)], [("", 3)], [("x" * 1025, 1)]])
    def test_tokens_twice_or_empty_or_endless_are_refused(
        self, tmp_path: Path, extra: list[tuple[str, int]]
    ) -> None:
        error = refused(tmp_path, bpe_metadata([], extra=extra))
        assert "tokenizer.ggml.tokens" in error.facts["where"]

    @pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "gemma4", ""])
    def test_another_kind_of_tokenizer_names_those_supported(
        self, tmp_path: Path, kind: str
    ) -> None:
        error = refused(tmp_path, bpe_metadata([], model=string(kind)), UnsupportedModelError)
        assert error.facts["found"] == repr(kind)
        assert error.facts["expected"] == "gpt2 (byte-level BPE) or llama (SentencePiece)"

    @pytest.mark.parametrize("pre", ["tekken", "gpt-4o", "Qwen2", ""])
    def test_another_pre_tokenizer_names_those_supported(self, tmp_path: Path, pre: str) -> None:
        error = refused(tmp_path, bpe_metadata([], pre=pre), UnsupportedModelError)
        assert error.facts["found"] == repr(pre)
        for name in LLAMA_CPP:
            assert name in error.facts["expected"]

    def test_a_file_that_names_no_pre_tokenizer_is_not_guessed_at(self, tmp_path: Path) -> None:
        error = refused(tmp_path, bpe_metadata([], pre=None), UnsupportedModelError)
        assert "convert the model again" in error.facts["fix"]


def large_vocabulary(count: int) -> list[str]:
    """Merges that make `count` words of letters, each of a word before it and a letter."""
    letters = ascii_sets.ascii_lowercase
    words = itertools.chain.from_iterable(
        itertools.product(letters, repeat=length) for length in (2, 3, 4)
    )
    return [f"{''.join(word[:-1])} {word[-1]}" for word in itertools.islice(words, count)]


class Compared(str):
    """A token that counts how often one is compared or looked up."""

    __slots__ = ()
    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Compared.count += 1
        return str.__hash__(self)


@pytest.mark.parametrize("kind", [tokenizer_bpe, tokenizer_spm], ids=["bpe", "spm"])
def test_the_work_on_a_vocabulary_grows_with_it_and_not_with_its_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: ModuleType
) -> None:
    """A look through all tokens for each token would be 5,000 comparisons a token, not 5."""
    words = large_vocabulary(5000)
    strings_of = GgufFile.strings
    monkeypatch.setattr(
        GgufFile, "strings", lambda self, key: [Compared(text) for text in strings_of(self, key)]
    )
    if kind is tokenizer_bpe:
        metadata = bpe_metadata(words)
    else:
        metadata = spm_metadata({word.replace(" ", ""): -1.0 for word in words})
    with GgufFile.open(write_gguf(tmp_path / "m.gguf", metadata)) as gguf:
        monkeypatch.setattr(Compared, "count", 0)
        if kind is tokenizer_bpe:
            vocabulary = read_vocabulary(gguf, {})
            document = tokenizer_bpe.tokenizer_document(gguf, vocabulary, "qwen2")
        else:
            vocabulary = read_vocabulary(gguf, tokenizer_spm.DEFAULT_IDS)
            document = tokenizer_spm.tokenizer_document(gguf, vocabulary, adds_space=True)
        assert kind.find_unused_id(vocabulary, document) is not None
    assert len(vocabulary.tokens) < Compared.count < 10 * len(vocabulary.tokens)


@pytest.mark.parametrize("count", [49_000, pytest.param(150_000, marks=pytest.mark.slow)])
def test_large_vocabularies_are_written_the_same_each_time(tmp_path: Path, count: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", bpe_metadata(large_vocabulary(count)))
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        with GgufFile.open(path) as gguf:
            facts = write_tokenizer(gguf, folder)
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert written[0] == written[1]
    assert sorted(written[0]) == ["tokenizer.json", "tokenizer_config.json"]
    tokenizer = tokenizer_model(tmp_path / "a", facts.vocab_size)
    assert tokenizer.decode(tokenizer.encode("abcd zzz")) == "abcd zzz"


def test_the_files_are_taken_by_the_tokenizers_package_too(tmp_path: Path) -> None:
    """Other programs read a bundle as well; both kinds, with the same ids."""
    for name, metadata in (
        ("bpe", bpe_metadata(trained_merges("qwen2"))),
        ("spm", spm_metadata(trained_pieces())),
    ):
        folder = tmp_path / name
        folder.mkdir()
        _, mine = built(folder, metadata)
        theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        for text in ("The café, 日本 and 12345 more.", "  two  spaces\tand a tab"):
            ids = theirs.encode(text, add_special_tokens=False).ids
            assert ids == mine.encode(text).tolist()
            assert theirs.decode(ids).strip() == text.strip()
