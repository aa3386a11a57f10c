"""The layers of a decoder as nodes of a graph: attention, feed-forward, and the norms between.

The residual is added inside the norms (`SkipSimplifiedLayerNormalization`). How long the cache is
comes from the attention mask, or from two length inputs where shapes are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.building.graph import MICROSOFT, GraphWriter
from turnout.building.products import Products

if TYPE_CHECKING:
    import onnx_ir as ir

    from turnout.building.datafile import StoredTensor
    from turnout.building.spec import ModelSpec
    from turnout.building.weights import StoredLayer, StoredModel


ATTENTION_MASK = "attention_mask"
PAST_LENGTH = "past_sequence_length"
TOTAL_LENGTH = "total_sequence_length"
PAST_NAMES = ("past_key_values.%d.key", "past_key_values.%d.value")
PRESENT_NAMES = ("present.%d.key", "present.%d.value")


@dataclass(frozen=True)
class Shapes:
    """The sizes of a stage's inputs: names where they vary, numbers where they are fixed.

    `fixed` stages (for NPUs) take lengths as `past_sequence_length` and `total_sequence_length`
    in place of an attention mask, and a key-value cache of one length.
    """

    batch: int | str = "batch_size"
    sequence: int | str = "sequence_length"
    past: int | str = "past_sequence_length"
    total: int | str = "total_sequence_length"
    fixed: bool = False

    @classmethod
    def static(cls, tokens: int, context: int) -> Shapes:
        """`tokens` new ones on a cache of `context`."""
        return cls(batch=1, sequence=tokens, past=context, total=context, fixed=True)


DYNAMIC = Shapes()


Lengths = tuple["ir.Value", "ir.Value"]


def attention_mask(graph: GraphWriter, shapes: Shapes) -> ir.Value:
    """The input that says which tokens are none: int64 [batch, total], 1 for a token, else 0."""
    return graph.input(ATTENTION_MASK, "int64", [shapes.batch, shapes.total])


def _masked_lengths(graph: GraphWriter, shapes: Shapes) -> Lengths:
    """`seqlens_k` int32 [batch] and the total length, int32 scalar, from the attention mask."""
    mask = attention_mask(graph, shapes)
    scope = "lengths"
    axis, one = graph.constant("lengths.axis", [1]), graph.constant("lengths.one", [1])
    counted = graph.op("ReduceSum", mask, axis, scope=scope, keepdims=0)
    past = graph.op("Sub", counted, one, scope=scope)
    total = graph.op(
        "Gather",
        graph.op("Shape", mask, scope=scope),
        graph.constant("lengths.total_axis", 1),
        scope=scope,
        axis=0,
    )
    int32 = 6  # onnx.TensorProto.INT32
    return (
        graph.op("Cast", past, scope=f"{scope}/past", to=int32),
        graph.op("Cast", total, scope=f"{scope}/total", to=int32),
    )


def _fixed_lengths(graph: GraphWriter) -> Lengths:
    """The same two from the inputs that onnxruntime-genai gives windowed stages."""
    past = graph.input(PAST_LENGTH, "int32", [1, 1])
    total = graph.input(TOTAL_LENGTH, "int32", [1])
    flat = graph.constant("lengths.flat", [1])
    return graph.op("Reshape", past, flat, scope="lengths"), total


class Layers:
    """Authors the layers of one model into one graph."""

    def __init__(
        self, graph: GraphWriter, spec: ModelSpec, weights: StoredModel, accuracy_level: int
    ) -> None:
        self._graph = graph
        self._spec = spec
        self._weights = weights
        self._products = Products(graph, accuracy_level)

    def states(self, hidden: ir.Value, shapes: Shapes) -> ir.Value:
        """Every layer and the final norm: `hidden` float32 [batch, sequence, hidden] to the same.

        Adds the inputs and outputs of the cache to the graph.
        """
        graph, layers = self._graph, self._weights.layers
        lengths = _fixed_lengths(graph) if shapes.fixed else _masked_lengths(graph, shapes)
        attention = Attention(
            graph, self._spec, self._weights, self._products, shapes=shapes, lengths=lengths
        )
        norms = [layer.attention_norm for layer in layers[1:]] + [self._weights.output_norm]
        places = [f"layers.{index}/attention_norm" for index in range(1, len(layers))]
        normed, residual = self._first_norm(hidden), hidden
        for index, (layer, norm, place) in enumerate(
            zip(layers, norms, [*places, "output_norm"], strict=True)
        ):
            attended = attention.layer(index, layer, normed)
            normed, residual = self._skip_norm(
                attended, residual, layer.feed_forward_norm, f"layers.{index}/feed_forward_norm"
            )
            output = self._feed_forward(layer, normed, f"layers.{index}/mlp")
            normed, residual = self._skip_norm(output, residual, norm, place)
        return normed

    def _first_norm(self, hidden: ir.Value) -> ir.Value:
        return self._graph.op(
            "SimplifiedLayerNormalization",
            hidden,
            self._graph.weight(self._weights.layers[0].attention_norm),
            scope="layers.0/attention_norm",
            axis=-1,
            epsilon=self._spec.norm_epsilon,
            stash_type=1,
        )

    def _skip_norm(
        self, added: ir.Value, residual: ir.Value, weight: StoredTensor, scope: str
    ) -> tuple[ir.Value, ir.Value]:
        """RMS norm of the sum, and the sum."""
        normed, *unused, total = self._graph.ops(
            "SkipSimplifiedLayerNormalization",
            added,
            residual,
            self._graph.weight(weight),
            scope=scope,
            domain=MICROSOFT,
            outputs=4,
            epsilon=self._spec.norm_epsilon,
        )
        for value in unused:
            value.name = ""
        return normed, total

    def _feed_forward(self, layer: StoredLayer, normed: ir.Value, scope: str) -> ir.Value:
        """down(silu(gate(x)) * up(x))."""
        graph, products = self._graph, self._products
        if len(layer.gate_up) == 1:
            both = products.linear(normed, layer.gate_up[0], scope=f"{scope}/gate_up")
            widths = graph.constant("mlp.widths", list(layer.gate_up[0].widths))
            gate, up = graph.ops("Split", both, widths, scope=scope, outputs=2, axis=-1)
        else:
            gate, up = (
                products.linear(normed, linear, scope=f"{scope}/{linear.last_name}")
                for linear in layer.gate_up
            )
        # Written so, onnxruntime fuses it into one node.
        activated = graph.op("Mul", gate, graph.op("Sigmoid", gate, scope=scope), scope=scope)
        product = graph.op("Mul", activated, up, scope=scope)
        return products.linear(product, layer.down, scope=f"{scope}/down")


class Attention:
    """Grouped-query attention of every layer in one graph."""

    def __init__(
        self,
        graph: GraphWriter,
        spec: ModelSpec,
        weights: StoredModel,
        products: Products,
        *,
        shapes: Shapes,
        lengths: Lengths,
    ) -> None:
        self._graph = graph
        self._spec = spec
        self._weights = weights
        self._products = products
        self._shapes = shapes
        self._lengths = lengths

    def layer(self, index: int, layer: StoredLayer, normed: ir.Value) -> ir.Value:
        """Projections, attention over the cache of layer `index`, and the output projection."""
        scope = f"layers.{index}/attention"
        projected = [
            self._products.linear(normed, linear, scope=f"{scope}/{linear.last_name}")
            for linear in layer.projections
        ]
        query, key, value = self._query_key_value(layer, projected, scope)
        attended = self._attend(index, query, key, value, scope)
        return self._products.linear(attended, layer.attention_output, scope=f"{scope}/output")

    def _query_key_value(
        self, layer: StoredLayer, projected: list[ir.Value], scope: str
    ) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        if layer.query_norm is None or layer.key_norm is None:
            if len(projected) == 1:
                return projected[0], None, None
            return projected[0], projected[1], projected[2]
        if len(projected) == 1:
            widths = self._graph.constant("attention.widths", list(layer.projections[0].widths))
            projected = list(
                self._graph.ops("Split", projected[0], widths, scope=scope, outputs=3, axis=-1)
            )
        spec = self._spec
        query = self._head_norm(projected[0], layer.query_norm, spec.heads, f"{scope}/query_norm")
        key = self._head_norm(projected[1], layer.key_norm, spec.kv_heads, f"{scope}/key_norm")
        return query, key, projected[2]

    def _head_norm(
        self, states: ir.Value, weight: StoredTensor, heads: int, scope: str
    ) -> ir.Value:
        graph, size = self._graph, self._spec.head_size
        split = graph.constant(f"attention.heads_{heads}", [0, 0, heads, size])
        joined = graph.constant(f"attention.joined_{heads}", [0, 0, heads * size])
        normed = graph.op(
            "SimplifiedLayerNormalization",
            graph.op("Reshape", states, split, scope=scope),
            graph.weight(weight),
            scope=scope,
            axis=-1,
            epsilon=self._spec.norm_epsilon,
            stash_type=1,
        )
        return graph.op("Reshape", normed, joined, scope=scope)

    def _attend(
        self,
        index: int,
        query: ir.Value,
        key: ir.Value | None,
        value: ir.Value | None,
        scope: str,
    ) -> ir.Value:
        graph, spec, shapes = self._graph, self._spec, self._shapes
        cache = [shapes.batch, spec.kv_heads, shapes.past, spec.head_size]
        past = [graph.input(name % index, "float32", cache) for name in PAST_NAMES]
        attended, *present = graph.ops(
            "GroupQueryAttention",
            query,
            key,
            value,
            *past,
            *self._lengths,
            graph.weight(self._weights.cosines),
            graph.weight(self._weights.sines),
            scope=scope,
            domain=MICROSOFT,
            outputs=3,
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
        )
        grown = [shapes.batch, spec.kv_heads, shapes.total, spec.head_size]
        for name, cached in zip(PRESENT_NAMES, present, strict=True):
            graph.output(cached, name % index, "float32", grown)
        return attended
