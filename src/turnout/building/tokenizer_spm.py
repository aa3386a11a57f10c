"""SentencePiece BPE (`tokenizer.ggml.model` = "llama") as a tokenizer.json.

llama.cpp joins, over the whole text, the neighbours whose joint piece has the highest score.
A tokenizer.json has merges with ranks instead: each way to cut a piece in two pieces is a
merge, and the pieces are in the order of their scores, so that the same pair wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnout.building.tokenizer_vocabulary import TOKENS, TokenType, Vocabulary, unused_id
from turnout.errors import UnsupportedModelError

if TYPE_CHECKING:
    from turnout.building.gguf import GgufFile

SCORES = "tokenizer.ggml.scores"
SPACE = "\u2581"  # how SentencePiece writes a space
# llama.cpp's, for files that name none.
DEFAULT_IDS = {"unknown": 0, "bos": 1, "eos": 2}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
# Bytes that no UTF-8 text has.
_IMPOSSIBLE = [BYTE_TOKENS[byte] for byte in (*range(0xFF, 0xF4, -1), 0xC1, 0xC0)]
# Pieces that a text is never joined to: the first two are recognized before, bytes are not text.
_NEVER_JOINED = {TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE}


def tokenizer_document(
    gguf: GgufFile, vocabulary: Vocabulary, *, adds_space: bool
) -> dict[str, Any]:
    """The tokenizer.json of a SentencePiece BPE with byte fallback.

    Raises `GgufError` for scores that do not fit, `UnsupportedModelError` without bytes.
    """
    missing = [token for token in BYTE_TOKENS if token not in vocabulary.ids]
    if missing:
        raise UnsupportedModelError(
            f"The SentencePiece vocabulary of {gguf.path.name} has no byte fallback.",
            found=f"no token for {len(missing)} of 256 bytes, such as {missing[0]}",
            expected="the tokens <0x00> to <0xFF>",
            where=f"{gguf.path}, metadata key {TOKENS!r}",
        )
    unknown = vocabulary.unknown_id
    to_pieces: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    ]
    to_text: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_space:
        to_pieces.insert(0, {"type": "Prepend", "prepend": SPACE})
        to_text.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(vocabulary.added_tokens()),
        "normalizer": {"type": "Sequence", "normalizers": to_pieces},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": to_text},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else vocabulary.tokens[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary.ids,
            "merges": merges_by_score(vocabulary, read_scores(gguf, vocabulary)),
        },
    }


def read_scores(gguf: GgufFile, vocabulary: Vocabulary) -> list[float]:
    """One score a token. Raises `GgufError`."""
    scores = gguf.numbers(SCORES)
    if len(scores) != len(vocabulary.tokens):
        expected = f"a list of {len(vocabulary.tokens)}, one a token"
        raise gguf.wrong(SCORES, f"{len(scores)} scores", expected)
    return scores


def merges_by_score(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two pieces, the highest score first, then the lowest id."""
    ids, tokens = vocabulary.ids, vocabulary.tokens
    joined = [
        index
        for index, kind in enumerate(vocabulary.types)
        if kind not in _NEVER_JOINED and len(tokens[index]) > 1
    ]
    joined.sort(key=lambda index: -scores[index])
    merges = []
    for index in joined:
        token = tokens[index]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                merges.append((left, right))
    return merges


def find_unused_id(vocabulary: Vocabulary, document: dict[str, Any]) -> int | None:
    """An id that no prompt contains; see `unused_id`."""
    encodable = {left + right for left, right in document["model"]["merges"]}
    return unused_id(vocabulary, encodable, _IMPOSSIBLE)
