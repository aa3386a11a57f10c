"""Saved routes: a decision as a JSON document, and back into the same decision.

A saved route holds what was decided, not only what was asked for, so that it is applied without
a look at the machine and gives the same effective config. It holds no path of a library: those
are found when a bundle is loaded. It also says what it was decided for, and is refused for
anything else. A document is not trusted: its size, and the kind of every value, are checked.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from turnout import catalog
from turnout.bundle import DEVICE_FILTER, Bundle, ProviderEntry, Stage
from turnout.errors import OutputExistsError, UnknownEpError, UnknownStageError, UsageError
from turnout.files import write_atomic
from turnout.routing import routefile as doc
from turnout.routing.apply import apply
from turnout.routing.bounds import check_session_option
from turnout.routing.claims import check_decision, check_exact
from turnout.routing.options import device_of, entry_of, session_option_kind
from turnout.routing.request import OptionRequest, RouteRequest, StageRequest
from turnout.routing.resolve import Route, StageRoute

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig
    from turnout.machine import Inventory


def save(route: Route, path: Path | str) -> None:
    """Write `route` to the file `path`, whole or not at all.

    A route that was saved there is replaced; any other file, or a link, is not
    (`OutputExistsError`).
    Raises `UsageError` for a route that is too large, or a name that no file can have, and
    `WriteError`.
    """
    path = Path(path)
    data = msgspec.json.format(msgspec.json.encode(_document(route)), indent=2) + b"\n"
    if len(data) > doc.MAX_BYTES:
        raise UsageError(
            "The route is too large to be saved.",
            found=f"{len(data)} bytes",
            expected=f"at most {doc.MAX_BYTES} bytes",
        )
    try:
        if path.is_symlink():
            raise OutputExistsError(
                f"{path} is a link, which is not replaced.",
                found=f"a link to {path.readlink()}",
                where=path,
                fix="name the file itself",
            )
        if path.exists() and not doc.is_route(path):
            raise OutputExistsError(
                f"{path} exists already, and is no saved route.",
                where=path,
                fix="choose another name",
            )
        write_atomic(path, data)
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError("The name of the route's file is none.", found=repr(str(path))) from error


def load(
    path: Path | str, bundle: Bundle | Path | str, inventory: Inventory | None = None
) -> Route:
    """The route in the file `path`, for the bundle (or its directory) that it was decided for.

    The machine is looked at only for an EP that neither the catalog nor the bundle knows, and no
    `inventory` is given. Whether this machine has the EPs shows when the bundle is loaded. Of a
    reproducible route the graphs' headers are read: what is exact for one graph need not be for
    another. Raises `UsageError` naming the file, the JSON path, what was found and what is
    expected, and `BundleError`.
    """
    path = doc.as_path(path)
    if not isinstance(bundle, Bundle):
        bundle = Bundle.open(bundle)
    document = doc.decode(doc.read(path), path)
    place = doc.Place(path)
    doc.check_text(document, place)
    stages = bundle.stages
    saved = _by_name(document, stages, place)
    with place.at("request").named():
        request = _request(document.request)
    places = {}
    for index, item in enumerate(document.stages):
        stage = next(stage for stage in stages if stage.name == item.stage)
        places[stage.name] = place.at("stages", index)
        _check_stage(item, stage, places[stage.name])
    _check_known(document, stages, inventory, place)
    for stage in stages:
        decision = _decision(saved[stage.name])
        check_decision(decision, stage, stages, request, places[stage.name])
    route = Route(
        request,
        tuple(_decision(saved[stage.name]) for stage in stages),
        tuple(dict.fromkeys((*document.warnings, *_elsewhere(document, inventory)))),
        changes=False,
        platform=document.platform or "",
    )
    check_exact(route, bundle, _platform(inventory), places)
    return replace(route, changes=_changes(route, bundle.config))


def _document(route: Route) -> doc.Document:
    request = route.request
    return doc.Document(
        document=doc.DOCUMENT,
        schema_version=doc.SCHEMA_VERSION,
        platform=route.platform or None,
        request=doc.Request(
            ep=request.ep,
            device=request.device,
            stages=tuple(doc.AskedStage(*stage) for stage in request.stages),
            scope=request.scope,
            provider_options=tuple(doc.AskedOption(*option) for option in request.provider_options),
            session_options=tuple(doc.AskedOption(*option) for option in request.session_options),
            reproducible=request.reproducible,
        ),
        stages=tuple(_saved(decision) for decision in route.stages),
        warnings=route.warnings,
    )


def _saved(decision: StageRoute) -> doc.Stage:
    entries = tuple(
        doc.Entry(entry.name, dict(entry.options), dict(entry.device_filter))
        for entry in decision.providers
    )
    return doc.Stage(
        stage=decision.stage,
        section=decision.section,
        file=decision.file,
        before=decision.before,
        ep=decision.ep,
        device=decision.device,  # type: ignore[arg-type]
        how=decision.how,  # type: ignore[arg-type]
        reason=decision.reason,
        providers=entries,
        set_options=dict(decision.set_options),
        drop_options=decision.drop_options,
        dropped=decision.dropped,
    )


def _decision(item: doc.Stage) -> StageRoute:
    providers = _providers(item)
    ep = catalog.canonical(item.ep)
    entry = entry_of(providers, ep)
    return StageRoute(
        stage=item.stage,
        section=item.section,
        before=catalog.canonical(item.before),
        ep=ep,
        device=item.device,
        options=entry.options if entry is not None else {},
        how=item.how,
        dropped=item.dropped,
        reason=item.reason,
        providers=providers,
        set_options=item.set_options,
        drop_options=item.drop_options,
        file=item.file,
    )


def _providers(item: doc.Stage) -> tuple[ProviderEntry, ...]:
    return tuple(
        ProviderEntry(entry.name, catalog.canonical(entry.name), entry.options, entry.device_filter)
        for entry in item.providers
    )


def _request(asked: doc.Request) -> RouteRequest:
    return RouteRequest(
        ep=asked.ep,
        device=asked.device,
        stages=tuple(StageRequest(s.name, s.ep, s.device) for s in asked.stages),
        scope=asked.scope,
        provider_options=_options(asked.provider_options),
        session_options=_options(asked.session_options),
        reproducible=asked.reproducible,
    )


def _options(asked: tuple[doc.AskedOption, ...]) -> tuple[OptionRequest, ...]:
    return tuple(OptionRequest(option.stage, option.key, option.value) for option in asked)


def _by_name(
    document: doc.Document, stages: tuple[Stage, ...], place: doc.Place
) -> dict[str, doc.Stage]:
    names = [stage.name for stage in stages]
    found: dict[str, doc.Stage] = {}
    for index, item in enumerate(document.stages):
        where = place.at("stages", index, "stage")
        if item.stage in found:
            raise where.error(f"Stage {item.stage!r} is routed twice.", expected="once a stage")
        if item.stage not in names:
            raise where.error(
                "The bundle has no such stage: the route was decided for another one.",
                UnknownStageError,
                found=repr(item.stage),
                expected=", ".join(names),
            )
        found[item.stage] = item
    lacking = [name for name in names if name not in found]
    if lacking:
        raise place.at("stages").error(
            "The route lacks stages of the bundle: it was decided for another one.",
            found=", ".join(found) or "no stage",
            expected=f"also {', '.join(lacking)}",
        )
    return found


def _check_stage(item: doc.Stage, stage: Stage, place: doc.Place) -> None:
    """That the decision fits this stage, and holds together."""
    for name, found, expected in (
        ("section", item.section, stage.section),
        ("file", item.file, stage.filename),
        ("before", catalog.canonical(item.before), stage.ep),
    ):
        if found != expected:
            raise place.at(name).error(
                f"The route was decided for another state of the stage {stage.name!r}.",
                found=repr(found),
                expected=f"{expected!r}, as the bundle has it",
                fix=doc.AGAIN,
            )
    providers = _providers(item)
    names = [entry.ep for entry in providers]
    effective = next((ep for ep in names if ep != catalog.CPU.name), catalog.CPU.name)
    if catalog.canonical(item.ep) != effective:
        raise place.at("ep").error(
            f"The EP of the stage {stage.name!r} is not the one of its providers.",
            found=item.ep,
            expected=effective,
        )
    _check_device(item, providers, place)
    _check_session_options(item, place)
    if providers == stage.providers and not (item.set_options or item.drop_options):
        return
    if not stage.takes_options:
        raise place.error(
            f"Stage {stage.name!r} cannot be routed: the runtime takes no options for it."
        )
    _check_providers(providers, place)


def _check_providers(providers: tuple[ProviderEntry, ...], place: doc.Place) -> None:
    seen = set()
    for index, entry in enumerate(providers):
        where = place.at("providers", index)
        known = catalog.find(entry.ep)
        if not entry.name.strip() or entry.ep in seen:
            raise where.at("name").error(
                "An EP is named twice, or not at all.", found=repr(entry.name)
            )
        seen.add(entry.ep)
        if DEVICE_FILTER in entry.options:
            raise where.at("options", DEVICE_FILTER).error(
                f"{DEVICE_FILTER} is no option of an EP.", expected="device_filter beside options"
            )
        if known is not None and not known.takes_options and entry.options:
            raise where.at("options").error(
                f"{known.alias} takes no options.", found=", ".join(entry.options)
            )


def _check_device(item: doc.Stage, providers: tuple[ProviderEntry, ...], place: doc.Place) -> None:
    ep = catalog.canonical(item.ep)
    chosen = entry_of(providers, ep)
    device = device_of(chosen, ep) if chosen is not None else item.device
    if device is not None and device != item.device:
        raise place.at("device").error(
            f"The device of the stage {item.stage!r} is not the one of its options.",
            found=repr(item.device),
            expected=repr(device),
        )


def _check_session_options(item: doc.Stage, place: doc.Place) -> None:
    for name in (*item.set_options, *item.drop_options):
        if name == "provider_options":
            raise place.error("provider_options is not a session option of its own.")
    for key, value in item.set_options.items():
        with place.at("set_options", key).named():
            check_session_option(key, value)
        expected = session_option_kind(key)
        if type(value) is not expected:
            raise place.at("set_options", key).error(
                f"The session option {key} is of the wrong kind.",
                found=repr(value)[:80],
                expected={str: "text", int: "a number", bool: "true or false"}[expected],
            )


def _check_known(
    document: doc.Document, stages: tuple[Stage, ...], inventory: Inventory | None, place: doc.Place
) -> None:
    """That every EP is known: to the catalog, to the bundle itself, or to the machine."""
    there = {entry.ep for stage in stages for entry in stage.providers}
    for index, item in enumerate(document.stages):
        for number, entry in enumerate(_providers(item)):
            if entry.ep in there or catalog.find(entry.ep) is not None:
                continue
            if inventory is None:
                from turnout.machine import Inventory

                inventory = Inventory.discover()
            if inventory.ep(entry.ep) is None:
                known = dict.fromkeys(
                    [ep.alias for ep in catalog.EPS] + [ep.alias for ep in inventory.eps]
                )
                raise place.at("stages", index, "providers", number, "name").error(
                    "The execution provider is unknown, to the catalog and to the machine.",
                    UnknownEpError,
                    found=repr(entry.name),
                    expected=", ".join(known),
                    fix="see what the machine has with: turnout devices",
                )


def _elsewhere(document: doc.Document, inventory: Inventory | None) -> tuple[str, ...]:
    """A line where the route was decided for a machine of another kind."""
    here = _platform(inventory)
    if document.platform in {None, here}:
        return ()
    return (f"the route was decided for {document.platform}, and this is {here}",)


def _platform(inventory: Inventory | None) -> str:
    """The catalog's word for the machine that the route is taken on."""
    from turnout.machine.plugins import platform_word

    return (inventory.platform.word if inventory is not None else "") or platform_word()


def _changes(route: Route, config: GenaiConfig) -> bool:
    return apply(config, route).text != config.text
