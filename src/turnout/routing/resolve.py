"""(config, inventory, request) -> a route: for every stage where it runs, how, and why.

A pure function: it reads no file and loads nothing, so that a route can be decided, shown and
tested for a machine that is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.bundle import ProviderEntry, Stage
from turnout.errors import MachineError, UnknownStageError, UsageError
from turnout.routing import options
from turnout.routing.judged import option_warnings
from turnout.routing.request import CONFIG, RouteRequest, StageRequest
from turnout.routing.targets import Target, check_decided, choose
from turnout.routing.warnings import load_warnings

if TYPE_CHECKING:
    from pathlib import Path

    from turnout.bundle import Bundle, GenaiConfig
    from turnout.machine import Inventory

MIXED = "mixed"


@dataclass(frozen=True)
class StageRoute:
    """The decision for one stage.

    `before` and `ep` are canonical EPs; `device` is None where the bundle leaves it open.
    `options` are the provider options of `ep` as they will take effect; `how` says where they
    come from: "config" (untouched), "kept" (the stage named that EP already), "borrowed" (from
    another stage), "defaulted" (from the catalog) or "removed" (back to the CPU EP).
    `dropped` names, in words, what goes with the EP that was replaced. `file` is its graph.
    `providers`, `set_options` and `drop_options` are what `apply` writes: the entries, and the
    session options added or replaced, and those removed.
    """

    stage: str
    section: str
    before: str
    ep: str
    device: str | None
    options: Mapping[str, str]
    how: str
    dropped: tuple[str, ...]
    reason: str
    providers: tuple[ProviderEntry, ...]
    set_options: Mapping[str, Any]
    drop_options: tuple[str, ...]
    file: str | None = None

    @property
    def alias(self) -> str:
        """The short name of its EP."""
        return catalog.alias_of(self.ep)

    @property
    def in_decoder(self) -> bool:
        """Whether the stage belongs to the decoder."""
        return self.section == "decoder"

    def to_json(self) -> dict[str, Any]:
        """The decision as plain data."""
        return {
            "stage": self.stage,
            "section": self.section,
            "before": self.before,
            "ep": self.ep,
            "device": self.device,
            "options": dict(self.options),
            "session_options": dict(self.set_options),
            "how": self.how,
            "dropped": list(self.dropped),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Route:
    """The decision for every stage of a bundle: a value to print, save, compare and apply.

    `changes`: whether the effective config differs from the bundle's. `platform` is the
    catalog's word for the machine that it was decided for, "" where none was looked at.
    """

    request: RouteRequest
    stages: tuple[StageRoute, ...]
    warnings: tuple[str, ...]
    changes: bool
    platform: str = ""

    @property
    def requested(self) -> str:
        """What was asked, in the words of the command line; "config" if nothing was."""
        return str(self.request)

    @property
    def effective(self) -> str:
        """An EP's alias if every decoder stage runs on it, "config" if none was asked, "mixed"."""
        if not self.request.reroutes:
            return CONFIG
        aliases = {stage.alias for stage in self.stages if stage.in_decoder}
        return aliases.pop() if len(aliases) == 1 else MIXED

    @property
    def eps(self) -> tuple[str, ...]:
        """The canonical EPs that the route names, each once: what has to be registered."""
        return tuple(dict.fromkeys(entry.ep for stage in self.stages for entry in stage.providers))

    def to_json(self) -> dict[str, Any]:
        """The route as plain data, ready for `json.dumps`."""
        return {
            "requested": self.requested,
            "effective": self.effective,
            "changes": self.changes,
            "stages": [stage.to_json() for stage in self.stages],
            "warnings": list(self.warnings),
        }

    def save(self, path: Path | str) -> None:
        """Write the decision to a file that `load` reads; see `turnout.routing.saved`."""
        from turnout.routing import saved

        saved.save(self, path)

    @staticmethod
    def load(
        path: Path | str, bundle: Bundle | Path | str, inventory: Inventory | None = None
    ) -> Route:
        """The saved decision for `bundle`; see `turnout.routing.saved`. Raises `UsageError`."""
        from turnout.routing import saved

        return saved.load(path, bundle, inventory)


