"""The document of a saved route: its schema, and reading one that nobody vouches for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from turnout.documents import Form
from turnout.errors import UsageError

SCHEMA_VERSION = 1
DOCUMENT: Literal["turnout route"] = "turnout route"
MAX_BYTES = 4 << 20
AGAIN = "save it again with: turnout explain BUNDLE [route options] --save-route FILE"

Device = Literal["cpu", "gpu", "npu"]
How = Literal["config", "kept", "borrowed", "defaulted", "removed"]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a document may hold, and nothing else."""


class Entry(_Strict, frozen=True, omit_defaults=True):
    """An entry of `provider_options`."""

    name: str
    options: dict[str, str]
    device_filter: dict[str, str | int] = {}


class Stage(_Strict, frozen=True):
    """The decision for one stage. `file`, `section` and `before` are what it was decided for."""

    stage: str
    section: str
    file: str | None
    before: str
    ep: str
    device: Device | None
    how: How
    reason: str
    providers: tuple[Entry, ...]
    set_options: dict[str, str | int | bool]
    drop_options: tuple[str, ...]
    dropped: tuple[str, ...]


class AskedStage(_Strict, frozen=True):
    """An EP that was asked for one stage."""

    name: str
    ep: str
    device: str | None = None


class AskedOption(_Strict, frozen=True):
    """An option that was asked for one stage, or for all."""

    stage: str | None
    key: str
    value: str


class Request(_Strict, frozen=True):
    """What was asked."""

    ep: str | None
    device: str
    stages: tuple[AskedStage, ...]
    scope: str
    provider_options: tuple[AskedOption, ...]
    session_options: tuple[AskedOption, ...]
    reproducible: bool


class Document(_Strict, frozen=True):
    """A saved route. `platform` is null where no machine was looked at."""

    document: Literal["turnout route"]
    schema_version: int
    platform: str | None
    request: Request
    stages: tuple[Stage, ...]
    warnings: tuple[str, ...]


class _Header(msgspec.Struct):
    document: Literal["turnout route"]
    schema_version: int


_FORM = Form(
    name="route",
    header=_Header,
    document=Document,
    version=SCHEMA_VERSION,
    fix=AGAIN,
    fix_older=AGAIN,
    fix_newer="use the version of turnout that saved it, or a newer one",
    limit=MAX_BYTES,
)


class Place:
    """A place in the document, for errors: `r.json: $.stages[1].ep`."""

    def __init__(self, path: Path, shown: str = "$") -> None:
        self._path, self._shown = path, shown

    def at(self, *steps: str | int) -> Place:
        """A place below this one."""
        more = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps)
        return Place(self._path, self._shown + more)

    def __str__(self) -> str:
        return f"{self._path}: {self._shown}"

    def error(
        self, problem: str, kind: type[UsageError] = UsageError, **facts: object
    ) -> UsageError:
        """An error about this place."""
        return kind(problem, where=self, **facts)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Errors of the block are about this place."""
        try:
            yield
        except UsageError as error:
            raise type(error)(error.problem, **{**error.facts, "where": self}) from error


def as_path(path: object) -> Path:
    """The path of a route's file. Raises `UsageError` for what is none."""
    if isinstance(path, str | os.PathLike):
        shown = os.fspath(path)
        if isinstance(shown, str) and shown:
            return Path(shown)
    raise UsageError(
        "That is no path of a route's file.", found=repr(path)[:200], expected="the path of a file"
    )


def read(path: Path) -> bytes:
    """The bytes of a file of a bounded size. Raises `UsageError`."""
    return _FORM.bytes_of(path)


def decode(data: bytes, path: Path) -> Document:
    """The document in `data`, which came from `path`. Raises `UsageError` naming a JSON path."""
    return _FORM.decode(data, path)


def is_route(path: Path) -> bool:
    """Whether a saved route of any version is there."""
    try:
        msgspec.json.decode(read(path), type=_Header)
    except (UsageError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def check_text(value: Any, place: Place) -> None:
    """No text may hold what a config of onnxruntime-genai cannot."""
    if isinstance(value, str):
        if any(letter < " " and letter not in "\b\t\n\f\r" for letter in value):
            raise place.error(
                "A text holds a control character, which no config can hold.", found=repr(value)
            )
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            check_text(getattr(value, name), place.at(name))
    elif isinstance(value, dict):
        for key, item in value.items():
            check_text(key, place)
            check_text(item, place.at(key))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            check_text(item, place.at(index))
