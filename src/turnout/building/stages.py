"""The stages of a decoder as ONNX graphs over stored weights: embeddings, transformer, output head.

Shapes, in onnxruntime-genai's words: batch, sequence (new tokens), past (tokens in the cache),
total (past + sequence). Hidden states are float32 [batch, sequence, hidden].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.building.graph import MICROSOFT, GraphWriter
from turnout.building.matrices import BlockMatrix, FloatMatrix

if TYPE_CHECKING:
    import onnx_ir as ir

    from turnout.building.matrices import Matrix
    from turnout.building.spec import ModelSpec
    from turnout.building.weights import StoredLayer, StoredLinear, StoredModel

INPUT_IDS = "input_ids"
EMBEDDINGS = "inputs_embeds"
HIDDEN_STATES = "hidden_states"
LOGITS = "logits"
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


class StageAuthor:
    """Authors graphs for one model. Every method adds to the `GraphWriter` that it is given."""

    def __init__(self, spec: ModelSpec, weights: StoredModel, accuracy_level: int) -> None:
        self._spec = spec
        self._weights = weights
        self._accuracy_level = accuracy_level

    def embeddings(self, graph: GraphWriter, shapes: Shapes) -> None:
        """`input_ids` int64 [batch, sequence] -> `inputs_embeds`."""
        ids = graph.input(INPUT_IDS, "int64", [shapes.batch, shapes.sequence])
        rows = self._look_up(graph, self._weights.embedding, ids)
        graph.output(rows, EMBEDDINGS, "float32", self._hidden_shape(shapes))

    def transformer(self, graph: GraphWriter, shapes: Shapes) -> None:
        """`inputs_embeds`, the mask or lengths, and the cache -> `hidden_states`, new cache."""
        hidden = graph.input(EMBEDDINGS, "float32", self._hidden_shape(shapes))
        states = self._layers(graph, hidden, shapes)
        graph.output(states, HIDDEN_STATES, "float32", self._hidden_shape(shapes))

    def head(self, graph: GraphWriter, shapes: Shapes) -> None:
        """`hidden_states` -> `logits`: of the last position, or of all where shapes are fixed."""
        states = graph.input(HIDDEN_STATES, "float32", self._hidden_shape(shapes))
        self._logits(graph, states, shapes)

    def decoder(self, graph: GraphWriter) -> None:
        """All stages in one graph, for a flat bundle."""
        ids = graph.input(INPUT_IDS, "int64", [DYNAMIC.batch, DYNAMIC.sequence])
        rows = self._look_up(graph, self._weights.embedding, ids)
        self._logits(graph, self._layers(graph, rows, DYNAMIC), DYNAMIC)

    def _hidden_shape(self, shapes: Shapes) -> list[int | str]:
        return [shapes.batch, shapes.sequence, self._spec.hidden]

    def _look_up(self, graph: GraphWriter, table: Matrix, ids: ir.Value) -> ir.Value:
        if isinstance(table, FloatMatrix):
            return graph.op("Gather", graph.weight(table.values), ids, scope="embeddings", axis=0)
        flat = table.codes.viewed(
            f"{table.codes.name}.by_row", (table.rows, table.columns * table.form.bits // 8)
        )
        rows = graph.op(
            "GatherBlockQuantized",
            graph.weight(flat),
            ids,
            graph.weight(table.scales),
            scope="embeddings",
            domain=MICROSOFT,
            bits=table.form.bits,
            block_size=table.form.block,
            gather_axis=0,
            quantize_axis=1,
        )
        if table.row_offsets is None:
            return rows
        return self._add_row_offsets(graph, table, rows, ids)

    def _add_row_offsets(
        self, graph: GraphWriter, table: BlockMatrix, rows: ir.Value, ids: ir.Value
    ) -> ir.Value:
        assert table.row_offsets is not None
        scope = "embeddings/offsets"
        blocks = [0, 0, table.columns // table.form.block]
        offsets = graph.op("Gather", graph.weight(table.row_offsets), ids, scope=scope, axis=0)
        column = graph.constant("embeddings.offsets_shape", [*blocks, 1])
        split = graph.constant("embeddings.blocks_shape", [*blocks, table.form.block])
        joined = graph.constant("embeddings.rows_shape", [0, 0, table.columns])
        total = graph.op(
            "Add",
            graph.op("Reshape", rows, split, scope=scope),
            graph.op("Reshape", offsets, column, scope=scope),
            scope=scope,
        )
        return graph.op("Reshape", total, joined, scope=scope)

    def _layers(self, graph: GraphWriter, hidden: ir.Value, shapes: Shapes) -> ir.Value:
        """Every layer and the final norm. The residual is added inside the norms."""
        lengths = _fixed_lengths(graph) if shapes.fixed else _masked_lengths(graph, shapes)
        products = Products(graph, self._accuracy_level)
        attention = Attention(graph, self._spec, self._weights, products, shapes, lengths)
        first = self._weights.layers[0].attention_norm
        normed = graph.op(
            "SimplifiedLayerNormalization",
            hidden,
            graph.weight(first),
            scope="layers.0/attention_norm",
            axis=-1,
            epsilon=self._spec.norm_epsilon,
            stash_type=1,
        )
        residual = hidden
        for index, layer in enumerate(self._weights.layers):
            scope = f"layers.{index}"
            attended = attention.layer(index, layer, normed)
            normed, residual = self._skip_norm(
                graph, attended, residual, layer.feed_forward_norm, f"{scope}/feed_forward_norm"
            )
            output = _feed_forward(graph, products, layer, normed, f"{scope}/mlp")
            last = index + 1 == len(self._weights.layers)
            norm = (
                self._weights.output_norm
                if last
                else self._weights.layers[index + 1].attention_norm
            )
            where = "output_norm" if last else f"layers.{index + 1}/attention_norm"
            normed, residual = self._skip_norm(graph, output, residual, norm, where)
        return normed

    def _skip_norm(
        self, graph: GraphWriter, added: ir.Value, residual: ir.Value, weight, scope: str
    ) -> tuple[ir.Value, ir.Value]:
        """RMS norm of the sum, and the sum."""
        values = graph.ops(
            "SkipSimplifiedLayerNormalization",
            added,
            residual,
            graph.weight(weight),
            scope=scope,
            domain=MICROSOFT,
            outputs=4,
            epsilon=self._spec.norm_epsilon,
        )
        for unused in values[1:3]:
            unused.name = ""
        return values[0], values[3]

    def _logits(self, graph: GraphWriter, states: ir.Value, shapes: Shapes) -> None:
        positions: int | str = shapes.sequence
        if not shapes.fixed:
            # onnxruntime-genai takes logits of one position as those of the last token; without
            # this a long prompt pays for a product with the whole vocabulary at every position.
            # A padded window (fixed shapes) needs them all: its last position may be padding.
            positions = 1
            last = graph.constant("lm_head.last", [-1])
            end = graph.constant("lm_head.end", [2**31 - 1])
            axis = graph.constant("lm_head.axis", [1])
            states = graph.op("Slice", states, last, end, axis, scope="lm_head")
        logits = Products(graph, self._accuracy_level).linear(
            states, self._weights.head, scope="lm_head"
        )
        graph.output(logits, LOGITS, "float32", [shapes.batch, positions, self._spec.vocabulary])


Lengths = tuple["ir.Value", "ir.Value"]


def _masked_lengths(graph: GraphWriter, shapes: Shapes) -> Lengths:
    """`seqlens_k` int32 [batch] and the total length, int32 scalar, from the attention mask."""
    mask = graph.input(ATTENTION_MASK, "int64", [shapes.batch, shapes.total])
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


class Products:
    """Products of activations with stored matrices in one graph.

    Block means are computed once for each input and block length, and shared by its products.
    """

    def __init__(self, graph: GraphWriter, accuracy_level: int) -> None:
        self._graph = graph
        self._accuracy_level = accuracy_level
        self._means: dict[tuple[ir.Value, int], ir.Value] = {}

    def linear(self, states: ir.Value, linear: StoredLinear, scope: str) -> ir.Value:
        """float32 [batch, sequence, K] times the matrix, plus its bias: [batch, sequence, N]."""
        if isinstance(linear.matrix, BlockMatrix):
            result = self._blocks(states, linear.matrix, scope)
        else:
            result = self._floats(states, linear.matrix, scope)
        if linear.bias is None:
            return result
        return self._graph.op("Add", result, self._graph.weight(linear.bias), scope=scope)

    def _floats(self, states: ir.Value, matrix: FloatMatrix, scope: str) -> ir.Value:
        graph, weight = self._graph, self._graph.weight(matrix.values)
        if not matrix.by_rows:
            return graph.op("MatMul", states, weight, scope=scope)
        # A tied table is stored by rows. Gemm reads it so; a Transpose in the graph would be
        # folded into a second copy when the session loads.
        rows, columns = matrix.values.shape
        flat = graph.constant(f"{scope}.flat", [-1, columns])
        product = graph.op(
            "Gemm", graph.op("Reshape", states, flat, scope=scope), weight, scope=scope, transB=1
        )
        leading = graph.op("Shape", states, scope=scope, start=0, end=2)
        width = graph.constant(f"{scope}.width", [rows])
        shape = graph.op("Concat", leading, width, scope=scope, axis=0)
        return graph.op("Reshape", product, shape, scope=scope)

    def _blocks(self, states: ir.Value, matrix: BlockMatrix, scope: str) -> ir.Value:
        graph = self._graph
        product = graph.op(
            "MatMulNBits",
            states,
            graph.weight(matrix.codes),
            graph.weight(matrix.scales),
            scope=scope,
            domain=MICROSOFT,
            K=matrix.columns,
            N=matrix.rows,
            accuracy_level=self._accuracy_level,
            bits=matrix.form.bits,
            block_size=matrix.form.block,
        )
        if matrix.mean_offsets is None:
            return product
        means = self._block_means(states, matrix.form.block, scope)
        offsets = graph.op("MatMul", means, graph.weight(matrix.mean_offsets), scope=scope)
        return graph.op("Add", product, offsets, scope=scope)

    def _block_means(self, states: ir.Value, block: int, scope: str) -> ir.Value:
        key = (states, block)
        if key not in self._means:
            self._means[key] = self._graph.op(
                "AveragePool", states, scope=scope, kernel_shape=[block], strides=[block]
            )
        return self._means[key]


class Attention:
    """Grouped-query attention of every layer in one graph."""

    def __init__(
        self,
        graph: GraphWriter,
        spec: ModelSpec,
        weights: StoredModel,
        products: Products,
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
            self._products.linear(normed, linear, scope=f"{scope}/{linear.name.split('.')[-1]}")
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

    def _head_norm(self, states: ir.Value, weight, heads: int, scope: str) -> ir.Value:
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


def _feed_forward(
    graph: GraphWriter, products: Products, layer: StoredLayer, normed: ir.Value, scope: str
) -> ir.Value:
    """down(silu(gate(x)) * up(x))."""
    if len(layer.gate_up) == 1:
        both = products.linear(normed, layer.gate_up[0], scope=f"{scope}/gate_up")
        widths = graph.constant("mlp.widths", list(layer.gate_up[0].widths))
        gate, up = graph.ops("Split", both, widths, scope=scope, outputs=2, axis=-1)
    else:
        gate, up = (
            products.linear(normed, linear, scope=f"{scope}/{linear.name.split('.')[-1]}")
            for linear in layer.gate_up
        )
    # Written so, onnxruntime fuses it into one node.
    activated = graph.op("Mul", gate, graph.op("Sigmoid", gate, scope=scope), scope=scope)
    product = graph.op("Mul", activated, up, scope=scope)
    return products.linear(product, layer.down, scope=f"{scope}/down")
