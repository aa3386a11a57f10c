"""Files of a bundle that no stage uses (code T309)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from turnout.bundle import COMPILED, DERIVED_MARK, Bundle, Stage
from turnout.bundle.epcontext import read_context_binary
from turnout.bundle.tokenizer import FILES
from turnout.checking.file_rules import UNUSED
from turnout.checking.findings import Finding
from turnout.checking.locating import locate, relative_name
from turnout.checking.subject import Subject
from turnout.errors import BundleError
from turnout.files import is_file

# What holds graphs or weights by its name; anything else is told only where it is large.
_WEIGHTY = frozenset(
    {".onnx", ".data", ".onnx_data", ".bin", ".safetensors", ".gguf", ".pt", ".pth", ".h5"}
)
# Adapters are loaded by programs, by name, and no config tells of them.
_BY_NAME = frozenset({".onnx_adapter"})
_LARGE = 64 << 20
_MOST_ENTRIES = 50_000

Identity = tuple[int, int]


def check(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    """A finding for each weighty file that nothing uses.

    Nothing is said where a graph cannot be read: its data would seem to be of no use.
    """
    if any(stage.filename and stage.name not in subject.graphs for stage in subject.stages):
        return
    used = _used(subject, bundle)
    for path, status in _files(bundle):
        name = relative_name(bundle, path)
        suffix = path.suffix.lower()
        weighty = suffix in _WEIGHTY or status.st_size > _LARGE
        if not weighty or suffix in _BY_NAME or path.name in FILES:
            continue
        if (status.st_dev, status.st_ino) in used or _is_named(subject, name):
            continue
        yield UNUSED.at(
            name,
            f"Nothing uses the file {name}.",
            found=f"{status.st_size} bytes",
            fix="remove it, unless something else than onnxruntime-genai needs it",
        )


def _is_named(subject: Subject, name: str) -> bool:
    # Keys that this program does not know may name files too.
    return f'"{name}"' in subject.config.text


def _used(subject: Subject, bundle: Bundle) -> set[Identity]:
    found: set[Identity] = set()
    for stage in subject.stages:
        graph = subject.graphs.get(stage.name)
        if graph is None:
            continue
        found |= _identity(graph.path)
        binaries = {context.cache for context in graph.ep_contexts if context.cache}
        names = {
            *graph.external_files,
            *(n for name in binaries for n in _bound(bundle, stage, name)),
        }
        for name in names:
            with contextlib.suppress(BundleError):  # other checks say what is wrong
                found |= _identity(bundle.data_file(stage, name))
        for name in binaries:
            with contextlib.suppress(BundleError):
                found |= _identity(bundle.context_file(stage, name))
    return found


def _bound(bundle: Bundle, stage: Stage, name: str) -> set[str]:
    """The data files that a compiled binary has bound when it is loaded."""
    try:
        binary = read_context_binary(bundle.context_file(stage, name))
    except BundleError:
        return set()
    return {weight.location for weight in binary.weights} if binary else set()


def _identity(path: Path) -> set[Identity]:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return set()
    return {(status.st_dev, status.st_ino)}


def _files(bundle: Bundle) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file of the bundle but hidden ones and what was compiled; links out are no files."""
    left = _MOST_ENTRIES
    for folder, folders, names in os.walk(bundle.path):
        place = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not (place == bundle.path and name == COMPILED)
            and not is_file(place / name / DERIVED_MARK)
        )
        for name in sorted(names):
            left -= 1
            if left < 0:
                return
            located = locate(bundle, (place / name).relative_to(bundle.path).as_posix())
            if located.path is None or name.startswith("."):
                continue
            try:
                yield located.path, located.path.stat()
            except OSError:
                continue
