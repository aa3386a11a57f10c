"""Stages of every route: what was asked, what took effect, and where nodes really ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from turnout.perf import wording
from turnout.perf.page.marks import COLOURS
from turnout.perf.report import Report, RouteReport

if TYPE_CHECKING:
    from turnout.runtime.placement import EpPlacement, Placement, StagePlacement

HEAD = ("Stage", "Asked", "EP in the config", "Device", "Where nodes ran")


def stages_view(report: Report) -> dict[str, Any]:
    """Rows of every route, and what is to be known of it beside them, in sentences."""
    routes: list[dict[str, Any]] = [
        {
            "name": route.name,
            "colour": index % COLOURS,
            "rows": _rows(route, placed := _placed(route)),
            "says": [
                f"Asked: {route.requested}.",
                f"In effect: {route.effective}.",
                *_prepared(route.prepared),
            ],
            "note": _note(route, placed),
        }
        for index, route in enumerate(report.routes)
        if route.stages or route.placed is not None
    ]
    notes = {route["note"] for route in routes}
    common = notes.pop() if len(notes) == 1 else ""
    for route in routes:
        route["says"] += [] if common else [route["note"]]
    return {"head": HEAD, "routes": routes, "note": common}


def _placed(route: RouteReport) -> Placement | None:
    from turnout.runtime.placement import Placement

    if route.placed is None:
        return None
    try:
        return msgspec.convert(route.placed, Placement)
    except (msgspec.ValidationError, UnicodeError):
        return None


def _rows(route: RouteReport, placed: Placement | None) -> list[tuple[str, ...]]:
    ran = {stage.stage: stage for stage in placed.stages} if placed is not None else {}
    return [
        (
            stage.stage,
            stage.requested,
            stage.effective,
            stage.device or wording.MISSING,
            _ran(ran[stage.stage]) if stage.stage in ran else "not measured",
        )
        for stage in route.stages
    ]


def _ran(stage: StagePlacement) -> str:
    """Nodes of each EP, with its share of the time where there are several."""
    if not stage.ran:
        return stage.note or "did not run"
    whole = sum(part.time_s for part in stage.eps)
    return "; ".join(_part(part, whole, alone=len(stage.eps) == 1) for part in stage.eps)


def _part(part: EpPlacement, whole: float, *, alone: bool) -> str:
    nodes = f"{part.ep}: {part.nodes:,} {'node' if part.nodes == 1 else 'nodes'}"
    return nodes if alone or whole <= 0 else f"{nodes}, {part.time_s / whole:.1%} of the time"


def _note(route: RouteReport, placed: Placement | None) -> str:
    if placed is not None:
        return (
            f"Where nodes ran was measured with {placed.prompt_tokens} prompt tokens and"
            f" {placed.new_tokens} new ones, in a run of its own."
        )
    if route.placed is not None:
        return "Where nodes ran is in the report, but not as this version knows it."
    return f"Where nodes ran was not measured: {route.placed_note or 'no reason is given'}."


def _prepared(prepared: dict[str, Any] | None) -> list[str]:
    """What was compiled and shared, of what the runtime's preparation says of itself."""
    if prepared is None:
        return []
    said = []
    compiled, shared = prepared.get("compiled"), prepared.get("shared")
    if isinstance(compiled, dict):
        nbytes = prepared.get("bytes")
        on_disk = f", {wording.size(nbytes)} on disk" if isinstance(nbytes, int) and nbytes else ""
        names = ", ".join(map(str, compiled))
        said.append(f"Compiled: {names + on_disk if names else 'nothing'}.")
    for key, title in (("uncompiled", "Left as it is"), ("skipped", "Left out")):
        reasons = prepared.get(key)
        if isinstance(reasons, dict):
            said += [f"{title}: {stage} ({reason})." for stage, reason in reasons.items()]
    if isinstance(shared, dict):
        said.append(f"Shared: {_shared(shared)}.")
    return said


def _shared(shared: dict[str, Any]) -> str:
    words = []
    merged, groups, packed = (shared.get(key) for key in ("merged", "ep", "prepacked"))
    if isinstance(merged, dict):
        words += [f"{stage} in the session of {into}" for stage, into in merged.items()]
    if isinstance(groups, list):
        words += [f"{'+'.join(map(str, g))} by their EP" for g in groups if isinstance(g, list)]
    if isinstance(packed, list) and packed:
        words.append(f"{'+'.join(map(str, packed))} packed in one file")
    return ", ".join(words) or "nothing"
