"""Constant tensors of an ONNX file: what they are and where, without their data.

Field numbers and element types are those of `TensorProto` in onnx.proto (ONNX 1.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnout.bundle.protobuf import BYTES, VARINT, Walker, signed

MAX_RANK = 64
MAX_EXTERNAL_KEYS = 64
MAX_TENSOR_BYTES = 1 << 62
# Packed numbers of more bytes than this are taken to be as many as are needed.
_MOST_COUNTED = 1 << 20
# TensorProto's fields for numbers, and the bytes of one (None: they differ).
_VALUES: Mapping[int, int | None] = {4: 4, 5: None, 7: None, 10: 8, 11: None}
_KEYS = frozenset({"location", "offset", "length", "checksum"})
_PREPACKED = "prepacked"

# TensorProto.DataType: name and bits of one element (None: no fixed size).
ELEMENT_TYPES: Mapping[int, tuple[str, int | None]] = {
    0: ("undefined", None),
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", None),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8e4m3fn", 8),
    18: ("float8e4m3fnuz", 8),
    19: ("float8e5m2", 8),
    20: ("float8e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4e2m1", 4),
    24: ("float8e8m0", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
    27: ("float6e2m3", 6),
    28: ("float6e3m2", 6),
}


@dataclass(frozen=True, slots=True)
class ExternalRange:
    """Bytes `[offset, offset + length)` of the file `location`, relative to the graph's folder."""

    location: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Initializer:
    """A constant tensor. `nbytes` follows from shape and type (the payload's size for strings).

    `origin` is "initializer", "sparse", or "constant" for the value of a `Constant` node;
    `depth` is 0 in the main graph, and counts the graphs around it elsewhere. `flaw` says what
    keeps onnxruntime from loading it where something reads it, "" for nothing.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    external: ExternalRange | None
    origin: str = "initializer"
    depth: int = 0
    flaw: str = ""


@dataclass
class _Tensor:
    name: str = ""
    data_type: int = 0
    dims: list[int] = field(default_factory=list)
    raw: int | None = None
    strings: int = 0
    location: int = 0
    external: dict[str, str] = field(default_factory=dict)
    values: int = 0  # in the fields for data that is neither raw nor text


def read_tensor(
    walker: Walker, start: int, end: int, *, depth: int, origin: str, name: str = ""
) -> Initializer:
    """The tensor `[start, end)` of the file; `name` where it has none. Raises `GraphError`."""
    raw = _fields(walker, start, end)
    known = ELEMENT_TYPES.get(raw.data_type)
    dtype, bits = known or (f"type {raw.data_type}", None)
    elements = 1
    for dim in raw.dims:
        elements *= dim
        if dim < 0 or elements > MAX_TENSOR_BYTES:
            walker.fail(start, found=f"shape {raw.dims[:8]}", expected="a possible shape")
    nbytes = raw.strings + (raw.raw or 0) if bits is None else -(-elements * bits // 8)
    external, flaw = None, ""
    if raw.location == 1:
        external = _range(walker, raw, nbytes, start)
        nbytes = external.length if bits is None else nbytes
        flaw = _unknown_key(raw)
    elif raw.raw is None:
        flaw = _too_few(raw, bits, elements)
    elif bits is not None and raw.raw != nbytes:
        walker.fail(
            start,
            found=f"{raw.raw} bytes of data for {dtype}{raw.dims[:8]}",
            expected=f"{nbytes} bytes",
        )
    return Initializer(
        raw.name or name, dtype, tuple(raw.dims), nbytes, external, origin, depth, flaw
    )


def _unknown_key(tensor: _Tensor) -> str:
    for key in tensor.external:
        if key not in _KEYS and not key.startswith(_PREPACKED):
            return f"a key {key[:40]!r} of external data, which is unknown"
    return ""


def _too_few(tensor: _Tensor, bits: int | None, elements: int) -> str:
    if bits is None or bits < 8:
        return ""  # text, and numbers of which several share one
    if tensor.values >= elements:
        return ""
    return f"{tensor.values} numbers of {elements}"


def _fields(walker: Walker, start: int, end: int) -> _Tensor:
    tensor = _Tensor()
    for number, wire, a, b in walker.fields(start, end):
        if number == 1:
            tensor.dims += [signed(a)] if wire == VARINT else _packed(walker, a, b)
            bound_rank(walker, a, len(tensor.dims))
        elif (number, wire) == (2, VARINT):
            tensor.data_type = a
        elif number in _VALUES:
            tensor.values += _count(walker, a, b, _VALUES[number]) if wire == BYTES else 1
        elif (number, wire) == (6, BYTES):
            tensor.strings += b - a
        elif (number, wire) == (8, BYTES):
            tensor.name = walker.text(a, b)
        elif (number, wire) == (9, BYTES):
            tensor.raw = b - a
        elif (number, wire) == (13, BYTES):
            _entry(walker, a, b, tensor.external)
        elif (number, wire) == (14, VARINT):
            tensor.location = a
    return tensor


def _count(walker: Walker, start: int, end: int, width: int | None) -> int:
    """How many packed numbers there are; the bytes of one end with a byte below 128."""
    if width is not None:
        return (end - start) // width
    if end - start > _MOST_COUNTED:
        return end - start
    return sum(byte < 0x80 for byte in walker.read(start, end))


def bound_rank(walker: Walker, at: int, rank: int) -> None:
    """Refuse shapes of more dimensions than any tensor has."""
    if rank > MAX_RANK:
        walker.fail(at, found="more dimensions", expected=f"at most {MAX_RANK}")


def _packed(walker: Walker, start: int, end: int) -> list[int]:
    values = []
    while start < end:
        value, start = walker.varint(start, end)
        values.append(signed(value))
        if len(values) > MAX_RANK:
            break
    return values


def _entry(walker: Walker, start: int, end: int, entries: dict[str, str]) -> None:
    if len(entries) >= MAX_EXTERNAL_KEYS:
        walker.fail(start, found="more keys", expected=f"at most {MAX_EXTERNAL_KEYS}")
    key = value = ""
    for number, wire, a, b in walker.fields(start, end):
        if (number, wire) == (1, BYTES):
            key = walker.text(a, b)
        elif (number, wire) == (2, BYTES):
            value = walker.text(a, b)
    entries[key] = value


def _range(walker: Walker, tensor: _Tensor, nbytes: int, at: int) -> ExternalRange:
    location = tensor.external.get("location", "")
    if not location:
        walker.fail(
            at,
            found=f"external data of {tensor.name!r} without a location",
            expected="a file name",
        )
    numbers = {"offset": 0, "length": nbytes}
    for key in numbers:
        text = tensor.external.get(key)
        if text is None:
            continue
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            walker.fail(
                at, found=f"{key} {text[:40]!r} of {tensor.name!r}", expected="a number of bytes"
            )
        numbers[key] = int(text)
    if numbers["length"] == 0 and nbytes:
        numbers["length"] = nbytes  # ONNX: 0 and absent both mean the rest that it needs
    return ExternalRange(location, numbers["offset"], numbers["length"])
