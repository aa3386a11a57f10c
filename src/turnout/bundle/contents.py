"""Equality of graphs and tensors by content, read from files without running anything.

A graph's digest is built from its inputs onwards: every value is named by how it is computed,
so that the names of nodes, tensors and values inside make no difference, and neither does the
order in which the nodes are written. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnout.bundle.bundle import Bundle
from turnout.bundle.layouts import Stage
from turnout.bundle.onnxheader import MAX_NESTING, value_info
from turnout.bundle.onnxtensors import read_tensor
from turnout.bundle.protobuf import BYTES, Walker, signed
from turnout.errors import GraphError

# The SHA-256, in hex, of `length` bytes from `offset` of a file.
HashRange = Callable[[Path, int, int], str]
_CHUNK = 1 << 20
# What each value is, by name, the inner graphs' in front of the outer ones'.
Values = ChainMap[str, bytes]
# Payloads of a TensorProto in other fields than raw data: float, int32, string, int64, double,
# uint64. Equal numbers in another field count as different.
_TYPED = frozenset({4, 5, 6, 7, 10, 11})
_DOC = 13  # doc_string of an attribute


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A constant tensor and the bytes of it: `length` from `offset` of the file `path`.

    `inline` ones are inside the graph file; `typed` ones are there in a form of their own,
    which is equal only to the same form. `nbytes` is what its numbers take. `name` is empty for
    constants that have none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    length: int
    inline: bool
    typed: bool
    nbytes: int

    def content(self, hash_range: HashRange) -> str:
        """A digest of type, shape and bytes. Raises `GraphError` where they cannot be read."""
        payload = hash_range(self.path, self.offset, self.length)
        return _mix("tensor", self.dtype, str(self.shape), str(self.typed), payload).hex()


def sha256_range(path: Path, offset: int, length: int) -> str:
    """The SHA-256, in hex, of a range of a file, read a megabyte at a time.

    Raises `GraphError` where the file cannot be read, or ends too early.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            while length:
                chunk = file.read(min(length, _CHUNK))
                if not chunk:
                    raise GraphError(
                        f"{path} ends within a tensor.",
                        expected=f"{length} more bytes",
                        where=path,
                        fix="fetch or build the bundle again",
                    )
                digest.update(chunk)
                length -= len(chunk)
    except OSError as error:
        raise GraphError(f"Cannot read {path}: {error.strerror or error}.", where=path) from error
    return digest.hexdigest()


def stored_tensors(bundle: Bundle, stage: Stage) -> tuple[StoredTensor, ...]:
    """Every constant tensor of a stage's graph, those of graphs inside it included.

    Raises `GraphError` for what cannot be read or leads out of the bundle.
    """
    with _opened(bundle, stage) as reader:
        return tuple(reader.tensors())


def graph_digest(bundle: Bundle, stage: Stage, token: Callable[[StoredTensor], str]) -> str:
    """A digest of what a stage's graph computes; `token` names the contents of a tensor.

    Inputs and outputs count by name, type and shape; opsets and functions count as written.
    Raises `GraphError` for what cannot be read, or is no graph in order.
    """
    with _opened(bundle, stage) as reader:
        return reader.digest(token)


def equal_graphs(
    bundle: Bundle, one: Stage, other: Stage, hash_range: HashRange = sha256_range
) -> bool:
    """Whether two stages' graphs compute the same from the same weights.

    Names of files, graphs, nodes and inner values make no difference. Weights are read only
    where both do not use the identical range of a file, and bytes of the same length besides.
    A graph that an EP compiled is equal to itself alone. Raises `GraphError`.
    """
    first, second = bundle.graph(one), bundle.graph(other)
    if _identity(first.path) == _identity(second.path):
        return bundle.data_folder(one) == bundle.data_folder(other)
    if first.ep_contexts or second.ep_contexts or first.ops != second.ops:
        return False
    if (first.inputs, first.outputs) != (second.inputs, second.outputs):
        return False
    token = _Tokens(stored_tensors(bundle, one), stored_tensors(bundle, other), hash_range)
    return graph_digest(bundle, one, token) == graph_digest(bundle, other, token)


