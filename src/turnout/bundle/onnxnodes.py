"""Nodes whose attributes tell something about a bundle, read from their spans in an ONNX file.

Field numbers are those of `AttributeProto` in onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from turnout.bundle.protobuf import BYTES, VARINT, Walker, signed

EP_CONTEXT = "EPContext"
PRODUCT = "MatMulNBits"

_NAME, _INT, _TEXT = 1, 3, 4
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EpContext:
    """An `EPContext` node: what an EP compiled.

    `cache` is the binary's path relative to the graph (None when it is embedded, then
    `embedded_bytes` is its size, and `embedded_at` the byte of the file at which it begins).
    Defaults are those of the operator's schema.
    """

    name: str
    source: str = ""
    cache: str | None = None
    embedded_bytes: int = 0
    embedded_at: int = 0
    embed_mode: int = 1
    main_context: int = 1
    partition_name: str = ""


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
        embedded_at=cache[0] if cache and embed != 0 else 0,
        embed_mode=embed,
        main_context=numbers.get("main_context", 1),
        partition_name=_text(walker, texts.get("partition_name")),
    )


def read_product(walker: Walker, attributes: Iterable[Span]) -> Product:
    """The `MatMulNBits` node with these attributes. Raises `GraphError`."""
    numbers, _ = _values(walker, attributes)
    known = {key: numbers[key] for key in Product.__slots__ if key in numbers}
    return Product(**known)


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
