"""Gates: what is written, and when a comparison fails by one."""

from __future__ import annotations

from typing import Any

import pytest

from report_fixtures import (
    change,
    failed_route,
    make_report,
    make_requests,
    make_route,
    make_workload,
)
from turnout.errors import UsageError
from turnout.perf.comparing import Ratio
from turnout.perf.comparing_reports import Row, Sample, compare
from turnout.perf.gates import Gate, judge, parse
from turnout.perf.report import Aggregate, Report


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("decode_tokens_per_second < 0.95", (None, "decode_tokens_per_second", "<", 0.95)),
        ("  tpot_s>=1.05 ", (None, "tpot_s", ">=", 1.05)),
        ("ep=openvino: token_s > 1.1", ("ep=openvino", "token_s", ">", 1.1)),
        (
            "provider-option a:b=1: request_s <= 2e0",
            ("provider-option a:b=1", "request_s", "<=", 2),
        ),
        ("tpot_s <  0.95 ", (None, "tpot_s", "<", 0.95)),
        ("tpot_s < .95", (None, "tpot_s", "<", 0.95)),
        ("tpot_s < 95e-2", (None, "tpot_s", "<", 0.95)),
        ("tpot_s < +1.", (None, "tpot_s", "<", 1.0)),
    ],
)
def test_a_gate_is_a_figure_a_comparison_and_a_ratio(text: str, expected: tuple[Any, ...]) -> None:
    gate = parse(text)
    assert (gate.route, gate.figure, gate.operator, gate.limit) == expected
    assert gate.text == text.strip()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("decode_tokens_per_second", None),
        ("< 0.95", "'' is no figure"),
        ("speed < 0.95", "'speed' is no figure"),
        ("tpot_s == 1", "'==' is no comparison"),
        ("tpot_s = 1", "'=' is no comparison"),
        ("tpot_s <> 1", "'<>' is no comparison"),
        ("tpot_s < 5%", "'5%' is no ratio"),
        ("tpot_s <", "'' is no ratio"),
        ("tpot_s < nan", "'nan' is no ratio"),
        ("tpot_s < inf", "'inf' is no ratio"),
        ("tpot_s < 0", "'0' is no ratio"),
        ("tpot_s < -1", "'-1' is no ratio"),
        ("tpot_s < 0.9 < 1", "'0.9 < 1' is no ratio"),
        ("tpot_s < 1_0", "'1_0' is no ratio"),
        ("tpot_s < 0 .9", "'0 .9' is no ratio"),
        ("tpot_s < \u0661", "'\u0661' is no ratio"),
        ("tpot_s < .", "'.' is no ratio"),
        ("tpot_s < 0x1", "'0x1' is no ratio"),
        ("tpot_s < infinity", "'infinity' is no ratio"),
        ("tpot_s < 1e400", "'1e400' is no ratio"),
        ("tpot_s < 1e-400", "'1e-400' is no ratio"),
    ],
)
def test_a_malformed_gate_is_refused_saying_what_is_wrong(text: str, found: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.facts.get("found") == found
    assert caught.value.facts["where"] == "--fail-if"


def test_an_unknown_figure_is_refused_naming_all_that_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        parse("speed < 1")
    assert caught.value.facts["expected"].split(", ") == list(Aggregate.__struct_fields__)


def of_interval(low: float, high: float) -> Row:
    ratio = Ratio((low * high) ** 0.5, (low, high))
    return Row("config", "pp1", "tpot_s", Sample(9, 1.0), Sample(9, 1.0), ratio, "cannot tell")


@pytest.mark.parametrize(
    ("gate", "interval", "holds"),
    [
        ("tpot_s < 0.95", (0.90, 0.94), True),
        ("tpot_s < 0.95", (0.90, 0.95), False),
        ("tpot_s <= 0.95", (0.90, 0.95), True),
        ("tpot_s < 0.95", (0.94, 0.96), False),
        ("tpot_s > 1.05", (1.06, 1.2), True),
        ("tpot_s > 1.05", (1.05, 1.2), False),
        ("tpot_s >= 1.05", (1.05, 1.2), True),
        ("tpot_s > 1.05", (1.0, 1.2), False),
    ],
)
def test_a_gate_holds_only_if_the_whole_interval_does(
    gate: str, interval: tuple[float, float], holds: bool
) -> None:
    assert parse(gate).holds(of_interval(*interval)) is holds


def judged(text: str, base: Report, other: Report) -> tuple[bool | None, tuple[str, ...]]:
    gate = parse(text)
    found = judge(gate, compare(base, other, figures=[gate.figure]))
    assert found.gate == gate
    return found.holds, found.because


def test_a_gate_that_holds_says_where() -> None:
    base = make_report({"config": 1.0, "ep=cpu": 1.0}, noise=0.0)
    other = make_report({"config": 1.0, "ep=cpu": 0.8}, noise=0.0)
    holds, because = judged("decode_tokens_per_second < 0.95", base, other)
    assert (holds, because) == (True, ("ep=cpu, pp32+tg16: 0.800 (0.800 to 0.800)",))
    assert judged("config: decode_tokens_per_second < 0.95", base, other) == (False, ())
    assert judged("ep=cpu: tpot_s > 1.2", base, other)[0] is True


def test_a_gate_on_what_cannot_be_told_does_not_hold() -> None:
    assert judged("tpot_s < 1", make_report(seed=1), make_report(seed=2)) == (False, ())


def test_a_gate_of_which_nothing_could_be_compared_is_not_judged() -> None:
    base = make_report({"config": 1.0})
    nothing = [change(request, tpot_s=None, decode_s=()) for request in make_requests()]
    without = make_report([make_route("config", nothing)])
    assert judged("tpot_s > 9", without, without) == (None, ("there is no tpot_s",))
    assert judged("tpot_s > 9", base, without) == (None, ("config, pp32+tg16: B has no tpot_s",))
    assert judged("tpot_s > 9", without, base) == (None, ("config, pp32+tg16: A has no tpot_s",))
    assert judged("ep=cpu: tpot_s > 9", base, base) == (
        None,
        ("there is no route 'ep=cpu' in both reports",),
    )


def test_a_gate_over_a_route_that_b_lacks_is_not_judged_unless_another_is_named() -> None:
    base = make_report({"config": 1.0, "ep=cpu": 1.0}, noise=0.0)
    other = make_report({"config": 1.0}, noise=0.0)
    gone = "only A has the route ep=cpu"
    assert judged("decode_tokens_per_second < 0.95", base, other) == (None, (gone,))
    assert judged("ep=cpu: decode_tokens_per_second < 0.95", base, other) == (
        None,
        ("there is no route 'ep=cpu' in both reports", gone),
    )
    assert judged("config: decode_tokens_per_second < 0.95", base, other) == (False, ())


def test_a_route_that_only_b_has_is_new_and_counts_only_where_it_is_named() -> None:
    base = make_report({"config": 1.0}, noise=0.0)
    other = make_report({"config": 1.0, "ep=cpu": 0.1}, noise=0.0)
    assert judged("decode_tokens_per_second < 0.95", base, other) == (False, ())
    assert judged("ep=cpu: decode_tokens_per_second < 0.95", base, other) == (
        None,
        ("there is no route 'ep=cpu' in both reports",),
    )


def test_a_gate_names_a_route_of_both_also_where_two_lone_ones_are_compared() -> None:
    base, other = make_report({"config": 1.0}), make_report({"ep=cpu": 1.0})
    assert judged("tpot_s > 9", base, other) == (False, ())
    for name in ("config", "ep=cpu"):
        because = f"there is no route {name!r} in both reports"
        assert judged(f"{name}: tpot_s > 9", base, other) == (None, (because,))


@pytest.mark.parametrize("route", ["", "config: "])
def test_a_gate_is_not_judged_where_b_lacks_a_workload_and_is_where_it_has_one_more(
    route: str,
) -> None:
    one = make_report({"config": 1.0}, workloads=[make_workload(32)])
    two = make_report({"config": 1.0}, workloads=[make_workload(32), make_workload(128)])
    gate = parse(f"{route}tpot_s > 9")
    lost, more = (
        judge(gate, compare(*pair, figures=["tpot_s"], allow={"lengths"}))
        for pair in ((two, one), (one, two))
    )
    assert (lost.holds, lost.because) == (None, ("only A has the workload pp128+tg16",))
    assert (more.holds, more.because) == (False, ())


def test_a_gate_over_a_route_that_neither_got_round_to_is_not_judged() -> None:
    stopped = make_report([make_route("config"), make_route("ep=cpu", ())])
    assert judged("tpot_s > 9", stopped, stopped) == (
        None,
        ("ep=cpu, pp32+tg16: measured in neither report",),
    )
    assert judged("config: tpot_s > 9", stopped, stopped) == (False, ())
    assert judged("ep=cpu: tpot_s > 9", stopped, stopped)[0] is None


def test_a_workload_without_the_figure_in_either_report_does_not_count() -> None:
    workloads = [make_workload(32, 16), make_workload(128, 1)]  # one token, and none after it
    report = make_report({"config": 1.0}, workloads=workloads)
    assert judged("tpot_s > 9", report, report) == (False, ())


def test_a_gate_with_too_few_values_is_not_judged() -> None:
    few, many = make_report({"config": 1.0}, rounds=5), make_report({"config": 0.1}, rounds=20)
    assert judged("tpot_s > 9", few, many) == (
        None,
        ("config, pp32+tg16: 5 and 20 values, of which an interval needs 6 each",),
    )


def test_a_gate_over_a_route_that_failed_is_not_judged_unless_another_is_named() -> None:
    base = make_report([make_route("config"), make_route("ep=qnn")])
    other = make_report([make_route("config"), failed_route("ep=qnn")])
    holds, because = judged("tpot_s > 9", base, other)
    assert holds is None
    assert because[0].startswith("ep=qnn failed in B: unavailable")
    assert judged("config: tpot_s > 9", base, other) == (False, ())


def test_a_gate_that_holds_somewhere_holds_whatever_else_could_not_be_judged() -> None:
    slow = make_route("config", make_requests(speed=0.5))
    base = make_report([make_route("config"), make_route("ep=qnn")])
    assert judged("tpot_s > 1.5", base, make_report([slow, failed_route("ep=qnn")]))[0] is True


def test_a_gate_is_a_value() -> None:
    assert parse("config: tpot_s > 9") == Gate("config: tpot_s > 9", "tpot_s", ">", 9.0, "config")
