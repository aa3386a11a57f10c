"""A small writer of ONNX graphs: operators by name, weights by their range in the data file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from turnout.building.datafile import StoredTensor

MICROSOFT = "com.microsoft"
# The newest operator set that onnxruntime's and OpenVINO's CPU kernels cover without gaps.
_OPSET = 21
_IR_VERSION = 10

Dims = Sequence[int | str]


class GraphWriter:
    """Builds one graph. Node and value names follow the scope that the caller gives."""

    def __init__(self, name: str, data_name: str) -> None:
        self._graph = ir.Graph(
            [], [], nodes=[], opset_imports={"": _OPSET, MICROSOFT: 1}, name=name
        )
        self._data_name = data_name
        self._weights: dict[str, ir.Value] = {}
        self._names: dict[str, int] = {}

    def input(self, name: str, dtype: str, dims: Dims) -> ir.Value:
        """Declare a graph input; one that is declared already is given again."""
        for declared in self._graph.inputs:
            if declared.name == name:
                return declared
        value = ir.Value(name=name, type=_type(dtype), shape=ir.Shape(dims))
        self._graph.inputs.append(value)
        return value

    def output(self, value: ir.Value, name: str, dtype: str, dims: Dims) -> None:
        """Declare `value` a graph output of that name."""
        value.name = name
        value.type = _type(dtype)
        value.shape = ir.Shape(dims)
        self._graph.outputs.append(value)

    def weight(self, tensor: StoredTensor) -> ir.Value:
        """An initializer that points into the data file."""
        if tensor.name not in self._weights:
            external = ir.ExternalTensor(
                self._data_name,
                tensor.offset,
                tensor.nbytes,
                _dtype(tensor.dtype),
                shape=ir.Shape(tensor.shape),
                name=tensor.name,
            )
            self._weights[tensor.name] = self._initializer(tensor.name, external)
        return self._weights[tensor.name]

    def constant(self, name: str, values: Sequence[int] | int) -> ir.Value:
        """A small int64 initializer, kept inside the graph; the same name is the same value."""
        if name not in self._weights:
            tensor = ir.Tensor(np.asarray(values, np.int64), name=name)
            self._weights[name] = self._initializer(name, tensor)
        return self._weights[name]

    def op(
        self, kind: str, *inputs: ir.Value | None, scope: str, domain: str = "", **attributes: Any
    ) -> ir.Value:
        """Append a node with one output."""
        return self.ops(kind, *inputs, scope=scope, domain=domain, outputs=1, **attributes)[0]

    def ops(
        self,
        kind: str,
        *inputs: ir.Value | None,
        scope: str,
        outputs: int,
        domain: str = "",
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        """Append a node with several outputs."""
        name = self._unique(f"{scope}/{kind}")
        values = [ir.Value(name=f"{name}/output_{index}") for index in range(outputs)]
        node = ir.node(
            kind, inputs, attributes, domain=domain, outputs=values, name=name, version=None
        )
        self._graph.append(node)
        return values

    def save(self, path: Path) -> None:
        """Write the graph; its weights stay where they are."""
        model = ir.Model(self._graph, ir_version=_IR_VERSION, producer_name="turnout")
        ir.save(model, path)

    def _initializer(self, name: str, tensor: Any) -> ir.Value:
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape),
            const_value=tensor,
        )
        self._graph.register_initializer(value)
        return value

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else f"{name}_{count}"


def _dtype(name: str) -> ir.DataType:
    return ir.DataType[{"float32": "FLOAT", "uint8": "UINT8"}.get(name, name.upper())]


def _type(name: str) -> ir.TensorType:
    return ir.TensorType(_dtype(name))
