"""The vocabulary of a GGUF file: tokens, their types, and the ids that mean something."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from turnout.errors import GgufError

if TYPE_CHECKING:
    from turnout.building.gguf import GgufFile

MAX_TOKENS = 1 << 20  # four times the largest vocabulary in use
MAX_TOKEN_CHARS = 1024  # the longest in use are runs of 128 to 512 spaces or dashes
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"

# Texts by which llama.cpp knows the end of a turn when the file does not name its id. Its own
# list has more; these are the ones that are nothing else in any family.
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>")
_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as in llama.cpp's `llama_token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Recognized inside a text, before it is split into words.
MATCHED_IN_TEXT = frozenset({TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED})


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, `types` as `TokenType` numbers, and the ids that the file names.

    `eos_ids` begins with the file's end token and goes on with its ends of turns.
    """

    tokens: list[str]
    types: list[int]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    unknown_id: int | None
    pad_id: int | None
    chat_template: str | None

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids by token."""
        return {token: index for index, token in enumerate(self.tokens)}

    def added(self, index: int) -> bool:
        """Whether token `index` is recognized inside a text."""
        return self.types[index] in MATCHED_IN_TEXT

    def added_tokens(self) -> Iterator[dict[str, Any]]:
        """The `added_tokens` of a tokenizer.json."""
        for index, kind in enumerate(self.types):
            if kind in MATCHED_IN_TEXT:
                yield {
                    "id": index,
                    "content": self.tokens[index],
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": kind != TokenType.USER_DEFINED,
                }


def read_vocabulary(gguf: GgufFile, defaults: dict[str, int]) -> Vocabulary:
    """The vocabulary of `gguf`, checked against itself.

    `defaults` are ids ("bos", "eos", "unknown") that the kind of tokenizer has when the file
    does not name them, taken where such a token is no ordinary one. Raises `GgufError`.
    """
    tokens = gguf.strings(TOKENS)
    types = gguf.integers(TYPES)
    _check(gguf, tokens, types)
    template = gguf.text("tokenizer.chat_template", None)
    if template is not None and "\0" in template:
        # The runtime takes texts up to their first NUL, and would drop the rest of it in silence.
        raise gguf.wrong("tokenizer.chat_template", "a NUL character", "text without one")

    def named(name: str) -> int | None:
        return _named_id(gguf, name, types, defaults)

    ends = [index for name in ("eos", "eot", "eom") if (index := named(name)) is not None]
    ends += _ends_of_turns(tokens, template)
    if not ends:
        raise GgufError(
            f"{gguf.path.name} names no token that ends an answer.",
            expected="tokenizer.ggml.eos_token_id",
            where=gguf.path,
            fix="the file was converted by a faulty tool; get another one",
        )
    bos = named("bos")
    for index in (*ends, *(() if bos is None else (bos,))):
        # Some converters leave them NORMAL; then they would be spelled out letter by letter.
        if types[index] == TokenType.NORMAL and _MARKER.fullmatch(tokens[index]):
            types[index] = TokenType.CONTROL
    return Vocabulary(
        tokens=tokens,
        types=types,
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(ends)),
        unknown_id=named("unknown"),
        pad_id=named("padding"),
        chat_template=template,
    )


def _check(gguf: GgufFile, tokens: list[str], types: list[int]) -> None:
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise gguf.wrong(TOKENS, f"{len(tokens)} tokens", f"a list of 1 to {MAX_TOKENS} tokens")
    if len(types) != len(tokens):
        raise gguf.wrong(TYPES, f"{len(types)} types", f"a list of {len(tokens)}, one a token")
    unknown = next((i for i, kind in enumerate(types) if not 1 <= kind <= 6), None)
    if unknown is not None:
        raise gguf.wrong(TYPES, f"{types[unknown]} for token {unknown}", "a list of types 1 to 6")
    seen: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if len(token) > MAX_TOKEN_CHARS:
            found = f"{len(token)} characters in token {index}"
            raise gguf.wrong(TOKENS, found, f"a list of tokens of {MAX_TOKEN_CHARS} or fewer")
        first = seen.setdefault(token, index)
        if first != index:
            found = f"tokens {first} and {index} are both {token!r}"
            raise gguf.wrong(TOKENS, found, "a list without repetitions")
        if not token and types[index] in MATCHED_IN_TEXT:
            raise gguf.wrong(TOKENS, f"token {index} is empty", "a list of texts")


def _named_id(gguf: GgufFile, name: str, types: list[int], defaults: dict[str, int]) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    index = gguf.integer(key, None)
    if index is None:
        default = defaults.get(name)
        usable = default is not None and default < len(types)
        return default if usable and types[default or 0] in MATCHED_IN_TEXT else None
    if not 0 <= index < len(types):
        raise gguf.wrong(key, index, f"an id from 0 to {len(types) - 1}")
    return index


def _ends_of_turns(tokens: list[str], template: str | None) -> list[int]:
    texts = [text for text in END_OF_TURN if template is not None and text in template]
    return [tokens.index(text) for text in texts if text in tokens]


def unused_id(vocabulary: Vocabulary, encodable: set[str], impossible: list[str]) -> int | None:
    """An id that no prompt contains, for padding; None if every id may be needed.

    Of these, the first that there is: the last token that the file calls unused and that no
    text is encoded to (`encodable` has the tokens that merges make); a byte that no UTF-8
    text has (`impossible`, the most improbable first); the last control token that is neither
    named by the file nor written in the chat template. Only the last could be typed by a user.
    """
    ids, types, tokens = vocabulary.ids, vocabulary.types, vocabulary.tokens
    template = vocabulary.chat_template or ""
    named = {vocabulary.bos_id, vocabulary.unknown_id, vocabulary.pad_id, *vocabulary.eos_ids}
    backwards = [index for index in reversed(range(len(types))) if index not in named]
    unused = (
        index
        for index in backwards
        if types[index] == TokenType.UNUSED
        and tokens[index] not in encodable
        and _spans_words(tokens[index])
    )
    never = (
        ids[token]
        for token in impossible
        if token in ids and token not in encodable and ids[token] not in named
    )
    control = (
        index
        for index in backwards
        if types[index] == TokenType.CONTROL and tokens[index] not in template
    )
    return next(itertools.chain(unused, never, control), None)


def _spans_words(token: str) -> bool:
    """Whether every pre-tokenizer splits `token`, so that no single word is spelled like it."""
    return re.search(r"[A-Za-z][!-@\[-`{-~]|[0-9][!-/:-~]", token) is not None
