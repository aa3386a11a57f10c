"""What was found, as a part of a page: beside what was measured, or on a page of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from turnout.perf import wording
from turnout.perf.page import Chart, Section, render_sections, table
from turnout.perf.page.marks import colour, dash, xy
from turnout.verify import tables

if TYPE_CHECKING:
    from markupsafe import Markup

    from turnout.verify.report import Report, RouteReport

TITLE = "Same answers?"
DIFFERENCES_HEAD = ("Prompt", "After", "Reference", "Route", "Margin")
# Points of a curve, which is as smooth to the eye.
_POINTS = 200
# Rounding alone makes smaller divergences.
LEAST_DRAWN = 1e-9


def section(report: Report) -> Section:
    """The part of a page about a verification; all text in it is escaped.

    Raises `MachineError` where the extra `report` is not installed.
    """
    parts = [
        _paragraph(wording.shown(tables.result(report))),
        table(
            tables.HEAD,
            [tables.cells(route) for route in report.routes],
            "Routes beside the reference",
        ),
        _lines(tables.notes(report)),
        *(part for route in report.routes for part in _of_route(report, route)),
    ]
    return Section(TITLE, "\n".join(map(str, parts)), _charts(report))


def page(report: Report) -> str:
    """A page of its own, which opens offline. Raises `MachineError`, as `section` does."""
    bundle, machine = report.bundle, report.environment
    subtitle = f"{bundle.name} on {machine.cpu}, {report.created}"
    return render_sections("Do routes give the same answers?", subtitle, [section(report)])


def _of_route(report: Report, route: RouteReport) -> list[Markup]:
    parts = [_heading(route.name)]
    reasons = list(route.reasons)
    if route.error is not None:
        reasons.append(wording.failure(route.error))
        reasons += [f"{name}: {value}" for name, value in route.error.facts.items()]
    if reasons:
        parts.append(_lines(reasons))
    figures = tables.figures(route)
    if figures:
        parts.append(table(tables.FIGURES_HEAD, figures, f"Figures of {route.name}"))
    differences = _differences(report, route)
    if differences:
        parts.append(_paragraph("Where continuations leave the reference's:"))
        parts.append(table(DIFFERENCES_HEAD, differences, f"Where {route.name} differs first"))
    return parts


def _differences(report: Report, route: RouteReport) -> list[tuple[str, ...]]:
    """Where each continuation leaves the reference's, a row each."""
    return [
        (
            tables.asked(report, answer),
            tables.count(found.after),
            tables.token(found, ours=False),
            tables.token(found, ours=True),
            f"{found.margin:.2g}",
        )
        for answer in route.answers
        if (found := answer.first_difference) is not None
    ]


def _heading(text: str) -> Markup:
    from markupsafe import Markup

    return Markup("<h3><bdi>{}</bdi></h3>").format(wording.shown(text))


def _paragraph(text: str) -> Markup:
    from markupsafe import Markup

    return Markup("<p>{}</p>").format(text)


def _lines(lines: Iterable[str]) -> Markup:
    from markupsafe import Markup

    items = (Markup("<li>{}</li>").format(wording.shown(line)) for line in lines)
    return Markup("<ul>{}</ul>").format(Markup("").join(items))


def _charts(report: Report) -> Sequence[Chart]:
    """How many positions diverge by how much, a curve a route."""
    found = [
        (index, route.name, sorted(max(kl, LEAST_DRAWN) for kl in _divergences(route)))
        for index, route in enumerate(report.routes)
    ]
    drawn = [(index, name, values) for index, name, values in found if values]
    if not drawn:
        return ()
    most = max(values[-1] for _, _, values in drawn)
    said = "; ".join(f"{name} below {v[len(v) // 2]:.1g} at half of them" for _, name, v in drawn)
    return (
        Chart(
            "Divergence from the reference",
            f"How far positions diverge from the reference, in nats: {said}.",
            [_curve(index, values, most) for index, _, values in drawn],
            {
                "xaxis": {"type": "log", "title": "nats", "exponentformat": "power"},
                "yaxis": {"title": "% of positions", "range": [0, 102]},
            },
            note=f"Positions that diverge no further than that; {LEAST_DRAWN:g} stands for less.",
            legend=[(name, colour(index)) for index, name, _ in drawn],
        ),
    )


def _divergences(route: RouteReport) -> Iterator[float]:
    return (kl for answer in route.answers for kl in answer.kl if kl is not None)


def _curve(index: int, values: Sequence[float], most: float) -> dict[str, Any]:
    """Percent of the sorted values that are no larger than each, thinned out, up to `most`."""
    step = max(len(values) // _POINTS, 1)
    places = sorted({*range(0, len(values), step), len(values) - 1})
    return {
        "mode": "lines",
        "line": {"color": colour(index), "width": 1.5, "dash": dash(index), "shape": "hv"},
        **xy(
            [LEAST_DRAWN, *(values[place] for place in places), most],
            [0.0, *(100 * (place + 1) / len(values) for place in places), 100.0],
            "%",
        ),
    }
