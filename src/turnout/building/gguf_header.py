"""Parses a GGUF header: the counts, the metadata, and the table of tensors.

Written for files that nobody vouches for: each count is compared with the bytes that so
many of the thing take at least, and loops that a small file could make long are capped.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from turnout.building.gguf_metadata import MAX_KEY_BYTES, GgufArray, Value, read_metadata
from turnout.building.gguf_source import Cursor, Source
from turnout.building.gguf_types import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    OTHER_TENSOR_TYPES,
    TENSOR_TYPES,
    VERSIONS,
    TensorType,
    looks_like,
)
from turnout.errors import GgufError, UnsupportedModelError

# Far above any model in use; low enough that a hostile file costs a second, not an hour.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ALIGNMENT = 1 << 16
MAX_DIMENSIONS = 4

_U32 = struct.Struct("<I")
# The least that a metadata pair and a tensor's description take.
_PAIR_BYTES, _TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class TensorInfo:
    """One line of the tensor table: dimensions as in the file (the fastest first)."""

    name: str
    type: TensorType
    dims: tuple[int, ...]
    offset: int  # absolute
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says before its data."""

    version: int
    alignment: int
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def read_header(source: Source) -> Header:
    """Parse the header of `source`.

    Raises `GgufError` for anything malformed, and `UnsupportedModelError` for a sound file
    that is one of several parts or holds a tensor type that is not handled.
    """
    cursor = Cursor(source)
    version = _version(cursor)
    tensor_count, key_count = _counts(cursor)
    metadata = read_metadata(cursor, key_count)
    _require_whole(source, metadata)
    alignment = _alignment(cursor, metadata)
    tensors = _tensors(cursor, tensor_count, alignment)
    return Header(version, alignment, metadata, tensors)


def _found(guess: str | None, head: bytes) -> str:
    if not head:
        return "an empty file"
    return f"{guess}, starting with {head[:8]!r}" if guess else f"starts with {head[:8]!r}"


def _version(cursor: Cursor) -> int:
    source = cursor.source
    head = source.read(0, min(64, source.size))
    if not head.startswith(MAGIC):
        guess = looks_like(head)
        raise GgufError(
            f"{source.path.name} is not a GGUF file.",
            found=_found(guess, head),
            expected=f"a file that starts with {MAGIC!r}",
            where=source.path,
            fix="name a .gguf file" if head else "download the file again",
        )
    cursor.skip(len(MAGIC), "the magic number")
    version = int(cursor.number(_U32, "the version"))
    if version in VERSIONS:
        return version
    big_endian = int.from_bytes(version.to_bytes(4, "little"), "big")
    if big_endian <= max(VERSIONS):
        found, fix = f"a big-endian file, version {big_endian}", "get the little-endian file"
    elif version > max(VERSIONS):
        found, fix = f"version {version}", "the file is corrupt, or newer than this reader"
    else:
        found, fix = f"version {version}", "convert the model again with a current llama.cpp"
    raise GgufError(
        f"{source.path.name} is a GGUF file of a kind that is not handled.",
        found=found,
        expected="little-endian, version 2 or 3",
        where=source.place(len(MAGIC)),
        fix=fix,
    )


def _counts(cursor: Cursor) -> tuple[int, int]:
    tensor_count = cursor.count("the number of tensors")
    key_count = cursor.count("the number of metadata keys")
    for count, limit, least, noun in (
        (tensor_count, MAX_TENSORS, _TENSOR_BYTES, "tensors"),
        (key_count, MAX_KEYS, _PAIR_BYTES, "metadata keys"),
    ):
        if count > limit or count * least > cursor.remaining:
            cursor.fail(
                f"{cursor.source.path.name} claims an impossible number of {noun}.",
                found=f"{count} {noun}, {cursor.remaining} bytes left",
                expected=f"at most {min(limit, cursor.remaining // least)}",
                fix="the file is corrupt; download it again",
            )
    return tensor_count, key_count


def _require_whole(source: Source, metadata: dict[str, Value]) -> None:
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedModelError(
            f"{source.path.name} is one part of a model split into several files.",
            found=f"split.count = {parts}",
            expected="a model in one file",
            where=f"{source.path}, metadata key 'split.count'",
            fix="merge the parts with llama.cpp's `llama-gguf-split --merge`",
        )


