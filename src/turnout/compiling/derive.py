"""Derived bundles: a small folder that carries an effective config and finds the weights in
the source bundle.

A derived bundle holds the config, the graphs and the other small files, and no weights: each
stage with external data gets a session option that names the source's folder, relative to the
derived one, because onnxruntime-genai joins the two. Measured on the CPU EP and on OpenVINO by
tests/test_derive.py. A hub's cache is different: its data files are links, which some EPs
refuse, so there the weights are hard links to the hub's blobs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from turnout.bundle import (
    COMPILED,
    CONFIG_NAME,
    DERIVED_MARK,
    INITIALIZER_FOLDER,
    Bundle,
    GenaiConfig,
    Stage,
    require_regular,
)
from turnout.errors import GraphError, NotABundleError, WriteError
from turnout.files import atomic_folder, explain_os_error, is_file, link_or_copy

CONTEXT_PATH = "ep.context_file_path"
SCHEMA_VERSION = 1
# Larger files are linked when a stage needs them, and left out when nothing names them.
SMALL = 64 << 20
_WEIGHT_SUFFIXES = frozenset(
    {".data", ".onnx_data", ".bin", ".safetensors", ".gguf", ".pt", ".pth", ".h5", ".msgpack"}
)
_LOCK_SECONDS = 600
_log = logging.getLogger(__name__)

Say = Callable[[str], None]


def loadable(bundle: Bundle, effective: GenaiConfig, *, say: Say = _log.info) -> Path:
    """The folder that onnxruntime-genai loads for `effective`.

    It is the source folder itself where the config is the source's own, else a derived bundle.
    A hub cache with external data is always derived. `say` gets one line where weights had to
    be linked or copied. Raises what `derive` does, and `GraphError` for a file that is none.
    """
    require_regular(bundle)
    if effective.text == bundle.config.text and not _needs_links(bundle):
        return bundle.path
    return derive(bundle, effective, say=say)


def derive(
    bundle: Bundle, effective: GenaiConfig, *, sharing: str = "off", say: Say = _log.info
) -> Path:
    """The folder of the derived bundle for `effective`, written now unless it is fresh.

    It is `_compiled/routes/<12 hex digits>` of the bundle or, where that cannot be written or
    the bundle is a hub's cache, in the cache folder. An absolute path without links. Another
    process that derives the same waits for this one. The source's own files are not touched.

    Raises `BundleError` for a source that names files outside itself, `GraphError` for graphs
    or data files that are missing, `WriteError`.
    """
    if (bundle.path / DERIVED_MARK).exists():
        raise NotABundleError(
            f"{bundle.path} is a derived bundle, which nothing can be derived from.",
            where=bundle.path,
            fix="give the bundle that it was derived from",
        )
    routed = replace(bundle, path=bundle.path.resolve(), config=effective)
    key = hashlib.sha256(f"{effective.text}\0{sharing}".encode()).hexdigest()[:12]
    target = _place(routed) / key
    try:
        with FileLock(target.with_name(f".{key}.lock"), timeout=_LOCK_SECONDS):
            contents = _Contents.of(routed, target)
            if not _is_fresh(target, contents):
                _write(target, contents, say)
            return target
    except Timeout as error:
        raise WriteError(
            f"Another process has been writing {target} for {_LOCK_SECONDS} seconds.",
            where=target,
            fix="wait for it, or end it",
        ) from error


def cache_folder() -> Path:
    """`$TURNOUT_CACHE_DIR`, or the user's cache folder for this program."""
    chosen = os.environ.get("TURNOUT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("turnout", appauthor=False)


def _needs_links(bundle: Bundle) -> bool:
    return bundle.blobs is not None and any(
        bundle.data_files(stage) for stage in bundle.stages if stage.filename
    )


def _place(bundle: Bundle) -> Path:
    """The folder for derived bundles of this source, made now: the best that can be written."""
    inside = bundle.path / COMPILED / "routes"
    name = hashlib.sha256(os.fsencode(bundle.path)).hexdigest()[:12]
    cache = cache_folder() / "bundles" / name / "routes"
    places = [inside, cache]
    if bundle.blobs is not None and _same_disk(bundle.blobs, cache):
        places = [cache, inside]  # a hub's folder is left as its client made it
    problem: OSError | None = None
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK):
                return place.resolve()
        except OSError as error:
            problem = error
    problem = problem or PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    raise explain_os_error(problem, places[-1]) from problem


def _same_disk(folder: Path, future: Path) -> bool:
    while not future.exists():
        future = future.parent
    return folder.stat().st_dev == future.stat().st_dev


@dataclass(frozen=True)
class _Contents:
    """What a derived bundle is made of; all names are relative to both folders."""

    bundle: Bundle
    config: GenaiConfig
    copies: tuple[str, ...]
    links: tuple[str, ...]
    weights: bool  # whether weights are among the links

    @classmethod
    def of(cls, bundle: Bundle, target: Path) -> _Contents:
        beside = bundle.blobs is not None or bundle.path.drive != target.drive
        graphs, data, binaries = set(), set(_shared_initializers(bundle)), set()
        options: dict[str, dict[str, str]] = {}
        for stage in bundle.stages:
            if not stage.filename:
                continue
            graphs.add(_name(bundle, bundle.graph_path(stage)))
            weights = _existing(bundle, bundle.data_files(stage), stage)
            contexts = _existing(bundle, bundle.context_files(stage), stage)
            binaries |= contexts
            needs: dict[str, str] = {}
            if beside or not stage.takes_options:
                data |= weights
            elif weights or contexts:
                # A context that shares weights reads them too, though its graph names none.
                folder = os.path.relpath(bundle.data_folder(stage), target)
                needs[INITIALIZER_FOLDER] = Path(folder).as_posix()
            if contexts:
                needs[CONTEXT_PATH] = PurePosixPath(stage.filename).as_posix()
            if needs and stage.takes_options:
                options[stage.name] = needs
        small = {name for name in graphs if _size(bundle, name) <= SMALL}
        known = graphs | binaries | _all_data(bundle)
        others, named = _others(bundle, known, large_too=beside and bool(binaries))
        copies = sorted(small | others)
        links = sorted((graphs - small) | data | binaries | named)
        config = _with_options(bundle, options)
        return cls(bundle, config, tuple(copies), tuple(links), bool(data))

    def manifest(self) -> dict[str, object]:
        """What the derived bundle was made of; it is fresh while this stays the same."""
        return {
            "schema_version": SCHEMA_VERSION,
            "source": str(self.bundle.path),
            "config_sha256": hashlib.sha256(self.config.text.encode()).hexdigest(),
            "copied": {name: _stamp(self.bundle, name, copied=True) for name in self.copies},
            "linked": {name: _stamp(self.bundle, name, copied=False) for name in self.links},
        }


