"""Binaries that `EPContext` nodes point to, where their format is known: OpenVINO's.

A header of 40 bytes (magic, version, size of the header, offset and size of a BSON document),
the document, then blobs. The document says where each partition's blob is, and which ranges of
which files the weights are that are bound when it is loaded. Read from the OpenVINO EP's source
(`ov_bin_manager.cc`) and from binaries that its plugin 1.8.1 wrote.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.errors import GraphError

_MAGIC = b"OVEP_BIN"
_HEADER = struct.Struct("<8sQQQQ")
_MAX_DOCUMENT = 64 << 20
_MAX_DEPTH = 8
# BSON: the kinds of elements that take a fixed number of bytes (double, bool, datetime, null,
# int32, timestamp, int64), and those that say how long they are (string, document, array,
# binary).
_FIXED = {0x01: 8, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8}
_STRING, _DOCUMENT, _ARRAY, _BINARY = 0x02, 0x03, 0x04, 0x05


@dataclass(frozen=True, slots=True)
class BoundWeight:
    """`size` bytes at `offset` of the file `location`, bound to a compiled graph as it loads."""

    name: str
    location: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ContextBinary:
    """What a binary says of itself. `blobs` maps a partition to its offset and size in bytes."""

    file_bytes: int
    blobs: Mapping[str, tuple[int, int]]
    weights: tuple[BoundWeight, ...]


def read_context_binary(path: Path, at: int = 0, size: int | None = None) -> ContextBinary | None:
    """The header of the binary at `path`, or of the `size` bytes at `at` of that file.

    None where it is of another format. Raises `GraphError` where it cannot be read, or ends too
    early.
    """
    try:
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        )
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size if size is None else size
            file.seek(at)
            start = file.read(min(_HEADER.size, size))
            if not start.startswith(_MAGIC):
                return None
            if len(start) < _HEADER.size:
                raise _broken(path, f"{size} bytes", f"a header of {_HEADER.size} bytes")
            _, _, _, offset, length = _HEADER.unpack(start)
            if offset + length > size or length > _MAX_DOCUMENT:
                raise _broken(
                    path,
                    f"a description of {length} bytes at byte {offset} of {size}",
                    "a description inside the file",
                )
            file.seek(at + offset)
            data = file.read(length)
    except OSError as error:
        raise GraphError(f"Cannot read {path}: {error.strerror or error}.", where=path) from error
    try:
        document = dict(_elements(data, 0, len(data), 0))
    except (ValueError, struct.error, IndexError) as error:
        raise _broken(path, f"a description that cannot be read ({error})", "BSON") from error
    return ContextBinary(size, _blobs(document), _weights(document))


def _broken(path: Path, found: str, expected: str) -> GraphError:
    return GraphError(
        f"{path} is no complete binary of a compiled graph.",
        found=found,
        expected=expected,
        where=path,
        fix="compile the stage again, or fetch the file again",
    )


def _blobs(document: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {
        name: (entry["data_offset"], entry["size"])
        for name, entry in _entries(document, "blob_metadata_map")
    }


def _weights(document: Mapping[str, Any]) -> tuple[BoundWeight, ...]:
    return tuple(
        BoundWeight(name, entry["location"], entry["data_offset"], entry["size"])
        for name, entry in _entries(document, "weights_metadata_map")
        if isinstance(entry.get("location"), str)
    )


def _entries(document: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    entries = document.get(key)
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        numbers = (
            [entry.get(part) for part in ("data_offset", "size")]
            if isinstance(entry, dict)
            else [None]
        )
        if all(isinstance(number, int) and number >= 0 for number in numbers):
            yield name, entry


def _elements(data: bytes, start: int, end: int, depth: int) -> Iterator[tuple[str, Any]]:
    """The elements of the BSON document that begins at `start`; values of no use are None."""
    (length,) = struct.unpack_from("<i", data, start)
    if not 5 <= length <= end - start or depth > _MAX_DEPTH:
        raise ValueError(f"a document of {length} bytes where {end - start} are left")
    at, end = start + 4, start + length - 1
    while at < end:
        kind = data[at]
        stop = data.index(0, at + 1, end)
        name = data[at + 1 : stop].decode("utf-8")
        at = stop + 1
        value: Any = None
        if kind in _FIXED:
            width = _FIXED[kind]
            if kind in {0x10, 0x12}:
                value = int.from_bytes(data[at : at + width], "little", signed=True)
        elif kind in {_STRING, _DOCUMENT, _ARRAY, _BINARY}:
            (inner,) = struct.unpack_from("<i", data, at)
            width = {_STRING: 4 + inner, _BINARY: 5 + inner}.get(kind, inner)
            if inner < 0 or width > end - at:
                raise ValueError(f"{name!r} of {inner} bytes where {end - at} are left")
            if kind == _STRING:
                value = data[at + 4 : at + 3 + inner].decode("utf-8")
            elif kind != _BINARY:
                value = dict(_elements(data, at, at + width, depth + 1))
        else:
            raise ValueError(f"an element of kind {kind}")
        yield name, value
        at += width
