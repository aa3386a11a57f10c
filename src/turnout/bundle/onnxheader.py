"""What an ONNX header says, read by walking its protobuf messages over every payload.

Field numbers and element types are those of onnx.proto (ONNX 1.23, IR version 14).
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.bundle.onnxnames import MOST_SHOWN, Names, Scope, as_texts
from turnout.bundle.onnxnodes import (
    ATTENTION,
    EP_CONTEXT,
    PRODUCT,
    EpContext,
    Product,
    read_ep_context,
    read_evicts,
    read_node,
    read_product,
)
from turnout.bundle.onnxtensors import ELEMENT_TYPES, Initializer, bound_rank, read_tensor
from turnout.bundle.protobuf import BYTES, VARINT, Walker, signed

MAX_NESTING = 32
# The key of what an EP notes in a graph's metadata, before its name.
COMPATIBILITY = "ep_compatibility_info."
# A graph of 100,000 nodes has a fifth of that.
MAX_NAMES = 1_000_000
_CONSTANT = ("", "Constant")

Shape = tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output. A dimension is a number, a name, or None when nothing is said.

    `dtype` is an element type, or such as `sequence(float32)`; `shape` None when unknown.
    """

    name: str
    dtype: str
    shape: Shape


class HeaderReader:
    """Collects what `GraphFile` holds while walking one file. Raises `GraphError`."""

    def __init__(self, walker: Walker) -> None:
        self.walker = walker
        self.ir_version: int | None = None
        self.producer = self.name = ""
        self.opsets: dict[str, int] = {}
        self.inputs: list[ValueInfo] = []
        self.outputs: list[ValueInfo] = []
        self.initializers: list[Initializer] = []
        self.ops: dict[tuple[str, str], int] = {}
        self.ep_contexts: list[EpContext] = []
        self.products: set[Product] = set()
        self.compatibility: dict[str, str] = {}
        self.evicts = False
        self.functions: set[str] = set()
        self.reads: frozenset[str] = frozenset()
        self.names = Names()
        self._scopes = [Scope()]
        self._twins: list[bytes] = []
        self._repeated: list[bytes] = []

    def model(self) -> None:
        """Walk the whole file."""
        walker, graphs = self.walker, 0
        for number, wire, a, b in walker.fields(0, walker.size):
            if (number, wire) == (1, VARINT):
                self.ir_version = signed(a)
            elif (number, wire) == (2, BYTES):
                self.producer = walker.text(a, b)
            elif (number, wire) == (7, BYTES):
                graphs += 1
                self._graph(a, b, 0)
            elif (number, wire) == (8, BYTES):
                self._opset(a, b)
            elif (number, wire) == (14, BYTES):
                self._metadata(a, b)
            elif (number, wire) == (25, BYTES):
                self._function(a, b)
        if not graphs:
            walker.fail(0, found="no graph", expected="an ONNX model")
        undefined = sorted(self._close())
        known = {v.name for v in self.inputs} | {t.name for t in self.initializers}
        self.reads = frozenset(
            name for name in known if name.encode("utf-8", "replace") in self._scopes[0].read
        )
        self.names = Names(
            as_texts(undefined[:MOST_SHOWN]), as_texts(self._repeated), as_texts(self._twins)
        )

    def _metadata(self, start: int, end: int) -> None:
        """Only what EPs note of the devices that they compiled for."""
        spans = {n: (a, b) for n, wire, a, b in self.walker.fields(start, end) if wire == BYTES}
        if 1 not in spans or 2 not in spans:
            return
        key = self.walker.text(*spans[1])
        if key.startswith(COMPATIBILITY):
            self.compatibility[key.removeprefix(COMPATIBILITY)] = self.walker.text(*spans[2])

    def _opset(self, start: int, end: int) -> None:
        domain, version = "", 0
        for number, wire, a, b in self.walker.fields(start, end):
            if (number, wire) == (1, BYTES):
                domain = self.walker.text(a, b)
            elif (number, wire) == (2, VARINT):
                version = signed(a)
        self.opsets[domain] = version

    def _graph(self, start: int, end: int, depth: int) -> None:
        walker = self.walker
        _bound(walker, start, depth)
        for number, wire, a, b in walker.fields(start, end):
            if wire != BYTES:
                continue
            if number == 1:
                self._node(a, b, depth)
            elif number == 5:
                self._initializer(a, b, depth)
            elif number == 15:
                self._sparse(a, b, depth)
            elif number in {11, 12}:
                self._end(value_info(walker, a, b), depth, is_input=number == 11)
            elif depth == 0 and number == 2:
                self.name = walker.text(a, b)

    def _initializer(self, start: int, end: int, depth: int) -> None:
        self._keep(read_tensor(self.walker, start, end, depth=depth, origin="initializer"))

    def _keep(self, tensor: Initializer) -> None:
        self.initializers.append(tensor)
        if tensor.origin != "constant":
            self._scopes[-1].constants.add(tensor.name.encode())

    def _end(self, value: ValueInfo, depth: int, *, is_input: bool) -> None:
        """Note an input or an output; those of graphs inside the main one are names alone."""
        name = value.name.encode()
        if is_input:
            self._scopes[-1].input(name)
        else:
            self._scopes[-1].read.add(name)
        if depth == 0:
            (self.inputs if is_input else self.outputs).append(value)

    def _inner(self, start: int, end: int, depth: int) -> None:
        self._scopes.append(Scope())
        self._graph(start, end, depth)
        around = self._close()
        self._scopes.pop()
        self._scopes[-1].read |= around

    def _close(self) -> set[bytes]:
        """End the innermost graph: what it reads of those around it."""
        scope = self._scopes[-1]
        unresolved = scope.close()
        self._twins += scope.twins[: MOST_SHOWN - len(self._twins)]
        self._repeated += scope.repeated[: MOST_SHOWN - len(self._repeated)]
        return unresolved

    def _function(self, start: int, end: int) -> None:
        for number, wire, a, b in self.walker.fields(start, end):
            if (number, wire) == (10, BYTES):
                self.functions.add(self.walker.text(a, b))

    def _node(self, start: int, end: int, depth: int) -> None:
        walker = self.walker
        node = read_node(walker, start, end)
        domain, kind = self._text(node.domain, start), self._text(node.kind, start)
        if domain == "ai.onnx":
            domain = ""  # two spellings of the default domain
        self.ops[domain, kind] = self.ops.get((domain, kind), 0) + 1
        scope = self._scopes[-1]
        if max(len(scope.read), len(scope.made), len(scope.nodes)) > MAX_NAMES:
            walker.fail(start, found="more names", expected=f"at most {MAX_NAMES}")
        if (domain, kind) == _CONSTANT:
            scope.constants.update(node.outputs)
        else:
            scope.node(node.name, node.inputs, node.outputs)
        if kind == EP_CONTEXT:
            name = self._text(node.name, start)
            self.ep_contexts.append(read_ep_context(walker, name, node.attributes))
            return
        if kind == PRODUCT:
            self.products.add(read_product(walker, node.attributes))
        if kind == ATTENTION and not self.evicts:
            self.evicts = read_evicts(walker, node.attributes)
        for a, b in node.attributes:
            self._attribute(a, b, depth, node.outputs)

    def _text(self, data: bytes, at: int) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.walker.fail(at, found="bytes that are no text", expected="UTF-8 text")

    def _attribute(self, start: int, end: int, depth: int, outputs: list[bytes]) -> None:
        """Only what holds constants: tensors and graphs."""
        for number, wire, a, b in self.walker.fields(start, end):
            if wire != BYTES:
                continue
            if number in {6, 11}:
                self._inner(a, b, depth + 1)
            elif number in {5, 10}:
                name = self._text(outputs[0], start) if outputs else ""
                self._keep(
                    read_tensor(self.walker, a, b, depth=depth, origin="constant", name=name)
                )
            elif number == 22:
                self._sparse(a, b, depth)

    def _sparse(self, start: int, end: int, depth: int) -> None:
        for number, wire, a, b in self.walker.fields(start, end):
            if wire == BYTES and number in {1, 2}:
                self._keep(read_tensor(self.walker, a, b, depth=depth, origin="sparse"))


class InputsReader(HeaderReader):
    """A reader that steps over nodes and constants."""

    def _node(self, start: int, end: int, depth: int) -> None:
        """Nothing of it is looked at."""

    def _sparse(self, start: int, end: int, depth: int) -> None:
        """Nothing of it is looked at."""

    def _initializer(self, start: int, end: int, depth: int) -> None:
        """Nothing of it is looked at."""


def _bound(walker: Walker, at: int, depth: int) -> None:
    if depth > MAX_NESTING:
        walker.fail(at, found="deeper nesting", expected=f"at most {MAX_NESTING} levels")


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
                bound_rank(walker, a, len(shape))
    return dtype, None if shape is None else tuple(shape)


def _dimension(walker: Walker, start: int, end: int) -> int | str | None:
    found: int | str | None = None
    for number, wire, a, b in walker.fields(start, end):
        if (number, wire) == (1, VARINT):
            found = signed(a)
        elif (number, wire) == (2, BYTES):
            found = walker.text(a, b) or None
    return found
