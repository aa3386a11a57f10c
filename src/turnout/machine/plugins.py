"""Finding plugin libraries of execution providers and registering them with the runtimes.

A plugin is registered under its EP's canonical name, because some libraries (QNN's is one) call
their EP by whatever name they were registered under. onnxruntime and onnxruntime-genai each have
an environment of their own, in which a plugin is invisible until it is registered there too.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.errors import EpUnavailableError
from turnout.machine.origins import (
    ENTRY_POINT,
    ENVIRONMENT_VARIABLE,
    RUNTIMES,
    Plugin,
    origins,
    reinstall,
    version_of,
)

if TYPE_CHECKING:
    from turnout.machine.inventory import Inventory


def find() -> tuple[Plugin, ...]:
    """Every plugin of this machine; for an EP that is found twice, the first wins.

    Order: `TURNOUT_EP_PATH`, the catalog's packages, then other packages that hold one.
    Raises `UsageError` for a malformed `TURNOUT_EP_PATH`.
    """
    found: dict[str, Plugin] = {}
    for origin in origins():
        for plugin in origin.ask():
            found.setdefault(plugin.name, plugin)
    return tuple(found.values())


def register(ep_names: Iterable[str], inventory: Inventory | None = None) -> None:
    """Make EPs usable in this process, in both runtimes; each library is registered once.

    Nothing is loaded for an EP that every runtime has built in. What failed is tried again by
    the next call. Raises `EpUnavailableError` for an EP that is not installed, whose library
    does not load, or that finds no device.
    """
    for name in dict.fromkeys(catalog.canonical(name) for name in ep_names):
        known = catalog.find(name)
        if known is not None and known.builtin:
            continue
        with _lock:
            if name not in _ready:
                _register(name, inventory)
                _ready.add(name)


def try_register(runtime: str, plugin: Plugin) -> EpUnavailableError | None:
    """Register a plugin with one runtime; what went wrong, or None. Once per process."""
    if (runtime, plugin.name) in _registered:
        return None
    module = importlib.import_module(runtime)
    try:
        module.register_execution_provider_library(plugin.name, plugin.library)
    except Exception as error:
        if "already registered" not in str(error):
            return explain(plugin, error)
    _registered.add((runtime, plugin.name))
    return None


def misnamed(plugin: Plugin) -> EpUnavailableError | None:
    """The error for a registered library that calls its EP something else; None if it does not."""
    import onnxruntime

    names = []
    for device in onnxruntime.get_ep_devices():
        library = dict(device.ep_metadata).get("library_path")
        if library and plugin.library and Path(library).resolve() == Path(plugin.library).resolve():
            names.append(catalog.canonical(device.ep_name))
    if not names or plugin.name in names:
        return None
    alias = catalog.alias_of(names[0])
    fix = f"call it {alias}"
    if plugin.source == ENVIRONMENT_VARIABLE:
        fix = f"set {ENVIRONMENT_VARIABLE}={alias}={plugin.library}"
    return EpUnavailableError(
        f"The library that is given for {plugin.name} brings another EP.",
        found=f"its library calls its EP {names[0]}",
        where=f"{plugin.library} ({_versions(plugin)})",
        fix=fix,
    )


def explain(plugin: Plugin, error: Exception) -> EpUnavailableError:
    """A native loader's message, as the missing file or symbol and what to do."""
    message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    found, fix = _diagnose(message, plugin)
    return EpUnavailableError(
        f"The library of {catalog.alias_of(plugin.name)} ({plugin.name}) does not load.",
        found=found,
        where=f"{plugin.library} ({_versions(plugin)})",
        fix=fix,
    )


def not_installed(name: str, platform: str | None = None) -> EpUnavailableError:
    """The error for an EP that a machine (this one, or one of that platform) lacks."""
    alias = catalog.alias_of(name)
    return EpUnavailableError(
        f"The execution provider {alias} ({name}) is not installed.",
        fix=how_to_install(name, platform),
    )


def how_to_install(name: str, platform: str | None = None) -> str:
    """What brings an EP to a machine of that platform (None: this one), as a phrase."""
    word = platform or platform_word()
    known = catalog.find(name)
    if known is None:
        return f"set {ENVIRONMENT_VARIABLE}={name}=PATH to the library of its plugin"
    package = known.package_for(word)
    if package is not None:
        limit = "" if known.runs_on(word) else f" (on {word} it can only compile, not run)"
        return f"pip install {package.name}{limit}"
    if known.otherwise is not None:
        return f"{known.alias} {known.otherwise}"
    return f"no package of {known.alias} is known for {word}"


