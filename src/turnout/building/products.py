"""Products of activations with stored matrices, as nodes of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.building.graph import MICROSOFT, GraphWriter
from turnout.building.matrices import BlockMatrix, FloatMatrix

if TYPE_CHECKING:
    import onnx_ir as ir

    from turnout.building.weights import StoredLinear


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
