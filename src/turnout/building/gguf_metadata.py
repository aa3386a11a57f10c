"""Reads the metadata of a GGUF header: pairs of a key and a value of a stated type.

Scalars and strings are read, arrays are measured and left in the file. Loops that a small file
could make long are capped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.building.gguf_source import Cursor, Source
from turnout.building.gguf_types import ARRAY, BOOL, SCALARS, STRING, VALUE_NAMES
from turnout.errors import GgufError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Far above any model in use; low enough that a hostile file costs a second, not an hour.
MAX_STRINGS = 1 << 23  # strings and nested arrays inside arrays, of the whole file
MAX_DEPTH = 4
MAX_KEY_BYTES = (1 << 16) - 1  # the format's own limit
MAX_TEXT_BYTES = 1 << 24
MAX_ARRAY_BYTES = 1 << 28  # of an array that is asked for

_U32 = struct.Struct("<I")
_LAYOUTS = {number: struct.Struct("<" + kind.code) for number, kind in SCALARS.items()}


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


def read_metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    """The next `count` pairs, in the file's order. Raises `GgufError`."""
    return _Metadata(cursor).read(count)


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