class _Tokens:
    """Names the contents of tensors, reading as few of them as a sure answer takes.

    A range that both graphs use is named by its place, unless another range of that length is
    used by one of them only: equal bytes there would be the same content under two names.
    """

    def __init__(
        self,
        one: tuple[StoredTensor, ...],
        other: tuple[StoredTensor, ...],
        hash_range: HashRange,
    ) -> None:
        self._hash_range = hash_range
        self._places: dict[Path, tuple[int, int]] = {}
        apart = {self._place(item) for item in one} ^ {self._place(item) for item in other}
        self._read = {place[3] for place in apart}

    def __call__(self, item: StoredTensor) -> str:
        if item.length in self._read:
            return item.content(self._hash_range)
        return f"{item.dtype} {item.shape} {self._place(item)}"

    def _place(self, item: StoredTensor) -> tuple[int, int, int, int]:
        if item.path not in self._places:
            self._places[item.path] = _identity(item.path)
        return (*self._places[item.path], item.offset, item.length)


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise GraphError(
            f"Cannot read {path}: {error.strerror or error}.",
            where=path,
            fix="fetch or build the bundle again",
        ) from error
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _opened(bundle: Bundle, stage: Stage) -> Iterator[_Reader]:
    """A reader of a stage's graph, its file open."""
    # The header's own reader has bounded the file, and said what is wrong with it.
    path = bundle.graph(stage).path
    data = bundle.data_files(stage)
    try:
        with path.open("rb", buffering=0) as file:
            yield _Reader(Walker(file, os.fstat(file.fileno()).st_size, path), data)
    except OSError as error:
        raise GraphError(f"Cannot read {path}: {error.strerror or error}.", where=path) from error


