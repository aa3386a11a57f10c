"""Checks of native code that a bundle has loaded (codes T308 and T319)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from turnout.bundle import Bundle, Stage
from turnout.checking.file_rules import NATIVE_CODE, NO_LIBRARY, OUTSIDE
from turnout.checking.findings import Finding
from turnout.checking.locating import locate, option_place
from turnout.checking.subject import Subject
from turnout.files import is_file

_LIBRARY = "custom_ops_library"
# Where libraries of EPs are, and where systems look for any.
_PACKAGES = ("onnxruntime_genai", "onnxruntime")
_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")


def check(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    """A finding for each library that stages name."""
    users: dict[str, list[Stage]] = {}
    for stage in subject.stages:
        value = stage.effective_options.get(_LIBRARY)
        if isinstance(value, str):
            users.setdefault(value, []).append(stage)
    for value, stages in users.items():
        yield _library(subject, bundle, value, stages)


def _library(subject: Subject, bundle: Bundle, value: str, stages: list[Stage]) -> Finding:
    place = option_place(subject, stages[0], _LIBRARY)
    names = ", ".join(stage.name for stage in stages[:8])
    located = locate(bundle, value)
    if located.problem in {"outside", "link"}:
        return OUTSIDE.at(
            place,
            f"The native library of the stage {names}, {value[:200]}, is outside the bundle.",
            found=located.found,
            expected="no native code, or a library inside the bundle",
            fix=f"remove {_LIBRARY} unless you know who made the library",
        )
    found = "a library in the bundle"
    if located.path is None:
        if not _is_elsewhere(value):
            return NO_LIBRARY.at(
                place,
                f"The native library of the stage {names}, {value[:200]}, is nowhere.",
                found="none in the bundle, nor where the system looks",
                expected="that library in the bundle",
                fix="install it, put it into the bundle, or remove the option",
            )
        found = "none in the bundle, but one elsewhere"
    return NATIVE_CODE.at(
        place,
        f"Loading the stage {names} runs native code that the config chooses: {value[:200]}.",
        found=found,
        expected="no native code, or a library that you trust",
        fix=f"remove {_LIBRARY} unless you know who made the library",
    )


def _is_elsewhere(name: str) -> bool:
    """Whether the runtime may find a library where it, or the system, looks besides the bundle."""
    folders = [Path.cwd(), *map(Path, _SYSTEM)]
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)  # finds, and does not import
        folders += [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    for variable in _VARIABLES:
        folders += [Path(folder) for folder in os.environ.get(variable, "").split(os.pathsep)]
    folders += [path for folder in _SYSTEM for path in Path(folder).glob("*-linux-gnu*")]
    return any(is_file(folder / name) for folder in folders)
