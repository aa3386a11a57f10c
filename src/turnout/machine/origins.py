"""Where plugin libraries of execution providers are: an environment variable and packages.

A package is recognised by what it holds, a library with the entry point of a plugin, so one that
nobody has heard of works too. It is asked for its library and EP names by the helper functions
that such packages offer.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout import catalog
from turnout.errors import UsageError

ENVIRONMENT_VARIABLE = "TURNOUT_EP_PATH"
RUNTIMES = ("onnxruntime", "onnxruntime_genai")

# Every plugin library exports this function; onnxruntime looks it up by this name.
ENTRY_POINT = b"CreateEpFactories"

# Names under which packages bring plugins: onnxruntime-qnn, onnxruntime-ep-webgpu, acme-ep-npu.
_PLUGIN_DISTRIBUTION = re.compile(r"^(onnxruntime|ort)-|-ep(-|$)")
_LIBRARY_SUFFIXES = (".so", ".dll", ".dylib")


@dataclass(frozen=True)
class Plugin:
    """A plugin library that was found, or a package whose library was not (`problem`).

    `source` is the package's name or `TURNOUT_EP_PATH`.
    """

    name: str
    source: str
    library: str | None = None
    version: str | None = None
    problem: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Origin:
    """A place that may hold plugins. `name` is the EP expected there, None if only it can tell.

    Asking it imports its package, which runs that package's code.
    """

    key: str
    source: str
    name: str | None
    ask: Callable[[], tuple[Plugin, ...]]


def origins() -> Iterator[Origin]:
    """The places to look, in order of precedence, without asking them yet."""
    yield from from_environment()
    yield from _from_catalog()
    yield from _from_other_packages()


def version_of(package: str) -> str | None:
    """The installed version of a package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def reinstall(source: str) -> str:
    """What to do about a broken plugin of that source."""
    if source == ENVIRONMENT_VARIABLE:
        return f"correct the path in {ENVIRONMENT_VARIABLE}"
    return f"pip install --force-reinstall {source}"


def from_environment() -> Iterator[Origin]:
    """The entries of `TURNOUT_EP_PATH`. Raises `UsageError` for a malformed one."""
    for entry in os.environ.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep):
        if not entry.strip():
            continue
        name, equals, path = (part.strip() for part in entry.partition("="))
        if not equals or not name or not path:
            raise UsageError(
                f"{ENVIRONMENT_VARIABLE} is malformed.",
                found=repr(entry),
                expected=f"name=path pairs separated by {os.pathsep!r}",
                fix=f"for example {ENVIRONMENT_VARIABLE}=openvino=/path/to/the/plugin/library",
            )
        known = catalog.find(name)
        if known is not None and known.builtin:
            raise UsageError(
                f"{ENVIRONMENT_VARIABLE} names {known.alias}, which every runtime has built in.",
                found=repr(entry),
                expected="the name of an EP that is a plugin",
                fix=f"name the EP that {path} brings, or take the entry out",
            )
        plugin = _checked(Plugin(catalog.canonical(name), ENVIRONMENT_VARIABLE, path))
        yield Origin(f"environment:{entry}", plugin.source, plugin.name, lambda p=plugin: (p,))  # type: ignore[misc]


def _from_catalog() -> Iterator[Origin]:
    for ep in catalog.EPS:
        for package in ep.packages:
            if package.module is None or importlib.util.find_spec(package.module) is None:
                continue
            yield Origin(
                f"package:{package.name}",
                package.name,
                ep.name,
                lambda e=ep, p=package: _ask_known(e, p),  # type: ignore[misc]
            )


def _ask_known(ep: catalog.Ep, package: catalog.Package) -> tuple[Plugin, ...]:
    assert package.module is not None
    version = version_of(package.name)
    try:
        module = importlib.import_module(package.module)
        library = _library_of(module) or _library_inside(module, package.library)
    except Exception as error:
        return (_unusable(ep.name, package.name, version, error),)
    return (_checked(Plugin(ep.name, package.name, library, version)),)


def _from_other_packages() -> Iterator[Origin]:
    known = {package.name for ep in catalog.EPS for package in ep.packages if package.module}
    known_modules = {package.module for ep in catalog.EPS for package in ep.packages}
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = (distribution.name or "").lower().replace("_", "-")
        if name in known or name in seen or not _PLUGIN_DISTRIBUTION.search(name):
            continue
        seen.add(name)
        module, library = _plugin_library(distribution) or ("", Path())
        if not module or module in known_modules:
            continue
        yield Origin(
            f"package:{name}",
            name,
            None,
            lambda d=distribution, m=module, p=library: _ask_unknown(d, m, p),  # type: ignore[misc]
        )


def _ask_unknown(
    distribution: importlib.metadata.Distribution, module_name: str, library: Path
) -> tuple[Plugin, ...]:
    package = distribution.name.lower().replace("_", "-")
    try:
        module = importlib.import_module(module_name)
        path = _library_of(module) or str(library)
        names = _names_of(module) or (module_name,)
    except Exception as error:
        return (_unusable(module_name, package, distribution.version, error),)
    return tuple(
        _checked(Plugin(catalog.canonical(name), package, path, distribution.version))
        for name in names
    )


def _library_of(module: Any) -> str | None:
    for helper in ("get_library_path", "library_path"):
        if callable(getattr(module, helper, None)):
            return str(getattr(module, helper)())
    return None


def _names_of(module: Any) -> tuple[str, ...]:
    if callable(getattr(module, "get_ep_names", None)):
        return tuple(str(name) for name in module.get_ep_names())
    if callable(getattr(module, "get_ep_name", None)):
        return (str(module.get_ep_name()),)
    name = getattr(module, "EP_NAME", None)
    return (name,) if isinstance(name, str) else ()


def _library_inside(module: Any, stem: str | None) -> str | None:
    if stem is None or module.__file__ is None:
        return None
    pattern = {"win32": "{}.dll", "darwin": "lib{}.dylib"}.get(sys.platform, "lib{}.so")
    return str(Path(module.__file__).parent / pattern.format(stem))


def _plugin_library(distribution: importlib.metadata.Distribution) -> tuple[str, Path] | None:
    """(module, library) of a package that exports the plugin entry point, None without one."""
    for file in distribution.files or ():
        if len(file.parts) < 2 or not any(s in file.name for s in _LIBRARY_SUFFIXES):
            continue
        path = Path(str(distribution.locate_file(file)))
        if file.parts[0] not in RUNTIMES and _exports_entry_point(path):
            return file.parts[0], path
    return None


def _exports_entry_point(path: Path) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(ENTRY_POINT) >= 0
    except (OSError, ValueError):
        return False


def _checked(plugin: Plugin) -> Plugin:
    if plugin.library is not None and Path(plugin.library).is_file():
        return plugin
    return Plugin(
        plugin.name,
        plugin.source,
        plugin.library,
        plugin.version,
        problem=f"there is no file {plugin.library}",
        fix=reinstall(plugin.source),
    )


def _unusable(name: str, package: str, version: str | None, error: Exception) -> Plugin:
    problem = f"{type(error).__name__}: {error}"
    return Plugin(name, package, None, version, problem=problem, fix=reinstall(package))