class _Reader:
    def __init__(self, walker: Walker, data: Mapping[str, Path]) -> None:
        self.walker, self.data = walker, data
        self._token: Callable[[StoredTensor], str] = lambda _: ""

    def tensors(self) -> Iterator[StoredTensor]:
        for number, wire, a, b in self.walker.fields(0, self.walker.size):
            if (number, wire) == (7, BYTES):
                yield from self._tensors_of(a, b, 0)

    def digest(self, token: Callable[[StoredTensor], str]) -> str:
        self._token = token
        opsets: list[bytes] = []
        functions: list[bytes] = []
        graphs: list[bytes] = []
        for number, wire, a, b in self.walker.fields(0, self.walker.size):
            if wire != BYTES:
                continue
            if number == 8:
                opsets.append(self.walker.read(a, b))
            elif number in {20, 25}:
                functions.append(self._raw(a, b))
            elif number == 7:
                graphs.append(self._graph(a, b, ChainMap(), 0))
        return _mix("model", *sorted(opsets), "", *sorted(functions), "", *graphs).hex()

    def _tensors_of(self, start: int, end: int, depth: int) -> Iterator[StoredTensor]:
        """Tensors of the graph in that span."""
        self._bound(start, depth)
        for number, wire, a, b in self.walker.fields(start, end):
            if wire == BYTES and number == 5:
                yield self._tensor(a, b)
            elif wire == BYTES and number == 15:
                yield from self._sparse(a, b)
            elif wire == BYTES and number == 1:
                yield from self._tensors_of_node(a, b, depth)

    def _tensors_of_node(self, start: int, end: int, depth: int) -> Iterator[StoredTensor]:
        output = ""
        for number, wire, a, b in self.walker.fields(start, end):
            if (number, wire) == (2, BYTES) and not output:
                output = self.walker.text(a, b)
            elif (number, wire) == (5, BYTES):
                for inner, inner_wire, c, d in self.walker.fields(a, b):
                    if inner_wire != BYTES:
                        continue
                    if inner in {6, 11}:
                        yield from self._tensors_of(c, d, depth + 1)
                    elif inner in {5, 10}:
                        yield self._tensor(c, d, output)
                    elif inner in {22, 23}:
                        yield from self._sparse(c, d)

    def _sparse(self, start: int, end: int) -> Iterator[StoredTensor]:
        for number, wire, a, b in self.walker.fields(start, end):
            if wire == BYTES and number in {1, 2}:
                yield self._tensor(a, b)

    def _tensor(self, start: int, end: int, name: str = "") -> StoredTensor:
        known = read_tensor(self.walker, start, end, depth=0, origin="initializer", name=name)
        if known.external is not None:
            place = known.external
            path = self.data[place.location]
            return StoredTensor(
                known.name, known.dtype, known.shape, path, place.offset, place.length,
                inline=False, typed=False, nbytes=known.nbytes,
            )  # fmt: skip
        span, typed = (start, start), False
        for number, wire, a, b in self.walker.fields(start, end):
            if (number, wire) == (9, BYTES) and not typed:
                span = (a, b)
            elif number in _TYPED:
                # Numbers may be spread over several fields: the whole message stands for them.
                span, typed = (start, end), True
        offset, length = span[0], span[1] - span[0]
        return StoredTensor(
            known.name, known.dtype, known.shape, self.walker.where, offset, length,
            inline=True, typed=typed, nbytes=known.nbytes,
        )  # fmt: skip

    def _named(self, item: StoredTensor) -> bytes:
        if not item.typed:
            return _mix("tensor", self._token(item))
        parts: list[bytes | str] = [item.dtype, str(item.shape)]
        for number, wire, a, b in self.walker.fields(item.offset, item.offset + item.length):
            if number in _TYPED or number == 9:
                parts += [str(number), self._raw(a, b) if wire == BYTES else str(a)]
        return _mix("typed tensor", *parts)

    def _graph(self, start: int, end: int, outer: Values, depth: int) -> bytes:
        """The digest of a graph; `outer` names the values of the graphs around it."""
        self._bound(start, depth)
        spans: dict[int, list[tuple[int, int]]] = {1: [], 5: [], 11: [], 12: [], 14: [], 15: []}
        for number, wire, a, b in self.walker.fields(start, end):
            if wire == BYTES and number in spans:
                spans[number].append((a, b))
        values = outer.new_child(self._constants(spans[5], spans[15]))
        inputs: list[bytes] = []
        for a, b in spans[11]:
            name, digest = self._value(a, b, index=None if depth == 0 else len(inputs))
            # An initializer of an input's name is what it is where none is given.
            values[name] = _mix("input", digest, values.maps[0].get(name, b""))
            inputs.append(values[name])
        for a, b in spans[1]:
            self._node(a, b, values, depth)
        outputs: list[bytes] = []
        for a, b in spans[12]:
            name, digest = self._value(a, b, index=None if depth == 0 else len(outputs))
            outputs.append(_mix(digest, self._known(values, name, a)))
        annotations = sorted(self._raw(a, b) for a, b in spans[14])
        return _mix("graph", *inputs, "", *outputs, "", *annotations)

    def _constants(
        self, tensors: list[tuple[int, int]], sparse: list[tuple[int, int]]
    ) -> dict[str, bytes]:
        found = {}
        for a, b in tensors:
            item = self._tensor(a, b)
            found[item.name] = self._named(item)
        for a, b in sparse:
            parts = list(self._sparse(a, b))
            name = parts[0].name if parts else ""
            found[name] = _mix("sparse", *(self._named(part) for part in parts))
        return found

    def _value(self, start: int, end: int, index: int | None) -> tuple[str, bytes]:
        """An input's or output's name, and a digest of what it is; inner ones go by `index`."""
        info = value_info(self.walker, start, end)
        called = info.name if index is None else str(index)
        return info.name, _mix("value", called, info.dtype, str(info.shape))

    def _node(self, start: int, end: int, values: Values, depth: int) -> None:
        walker = self.walker
        read: list[bytes] = []
        written: list[str] = []
        attributes: list[bytes] = []
        texts = {4: "", 7: "", 8: ""}  # op_type, domain, overload
        for number, wire, a, b in walker.fields(start, end):
            if wire != BYTES:
                continue
            if number == 1:
                name = walker.text(a, b)
                read.append(self._known(values, name, a) if name else b"")
            elif number == 2:
                written.append(walker.text(a, b))
            elif number == 5:
                attributes.append(self._attribute(a, b, values, depth))
            elif number in texts:
                texts[number] = walker.text(a, b)
        if texts[7] == "ai.onnx":
            texts[7] = ""
        digest = _mix("node", *texts.values(), *read, "", *sorted(attributes), str(len(written)))
        for index, name in enumerate(written):
            values[name] = _mix(digest, str(index))

    def _attribute(self, start: int, end: int, values: Values, depth: int) -> bytes:
        parts: list[bytes | str] = []
        name = ""
        for number, wire, a, b in self.walker.fields(start, end):
            if number == _DOC:
                continue
            if number == 1 and wire == BYTES:
                name = self.walker.text(a, b)
            elif wire == BYTES and number in {6, 11}:
                parts += [str(number), self._graph(a, b, values, depth + 1)]
            elif wire == BYTES and number in {5, 10}:
                parts += [str(number), self._named(self._tensor(a, b))]
            elif wire == BYTES and number in {22, 23}:
                parts += [str(number), *(self._named(item) for item in self._sparse(a, b))]
            else:
                parts += [str(number), self._raw(a, b) if wire == BYTES else str(signed(a))]
        return _mix("attribute", name, *parts)

    def _known(self, values: Values, name: str, at: int) -> bytes:
        if name not in values:
            self.walker.fail(
                at, found=f"the value {name[:60]!r} before it is made", expected="nodes in order"
            )
        return values[name]

    def _raw(self, start: int, end: int) -> bytes:
        """A digest of the span, whatever its size."""
        digest = hashlib.sha256()
        while start < end:
            stop = min(start + _CHUNK, end)
            digest.update(self.walker.read(start, stop))
            start = stop
        return digest.digest()

    def _bound(self, at: int, depth: int) -> None:
        if depth > MAX_NESTING:
            self.walker.fail(at, found="deeper nesting", expected=f"at most {MAX_NESTING} levels")


def _mix(*parts: bytes | str) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()
