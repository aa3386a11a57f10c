"""A report's results as rows, sentences and Markdown."""

from __future__ import annotations

import re
from typing import Any

import pytest
from markdown_it import MarkdownIt

from report_fixtures import (
    change,
    failed_route,
    make_bytes,
    make_environment,
    make_report,
    make_request,
    make_requests,
    make_route,
    make_workload,
    no_statistics,
)
from turnout.perf import answers, summary, tables, wording
from turnout.perf.markdown import code, escaped, markdown
from turnout.perf.report import Comparison, Failure, Report, RouteMemory, WorkloadResult
from turnout.perf.tables import Row


def comparison(ratio: float, **fields: Any) -> Comparison:
    known = Comparison(
        route="ep=openvino",
        base="config",
        workload=0,
        figure="decode_tokens_per_second",
        ratio=ratio,
        interval=(1.49, 1.56),
        pairs=10,
        verdict="faster",
    )
    return change(known, **fields)


def with_comparisons(*comparisons: Comparison, workloads: int = 1) -> Report:
    return make_report(
        workloads=[make_workload(32 * (index + 1)) for index in range(workloads)],
        comparisons=comparisons,
    )


def texts(report: Report) -> list[str]:
    return [said.text for said in summary.sentences(report)]


# Rows.


def test_a_workload_is_a_row_for_the_prompt_and_one_for_the_tokens() -> None:
    """By hand: 32 tokens in 80 and 160 ms are 400 and 200 a second; their deviation is 141.42."""
    requests = [
        make_request(prefill_s=0.08, first_token_s=0.02, decode_s=[0.01, 0.03], round=0),
        make_request(prefill_s=0.16, first_token_s=0.02, decode_s=[0.05, 0.05], round=1),
    ]
    route = make_route("ep=cpu", requests, memory=memory(peak=250.5))
    report = make_report([route], workloads=[make_workload(32, 3)])
    prefill, tokens = tables.rows(report)
    of_both = {"route": "ep=cpu", "effective": "cpu", "load_s": 0.471, "peak_bytes": 250_500_000}
    assert prefill == Row(
        **of_both,
        test="pp32",
        workload=0,
        tokens_per_second=300,
        stdev=pytest.approx(141.421356),
        samples=2,
        time_label="TTFT",
        # 1.7 ms around the model; the median of 101.7 and 181.7 ms.
        time_s=pytest.approx(0.1417),
    )
    assert tokens == Row(
        **of_both,
        test="tg3 @ d32",
        workload=0,
        tokens_per_second=35,  # 50 and 20
        stdev=pytest.approx(21.213203),
        samples=2,
        time_label="TPOT",
        time_s=pytest.approx(0.035),
    )


def memory(peak: float) -> RouteMemory:
    return RouteMemory(baseline=None, loaded=None, peak=make_bytes(peak), children_peak=None)


def test_of_one_request_the_time_is_that_requests() -> None:
    route = make_route("config", [make_request(prefill_s=0.1, decode_s=[0.03])])
    prefill, tokens = tables.rows(make_report([route]))
    assert prefill.time_s == pytest.approx(0.1217)
    assert tokens.time_s == pytest.approx(0.03)
    assert (prefill.stdev, prefill.samples) == (None, 1)


def test_a_slow_request_does_not_move_the_time_but_moves_the_deviation() -> None:
    usual = [make_request(decode_s=[0.02] * 4, round=index) for index in range(9)]
    slow = make_request(decode_s=[2.0] * 4, round=9)
    row = tables.rows(make_report([make_route("config", [*usual, slow])]))[1]
    assert row.time_s == pytest.approx(0.02)
    assert row.stdev is not None
    assert row.stdev > 10


def test_an_answer_of_one_token_has_no_row_for_tokens() -> None:
    route = make_route("config", [make_request(decode_s=())])
    report = make_report([route], workloads=[make_workload(32, 1)])
    assert [row.test for row in tables.rows(report)] == ["pp32"]


def test_a_failed_route_is_a_row_with_its_reason() -> None:
    found = tables.rows(make_report([make_route(), failed_route("ep=qnn")]))
    assert [row.route for row in found] == ["config", "config", "ep=qnn"]
    assert found[2] == Row(
        "ep=qnn",
        "qnn",
        error="unavailable during loading: QNNExecutionProvider is not installed here.",
    )


def test_a_route_that_crashed_on_the_way_has_its_rows_and_one_more() -> None:
    error = Failure(kind="crashed", during="request 4 of 10", problem="signal 11", facts={})
    route = make_route("ep=openvino", make_requests(3), error=error)
    found = tables.rows(make_report([route]))
    assert [row.test for row in found] == ["pp32", "tg16 @ d32", ""]
    assert [row.error for row in found] == [None, None, "crashed during request 4 of 10: signal 11"]
    assert found[2].load_s == 0.471


