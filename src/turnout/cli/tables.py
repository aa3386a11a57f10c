"""Columns of plain text, and how sizes, times and ages read in them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The head and the rows, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = zip(row, widths, strict=True)
        yield "  ".join(f"{cell:{width}}" for cell, width in cells).rstrip()


def size(nbytes: int) -> str:
    """Bytes for people: MB, and kB below one."""
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.1f} kB"


def seconds(value: float | None) -> str:
    """Seconds for people, "-" for None."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def age(created: float) -> str:
    """How long ago that was, `created` in seconds since 1970; a clock set back makes it now."""
    passed = time.time() - created
    for length, unit in _UNITS:
        if passed >= length:
            return f"{passed / length:.0f} {unit}"
    return "now"