def platform_word() -> str:
    """This machine in the catalog's words: `linux-x86_64`, `windows-arm64`, `macos-arm64`."""
    import platform

    system = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "aarch64": "arm64"}.get(machine, machine)
    return f"{system}-{machine}"


_lock = threading.RLock()
_registered: set[tuple[str, str]] = set()
_ready: set[str] = set()


def _register(name: str, inventory: Inventory | None) -> None:
    plugin = locate(name, inventory) or _registered_by_host(name)
    if plugin is None:
        if name in _built_in():
            return
        raise not_installed(name)
    if plugin.problem is not None:
        raise EpUnavailableError(
            f"The execution provider {catalog.alias_of(name)} ({name}) is installed but broken.",
            found=plugin.problem,
            where=f"{plugin.library or plugin.source} ({_versions(plugin)})",
            fix=plugin.fix,
        )
    for runtime in RUNTIMES:
        # A host application may have registered the library under a name of its own.
        if runtime == "onnxruntime" and _devices_of(name):
            continue
        error = try_register(runtime, plugin)
        if error is not None:
            raise error
    if not _devices_of(name):
        error = misnamed(plugin)
        if error is not None:
            raise error
        raise EpUnavailableError(
            f"The library of {catalog.alias_of(name)} ({name}) loads but finds no device here.",
            found=f"devices of {', '.join(_known_to_onnxruntime())}",
            where=f"{plugin.library} ({_versions(plugin)})",
            fix=f"{catalog.device_advice(name)}, or route the stage elsewhere",
        )


def locate(name: str, inventory: Inventory | None = None) -> Plugin | None:
    """The plugin that brings an EP, by the inventory or else by looking for it; None if none does.

    Nothing is loaded. Raises `UsageError` for a malformed `TURNOUT_EP_PATH`.
    """
    installed = inventory.ep(name) if inventory is not None else None
    if installed is not None and installed.library is not None and installed.problem is None:
        return Plugin(name, installed.source, installed.library, installed.version)
    for origin in origins():
        if origin.name not in {None, name}:
            continue
        for plugin in origin.ask():
            if plugin.name == name:
                return plugin
    return None


def _registered_by_host(name: str) -> Plugin | None:
    """A plugin that the host application has registered with onnxruntime alone."""
    import onnxruntime

    for device in onnxruntime.get_ep_devices():
        library = dict(device.ep_metadata).get("library_path")
        if device.ep_name == name and library:
            return Plugin(name, "onnxruntime", library)
    return None


def _devices_of(name: str) -> bool:
    return name in _known_to_onnxruntime()


def _known_to_onnxruntime() -> list[str]:
    import onnxruntime

    return list(dict.fromkeys(device.ep_name for device in onnxruntime.get_ep_devices()))


def _built_in() -> list[str]:
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def _versions(plugin: Plugin) -> str:
    rows: list[tuple[str, str | None]] = [(plugin.source, plugin.version)]
    rows += [(name, version_of(name)) for name in ("onnxruntime", "onnxruntime-genai")]
    return ", ".join(f"{name} {version}" for name, version in rows if version is not None)


# A loader's message -> what is missing and what to do, on Linux, macOS and Windows. Groups are
# quoted; `reinstall` and `versions` are filled in. Windows never says which library is missing.
_DIAGNOSES = (
    (
        re.escape(ENTRY_POINT.decode()),
        f"no symbol {ENTRY_POINT.decode()}: it is not a plugin of an execution provider",
        "{reinstall}",
    ),
    (
        r"(?:^|[ \"])([^ \"]+): cannot open shared object file|Library not loaded: (\S+)",
        "missing library {0}, which it needs",
        "install what provides {0}",
    ),
    (r"error 126", "a library that it needs is missing", "{reinstall}"),
    (
        r"(?:undefined symbol|[Ss]ymbol not found):? (\S+)",
        "missing symbol {0}",
        "install versions that belong together ({versions})",
    ),
    (
        r"invalid ELF header|file too short|wrong ELF class|not a mach-o|error 193",
        "the file is not a library of this platform",
        "{reinstall}",
    ),
    (
        r"API version|ORT_API_VERSION",
        "it was made for another onnxruntime: {message}",
        "upgrade onnxruntime and onnxruntime-genai, or install an older plugin",
    ),
)


def _diagnose(message: str, plugin: Plugin) -> tuple[str, str]:
    """What a loader's message means: (what is missing, what to do)."""
    facts = {
        "reinstall": reinstall(plugin.source),
        "versions": _versions(plugin),
        "message": message,
    }
    for pattern, found, fix in _DIAGNOSES:
        match = re.search(pattern, message)
        if match is not None:
            words = [word for word in match.groups() if word is not None]
            return found.format(*words, **facts), fix.format(*words, **facts)
    return message, facts["reinstall"]