def test_a_route_that_an_interrupt_came_before_says_that_nothing_was_measured() -> None:
    empty = WorkloadResult(workload=0, aggregate=no_statistics(), token_ids_sha256=())
    route = make_route("config", (), load=None, memory=None, workloads=(empty,))
    (row,) = tables.rows(make_report([route]))
    assert row == Row("config", "config", error="nothing was measured")


def test_memory_that_was_not_measured_is_none() -> None:
    nothing = RouteMemory(baseline=None, loaded=None, peak=None, children_peak=None)
    for route in (make_route(memory=None), make_route(memory=nothing)):
        assert {row.peak_bytes for row in tables.rows(make_report([route]))} == {None}


def test_tests_of_a_sweep_have_names_of_their_own() -> None:
    workloads = [make_workload(32, 16), make_workload(32, 64), make_workload(128, 16)]
    workloads += [make_workload(128, 16, prompt="another")]
    found = tables.rows(make_report({"config": 1.0}, workloads=workloads, rounds=2))
    assert [row.test for row in found] == [
        "pp32 before tg16",
        "tg16 @ d32",
        "pp32 before tg64",
        "tg64 @ d32",
        "pp128 before tg16 #3",
        "tg16 @ d128 #3",
        "pp128 before tg16 #4",
        "tg16 @ d128 #4",
    ]


def test_a_prompt_that_was_never_counted_is_of_unknown_length() -> None:
    workload = make_workload(prompt=None)
    report = make_report({"config": 1.0}, workloads=[change(workload, prompt_tokens=None)])
    assert [row.test for row in tables.rows(report)] == ["pp?", "tg16 @ d?"]


def test_results_of_a_workload_that_is_not_there_are_left_out() -> None:
    route = make_route()
    elsewhere = tuple(change(result, workload=7) for result in route.workloads)
    (row,) = tables.rows(make_report([change(route, workloads=elsewhere)]))
    assert row.error == "nothing was measured"


def test_answers_that_ended_early_are_noted() -> None:
    short = make_route("config", [make_request(decode_s=[0.02] * n) for n in (6, 8)])
    report = make_report([short], workloads=[make_workload(32, 128)])
    assert tables.notes(report) == ["tg128 @ d32: answers had 7 to 9 tokens."]
    assert tables.notes(make_report()) == []


def test_cells_are_the_rows_in_words() -> None:
    report = make_report([make_route("ep=cpu", make_requests(2, noise=0), memory=memory(1250))])
    assert [tables.cells(row) for row in tables.rows(report)] == [
        ("ep=cpu", "cpu", "pp32", "400.00 ± 0.00", "TTFT 101.7 ms", "471.0 ms", "1.25 GB"),
        ("ep=cpu", "cpu", "tg16 @ d32", "50.00 ± 0.00", "TPOT 20.0 ms", "471.0 ms", "1.25 GB"),
    ]
    (row,) = tables.rows(make_report([failed_route(kind="hung", during="loading", problem="x")]))
    assert tables.cells(row) == ("ep=qnn", "qnn", "-", "hung during loading: x", "-", "-", "-")


# Words.


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.00085, "0.85 ms"),
        (0.0099, "9.90 ms"),
        (0.00996, "10.0 ms"),
        (0.3112, "311.2 ms"),
        (0.99994, "999.9 ms"),
        (0.99996, "1.00 s"),
        (75.5, "75.50 s"),
        (1e300, "1.000e+300 s"),
    ],
)
def test_seconds_read_in_a_fitting_unit(value: float | None, words: str) -> None:
    assert wording.seconds(value) == words


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (None, "-"),
        (0, "0.0 kB"),
        (999_499, "999.5 kB"),
        (999_500, "1 MB"),
        (275_400_000, "275 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1.00 GB"),
        (10**400, "1000000.00 GB"),
    ],
)
def test_sizes_read_in_a_fitting_unit(nbytes: int | None, words: str) -> None:
    assert wording.size(nbytes) == words


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (comparison(1.52), "ep=openvino decodes 1.52 times as fast as config (1.49 to 1.56)"),
        (
            comparison(0.8, interval=(0.78, 0.83), verdict="slower"),
            "ep=openvino decodes 0.80 times as fast as config (0.78 to 0.83)",
        ),
        (
            comparison(1.01, interval=(0.98, 1.03), verdict="cannot tell"),
            "cannot tell whether ep=openvino decodes faster or slower than config"
            " (1.01 times, 0.98 to 1.03)",
        ),
        (
            comparison(1.5, interval=None, pairs=3, verdict="cannot tell"),
            "cannot tell whether ep=openvino decodes faster or slower than config"
            " (1.50 times, too few pairs: 3)",
        ),
        (
            comparison(0.66, figure="model_ttft_s", interval=(0.61, 0.68)),
            "ep=openvino takes 0.66 times as long as config from the prefill to the first token"
            " (0.61 to 0.68)",
        ),
        (
            comparison(0.66, figure="made_up", interval=(0.61, 0.68)),
            "ep=openvino takes 0.66 times as long as config by made_up (0.61 to 0.68)",
        ),
    ],
)
def test_a_comparison_is_a_sentence(found: Comparison, sentence: str) -> None:
    assert wording.verdict(found) == sentence


