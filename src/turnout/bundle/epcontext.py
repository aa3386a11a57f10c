"""Binaries that `EPContext` nodes point to, where their format is known: OpenVINO's.

A header of 40 bytes (magic, version, size of the header, offset and size of a BSON document),
the document, then blobs. The document says where each partition's blob is, and which ranges of
which files the weights are that are bound when it is loaded. Read from the OpenVINO EP's source
(`ov_bin_manager.cc`) and from binaries that its plugin 1.8.1 wrote.

Reading is bounded, and refuses what the plugin would: lengths that leave the file or the document,
another version, entries that are incomplete. `require_layout` and `require_parts` ask for more,
of binaries that were just compiled.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.errors import GraphError

MAGIC = b"OVEP_BIN"
# The versions that the plugin's reader takes: of the header, and the first number of the
# document's own.
_VERSION, _DOCUMENT_MAJOR = 1, "1"
_HEADER = struct.Struct("<8sQQQQ")
# Blobs begin at multiples of this, and the file ends at one.
_ALIGNMENT = 64 << 10
_MAX_DOCUMENT = 64 << 20
_MAX_DEPTH = 8
# A graph of a thousand layers has some ten thousand.
_MAX_ELEMENTS = 1 << 20
_MAX_NUMBER = 1 << 62
# BSON: the kinds of elements that take a fixed number of bytes (double, bool, datetime, null,
# int32, timestamp, int64), and those that say how long they are (string, document, array,
# binary).
_FIXED = {0x01: 8, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8}
_STRING, _DOCUMENT, _ARRAY, _BINARY = 0x02, 0x03, 0x04, 0x05
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class BoundWeight:
    """`size` bytes at `offset` of the file `location`, bound to a compiled graph as it loads."""

    name: str
    location: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ContextBinary:
    """What a binary says of itself. `blobs` maps a partition to its offset and size in bytes.

    `file_bytes` is the size of the binary, which is the file's where it is not embedded;
    `head_bytes` are those of header and description. `producer` is the plugin that wrote it.
    """

    file_bytes: int
    blobs: Mapping[str, tuple[int, int]]
    weights: tuple[BoundWeight, ...]
    head_bytes: int = 0
    version: str = ""
    producer: str = ""


def read_context_binary(path: Path, span: tuple[int, int] | None = None) -> ContextBinary | None:
    """The header of the binary at `path`, None where it is of another format.

    `span` is where it begins and ends in the file, for one that is embedded in a graph. Raises
    `GraphError` where it cannot be read, ends too early, or is of a version that is not known.
    """
    try:
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        )
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _broken(path, "no regular file", "a file")
            begin, end = span or (0, status.st_size)
            size = min(end, status.st_size) - begin
            file.seek(begin)
            head = file.read(min(_HEADER.size, max(size, 0)))
            if not head.startswith(MAGIC):
                return None
            at, length = _document_span(path, head, size)
            file.seek(begin + at)
            data = file.read(length)
    except OSError as error:
        raise GraphError(f"Cannot read {path}: {error.strerror or error}.", where=path) from error
    try:
        document = _Bson(data).document(0, len(data), 0)
        return _described(document, size, at + length)
    except (ValueError, struct.error, IndexError) as error:
        raise _broken(path, f"a description that cannot be read ({error})", "BSON") from error


def require_layout(binary: ContextBinary, path: Path) -> None:
    """Blobs are inside the file, apart from each other, and nothing follows the last.

    Raises `GraphError`.
    """
    end, before = binary.head_bytes, "the description"
    for name, (offset, size) in sorted(binary.blobs.items(), key=lambda item: item[1]):
        if offset < end:
            raise _broken(
                path,
                f"the part {name[:_SHOWN]!r} at byte {offset}, inside {before}",
                f"byte {end} or later",
            )
        if not size or offset + size > binary.file_bytes:
            raise _broken(
                path,
                f"the part {name[:_SHOWN]!r} of {size} bytes at byte {offset} of "
                f"{binary.file_bytes}",
                "a part inside the file",
            )
        end, before = offset + size, f"the part {name[:_SHOWN]!r}"
    ends = (end, -(-end // _ALIGNMENT) * _ALIGNMENT)
    if binary.file_bytes not in ends:
        raise _broken(
            path,
            f"{binary.file_bytes} bytes, of which the last part ends at {end}",
            f"{ends[1]} bytes",
        )


def require_parts(binary: ContextBinary, path: Path, named: Collection[str]) -> None:
    """The partitions that nodes name are those that the binary holds. Raises `GraphError`."""
    missing = sorted(set(named) - set(binary.blobs))
    if missing:
        raise _broken(
            path,
            f"{len(binary.blobs)} parts, without {missing[0][:_SHOWN]!r}",
            "every part that a graph names",
        )
    orphans = sorted(set(binary.blobs) - set(named))
    if orphans:
        raise _broken(
            path, f"the part {orphans[0][:_SHOWN]!r}, which no graph names", "parts of its graphs"
        )


class _MalformedError(ValueError):
    """Bytes that are no BSON, or not what a binary says of itself."""


def _broken(path: Path, found: str, expected: str) -> GraphError:
    return GraphError(
        f"{path} is no complete binary of a compiled graph.",
        found=found,
        expected=expected,
        where=path,
        fix="compile the stage again, or fetch the file again",
    )


def _document_span(path: Path, head: bytes, size: int) -> tuple[int, int]:
    """Offset and size of the description in a binary of `size` bytes that begins with `head`."""
    if len(head) < _HEADER.size:
        raise _broken(path, f"{size} bytes", f"a header of {_HEADER.size} bytes")
    _, version, header, offset, length = _HEADER.unpack(head)
    if version != _VERSION or header != _HEADER.size:
        raise _broken(
            path,
            f"version {version} with a header of {header} bytes",
            f"version {_VERSION} with a header of {_HEADER.size} bytes",
        )
    if offset < _HEADER.size or offset + length > size or length > _MAX_DOCUMENT:
        raise _broken(
            path,
            f"a description of {length} bytes at byte {offset} of {size}",
            "a description inside the file",
        )
    return offset, length


def _described(document: Mapping[str, Any], size: int, head: int) -> ContextBinary:
    version = document.get("version", "")
    if not isinstance(version, str) or version.partition(".")[0] != _DOCUMENT_MAJOR:
        raise _MalformedError(f"version {str(version)[:_SHOWN]!r}")
    producer = document.get("producer")
    blobs, weights = {}, []
    for name, entry in _entries(document, "blob_metadata_map"):
        blobs[name] = (_number(entry, "data_offset"), _number(entry, "size"))
    for name, entry in _entries(document, "weights_metadata_map"):
        location = entry.get("location")
        if not isinstance(location, str):
            raise _MalformedError(f"no location of {name[:_SHOWN]!r}")
        weights.append(
            BoundWeight(name, location, _number(entry, "data_offset"), _number(entry, "size"))
        )
    return ContextBinary(
        file_bytes=size,
        blobs=blobs,
        weights=tuple(weights),
        head_bytes=head,
        version=version,
        producer=producer if isinstance(producer, str) else "",
    )


def _entries(document: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    entries = document.get(key, {})
    if not isinstance(entries, dict):
        raise _MalformedError(f"{key} is no document")
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise _MalformedError(f"{name[:_SHOWN]!r} is no document")
        yield name, entry


def _number(entry: Mapping[str, Any], key: str) -> int:
    value = entry.get(key)
    if not isinstance(value, int) or not 0 <= value < _MAX_NUMBER:
        raise _MalformedError(f"{key} {value!r}")
    return value


class _Bson:
    """Reads one BSON document, each length checked against what holds it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MAX_ELEMENTS

    def document(self, start: int, end: int, depth: int) -> dict[str, Any]:
        """The document that begins at `start`, as numbers, strings and documents; else None."""
        data = self._data
        (length,) = struct.unpack_from("<i", data, start)
        if not 5 <= length <= end - start or depth > _MAX_DEPTH:
            raise _MalformedError(f"a document of {length} bytes where {end - start} are left")
        if data[start + length - 1]:
            raise _MalformedError("a document without an end")
        at, end = start + 4, start + length - 1
        found: dict[str, Any] = {}
        while at < end:
            kind = data[at]
            stop = data.index(0, at + 1, end)
            name = data[at + 1 : stop].decode("utf-8")
            width = self._width(kind, stop + 1, end, name)
            self._left -= 1
            if self._left < 0:
                raise _MalformedError(f"more than {_MAX_ELEMENTS} elements")
            if name in found:
                raise _MalformedError(f"{name[:_SHOWN]!r} twice")
            found[name] = self._value(kind, stop + 1, width, depth)
            at = stop + 1 + width
        return found

    def _width(self, kind: int, at: int, end: int, name: str) -> int:
        """How many bytes the value of that kind takes; it begins at `at`."""
        if kind in _FIXED:
            width = _FIXED[kind]
        elif kind in {_STRING, _DOCUMENT, _ARRAY, _BINARY}:
            (inner,) = struct.unpack_from("<i", self._data, at)
            width = {_STRING: 4 + inner, _BINARY: 5 + inner}.get(kind, inner)
            if inner < (kind == _STRING):
                width = -1
        else:
            raise _MalformedError(f"an element of kind {kind}")
        if not 0 <= width <= end - at:
            raise _MalformedError(f"{name[:_SHOWN]!r} of {width} bytes where {end - at} are left")
        return width

    def _value(self, kind: int, at: int, width: int, depth: int) -> Any:
        data = self._data
        if kind in {0x10, 0x12}:
            return int.from_bytes(data[at : at + width], "little", signed=True)
        if kind == _STRING:
            if data[at + width - 1]:
                raise _MalformedError("a text without an end")
            return data[at + 4 : at + width - 1].decode("utf-8")
        if kind in {_DOCUMENT, _ARRAY}:
            return self.document(at, at + width, depth + 1)
        return None
