"""Two reports: what belongs together, what makes them unlike, and what is compared."""

from __future__ import annotations

from typing import Any

import pytest

from report_fixtures import (
    change,
    failed_route,
    make_environment,
    make_report,
    make_requests,
    make_route,
    make_workload,
)
from turnout.errors import UsageError
from turnout.perf import likeness
from turnout.perf.comparing import Ratio
from turnout.perf.comparing_reports import (
    DEFAULT_FIGURES,
    FIGURES,
    Alone,
    ReportComparison,
    Row,
    Sample,
    compare,
)
from turnout.perf.report import Report, Workload


def refused(base: Report, other: Report, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        compare(base, other, **options)
    return caught.value


def differences(base: Report, other: Report) -> list[str]:
    return refused(base, other).facts["found"].split("\n")


def row(comparison: ReportComparison, figure: str, route: str = "config") -> Row:
    (found,) = (item for item in comparison.rows if (item.route, item.figure) == (route, figure))
    return found


def test_each_figure_of_each_route_has_medians_a_ratio_and_a_verdict() -> None:
    base = make_report({"config": 1.0, "ep=cpu": 1.0}, seed=1)
    other = make_report({"config": 1.0, "ep=cpu": 0.8}, seed=2)
    found = compare(base, other)
    assert [(item.route, item.figure) for item in found.rows] == [
        (route, figure) for route in ("config", "ep=cpu") for figure in DEFAULT_FIGURES
    ]
    assert {item.verdict for item in found.rows[:4]} == {"cannot tell"}
    assert {item.verdict for item in found.rows[4:]} == {"slower"}
    decode = row(found, "decode_tokens_per_second", "ep=cpu")
    assert decode.base == Sample(10, pytest.approx(50, rel=0.05))  # 20 ms a token
    assert decode.other == Sample(10, pytest.approx(40, rel=0.05))
    assert decode.ratio is not None
    assert decode.ratio.value == pytest.approx(0.8, rel=0.05)
    assert (found.changed, found.failed, found.alone, found.notes) == ((), (), (), ())


def test_without_noise_the_ratio_is_exact() -> None:
    base, other = (
        make_report(noise=0.0),
        make_report({"config": 0.5, "ep=openvino": 2.6}, noise=0.0),
    )
    found = compare(base, other, figures=FIGURES)
    assert len(found.rows) == 2 * len(FIGURES)
    decode = row(found, "decode_tokens_per_second").ratio
    assert decode is not None
    assert decode.value == pytest.approx(0.5)
    assert decode.interval == pytest.approx((0.5, 0.5))
    token = row(found, "token_s", "ep=openvino").ratio
    assert token is not None
    assert token.value == pytest.approx(0.5)


def test_the_two_reports_exchanged_invert_every_verdict() -> None:
    one = make_report({"config": 1.0, "ep=cpu": 1.0}, seed=1)
    two = make_report({"config": 1.4, "ep=cpu": 0.7}, seed=2)
    inverse = {"faster": "slower", "slower": "faster", "cannot tell": "cannot tell"}
    forth, back = compare(one, two), compare(two, one)
    assert {item.verdict for item in forth.rows} == {"faster", "slower"}
    for first, second in zip(forth.rows, back.rows, strict=True):
        assert second.verdict == inverse[first.verdict]
        assert first.ratio is not None
        assert second.ratio is not None
        assert second.ratio.value == pytest.approx(1 / first.ratio.value)


def test_a_report_against_itself_says_so_and_tells_nothing() -> None:
    report = make_report()
    found = compare(report, report)
    assert {item.verdict for item in found.rows} == {"cannot tell"}
    assert found.notes == ("A and B are the same measurement",)


def test_few_requests_have_a_ratio_and_no_verdict() -> None:
    found = compare(
        make_report(rounds=5), make_report({"config": 0.1, "ep=openvino": 0.1}, rounds=20)
    )
    assert {item.verdict for item in found.rows} == {"cannot tell"}
    for item in found.rows:
        assert item.ratio is not None
        assert item.ratio.interval is None


# ---- what belongs together ---------------------------------------------------------------------


def test_routes_are_matched_by_name_and_those_without_a_partner_are_listed() -> None:
    base = make_report({"config": 1.0, "ep=cpu": 1.0})
    other = make_report({"ep=qnn": 1.0, "config": 1.0})
    found = compare(base, other)
    assert {item.route for item in found.rows} == {"config"}
    assert found.alone == (Alone("A", "route", "ep=cpu"), Alone("B", "route", "ep=qnn"))
    assert found.routes == (("config", "config"),)


def test_two_lone_routes_of_other_names_are_matched_with_a_note() -> None:
    found = compare(make_report({"config": 1.0}), make_report({"ep=cpu": 1.0}))
    assert {item.route for item in found.rows} == {"config"}
    assert found.alone == ()
    assert found.notes == (
        "config of A is compared with ep=cpu of B: each has just one route",
        "config took effect as config in A, as cpu in B",
    )


def test_reports_without_a_route_in_common_are_refused() -> None:
    error = refused(make_report({"one": 1.0, "two": 1.0}), make_report({"three": 1.0}))
    assert error.facts["found"] == "A: routes one, two\nB: routes three"
    assert "give a route one name in both" in error.facts["fix"]


def test_reports_without_a_workload_in_common_are_refused_for_that() -> None:
    base = make_report(workloads=[make_workload(32), make_workload(64)])
    other = make_report(workloads=[make_workload(128)])
    error = refused(base, other, allow={"lengths"})
    assert error.problem == "The reports have no workload in common that could be compared."
    assert error.facts["found"] == "A: workloads pp32+tg16, pp64+tg16\nB: workloads pp128+tg16"
    assert "route" not in error.facts["fix"]
    neither = refused(base, make_report({"one": 1.0}, workloads=other.workloads), allow={"lengths"})
    assert neither.problem.startswith("The reports have no route and no workload in common")


def test_of_very_many_only_the_first_few_are_named() -> None:
    one, two = (
        make_report([make_route(f"{name}{index}", ()) for index in range(3000)]) for name in "ab"
    )
    first = ", ".join(f"a{index}" for index in range(8))
    assert refused(one, two).facts["found"].startswith(f"A: routes {first}, 2,992 more\nB: ")
    long_, short = (
        make_report({"config": 1.0}, workloads=[make_workload(32, n) for n in range(1, count)])
        for count in (41, 2)
    )
    assert differences(long_, short)[7:] == ["lengths: only A has pp32+tg9", "31 more"]


def test_a_route_that_failed_is_listed_with_its_reason() -> None:
    base = make_report([make_route("config"), failed_route("ep=qnn")])
    other = make_report([make_route("config"), make_route("ep=qnn")])
    found = compare(base, other)
    reason = "unavailable during loading: QNNExecutionProvider is not installed here."
    assert found.failed == (("ep=qnn", f"ep=qnn failed in A: {reason}"),)
    assert compare(other, base).failed == (("ep=qnn", f"ep=qnn failed in B: {reason}"),)
    assert row(found, "request_s", "ep=qnn").ratio is None
    assert row(found, "request_s", "ep=qnn").verdict == "cannot tell"


def test_workloads_are_matched_in_any_order() -> None:
    short, long_ = make_workload(32), make_workload(512)
    base = make_report({"config": 1.0}, workloads=[short, long_], noise=0.0)
    other = make_report({"config": 1.0}, workloads=[long_, short], noise=0.0)
    found = compare(base, other, figures=["model_ttft_s"])
    assert [item.workload for item in found.rows] == ["pp32+tg16", "pp512+tg16"]
    assert [item.ratio for item in found.rows] == [Ratio(pytest.approx(1.0), (1.0, 1.0))] * 2


def test_workloads_that_only_one_has_are_refused_or_left_out() -> None:
    base = make_report({"config": 1.0}, workloads=[make_workload(32), make_workload(128)])
    other = make_report({"config": 1.0}, workloads=[make_workload(512), make_workload(32)])
    assert differences(base, other) == [
        "lengths: only A has pp128+tg16",
        "lengths: only B has pp512+tg16",
    ]
    found = compare(base, other, allow={"lengths"})
    assert {item.workload for item in found.rows} == {"pp32+tg16"}
    assert found.alone == (
        Alone("A", "workload", "pp128+tg16"),
        Alone("B", "workload", "pp512+tg16"),
    )
    assert found.notes == (
        "allowed: lengths: only A has pp128+tg16",
        "allowed: lengths: only B has pp512+tg16",
    )


# ---- unlike reports ----------------------------------------------------------------------------


def with_workload(**fields: Any) -> Report:
    return make_report(workloads=[make_workload(**fields)])


def asked(prompt: str, **fields: Any) -> Workload:
    return make_workload(prompt=prompt, templated=True, prompt_ids_sha256="e1" * 32, **fields)


def test_reports_of_other_bundles_are_refused_saying_how_to_allow_it() -> None:
    base = make_report()
    other = make_report(bundle=change(base.bundle, name="smaller", content_sha256="c1" * 32))
    error = refused(base, other)
    assert error.facts["found"] == (
        "bundle: A measured smollm2 (b0b0b0b0b0b0), B smaller (c1c1c1c1c1c1)"
    )
    assert error.facts["fix"].endswith("--allow bundle")
    assert compare(base, other, allow={"bundle"}).notes == (
        "allowed: bundle: A measured smollm2 (b0b0b0b0b0b0), B smaller (c1c1c1c1c1c1)",
    )


def test_the_same_bundle_elsewhere_is_the_same() -> None:
    base = make_report()
    other = make_report(bundle=change(base.bundle, name="renamed", path="/elsewhere/renamed"))
    assert compare(base, other).rows


@pytest.mark.parametrize(
    ("base", "other", "expected"),
    [
        (
            make_workload(),
            make_workload(prompt_ids_sha256="f" * 64),
            ["prompt: pp32+tg16: the token ids of the prompt are others"],
        ),
        (
            asked("What is a turnout?"),
            asked("x" * 60),
            [f"prompt: pp32+tg16: A asked 'What is a turnout?', B '{'x' * 40}...'"],
        ),
        (
            asked("What is a turnout?"),
            make_workload(),
            ["prompt: pp32+tg16: A asked 'What is a turnout?', B made-up tokens"],
        ),
        (
            asked("Hello"),
            change(asked("Hello"), templated=False),
            ["prompt: pp32+tg16: only A used the chat template"],
        ),
        # Other made-up tokens are no difference of their own where their number differs.
        (
            make_workload(32),
            make_workload(64),
            ["lengths: pp32+tg16: tokens of the prompt: A 32, B 64"],
        ),
        (
            make_workload(32, 16),
            make_workload(32, 128),
            ["lengths: pp32+tg16: new tokens at most: A 16, B 128"],
        ),
        (
            asked("Hello"),
            asked("Goodbye", prompt_tokens=40, max_new_tokens=8),
            [
                "prompt: pp32+tg16: A asked 'Hello', B 'Goodbye'",
                "lengths: pp32+tg16: tokens of the prompt: A 32, B 40",
                "lengths: pp32+tg16: new tokens at most: A 16, B 8",
            ],
        ),
    ],
)
def test_other_prompts_and_lengths_are_refused_each_named(
    base: Workload, other: Workload, expected: list[str]
) -> None:
    reports = make_report(workloads=[base]), make_report(workloads=[other])
    assert differences(*reports) == expected
    kinds = {line.partition(":")[0] for line in expected}
    assert set(compare(*reports, allow=kinds).notes) >= {f"allowed: {line}" for line in expected}
    for kind in kinds:
        missing = refused(*reports, allow=kinds - {kind})
        assert missing.facts["found"].startswith(kind)


def test_what_no_route_got_as_far_as_to_count_is_no_difference() -> None:
    unknown = change(make_workload(), prompt_tokens=None, prompt_ids_sha256=None)
    assert compare(make_report(), make_report(workloads=[unknown])).rows


def test_going_on_after_the_end_of_a_text_is_a_difference_of_lengths() -> None:
    base = make_report()
    other = make_report(settings=change(base.settings, ignore_eos=True))
    assert differences(base, other) == [
        "lengths: only B went on after the end of a text (--ignore-eos)"
    ]


def test_every_difference_is_named_at_once_and_what_is_allowed_stays_so() -> None:
    base = make_report()
    other = make_report(
        workloads=[make_workload(32, 8)],
        bundle=change(base.bundle, content_sha256="c1" * 32),
        settings=change(base.settings, ignore_eos=True),
    )
    error = refused(base, other)
    assert [line.partition(":")[0] for line in error.facts["found"].split("\n")] == [
        "bundle",
        "lengths",
        "lengths",
    ]
    assert error.facts["fix"].endswith("--allow bundle,lengths")
    partly = refused(base, other, allow={"bundle"})
    assert partly.facts["fix"].endswith("--allow bundle,lengths")
    assert compare(base, other, allow=likeness.kinds(["all"])).rows


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], set()),
        (["bundle"], {"bundle"}),
        (["Bundle, prompt", "lengths"], {"bundle", "prompt", "lengths"}),
        (["all"], {"bundle", "prompt", "lengths"}),
    ],
)
def test_kinds_of_differences_come_in_words(words: list[str], expected: set[str]) -> None:
    assert likeness.kinds(words) == expected


