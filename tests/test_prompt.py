"""From what a caller says to token ids, and tokens back to whole characters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from session_fixtures import TINY, Bundles, edit_json
from turnout.bundle import GenaiConfig
from turnout.errors import GenerationError, PromptTooLongError, TokenizerError, UsageError
from turnout.runtime import SearchOptions, Session
from turnout.runtime.detokenize import TextDecoder
from turnout.runtime.prompt import Length, Limits, as_messages, check_padding, limits, plan_length

pytest_plugins = ("session_plugin",)

CHAT = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
TOKENIZER = "tokenizer_config.json"


# Lengths


def test_the_length_asked_for_is_prompt_and_answer() -> None:
    assert plan_length(10, 30, Limits(100)) == Length(max_length=40, new_tokens=30)


def test_an_answer_is_cut_to_what_the_context_leaves() -> None:
    """G#1425: clamp where asked."""
    assert plan_length(90, 30, Limits(100)) == Length(max_length=100, new_tokens=10)
    assert plan_length(99, 30, Limits(100)) == Length(max_length=100, new_tokens=1)


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    """G#1558: count first, explain."""
    with pytest.raises(PromptTooLongError) as caught:
        plan_length(3216, 1, Limits(2048))
    assert "3216" in caught.value.facts["found"]
    assert "2048" in caught.value.facts["expected"]
    with pytest.raises(PromptTooLongError):
        plan_length(100, 1, Limits(100))


def test_a_cache_of_fixed_length_stays_as_long_as_it_is() -> None:
    fixed = Limits(256, fixed=True, window=16)
    assert plan_length(22, 10, fixed) == Length(max_length=256, new_tokens=10)
    # 22 tokens take two windows of 16, so 224 are left.
    assert plan_length(22, 300, fixed) == Length(max_length=256, new_tokens=224)
    assert plan_length(240, 300, fixed) == Length(max_length=256, new_tokens=16)
    with pytest.raises(PromptTooLongError, match=r"(?s)241 tokens, 256 when padded"):
        plan_length(241, 1, fixed)


def config(**model: Any) -> GenaiConfig:
    document = {
        "model": {"context_length": 512, "decoder": {}, **model},
        "search": {"max_length": 256},
    }
    return GenaiConfig.parse(json.dumps(document))


def test_the_context_limits_a_bundle_whatever_its_max_length_says() -> None:
    assert limits(config()) == Limits(512)


def test_a_bundle_of_fixed_shapes_is_limited_by_its_cache() -> None:
    decoder = {
        "sliding_window": {"window_size": 64},
        "inputs": {"past_sequence_length": "past_sequence_length"},
    }
    assert limits(config(decoder=decoder)) == Limits(256, fixed=True, window=64)


def test_a_padding_token_in_a_prompt_of_fixed_shapes_is_refused() -> None:
    """The runtime ends the prompt there, and answers nonsense."""
    fixed = Limits(256, fixed=True, window=16)
    with pytest.raises(GenerationError) as caught:
        check_padding([5, 2, 6], 2, fixed)
    assert caught.value.facts["found"] == "token 2 at position 1"
    check_padding([5, 6], 2, fixed)
    check_padding([5, 2, 6], 2, Limits(256))
    check_padding([5, 2, 6], None, fixed)


# Messages


