"""What is worth saying about a config that runs here as it is, without a route."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.errors import MachineError
from turnout.machine import Inventory
from turnout.routing.options import device_of, entry_of

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig, Stage


def warnings_for(config: GenaiConfig, inventory: Inventory | None = None) -> tuple[str, ...]:
    """A line for every EP to which `config` sends stages though it can only compile here.

    `config` is the effective one. This machine is looked at (about 0.4 s) only where the config
    names an EP that may have such devices and no `inventory` is given; one that cannot be looked
    at gives no warning. Raises `ConfigError`.
    """
    doubtful: dict[str, list[Stage]] = {}
    for stage in config.stages():
        known = catalog.find(stage.ep)
        if known is not None and known.compile_only_on:
            doubtful.setdefault(known.name, []).append(stage)
    if not doubtful:
        return ()
    if inventory is None:
        with contextlib.suppress(MachineError):
            inventory = Inventory.discover()
    if inventory is None:
        return ()
    lines = []
    for name, stages in doubtful.items():
        names = [stage.name for stage in stages if only_compiles(stage, inventory)]
        if names:
            lines.append(
                f"{catalog.alias_of(name)} can compile on this machine but not run: the runtime"
                f" may run most of its stages' work on the CPU EP ({', '.join(names)})"
            )
    return tuple(lines)


def only_compiles(stage: Stage, inventory: Inventory) -> bool:
    """Whether a machine's EP can prepare a stage for other machines, but not run it."""
    installed = inventory.ep(stage.ep)
    if installed is None or installed.problem is not None:
        return False
    device = device_of(entry_of(stage.providers, stage.ep), stage.ep)
    listed = {found.kind for found in installed.devices}
    return installed.compile_only or (device in listed and device not in installed.kinds)