def resolve(
    config: GenaiConfig,
    inventory: Inventory,
    request: RouteRequest,
    *,
    unpacked: frozenset[str] = frozenset(),
) -> Route:
    """Decide for every stage. Raises a `UsageError`, `MachineError` or `ConfigError`.

    `inventory` may be `Inventory.minimal()` unless `request.needs_inventory`. `unpacked` names
    the stages for which `products.needs_unpacked` holds; only `request.reproducible` asks.
    """
    from turnout.routing.apply import apply

    stages = config.stages()
    _check_names(request, stages)
    targets = _targets(stages, inventory, request)
    routes = [_decide(stage, targets.get(stage.name), stages) for stage in stages]
    reached = frozenset(targets)
    routes = options.with_provider_options(routes, request, reached)
    routes = options.with_session_options(routes, stages, request)
    doubts = option_warnings(routes, request, inventory)
    for decision in routes:
        check_decided(decision, targets.get(decision.stage), request, inventory)
    warnings = _moved(routes, request) + doubts
    warnings += load_warnings(config, routes, reroutes=request.reroutes)
    if request.reproducible:
        routes, inexact = options.exact(routes, stages, unpacked)
        warnings += inexact
    routes = [replace(r, file=stage.filename) for r, stage in zip(routes, stages, strict=True)]
    platform = inventory.platform.word
    route = Route(request, tuple(routes), warnings, changes=False, platform=platform)
    return replace(route, changes=apply(config, route).text != config.text)


def _check_names(request: RouteRequest, stages: tuple[Stage, ...]) -> None:
    names = [stage.name for stage in stages]
    asked = [stage.name for stage in request.stages]
    asked += [
        option.stage
        for option in (*request.provider_options, *request.session_options)
        if option.stage is not None
    ]
    for name in asked:
        if name not in names:
            raise UnknownStageError(
                "The bundle has no such stage.", found=repr(name), expected=", ".join(names)
            )


def _targets(
    stages: tuple[Stage, ...], inventory: Inventory, request: RouteRequest
) -> dict[str, Target]:
    """Where each stage is sent; stages on which the bundle's word stands are absent."""
    targets: dict[str, Target] = {}
    own = {stage.name: stage for stage in request.stages}
    if request.has_override:
        target = choose(request.ep, request.device, inventory, _said(request))
        for stage in stages:
            if stage.name not in own and reaches(request, stage):
                targets[stage.name] = target
        if not targets and request.scope == "accelerated":
            raise MachineError(
                "The bundle has no stage that runs on an EP other than the CPU's.",
                found=", ".join(f"{s.name}: {catalog.alias_of(s.ep)}" for s in stages),
                expected="at least one accelerated stage for --scope accelerated",
                fix="use --scope pipeline, or name stages with --stage",
            )
    for stage in stages:
        asked = own.get(stage.name)
        if asked is not None and asked.ep != CONFIG:
            targets[stage.name] = _asked(stage, asked, inventory)
    return targets


def _asked(stage: Stage, asked: StageRequest, inventory: Inventory) -> Target:
    if not stage.takes_options:
        raise UsageError(
            f"Stage {stage.name!r} cannot be routed: the runtime takes no options for it.",
            found=f"--stage {asked.name}={asked.ep}",
        )
    device = f"@{asked.device}" if asked.device is not None else ""
    said = f"--stage {asked.name}={asked.ep}{device}"
    return choose(asked.ep, asked.device, inventory, said)


def _said(request: RouteRequest) -> str:
    return str(RouteRequest(ep=request.ep, device=request.device))


def reaches(request: RouteRequest, stage: Stage) -> bool:
    """Whether the request sends a stage somewhere, rather than let the bundle's word stand."""
    asked = request.of(stage.name)
    if asked is not None:
        return asked.ep != CONFIG
    in_scope = request.scope == "pipeline" or stage.ep != catalog.CPU.name
    return request.has_override and stage.takes_options and in_scope


def origin(stage: Stage, ep: str, stages: tuple[Stage, ...]) -> str:
    """Where the options of a stage that was sent to `ep` (canonical) come from, as `how` says."""
    known = catalog.find(ep)
    if stage.ep != ep and known is not None and not known.takes_options:
        return "removed"
    if stage.ep == ep or options.entry_of(stage.providers, ep) is not None:
        return "kept"
    others = [other for other in stages if other.name != stage.name]
    borrowed = any(options.entry_of(other.providers, ep) is not None for other in others)
    return "borrowed" if borrowed else "defaulted"


