"""How charts draw routes: their colours, marks and units, the same in all charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from turnout.perf.page.series import labels
from turnout.perf.report import Report

COLOURS = 8
MARGIN = {"l": 48, "r": 12, "t": 8, "b": 42}  # pixels around a plot, as page.js has them
DRAWN = 6000  # points of a chart, all routes together: more are neither seen nor drawn quickly
LINES_UP_TO = 60  # points of a route that a line joins
_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "cross")


def colour(index: int) -> str:
    """The colour of the route of that index, by name."""
    return f"@c{index % COLOURS}"


def trace(report: Report, index: int) -> dict[str, Any]:
    """What every trace of a route says: its name, and which route it is."""
    return {"name": labels(report)[index], "meta": {"route": index}}


def marks(index: int, count: int) -> dict[str, Any]:
    """How points of a route are drawn: joined by a line where they are few."""
    joined = count <= LINES_UP_TO
    symbol = _SYMBOLS[index // COLOURS % len(_SYMBOLS)]
    return {
        "mode": "lines+markers" if joined else "markers",
        "line": {"color": colour(index), "width": 1.5, "dash": dash(index)},
        "marker": {
            "color": colour(index),
            "size": 6 if joined else 3.5,
            "opacity": 1 if joined else 0.55,
            "symbol": symbol,
        },
    }


def dash(index: int) -> str:
    """The kind of line, which tells routes of one colour apart."""
    return _DASHES[index // COLOURS % len(_DASHES)]


def xy(xs: Sequence[float], ys: Sequence[float], unit: str) -> dict[str, Any]:
    """Points, and what is said of the one under the pointer."""
    hover = f"%{{y:.4~g}} {unit}<extra>%{{fullData.name}}</extra>"
    return {"x": rounded(xs, 6), "y": rounded(ys), "hovertemplate": hover}


def rounded(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """To that many significant digits, which the screen does not show the lack of."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def unit_of(durations: Sequence[float]) -> tuple[float, str]:
    """The factor from seconds to a unit that fits the longest of them, and the unit."""
    return (1.0, "s") if max(durations) >= 1 else (1e3, "ms")


def thinned_note(most: int, limit: int) -> str:
    """How a chart was thinned; "" where no route has more points than the limit."""
    if most <= limit:
        return ""
    return (
        f"At most {limit:,} points of a route are drawn, of up to {most:,}: the lowest and the"
        " highest of each run of neighbours. Statistics are of all."
    )
