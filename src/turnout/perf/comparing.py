"""Ratios: how many times as fast one route is as another, and whether that can be told.

Logarithms of values are compared, so that a ratio and its inverse are alike: with the two
exchanged, ratio and interval are inverted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.perf.report import FIGURES, Comparison, Request, RouteReport, Verdict
from turnout.perf.statistics import difference_interval, median_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MARGIN = 0.03
# Seconds, or tokens a second. What is beyond was made up, and would overflow.
_LARGEST = 1e15
# Of a report's own routes these are compared; the others say much the same.
COMPARED = (
    "decode_tokens_per_second",
    "prefill_tokens_per_second",
    "model_ttft_s",
    "tpot_s",
    "request_s",
)


@dataclass(frozen=True)
class Ratio:
    """How many times a figure is what it is elsewhere.

    `interval` is a bootstrap's 95% interval; None below 6 pairs, or 6 values on either side, of
    which no such interval can be made (see `statistics.MIN_VALUES`).
    """

    value: float
    interval: tuple[float, float] | None

    def verdict(self, figure: str, margin: float) -> Verdict:
        """What it says of what is measured, by what is better in `figure`.

        Decided only where the whole interval lies beyond the margin: below `1 - margin` or above
        the inverse of that, which is as far from 1 as a ratio.
        """
        if self.interval is None:
            return "cannot tell"
        low, high = self.interval
        if high < 1 - margin:
            return "slower" if more_is_better(figure) else "faster"
        if low > 1 / (1 - margin):
            return "faster" if more_is_better(figure) else "slower"
        return "cannot tell"


def more_is_better(figure: str) -> bool:
    """Whether more of a figure of `Aggregate` is better."""
    return FIGURES.get(figure, False)


def value_of(request: Request, figure: str) -> float | None:
    """A figure of `Aggregate` of one request; None where it has none that a ratio can be made of.

    Of `token_s` that is the request's median: what slows a request slows all of its tokens, which
    therefore are not as many samples.
    """
    if figure == "token_s":
        from statistics import median

        value = median(request.decode_s) if request.decode_s else None
    else:
        value = getattr(request, figure)
    return value if value is not None and 1 / _LARGEST < value < _LARGEST else None


def paired(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio of the first to the second of each pair, at least one: the median of theirs."""
    import numpy as np

    logs = np.log(np.asarray(pairs, dtype=np.float64))
    apart = np.sort(logs[:, 0] - logs[:, 1])
    return _ratio(_median(apart), median_interval(apart))


def unpaired(ours: Sequence[float], base: Sequence[float]) -> Ratio:
    """The ratio of the medians of two runs, at least one value each.

    What two runs do not share is in the interval: see `statistics.difference_interval`.
    """
    one, other = _sorted_logs(ours), _sorted_logs(base)
    return _ratio(_median(one) - _median(other), difference_interval(one, other))


def compared(routes: Sequence[RouteReport], margin: float = MARGIN) -> tuple[Comparison, ...]:
    """Every later route against the first: a comparison a workload and figure of `COMPARED`.

    Timed requests of one workload and round are a pair. Where there is no pair of which both have
    the figure there is no comparison. A `margin` of 0.03 calls what is less than 3% apart neither
    faster nor slower.
    """
    found = []
    for route in routes[1:]:
        base = routes[0]
        ours, theirs = _by_round(route.requests), _by_round(base.requests)
        both = [place for place in theirs if place in ours]
        for workload in sorted({index for index, _ in both}):
            places = [place for place in both if place[0] == workload]
            for figure in COMPARED:
                pairs = _pairs(ours, theirs, places, figure)
                if not pairs:
                    continue
                ratio = paired(pairs)
                found.append(
                    Comparison(
                        route=route.name,
                        base=base.name,
                        workload=workload,
                        figure=figure,
                        ratio=ratio.value,
                        interval=ratio.interval,
                        pairs=len(pairs),
                        verdict=ratio.verdict(figure, margin),
                    )
                )
    return tuple(found)


Place = tuple[int, int]


def _by_round(requests: Sequence[Request]) -> dict[Place, Request]:
    """Timed requests by workload and round."""
    return {
        (request.workload, request.round): request
        for request in requests
        if request.kind == "timed"
    }


def _pairs(
    ours: Mapping[Place, Request],
    base: Mapping[Place, Request],
    places: Sequence[Place],
    figure: str,
) -> list[tuple[float, float]]:
    values = [(value_of(ours[place], figure), value_of(base[place], figure)) for place in places]
    return [(one, other) for one, other in values if one is not None and other is not None]


def _sorted_logs(values: Sequence[float]) -> NDArray[np.float64]:
    import numpy as np

    return np.sort(np.log(np.asarray(values, dtype=np.float64)))


def _median(values: NDArray[np.float64]) -> float:
    import numpy as np

    return float(np.median(values))


def _ratio(log: float, interval: tuple[float, float] | None) -> Ratio:
    if interval is None:
        return Ratio(math.exp(log), None)
    low, high = interval
    return Ratio(math.exp(log), (math.exp(low), math.exp(high)))
