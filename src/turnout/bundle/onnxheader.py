"""What an ONNX header says, read by walking its protobuf messages over every payload.

Field numbers and element types are those of onnx.proto (ONNX 1.23, IR version 14).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnout.bundle.onnxnodes import (
    EP_CONTEXT,
    PRODUCT,
    EpContext,
    Product,
    read_ep_context,
    read_product,
)
from turnout.bundle.protobuf import BYTES, VARINT, Walker, signed

MAX_NESTING = 32
MAX_RANK = 64
MAX_EXTERNAL_KEYS = 64
MAX_TENSOR_BYTES = 1 << 62
# The key of what an EP notes in a graph's metadata, before its name.
COMPATIBILITY = "ep_compatibility_info."

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


Shape = tuple[int | str | None, ...] | None


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
    `depth` is 0 in the main graph, and counts the graphs around it elsewhere.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    external: ExternalRange | None
    origin: str = "initializer"
    depth: int = 0


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output. A dimension is a number, a name, or None when nothing is said.

    `dtype` is an element type, or such as `sequence(float32)`; `shape` None when unknown.
    """

    name: str
    dtype: str
    shape: Shape


@dataclass
class _Tensor:
    name: str = ""
    data_type: int = 0
    dims: list[int] = field(default_factory=list)
    raw: int | None = None
    strings: int = 0
    location: int = 0
    external: dict[str, str] = field(default_factory=dict)