def test_a_prompt_becomes_the_users_message_after_the_system_message() -> None:
    assert as_messages("Hello") == [{"role": "user", "content": "Hello"}]
    assert as_messages("Hello", "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


@pytest.mark.parametrize(
    ("said", "system", "words"),
    [
        ("", None, "prompt is empty"),
        ("  \n", None, "prompt is empty"),
        ("Hello", "", "system message is empty"),
        ("a\0b", None, "NUL"),
        ("a\ud800", None, "lone surrogate at character 1"),
        ([], None, "no messages"),
        ([{"role": "user"}], None, "message 0"),
        ([{"role": "user", "content": ["x"]}], None, "message 0"),
        ([{"role": "", "content": "x"}], None, "message 0"),
        ([{"role": "user", "content": ""}], None, "user message is empty"),
        ([{"role": "system", "content": "x"}], "y", "given twice"),
    ],
)
def test_what_is_no_conversation_is_refused(said: Any, system: str | None, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        as_messages(said, system)
    assert words in str(caught.value)


# The chat template


def test_the_chat_template_is_applied_once_by_default(bundles: Bundles) -> None:
    """G#1349, W#1042: once, from the bundle; raw to skip."""
    with Session(bundles()) as session:
        assert session.apply_chat_template("the cat") == CHAT
        assert session.request("the cat").token_ids == session.encode(CHAT)
        assert session.request("the cat", raw=True).token_ids == session.encode("the cat")
        messages = [{"role": "user", "content": "the cat"}]
        assert session.request(messages).token_ids == session.encode(CHAT)
        with_system = "<|im_start|>system\nBe brief.<|im_end|>\n" + CHAT
        assert session.apply_chat_template("the cat", system="Be brief.") == with_system
        assert session.apply_chat_template("the cat", add_generation_prompt=False) == (
            "<|im_start|>user\nthe cat<|im_end|>\n"
        )


def test_quotes_and_every_script_go_through_the_template_unharmed(bundles: Bundles) -> None:
    text = 'say "{{ 1 }}" \\ and \n 日本 🙂'
    with Session(bundles()) as session:
        assert text in session.apply_chat_template(text)


def test_without_a_template_a_prompt_is_used_as_it_is_and_that_is_said(bundles: Bundles) -> None:
    path = bundles()
    edit_json(path / TOKENIZER, lambda config: config.pop("chat_template"))
    with Session(path) as session:
        request = session.request("the cat")
        assert request.token_ids == session.encode("the cat")
        assert any("no chat template" in note for note in request.notes)
        for call in (
            lambda: session.apply_chat_template("the cat"),
            lambda: session.request("the cat", system="Be brief."),
            lambda: session.request([{"role": "user", "content": "the cat"}]),
        ):
            with pytest.raises(TokenizerError, match="no chat template"):
                call()


def test_a_template_that_cannot_be_used_is_blamed_on_the_bundle(bundles: Bundles) -> None:
    path = bundles()
    edit_json(path / TOKENIZER, lambda config: config.update(chat_template="{% for %}"))
    with Session(path) as session:
        with pytest.raises(TokenizerError, match="cannot use the bundle's chat template"):
            session.request("the cat")
        assert session.request("the cat", raw=True).token_ids


def test_a_template_that_refuses_the_messages_says_why(bundles: Bundles) -> None:
    path = bundles()
    template = "{{ raise_exception('System role not supported') }}"
    edit_json(path / TOKENIZER, lambda config: config.update(chat_template=template))
    with Session(path) as session, pytest.raises(GenerationError) as caught:
        session.request("the cat", system="Be brief.")
    assert "System role not supported" in caught.value.facts["found"]
    assert caught.value.facts["where"] == "messages: system, user"


# The begin token


def test_a_begin_token_is_added_where_the_tokenizer_wants_one(bundles: Bundles) -> None:
    """`add_bos_token` is true in this SentencePiece bundle; its begin token is 1."""
    with Session(bundles("pipeline", model="llama-spm")) as session:
        assert session.encode("the cat") == [1, 287, 302]
        assert session.encode("the cat", add_bos=False) == [287, 302]


def test_a_begin_token_that_is_there_is_not_added_again(bundles: Bundles) -> None:
    path = bundles("pipeline", model="llama-spm")
    template = "{{ bos_token }}{{ messages[0].content }}"
    edit_json(path / TOKENIZER, lambda config: config.update(chat_template=template))
    with Session(path) as session:
        ids = session.request("the cat").token_ids
    assert list(ids).count(1) == 1
    assert ids[0] == 1


def test_no_begin_token_is_added_where_the_tokenizer_wants_none(bundles: Bundles) -> None:
    """`add_bos_token` is false in this bundle; ids of its reference tokenizer."""
    with Session(bundles()) as session:
        plain = tokenization("llama-f32", "the cat and the hat")
        assert session.encode("the cat and the hat") == plain
        assert session.encode("the cat and the hat", add_bos=True) == [0, *plain]


def test_without_add_bos_token_the_tokenizer_itself_is_asked(bundles: Bundles) -> None:
    """Llama 3 says it in a post-processor only; `<|endoftext|>` is token 0 here."""
    path = bundles()
    edit_json(path / TOKENIZER, lambda config: config.pop("add_bos_token"))
    with Session(path) as session:
        plain = session.encode("the cat")
    single = [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    special = {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
    processor = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [],
        "special_tokens": {"<|endoftext|>": special},
    }
    edit_json(path / "tokenizer.json", lambda config: config.update(post_processor=processor))
    edit_json(
        path / TOKENIZER, lambda config: config.update(tokenizer_class="PreTrainedTokenizerFast")
    )
    with Session(path) as session:
        assert session.encode("the cat") == [0, *plain]


# Text


def tokenization(model: str, text: str) -> list[int]:
    models = json.loads((TINY / "tiny.json").read_text("utf-8"))["models"]
    rows = next(row for row in models if row["file"] == f"{model}.gguf")["tokenization"]
    ids: list[int] = next(row["ids"] for row in rows if row["text"] == text)
    return ids


@pytest.mark.parametrize("model", ["llama-f32", "qwen2-bias-tied", "llama-spm"])
def test_text_comes_back_from_its_tokens(bundles: Bundles, model: str) -> None:
    with Session(bundles("pipeline", model=model)) as session:
        for text in ("the cat and the hat", " two  spaces ", "naïve café", "日本の首都は", "🙂🚀"):
            assert session.decode(session.encode(text)) == text


def test_a_character_of_several_tokens_comes_whole_and_at_once(bundles: Bundles) -> None:
    with Session(bundles()) as session:
        ids = session.encode("é🙂日a")
        decoder = session.loaded.codec.decoder()
        pieces = [decoder.push(token) for token in ids]
    assert [piece for piece in pieces if piece] == ["é", "🙂", "日", "a"]
    assert len(ids) == 2 + 4 + 3 + 1
    assert decoder.flush() == ""


def test_an_incomplete_character_at_the_end_is_replaced(bundles: Bundles) -> None:
    with Session(bundles()) as session:
        cut = session.encode("a🙂")[:-1]
        decoder = session.loaded.codec.decoder()
        assert [decoder.push(token) for token in cut] == ["a", "", "", ""]
        assert decoder.flush() == "\ufffd"
        assert session.decode(cut) == "a\ufffd"


def test_nothing_is_lost_after_bytes_that_make_no_character(bundles: Bundles) -> None:
    """The runtime's own stream drops the readable tokens that follow, its decode the rest."""
    with Session(bundles()) as session:
        broken = [*session.encode("🙂")[:2], *session.encode("abc 🙂!")]
        assert session.decode(broken) == "\ufffdabc 🙂!"
        tokenizer = session.loaded.codec._tokenizer
        assert tokenizer.decode(broken) == "\ufffd"


def test_special_tokens_are_no_text(bundles: Bundles) -> None:
    with Session(bundles()) as session:
        assert session.decode(session.encode("<|im_start|>user\nhi<|im_end|>")) == "user\nhi"


def byte_decoder(ids: Any) -> str:
    """A tokenizer whose tokens are bytes, decoding as the runtime does: up to a broken one."""
    text = bytes(ids).decode("utf-8", "replace")
    return text.partition("\ufffd")[0] + ("\ufffd" if "\ufffd" in text else "")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("é🙂日".encode(), "é🙂日"),
        (b"\xf0\x9f\x99ok", "\ufffdok"),
        (b"\xc3\xc3\xa9", "\ufffdé"),
        (b"a\xffb", "a\ufffdb"),
        (b"\x80\x80x", "\ufffdx"),
    ],
)
def test_pieces_join_to_what_the_bytes_say(data: bytes, text: str) -> None:
    """Expected by the rules of UTF-8; one mark for a run of bytes that make no character."""
    decoder = TextDecoder(byte_decoder)
    pieces = [decoder.push(byte) for byte in data]
    assert "".join([*pieces, decoder.flush()]) == text


def test_one_leading_space_is_stripped_from_an_answer_and_not_from_a_continuation() -> None:
    words = {1: " the", 2: " cat"}
    for strip, text in ((True, "the cat"), (False, " the cat")):
        decoder = TextDecoder(lambda ids: "".join(words[i] for i in ids), strip_space=strip)
        assert decoder.push(1) + decoder.push(2) + decoder.flush() == text


# Search options


def test_what_is_not_given_comes_from_the_bundle() -> None:
    """W#1053: the bundle's search values are the defaults."""
    set_by_us = SearchOptions().effective({"temperature": 0.6, "do_sample": True}, 100)
    assert set_by_us == {"num_beams": 1, "num_return_sequences": 1}


@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({"temperature": 0.5}, {"do_sample": True, "temperature": 0.5}),
        ({"top_k": 5}, {"do_sample": True, "top_k": 5}),
        ({"top_p": 0.9}, {"do_sample": True, "top_p": 0.9}),
        ({"seed": 0}, {"do_sample": True, "random_seed": 0}),
        ({"greedy": True}, {"do_sample": False}),
        ({"temperature": 0}, {"do_sample": False, "temperature": 0.0}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"greedy": True, "temperature": 0}, {"do_sample": False, "temperature": 0.0}),
        ({"temperature": 0, "seed": 3}, {"do_sample": False, "temperature": 0.0, "random_seed": 3}),
        ({"top_k": 1000}, {"do_sample": True, "top_k": 100}),
    ],
)
def test_asking_for_randomness_turns_sampling_on(
    options: dict[str, Any], sampling: dict[str, Any]
) -> None:
    one = {"num_beams": 1, "num_return_sequences": 1}
    assert SearchOptions(**options).effective({}, 100) == {**one, **sampling}


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"seed": 2**31},
        {"seed": 1.5},
        {"seed": True},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.01},
        {"repetition_penalty": 0},
        {"repetition_penalty": -1},
        {"max_new_tokens": 0},
        {"max_new_tokens": -5},
        {"greedy": True, "temperature": 0.5},
        {"greedy": True, "seed": 1},
        {"greedy": True, "top_k": 1},
        {"greedy": True, "top_p": 0.5},
    ],
)
def test_options_out_of_range_or_at_odds_are_wrong_usage(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        SearchOptions(**options)
    assert any(name in str(caught.value) for name in options)


def test_a_seed_counts_only_where_tokens_are_drawn() -> None:
    assert SearchOptions(seed=3).is_seeded({})
    assert SearchOptions().is_seeded({"do_sample": True, "random_seed": 7})
    assert not SearchOptions().is_seeded({"do_sample": True})
    assert not SearchOptions().is_seeded({"do_sample": False, "random_seed": 7})
    assert not SearchOptions(temperature=0, seed=3).is_seeded({})


def test_the_runtime_starts_from_the_search_section_of_the_bundle(bundles: Bundles) -> None:
    """What this project does not set stays as the bundle says: seen in the runtime itself."""
    import onnxruntime_genai as og

    path = bundles(change=lambda config: config["search"].update(temperature=0.25, top_k=7))
    params = og.GeneratorParams(og.Model(str(path)))
    params.set_search_options(max_length=20, **SearchOptions().effective({}, None))
    found = params.get_search_options()
    assert found["temperature"] == 0.25
    assert found["top_k"] == 7


def test_token_ids_are_checked_before_the_runtime_sees_them(bundles: Bundles) -> None:
    with Session(bundles()) as session:
        for ids in ([320], [-1]):
            with pytest.raises(UsageError, match="out of range"):
                session.request(ids)
        with pytest.raises(UsageError, match="empty"):
            session.request([])
        assert session.request([5, 6]).token_ids == [5, 6]


def test_the_files_of_a_tokenizer_elsewhere_are_found(bundles: Bundles, tmp_path: Path) -> None:
    """`model.tokenizer_dir` names a folder of the bundle."""
    path = bundles(change=lambda config: config["model"].update(tokenizer_dir="words"))
    (path / "words").mkdir()
    for name in ("tokenizer.json", TOKENIZER):
        (path / name).rename(path / "words" / name)
    edit_json(path / "words" / TOKENIZER, lambda config: config.update(add_bos_token=True))
    with Session(path) as session:
        assert session.encode("the cat")[0] == 0
