"""What the EPs of a route make of their provider options, by the generation that is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.catalog import Verdict, judge
from turnout.errors import UsageError

if TYPE_CHECKING:
    from turnout.machine import Inventory
    from turnout.routing.request import RouteRequest
    from turnout.routing.resolve import StageRoute


def generation_of(ep: str, inventory: Inventory | None) -> str:
    """The generation of an EP on a machine; a plugin where the machine does not tell."""
    known = catalog.find(ep)
    installed = inventory.ep(ep) if inventory is not None else None
    source = installed.source if installed is not None else None
    return known.generation(source) if known is not None else catalog.PLUGIN


def option_warnings(
    routes: list[StageRoute], request: RouteRequest, inventory: Inventory
) -> tuple[str, ...]:
    """A line for every option that will not do what it says, with the stages that have it.

    What a bundle says of stages that the route leaves alone stands as it is. Raises `UsageError`
    for a value that the EP refuses.
    """
    lines: dict[str, list[str]] = {}
    for route in routes:
        for verdict in _verdicts(route, request, inventory):
            if verdict.fate == "refused":
                raise UsageError(
                    f"{verdict.problem}.",
                    found=verdict.found,
                    expected=verdict.expected,
                    where=f"stage {route.stage}",
                    fix=verdict.fix,
                )
            lines.setdefault(_line(verdict), []).append(route.stage)
    return tuple(
        f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}: {line}"
        for line, stages in lines.items()
    )


def _verdicts(route: StageRoute, request: RouteRequest, inventory: Inventory) -> Iterator[Verdict]:
    known = catalog.find(route.ep)
    if known is None or not known.takes_options:
        return
    asked = _asked(route, request)
    if route.how == "config" and not asked:
        return
    for verdict in judge(known, route.options, generation_of(route.ep, inventory)):
        if route.how != "config" or verdict.option in asked:
            yield verdict


def _asked(route: StageRoute, request: RouteRequest) -> Mapping[str, str]:
    """The provider options that the request gave the stage."""
    return {
        key: value
        for stage, key, value in request.provider_options
        if stage in {None, route.stage} and route.options.get(key) == value
    }


def _line(verdict: Verdict) -> str:
    line = verdict.problem
    if verdict.fate == "valueless" and verdict.found is not None:
        line += f" ({verdict.found})"
    return line + (f"; {verdict.fix}" if verdict.fix is not None else "")