class HeaderReader:
    """Collects what `GraphFile` holds while walking one file. Raises `GraphError`."""

    def __init__(self, walker: Walker) -> None:
        self.walker = walker
        self.header: dict[str, int | str] = {"ir_version": 0, "producer": "", "name": ""}
        self.opsets: dict[str, int] = {}
        self.inputs: list[ValueInfo] = []
        self.outputs: list[ValueInfo] = []
        self.initializers: list[Initializer] = []
        self.ops: dict[tuple[str, str], int] = {}
        self.ep_contexts: list[EpContext] = []
        self.products: set[Product] = set()
        self.compatibility: dict[str, str] = {}

    def model(self) -> None:
        """Walk the whole file."""
        walker, graphs = self.walker, 0
        for number, wire, a, b in walker.fields(0, walker.size):
            if (number, wire) == (1, VARINT):
                self.header["ir_version"] = signed(a)
            elif (number, wire) == (2, BYTES):
                self.header["producer"] = walker.text(a, b)
            elif (number, wire) == (7, BYTES):
                graphs += 1
                self._graph(a, b, 0)
            elif (number, wire) == (8, BYTES):
                self._opset(a, b)
            elif (number, wire) == (14, BYTES):
                self._metadata(a, b)
        if not graphs:
            walker.fail(0, found="no graph", expected="an ONNX model")

    def _opset(self, start: int, end: int) -> None:
        domain, version = "", 0
        for number, wire, a, b in self.walker.fields(start, end):
            if (number, wire) == (1, BYTES):
                domain = self.walker.text(a, b)
            elif (number, wire) == (2, VARINT):
                version = signed(a)
        self.opsets[domain] = version

    def _metadata(self, start: int, end: int) -> None:
        """Only what EPs note of the devices that they compiled for."""
        spans = {n: (a, b) for n, wire, a, b in self.walker.fields(start, end) if wire == BYTES}
        if 1 not in spans or 2 not in spans:
            return
        key = self.walker.text(*spans[1])
        if key.startswith(COMPATIBILITY):
            self.compatibility[key.removeprefix(COMPATIBILITY)] = self.walker.text(*spans[2])

    def _graph(self, start: int, end: int, depth: int) -> None:
        walker = self.walker
        _bound(walker, start, depth)
        for number, wire, a, b in walker.fields(start, end):
            if wire != BYTES:
                continue
            if number == 1:
                self._node(a, b, depth)
            elif number == 5:
                self.initializers.append(self.tensor(a, b, depth, "initializer"))
            elif number == 15:
                self._sparse(a, b, depth)
            elif depth == 0 and number == 2:
                self.header["name"] = walker.text(a, b)
            elif depth == 0 and number in {11, 12}:
                (self.inputs if number == 11 else self.outputs).append(value_info(walker, a, b))

    def _node(self, start: int, end: int, depth: int) -> None:
        walker = self.walker
        output = ""
        texts = {3: "", 4: "", 7: ""}  # name, op_type, domain
        attributes: list[tuple[int, int]] = []
        for number, wire, a, b in walker.fields(start, end):
            if wire != BYTES:
                continue
            if number == 5:
                attributes.append((a, b))
            elif number in texts:
                texts[number] = walker.text(a, b)
            elif number == 2 and not output:
                output = walker.text(a, b)
        name, kind, domain = texts.values()
        if domain == "ai.onnx":
            domain = ""  # two spellings of the default domain
        self.ops[domain, kind] = self.ops.get((domain, kind), 0) + 1
        if kind == EP_CONTEXT:
            self.ep_contexts.append(read_ep_context(walker, name, attributes))
            return
        if kind == PRODUCT:
            self.products.add(read_product(walker, attributes))
        for a, b in attributes:
            self._attribute(a, b, depth, output)

    def _attribute(self, start: int, end: int, depth: int, output: str) -> None:
        """Only what holds constants: tensors and graphs."""
        for number, wire, a, b in self.walker.fields(start, end):
            if wire != BYTES:
                continue
            if number in {6, 11}:
                self._graph(a, b, depth + 1)
            elif number in {5, 10}:
                tensor = self.tensor(a, b, depth, "constant", output)
                self.initializers.append(tensor)
            elif number == 22:
                self._sparse(a, b, depth)

    def _sparse(self, start: int, end: int, depth: int) -> None:
        for number, wire, a, b in self.walker.fields(start, end):
            if wire == BYTES and number in {1, 2}:
                self.initializers.append(self.tensor(a, b, depth, "sparse"))

    def tensor(
        self, start: int, end: int, depth: int = 0, origin: str = "initializer", name: str = ""
    ) -> Initializer:
        """The tensor whose message is that span; `name` is that of one without a name."""
        raw = self._tensor_fields(start, end)
        known = ELEMENT_TYPES.get(raw.data_type)
        dtype, bits = known or (f"type {raw.data_type}", None)
        elements = 1
        for dim in raw.dims:
            elements *= dim
            if dim < 0 or elements > MAX_TENSOR_BYTES:
                self.walker.fail(start, found=f"shape {raw.dims[:8]}", expected="a possible shape")
        nbytes = raw.strings + (raw.raw or 0) if bits is None else -(-elements * bits // 8)
        external = None
        if raw.location == 1:
            external = self._range(raw, nbytes, start)
            nbytes = external.length if bits is None else nbytes
        elif raw.raw is not None and bits is not None and raw.raw != nbytes:
            self.walker.fail(
                start,
                found=f"{raw.raw} bytes of data for {dtype}{raw.dims[:8]}",
                expected=f"{nbytes} bytes",
            )
        return Initializer(
            raw.name or name, dtype, tuple(raw.dims), nbytes, external, origin, depth
        )

    def _tensor_fields(self, start: int, end: int) -> _Tensor:
        walker, tensor = self.walker, _Tensor()
        for number, wire, a, b in walker.fields(start, end):
            if number == 1:
                tensor.dims += [signed(a)] if wire == VARINT else self._packed(a, b)
                _bound_rank(walker, a, len(tensor.dims))
            elif (number, wire) == (2, VARINT):
                tensor.data_type = a
            elif (number, wire) == (6, BYTES):
                tensor.strings += b - a
            elif (number, wire) == (8, BYTES):
                tensor.name = walker.text(a, b)
            elif (number, wire) == (9, BYTES):
                tensor.raw = b - a
            elif (number, wire) == (13, BYTES):
                self._entry(a, b, tensor.external)
            elif (number, wire) == (14, VARINT):
                tensor.location = a
        return tensor

    def _packed(self, start: int, end: int) -> list[int]:
        values = []
        while start < end:
            value, start = self.walker.varint(start, end)
            values.append(signed(value))
            if len(values) > MAX_RANK:
                break
        return values

    def _entry(self, start: int, end: int, entries: dict[str, str]) -> None:
        if len(entries) >= MAX_EXTERNAL_KEYS:
            self.walker.fail(start, found="more keys", expected=f"at most {MAX_EXTERNAL_KEYS}")
        key = value = ""
        for number, wire, a, b in self.walker.fields(start, end):
            if (number, wire) == (1, BYTES):
                key = self.walker.text(a, b)
            elif (number, wire) == (2, BYTES):
                value = self.walker.text(a, b)
        entries[key] = value

    def _range(self, tensor: _Tensor, nbytes: int, at: int) -> ExternalRange:
        location = tensor.external.get("location", "")
        if not location:
            self.walker.fail(at, found=f"external data of {tensor.name!r} without a location",
                             expected="a file name")  # fmt: skip
        numbers = {"offset": 0, "length": nbytes}
        for key in numbers:
            text = tensor.external.get(key)
            if text is None:
                continue
            if not text.isascii() or not text.isdigit() or len(text) > 19:
                self.walker.fail(at, found=f"{key} {text[:40]!r} of {tensor.name!r}",
                                 expected="a number of bytes")  # fmt: skip
            numbers[key] = int(text)
        if numbers["length"] == 0 and nbytes:
            numbers["length"] = nbytes  # ONNX: 0 and absent both mean the rest that it needs
        return ExternalRange(location, numbers["offset"], numbers["length"])


class InputsReader(HeaderReader):
    """A reader that steps over nodes and constants."""

    def _node(self, start: int, end: int, depth: int) -> None:
        """Nothing of it is looked at."""

    def _sparse(self, start: int, end: int, depth: int) -> None:
        """Nothing of it is looked at."""

    def tensor(
        self,
        start: int,  # noqa: ARG002
        end: int,  # noqa: ARG002
        depth: int = 0,
        origin: str = "initializer",
        name: str = "",
    ) -> Initializer:
        """A tensor that nothing is said of."""
        return Initializer(name, "", (), 0, None, origin, depth)


def _bound(walker: Walker, at: int, depth: int) -> None:
    if depth > MAX_NESTING:
        walker.fail(at, found="deeper nesting", expected=f"at most {MAX_NESTING} levels")


def _bound_rank(walker: Walker, at: int, rank: int) -> None:
    if rank > MAX_RANK:
        walker.fail(at, found="more dimensions", expected=f"at most {MAX_RANK}")


def value_info(walker: Walker, start: int, end: int) -> ValueInfo:
    """The input or output whose message is that span. Raises `GraphError`."""
    name, dtype = "", "undefined"
    shape: Shape = None
    for number, wire, a, b in walker.fields(start, end):
        if (number, wire) == (1, BYTES):
            name = walker.text(a, b)
        elif (number, wire) == (2, BYTES):
            dtype, shape = _type(walker, a, b, 0)
    return ValueInfo(name, dtype, shape)


def _type(walker: Walker, start: int, end: int, depth: int) -> tuple[str, Shape]:
    _bound(walker, start, depth)
    wrappers = {4: "sequence", 9: "optional"}
    for number, wire, a, b in walker.fields(start, end):
        if wire != BYTES:
            continue
        if number in {1, 8}:
            return _tensor_type(walker, a, b)
        if number in wrappers:
            for inner, inner_wire, c, d in walker.fields(a, b):
                if (inner, inner_wire) == (1, BYTES):
                    return f"{wrappers[number]}({_type(walker, c, d, depth + 1)[0]})", None
            return f"{wrappers[number]}(undefined)", None
        if number == 5:
            return "map", None
    return "undefined", None


def _tensor_type(walker: Walker, start: int, end: int) -> tuple[str, Shape]:
    dtype = "undefined"
    shape: list[int | str | None] | None = None
    for number, wire, a, b in walker.fields(start, end):
        if (number, wire) == (1, VARINT):
            dtype = ELEMENT_TYPES.get(a, (f"type {a}", None))[0]
        elif (number, wire) == (2, BYTES):
            shape = []
            for inner, inner_wire, c, d in walker.fields(a, b):
                if (inner, inner_wire) == (1, BYTES):
                    shape.append(_dimension(walker, c, d))
                _bound_rank(walker, a, len(shape))
    return dtype, None if shape is None else tuple(shape)


def _dimension(walker: Walker, start: int, end: int) -> int | str | None:
    found: int | str | None = None
    for number, wire, a, b in walker.fields(start, end):
        if (number, wire) == (1, VARINT):
            found = signed(a)
        elif (number, wire) == (2, BYTES):
            found = walker.text(a, b) or None
    return found
