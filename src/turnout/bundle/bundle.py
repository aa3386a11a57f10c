"""`Bundle`: a directory that onnxruntime-genai loads, and what is in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from turnout.bundle.config import CONFIG_NAME, GenaiConfig
from turnout.bundle.graph import GraphFile, ValueInfo, read_inputs
from turnout.bundle.layouts import Stage
from turnout.bundle.session_keys import INITIALIZER_FOLDER
from turnout.bundle.tokenizer import FILES, TokenizerInfo, read_tokenizer
from turnout.errors import (
    BundleError,
    ConfigError,
    GraphError,
    NotABundleError,
    UnknownStageError,
    UsageError,
)
from turnout.files import contained, is_file, is_forbidden, kind_of

# Made beside a bundle's own files, and no part of it.
COMPILED = "_compiled"
# Marks a derived bundle, which lives by its source and is never a source itself.
DERIVED_MARK = "turnout-derived.json"
# What to do about a file that is there and may not be read.
ALLOW = "let this user read it, and enter the folders above it"
_HUB_DEPTH = 8
_SNAPSHOTS = 3  # that are named
_SHOWN = 200  # characters of a path that is wrong


@dataclass(frozen=True)
class Bundle:
    """A directory with a `genai_config.json`, read but never executed.

    Opening reads the config only; graphs and tokenizer files are read when first asked for.
    """

    path: Path
    config: GenaiConfig
    _graphs: dict[Path, GraphFile] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path | str) -> Bundle:
        """The bundle at `path`.

        Raises `NotABundleError` saying what is there instead, `UsageError` for what is no path,
        or `ConfigError`.
        """
        path = as_path(path)
        try:
            _refuse_other_things(path)
        except OSError as error:
            # A name that no file system takes, or a folder that may not be looked into.
            raise NotABundleError(
                f"{str(path)[:_SHOWN]!r} cannot be opened.",
                found=error.strerror or error,
                expected=f"a directory with a {CONFIG_NAME}",
                fix="check the path and its permissions",
            ) from error
        config = contained(path, CONFIG_NAME, what="file", also=_blobs_of(path))
        bundle = cls(path, GenaiConfig.load(config))
        if not bundle.stages:
            raise ConfigError(
                f"{path / CONFIG_NAME} names no graph.",
                expected="a model with a decoder",
                where=f"{path / CONFIG_NAME}, model",
            )
        return bundle

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage in the order in which it runs."""
        return self.config.stages()

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises `UnknownStageError` listing the names."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise UnknownStageError(
            f"There is no stage {name!r} in {self.path}.",
            expected="one of " + ", ".join(stage.name for stage in self.stages),
            where=self.path,
        )

    def file(self, relative: str, *, what: str = "path") -> Path:
        """A file of the bundle that its documents name. Raises `BundleError` if it leads out."""
        return contained(self.path, relative, what=what, also=self.blobs)

    def graph_path(self, stage: Stage) -> Path:
        """The ONNX file of a stage. Raises `GraphError` if it is unnamed, outside or missing."""
        where = f"{self.path / CONFIG_NAME}, stage {stage.name}"
        if not stage.filename:
            raise GraphError(f"The stage {stage.name!r} names no file.", where=where)
        path = self._inside(stage.filename, f"file of the stage {stage.name!r},")
        if not is_file(path):
            fix = "fetch or build the bundle again"
            problem = "is no regular file" if os.path.lexists(path) else "is missing"
            if is_forbidden(path):
                problem, fix = "may not be read", ALLOW
            raise GraphError(
                f"The file of the stage {stage.name!r}, {stage.filename}, {problem}.",
                expected=path,
                where=where,
                fix=fix,
            )
        return path

    def graph(self, stage: Stage) -> GraphFile:
        """The header of a stage's graph. Raises `GraphError`."""
        path = self.graph_path(stage)
        if path not in self._graphs:
            self._graphs[path] = GraphFile.read(path)
        return self._graphs[path]

    def inputs(self, stage: Stage) -> tuple[ValueInfo, ...]:
        """The inputs of a stage's graph; quicker than its whole header. Raises `GraphError`."""
        path = self.graph_path(stage)
        known = self._graphs.get(path)
        return known.inputs if known is not None else read_inputs(path)

    def data_files(self, stage: Stage) -> Mapping[str, Path]:
        """The external data files of a stage's graph, by the location that the graph names.

        They must stay inside `data_folder(stage)`: onnxruntime refuses others. The files need
        not exist. Raises `GraphError`.
        """
        folder = self.data_folder(stage)
        return {
            name: self.data_file(stage, name, folder) for name in self.graph(stage).external_files
        }

    def data_file(self, stage: Stage, name: str, folder: Path | None = None) -> Path:
        """One of `data_files`; `folder` is `data_folder(stage)`, where it is known already."""
        what = f"data file of {self.graph_path(stage)}"
        return self._inside(name, what, folder or self.data_folder(stage))

    def data_folder(self, stage: Stage) -> Path:
        """The folder that a stage's external data is in: its graph's own, or the one that the
        session option `INITIALIZER_FOLDER` names. Raises `GraphError` if that leads out.
        """
        named = stage.effective_options.get(INITIALIZER_FOLDER)
        if isinstance(named, str) and named:
            return self._inside(named, f"initializer folder of the stage {stage.name!r},")
        return self.graph_path(stage).parent

    def context_files(self, stage: Stage) -> Mapping[str, Path]:
        """The binaries that a stage's `EPContext` nodes name, by that name. Raises `GraphError`."""
        graph = self.graph(stage)
        names = sorted({context.cache for context in graph.ep_contexts if context.cache})
        return {name: self.context_file(stage, name) for name in names}

    def context_file(self, stage: Stage, name: str) -> Path:
        """One of `context_files`, by the name that a node gives it. Raises `GraphError`."""
        path = self.graph_path(stage)
        return self._inside(name, f"binary of {path}", path.parent)

    @property
    def missing(self) -> tuple[str, ...]:
        """Graphs, data files and binaries that are named but not there, relative, sorted."""
        missing = set()
        for stage in self.stages:
            if stage.filename and not is_file(self._inside(stage.filename, "stage file")):
                missing.add(stage.filename)
            elif stage.filename:
                named = [*self.data_files(stage).values(), *self.context_files(stage).values()]
                missing |= {
                    path.relative_to(self.path).as_posix() for path in named if not is_file(path)
                }
        return tuple(sorted(missing))

    @property
    def context_length(self) -> int | None:
        """Tokens that prompt and answer may take together; None when the config does not say."""
        return self.config.context_length

    @property
    def tokenizer_folder(self) -> Path:
        """The folder of the tokenizer files. Raises `BundleError` if it leads out."""
        named = self.config.get(("model", "tokenizer_dir"))
        if isinstance(named, str) and named:
            return self.file(named, what="tokenizer folder")
        return self.path

    @cached_property
    def tokenizer(self) -> TokenizerInfo:
        """What the tokenizer files say. Raises `TokenizerError`, or `BundleError` for links out."""
        for name in FILES:
            contained(self.tokenizer_folder, name, what="tokenizer file", also=self.blobs)
        return read_tokenizer(self.tokenizer_folder)

    @property
    def chat_template(self) -> str | None:
        """The chat template that takes effect, as Jinja text."""
        return self.tokenizer.chat_template

    @cached_property
    def blobs(self) -> Path | None:
        """The folder that a hub cache's links lead to, None for an ordinary bundle.

        A hub's client keeps `<model>/blobs/<hash>` and links to it from
        `<model>/snapshots/<revision>/...`, the bundle being that folder or one inside it.
        """
        return _blobs_of(self.path)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of its files on disk, each file once, without what was compiled."""
        sizes: dict[tuple[int, int], int] = {}
        for folder, folders, names in os.walk(self.path):
            if COMPILED in folders and Path(folder) == self.path:
                folders.remove(COMPILED)
            for name in names:
                try:
                    status = (Path(folder) / name).stat()
                except OSError:
                    continue  # a dangling link takes no room
                sizes[status.st_dev, status.st_ino] = status.st_size
        return sum(sizes.values())

    def _inside(self, relative: str, what: str, folder: Path | None = None) -> Path:
        try:
            return contained(folder or self.path, relative, what=what, also=self.blobs)
        except BundleError as error:
            raise GraphError(error.problem, **error.facts) from error


def as_path(path: object) -> Path:
    """What a caller gives as the path of a bundle. Raises `UsageError` for what is none."""
    if isinstance(path, str | os.PathLike):
        shown = os.fspath(path)
        if isinstance(shown, str) and shown and "\0" not in shown:
            return Path(shown)
    raise (NotABundleError if isinstance(path, str | os.PathLike) else UsageError)(
        "That is no path of a bundle.",
        found=repr(path)[:_SHOWN],
        expected="the path of a directory, as text or a Path",
    )


def _blobs_of(path: Path) -> Path | None:
    place = path.resolve()
    for ancestor in [place, *place.parents][:_HUB_DEPTH]:
        blobs = ancestor.parent / "blobs"
        if ancestor != place and ancestor.name != "snapshots":
            continue
        if blobs.is_dir() and not blobs.is_symlink() and _links_into(place, blobs):
            return blobs
    return None


def _links_into(folder: Path, blobs: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            links = [Path(entry.path) for entry in entries if entry.is_symlink()]
    except OSError:  # it may be entered, not listed
        return False
    return any(Path(os.path.realpath(link)).parent == blobs for link in links)


def _refuse_other_things(path: Path) -> None:
    expected = f"a directory with a {CONFIG_NAME}"
    if path.is_dir():
        if (path / DERIVED_MARK).exists():
            raise NotABundleError(
                f"{path} was derived from another bundle, and is none by itself.",
                found=_source_of(path),
                expected="the bundle that it was derived from",
                where=path,
                fix="give that bundle instead",
            )
        if os.path.lexists(path / CONFIG_NAME):
            return
        names = sorted(entry.name for entry in path.iterdir())
        raise NotABundleError(
            f"{path} is not a bundle: it has no {CONFIG_NAME}.",
            found=", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
            or "an empty directory",
            expected=expected,
            where=path,
            fix=_snapshot_of(path) or "make one of a model file with `turnout build`",
        )
    found, fix = "nothing of that name", "check the path"
    if path.name == CONFIG_NAME and path.exists():
        found, fix = (
            "its configuration file alone",
            f"give the directory that holds it: {path.parent}",
        )
    elif path.suffix.lower() == ".onnx" and path.exists():
        found = "a plain ONNX model"
        fix = f"give the directory that holds it together with its {CONFIG_NAME}"
    elif path.suffix.lower() == ".gguf" and path.exists():
        found, fix = (
            "a GGUF model file",
            f"make a bundle of it with `turnout build {path} -o OUTPUT`",
        )
    elif path.exists():
        found, fix = kind_of(path), "give the directory"
        if found == "a pipe":
            fix += "; what comes out of a pipe is checked with: turnout check -"
    raise NotABundleError(
        f"{path} is not a bundle.", found=found, expected=expected, where=path, fix=fix
    )


def _snapshot_of(path: Path) -> str | None:
    """What to give instead of the folder of a model in a hub's cache, None for another folder."""
    if not (path / "blobs").is_dir():
        return None
    revisions = sorted(folder for folder in (path / "snapshots").glob("*") if folder.is_dir())
    named = [folder for folder in revisions if (folder / CONFIG_NAME).exists()] or revisions
    if not named:
        return None
    return "it is a model of a hub's cache; give a snapshot of it: " + " or ".join(
        map(str, named[:_SNAPSHOTS])
    )


def _source_of(path: Path) -> str:
    try:
        source = json.loads((path / DERIVED_MARK).read_text("utf-8"))["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return "a mark of a derived bundle that cannot be read"
    return f"derived from {source}"
