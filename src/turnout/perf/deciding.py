"""From a candidate to the route that its process loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.machine import Inventory
    from turnout.perf.routeset import Candidate
    from turnout.routing import Route


def decide(
    candidate: Candidate, bundle: Bundle, inventory: Inventory, warn: Callable[[str], None]
) -> Route | None:
    """The route, None for the bundle as it is; `warn` gets what a user should know of it.

    Raises `UsageError` for what the bundle cannot have, `MachineError` for what the machine lacks.
    """
    from turnout.routing import warnings_for
    from turnout.runtime.loading import effective_config

    route = candidate.decide(bundle, inventory)
    decided = route.warnings if route is not None else ()
    for line in (*decided, *warnings_for(effective_config(bundle, route))):
        warn(line)
    return route


def saved_in(scratch: Path, route: Route | None) -> Path | None:
    """The route in a file of that folder, for a process to load; None where there is none."""
    if route is None:
        return None
    path = scratch / f"route-{len(list(scratch.iterdir()))}.json"
    route.save(path)
    return path
