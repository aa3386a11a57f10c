"""What is in a `tokenizer.json`: ids, and values that the runtime does not take.

These files are up to 36 MB long. One of that size is parsed in less than a second, and by this
alone is it known to be whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from turnout.bundle.tokenizer import MAX_BYTES, no_json
from turnout.checking.tokenizer_values import flaws_of

_MOST_FLAWS = 4
_SHOWN = 60


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and ids. `kind` is the model's (`BPE`, `Unigram`, ...), "" where it is left
    out; `pieces` are those of the model, `added` those beside it. `flaws` are values that the
    runtime does not take, `rest` is what follows the document.
    """

    kind: str
    pieces: Mapping[str, int]
    added: Mapping[str, int]
    flaws: tuple[str, ...] = ()
    rest: str = ""

    def find(self, text: str) -> int | None:
        """The id of that token, None if there is none."""
        return self.added.get(text, self.pieces.get(text))


def read_vocabulary(path: Path) -> Vocabulary:
    """What is in the `tokenizer.json` at `path`.

    Raises `ValueError` saying what is wrong with the text, or `OSError`.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    text = data.decode("utf-8-sig").lstrip(" \t\r\n")
    if not text:
        raise ValueError("no text")
    try:
        document, end = json.JSONDecoder(parse_constant=no_json).raw_decode(text)
    except RecursionError as error:
        raise ValueError("too deep a nesting") from error
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict):
        raise ValueError("it has no model")  # noqa: TRY004 - said of the file, not of an argument
    kind = model.get("type")
    return Vocabulary(
        kind if isinstance(kind, str) else "",
        _pieces(model.get("vocab")),
        _added(document.get("added_tokens")),
        tuple(islice(flaws_of(document), _MOST_FLAWS)),
        text[end:].strip()[:_SHOWN],
    )


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