def _alignment(cursor: Cursor, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    sound = isinstance(alignment, int) and not isinstance(alignment, bool)
    if not sound or alignment % 8 or not 0 < alignment <= MAX_ALIGNMENT:  # type: ignore
        raise GgufError(
            f"{cursor.source.path.name} has an impossible alignment.",
            found=alignment if not isinstance(alignment, GgufArray) else "an array",
            expected=f"a multiple of 8, from 8 to {MAX_ALIGNMENT}",
            where=f"{cursor.source.path}, metadata key 'general.alignment'",
            fix="the file is corrupt, or was converted by a faulty tool",
        )
    return int(alignment)  # type: ignore


def _tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        cursor.what = f"description of tensor number {index}"
        start = cursor.position
        info = _tensor_info(cursor, alignment)
        if info.name in tensors:
            cursor.position = start
            cursor.fail(
                f"{cursor.source.path.name} has the tensor {info.name!r} twice.",
                expected="every name once",
                fix="the file is corrupt, or was edited by a faulty tool",
            )
        tensors[info.name] = info
    base = -(-cursor.position // alignment) * alignment
    placed = {
        name: TensorInfo(name, info.type, info.dims, base + info.offset, info.nbytes)
        for name, info in tensors.items()
    }
    _require_places(cursor.source, placed)
    return placed


def _tensor_info(cursor: Cursor, alignment: int) -> TensorInfo:
    """One description, with the offset still counted from the start of the data."""
    name = cursor.text(MAX_KEY_BYTES, "a tensor's name")
    cursor.what = f"description of tensor {name!r}"
    dimensions = int(cursor.number(_U32, "the number of dimensions"))
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        cursor.position -= 4
        cursor.fail(
            f"The tensor {name!r} has an impossible number of dimensions.",
            found=dimensions,
            expected=f"1 to {MAX_DIMENSIONS}",
            fix="the file is corrupt; download it again",
        )
    start = cursor.position
    dims = tuple(cursor.count("a dimension") for _ in range(dimensions))
    kind = _tensor_type(cursor, name)
    offset = cursor.count("a tensor's offset")
    problem = None
    if not all(dims) or math.prod(dims) >= 1 << 63:
        problem, expected = "an impossible shape", "dimensions above 0 and fewer than 2^63 values"
    elif dims[0] % kind.block:
        problem, expected = "rows that are no whole blocks", f"a multiple of {kind.block} values"
    if problem is not None:
        cursor.position = start
        cursor.fail(
            f"The tensor {name!r} of type {kind.name} has {problem}.",
            found=f"dimensions {list(dims)}",
            expected=expected,
            fix="the file is corrupt; download it again",
        )
    if offset % alignment:
        cursor.position -= 8
        cursor.fail(
            f"The tensor {name!r} does not start at the file's alignment.",
            found=f"offset {offset}",
            expected=f"a multiple of {alignment}",
            fix="the file is corrupt, or was edited by a faulty tool",
        )
    return TensorInfo(name, kind, dims, offset, math.prod(dims) // kind.block * kind.nbytes)


def _tensor_type(cursor: Cursor, name: str) -> TensorType:
    number = int(cursor.number(_U32, "a tensor's type"))
    if number in TENSOR_TYPES:
        return TENSOR_TYPES[number]
    raise UnsupportedModelError(
        f"The tensor {name!r} is of a type that is not handled.",
        found=OTHER_TENSOR_TYPES.get(number, f"the unknown type number {number}"),
        expected="one of " + ", ".join(kind.name for kind in TENSOR_TYPES.values()),
        where=cursor.source.place(cursor.position - 4, cursor.what),
        fix="use the same model in one of these types",
    )


def _require_places(source: Source, tensors: dict[str, TensorInfo]) -> None:
    """Every tensor's data lies inside the file and apart from the others'."""
    end, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        place = source.place(info.offset, f"data of tensor {info.name!r}")
        if info.offset + info.nbytes > source.size:
            left = max(0, source.size - info.offset)
            raise GgufError(
                f"{source.path.name} ends before its tensor {info.name!r} does.",
                found=f"a file of {source.size} bytes, {left} of them for this tensor",
                expected=f"{info.nbytes} bytes at {info.offset}",
                where=place,
                fix="the file is cut short or corrupt; download it again",
            )
        if info.offset < end:
            raise GgufError(
                f"The tensors {before!r} and {info.name!r} overlap.",
                found=f"{before!r} ends at byte {end}, {info.name!r} starts at {info.offset}",
                expected="tensors apart from each other",
                where=place,
                fix="the file is corrupt; download it again",
            )
        end, before = info.offset + info.nbytes, info.name