def test_what_a_report_lacks_is_said() -> None:
    complete = make_report()
    assert wording.state(complete) == ""
    held = {"complete": False, "requests_held": 7, "requests_planned": 22}
    assert (
        wording.state(change(complete, **held, interrupted=True))
        == "Incomplete: it was interrupted. The report holds 7 of 22 requests."
    )
    routes = (*complete.routes, failed_route())
    assert (
        wording.state(change(complete, **held, routes=routes))
        == "Incomplete: 1 of 3 routes failed. The report holds 7 of 22 requests."
    )
    assert wording.state(change(complete, **held, routes=routes, interrupted=True)).startswith(
        "Incomplete: 1 of 3 routes failed and it was interrupted."
    )


# Sentences.


def test_the_summary_has_a_sentence_a_route_and_figure() -> None:
    slower = comparison(0.7, route="ep=cpu", interval=(0.69, 0.71), verdict="slower")
    found = with_comparisons(comparison(1.52), slower, comparison(1.4, figure="request_s"))
    assert texts(found) == [
        "ep=openvino decodes 1.52 times as fast as config (1.49 to 1.56).",
        "ep=cpu decodes 0.70 times as fast as config (0.69 to 0.71).",
        "All 2 routes gave the same tokens.",
    ]
    assert [said.verdict for said in summary.sentences(found)] == ["faster", "slower", ""]


def test_one_verdict_of_all_workloads_is_said_once() -> None:
    both = [comparison(1.4, workload=0), comparison(1.52, workload=1)]
    assert texts(with_comparisons(*both, workloads=2))[0] == (
        "ep=openvino decodes 1.40 to 1.52 times as fast as config in both workloads."
    )
    open_questions = [
        comparison(1.0, workload=index, interval=(0.9, 1.1), verdict="cannot tell")
        for index in range(3)
    ]
    assert texts(with_comparisons(*open_questions, workloads=3))[0] == (
        "Cannot tell of any of 3 workloads whether ep=openvino decodes faster or slower"
        " than config."
    )


def test_verdicts_that_differ_by_workload_are_said_for_each() -> None:
    slower = comparison(0.8, workload=1, interval=(0.7, 0.9), verdict="slower")
    elsewhere = comparison(1.5, workload=9)
    assert texts(with_comparisons(comparison(1.52), slower, elsewhere, workloads=2))[:3] == [
        "pp32+tg16: ep=openvino decodes 1.52 times as fast as config (1.49 to 1.56).",
        "pp64+tg16: ep=openvino decodes 0.80 times as fast as config (0.70 to 0.90).",
        "workload 9: ep=openvino decodes 1.50 times as fast as config (1.49 to 1.56).",
    ]


def test_of_a_single_route_the_summary_says_what_it_does() -> None:
    report = make_report([make_route("config", make_requests(2, noise=0))])
    assert texts(report) == [
        "config: 400.00 ± 0.00 tokens/s in pp32, TTFT 101.7 ms.",
        "config: 50.00 ± 0.00 tokens/s in tg16 @ d32, TPOT 20.0 ms.",
    ]


def answering(name: str, *hashes: str, workloads: int = 1) -> Any:
    return make_route(
        name,
        workloads=tuple(
            WorkloadResult(workload=index, aggregate=no_statistics(), token_ids_sha256=hashes)
            for index in range(workloads)
        ),
    )


@pytest.mark.parametrize(
    ("routes", "sentence"),
    [
        ({"a": "1"}, ""),
        ({"a": ""}, ""),
        ({"a": "1", "b": "1"}, "All 2 routes gave the same tokens."),
        ({"a": "1", "b": "2"}, "Answers differ: a; otherwise b."),
        (
            {"a": "1", "b": "2", "c": "1", "d": "3"},
            "Answers differ: a, c; otherwise b; otherwise d.",
        ),
        ({"a": "12"}, "Different answers to one prompt: a gave 2."),
        (
            {"a": "1", "b": "123", "c": "1"},
            "All 2 routes gave the same tokens. Different answers to one prompt: b gave 3.",
        ),
    ],
)
def test_whether_routes_agree_is_judged_by_their_tokens(
    routes: dict[str, str], sentence: str
) -> None:
    report = make_report([answering(name, *hashes) for name, hashes in routes.items()])
    assert answers.agreement(report, 0) == sentence


