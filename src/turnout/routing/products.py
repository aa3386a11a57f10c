"""Products of quantized weights in a graph: what the CPU EP needs to compute them exactly.

At accuracy level 4 the CPU EP rounds activations to 8 bits. The session option
`mlas.qnbit.force_fp32` undoes that only on x86, for 4-bit weights in blocks of 32; any other
product is exact only from weights that were not packed for its kernel (measured on onnxruntime
1.32; onnxruntime pull request 31723 says the same).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from turnout.bundle.protobuf import BYTES, VARINT, Walker
from turnout.errors import GraphError

_PRODUCT = "MatMulNBits"
_INT8_LEVEL = 4
_FORCED_BITS, _FORCED_BLOCK = 4, 32

# onnx.proto: ModelProto.graph, GraphProto.node, NodeProto.op_type and .attribute,
# AttributeProto.name and .i
_GRAPH, _NODE, _OP_TYPE, _ATTRIBUTE, _NAME, _INT = 7, 1, 4, 5, 1, 3


def needs_unpacked(path: Path, platform: str) -> bool:
    """Whether the graph at `path` has a product that is exact only from unpacked weights.

    `platform` is the catalog's `system-machine` word. Reads the header only. Raises `GraphError`.
    """
    try:
        with path.open("rb", buffering=0) as file:
            walker = Walker(file, path.stat().st_size, path)
            return any(_needs(facts, platform) for facts in _products(walker))
    except OSError as error:
        raise GraphError(f"Cannot read {path}: {error.strerror or error}.", where=path) from error


def _needs(facts: Mapping[str, int], platform: str) -> bool:
    if facts.get("accuracy_level", 0) != _INT8_LEVEL:
        return False
    forced = (facts.get("bits", 4), facts.get("block_size")) == (_FORCED_BITS, _FORCED_BLOCK)
    return not (forced and platform.endswith("-x86_64"))


def _products(walker: Walker) -> Iterator[Mapping[str, int]]:
    """The number attributes of every product in the graph itself."""
    for number, wire, start, end in walker.fields(0, walker.size):
        if (number, wire) != (_GRAPH, BYTES):
            continue
        for inner, kind, a, b in walker.fields(start, end):
            facts = _product(walker, a, b) if (inner, kind) == (_NODE, BYTES) else None
            if facts is not None:
                yield facts


def _product(walker: Walker, start: int, end: int) -> dict[str, int] | None:
    """The number attributes of a node that is such a product, None for any other node."""
    attributes: list[tuple[int, int]] = []
    is_product = False
    for number, wire, a, b in walker.fields(start, end):
        if (number, wire) == (_OP_TYPE, BYTES):
            is_product = walker.text(a, b) == _PRODUCT
        elif (number, wire) == (_ATTRIBUTE, BYTES):
            attributes.append((a, b))
    if not is_product:
        return None
    facts = {}
    for first, last in attributes:
        name, value = "", 0
        for number, wire, a, b in walker.fields(first, last):
            if (number, wire) == (_NAME, BYTES):
                name = walker.text(a, b)
            elif (number, wire) == (_INT, VARINT):
                value = a
        facts[name] = value
    return facts
