"""Sessions of onnxruntime in a child process, on the device that onnxruntime-genai would choose.

What is compiled must be what is loaded later, so devices and options follow its
`src/models/session_options.cpp` and `src/openvino/session_options.cpp` (0.18.0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout import catalog
from turnout.bundle import DEVICE_FILTER
from turnout.catalog.grammars import Device
from turnout.errors import CompileError, DeviceUnavailableError

_OPTIMIZATION = "graph_optimization_level"
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_LONGEST = 1000


def register(libraries: Mapping[str, str]) -> None:
    """Register plugin libraries, by EP, with onnxruntime alone. Raises `EpUnavailableError`."""
    from turnout.machine.origins import Plugin
    from turnout.machine.plugins import try_register

    for name, library in libraries.items():
        error = try_register("onnxruntime", Plugin(name, "the library", library))
        if error is not None:
            raise error


def open_session(
    graph: Path,
    *,
    ep: str,
    provider_options: Mapping[str, str],
    session_options: Mapping[str, str],
) -> Any:
    """A session of `graph` on that EP, as `onnxruntime.InferenceSession`.

    Raises `DeviceUnavailableError`, or whatever onnxruntime raises.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    for key, value in session_options.items():
        # Keys without a dot are settings of onnxruntime-genai, which only this one concerns.
        if "." in key:
            options.add_session_config_entry(key, value)
        elif key == _OPTIMIZATION and hasattr(onnxruntime.GraphOptimizationLevel, value):
            options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, value)
    listed = [device for device in onnxruntime.get_ep_devices() if device.ep_name == ep]
    generation = catalog.PLUGIN if listed else catalog.BUILT_IN
    passed = passed_on(ep, provider_options, generation)
    providers = None
    if listed:
        options.add_provider_for_devices(select_devices(listed, ep, provider_options), passed)
    else:
        providers = [(ep, passed)]
    # Without its fallback, which would hide an EP's error behind a session on the CPU.
    return onnxruntime.InferenceSession(str(graph), options, providers=providers, enable_fallback=0)


def passed_on(ep: str, options: Mapping[str, str], generation: str) -> dict[str, str]:
    """The provider options that reach the EP, without those that make it keep a cache.

    A cache would be written outside the staging folder, and could be older than what is compiled.
    """
    known = catalog.find(ep)
    passed = {key: value for key, value in options.items() if key != DEVICE_FILTER}
    if known is None:
        return passed
    for key in list(passed):
        option = known.option(key, generation)
        if option is not None and option.for_genai:
            del passed[key]
    properties = known.properties_option
    if properties in passed and known.cache_properties:
        passed[properties] = _without(passed[properties], known.cache_properties)
    return passed


def select_devices(listed: list[Any], ep: str, options: Mapping[str, str]) -> list[Any]:
    """The devices of an EP that its options select. Raises `DeviceUnavailableError`."""
    known = catalog.find(ep)
    wanted = _named_device(known, options)
    if known is not None and known.device_name_key is not None and wanted is not None:
        key = known.device_name_key
        names = [str(dict(device.ep_metadata).get(key, "")) for device in listed]
        found = [device for device, name in zip(listed, names, strict=True) if wanted in name][:1]
        if not found:
            raise _no_device(ep, repr(wanted), ", ".join(names))
        return found
    rules = _filter(options)
    found = [device for device in listed if _fits(device.device, rules)]
    if not found:
        raise _no_device(
            ep,
            json.dumps(rules),
            ", ".join(device.device.type.name.lower() for device in listed),
        )
    return found


def message_of(error: Exception) -> str:
    """What onnxruntime said, without its codes."""
    return _PREFIX.sub("", str(error)).strip()[:_LONGEST] or type(error).__name__


def _named_device(known: catalog.Ep | None, options: Mapping[str, str]) -> str | None:
    """The text that onnxruntime-genai looks for in the names of devices; None for none."""
    for option in known.options if known is not None else ():
        if not option.for_genai or not isinstance(option.grammar, Device):
            continue
        if option.name in options:
            return options[option.name]
        if _filter(options):
            return None
        assert known is not None
        return known.defaults.get(known.default_device or "", {}).get(option.name)
    return None


def _filter(options: Mapping[str, str]) -> dict[str, Any]:
    text = options.get(DEVICE_FILTER)
    if not text:
        return {}
    try:
        rules = json.loads(text)
    except ValueError:
        rules = None
    if not isinstance(rules, dict):
        raise CompileError(f"{DEVICE_FILTER} is no object.", found=text[:200], expected="JSON")
    return rules


def _fits(hardware: Any, rules: Mapping[str, Any]) -> bool:
    facts = {
        "hardware_device_id": hardware.device_id,
        "hardware_vendor_id": hardware.vendor_id,
        "hardware_device_type": hardware.type.name.lower(),
    }
    return all(
        fact == (value.lower() if isinstance(value, str) else value)
        for key, fact in facts.items()
        if (value := rules.get(key)) is not None
    )


def _without(text: str, properties: tuple[str, ...]) -> str:
    """The JSON object of objects `text` without these properties; as it is where it is none."""
    try:
        document = json.loads(text)
    except ValueError:
        return text  # the EP says what is wrong with it
    if not isinstance(document, dict):
        return text
    kept = {
        device: {key: value for key, value in inner.items() if key not in properties}
        if isinstance(inner, dict)
        else inner
        for device, inner in document.items()
    }
    return text if kept == document else json.dumps(kept)


def _no_device(ep: str, wanted: str, found: str) -> DeviceUnavailableError:
    return DeviceUnavailableError(
        f"{catalog.alias_of(ep)} has no device {wanted} here.", found=found or "no device"
    )
