"""Where a file is that a document of a bundle names, or why it cannot be used."""

from __future__ import annotations

import itertools
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Literal

from turnout.bundle import Bundle, Stage
from turnout.bundle.jsontext import Path as JsonPath
from turnout.checking.findings import Place
from turnout.checking.subject import Subject
from turnout.errors import BundleError
from turnout.files import contained, is_file

Problem = Literal["outside", "link", "missing", "case", "kind"]
_MOST_NAMES = 10_000
_SHOWN = 200
_POINTER = b"version https://git-lfs"
_POINTER_BYTES = 1024
# Where the runtime's parser itself refuses paths that lead out (`ValidateModelPaths` in
# onnxruntime-genai's config.cpp).
_CONFINED = frozenset({"decoder", "embedding", "encoder", "joiner", "speech", "vad", "vision"})
_CONFINED_KEYS = frozenset({"adapter_filename", "config_filename", "filename"})


@dataclass(frozen=True)
class Located:
    """`path` is a regular file of the bundle and `problem` None; or there is a problem.

    "outside": absolute, empty or with `..`. "link": a link that leads out. "missing". "case":
    `found` is what is there instead. "kind": no regular file. `found` says what was found.
    """

    path: Path | None
    problem: Problem | None = None
    found: str | None = None


def locate(bundle: Bundle, relative: str, folder: Path | None = None) -> Located:
    """The file `relative` to the bundle or to a folder of it. Never raises."""
    root = folder or bundle.path
    shown = relative[:_SHOWN]
    if not _stays_inside(relative):
        return Located(None, "outside", repr(shown))
    try:
        path = contained(root, relative, also=bundle.blobs)
    except BundleError:
        return Located(None, "link", f"a link to {_real(root / relative)}")
    except (OSError, ValueError):  # a name that no file system takes
        return Located(None, "missing", repr(shown))
    return Located(path) if is_file(path) else _no_file(root, relative, path)


def _no_file(root: Path, relative: str, path: Path) -> Located:
    kind = _kind(path)
    if kind is not None:
        return Located(None, "kind", kind)
    if os.path.islink(path):  # noqa: PTH114 - Path.is_symlink() raises for names that are too long
        return Located(None, "missing", f"a link to {_real(path)}, where nothing is")
    other = _other_case(root, relative)
    return Located(None, "case", other) if other else Located(None, "missing")


def _stays_inside(relative: str) -> bool:
    windows = PureWindowsPath(relative)
    absolute = PurePosixPath(relative).is_absolute() or windows.drive or windows.root
    return bool(relative) and "\0" not in relative and not absolute and ".." not in windows.parts


def is_refused_by_parser(path: JsonPath, value: str) -> bool:
    """Whether the runtime's parser refuses that file name at that place: then it has been said."""
    if len(path) < 3 or path[1] not in _CONFINED or path[-1] not in _CONFINED_KEYS:
        return False
    return value.startswith(("/", "\\")) or ".." in value.replace("\\", "/").split("/")


def is_pointer(path: Path) -> bool:
    """Whether a file is what Git LFS leaves where it has not fetched the real one."""
    try:
        if path.stat().st_size > _POINTER_BYTES:
            return False
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def file_path(subject: Subject, stage: Stage) -> JsonPath:
    """The place of the config that names the graph of a stage, or of the stage itself."""
    members = subject.config.get(stage.path)
    keys = ["filename"]
    if isinstance(members, dict):
        keys += [key for key, value in members.items() if value == stage.filename]
    for key in keys:
        if subject.config.root.find((*stage.path, key)) is not None:
            return (*stage.path, key)
    return stage.path


def file_place(subject: Subject, stage: Stage) -> Place:
    """Where the config names the graph of a stage."""
    return subject.place(file_path(subject, stage))


def option_place(subject: Subject, stage: Stage, key: str) -> Place:
    """Where the config has that session option of a stage: its own, or the one it inherits."""
    own = (*stage.path, "session_options", key)
    if subject.config.root.find(own) is not None:
        return subject.place(own)
    return subject.place(("model", stage.options_section, "session_options", key))


def relative_name(bundle: Bundle, path: Path) -> str:
    """How a file of the bundle is shown: relative to it, as text that can be written."""
    try:
        name = path.relative_to(bundle.path).as_posix()
    except ValueError:
        name = str(path)
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _real(path: Path) -> str:
    try:
        return os.path.realpath(path)[:_SHOWN]
    except (OSError, ValueError):
        return "itself"


def _kind(path: Path) -> str | None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _other_case(root: Path, relative: str) -> str | None:
    """The path that differs from `relative` in nothing but case, None if there is none."""
    place, found = root, []
    for part in PurePosixPath(relative).parts:
        names = _names(place)
        name = part if part in names else _same_but_case(part, names)
        if name is None or (place / name).is_symlink():
            return None
        place /= name
        found.append(name)
    return "/".join(found) if is_file(place) else None


def _same_but_case(part: str, names: frozenset[str]) -> str | None:
    folded = part.casefold()
    return next((name for name in sorted(names) if name.casefold() == folded), None)


def _names(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in itertools.islice(entries, _MOST_NAMES))
    except (OSError, ValueError):
        return frozenset()
