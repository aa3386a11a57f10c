"""The results as rows of plain values, which the terminal, Markdown and the page all show.

A workload makes two tests, named as llama-bench does: `pp512` is the prefill of 512 prompt tokens,
`tg128 @ d512` is up to 128 tokens after them. Tokens/s are means with the standard deviation of
the sample, as llama-bench has them, over requests. The time beside them is a median, which one
slow request does not move (of one request, that request's): request TTFT for a prefill, TPOT for
tokens.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from turnout.perf import wording

if TYPE_CHECKING:
    from turnout.perf.report import Aggregate, Report, RouteReport, Statistics, Workload

HEAD = ("Route", "Took effect", "Test", "Tokens/s", "TTFT / TPOT", "Load", "Peak memory")
TTFT = "TTFT"
TPOT = "TPOT"
# How the note begins that says why it is not known where nodes ran.
NOT_PLACED = "could not be measured"


@dataclass(frozen=True)
class Row:
    """One test on one route. None is what was not measured.

    A route that failed, or of which nothing was measured, has a last row without a `test`;
    `error` is why. `time_label` says what `time_s` is.
    """

    route: str
    effective: str
    test: str = ""
    workload: int | None = None
    tokens_per_second: float | None = None
    stdev: float | None = None
    samples: int = 0
    time_label: str = ""
    time_s: float | None = None
    load_s: float | None = None
    peak_bytes: int | None = None
    error: str | None = None


def rows(report: Report) -> list[Row]:
    """A row a test of every route, in the report's order; `peak_bytes` is RSS of its process."""
    return [row for _, own in by_route(report) for row in own]


def by_route(report: Report) -> list[tuple[RouteReport, list[Row]]]:
    """Every route with its rows: at least one."""
    tests = [_tests(report.workloads, index) for index in range(len(report.workloads))]
    return [(route, list(_route(route, tests))) for route in report.routes]


def cells(row: Row) -> tuple[str, ...]:
    """The row in words, a cell a column of `HEAD`, "-" for what was not measured."""
    time = wording.seconds(row.time_s)
    return (
        row.route,
        row.effective,
        row.test or wording.MISSING,
        row.error or wording.rate(row.tokens_per_second, row.stdev),
        f"{row.time_label} {time}" if row.time_label else time,
        wording.seconds(row.load_s),
        wording.size(row.peak_bytes),
    )


def notes(report: Report) -> list[str]:
    """What has to be known to read the table right."""
    return [*_short_answers(report), *_compiled(report), *_unplaced(report)]


def _short_answers(report: Report) -> Iterator[str]:
    """Answers that ended before their length."""
    for index, workload in enumerate(report.workloads):
        lengths = [
            request.generated_tokens
            for route in report.routes
            for request in route.requests
            if request.workload == index and request.kind == "timed"
        ]
        if lengths and min(lengths) < workload.max_new_tokens:
            few, most = min(lengths), max(lengths)
            counted = f"{few}" if few == most else f"{few} to {most}"
            test = _tests(report.workloads, index)[1]
            yield f"{test}: answers had {counted} token{'' if most == 1 else 's'}."


def _compiled(report: Report) -> Iterator[str]:
    """Loads that have compiling in them, which happens once."""
    for route in report.routes:
        compiled = (route.prepared or {}).get("compiled_now")
        if compiled and route.load is not None:
            took = wording.seconds(route.load.preparation_s)
            names = ", ".join(map(str, compiled)) if isinstance(compiled, list) else ""
            yield f"{route.name}: {took} of the load went into compiling {names}, which is stored."


def _unplaced(report: Report) -> Iterator[str]:
    """Where it could not be found out where nodes ran."""
    for route in report.routes:
        if route.placed is None and route.placed_note.startswith(NOT_PLACED):
            yield f"{route.name}: where nodes ran {route.placed_note}"


def _route(route: RouteReport, tests: Sequence[tuple[str, str]]) -> Iterator[Row]:
    peak = route.memory.peak if route.memory is not None else None
    of_route = Row(
        route.name,
        route.effective,
        load_s=route.load.total_s if route.load is not None else None,
        peak_bytes=peak.rss_bytes if peak is not None else None,
    )
    measured = False
    for result in route.workloads:
        if not 0 <= result.workload < len(tests):
            continue  # of a report that somebody else wrote
        for test, figures in zip(tests[result.workload], _figures(result.aggregate), strict=True):
            label, rate, time = figures
            if rate is None and time is None:
                continue
            measured = True
            yield replace(
                of_route,
                test=test,
                workload=result.workload,
                tokens_per_second=rate.mean if rate is not None else None,
                stdev=rate.stdev if rate is not None else None,
                samples=rate.samples if rate is not None else 0,
                time_label=label,
                time_s=median(time),
            )
    if route.error is not None:
        yield replace(of_route, error=wording.failure(route.error))
    elif not measured:
        yield replace(of_route, error="nothing was measured")


def median(figure: Statistics | None) -> float | None:
    """The median, which for one value is that value."""
    if figure is None:
        return None
    return figure.mean if figure.p50 is None else figure.p50


def _figures(
    aggregate: Aggregate,
) -> tuple[tuple[str, Statistics | None, Statistics | None], ...]:
    """Label of the time, tokens/s, and time, of the prefill and of the tokens after it."""
    return (
        (TTFT, aggregate.prefill_tokens_per_second, aggregate.request_ttft_s),
        (TPOT, aggregate.decode_tokens_per_second, aggregate.tpot_s),
    )


def _tests(workloads: Sequence[Workload], index: int) -> tuple[str, str]:
    """Names of a workload's two tests; what would be two of one name is told apart."""
    names = [_plain(workload) for workload in workloads]
    prefill, tokens = names[index]
    if collections.Counter(prefill for prefill, _ in names)[prefill] > 1:
        prefill = f"{prefill} before tg{workloads[index].max_new_tokens}"
    if collections.Counter(names)[names[index]] > 1:
        return f"{prefill} #{index + 1}", f"{tokens} #{index + 1}"
    return prefill, tokens


def _plain(workload: Workload) -> tuple[str, str]:
    prompt = "?" if workload.prompt_tokens is None else workload.prompt_tokens
    return f"pp{prompt}", f"tg{workload.max_new_tokens} @ d{prompt}"
