"""What a page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chart:
    """A chart of plotly's: its traces and layout as JSON has them.

    `says` is the chart in words, for those who do not see it; `note` stands below it. Where
    `workload` is given, the chart is shown while that one is chosen. Colours are named, as in
    style.css: `@c0` to `@c7` of routes, `@p0` to `@p4` of parts, `@ink`; `@c0/0.15` lets through
    what is behind. A trace's `meta.route` is the index of the route that it is of. `legend` has
    names and colours of what is no route.
    """

    title: str
    says: str
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""
    workload: int | None = None
    height: int = 300
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page that its caller writes.

    `html` stands there as it is: text in it has to be escaped by who makes it (`table` does).
    Scripts in it do not run. `charts` follow it.
    """

    title: str
    html: str
    charts: Sequence[Chart] = ()
