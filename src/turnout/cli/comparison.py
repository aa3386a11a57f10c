"""Two reports compared, as it reads: in the terminal, and as Markdown for a pull request."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.cli.tables import aligned

if TYPE_CHECKING:
    from turnout.perf.comparing_reports import ReportComparison, Row
    from turnout.perf.gates import Judgement
    from turnout.perf.report import Report

HEAD = ("Figure", "A", "B", "B / A", "95% interval", "B is")
UNPAIRED = (
    "Intervals are unpaired. A machine drifts from one run to the next, so a report counts for "
    "three requests, however many it holds. Routes of one report are compared in pairs, which "
    "shows more."
)


def lines(
    comparison: ReportComparison,
    judgements: Sequence[Judgement],
    *,
    verbose: bool,
    quiet: bool,
) -> Iterator[str]:
    """The comparison for a person; with `quiet` no notes, with `verbose` answers that changed."""
    parts = [list(part) for part in _tables(comparison)]
    parts.append(
        [
            *_changed(comparison, verbose=verbose),
            *_failures(comparison),
            *map(str, comparison.alone),
            *_unmeasured(comparison),
        ]
    )
    parts.append([line for judgement in judgements for line in _judged_lines(judgement)])
    if not quiet:
        parts.append([f"note: {line}" for line in (*comparison.notes, UNPAIRED)])
    for index, part in enumerate(filter(None, parts)):
        yield from ([""] if index else [])
        yield from part


def _tables(comparison: ReportComparison) -> Iterator[Iterator[str]]:
    """A table for each route and workload."""
    for place, rows in itertools.groupby(comparison.rows, lambda row: (row.route, row.workload)):
        table = aligned(HEAD, [_cells(row) for row in rows])
        yield itertools.chain([", ".join(place)], (f"  {line}" for line in table))


def _changed(comparison: ReportComparison, *, verbose: bool) -> Iterator[str]:
    for item in comparison.changed:
        yield f"{item.route}, {item.workload}: THE ANSWERS CHANGED: B gives other tokens than A"
        if verbose:
            yield f"  A: {item.base!r}"
            yield f"  B: {item.other!r}"


def _judged_lines(judgement: Judgement) -> Iterator[str]:
    yield judged(judgement)
    yield from (f"  {line}" for line in judgement.because)


def judged(judgement: Judgement) -> str:
    """What came of a gate, on one line."""
    words = {
        True: "holds: this comparison fails",
        False: "does not hold",
        None: "could not be judged: this comparison fails",
    }
    return f"gate {judgement.gate.text}: {words[judgement.holds]}"


def _cells(row: Row) -> tuple[str, ...]:
    from turnout.perf import wording

    ratio, between = wording.MISSING, wording.MISSING
    if row.ratio is not None:
        ratio = wording.fixed(row.ratio.value, 3)
        between = f"too few values: {row.base.count} and {row.other.count}"
        if row.ratio.interval is not None:
            low, high = row.ratio.interval
            between = f"{wording.fixed(low, 3)} to {wording.fixed(high, 3)}"
    amounts = (_amount(row.figure, sample.median) for sample in (row.base, row.other))
    return (row.figure, *amounts, ratio, between, row.verdict)


def _amount(figure: str, value: float | None) -> str:
    from turnout.perf import wording

    if value is None or not figure.endswith("_per_second"):
        return wording.seconds(value)
    return f"{wording.fixed(value, 2)} tokens/s"


def headings(reports: Sequence[tuple[Path, Report]]) -> Iterator[str]:
    """Which file is A and which B, and what they measured."""
    for name, (path, report) in zip("AB", reports, strict=True):
        yield f"{name}: {path}: {report.bundle.name}, measured {report.created}"


def markdown(
    reports: Sequence[tuple[Path, Report]],
    comparison: ReportComparison,
    judgements: Sequence[Judgement],
) -> Iterator[str]:
    """The comparison as GitHub reads Markdown, a line at a time."""
    from turnout.perf.markdown import code, escaped, table

    counts = collections.Counter[str](row.verdict for row in comparison.rows)
    words = ("slower", "faster", "cannot tell")
    yield "**B against A: " + ", ".join(f"{counts[word]} {word}" for word in words) + "**"
    yield ""
    yield from table(
        ("Route", "Workload", *HEAD),
        [(code(row.route), code(row.workload), *_cells(row)) for row in comparison.rows],
    )
    yield ""
    for item in comparison.changed:
        yield f"- **The answers changed**: {code(item.route)}, {code(item.workload)}"
    yield from (f"- {escaped(line)}" for line in _failures(comparison))
    for alone in comparison.alone:
        yield f"- only {alone.report} has the {alone.kind} {code(alone.name)}"
    yield from (f"- {escaped(line)}" for line in _unmeasured(comparison))
    for judgement in judgements:
        yield f"- {escaped(judged(judgement))}"
        yield from (f"  - {escaped(line)}" for line in judgement.because)
    yield from ("", UNPAIRED, "", "<details><summary>Notes</summary>", "")
    yield from (f"- {escaped(line)}" for line in (*headings(reports), *comparison.notes))
    yield from ("", "</details>")


def _failures(comparison: ReportComparison) -> Iterator[str]:
    """Routes with an error, and why."""
    return (error for _, error in comparison.failed)


def _unmeasured(comparison: ReportComparison) -> Iterator[str]:
    """Routes and workloads of which there is nothing to compare, although both have them."""
    for route, workload in comparison.unmeasured:
        yield f"{route}, {workload}: measured in neither report"
