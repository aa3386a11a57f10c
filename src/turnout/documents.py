"""JSON documents that have a version, and that somebody else may have written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from turnout.errors import UsageError

D = TypeVar("D")


class Header(Protocol):
    """What every version of a document has."""

    @property
    def schema_version(self) -> int:
        """Which version it is."""


@dataclass(frozen=True)
class Form(Generic[D]):
    """A kind of document: what it is called, its structs, and what to do where it is none.

    `header` is read first, so that a document of another version is told from an invalid one.
    A file of more than `limit` bytes is not read.
    """

    name: str
    header: type[Header]
    document: type[D]
    version: int
    fix: str
    fix_older: str
    fix_newer: str
    limit: int = 16 << 20

    def bytes_of(self, path: Path) -> bytes:
        """The bytes of a file that may hold one, of at most `limit` bytes. Raises `UsageError`."""
        problem = f"Cannot read the {self.name} {path}"
        try:
            if not path.is_file():
                what = "a folder" if path.is_dir() else "nothing, or no regular file"
                expected = f"a file with a {self.name}"
                raise UsageError(f"{problem}.", found=what, expected=expected, where=path)
            with path.open("rb") as file:
                data = file.read(self.limit + 1)
        except OSError as error:
            raise UsageError(f"{problem}: {error.strerror or error}.", where=path) from error
        if len(data) > self.limit:
            raise UsageError(
                f"The {self.name} is too large.",
                found=f"more than {self.limit} bytes",
                expected=f"at most {self.limit} bytes",
                where=path,
            )
        return data

    def read(self, path: Path) -> D:
        """The document in the file `path`. Raises `UsageError` naming it and a JSON path."""
        return self.decode(self.bytes_of(path), path)

    def decode(self, data: str | bytes, where: object = None) -> D:
        """The document in `data`; `where` names its file.

        Raises `UsageError` naming a JSON path.
        """
        try:
            header = msgspec.json.decode(data, type=self.header)
            if header.schema_version == self.version:
                return msgspec.json.decode(data, type=self.document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason, _, place = str(error).partition(" - at ")
            raise UsageError(
                f"The {self.name} is not a valid document.",
                found=reason,
                where=_at(where, place.strip("`") or "$"),
                fix=self.fix,
            ) from error
        raise UsageError(
            f"The {self.name} has a version that this program does not read.",
            found=f"schema_version {header.schema_version}",
            expected=f"schema_version {self.version}",
            where=_at(where, "$.schema_version"),
            fix=self.fix_newer if header.schema_version > self.version else self.fix_older,
        )


def encode(document: Any) -> bytes:
    """A document as indented JSON in UTF-8, with a line's end.

    What a path or an argument holds that is no Unicode becomes U+FFFD: JSON cannot hold it.
    """
    try:
        data = msgspec.json.encode(document)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_unicode(msgspec.to_builtins(document)))
    return msgspec.json.format(data, indent=2) + b"\n"


def _unicode(value: Any) -> Any:
    if isinstance(value, str):
        # Bytes that are UTF-8 after all, in another locale, are what they were.
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_unicode(item) for item in value]
    if isinstance(value, dict):
        return {_unicode(key): _unicode(item) for key, item in value.items()}
    return value


def _at(where: object, place: str) -> str:
    return place if where is None else f"{where}: {place}"
