"""Provider and session options of a route: devices, what was asked for, and exact arithmetic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.bundle import DEVICE_FILTER, ProviderEntry, Stage
from turnout.errors import ConfigError, UsageError
from turnout.routing.bounds import check_session_option
from turnout.routing.request import OptionRequest, RouteRequest

if TYPE_CHECKING:
    from turnout.routing.resolve import StageRoute

# How onnxruntime-genai itself selects among the devices of any EP.
_FILTER_TYPE = "hardware_device_type"

# Session options that onnxruntime-genai reads as numbers or booleans; every other one must be a
# string (SessionOptions_Element in its src/config.cpp).
_INTEGERS = frozenset(
    {"intra_op_num_threads", "inter_op_num_threads", "log_severity_level", "log_verbosity_level"}
)
_BOOLEANS = frozenset({"enable_cpu_mem_arena", "enable_mem_pattern"})


def entry_of(providers: tuple[ProviderEntry, ...], ep: str) -> ProviderEntry | None:
    """The entry that names `ep` (canonical), None if there is none."""
    return next((entry for entry in providers if entry.ep == ep), None)


def device_of(entry: ProviderEntry | None, ep: str, generation: str = catalog.PLUGIN) -> str | None:
    """The kind of device that an entry selects; None where it leaves that open."""
    known = catalog.find(ep)
    if entry is not None:
        selects = known is not None and any(o in entry.options for o in known.selecting_options)
        kind = entry.device_filter.get(_FILTER_TYPE)
        if isinstance(kind, str) and not selects:
            return kind.lower()
    if known is None:
        return None
    return known.device_of(entry.options if entry is not None else {}, generation)


def on_device(entry: ProviderEntry, device: str, kinds: tuple[str, ...]) -> ProviderEntry:
    """The entry with its device-selecting options replaced by those for `device`.

    An EP of several `kinds` that has no option for it is narrowed by the runtime's own filter.
    """
    known = catalog.find(entry.ep)
    selecting = known.device_options if known is not None else ()
    chosen = known.defaults.get(device, {}) if known is not None else {}
    options = {
        key: chosen.get(key, value)
        for key, value in entry.options.items()
        if key not in selecting or key in chosen
    }
    narrow = known is None and len(kinds) > 1
    device_filter = {_FILTER_TYPE: device} if narrow else {}
    return ProviderEntry(entry.name, entry.ep, {**options, **chosen}, device_filter)


def with_provider_options(
    routes: list[StageRoute], request: RouteRequest, reached: frozenset[str]
) -> list[StageRoute]:
    """Routes with the asked provider options merged on top of their EPs' own.

    One without a stage goes to the stages that the override `reached`, or, without any override,
    to those that the bundle accelerates. Raises `UsageError` where it would go nowhere, or to
    several EPs, whose options mean different things.
    """
    for option in request.provider_options:
        names = _receivers(routes, option, reached)
        routes = [
            _with_option(route, option.key, option.value) if route.stage in names else route
            for route in routes
        ]
    return routes


def with_session_options(
    routes: list[StageRoute], stages: tuple[Stage, ...], request: RouteRequest
) -> list[StageRoute]:
    """Routes with the asked session options: for their stage, or for every stage."""
    open_to = {stage.name for stage in stages if stage.takes_options}
    for option in request.session_options:
        value = _typed(option)
        if option.stage is not None and option.stage not in open_to:
            raise UsageError(
                f"Stage {option.stage!r} takes no session options.", found=f"{option.key}"
            )
        routes = [
            replace(route, set_options={**route.set_options, option.key: value})
            if route.stage in open_to and option.stage in {None, route.stage}
            else route
            for route in routes
        ]
    return routes


def exact(
    routes: list[StageRoute], stages: tuple[Stage, ...], unpacked: frozenset[str]
) -> tuple[list[StageRoute], tuple[str, ...]]:
    """Routes with exact arithmetic where their EPs can, and a line where one cannot.

    Stages in `unpacked` have products that the CPU EP computes exactly only at a higher cost.
    """
    open_to = {stage.name for stage in stages if stage.takes_options}
    lines = tuple(
        f"stage {route.stage}: {route.alias} cannot be made exact"
        for route in routes
        if not _exact_able(route)
    )
    made = [
        _exact(route, route.stage in unpacked) if route.stage in open_to else route
        for route in routes
    ]
    return made, lines


def _exact(route: StageRoute, unpacked: bool) -> StageRoute:
    # On every stage, since the CPU EP runs the nodes that another EP leaves.
    options = {**route.set_options, **catalog.CPU.exact_session_options}
    if unpacked:
        options |= catalog.CPU.exact_unpacked_options
    return _with_properties(replace(route, set_options=options))


def _exact_able(route: StageRoute) -> bool:
    known = catalog.find(route.ep)
    return known is not None and route.device in known.exact_on


def _receivers(
    routes: list[StageRoute], option: OptionRequest, reached: frozenset[str]
) -> frozenset[str]:
    said = f"{option.key}={option.value}"
    if option.stage is not None:
        chosen = [route for route in routes if route.stage == option.stage]
    else:
        chosen = [route for route in routes if (route.stage in reached if reached else True)]
        chosen = [route for route in chosen if _takes_options(route.ep)]
    if not chosen or not all(_takes_options(route.ep) for route in chosen):
        raise UsageError(
            "A provider option has no stage to go to: the CPU EP takes none.",
            found=said,
            expected="a stage on another EP",
            fix="route a stage with --ep, --device or --stage, or use --session-option",
        )
    aliases = dict.fromkeys(route.alias for route in chosen)
    if len(aliases) > 1:
        raise UsageError(
            "A provider option would go to several EPs.",
            found=f"{said} for {', '.join(aliases)}",
            expected=f"STAGE:{option.key}=VALUE with one of {', '.join(r.stage for r in chosen)}",
        )
    return frozenset(route.stage for route in chosen)


def _takes_options(ep: str) -> bool:
    known = catalog.find(ep)
    return known is None or known.takes_options


def _with_option(route: StageRoute, key: str, value: str) -> StageRoute:
    def changed(entry: ProviderEntry) -> ProviderEntry:
        if entry.ep != route.ep:
            return entry
        return replace(entry, options={**entry.options, key: value})

    providers = tuple(changed(entry) for entry in route.providers)
    entry = entry_of(providers, route.ep)
    device = device_of(entry, route.ep) if entry is not None else route.device
    options = entry.options if entry is not None else {}
    return replace(route, providers=providers, options=options, device=device or route.device)


def _with_properties(route: StageRoute) -> StageRoute:
    """The route with its EP's exact properties under its device, in the option that holds them."""
    ep = catalog.find(route.ep)
    if ep is None or ep.properties_option is None or not _exact_able(route):
        return route
    option, device = ep.properties_option, str(route.device).upper()
    text = route.options.get(option, "")
    try:
        document = json.loads(text) if text.strip() else {}
        if not isinstance(document, dict) or not isinstance(document.get(device, {}), dict):
            raise TypeError("not an object of objects")  # noqa: TRY301 - told below
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"The option {option} of stage {route.stage!r} cannot be added to.",
            found=f"{text[:80]!r} ({error})",
            expected='a JSON object such as {"CPU": {"PROPERTY": "value"}}',
        ) from error
    properties = {**document.get(device, {}), **ep.exact_properties}
    if document.get(device) == properties:
        return route
    document[device] = properties
    return _with_option(route, option, json.dumps(document, separators=(",", ":")))


def _typed(option: OptionRequest) -> Any:
    """A session option's value as the runtime reads it."""
    key, value = option.key, option.value
    check_session_option(key, value)
    if key == "provider_options":
        raise UsageError(
            "provider_options is not a session option of its own.",
            found=f"{key}={value}",
            fix="use --ep, --stage and --provider-option",
        )
    if key in _BOOLEANS:
        if value.lower() not in {"true", "false"}:
            raise UsageError(f"{key} is a switch.", found=repr(value), expected="true or false")
        return value.lower() == "true"
    if key in _INTEGERS:
        try:
            number = int(value)
        except ValueError as error:
            raise UsageError(f"{key} is a number.", found=repr(value), expected="digits") from error
        check_session_option(key, number)
        return number
    return value


def as_json(entry: ProviderEntry) -> Mapping[str, Any]:
    """An entry as an element of `provider_options`."""
    body: dict[str, Any] = dict(entry.options)
    if entry.device_filter:
        body[DEVICE_FILTER] = dict(entry.device_filter)
    return {entry.name: body}


def session_option_kind(key: str) -> type[str] | type[int] | type[bool]:
    """The kind of value that the runtime reads for a session option."""
    if key in _BOOLEANS:
        return bool
    return int if key in _INTEGERS else str
