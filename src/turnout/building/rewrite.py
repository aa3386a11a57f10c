"""Rewriting where a graph's external data is, and nothing else.

onnxruntime writes pre-packed weights as further entries of a tensor's external data, which the
packages that author ONNX graphs drop, so the file's own messages are copied field by field, and
only those of external data are written anew. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnout.bundle.onnxheader import MAX_NESTING
from turnout.bundle.onnxtensors import MAX_EXTERNAL_KEYS
from turnout.bundle.protobuf import BYTES, FIXED32, VARINT, Walker
from turnout.errors import GraphError

# Where messages with external data are inside others: by kind of message, the fields to look
# into and the kind that they hold.
_INSIDE: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_NAME, _EXTERNAL = 8, 13
_PREPACKED = "prepacked"


@dataclass(frozen=True, slots=True)
class Place:
    """`length` bytes from `offset` of a file."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """What a kernel made of a tensor: `key` tells the kernel and the content, `blobs` where."""

    key: str
    blobs: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Where a tensor is: a place in the file `location`, and what it was packed into, there too."""

    tensor: str
    location: str
    place: Place
    packed: tuple[PackedWeight, ...] = ()


def read_external(path: Path) -> tuple[ExternalData, ...]:
    """Every tensor of a graph that is outside it, in the order of the file. Raises `GraphError`."""
    found: list[ExternalData] = []

    def keep(item: ExternalData) -> ExternalData:
        found.append(item)
        return item

    _rewritten(path, keep)
    return tuple(found)


def rewrite_external(
    source: Path, target: Path, move: Callable[[ExternalData], ExternalData]
) -> None:
    """Write `target`, which is `source` with every tensor outside it where `move` says.

    Whatever the graph says besides is kept. Raises `GraphError` for a malformed graph, `OSError`
    for a target that cannot be written.
    """
    data = _rewritten(source, move)
    with target.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _rewritten(source: Path, move: Callable[[ExternalData], ExternalData]) -> bytes:
    try:
        with source.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return _Copier(Walker(file, size, source), move).message("model", 0, size, 0)
    except OSError as error:
        raise GraphError(
            f"Cannot read {source}: {error.strerror or error}.", where=source
        ) from error


class _Copier:
    def __init__(self, walker: Walker, move: Callable[[ExternalData], ExternalData]) -> None:
        self.walker, self.move = walker, move

    def message(self, kind: str, start: int, end: int, depth: int) -> bytes:
        """The message in that span, copied, with the external data of tensors in it moved."""
        if depth > 4 * MAX_NESTING:
            self.walker.fail(start, found="deeper nesting", expected=f"{MAX_NESTING} levels")
        if kind == "tensor":
            return self._tensor(start, end)
        inside = _INSIDE[kind]
        parts: list[bytes] = []
        for number, wire, a, b in self.walker.fields(start, end):
            if wire == BYTES and number in inside:
                parts.append(_field(number, self.message(inside[number], a, b, depth + 1)))
            else:
                parts.append(self._copy(number, wire, a, b))
        return b"".join(parts)

    def _copy(self, number: int, wire: int, a: int, b: int) -> bytes:
        if wire == BYTES:
            return _field(number, self.walker.read(a, b))
        if wire == VARINT:
            return _varint(number << 3 | wire) + _varint(a)
        return _varint(number << 3 | wire) + a.to_bytes(4 if wire == FIXED32 else 8, "little")

    def _tensor(self, start: int, end: int) -> bytes:
        entries: list[tuple[str, str]] = []
        name, parts = "", []
        for number, wire, a, b in self.walker.fields(start, end):
            if (number, wire) == (_EXTERNAL, BYTES):
                entries.append(self._entry(a, b))
                if len(entries) > MAX_EXTERNAL_KEYS:
                    self.walker.fail(a, found="more keys", expected=f"{MAX_EXTERNAL_KEYS}")
                continue
            if (number, wire) == (_NAME, BYTES):
                name = self.walker.text(a, b)
            parts.append(self._copy(number, wire, a, b))
        if not entries:
            return b"".join(parts)
        moved = self.move(self._parsed(name, entries, start))
        parts += [_field(_EXTERNAL, entry) for entry in _entries(moved)]
        return b"".join(parts)

    def _entry(self, start: int, end: int) -> tuple[str, str]:
        texts = {1: "", 2: ""}
        for number, wire, a, b in self.walker.fields(start, end):
            if wire == BYTES and number in texts:
                texts[number] = self.walker.text(a, b)
        return texts[1], texts[2]

    def _parsed(self, name: str, entries: list[tuple[str, str]], at: int) -> ExternalData:
        """The entries of a tensor that onnxruntime wrote: it always writes offset and length."""
        known = dict(entries)
        place = Place(*(self._number(known.get(key, ""), at) for key in ("offset", "length")))
        packed = []
        for key, value in entries:
            if key.startswith(_PREPACKED):
                kernel, *blobs = value.split("|")
                packed.append(PackedWeight(kernel, tuple(self._blob(blob, at) for blob in blobs)))
        return ExternalData(name, known.get("location", ""), place, tuple(packed))

    def _blob(self, text: str, at: int) -> Place:
        # offset;length;checksum, the last of which onnxruntime 1.32 neither writes nor reads.
        offset, _, rest = text.partition(";")
        return Place(self._number(offset, at), self._number(rest.partition(";")[0], at))

    def _number(self, text: str, at: int) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            self.walker.fail(at, found=repr(text[:40]), expected="a number of bytes")
        return int(text)


def _entries(item: ExternalData) -> Iterator[bytes]:
    yield _pair("location", item.location)
    yield _pair("offset", str(item.place.offset))
    yield _pair("length", str(item.place.length))
    for index, packed in enumerate(item.packed):
        blobs = (f"{blob.offset};{blob.length};0" for blob in packed.blobs)
        yield _pair(f"{_PREPACKED}_{index}", "|".join((packed.key, *blobs)))


def _pair(key: str, value: str) -> bytes:
    return _field(1, key.encode()) + _field(2, value.encode())


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
