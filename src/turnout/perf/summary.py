"""What a report comes to, in a few sentences."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turnout.perf import answers, tables, wording

if TYPE_CHECKING:
    from turnout.perf.report import Comparison, Report, Verdict

# Of these figures, in this order; the others follow from them, or say much the same.
FIGURES = ("decode_tokens_per_second", "model_ttft_s")


@dataclass(frozen=True)
class Said:
    """A sentence, and the verdict that it states, if any."""

    text: str
    verdict: Verdict | Literal[""] = ""


def sentences(report: Report) -> list[Said]:
    """Verdicts, or where there is none what routes do; then whether they gave the same answers."""
    return (verdicts(report) or list(_figures(report))) + agreement(report)


def verdicts(report: Report) -> list[Said]:
    """Which routes are faster. One whose verdict is the same for all workloads is named once."""
    return list(_verdicts(report))


def agreement(report: Report) -> list[Said]:
    """Whether routes gave the same answers."""
    return [Said(text) for text in _agreement(report)]


def _verdicts(report: Report) -> Iterator[Said]:
    for figure in FIGURES:
        by_route: dict[str, list[Comparison]] = collections.defaultdict(list)
        for comparison in report.comparisons:
            if comparison.figure == figure:
                by_route[comparison.route].append(comparison)
        for found in by_route.values():
            if len({comparison.verdict for comparison in found}) == 1 < len(found):
                yield _sentence(wording.verdict_of_several(found), found[0].verdict)
                continue
            for comparison in found:
                where = workload_name(report, comparison.workload)
                text = wording.verdict(comparison)
                yield _sentence(f"{where}: {text}" if len(found) > 1 else text, comparison.verdict)


def _sentence(text: str, verdict: Verdict) -> Said:
    return Said(f"C{text[1:]}." if text.startswith("cannot tell") else f"{text}.", verdict)


def workload_name(report: Report, workload: int) -> str:
    """The name of the workload of that index, which somebody may have made up."""
    known = 0 <= workload < len(report.workloads)
    return report.workloads[workload].name if known else f"workload {workload}"


def _figures(report: Report) -> Iterator[Said]:
    for row in tables.rows(report):
        if row.test:
            rate = wording.rate(row.tokens_per_second, row.stdev)
            time = f"{row.time_label} {wording.seconds(row.time_s)}"
            yield Said(f"{row.route}: {rate} tokens/s in {row.test}, {time}.")


def _agreement(report: Report) -> list[str]:
    """Where answers differ; where none do, that they do not."""
    every = range(len(report.workloads))
    differ = [index for index in every if answers.differ(report, index)]
    said = [answers.agreement(report, index) for index in differ or every[:1]]
    if len(every) == 1:
        return [text for text in said if text]
    if not differ:
        several = any(len(answers.of_workload(report, index)) > 1 for index in every)
        return ["Routes gave the same tokens for every workload."] if several else []
    named = [workload_name(report, index) for index in differ]
    return [f"{name}: {text}" for name, text in zip(named, said, strict=True)]
