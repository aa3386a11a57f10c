"""Statistics of measurements, beside numpy's and scipy's on the same samples."""

from __future__ import annotations

import itertools
import statistics as peer
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from report_fixtures import make_request, make_requests, make_workload
from turnout.perf.report import FIGURES, Statistics
from turnout.perf.statistics import aggregate, summarize

SECONDS = st.floats(min_value=1e-6, max_value=1e6)


def sample(count: int, seed: int = 0) -> list[float]:
    values: list[float] = np.random.default_rng(seed).lognormal(-3, 0.2, count).tolist()
    return values


def summarized(values: list[float]) -> Statistics:
    found = summarize(values)
    assert found is not None
    return found


def test_no_values_have_no_statistics() -> None:
    assert summarize([]) is None


def test_one_value_is_mean_and_extremes_and_nothing_else() -> None:
    assert summarize([0.25]) == Statistics(
        samples=1,
        mean=0.25,
        stdev=None,
        min=0.25,
        max=0.25,
        p50=None,
        p90=None,
        p95=None,
        p99=None,
        median_interval=None,
    )


def test_values_worked_out_by_hand() -> None:
    found = summarized([4.0, 1.0, 3.0, 2.0])
    assert (found.samples, found.mean, found.min, found.max) == (4, 2.5, 1.0, 4.0)
    assert found.stdev == pytest.approx((5 / 3) ** 0.5)  # 2.25 + 0.25 + 0.25 + 2.25, by 3
    assert found.p50 == 2.5
    assert (found.p90, found.p95, found.p99) == (None, None, None)
    # Of 0 to 10, 90% is at 9.
    assert summarized([float(value) for value in range(11)]).p90 == 9.0
    # Of ten values, at 9 * 0.9 = 8.1 of the way: between the 9th and the 10th.
    assert summarized([*range(9), 19.0]).p90 == pytest.approx(8 + 0.1 * 11)


@pytest.mark.parametrize(
    ("percentile", "needs"), [("p50", 2), ("p90", 10), ("p95", 20), ("p99", 100)]
)
def test_a_percentile_of_too_few_values_is_null(percentile: str, needs: int) -> None:
    assert getattr(summarized(sample(needs - 1)), percentile) is None
    assert getattr(summarized(sample(needs)), percentile) is not None


@pytest.mark.parametrize("count", [2, 3, 10, 11, 20, 57, 100, 1001])
def test_figures_are_those_of_numpy_scipy_and_the_standard_library(count: int) -> None:
    values = sample(count, seed=count)
    found = summarized(values)
    assert found.mean == pytest.approx(peer.fmean(values))
    assert found.stdev == pytest.approx(peer.stdev(values))
    assert found.stdev == pytest.approx(float(np.std(values, ddof=1)))
    for percent in (50, 90, 95, 99):
        value = getattr(found, f"p{percent}")
        if value is not None:
            assert value == pytest.approx(float(np.percentile(values, percent)))
            (other,) = stats.mstats.mquantiles(values, [percent / 100], alphap=1, betap=1)
            assert value == pytest.approx(float(other))


@given(st.lists(SECONDS, min_size=1, max_size=40), st.randoms())
def test_the_order_of_values_does_not_matter(values: list[float], random: Any) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    assert summarize(shuffled) == summarize(values)


@given(st.lists(SECONDS, min_size=6, max_size=40))
def test_the_interval_of_the_median_lies_within_the_values_and_around_the_median(
    values: list[float],
) -> None:
    found = summarized(values)
    assert found.median_interval is not None
    low, high = found.median_interval
    assert found.min <= low <= peer.median(values) <= high <= found.max


def test_below_six_values_there_is_no_interval_of_the_median() -> None:
    assert summarized(sample(5)).median_interval is None
    assert summarized(sample(6)).median_interval is not None


def test_the_interval_of_the_median_is_always_the_same() -> None:
    assert summarize(sample(30)) == summarize(sample(30))