def test_an_unknown_kind_of_difference_is_refused_naming_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        likeness.kinds(["bundle,machine"])
    assert caught.value.facts["found"] == "'machine'"
    assert caught.value.facts["expected"] == "bundle, prompt, lengths, all"


def test_machines_versions_and_settings_are_told_and_never_refused() -> None:
    base = make_report()
    other = make_report(
        environment=make_environment(
            cpu="Other CPU",
            runtimes={"onnxruntime": "1.33.0"},
            plugins={},
            usable_cores=None,
            load_average=5.25,
        ),
        settings=change(base.settings, iterations=20, memory=False),
        complete=False,
        requests_planned=44,
    )
    assert compare(base, other).notes == (
        "CPU: A Example CPU 3000, B Other CPU",
        "usable cores: A 2, B unknown",
        "onnxruntime: A 1.32.0, B 1.33.0",
        "onnxruntime-genai: A 0.18.0, B unknown",
        "openvino: A 1.8.1, B unknown",
        "iterations: A 10, B 20",
        "memory: A yes, B no",
        "B is not complete: it holds 22 of 44 requests",
    )


def test_a_machine_that_was_busy_before_is_told() -> None:
    busy = make_report(environment=make_environment(load_average=5.25))
    assert compare(make_report(seed=1), busy).notes == (
        "B began on a busy machine: a load average of 5.2 on 2 cores",
    )


