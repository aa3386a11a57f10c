"""Two reports compared: a report B of what a report A measured, too.

The requests of two reports are not pairs: they are two runs, and the machine drifts between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from turnout.errors import UsageError
from turnout.perf import likeness, matching
from turnout.perf.comparing import MARGIN, Ratio, unpaired, value_of
from turnout.perf.likeness import Difference, Kind
from turnout.perf.matching import Pairing
from turnout.perf.report import Aggregate, Report, Request, RouteReport, Verdict, Workload
from turnout.perf.wording import failure, first_few

FIGURES = Aggregate.__struct_fields__
DEFAULT_FIGURES = (
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "model_ttft_s",
    "request_s",
)


@dataclass(frozen=True)
class Sample:
    """The timed requests' values of one figure: how many, and their median; None of none."""

    count: int
    median: float | None


@dataclass(frozen=True)
class Row:
    """A figure of B against that of A, of one route and workload, which have the names of A.

    `ratio` is None where only one of them has the figure; then the verdict is open.
    """

    route: str
    workload: str
    figure: str
    base: Sample
    other: Sample
    ratio: Ratio | None
    verdict: Verdict


@dataclass(frozen=True)
class Changed:
    """Answers of B that are others than those of A: a text of each."""

    route: str
    workload: str
    base: str
    other: str


@dataclass(frozen=True)
class Alone:
    """A route or a workload that only `report` has, by its name."""

    report: Literal["A", "B"]
    kind: Literal["route", "workload"]
    name: str

    def __str__(self) -> str:
        return f"only {self.report} has the {self.kind} {self.name}"


@dataclass(frozen=True)
class ReportComparison:
    """B against A.

    `routes` are those compared: names in A and in B. `alone` is what only one of them has,
    `failed` which routes have an error, `unmeasured` of which route and workload neither of them
    has a timed request, although nothing failed.
    """

    routes: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    changed: tuple[Changed, ...]
    failed: tuple[tuple[str, str], ...]
    alone: tuple[Alone, ...]
    unmeasured: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    margin: float

    def to_json(self) -> dict[str, Any]:
        """Plain data; seconds and tokens/s, as names say."""
        return {
            "paired": False,
            "margin": self.margin,
            "comparisons": [_row_document(row) for row in self.rows],
            "changed_answers": [
                {"route": item.route, "workload": item.workload} for item in self.changed
            ],
            "failed": [{"route": route, "error": error} for route, error in self.failed],
            "alone": [str(item) for item in self.alone],
            "unmeasured": [
                {"route": route, "workload": workload} for route, workload in self.unmeasured
            ],
            "notes": list(self.notes),
        }


def compare(
    base: Report,
    other: Report,
    *,
    figures: Sequence[str] = DEFAULT_FIGURES,
    margin: float = MARGIN,
    allow: Collection[Kind] = (),
) -> ReportComparison:
    """The report `other`, which is B, against `base`, A: what B's figures are as a ratio to A's.

    Of every route and workload that both have, the `figures` of `Aggregate` that either has.
    Raises `UsageError` for reports of unlike things, unless their kinds of differences are in
    `allow`, and for reports that have nothing in common.
    """
    workloads = matching.workloads(base, other)
    found = list(likeness.differences(base, other, workloads))
    likeness.require_alike(found, allow)
    routes = matching.routes(base, other)
    if not workloads.pairs or not routes.pairs:
        raise _nothing_in_common(base, other, routes, workloads)
    places = [(base.workloads[one].name, one, two) for one, two in workloads.pairs]
    pairs = [(base.routes[one], other.routes[two]) for one, two in routes.pairs]
    return ReportComparison(
        routes=tuple((mine.name, theirs.name) for mine, theirs in pairs),
        rows=tuple(row for pair in pairs for row in _rows(*pair, places, figures, margin)),
        changed=tuple(item for pair in pairs for item in _changed(*pair, places)),
        failed=tuple(item for pair in pairs for item in _failed(*pair)),
        alone=(
            *(Alone("A", "route", base.routes[index].name) for index in routes.only_first),
            *(Alone("B", "route", other.routes[index].name) for index in routes.only_second),
            *(Alone("A", "workload", base.workloads[i].name) for i in workloads.only_first),
            *(Alone("B", "workload", other.workloads[i].name) for i in workloads.only_second),
        ),
        unmeasured=tuple(item for pair in pairs for item in _unmeasured(*pair, places)),
        notes=tuple(_notes(base, other, found, pairs, places)),
        margin=margin,
    )


