"""Whether a machine has what a route needs, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout import catalog

if TYPE_CHECKING:
    from turnout.machine import InstalledEp, Inventory
    from turnout.routing.resolve import Route, StageRoute


@dataclass(frozen=True)
class Lack:
    """What a machine lacks for a stage: `problem` says it, after the EP's name; `fix` may help."""

    ep: str
    problem: str
    fix: str | None = None

    def __str__(self) -> str:
        fix = f" ({self.fix})" if self.fix else ""
        return f"{catalog.alias_of(self.ep)} {self.problem}{fix}"


def lacks(route: Route, inventory: Inventory) -> dict[str, Lack]:
    """What the machine of `inventory` lacks, by the name of the stage; nothing where all is there.

    Such a stage does not load there, but for an EP that can only compile: that one loads, and
    leaves its nodes to the CPU EP.
    """
    found = {}
    for stage in route.stages:
        lack = _lack(stage, inventory)
        if lack is not None:
            found[stage.stage] = lack
    return found


def _lack(stage: StageRoute, inventory: Inventory) -> Lack | None:
    from turnout.machine.plugins import how_to_install

    for ep in dict.fromkeys([*(entry.ep for entry in stage.providers), stage.ep]):
        installed = inventory.ep(ep)
        if installed is None:
            word = inventory.platform.word or None
            return Lack(ep, "is not installed", how_to_install(ep, word))
        if installed.problem is not None:
            return Lack(ep, f"is broken: {installed.problem}", installed.fix)
        if ep == stage.ep and (problem := _device_problem(installed, stage.device)):
            return Lack(ep, problem)
    return None


def _device_problem(ep: InstalledEp, device: str | None) -> str | None:
    listed = {found.kind for found in ep.devices}
    if ep.compile_only or (device in listed and device not in ep.kinds):
        return "can compile but not run there: the runtime may run most of the work on the CPU EP"
    if not ep.kinds or (device is not None and device not in ep.kinds):
        return f"finds no {device or 'device'} there"
    return None
