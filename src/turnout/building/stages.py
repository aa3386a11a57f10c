"""The stages of a decoder as ONNX graphs over stored weights: embeddings, transformer, output head.

Shapes, in onnxruntime-genai's words: batch, sequence (new tokens), past (tokens in the cache),
total (past + sequence). Hidden states are float32 [batch, sequence, hidden].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.building.graph import MICROSOFT, GraphWriter
from turnout.building.layers import DYNAMIC, Layers, Shapes, attention_mask
from turnout.building.matrices import BlockMatrix, FloatMatrix
from turnout.building.products import Products

if TYPE_CHECKING:
    import onnx_ir as ir

    from turnout.building.matrices import Matrix
    from turnout.building.spec import ModelSpec
    from turnout.building.weights import StoredModel

INPUT_IDS = "input_ids"
EMBEDDINGS = "inputs_embeds"
HIDDEN_STATES = "hidden_states"
LOGITS = "logits"


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
        states = self._states(graph, hidden, shapes)
        graph.output(states, HIDDEN_STATES, "float32", self._hidden_shape(shapes))

    def head(self, graph: GraphWriter, shapes: Shapes) -> None:
        """`hidden_states` (and the mask) -> `logits`: of each row's last token, [batch, 1,
        vocabulary], or of all positions where shapes are fixed.
        """
        states = graph.input(HIDDEN_STATES, "float32", self._hidden_shape(shapes))
        self._logits(graph, states, shapes)

    def decoder(self, graph: GraphWriter) -> None:
        """All stages in one graph, for a flat bundle."""
        ids = graph.input(INPUT_IDS, "int64", [DYNAMIC.batch, DYNAMIC.sequence])
        rows = self._look_up(graph, self._weights.embedding, ids)
        self._logits(graph, self._states(graph, rows, DYNAMIC), DYNAMIC)

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

    def _states(self, graph: GraphWriter, hidden: ir.Value, shapes: Shapes) -> ir.Value:
        layers = Layers(graph, self._spec, self._weights, self._accuracy_level)
        return layers.states(hidden, shapes)

    def _logits(self, graph: GraphWriter, states: ir.Value, shapes: Shapes) -> None:
        positions: int | str = shapes.sequence
        if not shapes.fixed:
            # onnxruntime-genai takes logits of one position as those of the last token; without
            # this a long prompt pays for a product with the whole vocabulary at every position.
            # A padded window (fixed shapes) needs them all: its last position may be padding.
            positions = 1
            states = _last_token(graph, states, attention_mask(graph, shapes))
        logits = Products(graph, self._accuracy_level).linear(
            states, self._weights.head, scope="lm_head"
        )
        graph.output(logits, LOGITS, "float32", [shapes.batch, positions, self._spec.vocabulary])


def _last_token(graph: GraphWriter, states: ir.Value, mask: ir.Value) -> ir.Value:
    """Of `states`, [batch, sequence, hidden], the last token of each row: [batch, 1, hidden].

    The runtime pads the shorter prompts of a batch on the right, so it is not the last of all: it
    is (tokens of the row) - 1 - past, where past = total - sequence. A later token of a padded
    row stands at position 0, its only one, which that formula puts before it.
    """
    scope = "lm_head/last"
    axis, zero = graph.constant("last.axis", [1]), graph.constant("last.zero", [0])
    one = graph.constant("last.one", [1])
    tokens = graph.op("ReduceSum", mask, axis, scope=scope, keepdims=1)
    total = graph.op("Shape", mask, scope=scope, start=1, end=2)
    sequence = graph.op("Shape", states, scope=scope, start=1, end=2)
    behind = graph.op("Add", graph.op("Sub", total, sequence, scope=scope), one, scope=scope)
    place = graph.op("Max", graph.op("Sub", tokens, behind, scope=scope), zero, scope=scope)
    rows = graph.op("GatherND", states, place, scope=scope, batch_dims=1)
    return graph.op("Unsqueeze", rows, axis, scope=scope)
