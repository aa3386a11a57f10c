"""The ids of a tokenizer, read from the parts of `tokenizer.json` that hold them.

These files are up to 35 MB long, and half of that are merges: they are not parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.bundle.tokenizer import MAX_BYTES

_MODEL = re.compile(r'"model"\s*:\s*\{')
_VOCABULARY = re.compile(r'"vocab"\s*:\s*(?=[{\[])')
_ADDED = re.compile(r'"added_tokens"\s*:\s*(?=\[)')
_TYPE = re.compile(r'"type"\s*:\s*"(\w{1,40})"')


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and ids. `kind` is the model's (`BPE`, `Unigram`, ...), "" where it is left
    out; `pieces` are those of the model, `added` those beside it.
    """

    kind: str
    pieces: Mapping[str, int]
    added: Mapping[str, int]

    def find(self, text: str) -> int | None:
        """The id of that token, None if there is none."""
        return self.added.get(text, self.pieces.get(text))


def read_vocabulary(path: Path) -> Vocabulary:
    """The ids in the `tokenizer.json` at `path`.

    Raises `ValueError` saying what is wrong with the text, or `OSError`.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    text = data.decode("utf-8-sig")
    if text.strip()[:1] != "{" or text.rstrip()[-1:] != "}":
        raise ValueError("the text is no whole JSON object" if text.strip() else "no text")
    model = _MODEL.search(text)
    if model is None:
        raise ValueError("it has no model")
    pieces, start = _after(_VOCABULARY, text, model.end())
    added, _ = _after(_ADDED, text, 0)
    kind = _TYPE.search(text, model.end(), start)
    return Vocabulary(kind.group(1) if kind else "", _pieces(pieces), _added(added))


def _after(pattern: re.Pattern[str], text: str, start: int) -> tuple[Any, int]:
    """The JSON value after the key that `pattern` finds, and where the key is."""
    found = pattern.search(text, start)
    if found is None:
        return None, len(text)
    try:
        value, _ = json.JSONDecoder().raw_decode(text, found.end())
    except RecursionError as error:
        raise ValueError("too deep a nesting") from error
    return value, found.start()


def _pieces(value: Any) -> dict[str, int]:
    if isinstance(value, dict):
        return {text: number for text, number in value.items() if type(number) is int}
    if isinstance(value, list):  # of pairs of text and score; the id is the place
        return {
            item[0]: index
            for index, item in enumerate(value)
            if isinstance(item, list) and item and isinstance(item[0], str)
        }
    return {}


def _added(value: Any) -> dict[str, int]:
    items = value if isinstance(value, list) else []
    return {
        item["content"]: item["id"]
        for item in items
        if isinstance(item, dict)
        and isinstance(item.get("content"), str)
        and type(item.get("id")) is int
    }
