"""Parses a GGUF header: the counts, the metadata, and the table of tensors.

Written for files that nobody vouches for: each count is compared with the bytes that so
many of the thing take at least, and loops that a small file could make long are capped.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.building.gguf_source import Cursor, Source
from turnout.building.gguf_types import (
    ARRAY,
    BOOL,
    DEFAULT_ALIGNMENT,
    MAGIC,
    OTHER_TENSOR_TYPES,
    SCALARS,
    STRING,
    TENSOR_TYPES,
    VALUE_NAMES,
    VERSIONS,
    TensorType,
    looks_like,
)
from turnout.errors import GgufError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Far above any model in use; low enough that a hostile file costs a second, not an hour.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_STRINGS = 1 << 23  # strings and nested arrays inside arrays, of the whole file
MAX_DEPTH = 4
MAX_KEY_BYTES = (1 << 16) - 1  # the format's own limit
MAX_TEXT_BYTES = 1 << 24
MAX_ARRAY_BYTES = 1 << 28  # of an array that is asked for
MAX_ALIGNMENT = 1 << 16
MAX_DIMENSIONS = 4

_U32 = struct.Struct("<I")
_LAYOUTS = {number: struct.Struct("<" + kind.code) for number, kind in SCALARS.items()}
# The least that a metadata pair and a tensor's description take.
_PAIR_BYTES, _TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class GgufArray:
    """An array of metadata that stays in the file until it is asked for.

    `type` is the format's name of the element type ("STRING", "INT32", "ARRAY", ...);
    `offset` and `nbytes` tell where the elements are.
    """

    key: str
    type: str
    count: int
    offset: int
    nbytes: int
    _source: Source

    def __len__(self) -> int:
        return self.count

    def read(self) -> npt.NDArray[np.generic] | list[str]:
        """The elements: a list of strings, or a 1-D numpy array in the element type.

        Raises `GgufError` for nested arrays, for more than 256 MiB, and for strings that
        are not UTF-8.
        """
        where = self._source.place(self.offset, f"metadata key {self.key!r}")
        if self.type == "ARRAY" or self.nbytes > MAX_ARRAY_BYTES:
            raise GgufError(
                f"The array {self.key!r} cannot be read.",
                found=f"{self.count} elements of type {self.type}, {self.nbytes} bytes",
                expected=f"numbers or strings, at most {MAX_ARRAY_BYTES} bytes",
                where=where,
            )
        data = self._source.read(self.offset, self.nbytes, f"metadata key {self.key!r}")
        if self.type == "STRING":
            return self._strings(data)
        import numpy as np

        kind = next(kind for kind in SCALARS.values() if kind.name == self.type)
        if self.type == "BOOL":
            return np.frombuffer(data, np.bool_)
        values: npt.NDArray[np.generic] = np.frombuffer(data, "<" + kind.code)
        return values

    def _strings(self, data: bytes) -> list[str]:
        unpack = struct.Struct("<Q").unpack_from
        position, strings = 0, []
        try:
            for _ in range(self.count):
                start = position + 8
                position = start + unpack(data, position)[0]
                strings.append(data[start:position].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise GgufError(
                f"Element {len(strings)} of the array {self.key!r} is not UTF-8.",
                found=repr(data[start : min(position, start + 64)]),
                expected="UTF-8 text",
                where=self._source.place(self.offset + start, f"metadata key {self.key!r}"),
                fix="the file is corrupt, or was converted by a faulty tool",
            ) from error
        return strings


Value = str | int | float | bool | GgufArray


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
    metadata = _Metadata(cursor).read(key_count)
    _require_whole(source, metadata)
    alignment = _alignment(cursor, metadata)
    tensors = _tensors(cursor, tensor_count, alignment)
    return Header(version, alignment, metadata, tensors)


def _version(cursor: Cursor) -> int:
    source = cursor.source
    head = source.read(0, min(64, source.size))
    if not head.startswith(MAGIC):
        guess = looks_like(head)
        raise GgufError(
            f"{source.path.name} is not a GGUF file.",
            found=f"{guess}, starting with {head[:8]!r}" if guess else f"starts with {head[:8]!r}",
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


class _Metadata:
    """Reads the key-value pairs, with one budget for everything that takes a loop."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._strings_left = MAX_STRINGS

    def read(self, count: int) -> dict[str, Value]:
        cursor, metadata = self._cursor, dict[str, Value]()
        for index in range(count):
            cursor.what = f"metadata key number {index}"
            start = cursor.position
            key = cursor.text(MAX_KEY_BYTES, "a metadata key")
            if key in metadata:
                cursor.position = start
                cursor.fail(
                    f"{cursor.source.path.name} has the metadata key {key!r} twice.",
                    expected="every key once",
                    fix="the file is corrupt, or was edited by a faulty tool",
                )
            cursor.what = f"metadata key {key!r}"
            metadata[key] = self._value(key, self._type())
        return metadata

    def _type(self) -> int:
        cursor = self._cursor
        start = cursor.position
        kind = int(cursor.number(_U32, "a value's type"))
        if kind not in VALUE_NAMES:
            cursor.position = start
            cursor.fail(
                f"{cursor.source.path.name} has a value of an unknown type.",
                found=f"type {kind}",
                expected="a type from 0 to 12",
                fix="the file is corrupt; download it again",
            )
        return kind

    def _value(self, key: str, kind: int) -> Value:
        cursor = self._cursor
        if kind == STRING:
            return cursor.text(MAX_TEXT_BYTES, "a metadata text")
        if kind == ARRAY:
            return self._array(key)
        value = cursor.number(_LAYOUTS[kind], f"a value of type {VALUE_NAMES[kind]}")
        if kind != BOOL:
            return value
        if value not in {0, 1}:
            cursor.position -= 1
            cursor.fail(
                f"{cursor.source.path.name} has a BOOL that is neither 0 nor 1.",
                found=value,
                fix="the file is corrupt; download it again",
            )
        return bool(value)

    def _array(self, key: str) -> GgufArray:
        cursor = self._cursor
        kind = self._type()
        count = cursor.count("the length of an array")
        start = cursor.position
        self._elements(kind, count, 1)
        nbytes = cursor.position - start
        return GgufArray(key, VALUE_NAMES[kind], count, start, nbytes, cursor.source)

    def _elements(self, kind: int, count: int, depth: int) -> None:
        cursor = self._cursor
        if kind in SCALARS:
            cursor.skip(count * SCALARS[kind].size, f"{count} elements of {SCALARS[kind].name}")
            return
        # Lengths before loops: a string takes 8 bytes or more, an array 12.
        cursor.need(count * (8 if kind == STRING else 12), f"{count} elements")
        self._strings_left -= count
        if self._strings_left < 0 or depth > MAX_DEPTH:
            cursor.fail(
                f"{cursor.source.path.name} has more nested values than any model needs.",
                found=f"{count} elements at depth {depth}",
                expected=f"at most {MAX_STRINGS} elements in all, {MAX_DEPTH} arrays deep",
                fix="the file is corrupt; download it again",
            )
        if kind == STRING:
            cursor.skip_strings(count)
            return
        for _ in range(count):
            inner = self._type()
            self._elements(inner, cursor.count("the length of an array"), depth + 1)


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
