"""Writes the weights of a planned model into the data file, in the order that stages use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.building import rope
from turnout.building.matrices import (
    LOOKUP,
    PRODUCT,
    TIED,
    Matrix,
    MatrixWriter,
    SourceVector,
)

if TYPE_CHECKING:
    from turnout.building.architectures import LayerPlan, Linear, ModelPlan
    from turnout.building.datafile import StoredTensor
    from turnout.building.spec import ModelSpec


@dataclass(frozen=True)
class StoredLinear:
    """A stored matrix [N, K] and its bias [N]; `widths` are the rows of the parts stacked in it."""

    name: str
    matrix: Matrix
    bias: StoredTensor | None
    widths: tuple[int, ...]

    @property
    def last_name(self) -> str:
        """The last part of its name: `q_k_v` of `layers.3.attention.q_k_v`."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class StoredLayer:
    """One layer. `projections` are Q, K and V: one stacked product, or one each where their
    types do not stack; likewise `gate_up`.
    """

    attention_norm: StoredTensor
    projections: tuple[StoredLinear, ...]
    query_norm: StoredTensor | None
    key_norm: StoredTensor | None
    attention_output: StoredLinear
    feed_forward_norm: StoredTensor
    gate_up: tuple[StoredLinear, ...]
    down: StoredLinear


@dataclass(frozen=True)
class StoredModel:
    """Every weight of a bundle. `cosines` and `sines` are float32 [context, head_size/2]."""

    embedding: Matrix
    cosines: StoredTensor
    sines: StoredTensor
    layers: tuple[StoredLayer, ...]
    output_norm: StoredTensor
    head: StoredLinear


def store_model(
    plan: ModelPlan, spec: ModelSpec, context: int, writer: MatrixWriter
) -> StoredModel:
    """Write every weight of `plan`; rotary tables cover `context` positions."""
    use = TIED if plan.tied else LOOKUP
    embedding = writer.write("embeddings", [plan.embedding], use)
    store = _Store(writer)
    cosines, sines = _rope_tables(plan, spec, context, writer)
    layers = tuple(store.layer(index, layer) for index, layer in enumerate(plan.layers))
    output_norm = writer.vector("output_norm", plan.output_norm)
    if plan.head is None:
        head = StoredLinear("lm_head", embedding, None, (spec.vocabulary,))
    else:
        head = store.linear("lm_head", [plan.head])
    return StoredModel(embedding, cosines, sines, layers, output_norm, head)


def _rope_tables(
    plan: ModelPlan, spec: ModelSpec, context: int, writer: MatrixWriter
) -> tuple[StoredTensor, StoredTensor]:
    factors = plan.rope_factors.values() if plan.rope_factors else None
    angles = rope.frequencies(spec.rope, spec.head_size, factors)
    shape = (context, len(angles))
    return (
        writer.table("rope.cosines", shape, rope.tables(angles, context, np.cos)),
        writer.table("rope.sines", shape, rope.tables(angles, context, np.sin)),
    )


class _Store:
    def __init__(self, writer: MatrixWriter) -> None:
        self._writer = writer

    def layer(self, index: int, plan: LayerPlan) -> StoredLayer:
        scope = f"layers.{index}"
        write = self._writer
        return StoredLayer(
            attention_norm=write.vector(f"{scope}.attention_norm", plan.attention_norm),
            projections=self.stacked(
                f"{scope}.attention", ("q", "k", "v"), (plan.query, plan.key, plan.value)
            ),
            query_norm=self.optional(f"{scope}.query_norm", plan.query_norm),
            key_norm=self.optional(f"{scope}.key_norm", plan.key_norm),
            attention_output=self.linear(f"{scope}.attention.output", [plan.attention_output]),
            feed_forward_norm=write.vector(f"{scope}.feed_forward_norm", plan.feed_forward_norm),
            gate_up=self.stacked(f"{scope}.mlp", ("gate", "up"), (plan.gate, plan.up)),
            down=self.linear(f"{scope}.mlp.down", [plan.down]),
        )

    def optional(self, name: str, vector: SourceVector | None) -> StoredTensor | None:
        return None if vector is None else self._writer.vector(name, vector)

    def linear(self, name: str, parts: Sequence[Linear]) -> StoredLinear:
        biases = [part.bias for part in parts if part.bias is not None]
        return StoredLinear(
            name=name,
            matrix=self._writer.write(name, [part.weight for part in parts], PRODUCT),
            bias=self._writer.vector(f"{name}.bias", *biases) if biases else None,
            widths=tuple(part.weight.shape[0] for part in parts),
        )

    def stacked(
        self, scope: str, names: Sequence[str], parts: Sequence[Linear]
    ) -> tuple[StoredLinear, ...]:
        same_bias = len({part.bias is None for part in parts}) == 1
        if same_bias and self._writer.stacks([part.weight for part in parts]):
            return (self.linear(f"{scope}.{'_'.join(names)}", parts),)
        return tuple(
            self.linear(f"{scope}.{name}", [part]) for name, part in zip(names, parts, strict=True)
        )
