"""Charts of durations: TTFT and the time of a token, over time and spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from turnout.perf import wording
from turnout.perf.page.marks import (
    DRAWN,
    MARGIN,
    colour,
    dash,
    marks,
    rounded,
    trace,
    unit_of,
    xy,
)
from turnout.perf.page.parts import Chart
from turnout.perf.page.series import BINS, Point, sampled, spread, token_points, ttft_points
from turnout.perf.report import Report, RouteReport

# The axis ends here, times the largest 99th percentile of a route, where values go far beyond.
ROOM = 1.5

_Points = Callable[[RouteReport, int], list[Point]]


def of_workload(report: Report, workload: int) -> list[Chart]:
    """TTFT and time a token over time, and how both are spread."""
    return [
        chart
        for make in (_ttft_over_time, _ttft_spread, _tokens_over_time, _tokens_spread)
        if (chart := make(report, workload)) is not None
    ]


def _ttft_over_time(report: Report, workload: int) -> Chart | None:
    chart = _over_time(report, workload, ttft_points)
    if chart is None:
        return None
    data, factor, unit, notes = chart
    return Chart(
        "Time to first token, request by request",
        _in_words(report, workload, ttft_points, "requests"),
        data,
        {
            "xaxis": {"title": "round", "dtick": 1 if _rounds(report) <= 12 else None},
            "yaxis": _duration_axis(report, workload, ttft_points, factor, unit),
        },
        note=notes,
        workload=workload,
    )


def _tokens_over_time(report: Report, workload: int) -> Chart | None:
    chart = _over_time(report, workload, token_points)
    if chart is None:
        return None
    data, factor, unit, notes = chart
    return Chart(
        "Time of each token after the first",
        _in_words(report, workload, token_points, "tokens"),
        data,
        {
            "xaxis": {"title": "seconds since the start"},
            "yaxis": _duration_axis(report, workload, token_points, factor, unit),
        },
        note=notes,
        workload=workload,
    )


def _over_time(
    report: Report, workload: int, points_of: _Points
) -> tuple[list[dict[str, Any]], float, str, str] | None:
    """Traces, the factor from seconds to the unit, the unit, and what was left out."""
    series = [points_of(route, workload) for route in report.routes]
    values = [y for points in series for _, y in points]
    if not values:
        return None
    factor, unit = unit_of(values)
    limit = max(DRAWN // len([points for points in series if points]), 20)
    data = []
    for index, points in enumerate(series):
        few = sampled(points, limit)
        if few:
            xs, ys = [x for x, _ in few], [y * factor for _, y in few]
            data.append({**trace(report, index), **marks(index, len(few)), **xy(xs, ys, unit)})
    notes = [_sampled_note(max(map(len, series)), limit), _beyond_note(values, _top(series))]
    return data, factor, unit, " ".join(note for note in notes if note)


def _ttft_spread(report: Report, workload: int) -> Chart | None:
    series = [ttft_points(route, workload) for route in report.routes]
    values = [y for points in series for _, y in points]
    if len(values) < 2:
        return None
    factor, unit = unit_of(values)
    data = [
        {
            **trace(report, index),
            "type": "box",
            "orientation": "h",
            "x": rounded(y * factor for _, y in points),
            "boxpoints": "all",
            "pointpos": 0,
            "jitter": 0.5,
            "line": {"color": colour(index), "width": 1.5},
            "fillcolor": f"{colour(index)}/0.15",
            "marker": {"color": colour(index), "size": 4, "opacity": 0.7},
            "hoveron": "points+boxes",
        }
        for index, points in enumerate(series)
        if points
    ]
    return Chart(
        "Time to first token, spread",
        _in_words(report, workload, ttft_points, "requests"),
        data,
        {
            "xaxis": {"title": unit},
            "margin": {**MARGIN, "l": 12},
            "yaxis": {"autorange": "reversed", "showticklabels": False, "showgrid": False},
        },
        note="Box: the middle half of the requests, and the median. Points: the requests.",
        workload=workload,
        height=110 + 46 * len(data),
    )


def _tokens_spread(report: Report, workload: int) -> Chart | None:
    series = [[y for _, y in token_points(route, workload)] for route in report.routes]
    found = spread(series)
    if found is None or max(map(len, series)) < 2:
        return None
    factor, unit = unit_of(found.edges)
    edges = rounded(edge * factor for edge in found.edges)
    data = [
        {
            **trace(report, index),
            "mode": "lines",
            "line": {"shape": "hv", "color": colour(index), "width": 1.5, "dash": dash(index)},
            "fill": "tozeroy",
            "fillcolor": f"{colour(index)}/0.15",
            "x": edges,
            "y": [*rounded(shares), rounded(shares)[-1]],
            "hovertemplate": f"%{{x:.4~g}} {unit}: %{{y:.1f}}%<extra>%{{fullData.name}}</extra>",
        }
        for index, shares in enumerate(found.shares)
        if series[index]
    ]
    beyond = [
        f"{count:,} of {len(series[index]):,} tokens of {report.routes[index].name}"
        for index, count in enumerate(found.beyond)
        if count
    ]
    return Chart(
        "Time of each token after the first, spread",
        _in_words(report, workload, token_points, "tokens"),
        data,
        {
            "xaxis": _decades(edges, unit) if found.logarithmic else {"title": unit},
            "yaxis": {"title": f"% of tokens, in {BINS} bins", "rangemode": "tozero"},
        },
        note=f"Slower than the right edge: {', '.join(beyond)}." if beyond else "",
        workload=workload,
    )


def _decades(edges: Sequence[float | None], unit: str) -> dict[str, Any]:
    """A logarithmic axis that says so: numbers at 1, 2 and 5 of each power of ten, marks at all."""
    low, high = (math.floor(math.log10(edges[end] or 1)) for end in (0, -1))
    marked = [
        (factor, tick)
        for power in range(low, high + 1)
        for factor in range(1, 10)
        if math.isfinite(tick := float(f"{factor}e{power}"))
    ]
    ticks = [tick for factor, tick in marked if factor in (1, 2, 5)]
    return {
        "title": f"{unit}, logarithmic",
        "type": "log",
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
        "minor": {
            "tickvals": [tick for _, tick in marked],
            "ticks": "outside",
            "tickcolor": "@quiet",
        },
    }


def _duration_axis(
    report: Report, workload: int, points_of: _Points, factor: float, unit: str
) -> dict[str, Any]:
    series = [points_of(route, workload) for route in report.routes]
    top = _top(series)
    end = {"range": [0, top * factor]} if top is not None and math.isfinite(top * factor) else {}
    return {"title": unit, "rangemode": "tozero", **end}


def _top(series: Sequence[Sequence[Point]]) -> float | None:
    """Where the axis ends, in seconds, where a few values would leave no room for the others."""
    ordered = [sorted(y for _, y in points) for points in series if points]
    common = max(values[math.ceil(0.99 * (len(values) - 1))] for values in ordered)
    return ROOM * common if max(values[-1] for values in ordered) > 2 * ROOM * common else None


def _sampled_note(most: int, limit: int) -> str:
    if most <= limit:
        return ""
    return (
        f"At most {limit:,} points of a route are drawn, of up to {most:,}: one of each run of"
        " neighbours, and the slowest. Statistics are of all."
    )


def _beyond_note(values: Sequence[float], top: float | None) -> str:
    if top is None:
        return ""
    beyond = sum(value > top for value in values)
    slowest = wording.seconds(max(values))
    return f"{beyond:,} above the upper edge, the slowest {slowest}; a double click shows all."


def _rounds(report: Report) -> int:
    return max((r.round + 1 for route in report.routes for r in route.requests), default=0)


def _in_words(report: Report, workload: int, points_of: _Points, what: str) -> str:
    said = []
    for route in report.routes:
        values = [y for _, y in points_of(route, workload)]
        if values:
            ends = f"{wording.seconds(min(values))} to {wording.seconds(max(values))}"
            middle = wording.seconds(median(values))
            said.append(f"{route.name}: median {middle} of {len(values)} {what}, {ends}")
    return "; ".join(said) + "."
