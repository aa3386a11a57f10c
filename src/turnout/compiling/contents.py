"""What a derived bundle is made of: its config, and where each of its files comes from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from turnout.bundle import (
    COMPILED,
    CONFIG_NAME,
    INITIALIZER_FOLDER,
    Bundle,
    GenaiConfig,
    Stage,
)
from turnout.bundle.session_keys import CONTEXT_PATH
from turnout.bundle.tokenizer import FILES
from turnout.errors import BundleError, GraphError
from turnout.files import is_file

SCHEMA_VERSION = 4
# Larger files are linked when a stage needs them, and left out when nothing names them.
SMALL = 64 << 20
_WEIGHT_SUFFIXES = frozenset(
    {".data", ".onnx_data", ".bin", ".safetensors", ".gguf", ".pt", ".pth", ".h5", ".msgpack"}
)
# Files that onnxruntime-genai reads though no config names them.
_READ_UNNAMED = frozenset({*FILES, "processor_config.json", "audio_processor_config.json"})


@dataclass(frozen=True)
class Artifact:
    """A stage that was prepared ahead of time: its graph and the files beside it, in `folder`.

    `options` are session options that it is loaded with. `binds_source`: it still reads the
    source's external data; otherwise all that it needs is in `files`.
    """

    folder: Path
    graph: str
    files: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    binds_source: bool = True


@dataclass(frozen=True)
class Contents:
    """What a derived bundle is made of; all names are relative to both folders."""

    bundle: Bundle
    config: GenaiConfig
    copies: tuple[str, ...]
    links: tuple[str, ...]
    weights: bool  # whether weights are among the links
    skipped: tuple[str, ...]  # links that lead out of the source, which nothing needs
    prepared: Mapping[str, Path]  # files that come from elsewhere than the source

    @classmethod
    def of(
        cls,
        source: Bundle,
        effective: GenaiConfig,
        target: Path,
        artifacts: Mapping[str, Artifact],
        *,
        beside: bool = False,
    ) -> Contents:
        """What is in a derived bundle at `target`; `artifacts` are those of prepared stages.

        `effective` names the source's own graphs for them. `beside`: the weights are in it, too,
        as they always are where it cannot find them elsewhere. Raises `GraphError` or
        `BundleError`.
        """
        bundle = replace(source, config=effective)
        beside = beside or bundle.blobs is not None or bundle.path.drive != target.drive
        graphs, binaries = set(), set()
        data, all_weights = set(_shared_initializers(bundle)), set()
        options: dict[str, dict[str, str]] = {}
        prepared: dict[str, Path] = {}
        for stage in bundle.stages:
            if not stage.filename:
                continue
            if (artifact := artifacts.get(stage.name)) is not None:
                weights = _existing(bundle, bundle.data_files(stage), stage)
                all_weights |= weights | {_name(bundle, bundle.graph_path(stage))}
                prepared |= {name: artifact.folder / name for name in artifact.files}
                if beside and artifact.binds_source:
                    data |= weights
                options[stage.name] = _artifact_options(
                    bundle, stage, artifact, bundle.path if beside else target
                )
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
        links = sorted({*links, *prepared})
        config = _with_graphs(_with_options(bundle, options), bundle, artifacts)
        return cls(bundle, config, tuple(copies), tuple(links), bool(data), skipped, prepared)

    def source(self, name: str) -> Path:
        """Where the file `name` of the derived bundle comes from."""
        return self.prepared.get(name, self.bundle.path / name)

    def manifest(self) -> dict[str, object]:
        """What the derived bundle was made of; it is fresh while this stays the same."""
        return {
            "schema_version": SCHEMA_VERSION,
            "source": str(self.bundle.path),
            "config_sha256": hashlib.sha256(self.config.text.encode()).hexdigest(),
            "copied": {name: stamp(self.source(name), copied=True) for name in self.copies},
            "linked": {name: stamp(self.source(name), copied=False) for name in self.links},
            "prepared": sorted({str(path.parent) for path in self.prepared.values()}),
        }

    def written(self, folder: Path) -> dict[str, object]:
        """The files as they were written to `folder`, so that damage is noticed."""
        return {name: stamp_written(folder / name) for name in (*self.copies, *self.links)}


def _artifact_options(
    bundle: Bundle, stage: Stage, artifact: Artifact, origin: Path
) -> dict[str, str]:
    """The session options that a prepared stage is loaded with.

    `origin` is the folder from which its weights are looked for: the derived bundle or, where
    that has them as the source has, the source.
    """
    options = dict(artifact.options)
    folder = Path(os.path.relpath(bundle.data_folder(stage), origin)).as_posix()
    if artifact.binds_source and folder != ".":
        options[INITIALIZER_FOLDER] = folder
        if len(artifact.files) > 1:
            options[CONTEXT_PATH] = artifact.graph
    return options


def _with_graphs(
    config: GenaiConfig, bundle: Bundle, artifacts: Mapping[str, Artifact]
) -> GenaiConfig:
    """The config in which prepared stages name their prepared graphs."""
    for stage in bundle.stages:
        artifact = artifacts.get(stage.name)
        if artifact is not None:
            config = config.edit((*stage.path, "filename"), artifact.graph)
    return config


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


def stamp_written(path: Path) -> list[int]:
    """By which a file that was written is known again, and a change of it noticed.

    One with other names is what these lead to; whoever judges them looks at its status.
    """
    return stamp(path, copied=path.stat().st_nlink == 1)


def stamp(path: Path, *, copied: bool) -> list[int]:
    """By which a file of a derived bundle is known again; a linked one's without its status."""
    status = path.stat()
    stamp = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    # Linking changes a file's own change time, so it says nothing about linked files.
    return [*stamp, status.st_ctime_ns] if copied else stamp
