"""Whether prompts contain a bundle's padding token, by what its tokenizer files say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnout.bundle.tokenizer import MAX_BYTES
from turnout.checking.subject import Subject
from turnout.errors import TurnoutError
from turnout.files import is_file

_TOKENIZER = "tokenizer.json"
# How reserved and special tokens are written in vocabularies of every family.
_SPECIAL = re.compile(r"^(<.*>|\[.*\])$", re.DOTALL)
_MAX_DEPTH = 8


@dataclass(frozen=True)
class Judged:
    """Why prompts contain a token; `certain` where they do, else where they may."""

    why: str
    certain: bool


@dataclass(frozen=True)
class _Tokenizer:
    text: str | None
    added: bool
    affixed: bool
    template: str | None


def judge(subject: Subject, token: int, eos: list[int]) -> Judged | None:
    """Why prompts contain that token id, None where nothing says so.

    Without a `tokenizer.json` only the config can tell: the token that ends an answer stands in
    every conversation.
    """
    known = _read(subject, token)
    if known is None:
        ends = eos[:1] == [token]
        return Judged("which also ends answers", certain=False) if ends else None
    if known.text is None:
        return None  # no token has that id
    shown = repr(known.text[:60])
    if known.template is not None and _is_in(known, subject, token, eos):
        return Judged(f"{shown}, which the chat template writes", certain=True)
    if known.affixed:
        return Judged(f"{shown}, which the tokenizer adds to every prompt", certain=True)
    if not known.added and _is_ordinary(known.text):
        return Judged(f"the ordinary token {shown}", certain=False)
    return None


def _is_in(known: _Tokenizer, subject: Subject, token: int, eos: list[int]) -> bool:
    template, text = known.template or "", known.text or ""
    if known.added or _SPECIAL.match(text):
        if text in template:
            return True
        bos = subject.config.get(("model", "bos_token_id"))
        named = (("eos_token", token in eos[:1]), ("bos_token", bos == token))
        return any(name in template and same for name, same in named)
    return False


def _is_ordinary(text: str) -> bool:
    """Whether text can be encoded to that token: not to special ones, and not to lone bytes."""
    if _SPECIAL.match(text):
        return False
    letters = _byte_letters()
    if all(letter in letters for letter in text):
        try:
            return bool(bytes(letters[letter] for letter in text).decode("utf-8"))
        except UnicodeDecodeError:
            return False
    return True


def _byte_letters() -> dict[str, int]:
    """The byte of each letter by which byte-level vocabularies write one (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): b for n, b in enumerate(others)}


def _read(subject: Subject, token: int) -> _Tokenizer | None:
    if subject.bundle is None:
        return None
    try:
        path = subject.bundle.tokenizer_folder / _TOKENIZER
        within = path.relative_to(subject.bundle.path).as_posix()
        path = subject.bundle.file(within, what="tokenizer file")
        if not is_file(path) or path.stat().st_size > MAX_BYTES:
            return None
        document = json.loads(path.read_bytes())
    except (TurnoutError, OSError, ValueError, RecursionError):
        return None  # said by the checks of tokenizers
    if not isinstance(document, dict):
        return None
    try:
        template = subject.bundle.chat_template
    except (TurnoutError, OSError):
        template = None
    added = {item.get("id"): item.get("content") for item in _objects(document, "added_tokens")}
    text = added.get(token, _entry(document, token))
    return _Tokenizer(
        text=text if isinstance(text, str) and text else None,
        added=token in added,
        affixed=any(token in ids for ids in _affixes(document.get("post_processor"), 0)),
        template=template,
    )


def _objects(document: dict[str, Any], key: str) -> list[dict[Any, Any]]:
    found = document.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _entry(document: dict[str, Any], token: int) -> object:
    """The vocabulary's token of that id: a mapping of tokens to ids, or a list of pairs."""
    model = document.get("model")
    entries = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(entries, dict):
        return next((text for text, index in entries.items() if index == token), None)
    if isinstance(entries, list) and 0 <= token < len(entries):
        pair = entries[token]
        return pair[0] if isinstance(pair, list) and pair else None
    return None


def _affixes(processor: object, depth: int) -> Iterator[list[Any]]:
    """The ids of the special tokens that a post-processor puts around a text."""
    if not isinstance(processor, dict) or depth > _MAX_DEPTH:
        return
    single = json.dumps(processor.get("single")) if processor.get("single") else ""
    specials = processor.get("special_tokens")
    for name, special in specials.items() if isinstance(specials, dict) else ():
        ids = special.get("ids") if isinstance(special, dict) else None
        if isinstance(ids, list) and json.dumps(name) in single:
            yield ids
    inner = processor.get("processors")
    for item in inner if isinstance(inner, list) else ():
        yield from _affixes(item, depth + 1)
