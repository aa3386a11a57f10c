"""A unified diff of two configs, in time that does not explode."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig

CONTEXT = 2
# A line longer than this says little when it is shown twice: the documents are laid out first.
_LONG = 400
# Comparing takes time by the product of both lengths, when little is alike.
_MOST = 2000


def unified(before: GenaiConfig, after: GenaiConfig, *, context: int = CONTEXT) -> list[str]:
    """The lines of a unified diff, without line ends; none where nothing differs.

    A config in one long line is compared as it would be laid out.
    """
    if before.text == after.text:
        return []
    names = ("genai_config.json", "effective")
    texts = [before.text, after.text]
    if any(len(line) > _LONG for text in texts for line in text.splitlines()):
        texts = [
            json.dumps(config.document, indent=2, ensure_ascii=False) for config in (before, after)
        ]
        names = (f"{names[0]} (laid out)", f"{names[1]} (laid out)")
    old, new = (text.splitlines() for text in texts)
    start = _alike(old, new)
    end = _alike(old[start:][::-1], new[start:][::-1])
    first = max(start - context, 0)
    kept = max(end - context, 0)
    shift = old[first : len(old) - kept], new[first : len(new) - kept]
    if max(map(len, shift)) > _MOST:
        head = [f"--- {names[0]}", f"+++ {names[1]}"]
        return [*head, *_whole(*shift, first, before=start - first, behind=end - kept)]
    lines = difflib.unified_diff(*shift, *names, n=context, lineterm="")
    return [_moved(line, first) for line in lines]


def _alike(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return number
    return min(len(one), len(other))


def _whole(old: list[str], new: list[str], first: int, *, before: int, behind: int) -> list[str]:
    """One hunk that takes all lines out and puts all in, but for the context around them."""
    out, into = old[before : len(old) - behind], new[before : len(new) - behind]
    return [
        f"@@ -{first + 1},{len(old)} +{first + 1},{len(new)} @@",
        *(f" {line}" for line in old[:before]),
        *(f"-{line}" for line in out),
        *(f"+{line}" for line in into),
        *(f" {line}" for line in old[len(old) - behind :]),
    ]


def _moved(line: str, by: int) -> str:
    """A hunk's head with its line numbers in the whole file."""
    parts = line.split(" ")
    if parts[0] != "@@" or len(parts) != 4 or not by:
        return line
    ranges = []
    for part in parts[1:3]:
        number, comma, length = part[1:].partition(",")
        ranges.append(f"{part[0]}{int(number) + by}{comma}{length}")
    return " ".join(("@@", *ranges, "@@"))
