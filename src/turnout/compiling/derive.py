"""Derived bundles: a small folder that carries an effective config and finds the weights in
the source bundle.

A derived bundle holds the config, the graphs and the other small files, and no weights: each
stage with external data gets a session option that names the source's folder, relative to the
derived one, because onnxruntime-genai joins the two. Measured on the CPU EP and on OpenVINO by
tests/test_derive.py. A hub's cache is different: its data files are links, which some EPs
refuse, so there the weights are hard links to the hub's blobs.
"""

from __future__ import annotations

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
from turnout.bundle.tokenizer import FILES
from turnout.compiling.places import cannot_write, opened, places
from turnout.compiling.unwritten import without_compiling
from turnout.errors import BundleError, GraphError, NotABundleError, WriteError
from turnout.files import atomic_folder, is_file, link_or_copy

CONTEXT_PATH = "ep.context_file_path"
SCHEMA_VERSION = 2
# Larger files are linked when a stage needs them, and left out when nothing names them.
SMALL = 64 << 20
_WEIGHT_SUFFIXES = frozenset(
    {".data", ".onnx_data", ".bin", ".safetensors", ".gguf", ".pt", ".pth", ".h5", ".msgpack"}
)
# Files that onnxruntime-genai reads though no config names them.
_READ_UNNAMED = frozenset({*FILES, "processor_config.json", "audio_processor_config.json"})
_LOCK_SECONDS = 600
_log = logging.getLogger(__name__)

Say = Callable[[str], None]


def loadable(bundle: Bundle, effective: GenaiConfig, *, say: Say = _log.info) -> Path:
    """The folder that onnxruntime-genai loads for `effective`.

    It is the source folder itself where the config is the source's own, else a derived bundle.
    A hub cache with external data is always derived, and so is a bundle whose config has an EP
    write its compiled model. `say` gets one line where weights had to be linked or copied, and
    where that is kept from happening. Raises what `derive` does, and `GraphError` for a file that
    is none.
    """
    require_regular(bundle)
    effective = _loading_only(effective, say)
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
    A place that turns out to be full is passed over for the other one.

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
    problems: list[tuple[Path, OSError]] = []
    for place in places(routed):
        try:
            with opened(place) as folder:
                return _derive_in(folder / key, routed, say)
        except Timeout as error:
            raise WriteError(
                f"Another process has been writing {place / key} for {_LOCK_SECONDS} seconds.",
                where=place / key,
                fix="wait for it, or end it",
            ) from error
        except OSError as error:
            problems.append((place, error))
        except WriteError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            problems.append((place, error.__cause__))
    raise cannot_write(problems) from problems[-1][1]


def derive_into(
    target: Path, bundle: Bundle, effective: GenaiConfig, *, say: Say = _log.info
) -> Path:
    """The derived bundle for `effective`, written to `target`, which is absolute and without links.

    For one that is used once: its caller chooses the place, and removes it. Raises what `derive`
    does.
    """
    require_regular(bundle)
    effective = _loading_only(effective, say)
    return _derive_in(target, replace(bundle, path=bundle.path.resolve(), config=effective), say)


def _loading_only(effective: GenaiConfig, say: Say) -> GenaiConfig:
    config = without_compiling(effective)
    if config is not effective:
        say("Loaded without ep.context_enable, with which it would write into the bundle.")
    return config


def _derive_in(target: Path, routed: Bundle, say: Say) -> Path:
    with FileLock(target.with_name(f".{target.name}.lock"), timeout=_LOCK_SECONDS):
        contents = _Contents.of(routed, target)
        if not _is_fresh(target, contents):
            _write(target, contents, say)
        return target


def _needs_links(bundle: Bundle) -> bool:
    return bundle.blobs is not None and any(
        bundle.data_files(stage) for stage in bundle.stages if stage.filename
    )