def _nothing_in_common(
    base: Report, other: Report, routes: Pairing, workloads: Pairing
) -> UsageError:
    lacking, fixes = [], []
    if not routes.pairs:
        lacking.append("route")
        fixes.append('give a route one name in both, as in --route-set "name=fast ep=openvino"')
    if not workloads.pairs:
        lacking.append("workload")
        fixes.append("measure both with a prompt of one length, and as many new tokens")
    return UsageError(
        f"The reports have no {' and no '.join(lacking)} in common that could be compared.",
        found="\n".join(
            f"{name}: " + "; ".join(_named(report, kind) for kind in lacking)
            for name, report in (("A", base), ("B", other))
        ),
        fix="; ".join(fixes),
    )


def _named(report: Report, kind: str) -> str:
    items: Sequence[RouteReport | Workload] = report.routes if kind == "route" else report.workloads
    return f"{kind}s " + (", ".join(first_few([item.name for item in items])) or "none")


def _notes(
    base: Report,
    other: Report,
    found: Sequence[Difference],
    pairs: Sequence[tuple[RouteReport, RouteReport]],
    places: Sequence[tuple[str, int, int]],
) -> Iterator[str]:
    if base == other:
        yield "A and B are the same measurement"
    yield from (f"allowed: {item.kind}: {item.what}" for item in found)
    for pair in pairs:
        yield from likeness.route_notes(*pair, places)
    yield from likeness.notes(base, other)


def _rows(
    mine: RouteReport,
    theirs: RouteReport,
    places: Sequence[tuple[str, int, int]],
    figures: Sequence[str],
    margin: float,
) -> Iterator[Row]:
    for name, one, two in places:
        ours, others = _timed(mine, one), _timed(theirs, two)
        for figure in figures:
            base, other = _values(ours, figure), _values(others, figure)
            if not base and not other:
                continue
            ratio = unpaired(other, base) if base and other else None
            yield Row(
                route=mine.name,
                workload=name,
                figure=figure,
                base=_sample(base),
                other=_sample(other),
                ratio=ratio,
                verdict="cannot tell" if ratio is None else ratio.verdict(figure, margin),
            )


def _timed(route: RouteReport, workload: int) -> list[Request]:
    return [
        request
        for request in route.requests
        if request.kind == "timed" and request.workload == workload
    ]


def _values(requests: Sequence[Request], figure: str) -> list[float]:
    values = [value_of(request, figure) for request in requests]
    return [value for value in values if value is not None]


def _sample(values: Sequence[float]) -> Sample:
    return Sample(len(values), median(values) if values else None)


def _changed(
    mine: RouteReport, theirs: RouteReport, places: Sequence[tuple[str, int, int]]
) -> Iterator[Changed]:
    for name, one, two in places:
        ours, others = _timed(mine, one), _timed(theirs, two)
        known = {request.token_ids_sha256 for request in ours}
        if ours and others and known != {request.token_ids_sha256 for request in others}:
            # An answer of B that A does not have; where there is none, B lacks one of A's.
            new = [request for request in others if request.token_ids_sha256 not in known]
            yield Changed(mine.name, name, ours[0].text, (new or others)[0].text)


def _failed(mine: RouteReport, theirs: RouteReport) -> Iterator[tuple[str, str]]:
    for name, route in (("A", mine), ("B", theirs)):
        if route.error is not None:
            yield mine.name, f"{route.name} failed in {name}: {failure(route.error)}"


def _unmeasured(
    mine: RouteReport, theirs: RouteReport, places: Sequence[tuple[str, int, int]]
) -> Iterator[tuple[str, str]]:
    if mine.error is None and theirs.error is None:
        for name, one, two in places:
            if not _timed(mine, one) and not _timed(theirs, two):
                yield mine.name, name


def _row_document(row: Row) -> dict[str, Any]:
    ratio = row.ratio
    return {
        "route": row.route,
        "workload": row.workload,
        "figure": row.figure,
        "base_median": row.base.median,
        "base_samples": row.base.count,
        "other_median": row.other.median,
        "other_samples": row.other.count,
        "ratio": None if ratio is None else ratio.value,
        "interval": None if ratio is None or ratio.interval is None else list(ratio.interval),
        "verdict": row.verdict,
    }
