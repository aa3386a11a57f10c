"""What a saved route says of itself, worked out again for the bundle that it is taken on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout import catalog
from turnout.routing.options import exact
from turnout.routing.products import unpacked_stages
from turnout.routing.resolve import origin, reaches
from turnout.routing.routefile import AGAIN, Place

if TYPE_CHECKING:
    from turnout.bundle import Bundle, Stage
    from turnout.routing.request import RouteRequest
    from turnout.routing.resolve import Route, StageRoute


def check_decision(
    decision: StageRoute, stage: Stage, stages: tuple[Stage, ...], request: RouteRequest, at: Place
) -> None:
    """That a stage's EP is one that was asked for, and `how` what making the route would say.

    Raises `UsageError` at the place `at`.
    """
    ep = _asked_ep(stage, request)
    if ep is not None and decision.ep != ep:
        raise at.at("ep").error(
            f"The EP of the stage {stage.name!r} is not the one that was asked for.",
            found=decision.ep,
            expected=f"{ep}, by what the request says",
            fix=AGAIN,
        )
    how = origin(stage, decision.ep, stages) if reaches(request, stage) else "config"
    if decision.how != how:
        raise at.at("how").error(
            f"What the route says of the options of the stage {stage.name!r} does not hold.",
            found=repr(decision.how),
            expected=f"{how!r}, by what the bundle and the request say",
            fix=AGAIN,
        )


def _asked_ep(stage: Stage, request: RouteRequest) -> str | None:
    """The EP that the request means for a stage, None where a machine has to tell."""
    if not reaches(request, stage):
        return stage.ep
    asked = request.of(stage.name)
    known = catalog.find(asked.ep if asked is not None else request.ep or "")
    return known.name if known is not None else None


def check_exact(route: Route, bundle: Bundle, platform: str, places: dict[str, Place]) -> None:
    """That a reproducible route is so on this bundle: its graphs decide what that takes.

    A bundle that was built with another precision has other products. `places` are those of the
    stages in the document. Raises `UsageError`, and `GraphError` for a graph that cannot be read.
    """
    if not route.request.reproducible:
        return
    unpacked = unpacked_stages(bundle, platform)
    made, _ = exact(list(route.stages), bundle.stages, unpacked)
    for decision, wanted in zip(route.stages, made, strict=True):
        if decision == wanted:
            continue
        raise places[decision.stage].error(
            f"The route is not reproducible for the stage {decision.stage!r} as the bundle has it.",
            found="it was decided for other products of weights, or was changed",
            expected=_difference(decision, wanted),
            fix=AGAIN,
        )


def _difference(decision: StageRoute, wanted: StageRoute) -> str:
    """What exact arithmetic needs and the decision lacks, as options."""
    pairs = [
        (decision.set_options, wanted.set_options),
        (decision.options, wanted.options),
    ]
    lacking = [
        f"{key}={value}"
        for had, has in pairs
        for key, value in has.items()
        if had.get(key) != value
    ]
    return f"with {', '.join(lacking)}"