def _decide(stage: Stage, target: Target | None, stages: tuple[Stage, ...]) -> StageRoute:
    if target is None:
        return _untouched(stage)
    cpu = catalog.CPU.name
    if stage.ep == target.ep:
        return _kept(stage, target)
    named = options.entry_of(stage.providers, target.ep)
    how = origin(stage, target.ep, stages)
    if how == "removed":
        providers = tuple(e for e in stage.providers if e.ep == target.ep)
    elif named is not None:
        providers = (_adjusted(named, target),)
    else:
        providers = (_new_entry(target, stage, stages),)
    lost = tuple(e for e in stage.providers if e.ep not in {cpu, target.ep})
    # What belongs to the compiled form of the EP that goes means nothing to another one.
    drop = tuple(k for k in stage.effective_options if k.startswith("ep.")) if lost else ()
    dropped = tuple(
        f"{catalog.alias_of(e.ep)}: {k}={v}" for e in lost for k, v in e.options.items()
    )
    return _route(
        stage,
        target,
        how=how,
        providers=providers,
        dropped=dropped + tuple(f"{key}={stage.effective_options[key]}" for key in drop),
        drop_options=drop,
    )


def _untouched(stage: Stage) -> StageRoute:
    entry = options.entry_of(stage.providers, stage.ep)
    return StageRoute(
        stage=stage.name,
        section=stage.section,
        before=stage.ep,
        ep=stage.ep,
        device=options.device_of(entry, stage.ep),
        options=entry.options if entry is not None else {},
        how="config",
        dropped=(),
        reason="the bundle's config"
        if stage.takes_options
        else "the runtime takes no options for this stage",
        providers=stage.providers,
        set_options={},
        drop_options=(),
    )


def _kept(stage: Stage, target: Target) -> StageRoute:
    entry = options.entry_of(stage.providers, target.ep)
    if entry is None:
        return _route(stage, target, how="kept", providers=stage.providers)
    adjusted = _adjusted(entry, target)
    providers = tuple(adjusted if e is entry else e for e in stage.providers)
    dropped = tuple(
        f"{catalog.alias_of(entry.ep)}: {key}={value}"
        for key, value in entry.options.items()
        if adjusted.options.get(key) != value
    )
    return _route(stage, target, how="kept", providers=providers, dropped=dropped)


def _new_entry(target: Target, stage: Stage, stages: tuple[Stage, ...]) -> ProviderEntry:
    for other in sorted(stages, key=lambda s: not s.in_decoder):
        entry = options.entry_of(other.providers, target.ep)
        if entry is not None and other.name != stage.name:
            device = options.device_of(entry, target.ep)
            if device is not None and device not in target.kinds:
                entry = options.on_device(entry, target.device, target.kinds)
            return _adjusted(entry, target)
    known = catalog.find(target.ep)
    name = known.written_name if known is not None else target.ep
    empty = ProviderEntry(name, target.ep, {}, {})
    return options.on_device(empty, target.device, target.kinds)


def _adjusted(entry: ProviderEntry, target: Target) -> ProviderEntry:
    """The entry on the device that was asked for; as it is when none was, or it is there."""
    if not target.device_asked or options.device_of(entry, target.ep) == target.device:
        return entry
    return options.on_device(entry, target.device, target.kinds)


def _route(
    stage: Stage,
    target: Target,
    *,
    how: str,
    providers: tuple[ProviderEntry, ...],
    dropped: tuple[str, ...] = (),
    drop_options: tuple[str, ...] = (),
) -> StageRoute:
    entry = options.entry_of(providers, target.ep)
    return StageRoute(
        stage=stage.name,
        section=stage.section,
        before=stage.ep,
        ep=target.ep,
        device=options.device_of(entry, target.ep) if entry is not None else target.device,
        options=entry.options if entry is not None else {},
        how=how,
        dropped=dropped,
        reason=target.reason,
        providers=providers,
        set_options={},
        drop_options=drop_options,
    )


def _moved(routes: list[StageRoute], request: RouteRequest) -> tuple[str, ...]:
    """One line about stages that a mixed bundle keeps on the CPU and a blanket override moves."""
    cpu = catalog.CPU.name
    named = {stage.name for stage in request.stages}
    moved = [
        route
        for route in routes
        if route.before == cpu and route.ep != cpu and route.stage not in named
    ]
    if not moved or all(route.before == cpu for route in routes):
        return ()
    names = ", ".join(route.stage for route in moved)
    return (
        f"moved to {moved[0].alias} though the bundle keeps them on the CPU: {names}"
        " (--scope accelerated leaves them there)",
    )
