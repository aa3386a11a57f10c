"""Graphs of quantize/dequantize pairs (QDQ), which an NPU's compiler takes, and a bundle of them.

One two-layer perceptron is written twice, for prompts of 8 tokens ("context") and for one token
("iterator"), over the same ranges of one data file: activations of 16 bits, weights of 8.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bundle_fixtures import CONTEXT_LENGTH, VOCAB, WeightFile, write_config, write_tokenizer

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


def build_bundle(folder: Path) -> Path:
    """A pipeline of static stages: embeddings, context and iterator (QDQ), lm_head."""
    write_pair(folder)
    weights = WeightFile(folder / "float.data")
    info = helper.make_tensor_value_info
    ids = info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    hidden = info("hidden", TensorProto.FLOAT, ["batch", "sequence", HIDDEN])
    normed = info("normed", TensorProto.FLOAT, ["batch", "sequence", HIDDEN])
    logits = info("logits", TensorProto.FLOAT, ["batch", "sequence", VOCAB])
    embed = helper.make_node("Gather", ["embed", "input_ids"], ["hidden"], name="embed")
    head = helper.make_node("MatMul", ["normed", "lm_head"], ["logits"], name="head")
    for name, node, given, made, shape in (
        ("embeddings", embed, ids, hidden, (VOCAB, HIDDEN)),
        ("lm_head", head, normed, logits, (HIDDEN, VOCAB)),
    ):
        tensor = weights.tensor("embed" if name == "embeddings" else "lm_head", shape)
        graph = helper.make_graph([node], name, [given], [made], [tensor])
        _save(graph, folder / f"{name}.onnx")
    write_config(folder, _config())
    write_tokenizer(folder)
    return folder


def _config() -> dict[str, Any]:
    stages: dict[str, dict[str, Any]] = {
        "embeddings": {"inputs": ["input_ids"], "outputs": ["hidden"]},
        "context": {"inputs": ["hidden"], "outputs": ["normed"], "run_on_token_gen": False},
        "iterator": {"inputs": ["hidden"], "outputs": ["normed"], "run_on_prompt": False},
        "lm_head": {"inputs": ["normed"], "outputs": ["logits"], "is_lm_head": True},
    }
    for name, stage in stages.items():
        stage["filename"] = f"{name}.onnx"
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "head_size": HIDDEN,
        "hidden_size": HIDDEN,
        "inputs": {"input_ids": "input_ids"},
        "outputs": {"logits": "logits"},
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "sliding_window": {
            "window_size": WINDOW,
            "pad_value": 0,
            "alignment": "left",
            "slide_inputs": True,
            "slide_key_value_cache": False,
        },
        "pipeline": [stages],
    }
    model = {
        "bos_token_id": 256,
        "context_length": CONTEXT_LENGTH,
        "decoder": decoder,
        "eos_token_id": 257,
        "pad_token_id": 257,
        "type": "decoder-pipeline",
        "vocab_size": VOCAB,
    }
    search = {
        "do_sample": False,
        "max_length": CONTEXT_LENGTH,
        "past_present_share_buffer": False,
    }
    return {"model": model, "search": search}


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
    return _save(graph, path)


def _save(graph: onnx.GraphProto, path: Path) -> Path:
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="fixtures")
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


def write_products(
    path: Path, activation: str | None, step: float, *, open_product: bool = False
) -> Path:
    """x [1, 8, 64] -> y: a product and an activation in QDQ, or (None) a product in floats.

    `open_product` makes it an activation alone, with a product of open shape beside it.
    """
    values = np.random.default_rng(3).normal(0, 0.125, (HIDDEN, HIDDEN))
    info = helper.make_tensor_value_info
    given, made = info("x", TensorProto.FLOAT, [1, WINDOW, HIDDEN]), "y"
    inputs = [given]
    outputs = [info("y", TensorProto.FLOAT, [1, WINDOW, HIDDEN])]
    floats = numpy_helper.from_array(values.astype(np.float32), "w")
    initializers = [floats]
    nodes = [helper.make_node("MatMul", ["x", "w"], [made], name="product")]
    if activation is not None:
        initializers = [
            numpy_helper.from_array(np.float32(step), "step"),
            numpy_helper.from_array(np.uint16(1 << 15), "zero"),
        ]
        nodes = [
            *_requantized("x", "a"),
            helper.make_node(activation, ["a"], ["b"], name="activation"),
            *_requantized("b", "y"),
        ]
    if open_product:
        initializers.append(floats)
        inputs.append(info("z", TensorProto.FLOAT, ["rows", HIDDEN]))
        outputs.append(info("p", TensorProto.FLOAT, ["rows", HIDDEN]))
        nodes.append(helper.make_node("MatMul", ["z", "w"], ["p"], name="product"))
    return _save(helper.make_graph(nodes, path.stem, inputs, outputs, initializers), path)