@dataclass(frozen=True)
class _Contents:
    """What a derived bundle is made of; all names are relative to both folders."""

    bundle: Bundle
    config: GenaiConfig
    copies: tuple[str, ...]
    links: tuple[str, ...]
    weights: bool  # whether weights are among the links
    skipped: tuple[str, ...]  # links that lead out of the source, which nothing needs

    @classmethod
    def of(cls, bundle: Bundle, target: Path) -> _Contents:
        beside = bundle.blobs is not None or bundle.path.drive != target.drive
        graphs, binaries = set(), set()
        data, all_weights = set(_shared_initializers(bundle)), set()
        options: dict[str, dict[str, str]] = {}
        for stage in bundle.stages:
            if not stage.filename:
                continue
            graphs.add(_name(bundle, bundle.graph_path(stage)))
            weights = _existing(bundle, bundle.data_files(stage), stage)
            all_weights |= weights
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
        known = graphs | binaries | all_weights
        others, named, skipped = _others(bundle, known, large_too=beside and bool(binaries))
        copies = sorted(small | others)
        links = sorted((graphs - small) | data | binaries | named)
        config = _with_options(bundle, options)
        return cls(bundle, config, tuple(copies), tuple(links), bool(data), skipped)

    def manifest(self) -> dict[str, object]:
        """What the derived bundle was made of; it is fresh while this stays the same."""
        return {
            "schema_version": SCHEMA_VERSION,
            "source": str(self.bundle.path),
            "config_sha256": hashlib.sha256(self.config.text.encode()).hexdigest(),
            "copied": self.stamps(self.bundle.path, self.copies, copied=True),
            "linked": self.stamps(self.bundle.path, self.links, copied=False),
        }

    def written(self, folder: Path) -> dict[str, object]:
        """The files as they were written to `folder`, so that damage is noticed."""
        return {
            **self.stamps(folder, self.copies, copied=True),
            **self.stamps(folder, self.links, copied=False),
        }

    @staticmethod
    def stamps(root: Path, names: tuple[str, ...], *, copied: bool) -> dict[str, object]:
        """Identity, size and times of the files `names` of `root`."""
        return {name: _stamp(root / name, copied=copied) for name in names}


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


def _others(
    bundle: Bundle, known: set[str], *, large_too: bool
) -> tuple[set[str], set[str], tuple[str, ...]]:
    """The files beside graphs and weights: small ones (tokenizer, templates, processors), and
    large ones that the config names, or all. What nothing names and is large is left out, and so
    are links out of the bundle, listed last; one that the runtime would follow is refused.
    """
    small: set[str] = set()
    large: set[str] = set()
    skipped: list[str] = []
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
            if not named and not (large_too if weighty else path.suffix != ".onnx"):
                continue
            try:
                bundle.file(name, what="file")
            except BundleError:
                if named or file in _READ_UNNAMED:
                    raise
                skipped.append(name)
                continue
            (large if weighty else small).add(name)
    return small, large, tuple(sorted(skipped))


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


def _stamp(path: Path, *, copied: bool) -> list[int]:
    status = path.stat()
    stamp = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    # Linking changes a file's own change time, so it says nothing about linked files.
    return [*stamp, status.st_ctime_ns] if copied else stamp


def _is_fresh(target: Path, contents: _Contents) -> bool:
    try:
        mark = json.loads((target / DERIVED_MARK).read_text("utf-8"))
        if mark != {**contents.manifest(), "written": contents.written(target)}:
            return False
        return (target / CONFIG_NAME).read_bytes() == contents.config.text.encode()
    except (OSError, ValueError):
        return False


def _write(target: Path, contents: _Contents, say: Say) -> None:
    source = contents.bundle.path
    manifest = contents.manifest()
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
        mark = {**manifest, "written": contents.written(staging)}
        (staging / DERIVED_MARK).write_text(json.dumps(mark, indent=1) + "\n", "utf-8")
    if contents.skipped:
        say(f"Left out, as links that lead out of {source}: {', '.join(contents.skipped)}.")
    if contents.weights:
        how = "hard links to" if linked else "copies of"
        say(f"The weights of {source} are loaded through {how} its files in {target}.")