def test_of_several_workloads_only_differences_are_listed() -> None:
    workloads = [make_workload(32), make_workload(64)]
    alike = make_report([answering("a", "1", workloads=2), answering("b", "1", workloads=2)])
    assert [said.text for said in summary.agreement(change(alike, workloads=tuple(workloads)))] == [
        "Routes gave the same tokens for every workload."
    ]
    other = answering("b", "1", workloads=2)
    first, second = other.workloads
    other = change(other, workloads=(first, change(second, token_ids_sha256=("2",))))
    report = make_report([answering("a", "1", workloads=2), other], workloads=workloads)
    assert [said.text for said in summary.agreement(report)] == [
        "pp64+tg16: Answers differ: a; otherwise b."
    ]


# Markdown, read by a parser that is not ours.


def parsed(text: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def table_of(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]


def test_markdown_is_the_table_the_sentences_and_where_it_was_measured() -> None:
    report = with_comparisons(comparison(1.52))
    html = parsed(markdown(report))
    head, *rows = table_of(html)
    assert head == list(tables.HEAD)
    assert [row[0] for row in rows] == ["<code>config</code>"] * 2 + [
        "<code>ep=openvino</code>"
    ] * 2
    assert [row[2:] for row in rows] == [list(tables.cells(r)[2:]) for r in tables.rows(report)]
    assert (
        "<li><code>ep=openvino</code> decodes 1.52 times as fast as <code>config</code>"
        " (1.49 to 1.56).</li>" in html
    )
    assert "Bundle <code>smollm2</code> (b0b0b0b0b0b0) on Example CPU 3000, 2 cores" in html
    assert "onnxruntime-genai 0.18.0" in html
    assert "10 timed requests of a route and workload, 1 for warm-up." in html


def test_markdown_says_one_request_of_one() -> None:
    report = make_report(rounds=1, environment=make_environment(usable_cores=1))
    assert ", 1 core, " in markdown(report)
    assert " 1 timed request of a route and workload, 1 for warm-up." in markdown(report)


def test_markdown_of_an_incomplete_report_begins_with_that() -> None:
    text = markdown(make_report([failed_route()], complete=False, requests_planned=11))
    assert text.startswith(
        "**Incomplete: 1 of 1 route failed. The report holds 0 of 11 requests.**"
    )
    assert "QNNExecutionProvider is not installed here." in parsed(text)


HOSTILE = "a|b `c` ``d`` \\| \n| x | y |\n<script>*e* _f_ [g](h) @everyone #1 <b>&amp; $x$ ~~i~~"


def test_a_hostile_name_stays_in_its_cell() -> None:
    routes = [
        make_route(HOSTILE, effective=HOSTILE),
        make_route("b", effective=HOSTILE),
        failed_route(HOSTILE, problem=HOSTILE, during=HOSTILE),
    ]
    report = make_report(routes, created=HOSTILE)
    report = change(report, bundle=change(report.bundle, name=HOSTILE, content_sha256=HOSTILE))
    environment = change(report.environment, cpu=HOSTILE, os=HOSTILE, plugins={HOSTILE: HOSTILE})
    html = parsed(markdown(change(report, environment=environment)))
    assert [len(row) for row in table_of(html)] == [7] * 6
    kept = set(re.findall(r"</?([a-z]+)", html))
    assert kept <= {"p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code", "ul", "li"}
    # Outside of code no user is called.
    assert not re.search(r"@\w", re.sub(r"<code>.*?</code>", "", html, flags=re.DOTALL))


@pytest.mark.parametrize("name", ["plain", "a|b", "`", "``a`", "a`` b", " padded ", "", "a\\|b"])
def test_a_name_in_code_reads_as_it_is(name: str) -> None:
    html = parsed(f"| h |\n| --- |\n| {code(name)} |\n")
    shown = name.strip().replace("\\|", "\\ |")  # where a backslash would escape the pipe
    assert table_of(html)[1] == [f"<code>{shown or ' '}</code>"]


def test_escaped_text_reads_as_it_is() -> None:
    assert parsed(escaped("1 < 2 & *a* `b` [c](d) | \n e")) == (
        "<p>1 &lt; 2 &amp; *a* `b` [c](d) | e</p>\n"
    )
