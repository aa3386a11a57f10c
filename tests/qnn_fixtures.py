"""Graphs of quantize/dequantize pairs (QDQ), which an NPU's compiler takes, and a bundle of them.

One two-layer perceptron is written twice, for prompts of 8 tokens ("context") and for one token
("iterator"), over the same ranges of one data file: activations of 16 bits, weights of 8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bundle_fixtures import CONTEXT_LENGTH, VOCAB, WeightFile, write_config, write_tokenizer
from onnx import TensorProto, helper, numpy_helper

HIDDEN, INNER, WINDOW = 64, 1024, 8
DATA_FILE = "weights.data"
# One step of the activations: they reach from -8 to 8.
STEP = 16 / 65536
WEIGHT_STEP = 0.01
# Names and shapes by stage.
TOKENS = {"context": WINDOW, "iterator": 1}


class QuantizedWeights(WeightFile):
    """The data file; weights of 8 bits are made once, for all graphs."""

    def quantized(self, name: str, rows: int, columns: int) -> onnx.TensorProto:
        if name not in self.arrays:
            # Outputs of a layer stay within the range of the activations.
            spread = 1 / WEIGHT_STEP / np.sqrt(rows)
            values = self.generator.normal(0, spread, (rows, columns)).round().clip(-127, 127)
            self.arrays[name] = values.astype(np.int8)
        proto = self.tensor(name, [rows, columns])
        proto.data_type = TensorProto.INT8
        return proto


def write_pair(folder: Path) -> dict[str, Path]:
    """Both graphs and their data file in `folder`; the paths by stage."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = QuantizedWeights(folder / DATA_FILE)
    return {
        stage: write_graph(folder / f"{stage}.onnx", weights, tokens)
        for stage, tokens in TOKENS.items()
    }


def write_graph(path: Path, weights: QuantizedWeights, tokens: int) -> Path:
    """hidden [1, tokens, 64] -> normed, the same shape, by two products with a ReLU between."""
    shape = [1, tokens, HIDDEN]
    nodes = [
        *_requantized("hidden", "x"),
        _dequantized("up"),
        helper.make_node("MatMul", ["x", "up.d"], ["m"], name="up"),
        *_requantized("m", "inner"),
        helper.make_node("Relu", ["inner"], ["r"], name="relu"),
        *_requantized("r", "kept"),
        _dequantized("down"),
        helper.make_node("MatMul", ["kept", "down.d"], ["o"], name="down"),
        *_requantized("o", "normed"),
    ]
    initializers = [
        numpy_helper.from_array(np.float32(STEP), "step"),
        numpy_helper.from_array(np.uint16(1 << 15), "zero"),
        numpy_helper.from_array(np.float32(WEIGHT_STEP), "weight.step"),
        numpy_helper.from_array(np.int8(0), "weight.zero"),
        weights.quantized("up", HIDDEN, INNER),
        weights.quantized("down", INNER, HIDDEN),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        path.stem,
        [info("hidden", TensorProto.FLOAT, shape)],
        [info("normed", TensorProto.FLOAT, shape)],
        initializers,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="fixtures"
    )
    path.write_bytes(model.SerializeToString())
    return path


def _requantized(source: str, target: str) -> list[onnx.NodeProto]:
    quantized = f"{target}.q"
    return [
        helper.make_node("QuantizeLinear", [source, "step", "zero"], [quantized], name=quantized),
        helper.make_node("DequantizeLinear", [quantized, "step", "zero"], [target], name=target),
    ]


def _dequantized(weight: str) -> onnx.NodeProto:
    inputs = [weight, "weight.step", "weight.zero"]
    return helper.make_node("DequantizeLinear", inputs, [f"{weight}.d"], name=f"{weight}.d")
