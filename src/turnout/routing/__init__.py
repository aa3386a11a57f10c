"""What should run where: pure functions from a config, an inventory and a request to a route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from turnout.bundle import Bundle
from turnout.machine import Inventory
from turnout.routing.apply import apply
from turnout.routing.availability import Lack, lacks
from turnout.routing.request import (
    OptionRequest,
    RouteRequest,
    StageRequest,
    option_requests,
    stage_requests,
)
from turnout.routing.resolve import Route, StageRoute, resolve
from turnout.routing.warnings import compiled_warnings, warnings_for

__all__ = [
    "Lack",
    "OptionRequest",
    "Route",
    "RouteRequest",
    "StageRequest",
    "StageRoute",
    "apply",
    "lacks",
    "resolve",
    "route",
    "warnings_for",
]

_Options = Mapping[str, str] | Iterable[OptionRequest | str]


def route(
    bundle: Bundle | Path | str,
    request: RouteRequest | None = None,
    *,
    ep: str | None = None,
    device: str = "config",
    stages: Mapping[str, str] | Iterable[StageRequest] | None = None,
    scope: str = "pipeline",
    provider_options: _Options | None = None,
    session_options: _Options | None = None,
    reproducible: bool = False,
    inventory: Inventory | None = None,
) -> Route:
    """Decide where every stage of a bundle runs; a `request` stands for all other arguments.

    `bundle` is one that was opened, or the path of its directory.
    `stages` maps a stage's name to `"ep[@device]"`; options map `"[stage:]key"` to a value.
    The machine is looked at (about 0.4 s) only when the answer depends on it and no `inventory`
    is given. Of graphs the headers are read, for `reproducible` and for warnings about what is
    compiled. Raises `UsageError`, `MachineError` or `BundleError`.
    """
    if request is None:
        request = RouteRequest(
            ep=ep,
            device=device,
            stages=stage_requests(stages),
            scope=scope,
            provider_options=option_requests(provider_options),
            session_options=option_requests(session_options),
            reproducible=reproducible,
        )
    if not isinstance(bundle, Bundle):
        bundle = Bundle.open(bundle)
    if inventory is None:
        inventory = Inventory.discover() if request.needs_inventory else Inventory.minimal()
    unpacked = frozenset[str]()
    if request.reproducible:
        from turnout.machine.plugins import platform_word
        from turnout.routing.products import unpacked_stages

        unpacked = unpacked_stages(bundle, inventory.platform.word or platform_word())
    chosen = resolve(bundle.config, inventory, request, unpacked=unpacked)
    warnings = (*chosen.warnings, *compiled_warnings(bundle, chosen.stages))
    return replace(chosen, warnings=warnings)
