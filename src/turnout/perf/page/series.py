"""What charts draw, taken from a report: names, points, and how often each duration occurs."""

from __future__ import annotations

import html
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from turnout.perf import wording
from turnout.perf.report import Report, RouteReport

LONGEST_LABEL = 32
BINS = 60
# Up to this ratio of the longest duration to the shortest, bins are equally wide; beyond it, each
# is wider than the one before by the same factor.
LINEAR_UP_TO = 6.0

GOLDEN = 0.6180339887498949  # multiples of it are spread evenly between whole numbers

Point = tuple[float, float]


def labels(report: Report) -> list[str]:
    """Names of routes for charts: short, all different, and escaped, since plotly reads markup."""
    short = [_shortened(wording.shown(route.name)) for route in report.routes]
    return [
        html.escape(f"{index}. {name}" if short.count(name) > 1 else name, quote=False)
        for index, name in enumerate(short, start=1)
    ]


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_LABEL else name[: LONGEST_LABEL - 1] + "…"


def ttft_points(route: RouteReport, workload: int) -> list[Point]:
    """Number of the round, from 1, and request TTFT in seconds, of timed requests."""
    return [
        (float(request.round + 1), request.request_ttft_s)
        for request in route.requests
        if request.kind == "timed"
        and request.workload == workload
        and request.request_ttft_s is not None
    ]


def token_points(route: RouteReport, workload: int) -> list[Point]:
    """Seconds since the start of the run, and seconds that the token took, of timed requests."""
    return [
        point
        for request in route.requests
        if request.kind == "timed" and request.workload == workload
        for point in zip(
            _ends(request.started_s + (request.request_ttft_s or 0.0), request.decode_s),
            request.decode_s,
            strict=True,
        )
    ]


def _ends(start: float, durations: Sequence[float]) -> Iterator[float]:
    ends = accumulate(durations, initial=start)
    next(ends)
    return ends


def thinned(points: Sequence[Point], limit: int) -> Sequence[Point]:
    """At most `limit` of the points, in their order.

    Of each run of neighbours the lowest and the highest are kept, so that no outlier is lost.
    """
    if len(points) <= limit:
        return points
    runs = max(limit // 2, 1)
    kept: list[Point] = []
    for run in range(runs):
        part = range(run * len(points) // runs, (run + 1) * len(points) // runs)
        ends = {min(part, key=lambda i: points[i][1]), max(part, key=lambda i: points[i][1])}
        kept += [points[index] for index in sorted(ends)]
    return kept


def sampled(points: Sequence[Point], limit: int) -> Sequence[Point]:
    """At most `limit` of the points, in their order.

    Those are one of each run of neighbours, and the few highest of all. Which one of a run it is
    differs from run to run, so that none that comes round regularly, such as a place in an answer,
    is preferred; the lowest and the highest of each would thin the middle.
    """
    if len(points) <= limit:
        return points
    highest = sorted(range(len(points)), key=lambda index: points[index][1])[-(limit // 50 + 1) :]
    runs = limit - len(highest)
    length = len(points) / runs
    evenly = (int((run + run * GOLDEN % 1) * length) for run in range(runs))
    return [points[index] for index in sorted({*highest, *evenly})]


@dataclass(frozen=True)
class Spread:
    """How often durations occur: `edges` of the bins, and for each series its shares of them.

    Shares are percent of all values of a series; `beyond` are values above the last edge.
    """

    edges: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]
    beyond: tuple[int, ...]
    logarithmic: bool


def spread(series: Sequence[Sequence[float]]) -> Spread | None:
    """How often each duration occurs in each of the series; None where no series has any.

    Bins are those of all series alike. The last edge is the largest 99th percentile of a series:
    a few very slow ones would leave no room for the others.
    """
    present = [sorted(values) for values in series if values]
    if not present:
        return None
    low = min(values[0] for values in present)
    high = max(values[math.ceil(0.99 * (len(values) - 1))] for values in present)
    edges, logarithmic = _edges(low, high)
    counted = [_counts(values, edges) for values in series]
    return Spread(
        edges=edges,
        shares=tuple(
            tuple(100 * count / max(len(values), 1) for count in counts)
            for counts, values in zip(counted, series, strict=True)
        ),
        beyond=tuple(
            len(values) - sum(counts) for counts, values in zip(counted, series, strict=True)
        ),
        logarithmic=logarithmic,
    )


def _edges(low: float, high: float) -> tuple[tuple[float, ...], bool]:
    if high <= low:
        high = low + max(abs(low) * 0.1, 1e-6)
    if low > 0 and high > LINEAR_UP_TO * low:
        step = math.log(high / low) / BINS
        inner = [low * math.exp(step * index) for index in range(1, BINS)]
        return (low, *inner, high), True
    inner = [low + (high - low) * index / BINS for index in range(1, BINS)]
    return (low, *inner, high), False


def _counts(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many of the values are in each bin, the last edge included."""
    ordered = sorted(values)
    below = [bisect_left(ordered, edge) for edge in edges[:-1]]
    return [end - start for start, end in pairwise([*below, bisect_right(ordered, edges[-1])])]
