"""Gates: `decode_tokens_per_second < 0.95`, what must not hold of a ratio for a change to pass."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnout.errors import UsageError
from turnout.perf.comparing_reports import FIGURES, ReportComparison, Row
from turnout.perf.statistics import MIN_VALUES

EXAMPLE = 'for example --fail-if "decode_tokens_per_second < 0.95"'
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
# A decimal number as people write it; Python would also take 1_0 for 10.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# The last colon is the one that ends a route's name, which may have others.
_GATE = re.compile(r"(?:(?P<route>.+):)?(?P<figure>[^:<>=]*)(?P<operator>[<>=!]+)(?P<limit>.*)")


@dataclass(frozen=True)
class Gate:
    """Fails a comparison where the whole interval of a figure's ratio, B to A, is on that side.

    `route` None stands for every route of the first report. One that only the second has is new:
    there is nothing that it could have become slower than.
    """

    text: str
    figure: str
    operator: str
    limit: float
    route: str | None = None

    def holds(self, row: Row) -> bool | None:
        """Whether it holds of a row of its figure; None where the row has no interval to tell."""
        if row.ratio is None or row.ratio.interval is None:
            return None
        compare = OPERATORS[self.operator]
        return all(compare(end, self.limit) for end in row.ratio.interval)


@dataclass(frozen=True)
class Judgement:
    """What came of a gate: whether it holds, None where that could not be told; and why.

    A gate that could not be judged somewhere fails as one that holds does.
    """

    gate: Gate
    holds: bool | None
    because: tuple[str, ...]


def parse(text: str) -> Gate:
    """A gate from `[ROUTE:] FIGURE OPERATOR RATIO`. Raises `UsageError`."""
    found = _GATE.fullmatch(text.strip())
    if found is None:
        raise _malformed(text, "a figure, one of < <= > >=, and a ratio")
    figure = found["figure"].strip()
    if figure not in FIGURES:
        raise _malformed(text, ", ".join(FIGURES), f"{figure!r} is no figure")
    if found["operator"] not in OPERATORS:
        raise _malformed(text, ", ".join(OPERATORS), f"{found['operator']!r} is no comparison")
    number = _NUMBER.fullmatch(found["limit"].strip())
    limit = math.nan if number is None else float(number[0])
    if not 0 < limit < math.inf:
        expected = "a ratio to the first report: 0.95 for 5% less"
        raise _malformed(text, expected, f"{found['limit'].strip()!r} is no ratio")
    route = found["route"].strip() if found["route"] is not None else None
    return Gate(text.strip(), figure, found["operator"], limit, route)


def _malformed(text: str, expected: str, found: str = "") -> UsageError:
    return UsageError(
        f"The gate {text!r} is malformed.",
        found=found or None,
        expected=expected,
        where="--fail-if",
        fix=EXAMPLE,
    )


def judge(gate: Gate, comparison: ReportComparison) -> Judgement:
    """Whether `gate` holds of any route and workload of `comparison`."""
    rows = [
        row
        for row in comparison.rows
        if row.figure == gate.figure and gate.route in (None, row.route)
    ]
    if _names_no_pair(gate, comparison):
        rows = []  # Of a route of that name in A, and another one in B.
    held = [f"{_place(row)}: {_ratio(row)}" for row in rows if gate.holds(row)]
    if held:
        return Judgement(gate, True, tuple(held))
    open_ = tuple(_unjudged(gate, comparison, rows))
    return Judgement(gate, None, open_) if open_ else Judgement(gate, False, ())


def _unjudged(gate: Gate, comparison: ReportComparison, rows: Sequence[Row]) -> Iterator[str]:
    """Why the gate could not be judged, wherever it could not."""
    missing = list(_missing(gate, comparison))
    yield from missing
    for route, error in comparison.failed:
        if gate.route in (None, route):
            yield error
    for row in rows:
        if row.ratio is None:
            which = "A" if row.base.median is None else "B"
            yield f"{_place(row)}: {which} has no {gate.figure}"
        elif row.ratio.interval is None:
            yield (
                f"{_place(row)}: {row.base.count} and {row.other.count} values, "
                f"of which an interval needs {MIN_VALUES} each"
            )
    if not rows and not missing:
        yield f"there is no {gate.figure}"


def _missing(gate: Gate, comparison: ReportComparison) -> Iterator[str]:
    """What is to be judged and was not measured in B, or in neither."""
    if _names_no_pair(gate, comparison):
        yield f"there is no route {gate.route!r} in both reports"
    for item in comparison.alone:
        concerns = item.kind == "workload" or gate.route in (None, item.name)
        if item.report == "A" and concerns:
            yield str(item)
    for route, workload in comparison.unmeasured:
        if gate.route in (None, route):
            yield f"{route}, {workload}: measured in neither report"


def _names_no_pair(gate: Gate, comparison: ReportComparison) -> bool:
    return gate.route is not None and (gate.route, gate.route) not in comparison.routes


def _place(row: Row) -> str:
    return f"{row.route}, {row.workload}"


def _ratio(row: Row) -> str:
    if row.ratio is None or row.ratio.interval is None:
        return ""
    low, high = row.ratio.interval
    return f"{row.ratio.value:.3f} ({low:.3f} to {high:.3f})"
