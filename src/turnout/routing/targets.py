"""Which EP and device an override means on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.errors import (
    DeviceUnavailableError,
    EpUnavailableError,
    UnknownEpError,
    UsageError,
)
from turnout.routing.request import AUTO, CONFIG

if TYPE_CHECKING:
    from turnout.machine import InstalledEp, Inventory
    from turnout.routing.request import RouteRequest
    from turnout.routing.resolve import StageRoute


@dataclass(frozen=True)
class Target:
    """Where a stage is sent. `device_asked`: the device was named, not merely the EP's first.

    `kinds` are the devices on which the EP can run there, `reason` says who asked and how.
    """

    ep: str
    device: str
    device_asked: bool
    kinds: tuple[str, ...]
    reason: str


def choose(ep: str | None, device: str | None, inventory: Inventory, said: str) -> Target:
    """The EP and the device that `ep` and `device` mean; `said` is how they were asked for.

    Raises `UnknownEpError`, `EpUnavailableError`, `DeviceUnavailableError` or `UsageError`.
    """
    wanted = None if device in {None, CONFIG, AUTO} else device
    if ep is not None:
        installed = _installed(ep, inventory)
        return _on(installed, wanted, inventory, said)
    if wanted is not None:
        best = inventory.best_ep(wanted)
        if best is None:
            raise _no_device(wanted, inventory)
        return Target(best.name, wanted, True, best.kinds, f"{said}: {best.alias} is the best here")
    for kind in catalog.DEVICES:
        best = inventory.best_ep(kind, assumed=False)
        if best is not None:
            reason = f"{said}: {kind} is the best device here, {best.alias} its best EP"
            return Target(best.name, kind, True, best.kinds, reason)
    raise DeviceUnavailableError("No execution provider of the machine serves any device.")


def _installed(name: str, inventory: Inventory) -> InstalledEp:
    if not name.strip():
        raise UsageError(
            "No execution provider is named.", found=repr(name), expected=_words(inventory)
        )
    installed, known = inventory.ep(name), catalog.find(name)
    if installed is None and known is None:
        raise UnknownEpError(
            "The execution provider is unknown, to the catalog and to the machine.",
            found=repr(name),
            expected=_words(inventory),
            fix="see what the machine has with: turnout devices",
        )
    if installed is None:
        from turnout.machine.plugins import not_installed

        raise not_installed(catalog.canonical(name), inventory.platform.word)
    if installed.problem is not None:
        raise EpUnavailableError(
            f"The execution provider {installed.alias} ({installed.name}) is installed but broken.",
            found=installed.problem,
            where=installed.library or installed.source,
            fix=installed.fix,
        )
    return installed


def _words(inventory: Inventory) -> str:
    """Every EP that can be named there."""
    known = [*(ep.alias for ep in catalog.EPS), *(ep.alias for ep in inventory.eps)]
    return ", ".join(dict.fromkeys(known))


def _on(ep: InstalledEp, device: str | None, inventory: Inventory, said: str) -> Target:
    known = catalog.find(ep.name)
    if device is not None and known is not None and device not in ep.kinds:
        listed = {found.kind for found in ep.devices}
        if not known.serves(device) and device not in listed:
            raise UsageError(
                f"{ep.alias} does not serve {device}.",
                found=said,
                expected=f"one of its devices: {', '.join(known.devices)}",
            )
    if not ep.kinds or (device is not None and device not in ep.kinds):
        raise _not_here(ep, device, inventory)
    return Target(ep.name, device or ep.kinds[0], device is not None, ep.kinds, said)


def _not_here(ep: InstalledEp, device: str | None, inventory: Inventory) -> DeviceUnavailableError:
    compile_only = [found.kind for found in ep.devices if found.compile_only]
    if compile_only and (device is None or device in compile_only):
        known = catalog.find(ep.name)
        offline = known is not None and known.target is not None
        return DeviceUnavailableError(
            f"{ep.alias} can compile on this machine but not run.",
            found=f"{', '.join(compile_only)} (compile only)",
            expected="a device that it serves",
            fix="give the inventory of a machine that has one (turnout devices --json there), "
            + ("compile for it with --target, " if offline else "")
            + "or choose another EP",
        )
    return DeviceUnavailableError(
        f"{ep.alias} finds no {device or 'device'} on the machine.",
        found=f"{ep.alias} on {', '.join(ep.kinds) or 'no device'}; the machine has "
        + available(inventory),
        fix=f"choose {' or '.join(ep.kinds)}" if ep.kinds else catalog.device_advice(ep.name),
    )


def check_decided(
    route: StageRoute, target: Target | None, request: RouteRequest, inventory: Inventory
) -> None:
    """Refuse options that send a stage where it was not asked to go, or where nothing is.

    Raises `UsageError` or `DeviceUnavailableError`.
    """
    if target is None or route.device is None:
        return
    if target.device_asked and route.device != target.device:
        raise UsageError(
            f"Stage {route.stage!r} was asked to run on {target.device}, but its options say"
            f" {route.device}.",
            found=", ".join(f"{key}={value}" for key, value in route.options.items()),
            expected=f"options for {target.device}",
        )
    if route.device not in target.kinds:
        raise DeviceUnavailableError(
            f"Stage {route.stage!r} is set to the {route.device} of {route.alias},"
            " which the machine lacks.",
            found=f"the machine has {available(inventory)}",
            fix=_away_from(route, target, request),
        )


def _away_from(route: StageRoute, target: Target, request: RouteRequest) -> str:
    """What to do about a device that is not there: its options may be the bundle's, or asked."""
    known = catalog.find(route.ep)
    selecting = known.device_options if known is not None else ()
    asked = [
        f"{option.key}={option.value}"
        for option in request.provider_options
        if option.stage in {None, route.stage} and option.key in selecting
    ]
    if asked:
        return f"leave out {', '.join(asked)}: {route.alias} has {' and '.join(target.kinds)} there"
    return f"add --device {' or --device '.join(target.kinds)}"


def _no_device(device: str, inventory: Inventory) -> DeviceUnavailableError:
    from turnout.machine.plugins import platform_word

    word = inventory.platform.word or platform_word()
    hints = [
        hint
        for ep in catalog.EPS
        if ep.serves(device) and ep.runs_on(word)
        if (hint := _way_to(ep, device, inventory.ep(ep.name), word)) is not None
    ]
    return DeviceUnavailableError(
        f"No execution provider of the machine serves {device}.",
        found=f"the machine has {available(inventory)}",
        fix="; or ".join(hints) or f"no package of an EP for {device} is known for {word}",
    )


def _way_to(
    ep: catalog.Ep, device: str, installed: InstalledEp | None, platform: str
) -> str | None:
    """What is lacking for an EP to serve a device, as a phrase; None if nothing is known."""
    if installed is None:
        package = ep.package_for(platform)
        return f"pip install {package.name}" if package is not None else None
    if installed.problem is not None:
        return f"mend {ep.alias}" + (f": {installed.fix}" if installed.fix else "")
    return (
        f"{ep.alias} is installed but finds no {device}: check that the machine has one,"
        " and its driver"
    )


def available(inventory: Inventory) -> str:
    """What can be routed to, in words: `npu (openvino), cpu (cpu, openvino)`."""
    rows = []
    for kind in catalog.DEVICES:
        eps = [ep.alias for ep in inventory.eps if ep.exposes(kind)]
        if eps:
            rows.append(f"{kind} ({', '.join(eps)})")
    return ", ".join(rows) or "no device"
