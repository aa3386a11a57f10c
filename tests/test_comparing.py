"""Ratios and verdicts: of recorded rounds, of samples worked out by hand, and beside scipy's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from report_fixtures import (
    change,
    failed_route,
    make_report,
    make_request,
    make_requests,
    make_route,
    make_workload,
)
from turnout.perf.comparing import COMPARED, Ratio, compared, paired, unpaired, value_of
from turnout.perf.report import Request, Verdict

ROUNDS = json.loads((Path(__file__).parent / "data" / "rounds.json").read_text("utf-8"))
SECONDS = st.floats(min_value=1e-6, max_value=1e6)
SAMPLES = st.lists(SECONDS, min_size=1, max_size=30)


def recorded(lane: str, start: int, count: int) -> list[float]:
    seconds: list[float] = ROUNDS[lane][start : start + count]
    return seconds


def verdicts_of_rounds(lane: str, count: int, every: int) -> list[Verdict]:
    """Of a lane against the lane "same", by `count` rounds from every `every`th one on."""
    starts = range(0, len(ROUNDS["same"]) - count + 1, every)
    return [
        paired(
            list(zip(recorded(lane, start, count), recorded("same", start, count), strict=True))
        ).verdict("request_s", 0.03)
        for start in starts
    ]


# Windows at every round overlap: there are many, and few that know nothing of each other. Those
# that begin where another ends are independent, but for the drift of one machine.
WINDOWS = [(6, 1), (6, 6), (10, 1), (10, 10), (20, 1), (20, 20)]


@pytest.mark.parametrize(("count", "every"), WINDOWS)
def test_of_recorded_rounds_the_same_is_told_from_itself_in_1_of_20_at_most(
    count: int, every: int
) -> None:
    found = verdicts_of_rounds("again", count, every)
    assert len(found) == (400 - count) // every + 1 >= 20
    assert found.count("cannot tell") >= 0.95 * len(found)


@pytest.mark.parametrize(("count", "every"), WINDOWS[2:])
def test_of_recorded_rounds_a_lane_slowed_by_a_fifth_is_slower_in_19_of_20(
    count: int, every: int
) -> None:
    found = verdicts_of_rounds("slowed", count, every)
    assert found.count("slower") >= 0.95 * len(found)
    assert "faster" not in found


def verdicts_of_runs(lane: str, count: int) -> list[Verdict]:
    """Of parts of a lane against parts of the lane "same" that were recorded at other times.

    No two parts overlap, but each takes part in many comparisons.
    """
    starts = range(0, len(ROUNDS["same"]) - count + 1, 20)
    return [
        unpaired(recorded(lane, other, count), recorded("same", one, count)).verdict(
            "request_s", 0.03
        )
        for one in starts
        for other in starts
        if abs(one - other) >= count
    ]


def verdicts_of_neighbours(lane: str, count: int) -> list[Verdict]:
    """As `verdicts_of_runs`, each part once: against the one before it, or the one after it."""
    starts = range(0, len(ROUNDS["same"]) - 2 * count + 1, 2 * count)
    return [
        unpaired(recorded(lane, other, count), recorded("same", one, count)).verdict(
            "request_s", 0.03
        )
        for start in starts
        for one, other in ((start, start + count), (start + count, start))
    ]


@pytest.mark.parametrize("count", [10, 20])
def test_of_recorded_runs_of_which_each_is_used_once_as_many_are_told_right(count: int) -> None:
    same, slowed = (verdicts_of_neighbours(lane, count) for lane in ("again", "slowed"))
    assert len(same) == 400 // count >= 20
    assert same.count("cannot tell") >= 0.95 * len(same)
    assert slowed.count("slower") >= 0.9 * len(slowed)


def test_of_recorded_runs_the_same_is_told_from_itself_in_1_of_20_at_most() -> None:
    found = verdicts_of_runs("again", 20)
    assert found.count("cannot tell") >= 0.95 * len(found)


def test_of_recorded_runs_one_slowed_by_a_fifth_is_slower_in_9_of_10() -> None:
    found = verdicts_of_runs("slowed", 20)
    assert found.count("slower") >= 0.9 * len(found)
    assert "faster" not in found


def test_a_ratio_of_pairs_is_the_median_of_their_ratios() -> None:
    found = paired([(2.0, 1.0), (3.0, 2.0), (30.0, 3.0), (9.0, 10.0), (10.0, 8.0)])
    assert found == Ratio(pytest.approx(1.5), None)  # 0.9, 1.25, 1.5, 2, 10


def test_a_ratio_of_runs_is_that_of_their_medians() -> None:
    assert unpaired([3.0, 9.0, 4.0], [2.0, 1.0, 7.0]) == Ratio(pytest.approx(2.0), None)
    # Between two values, logarithms make it the geometric mean.
    assert unpaired([1.0, 4.0], [1.0]).value == pytest.approx(2.0)


@pytest.mark.parametrize("count", range(1, 6))
def test_below_six_pairs_nothing_can_be_told(count: int) -> None:
    found = paired([(100.0, 1.0)] * count)
    assert found.interval is None
    assert found.verdict("request_s", 0.03) == "cannot tell"
    assert unpaired([100.0] * count, [1.0] * 100) == Ratio(pytest.approx(100.0), None)
    assert unpaired([100.0] * 100, [1.0] * count) == Ratio(pytest.approx(100.0), None)


def test_six_pairs_that_agree_are_decided() -> None:
    found = paired([(1.2, 1.0), (1.21, 1.0), (1.19, 1.0), (1.22, 1.0), (1.18, 1.0), (1.2, 1.0)])
    assert found.interval is not None
    assert found.verdict("request_s", 0.03) == "slower"
    assert found.verdict("decode_tokens_per_second", 0.03) == "faster"


@pytest.mark.parametrize(
    ("interval", "seconds", "tokens_per_second"),
    [
        ((1.04, 1.2), "slower", "faster"),
        ((1.032, 1.2), "slower", "faster"),
        ((1.02, 1.2), "cannot tell", "cannot tell"),
        ((0.9, 1.2), "cannot tell", "cannot tell"),
        ((0.98, 1.02), "cannot tell", "cannot tell"),
        ((0.9, 0.98), "cannot tell", "cannot tell"),
        ((0.9, 0.969), "faster", "slower"),
    ],
)
def test_a_verdict_needs_the_whole_interval_beyond_the_margin(
    interval: tuple[float, float], seconds: Verdict, tokens_per_second: Verdict
) -> None:
    ratio = Ratio(math.sqrt(interval[0] * interval[1]), interval)
    for figure in ("model_ttft_s", "request_ttft_s", "tpot_s", "request_s", "token_s"):
        assert ratio.verdict(figure, 0.03) == seconds
    for figure in ("decode_tokens_per_second", "prefill_tokens_per_second"):
        assert ratio.verdict(figure, 0.03) == tokens_per_second


def test_without_a_margin_an_interval_that_leaves_out_1_is_decided() -> None:
    assert Ratio(1.01, (1.001, 1.02)).verdict("tpot_s", 0.0) == "slower"
    assert Ratio(1.01, (1.0, 1.02)).verdict("tpot_s", 0.0) == "cannot tell"


INVERSE = {"faster": "slower", "slower": "faster", "cannot tell": "cannot tell"}


def assert_inverse(one: Ratio, other: Ratio) -> None:
    assert other.value == pytest.approx(1 / one.value)
    if one.interval is None:
        assert other.interval is None
    else:
        low, high = one.interval
        assert other.interval == pytest.approx((1 / high, 1 / low))
    for margin in (0.001, 0.03, 0.1):
        verdict = one.verdict("request_s", margin)
        assert other.verdict("request_s", margin) == INVERSE[verdict]


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=30))
def test_the_two_of_each_pair_exchanged_invert_ratio_interval_and_verdict(
    pairs: list[tuple[float, float]],
) -> None:
    assert_inverse(paired(pairs), paired([(base, ours) for ours, base in pairs]))


@given(SAMPLES, SAMPLES)
def test_two_runs_exchanged_invert_ratio_interval_and_verdict(
    ours: list[float], base: list[float]
) -> None:
    assert_inverse(unpaired(ours, base), unpaired(base, ours))


@given(SAMPLES, SAMPLES, st.sampled_from([0.5, 2.0, 1024.0]))
def test_a_ratio_does_not_depend_on_the_unit(
    ours: list[float], base: list[float], unit: float
) -> None:
    one = unpaired(ours, base)
    other = unpaired([unit * value for value in ours], [unit * value for value in base])
    assert other.value == pytest.approx(one.value)
    assert (one.interval is None) == (other.interval is None)
    if one.interval is not None:
        assert other.interval == pytest.approx(one.interval)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=6, max_size=30))
def test_an_interval_holds_its_ratio(pairs: list[tuple[float, float]]) -> None:
    for ratio in (paired(pairs), unpaired(*map(list, zip(*pairs, strict=True)))):
        assert ratio.interval is not None
        low, high = ratio.interval
        assert low <= ratio.value * (1 + 1e-12)
        assert ratio.value <= high * (1 + 1e-12)


def test_values_as_far_apart_as_they_get_have_a_ratio() -> None:
    for found in (paired([(1e15, 1e-15)] * 6), unpaired([1e15] * 6, [1e-15] * 6)):
        assert found.value == pytest.approx(1e30)
        assert found.interval == pytest.approx((1e30, 1e30))


@pytest.mark.parametrize("count", [6, 10, 25])
def test_the_interval_of_pairs_is_that_of_scipys_bootstrap(count: int) -> None:
    random = np.random.default_rng(count)
    base = random.lognormal(-3, 0.1, count)
    ours = base * random.lognormal(0.1, 0.05, count)
    found = paired(list(zip(ours.tolist(), base.tolist(), strict=True))).interval
    assert found is not None
    wide, narrow = (
        stats.bootstrap(
            (np.log(ours / base),),
            np.median,
            n_resamples=20_000,
            confidence_level=level,
            method="percentile",
            rng=1,
            vectorized=True,
        ).confidence_interval
        for level in (0.96, 0.94)
    )
    ulps = 1e-12
    assert wide.low - ulps <= math.log(found[0]) <= narrow.low + ulps
    assert narrow.high - ulps <= math.log(found[1]) <= wide.high + ulps


def test_the_interval_of_runs_is_that_of_medians_of_three_drawn_from_each() -> None:
    random = np.random.default_rng(7)
    base, ours = random.lognormal(-3, 0.1, 12), random.lognormal(-2.9, 0.1, 20)
    drawn = [
        np.median(random.choice(np.log(values), (100_000, 3)), axis=1) for values in (ours, base)
    ]
    found = unpaired(ours.tolist(), base.tolist()).interval
    assert found is not None
    for end, level in zip(found, (0.025, 0.975), strict=True):
        few, many = np.exp(np.quantile(drawn[0] - drawn[1], [level - 0.006, level + 0.006]))
        assert few <= end <= many


def test_more_requests_of_a_run_do_not_narrow_the_interval_between_runs() -> None:
    few = unpaired([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    many = unpaired([1.0, 1.1, 1.2, 1.3, 1.4, 1.5] * 50, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5] * 50)
    assert few.interval is not None
    assert many.interval == pytest.approx(few.interval, rel=0.02)


def test_a_figure_that_is_missing_or_cannot_be_is_no_value() -> None:
    request = make_request(first_token_s=None, decode_s=())
    for figure in ("model_ttft_s", "tpot_s", "token_s", "decode_tokens_per_second"):
        assert value_of(request, figure) is None
    for made_up in (0.0, -1.0, 1e300, 1e-300):
        assert value_of(change(request, request_s=made_up), "request_s") is None


def test_the_time_of_a_token_of_a_request_is_the_median_of_its_tokens() -> None:
    assert value_of(make_request(decode_s=(0.1, 0.9, 0.2)), "token_s") == 0.2
    assert value_of(make_request(decode_s=(0.1, 0.9, 0.2)), "tpot_s") == pytest.approx(0.4)


def timed(index: int, request_s: float, **fields: object) -> Request:
    return make_request(round=index, request_s=request_s, **fields)


def test_routes_of_a_report_are_compared_with_the_first_by_every_figure() -> None:
    report = make_report({"one": 1.0, "two": 1.3, "three": 0.8}, rounds=10)
    found = compared(report.routes)
    assert [(item.route, item.base, item.figure) for item in found] == [
        (route, "one", figure) for route in ("two", "three") for figure in COMPARED
    ]
    assert {item.pairs for item in found} == {10}
    assert {item.verdict for item in found[:5]} == {"faster"}
    assert {item.verdict for item in found[5:]} == {"slower"}
    for item in found:
        speed = 1.3 if item.route == "two" else 0.8
        assert item.ratio == pytest.approx(
            speed if item.figure.endswith("second") else 1 / speed, rel=0.05
        )


def test_requests_of_one_workload_and_round_are_a_pair() -> None:
    base = make_route("one", [timed(0, 1.0), timed(1, 2.0), timed(2, 4.0), timed(3, 8.0)])
    # In another order, one of them missing, and one that the base does not have.
    ours = make_route("two", [timed(9, 99.0), timed(2, 12.0), timed(0, 3.0), timed(1, 6.0)])
    (found,) = (item for item in compared([base, ours]) if item.figure == "request_s")
    assert (found.pairs, found.ratio) == (3, pytest.approx(3.0))
    assert (found.interval, found.verdict) == (None, "cannot tell")


def test_workloads_are_compared_each_for_itself() -> None:
    workloads = [make_workload(32), make_workload(128)]
    report = make_report({"one": 1.0, "two": 1.3}, rounds=7, workloads=workloads)
    found = compared(report.routes)
    assert [item.workload for item in found] == [0] * 5 + [1] * 5
    assert {item.pairs for item in found} == {7}


def test_warm_up_requests_are_no_pairs() -> None:
    requests = make_requests(rounds=6, warmup=3)
    slow = [change(item, request_s=100.0) if item.kind == "warmup" else item for item in requests]
    (found,) = (
        item
        for item in compared([make_route("one", requests), make_route("two", slow)])
        if item.figure == "request_s"
    )
    assert (found.pairs, found.ratio) == (6, 1.0)


def test_a_figure_that_one_of_them_lacks_is_not_compared() -> None:
    lacking = [timed(index, 1.0, first_token_s=None, decode_s=()) for index in range(6)]
    routes = [make_route("one", [timed(index, 1.0) for index in range(6)])]
    found = compared([*routes, make_route("two", lacking)])
    assert [item.figure for item in found] == ["prefill_tokens_per_second", "request_s"]


def test_with_a_route_that_failed_there_is_nothing_to_compare() -> None:
    assert compared([]) == compared([make_route()]) == ()
    assert compared([make_route(), failed_route()]) == ()
    assert compared([failed_route(), make_route()]) == ()


def test_a_wider_margin_leaves_more_open() -> None:
    routes = make_report({"one": 1.0, "two": 1.1}, rounds=20).routes
    assert {item.verdict for item in compared(routes, 0.03)} == {"faster"}
    assert {item.verdict for item in compared(routes, 0.2)} == {"cannot tell"}
