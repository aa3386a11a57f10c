"""Nodes of an ONNX file: their names, and attributes that tell something about a bundle.

Field numbers are those of `NodeProto` and `AttributeProto` in onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from turnout.bundle.protobuf import BYTES, MAX_TEXT, VARINT, Walker, signed

EP_CONTEXT = "EPContext"
PRODUCT = "MatMulNBits"
ATTENTION = "GroupQueryAttention"

_NAME, _INT, _TEXT = 1, 3, 4
Span = tuple[int, int]

# Of a node: 1 inputs, 2 outputs, 3 its name, 4 its kind, 7 the kind's domain.
_ATTRIBUTE = 5
_ATTRIBUTE_KEY = _ATTRIBUTE << 3 | BYTES
# A node of this size is read in one go, so that a graph of 100,000 nodes takes no second.
_SMALL = 4096
_MAX_ENDS = 100_000
_MAX_FILE_NAME = 512


@dataclass(frozen=True, slots=True)
class EpContext:
    """An `EPContext` node: what an EP compiled.

    `cache` is the binary's path relative to the graph (None when it is embedded, then
    `embedded_bytes` is its size, and `embedded_at` where in the graph's file it begins).
    `embedded_name` is the text that is embedded where it may be the name of a file. Defaults are
    those of the operator's schema.
    """

    name: str
    source: str = ""
    cache: str | None = None
    embedded_bytes: int = 0
    embed_mode: int = 1
    main_context: int = 1
    partition_name: str = ""
    embedded_at: int = field(default=0, compare=False)
    embedded_name: str = ""


@dataclass(frozen=True, slots=True)
class Product:
    """What a `MatMulNBits` node, a product with quantized weights, says of its arithmetic.

    `bits` and `block_size` are those of its weights, `accuracy_level` the precision of its
    activations (0: left open, 4: int8). Defaults are those of the operator's schema;
    `block_size` has none, and is 0 where it is missing.
    """

    bits: int = 4
    block_size: int = 0
    accuracy_level: int = 0


@dataclass(slots=True)
class Node:
    """What a node says of itself, as bytes, and where its attributes are in the file."""

    inputs: list[bytes]
    outputs: list[bytes]
    name: bytes
    kind: bytes
    domain: bytes
    attributes: list[Span]


def read_node(walker: Walker, start: int, end: int) -> Node:
    """The node `[start, end)` of the file. Raises `GraphError`."""
    node = _read_small(walker, start, end) if end - start <= _SMALL else None
    return node or _read_large(walker, start, end)


def _read_small(walker: Walker, start: int, end: int) -> Node | None:
    """A node whose keys and lengths are a byte each; None where there are others."""
    data = walker.read(start, end)
    fields: tuple[list[bytes], ...] = ([], [], [], [], [], [], [], [])
    attributes: list[Span] = []
    at, size, count = 0, end - start, 0
    while at + 1 < size:
        key, length = data[at], data[at + 1]
        at += 2
        stop = at + length
        if length > 0x7F or stop > size or key & 7 != BYTES or not 0x08 < key < 0x40:
            return None
        if key == _ATTRIBUTE_KEY:
            attributes.append((start + at, start + stop))
        else:
            fields[key >> 3].append(data[at:stop])
        at = stop
        count += 1
    walker.left -= count
    return _node(fields, attributes) if at == size else None


def _read_large(walker: Walker, start: int, end: int) -> Node:
    fields: tuple[list[bytes], ...] = ([], [], [], [], [], [], [], [])
    attributes: list[Span] = []
    count = 0
    for number, wire, a, b in walker.fields(start, end):
        if wire != BYTES:
            continue
        if number == _ATTRIBUTE:
            attributes.append((a, b))
        elif number < len(fields):
            count += 1
            if b - a > MAX_TEXT:
                walker.fail(a, found=f"text of {b - a} bytes", expected=f"at most {MAX_TEXT}")
            if count > _MAX_ENDS:
                walker.fail(a, found="more inputs", expected=f"at most {_MAX_ENDS}")
            fields[number].append(walker.read(a, b))
    return _node(fields, attributes)


def _node(fields: tuple[list[bytes], ...], attributes: list[Span]) -> Node:
    _, inputs, outputs, name, kind, _, _, domain = fields
    return Node(
        inputs,
        outputs,
        name[-1] if name else b"",
        kind[-1] if kind else b"",
        domain[-1] if domain else b"",
        attributes,
    )


def read_ep_context(walker: Walker, node: str, attributes: Iterable[Span]) -> EpContext:
    """The `EPContext` node of that name with these attributes. Raises `GraphError`."""
    numbers, texts = _values(walker, attributes)
    embed = numbers.get("embed_mode", 1)
    cache = texts.get("ep_cache_context")
    return EpContext(
        name=node,
        source=_text(walker, texts.get("source")),
        cache=walker.text(*cache) if cache and embed == 0 else None,
        embedded_bytes=cache[1] - cache[0] if cache and embed != 0 else 0,
        embed_mode=embed,
        main_context=numbers.get("main_context", 1),
        partition_name=_text(walker, texts.get("partition_name")),
        embedded_at=cache[0] if cache and embed != 0 else 0,
        embedded_name=_file_name(walker, cache) if cache and embed != 0 else "",
    )


def _file_name(walker: Walker, span: Span) -> str:
    if span[1] - span[0] > _MAX_FILE_NAME:
        return ""
    text = walker.read(*span).decode("utf-8", "replace")
    return text if text.isprintable() else ""


def read_product(walker: Walker, attributes: Iterable[Span]) -> Product:
    """The `MatMulNBits` node with these attributes. Raises `GraphError`."""
    numbers, _ = _values(walker, attributes)
    known = {key: numbers[key] for key in Product.__slots__ if key in numbers}
    return Product(**known)


def read_evicts(walker: Walker, attributes: Iterable[Span]) -> bool:
    """Whether an attention node keeps a window of its cache alone. Raises `GraphError`."""
    return _values(walker, attributes)[0].get("sliding_window_cache", 0) == 1


def _values(walker: Walker, attributes: Iterable[Span]) -> tuple[dict[str, int], dict[str, Span]]:
    """The number attributes, and where the texts are, by name."""
    numbers: dict[str, int] = {}
    texts: dict[str, Span] = {}
    for start, end in attributes:
        name = ""
        value: int | None = None
        span: Span | None = None
        for number, wire, a, b in walker.fields(start, end):
            if (number, wire) == (_NAME, BYTES):
                name = walker.text(a, b)
            elif (number, wire) == (_INT, VARINT):
                value = signed(a)
            elif (number, wire) == (_TEXT, BYTES):
                span = (a, b)
        if value is not None:
            numbers[name] = value
        if span is not None:
            texts[name] = span
    return numbers, texts


def _text(walker: Walker, span: Span | None) -> str:
    return walker.text(*span) if span is not None else ""
