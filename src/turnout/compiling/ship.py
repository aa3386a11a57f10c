"""A compiled bundle to ship: whole by itself, weights included, and it loads from anywhere.

It is what a derived bundle is, but for the weights: they are copied beside the graphs, so that
nothing in it leads out of it. A manifest says what it was made of, with the hash of every file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from turnout.bundle import CONFIG_NAME, GraphFile
from turnout.bundle.epcontext import read_context_binary
from turnout.compiling.contents import Artifact, Contents
from turnout.compiling.hashes import ContentHashes
from turnout.errors import CompileError, OutputExistsError, UsageError
from turnout.files import atomic_folder, contained, explain_os_error, read_plain

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.compiling.prepare import Prepared

SHIPPED_MARK = "turnout-compiled.json"
SCHEMA_VERSION = 1
_MAX_MANIFEST = 64 << 20


@dataclass(frozen=True)
class Shipped:
    """A bundle that was made to be shipped: its folder, its files, and their bytes."""

    path: Path
    files: tuple[str, ...]
    nbytes: int


def require_place(bundle: Bundle, output: Path, *, overwrite: bool = False) -> None:
    """Nothing, if a bundle may be shipped to `output`. Raises `UsageError`.

    An empty folder may be there; another bundle only with `overwrite`, and what is no bundle
    never is replaced.
    """
    place, source = output.resolve(), bundle.path.resolve()
    if place.is_relative_to(source) or source.is_relative_to(place):
        raise UsageError(
            "A bundle cannot be shipped into itself, nor over itself.",
            found=str(output),
            expected=f"a folder apart from {bundle.path}",
        )
    if not os.path.lexists(output) or _is_empty(output):
        return
    if not overwrite:
        raise OutputExistsError(
            f"{output} exists already.",
            where=output,
            fix="choose another output, or pass --overwrite to replace it",
        )
    if not (output / CONFIG_NAME).is_file():
        raise OutputExistsError(
            f"{output} is no bundle, and is not replaced.",
            where=output,
            fix="choose another output, or remove it",
        )


def ship(bundle: Bundle, prepared: Prepared, output: Path, *, overwrite: bool = False) -> Shipped:
    """Write what was prepared of `bundle` to `output`, weights included, whole or not at all.

    Raises what `require_place` does, `BundleError` for a source that names files outside itself,
    `CompileError` where an artifact is damaged, `WriteError`.
    """
    require_place(bundle, output, overwrite=overwrite)
    source = replace(bundle, path=bundle.path.resolve())
    artifacts = {name: _binding(artifact) for name, artifact in prepared.artifacts.items()}
    contents = Contents.of(source, prepared.config, output.absolute(), artifacts, beside=True)
    with atomic_folder(output, overwrite=overwrite or _is_empty(output)) as staging:
        for name in (*contents.copies, *contents.links):
            _copy(contents.source(name), staging / name)
        (staging / CONFIG_NAME).write_bytes(contents.config.text.encode())
        files = _listed(staging)
        _require_stored(files, prepared)
        document = _manifest(bundle, prepared, files)
        mark = msgspec.json.format(msgspec.json.encode(document), indent=1)
        (staging / SHIPPED_MARK).write_bytes(mark + b"\n")
    return Shipped(output, tuple(files), sum(size for size, _ in files.values()))


def damage(folder: Path) -> tuple[str, ...]:
    """What of a shipped bundle is not as it was written, a line a file; () where all is.

    Raises `CompileError` for a folder without a manifest that can be read.
    """
    path = folder / SHIPPED_MARK
    try:
        listed = msgspec.json.decode(read_plain(path, _MAX_MANIFEST), type=_Listing).files
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise CompileError(
            "The manifest of a shipped bundle cannot be read.", found=error, where=path
        ) from error
    hashes, problems = ContentHashes(None), []
    for file in listed:
        place = contained(folder, file.name, what="file of the manifest")
        if not place.is_file():
            problems.append(f"{file.name} is missing")
        elif place.stat().st_size != file.size:
            problems.append(f"{file.name} has {place.stat().st_size} bytes instead of {file.size}")
        elif hashes.file(place) != file.sha256:
            problems.append(f"{file.name} is not what was written")
    return tuple(problems)


class _File(msgspec.Struct):
    name: str
    size: int
    sha256: str


class _Listing(msgspec.Struct):
    files: list[_File]


def _is_empty(folder: Path) -> bool:
    try:
        return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
    except OSError:
        return False


def _binding(artifact: Artifact) -> Artifact:
    """The same, binding the source's weights only if it reads any: a compiled graph may have
    them all within, and shipping them once more would double what is shipped.
    """
    if not artifact.binds_source:
        return artifact
    graph = GraphFile.read(artifact.folder / artifact.graph)
    binaries = [
        read_context_binary(artifact.folder / name)
        for name in artifact.files
        if name != artifact.graph
    ]
    binaries += [
        read_context_binary(graph.path, (node.embedded_at, node.embedded_at + node.embedded_bytes))
        for node in graph.ep_contexts
        if node.embedded_bytes
    ]
    # A binary of another format does not tell.
    reads = bool(graph.external_files) or any(b is None or b.weights for b in binaries)
    return replace(artifact, binds_source=reads)


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise explain_os_error(error, target) from error


def _listed(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of every file in a folder, by its relative name."""
    hashes = ContentHashes(None)
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, hashes.file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _require_stored(files: Mapping[str, tuple[int, str]], prepared: Prepared) -> None:
    """What was copied of the store is what was stored: a ship carries nothing that rotted."""
    for entry in prepared.entries:
        for file in entry.manifest.files:
            if file.name in files and files[file.name][1] != file.sha256:
                raise CompileError(
                    f"{file.name} of a compiled stage is not what was written.",
                    where=entry.folder,
                    fix="compile it again with --rebuild",
                )


def _manifest(
    bundle: Bundle, prepared: Prepared, files: Mapping[str, tuple[int, str]]
) -> dict[str, Any]:
    from turnout import __version__

    entries = {entry.key: entry.manifest for entry in prepared.entries}
    return {
        "schema_version": SCHEMA_VERSION,
        "turnout": __version__,
        "created": time.time(),
        "source": {
            "name": bundle.path.resolve().name,
            "config_sha256": hashlib.sha256(bundle.config.text.encode()).hexdigest(),
        },
        "stages": {
            stage: {
                "graph": prepared.artifacts[stage].graph,
                "key": key,
                "checked": entries[key].checked,
                "tools": entries[key].tools,
                "made_of": entries[key].inputs,
            }
            for stage, key in prepared.compiled.items()
        },
        "uncompiled": {**prepared.skipped, **prepared.uncompiled},
        "shared": prepared.shared.to_json(),
        "files": [
            {"name": name, "size": size, "sha256": sha256} for name, (size, sha256) in files.items()
        ],
    }
