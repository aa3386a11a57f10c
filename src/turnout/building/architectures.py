"""Which tensors of a GGUF file are what: a plan of the model, checked before anything is written.

Every tensor of the file has a place in the plan, with the shape that the metadata implies. A
tensor that nothing would consume is an error: a graph that ignored it would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.building import blocks
from turnout.building.matrices import SourceRows, SourceVector
from turnout.errors import GgufError, UnsupportedModelError

if TYPE_CHECKING:
    from turnout.building.gguf import GgufFile, GgufTensor
    from turnout.building.spec import ModelSpec


@dataclass(frozen=True)
class Linear:
    """A matrix [N, K] and its bias [N], if any."""

    weight: SourceRows
    bias: SourceVector | None


@dataclass(frozen=True)
class LayerPlan:
    """One transformer layer. `query_norm` and `key_norm` only where the family has them."""

    attention_norm: SourceVector
    query: Linear
    key: Linear
    value: Linear
    attention_output: Linear
    query_norm: SourceVector | None
    key_norm: SourceVector | None
    feed_forward_norm: SourceVector
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class ModelPlan:
    """The whole model. `head` is None where the output head is the token embedding (tied)."""

    embedding: SourceRows
    layers: tuple[LayerPlan, ...]
    output_norm: SourceVector
    head: Linear | None
    rope_factors: SourceVector | None

    @property
    def tied(self) -> bool:
        """Whether the embedding is the output head, too."""
        return self.head is None


def plan_model(gguf: GgufFile, spec: ModelSpec) -> ModelPlan:
    """Give every tensor of the file its place.

    Raises `GgufError` for a tensor that is missing or contradicts the metadata,
    `UnsupportedModelError` for one that has no place or a type that is not handled.
    """
    shelf = _Shelf(gguf)
    plan = ModelPlan(
        embedding=SourceRows(shelf.matrix("token_embd.weight", spec.vocabulary, spec.hidden)),
        layers=tuple(_layer(shelf, spec, index) for index in range(spec.layers)),
        output_norm=SourceVector(shelf.vector("output_norm.weight", spec.hidden)),
        head=_head(shelf, spec),
        rope_factors=shelf.optional_vector("rope_freqs.weight", spec.head_size // 2),
    )
    shelf.refuse_leftovers(spec)
    return plan


def _head(shelf: _Shelf, spec: ModelSpec) -> Linear | None:
    if "output.weight" not in shelf:
        return None
    return shelf.linear("output", spec.vocabulary, spec.hidden)


def _layer(shelf: _Shelf, spec: ModelSpec, index: int) -> LayerPlan:
    layer = f"blk.{index}"
    queries, keys = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    order = spec.head_size if spec.family.interleaved_heads else None
    norms = spec.family.query_key_norms

    def norm(name: str, size: int) -> SourceVector:
        return SourceVector(shelf.vector(f"{layer}.{name}.weight", size))

    attention_norm = norm("attn_norm", spec.hidden)
    query = shelf.linear(f"{layer}.attn_q", queries, spec.hidden, order)
    key = shelf.linear(f"{layer}.attn_k", keys, spec.hidden, order)
    value = shelf.linear(f"{layer}.attn_v", keys, spec.hidden)
    shelf.require_all_or_none(f"{layer}.attn", {"q": query, "k": key, "v": value})
    return LayerPlan(
        attention_norm=attention_norm,
        query=query,
        key=key,
        value=value,
        attention_output=shelf.linear(f"{layer}.attn_output", spec.hidden, queries),
        query_norm=norm("attn_q_norm", spec.head_size) if norms else None,
        key_norm=norm("attn_k_norm", spec.head_size) if norms else None,
        feed_forward_norm=norm("ffn_norm", spec.hidden),
        gate=shelf.linear(f"{layer}.ffn_gate", spec.feed_forward, spec.hidden),
        up=shelf.linear(f"{layer}.ffn_up", spec.feed_forward, spec.hidden),
        down=shelf.linear(f"{layer}.ffn_down", spec.hidden, spec.feed_forward),
    )


class _Shelf:
    """Hands out the tensors of a file, each once, and knows which were never asked for."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf
        self._left = dict(gguf.tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def matrix(self, name: str, rows: int, columns: int) -> GgufTensor:
        return self._take(name, (rows, columns), blocks.SUPPORTED_TYPES)

    def vector(self, name: str, size: int) -> GgufTensor:
        return self._take(name, (size,), blocks.FLOAT_TYPES)

    def optional_vector(
        self, name: str, size: int, interleaved_head: int | None = None
    ) -> SourceVector | None:
        if name not in self._left:
            return None
        return SourceVector(self.vector(name, size), interleaved_head)

    def linear(
        self, name: str, rows: int, columns: int, interleaved_head: int | None = None
    ) -> Linear:
        return Linear(
            SourceRows(self.matrix(f"{name}.weight", rows, columns), interleaved_head),
            self.optional_vector(f"{name}.bias", rows, interleaved_head),
        )

    def require_all_or_none(self, prefix: str, parts: dict[str, Linear]) -> None:
        """Biases of all projections, or of none: a part of them is a damaged file."""
        without = [name for name, part in parts.items() if part.bias is None]
        if 0 < len(without) < len(parts):
            raise GgufError(
                "Some projections of a layer have a bias and some have none.",
                found=f"none for {', '.join(f'{prefix}_{name}' for name in without)}",
                expected="biases of q, k and v, or of none of them",
                where=self._gguf.path,
            )

    def refuse_leftovers(self, spec: ModelSpec) -> None:
        if self._left:
            raise UnsupportedModelError(
                f"{len(self._left)} tensors of the file have no place in a {spec.architecture} "
                "model; leaving them out would give wrong answers.",
                found=_some(self._left),
                where=self._gguf.path,
                fix="check general.architecture and the block count of the file",
            )

    def _take(self, name: str, shape: tuple[int, ...], types: Iterable[str]) -> GgufTensor:
        tensor = self._left.pop(name, None)
        where = f"{self._gguf.path}: tensor {name}"
        if tensor is None:
            raise GgufError(
                f"The tensor {name} is missing.",
                expected=f"shape {list(shape)}",
                where=where,
                fix="the file may be one part of a split model, or damaged",
            )
        if tensor.shape != shape:
            raise GgufError(
                f"The tensor {name} contradicts the metadata.",
                found=f"shape {list(tensor.shape)}",
                expected=f"shape {list(shape)}",
                where=where,
            )
        if tensor.type not in types:
            raise UnsupportedModelError(
                f"The tensor {name} is of type {tensor.type}, which is not supported here.",
                found=tensor.type,
                expected=", ".join(types),
                where=where,
                fix="use a file quantized to one of these types",
            )
        return tensor


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
