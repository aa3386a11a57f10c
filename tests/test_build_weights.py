"""What is written is what the file has: tensor by tensor, against the gguf package."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest

import turnout

DATA = Path(__file__).parent / "data" / "tiny"
HEADS, KV_HEADS, HIDDEN, FEED_FORWARD, VOCABULARY = 4, 2, 256, 512, 320


def random_tensor(kind: gguf.GGMLQuantizationType, rows: int, columns: int, seed: int):
    """Random block bytes with ordinary scales: the package cannot quantize to the K types."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    if kind == gguf.GGMLQuantizationType.F32:
        return generator.normal(0, 0.1, (rows, columns)).astype(np.float32)
    raw = generator.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    names = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for place in names.get(kind.name, (0,)):
        scales = generator.normal(0, 0.01, (rows, columns // block, 1)).astype(np.float16)
        raw[:, :, place : place + 2] = scales.view(np.uint8)
    return raw.reshape(rows, -1)


def write_model(path: Path, kind: gguf.GGMLQuantizationType, tied: bool = False) -> None:
    """A one-layer llama whose matrices are all of one type, with the tiny models' tokenizer."""
    source = gguf.GGUFReader(DATA / "llama-mixed.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    fields = source.fields
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(fields["tokenizer.ggml.tokens"].contents())
    writer.add_token_types(fields["tokenizer.ggml.token_type"].contents())
    writer.add_token_merges(fields["tokenizer.ggml.merges"].contents())
    writer.add_eos_token_id(2)
    size = HIDDEN // HEADS
    shapes = {
        "token_embd": (VOCABULARY, HIDDEN),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * size, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * size, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_up": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FEED_FORWARD),
    }
    if not tied:
        shapes["output"] = (VOCABULARY, HIDDEN)
    for seed, (name, (rows, columns)) in enumerate(shapes.items()):
        raw = random_tensor(kind, rows, columns, seed)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Written:
    """The initializers of a graph of a bundle, read by the onnx package."""

    def __init__(self, bundle: Path, graph: str) -> None:
        self.model = onnx.load(bundle / f"{graph}.onnx")
        self.values = {
            value.name: onnx.numpy_helper.to_array(value) for value in self.model.graph.initializer
        }

    def matrix(self, name: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """scale * (code - half) [N, K], the offsets [N, K/block], and the magnitude to round by."""
        if f"{name}.weight" in self.values:
            values = self.values[f"{name}.weight"]
            return values, None, np.abs(values)
        packed, scales = self.values[f"{name}.codes"], self.values[f"{name}.scales"]
        rows, blocks, size = packed.shape
        node = next(
            node
            for node in self.model.graph.node
            if node.op_type == "MatMulNBits" and f"{name}.codes" in node.input
        )
        bits, block = (
            next(a.i for a in node.attribute if a.name == key) for key in ("bits", "block_size")
        )
        if bits == 4:
            codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, blocks, block)
        else:
            codes = packed
        assert codes.shape[-1] == block and size == block * bits // 8
        product = scales[..., None] * (codes.astype(np.float32) - 2 ** (bits - 1))
        magnitude = np.broadcast_to(scales[..., None] * 2**bits, product.shape)
        by_block = self.values.get(f"{name}.mean_offsets")
        offsets = None if by_block is None else by_block.T / np.float32(block)
        return product.reshape(rows, -1), offsets, np.abs(magnitude).reshape(rows, -1)


def assert_equal_up_to_rounding(written, expected):
    product, offsets, magnitude = written
    if offsets is None:
        np.testing.assert_array_equal(product, expected)
        return
    block = product.shape[1] // offsets.shape[1]
    values = product + offsets.repeat(block, axis=1)
    assert np.all(np.abs(values - expected) <= (magnitude + np.abs(expected)) * 2.0**-22)


def split_rotary_order(matrix: np.ndarray, heads: int) -> np.ndarray:
    """What transformers' conversion of llama weights undoes: pairs apart, in each head."""
    return (
        matrix.reshape(heads, matrix.shape[0] // heads // 2, 2, matrix.shape[1])
        .swapaxes(1, 2)
        .reshape(matrix.shape)
    )


KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    """A model of one type, its bundle, and each tensor as the gguf package dequantizes it."""
    folder = tmp_path_factory.mktemp(request.param)
    kind = gguf.GGMLQuantizationType[request.param]
    write_model(folder / "model.gguf", kind)
    bundle = turnout.build(folder / "model.gguf", folder / "bundle")
    expected = {
        tensor.name.removesuffix(".weight"): gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(folder / "model.gguf").tensors
    }
    return bundle, expected


def test_every_matrix_of_the_transformer_equals_the_packages_own_dequantization(case):
    bundle, expected = case
    written = Written(bundle, "transformer")
    layer = {name.removeprefix("blk.0."): value for name, value in expected.items()}
    stacks = {
        "layers.0.attention.q_k_v": np.concatenate(
            [
                split_rotary_order(layer["attn_q"], HEADS),
                split_rotary_order(layer["attn_k"], KV_HEADS),
                layer["attn_v"],
            ]
        ),
        "layers.0.attention.output": layer["attn_output"],
        "layers.0.mlp.gate_up": np.concatenate([layer["ffn_gate"], layer["ffn_up"]]),
        "layers.0.mlp.down": layer["ffn_down"],
    }
    for name, matrix in stacks.items():
        assert_equal_up_to_rounding(written.matrix(name), matrix)


def test_the_head_equals_the_packages_own_dequantization(case):
    bundle, expected = case
    assert_equal_up_to_rounding(Written(bundle, "lm_head").matrix("lm_head"), expected["output"])


def test_the_embeddings_that_the_runtime_looks_up_equal_the_packages_own(case):
    import onnxruntime as ort

    bundle, expected = case
    session = ort.InferenceSession(str(bundle / "embeddings.onnx"))
    ids = np.arange(VOCABULARY, dtype=np.int64)[None]
    rows = session.run(None, {"input_ids": ids})[0][0]
    table = expected["token_embd"]
    # A type with offsets adds them in float32: one rounding of numbers 32 times the scale.
    assert np.max(np.abs(rows - table)) <= np.max(np.abs(table)) * 32 * 2.0**-23


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "F32"])
def test_a_tied_matrix_is_stored_once_for_embeddings_and_head(tmp_path, kind):
    if kind == "F32":
        source = tmp_path / "float.gguf"
        float_model(source)
    else:
        source = tmp_path / "tied.gguf"
        write_model(source, gguf.GGMLQuantizationType[kind], tied=True)
    bundle = turnout.Bundle.open(turnout.build(source, tmp_path / "bundle"))
    ranges = {
        stage.name: {
            (value.external.offset, value.external.length)
            for value in bundle.graph(stage).initializers
            if value.external is not None
        }
        for stage in bundle.stages
    }
    shared = ranges["embeddings"] & ranges["lm_head"]
    table = VOCABULARY * HIDDEN * {"Q4_K": 4, "Q8_0": 8, "F32": 32}[kind] // 8
    assert table in {length for _, length in shared}


def float_model(path: Path) -> None:
    write_model(path, gguf.GGMLQuantizationType.F32, tied=True)


def test_no_range_of_the_data_file_overlaps_another_unless_it_is_the_same(case):
    bundle, _ = case
    opened = turnout.Bundle.open(bundle)
    ranges = sorted(
        {
            (value.external.offset, value.external.offset + value.external.length)
            for stage in opened.stages
            for value in opened.graph(stage).initializers
            if value.external is not None
        }
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert ranges[-1][1] == (bundle / "model.data").stat().st_size


def test_prefill_and_decode_stages_point_to_the_same_weights(tmp_path):
    bundle = turnout.Bundle.open(
        turnout.build(DATA / "llama-mixed.gguf", tmp_path / "bundle", two_sessions=True)
    )
    context, iterator = (
        {(value.name, value.external) for value in bundle.graph(bundle.stage(name)).initializers}
        for name in ("context", "iterator")
    )
    assert context == iterator
    config = json.loads((tmp_path / "bundle" / "genai_config.json").read_text("utf-8"))
    runs = {
        name: (stage["run_on_prompt"], stage["run_on_token_gen"])
        for entry in config["model"]["decoder"]["pipeline"]
        for name, stage in entry.items()
    }
    assert runs == {
        "embeddings": (True, True),
        "context": (True, False),
        "iterator": (False, True),
        "lm_head": (True, True),
    }


@pytest.mark.parametrize(("precision", "bound"), [("int8", 0.007), ("int4", 0.13)])
def test_rounding_of_float_matrices_is_as_good_as_its_bits(tmp_path, precision, bound):
    """Normal values in blocks of 32: the peak is 2.1 deviations away, a step peak / 2**(bits-1),
    the error of rounding a step / sqrt(12): 0.5% of the values at 8 bits, 8% at 4, and clipping.
    """
    source = DATA / "llama-f32.gguf"
    bundle = turnout.build(source, tmp_path / "bundle", precision=precision)
    product, offsets, _ = Written(bundle, "transformer").matrix("layers.1.mlp.down")
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(source).tensors}
    exact = tensors["blk.1.ffn_down.weight"]
    assert offsets is None
    assert np.linalg.norm(product - exact) < bound * np.linalg.norm(exact)


def test_a_lower_precision_leaves_what_is_quantized_already_as_it_is(tmp_path):
    source = DATA / "llama-mixed.gguf"
    kept = turnout.build(source, tmp_path / "kept")
    rounded = turnout.build(source, tmp_path / "rounded", precision="int4")
    for name in ("layers.0.attention.q_k_v", "layers.0.mlp.gate_up", "layers.0.attention.output"):
        for part in ("codes", "scales"):
            np.testing.assert_array_equal(
                Written(kept, "transformer").values[f"{name}.{part}"],
                Written(rounded, "transformer").values[f"{name}.{part}"],
            )
    down = Written(rounded, "transformer").values
    assert down["layers.0.mlp.down.codes"].shape == (64, 4, 16), "the F16 matrix is rounded"
