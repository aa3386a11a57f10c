"""Statistics of what was measured: a block of them for each figure, over timed requests alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnout.perf.report import FIGURES, Aggregate, Request, Statistics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Middles = tuple[NDArray[np.float64], NDArray[np.float64]]

Interval = tuple[float, float]

RESAMPLES = 10_000
SEED = 20_261_201
LEVEL = 0.95
# All of n values lie on one side of what they scatter around with a probability of 2 / 2^n, and
# then nothing between them holds it: 6.3% of the time for 5 values, 3.1% for 6. So there is no
# 95% interval of order statistics below 6 (H. A. David, H. N. Nagaraja, Order Statistics, 3rd
# edition, section 7.1), and a bootstrap's reaches no further than the values.
MIN_VALUES = 6
# What one run tells of another, in requests. A machine drifts, so that those of a run have more in
# common than chance: two recorded runs of the same, of 10 requests, were called different in 15% of
# cases as long as each was taken for 10 independent ones, and in 3% for 3 (docs/measuring.md).
RUN_IS_WORTH = 3


def summarize(values: Sequence[float]) -> Statistics | None:
    """Statistics of `values`, in their unit; None where there are none.

    The standard deviation is the sample's (n - 1), None for one value. Percentiles are
    interpolated linearly between the sorted values (definition 7 of R. J. Hyndman, Y. Fan, Sample
    Quantiles in Statistical Packages, 1996). A percentile p is None below 1 / (1 - p) values, of
    which not one is expected beyond it. The interval is that of `median_interval`.
    """
    import numpy as np

    if not values:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return Statistics(
        samples=len(ordered),
        mean=float(ordered.mean()),
        stdev=float(ordered.std(ddof=1)) if len(ordered) > 1 else None,
        min=float(ordered[0]),
        max=float(ordered[-1]),
        p50=_percentile(ordered, 50),
        p90=_percentile(ordered, 90),
        p95=_percentile(ordered, 95),
        p99=_percentile(ordered, 99),
        median_interval=median_interval(ordered),
    )


def aggregate(requests: Sequence[Request]) -> Aggregate:
    """Statistics of every figure over the timed ones among `requests`; None where none has it."""
    timed = [request for request in requests if request.kind == "timed"]
    blocks: dict[str, Any] = {
        figure: summarize(
            [value for request in timed if (value := getattr(request, figure)) is not None]
        )
        for figure in FIGURES
    }
    tokens = [seconds for request in timed for seconds in request.decode_s]
    return Aggregate(**blocks, token_s=summarize(tokens))


def median_interval(ordered: NDArray[np.float64]) -> Interval | None:
    """The percentile bootstrap's 95% interval of the median of sorted values, always the same.

    The negative of the values has the negative of the interval. None below `MIN_VALUES` values.
    """
    import numpy as np

    if len(ordered) < MIN_VALUES:
        return None
    return _interval_of(_medians(ordered, _middles(len(ordered), np.random.default_rng(SEED))))


def difference_interval(one: NDArray[np.float64], other: NDArray[np.float64]) -> Interval | None:
    """The 95% interval of the median of `one` less that of `other`: sorted values of two runs.

    A percentile bootstrap whose resamples have `RUN_IS_WORTH` values of each, however many there
    are: more requests of a run tell more of that run, but not of how another one differs. With the
    two exchanged it is the negative. None where either has fewer than `MIN_VALUES`.
    """
    import numpy as np

    if min(len(one), len(other)) < MIN_VALUES:
        return None
    random = np.random.default_rng(SEED)
    mine, theirs = (_middles(RUN_IS_WORTH, random) for _ in range(2))
    # Each of the two with either draws, so that their order does not matter.
    turns = ((mine, theirs), (theirs, mine))
    apart = [_medians(one, ours) - _medians(other, others) for ours, others in turns]
    return _interval_of(np.concatenate(apart))


def _middles(size: int, random: np.random.Generator) -> Middles:
    """The middle one, or two, of `size` even random numbers between 0 and 1, of many draws.

    Sorted, the k-th of n such numbers has the distribution beta(k, n - k + 1), and the next one
    is as far into what is left above it as the least of n - k. So any size takes the same time.
    """
    middle = (size + 1) // 2
    below = random.beta(middle, size - middle + 1, RESAMPLES // 2)
    if size % 2:
        return below, below
    return below, below + (1 - below) * random.beta(1, size - middle, RESAMPLES // 2)


def _medians(ordered: NDArray[np.float64], middles: Middles) -> NDArray[np.float64]:
    """Medians of resamples of n sorted values, which are those at ranks floor(n U).

    Every draw has its mirror image, so that values and their negatives are treated alike.
    """
    import numpy as np

    count, last = len(ordered), len(ordered) - 1
    low, high = (np.minimum((middle * count).astype(int), last) for middle in middles)
    low, high = np.append(low, last - high), np.append(high, last - low)
    medians: NDArray[np.float64] = (ordered[low] + ordered[high]) / 2
    return medians


def _interval_of(medians: NDArray[np.float64]) -> Interval:
    import numpy as np

    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _percentile(ordered: NDArray[np.float64], percent: int) -> float | None:
    import numpy as np

    if len(ordered) < math.ceil(100 / (100 - percent)):
        return None
    return float(np.percentile(ordered, percent))
