"""The child of `turnout.machine.discovery`: tries every plugin and prints the inventory.

One JSON document a line on the standard output it was started with: `{"trying": ...}` before
a plugin's own code runs, `{"tried": ...}` after it, and last `{"inventory": ...}`.
Arguments: keys of origins to leave out.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Collection
from typing import IO, Any

import msgspec

from turnout import catalog
from turnout.machine import plugins
from turnout.machine.inventory import Device, InstalledEp, Inventory, Platform, missing_eps
from turnout.machine.origins import RUNTIMES, Plugin, origins


def main() -> None:
    """Print the inventory; nothing that a native library prints can get between the lines."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _say(answers, "inventory", msgspec.to_builtins(look(set(sys.argv[1:]), answers)))
    # Plugins have crashed while a process that used them ended; the answer is complete here.
    os._exit(0)


def look(skip: Collection[str], answers: IO[str]) -> Inventory:
    """Register what is installed with both runtimes of this process and list what they see."""
    tried: dict[str, tuple[Plugin, str | None, str | None]] = {}
    for origin in origins():
        if origin.key in skip:
            continue
        _trying(answers, origin.key, origin.source, origin.name or origin.source, None)
        for plugin in origin.ask():
            if plugin.name in tried:
                continue
            _trying(answers, origin.key, origin.source, plugin.name, plugin.library)
            tried[plugin.name] = (plugin, *_register(plugin))
        _say(answers, "tried", origin.key)
    listed = _listed_devices()
    eps = [_installed(plugin, problem, fix, listed) for plugin, problem, fix in tried.values()]
    eps += _built_in(listed, set(tried))
    eps.sort(key=lambda ep: catalog.order_of(ep.name))
    word = plugins.platform_word()
    return Inventory(
        platform=Platform(word, platform.platform(), platform.python_version()),
        runtimes=_runtimes(),
        eps=tuple(eps),
        missing=missing_eps((ep.name for ep in eps), word),
    )


def _say(answers: IO[str], kind: str, value: Any) -> None:
    answers.write(json.dumps({kind: value}) + "\n")
    answers.flush()


def _trying(answers: IO[str], key: str, source: str, name: str, library: str | None) -> None:
    found = {"key": key, "source": source, "name": name, "library": library}
    _say(answers, "trying", found)


def _register(plugin: Plugin) -> tuple[str | None, str | None]:
    """(problem, fix) of a plugin in the first runtime that refuses it."""
    if plugin.problem is not None:
        return plugin.problem, plugin.fix
    for runtime in RUNTIMES:
        error = plugins.try_register(runtime, plugin)
        if error is not None:
            return error.facts.get("found", error.problem), error.facts.get("fix")
    return None, None


def _listed_devices() -> dict[str, list[Device]]:
    """What onnxruntime lists, by canonical name.

    Variants of an EP (`OpenVINOExecutionProvider.AUTO`) and second registrations of a library
    list hardware that is there already: each device is kept once.
    """
    import onnxruntime

    listed: dict[str, list[Device]] = {}
    seen: set[tuple[object, ...]] = set()
    for entry in onnxruntime.get_ep_devices():
        name, hardware = catalog.canonical(entry.ep_name), entry.device
        metadata = {str(k): str(v) for k, v in dict(entry.ep_metadata).items()}
        metadata = {**{str(k): str(v) for k, v in dict(hardware.metadata).items()}, **metadata}
        kind = hardware.type.name.lower()
        identity = (name, kind, hardware.vendor_id, hardware.device_id, metadata.get("ov_device"))
        if identity in seen:
            continue
        seen.add(identity)
        known = catalog.find(name)
        listed.setdefault(name, []).append(
            Device(
                kind=kind,
                vendor=hardware.vendor or None,
                vendor_id=hardware.vendor_id,
                device_id=hardware.device_id,
                metadata=metadata,
                compile_only=known is not None and kind in known.compile_only_on,
            )
        )
    return listed


def _installed(
    plugin: Plugin, problem: str | None, fix: str | None, listed: dict[str, list[Device]]
) -> InstalledEp:
    devices = tuple(listed.get(plugin.name, ())) if problem is None else ()
    other = plugins.misnamed(plugin) if problem is None and not devices else None
    if other is not None:
        problem, fix = other.facts["found"], other.facts["fix"]
    versions = [d.metadata["version"] for d in devices if "version" in d.metadata]
    return InstalledEp(
        name=plugin.name,
        source=plugin.source,
        library=plugin.library,
        version=plugin.version or next(iter(versions), None),
        devices=devices,
        problem=problem,
        fix=fix,
    )


def _built_in(listed: dict[str, list[Device]], plugins_found: Collection[str]) -> list[InstalledEp]:
    import onnxruntime

    eps = []
    names = (catalog.canonical(name) for name in onnxruntime.get_available_providers())
    for name in dict.fromkeys([*names, *listed]):
        known = catalog.find(name)
        devices = tuple(listed.get(name, ()))
        if not devices and known is not None:
            # The runtime has it built in but lists no hardware for it.
            devices = tuple(Device(kind=k, assumed=True) for k in known.devices)  # type: ignore[arg-type]
        if name not in plugins_found and devices:
            version = onnxruntime.__version__
            eps.append(InstalledEp(name, "built-in", version=version, devices=devices))
    return eps


def _runtimes() -> dict[str, str]:
    import onnxruntime
    import onnxruntime_genai

    genai = getattr(onnxruntime_genai, "__version__", "")
    return {"onnxruntime": onnxruntime.__version__, "onnxruntime-genai": genai}


if __name__ == "__main__":
    main()
