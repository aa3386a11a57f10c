"""Writes a bundle's tokenizer files from the vocabulary that a GGUF file carries.

`tokenizer.json` and `tokenizer_config.json` (with the chat template) are all that
onnxruntime-genai needs beside `genai_config.json`; its own tokenizer encodes with them.

About the begin token: `og.Tokenizer.encode` adds no special token unless it is told to
(`update_options(add_special_tokens="true")`), so `add_bos_token` states the file's own wish
without changing what `encode` gives. Whoever generates must put `bos_id` in front of a prompt
when `adds_bos` says so and the prompt does not begin with it (chat templates often do).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.building import tokenizer_bpe, tokenizer_spm
from turnout.building.tokenizer_vocabulary import Vocabulary, read_vocabulary
from turnout.errors import UnsupportedModelError
from turnout.files import write_atomic

if TYPE_CHECKING:
    from turnout.building.gguf import GgufFile

TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
MODEL = "tokenizer.ggml.model"
KINDS = ("gpt2", "llama")


@dataclass(frozen=True)
class TokenizerFacts:
    """What the rest of a bundle must know about its tokenizer.

    `kind` is "gpt2" (byte-level BPE) or "llama" (SentencePiece), `pre` the canonical name of
    the pre-tokenizer (None for SentencePiece); `vocab_size` counts the tokens, which may be
    fewer than the rows of the embedding. `eos_ids` has one id or more, the file's end token
    first. `adds_bos` and `adds_eos` say what a prompt is to begin and end with; `adds_space`,
    that encoding puts a space in front, which decoding from the start gives back. `unused_id`
    is an id that no prompt contains (see `tokenizer_vocabulary.unused_id`), or None.
    """

    kind: str
    pre: str | None
    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    unknown_id: int | None
    unused_id: int | None
    adds_bos: bool
    adds_eos: bool
    adds_space: bool
    chat_template: str | None


def write_tokenizer(gguf: GgufFile, folder: Path) -> TokenizerFacts:
    """Write `tokenizer.json` and `tokenizer_config.json` into `folder`.

    The same file gives the same bytes. Raises `UnsupportedModelError` for a kind of tokenizer
    that is not handled, `GgufError` for metadata that contradicts itself, and `WriteError`.
    """
    import msgspec

    kind = gguf.text(MODEL)
    if kind not in KINDS:
        raise UnsupportedModelError(
            f"The tokenizer of {gguf.path.name} is of a kind that is not supported.",
            found=repr(kind),
            expected="gpt2 (byte-level BPE) or llama (SentencePiece)",
            where=f"{gguf.path}, metadata key {MODEL!r}",
        )
    vocabulary, document, facts = _byte_level(gguf) if kind == "gpt2" else _sentencepiece(gguf)
    write_atomic(folder / TOKENIZER_FILE, msgspec.json.encode(document) + b"\n")
    config = msgspec.json.format(msgspec.json.encode(_config(vocabulary, facts)), indent=2)
    write_atomic(folder / CONFIG_FILE, config + b"\n")
    return facts


def _byte_level(gguf: GgufFile) -> tuple[Vocabulary, dict[str, Any], TokenizerFacts]:
    pre = tokenizer_bpe.pre_tokenizer_name(gguf)
    vocabulary = read_vocabulary(gguf, {})
    document = tokenizer_bpe.tokenizer_document(gguf, vocabulary, pre)
    facts = TokenizerFacts(
        kind="gpt2",
        pre=pre,
        unused_id=tokenizer_bpe.find_unused_id(vocabulary, document),
        adds_bos=_adds_bos(gguf, vocabulary, tokenizer_bpe.PRE_TOKENIZERS[pre].adds_bos),
        adds_space=False,
        **_shared_facts(gguf, vocabulary),
    )
    return vocabulary, document, facts


def _sentencepiece(gguf: GgufFile) -> tuple[Vocabulary, dict[str, Any], TokenizerFacts]:
    vocabulary = read_vocabulary(gguf, tokenizer_spm.DEFAULT_IDS)
    adds_space = gguf.flag("tokenizer.ggml.add_space_prefix", True)
    document = tokenizer_spm.tokenizer_document(gguf, vocabulary, adds_space=adds_space)
    facts = TokenizerFacts(
        kind="llama",
        pre=None,
        unused_id=tokenizer_spm.find_unused_id(vocabulary, document),
        adds_bos=_adds_bos(gguf, vocabulary, True),
        adds_space=adds_space,
        **_shared_facts(gguf, vocabulary),
    )
    return vocabulary, document, facts


def _shared_facts(gguf: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "vocab_size": len(vocabulary.tokens),
        "bos_id": vocabulary.bos_id,
        "eos_ids": vocabulary.eos_ids,
        "pad_id": vocabulary.pad_id,
        "unknown_id": vocabulary.unknown_id,
        "adds_eos": gguf.flag("tokenizer.ggml.add_eos_token", False),
        "chat_template": vocabulary.chat_template,
    }


def _adds_bos(gguf: GgufFile, vocabulary: Vocabulary, default: bool) -> bool:
    key, bos = "tokenizer.ggml.add_bos_token", vocabulary.bos_id
    if not gguf.flag(key, default and bos is not None):
        return False
    if bos is None:
        raise gguf.wrong(key, "true, and no tokenizer.ggml.bos_token_id", "possible")
    if not vocabulary.added(bos):
        found = f"true, and the begin token {bos} is the ordinary {vocabulary.tokens[bos]!r}"
        raise gguf.wrong(key, found, "possible")
    return True


def _config(vocabulary: Vocabulary, facts: TokenizerFacts) -> dict[str, Any]:
    def token(index: int | None) -> str | None:
        return None if index is None else vocabulary.tokens[index]

    # onnxruntime-extensions chooses its algorithm by this name: over the whole text, as
    # SentencePiece needs it, for Gemma's alone.
    name = "GemmaTokenizer" if facts.kind == "llama" else "PreTrainedTokenizerFast"
    config = {
        "tokenizer_class": name,
        "add_bos_token": facts.adds_bos,
        "add_eos_token": facts.adds_eos,
        "bos_token": token(facts.bos_id),
        "eos_token": token(facts.eos_ids[0]),
        "pad_token": token(facts.pad_id),
        "unk_token": token(facts.unknown_id),
        "clean_up_tokenization_spaces": False,
        "chat_template": facts.chat_template,
    }
    # It does not take null for all of them.
    return {key: value for key, value in config.items() if value is not None}
