"""Reading protobuf messages from a file without loading it.

A walker over spans of the file: a field's payload is a span, and is read only when asked for,
so a message with gigabytes in it costs no more than its structure. Every length is bounded by
the span that holds it before anything is read, and the number of fields by a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import NoReturn

from turnout.errors import GraphError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 8_000_000
MAX_TEXT = 1 << 20
# A header of this size is read in one go; a larger file through a window that moves.
_WHOLE = 4 << 20
_WINDOW = 16 << 10

Field = tuple[int, int, int, int]


class Walker:
    """A read-only view of one open file; `where` names it in errors."""

    def __init__(self, file: FileIO, size: int, where: Path) -> None:
        self.file, self.size, self.where = file, size, where
        self.left = MAX_FIELDS
        self.base, self.window = 0, b""
        self.step = size if size <= _WHOLE else _WINDOW

    def fail(self, offset: int, *, found: str, expected: str) -> NoReturn:
        """Raise a `GraphError` that names the byte."""
        raise GraphError(
            f"{self.where} is not a readable ONNX file.",
            found=found,
            expected=expected,
            where=f"{self.where}, byte {offset}",
            fix="it may be truncated or of another format: fetch or export it again",
        )

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Each field of the message `[start, end)`: number, wire type, and two numbers.

        They are the value and the offset after it for numbers, the payload's span for bytes.
        """
        at = start
        while at < end:
            self.left -= 1
            if self.left < 0:
                self.fail(
                    at, found="more fields than that", expected=f"at most {MAX_FIELDS} fields"
                )
            key_at = at
            key, at = self.varint(at, end)
            number, wire = key >> 3, key & 7
            if number == 0 or number >= 1 << 29:
                self.fail(key_at, found=f"field number {number}", expected="1 to 536870911")
            if wire == BYTES:
                length, at = self.varint(at, end)
                if length > end - at:
                    self.fail(
                        key_at,
                        found=f"a length of {length} bytes where {end - at} are left",
                        expected="a length within the message",
                    )
                yield number, wire, at, at + length
                at += length
            elif wire == VARINT:
                value, at = self.varint(at, end)
                yield number, wire, value, at
            elif wire in {FIXED32, FIXED64}:
                width = 4 if wire == FIXED32 else 8
                if width > end - at:
                    self.fail(
                        key_at, found=f"{end - at} bytes", expected=f"{width} bytes of a number"
                    )
                value = int.from_bytes(self.read(at, at + width), "little")
                at += width
                yield number, wire, value, at
            else:
                self.fail(key_at, found=f"wire type {wire}", expected="0, 1, 2 or 5")

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """The number at `at`, and the offset after it."""
        index = at - self.base
        if 0 <= index < len(self.window) and at < end:
            value = self.window[index]
            if value < 0x80:
                return value, at + 1
        return self._long_varint(at, end)

    def _long_varint(self, start: int, end: int) -> tuple[int, int]:
        value, at = 0, start
        for shift in range(0, 70, 7):
            if at >= end:
                self.fail(start, found="the end of the message", expected="the rest of a number")
            index = at - self.base
            if not 0 <= index < len(self.window):
                self._move(at)
                index = at - self.base
            byte = self.window[index]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            self.fail(start, found="a number of more than ten bytes", expected="at most ten")
        return value & 0xFFFF_FFFF_FFFF_FFFF, at

    def read(self, start: int, end: int) -> bytes:
        """The bytes `[start, end)`; the caller has bounded them."""
        index = start - self.base
        if index >= 0 and end - self.base <= len(self.window):
            return self.window[index : index + end - start]
        if end - start <= self.step:
            self._move(start)
            data = self.window[start - self.base : end - self.base]
        else:
            data = self._load(start, end - start)
        if len(data) != end - start:
            self.fail(
                start + len(data), found="the end of the file", expected=f"{end - start} bytes"
            )
        return data

    def text(self, start: int, end: int) -> str:
        """The span as UTF-8 text of at most a megabyte."""
        if end - start > MAX_TEXT:
            self.fail(
                start, found=f"text of {end - start} bytes", expected=f"at most {MAX_TEXT} bytes"
            )
        try:
            return self.read(start, end).decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(start + error.start, found="bytes that are no text", expected="UTF-8 text")

    def _load(self, offset: int, length: int) -> bytes:
        self.file.seek(offset)
        return self.file.read(length)

    def _move(self, at: int) -> None:
        self.base = at if self.step < self.size else 0
        self.window = self._load(self.base, self.step)
        if not 0 <= at - self.base < len(self.window):
            self.fail(at, found="the end of the file", expected="more bytes")


def signed(value: int) -> int:
    """A varint as the signed 64-bit number it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value