def test_one_of_a_thing_is_no_plural() -> None:
    base = make_report({"config": 1.0})
    one = [change(request, decode_s=(), generated_tokens=1) for request in make_requests()]
    lone = make_report(
        [make_route("config", one)],
        environment=make_environment(usable_cores=1, load_average=2.0),
        complete=False,
        requests_planned=1,
        requests_held=0,
    )
    notes = compare(lone, base).notes
    assert "A is not complete: it holds 0 of 1 request" in notes
    assert "A began on a busy machine: a load average of 2.0 on 1 core" in notes
    assert any("answers have 1 token in A, 16 in B (medians)" in note for note in notes)


def test_answers_of_other_lengths_are_a_note() -> None:
    base = make_report({"config": 1.0})
    short = [
        change(request, decode_s=request.decode_s[:9], generated_tokens=10)
        for request in make_requests()
    ]
    found = compare(base, make_report([make_route("config", short)]))
    assert found.notes == (
        "config, pp32+tg16: answers have 16 tokens in A, 10 in B (medians), "
        "which request_s follows",
    )


# ---- answers -----------------------------------------------------------------------------------


def answering(*hashes: str) -> Report:
    requests = [
        change(request, token_ids_sha256=hashes[request.round % len(hashes)], text=hashes[-1])
        for request in make_requests()
    ]
    return make_report([make_route("config", requests)])


def test_answers_that_changed_are_found_with_a_text_of_each() -> None:
    found = compare(answering("a"), answering("b"))
    (changed,) = found.changed
    assert (changed.route, changed.workload) == ("config", "pp32+tg16")
    assert (changed.base, changed.other) == ("a", "b")


@pytest.mark.parametrize(
    ("base", "other", "changed"),
    [
        (("a",), ("a",), False),
        (("a", "b"), ("b", "a"), False),
        (("a", "b"), ("a",), True),
        (("a",), ("a", "b"), True),
    ],
)
def test_answers_are_the_same_where_the_same_ones_were_given(
    base: tuple[str, ...], other: tuple[str, ...], changed: bool
) -> None:
    assert bool(compare(answering(*base), answering(*other)).changed) is changed