@pytest.mark.parametrize("count", [6, 7])
def test_the_interval_of_the_median_is_that_of_all_resamples(count: int) -> None:
    """Every resample there can be: 6^6, or 7^7."""
    values = np.sort(sample(count, seed=3))
    ranks = np.fromiter(
        itertools.chain.from_iterable(itertools.product(range(count), repeat=count)), np.int8
    ).reshape(-1, count)
    medians = np.median(values[ranks], axis=1)
    found = summarized(values.tolist()).median_interval
    assert found is not None
    # Where 2.4% to 2.6% of the resamples end: 10,000 drawn ones are off by 0.16% at most by chance.
    for end, level in zip(found, (0.025, 0.975), strict=True):
        few, many = np.quantile(medians, [level - 0.005, level + 0.005])
        assert few <= end <= many


@pytest.mark.parametrize("count", [6, 9, 10, 25, 200])
def test_the_interval_of_the_median_is_that_of_scipys_bootstrap(count: int) -> None:
    values = sample(count, seed=count)
    found = summarized(values).median_interval
    assert found is not None
    wide, narrow = (
        stats.bootstrap(
            (values,),
            np.median,
            n_resamples=20_000,
            confidence_level=level,
            method="percentile",
            rng=1,
            vectorized=True,
        ).confidence_interval
        for level in (0.96, 0.94)
    )
    assert wide.low <= found[0] <= narrow.low
    assert narrow.high <= found[1] <= wide.high


def test_warm_up_requests_are_in_no_statistics() -> None:
    requests = make_requests(rounds=4, warmup=3)
    assert len(requests) == 7
    found = aggregate(requests)
    assert found == aggregate(requests[3:])
    for figure in FIGURES:
        assert getattr(found, figure).samples == 4
    assert aggregate(requests[:3]) == aggregate(())


def test_a_figure_that_no_request_has_is_null() -> None:
    found = aggregate([make_request(first_token_s=None, decode_s=())] * 3)
    assert found.model_ttft_s is found.request_ttft_s is None
    assert found.tpot_s is found.decode_tokens_per_second is found.token_s is None
    assert found.request_s is not None
    assert found.request_s.samples == 3


def test_a_figure_that_some_requests_have_is_of_those() -> None:
    found = aggregate([make_request(), make_request(decode_s=()), make_request()])
    assert found.tpot_s is not None
    assert found.tpot_s.samples == 2
    assert found.model_ttft_s is not None
    assert found.model_ttft_s.samples == 3


def test_figures_of_requests_worked_out_by_hand() -> None:
    found = aggregate(
        [
            make_request(prefill_s=0.1, prompt_tokens=20, first_token_s=0.05, decode_s=(0.1, 0.3)),
            make_request(prefill_s=0.2, prompt_tokens=20, first_token_s=0.05, decode_s=(0.1, 0.1)),
        ]
    )
    assert found.prefill_tokens_per_second is not None
    assert found.prefill_tokens_per_second.mean == pytest.approx((200 + 100) / 2)
    assert found.decode_tokens_per_second is not None
    assert found.decode_tokens_per_second.mean == pytest.approx((5 + 10) / 2)
    assert found.tpot_s is not None
    assert found.tpot_s.mean == pytest.approx((0.2 + 0.1) / 2)
    assert found.model_ttft_s is not None
    assert found.model_ttft_s.mean == pytest.approx((0.15 + 0.25) / 2)
    # The time of a token is that of all tokens together, not of requests.
    assert found.token_s is not None
    assert (found.token_s.samples, found.token_s.max) == (4, 0.3)
    assert found.token_s.mean == pytest.approx(0.15)


def test_tokens_of_all_workloads_and_rounds_are_pooled() -> None:
    workloads = [make_workload(32, 16), make_workload(128, 8)]
    found = aggregate(make_requests(rounds=5, workloads=workloads))
    assert found.token_s is not None
    assert found.token_s.samples == 5 * (15 + 7)