def _all_data(bundle: Bundle) -> set[str]:
    return {
        _name(bundle, path)
        for stage in bundle.stages
        if stage.filename
        for path in bundle.data_files(stage).values()
    }


def _name(bundle: Bundle, path: Path) -> str:
    return path.relative_to(bundle.path).as_posix()


def _size(bundle: Bundle, name: str) -> int:
    return (bundle.path / name).stat().st_size


def _existing(bundle: Bundle, files: Mapping[str, Path], stage: Stage) -> set[str]:
    for path in files.values():
        if not is_file(path):
            raise GraphError(
                f"A file of the stage {stage.name!r} is missing.",
                expected=path,
                fix="fetch or build the bundle again",
            )
    return {_name(bundle, path) for path in files.values()}


def _shared_initializers(bundle: Bundle) -> Iterator[str]:
    """Data files that sections name themselves, which no session option redirects."""
    for stage in bundle.stages:
        entries = bundle.config.get((*stage.path, "shared_initializers"), [])
        for entry in entries if isinstance(entries, list) else []:
            name = entry.get("data_file") if isinstance(entry, dict) else None
            if isinstance(name, str) and bundle.file(name, what="shared data file").is_file():
                yield PurePosixPath(name).as_posix()


def _others(bundle: Bundle, known: set[str], *, large_too: bool) -> tuple[set[str], set[str]]:
    """The files beside graphs and weights: small ones (tokenizer, templates, processors), and
    large ones that the config names, or all. What nothing names and is large is left out.
    """
    small: set[str] = set()
    large: set[str] = set()
    for folder, folders, names in os.walk(bundle.path):
        place = Path(folder)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not (place == bundle.path and name == COMPILED)
        ]
        for file in names:
            path = place / file
            name = _name(bundle, path)
            if name in known or name == CONFIG_NAME or not is_file(path):
                continue
            named = name in bundle.config.text
            weighty = path.suffix in _WEIGHT_SUFFIXES or path.stat().st_size > SMALL
            if named or (large_too if weighty else path.suffix != ".onnx"):
                (large if weighty else small).add(_name(bundle, bundle.file(name, what="file")))
    return small, large


def _with_options(bundle: Bundle, options: dict[str, dict[str, str]]) -> GenaiConfig:
    """The config in which every stage of `options` gets these session options.

    Stages that use the decoder's options share its object as long as all want the same;
    otherwise each gets a copy of its own.
    """
    config = bundle.config
    wanted = [
        options[stage.name]
        for stage in bundle.stages
        if stage.name in options
        and (not stage.has_session_options or stage.path == ("model", stage.options_section))
    ]
    together = all(needs == wanted[0] and CONTEXT_PATH not in needs for needs in wanted)
    for stage in bundle.stages:
        needs = options.get(stage.name)
        if needs is None:
            continue
        place = (*stage.path, "session_options")
        if not stage.has_session_options and stage.inherits:
            parent = ("model", stage.options_section, "session_options")
            if together:
                place = parent
            else:
                config = config.edit(place, bundle.config.get(parent, {}))
        for key, value in needs.items():
            config = config.edit((*place, key), value)
    return config


def _stamp(bundle: Bundle, name: str, *, copied: bool) -> list[int]:
    status = (bundle.path / name).stat()
    stamp = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    # Linking changes a file's own change time, so it says nothing about linked files.
    return [*stamp, status.st_ctime_ns] if copied else stamp


def _is_fresh(target: Path, contents: _Contents) -> bool:
    try:
        written = json.loads((target / DERIVED_MARK).read_text("utf-8"))
        if written != contents.manifest():
            return False
        if (target / CONFIG_NAME).read_bytes() != contents.config.text.encode():
            return False
        return all(
            (target / name).stat().st_size == _size(contents.bundle, name)
            for name in (*contents.copies, *contents.links)
        )
    except (OSError, ValueError):
        return False


def _write(target: Path, contents: _Contents, say: Say) -> None:
    source = contents.bundle.path
    manifest = json.dumps(contents.manifest(), indent=1)
    with atomic_folder(target, overwrite=True) as staging:
        linked = True
        for name in (*contents.copies, *contents.links):
            place = staging / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if name in contents.copies:
                shutil.copyfile(source / name, place)
            else:
                linked = link_or_copy(source / name, place) and linked
        (staging / CONFIG_NAME).write_bytes(contents.config.text.encode())
        (staging / DERIVED_MARK).write_text(manifest + "\n", "utf-8")
    if contents.weights:
        how = "hard links to" if linked else "copies of"
        say(f"The weights of {source} are loaded through {how} its files in {target}.")
