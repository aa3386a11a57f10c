"""What a job is compiled with and for: runtimes, plugin libraries, devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.compiling.keys import Machine
from turnout.errors import EpUnavailableError
from turnout.machine.origins import version_of
from turnout.machine.plugins import locate, not_installed
from turnout.machine.processor import processor

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig
    from turnout.compiling.hashes import ContentHashes
    from turnout.compiling.jobs import Job
    from turnout.machine import Inventory

_RUNTIME = "onnxruntime"
_HOST = "cpu"


def libraries(job: Job, inventory: Inventory | None = None) -> dict[str, str]:
    """The plugin library of the job's EP, by its name; {} for one that every runtime has.

    Raises `EpUnavailableError` for an EP that is not installed, or broken.
    """
    known = catalog.find(job.ep)
    if known is not None and known.builtin:
        return {}
    plugin = locate(job.ep, inventory)
    if plugin is None:
        raise not_installed(job.ep)
    if plugin.problem is not None or plugin.library is None:
        raise EpUnavailableError(
            f"The execution provider {catalog.alias_of(job.ep)} is installed but broken.",
            found=plugin.problem,
            where=plugin.library or plugin.source,
            fix=plugin.fix,
        )
    return {job.ep: plugin.library}


def machine_for(job: Job, hashes: ContentHashes, inventory: Inventory | None = None) -> Machine:
    """What the job's key says of this machine. Loads nothing where the device is the CPU.

    Raises `EpUnavailableError` for an EP that is not installed.
    """
    tools = {_RUNTIME: version_of(_RUNTIME) or "unknown"}
    for name, library in libraries(job, inventory).items():
        plugin = locate(name, inventory)
        source = plugin.source if plugin is not None else name
        tools[source] = (plugin.version if plugin is not None else None) or "unknown"
        tools[f"library of {catalog.alias_of(name)}"] = hashes.file(Path(library))
    return Machine(tools, _device(job, inventory))


def needs_inventory(config: GenaiConfig) -> bool:
    """Whether keys name devices, which the runtimes must be asked for."""
    for stage in config.stages():
        known = catalog.find(stage.ep)
        given = {entry.ep: entry.options for entry in stage.providers}.get(stage.ep, {})
        if known is not None and known.compiles and known.device_of(given) != _HOST:
            return True
    return False


def _device(job: Job, inventory: Inventory | None) -> dict[str, str]:
    if job.target:
        return {}  # the target says it
    known = catalog.find(job.ep)
    kind = known.device_of(job.provider_options) if known is not None else None
    if kind == _HOST:
        return {"processor": processor()}
    if inventory is None:
        from turnout.machine import Inventory

        inventory = Inventory.discover()
    return _identity(inventory, job.ep, kind)


def _identity(inventory: Inventory, ep: str, kind: str | None) -> dict[str, str]:
    """The devices of an EP, as far as they are known: vendor, number, and what they tell."""
    installed = inventory.ep(ep)
    found: dict[str, str] = {}
    for device in installed.devices if installed is not None else ():
        if kind not in {None, device.kind}:
            continue
        facts: Mapping[str, object] = {
            "vendor": device.vendor_id or device.vendor or "",
            "device": device.device_id or "",
            **device.metadata,
        }
        for name, value in facts.items():
            found[f"{device.kind} {name}"] = str(value)
    return found
