"""What the page of a report says, in words and rows; the templates only lay it out."""

from __future__ import annotations

import collections
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from turnout.perf import summary, tables, wording
from turnout.perf.page import durations, resources
from turnout.perf.page.answers import answers_view
from turnout.perf.page.marks import COLOURS
from turnout.perf.page.parts import Chart
from turnout.perf.page.stages import stages_view
from turnout.perf.report import FIGURES, Report, Statistics, Workload

MOST_SENTENCES = 16
_MARKS = {"faster": "▲", "slower": "▼", "cannot tell": "○", "": "·"}


def view(report: Report) -> dict[str, Any]:
    """Everything that the template of a report names."""
    sentences = summary.sentences(report)
    return {
        "report": report,
        "created": _created(report.created),
        "state": wording.state(report),
        "verdicts": [
            {
                "text": said.text,
                "kind": said.verdict.replace(" ", "-"),
                "mark": _MARKS[said.verdict],
            }
            for said in sentences[:MOST_SENTENCES]
        ],
        "more_verdicts": max(len(sentences) - MOST_SENTENCES, 0),
        "head": tables.HEAD,
        "results": _results(report),
        "notes": tables.notes(report),
        "failures": [route for route in report.routes if route.error is not None],
        "workloads": [
            {"name": workload.name, "says": _of_workload(workload)} for workload in report.workloads
        ],
        "legend": [
            {"name": route.name, "colour": index % COLOURS, "route": index}
            for index, route in enumerate(report.routes)
            if route.requests
        ],
        "charts": _charts(report),
        "loads": _loads(report),
        "memories": _memories(report),
        "comparisons": _comparisons(report),
        "stages": stages_view(report),
        "answers": answers_view(report),
        "statistics": list(_statistics(report)),
        "environment": list(_environment(report)),
        "settings": list(_settings(report)),
        "command": shlex.join(report.command),
    }


def _created(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else text


def _results(report: Report) -> list[dict[str, Any]]:
    """Rows of the table, a group a route; `share` is the rate by the best of its test, in %."""
    rates: dict[str, list[float]] = collections.defaultdict(list)
    for row in tables.rows(report):
        rates[row.test] += [] if row.tokens_per_second is None else [row.tokens_per_second]
    return [
        {
            "name": route.name,
            "effective": route.effective,
            "colour": index % COLOURS,
            "rows": [
                {
                    "cells": tables.cells(row),
                    "error": row.error,
                    "samples": row.samples,
                    "share": _share(row.tokens_per_second, rates[row.test]),
                }
                for row in rows
            ],
        }
        for index, (route, rows) in enumerate(tables.by_route(report))
    ]


def _share(rate: float | None, rates: Sequence[float]) -> int | None:
    best = max(rates, default=0.0)
    compared = rate is not None and len(rates) > 1 and best > 0
    return round(100 * (max(rate or 0.0, 0.0) / best)) if compared else None


def _charts(report: Report) -> dict[str, list[Chart]]:
    over_time = [
        chart
        for index in range(len(report.workloads))
        for chart in durations.of_workload(report, index)
    ]
    memory, load = resources.memory(report), resources.load(report)
    return {
        "durations": over_time,
        "memory": [memory] if memory is not None else [],
        "load": [load] if load is not None else [],
    }


def _of_workload(workload: Workload) -> str:
    count = workload.prompt_tokens
    what = "tokens" if workload.prompt is not None else "made-up tokens"
    size = f"{count:,} {what}" if count is not None else "unknown length"
    template = ", through the chat template" if workload.templated else ""
    return f"A prompt of {size}{template}; at most {workload.max_new_tokens:,} new tokens."


def _loads(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            route.name,
            *(wording.seconds(getattr(route.load, f"{p}_s")) for p in resources.LOAD_PARTS),
            wording.seconds(route.load.total_s),
            wording.seconds(route.cold_start_s),
        )
        for route in report.routes
        if route.load is not None
    ]


def _memories(report: Report) -> list[tuple[str, ...]]:
    """RSS, PSS and private memory of each route at each of the moments that have them."""
    rows = []
    for route in report.routes:
        held = route.memory
        if held is None:
            continue
        moments = {
            "before loading": held.baseline,
            "after loading": held.loaded,
            "at most": held.peak,
            "child processes, at most": held.children_peak,
        }
        for moment, memory in moments.items():
            if memory is not None and memory.rss_bytes:
                sizes = (memory.rss_bytes, memory.pss_bytes, memory.private_bytes)
                rows.append((route.name, moment, *map(wording.size, sizes)))
    return rows


def _comparisons(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            f"{c.route} / {c.base}",
            summary.workload_name(report, c.workload),
            c.figure,
            wording.fixed(c.ratio, 3),
            "too few pairs"
            if c.interval is None
            else " to ".join(wording.fixed(end, 3) for end in c.interval),
            str(c.pairs),
            c.verdict,
        )
        for c in report.comparisons
    ]


def _statistics(report: Report) -> Iterator[tuple[str, ...]]:
    for route in report.routes:
        for result in route.workloads:
            for figure in (*FIGURES, "token_s"):
                found = getattr(result.aggregate, figure)
                if found is not None:
                    where = (route.name, summary.workload_name(report, result.workload), figure)
                    yield (*where, *_block(found, in_seconds=figure.endswith("_s")))


def _block(found: Statistics, *, in_seconds: bool) -> Iterator[str]:
    def says(value: float | None) -> str:
        if in_seconds or value is None:
            return wording.seconds(value)
        return wording.fixed(value, 2)

    yield str(found.samples)
    for value in (found.mean, found.stdev, found.min, found.p50, found.p90, found.p95, found.p99):
        yield says(value)
    yield says(found.max)
    interval = found.median_interval
    yield wording.MISSING if interval is None else f"{says(interval[0])} to {says(interval[1])}"


def _environment(report: Report) -> Iterator[tuple[str, str]]:
    where, bundle = report.environment, report.bundle
    yield "Bundle", f"{bundle.name} ({bundle.path})"
    yield "Model type", bundle.model_type or "not stated"
    yield "Size", wording.size(bundle.total_bytes)
    yield "Content (SHA-256)", bundle.content_sha256
    yield "Turnout", where.turnout
    yield from (*where.runtimes.items(), *where.plugins.items())
    yield "Python", where.python
    yield "System", f"{where.os} ({where.machine})"
    yield "Processor", where.cpu
    yield "Cores", _cores(where.physical_cores, where.logical_cores, where.usable_cores)
    yield "Memory of the machine", wording.size(where.memory_bytes)
    load = where.load_average
    yield "Load at the start", wording.MISSING if load is None else wording.fixed(load, 2)
    for device in where.devices:
        yield f"Device of {device.ep}", f"{device.kind}: {device.hardware}"


def _cores(physical: int | None, logical: int | None, usable: int | None) -> str:
    known = {"physical": physical, "logical": logical, "usable here": usable}
    said = [f"{count} {what}" for what, count in known.items() if count is not None]
    return ", ".join(said) or wording.MISSING


def _settings(report: Report) -> Iterator[tuple[str, str]]:
    said = report.settings
    yield "Requests of a route and workload", f"{said.iterations} timed, {said.warmup} warm-up"
    yield "Requests held", f"{report.requests_held} of {report.requests_planned} planned"
    yield "End of text", "ignored" if said.ignore_eos else "ends an answer"
    yield "Memory of processes", "measured" if said.memory else "not measured"
    yield "Margin", f"ratios within {said.margin:.0%} of 1 are neither faster nor slower"
