"""The texts, beside each other, and where they part."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from turnout.perf import answers
from turnout.perf.page.marks import COLOURS
from turnout.perf.report import Report, Request, RouteReport

LONGEST_TEXT = 4000  # characters that are shown of a prompt or of an answer


def answers_view(report: Report) -> list[dict[str, Any]]:
    """A workload each: its prompt, whether routes agree, and the first timed text of each route.

    `same` is how a text begins as that of the first route does, and `rest` is what follows.
    """
    return [
        {
            "name": workload.name,
            "prompt": None if workload.prompt is None else _cut(workload.prompt),
            "agreement": answers.agreement(report, index),
            "routes": _of_routes(report, index),
        }
        for index, workload in enumerate(report.workloads)
    ]


def _of_routes(report: Report, workload: int) -> list[dict[str, Any]]:
    found = [
        (index, route, request)
        for index, route in enumerate(report.routes)
        if (request := _first(route, workload)) is not None
    ]
    if not found:
        return []
    first = found[0][2].text
    described = []
    for index, route, request in found:
        shown = _cut(request.text)
        alike = zip(first, shown["text"], strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], alike))
        described.append(
            {
                "name": route.name,
                "colour": index % COLOURS,
                "tokens": request.generated_tokens,
                "finish_reason": request.finish_reason,
                "sha256": request.token_ids_sha256,
                "same": shown["text"][:same],
                "rest": shown["text"][same:],
                "left_out": shown["left_out"],
            }
        )
    return described


def _first(route: RouteReport, workload: int) -> Request | None:
    timed = (r for r in route.requests if r.kind == "timed" and r.workload == workload)
    return next(timed, None)


def _cut(text: str) -> dict[str, Any]:
    return {"text": text[:LONGEST_TEXT], "left_out": max(len(text) - LONGEST_TEXT, 0)}
