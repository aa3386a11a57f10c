"""Short forms for people: repeated tensor names folded, sizes, text made printable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.bundle.graph import ValueInfo

# A short one: names are untrusted, and Python refuses numbers of thousands of digits.
_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,8})(?![0-9])")


def fold(values: Iterable[ValueInfo]) -> list[tuple[str, str]]:
    """Rows of name and kind, in which names that differ in their first number are one row.

    `past.0.key`, `past.1.key`, `past.2.key` of one type and shape become `past.{0..2}.key`.
    """
    groups: dict[tuple[str, str, str], list[str]] = {}
    for value in values:
        match = _NUMBER.search(value.name)
        ends = (
            (value.name[: match.start()], value.name[match.end() :]) if match else (value.name, "")
        )
        groups.setdefault((*ends, kind(value)), []).append(match.group() if match else "")
    return [
        (f"{before}{_numbers(found)}{after}", kind)
        for (before, after, kind), found in groups.items()
    ]


def kind(value: ValueInfo) -> str:
    """Type and shape: `float32[1,3,*,64]`, `*` for a dimension that is free and unnamed."""
    if value.shape is None:
        return value.dtype
    shape = ",".join("*" if dim is None else str(dim) for dim in value.shape)
    return f"{value.dtype}[{shape}]"


def _numbers(found: list[str]) -> str:
    if len(found) == 1:
        return found[0]
    numbers = sorted({int(text) for text in found})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return "{" + ",".join("..".join(str(end) for end in run) for run in runs) + "}"


def size(nbytes: int) -> str:
    """Bytes in decimal units, as disks are sold: `512 B`, `1.5 MB`."""
    amount = float(nbytes)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 999.95 or (unit == "B" and amount < 1000):
            return f"{nbytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def printable(text: str) -> str:
    """`text` with control and unprintable characters as escapes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
