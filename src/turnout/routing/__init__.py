"""What should run where: pure functions from a config, an inventory and a request to a route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

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
from turnout.routing.warnings import warnings_for

if TYPE_CHECKING:
    from turnout.bundle import Bundle

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
    bundle: Bundle,
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

    `stages` maps a stage's name to `"ep[@device]"`; options map `"[stage:]key"` to a value.
    The machine is looked at (about 0.4 s) only when the answer depends on it and no `inventory`
    is given; graphs are looked at only for `reproducible`. Raises `UsageError`, `MachineError`
    or `BundleError`.
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
    if inventory is None:
        inventory = Inventory.discover() if request.needs_inventory else Inventory.minimal()
    unpacked = _unpacked(bundle, inventory) if request.reproducible else frozenset[str]()
    return resolve(bundle.config, inventory, request, unpacked=unpacked)


def _unpacked(bundle: Bundle, inventory: Inventory) -> frozenset[str]:
    from turnout.machine.plugins import platform_word
    from turnout.routing.products import needs_unpacked

    platform = inventory.platform.word or platform_word()
    return frozenset(
        stage.name
        for stage in bundle.stages
        if stage.takes_options and needs_unpacked(bundle.graph(stage), platform)
    )
