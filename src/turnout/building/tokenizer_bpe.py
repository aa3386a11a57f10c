"""Byte-level BPE (`tokenizer.ggml.model` = "gpt2") as a tokenizer.json.

onnxruntime-extensions, which onnxruntime-genai encodes with, takes the `Split` steps of a
`Sequence`, each isolating what its expression matches, but it has no engine for Unicode
classes: it knows a list of sub-expressions by their spelling, and hands all others to
`std::regex` over bytes, where they fail or match something else. So every step here is made
of sub-expressions from that list. docs/tokenizers.md says what was tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnout.building.tokenizer_vocabulary import TokenType, Vocabulary, unused_id
from turnout.errors import UnsupportedModelError

if TYPE_CHECKING:
    from turnout.building.gguf import GgufFile

MERGES, PRE = "tokenizer.ggml.merges", "tokenizer.ggml.pre"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How a text is cut into words: expressions applied one after another.

    `adds_bos` is llama.cpp's default for files that do not say; `ignores_merges` says that a
    word which is a token is that token, whatever the merges make of it.
    """

    steps: tuple[str, ...]
    adds_bos: bool = False
    ignores_merges: bool = False


# The expressions of llama.cpp's `llm_tokenizer_bpe`, those of `default` rewritten (below).
PRE_TOKENIZERS = {
    "llama-bpe": PreTokenizer((_LLAMA3,), adds_bos=True, ignores_merges=True),
    "qwen2": PreTokenizer((_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    # llama.cpp: [\p{P}\$\+<=>\^~\|]+, then GPT-2's, then \p{N}+, then [0-9][0-9][0-9]. There is
    # no class for punctuation alone, so the first step isolates other symbols as well, and
    # digits in other scripts come in threes, too. The third step leaves digits unmatched, which
    # parts them from the space before them.
    "default": PreTokenizer(
        (
            r"[^\s\p{L}\p{N}]+",
            _GPT2,
            r"[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"\p{N}{1,3}",
        )
    ),
}
# Names for which llama.cpp does exactly the same.
ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
}


def _byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte: itself, or one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_ALPHABET = _byte_alphabet()
_ALPHABET = frozenset(BYTE_ALPHABET)
# Bytes that no UTF-8 text has.
_IMPOSSIBLE = [BYTE_ALPHABET[byte] for byte in (*range(0xFF, 0xF4, -1), 0xC1, 0xC0)]


def pre_tokenizer_name(gguf: GgufFile) -> str:
    """The canonical name of the file's pre-tokenizer. Raises `UnsupportedModelError`."""
    name = gguf.text(PRE, None)
    canonical = ALIASES.get(name or "", name)
    if canonical in PRE_TOKENIZERS:
        return canonical
    raise UnsupportedModelError(
        f"The pre-tokenizer of {gguf.path.name} is not supported.",
        found="none: a file older than these names" if name is None else repr(name),
        expected="one of " + ", ".join(sorted({*PRE_TOKENIZERS, *ALIASES})),
        where=f"{gguf.path}, metadata key {PRE!r}",
        fix="convert the model again with a current llama.cpp" if name is None else None,
    )


def tokenizer_document(gguf: GgufFile, vocabulary: Vocabulary, pre: str) -> dict[str, Any]:
    """The tokenizer.json of a byte-level BPE. Raises `GgufError` for impossible merges."""
    kind = PRE_TOKENIZERS[pre]
    split = [
        {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False}
        for step in kind.steps
    ]
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(vocabulary.added_tokens()),
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*split, {**as_bytes, "use_regex": False}],
        },
        "post_processor": None,
        "decoder": {**as_bytes, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": kind.ignores_merges,
            "vocab": _vocab(vocabulary),
            "merges": read_merges(gguf, vocabulary),
        },
    }


def read_merges(gguf: GgufFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The pairs of `tokenizer.ggml.merges`, in order. Raises `GgufError`."""
    ids, merges = vocabulary.ids, []
    for index, line in enumerate(gguf.strings(MERGES)):
        # From 1 on, as llama.cpp: a token may begin with a space, but not be empty.
        cut = line.find(" ", 1)
        left, right = line[:cut], line[cut + 1 :]
        if cut < 0 or left not in ids or right not in ids or left + right not in ids:
            found = f"{line!r} at index {index}"
            raise gguf.wrong(MERGES, found, "a list of pairs of tokens that make a token")
        merges.append((left, right))
    return merges


def find_unused_id(vocabulary: Vocabulary, document: dict[str, Any]) -> int | None:
    """An id that no prompt contains; see `unused_id`."""
    encodable = {left + right for left, right in document["model"]["merges"]}
    return unused_id(vocabulary, encodable, _IMPOSSIBLE)


def _vocab(vocabulary: Vocabulary) -> dict[str, int]:
    vocab = {
        token if vocabulary.added(index) else _spelled(token, vocabulary): index
        for index, token in enumerate(vocabulary.tokens)
    }
    unknown = vocabulary.unknown_id
    if unknown is not None and vocabulary.types[unknown] in {TokenType.CONTROL, TokenType.UNKNOWN}:
        # Without a token a byte would be encoded as -1, which no embedding has.
        for character in BYTE_ALPHABET:
            vocab.setdefault(character, unknown)
    return vocab


def _spelled(token: str, vocabulary: Vocabulary) -> str:
    """`token` in the alphabet of bytes, since the runtime decodes nothing else ("map::at")."""
    if _ALPHABET.issuperset(token):
        return token
    spelled = "".join(BYTE_ALPHABET[byte] for byte in token.encode("utf-8"))
    return token if spelled in vocabulary.ids else spelled
