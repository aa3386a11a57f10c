"""Quantized blocks are imported exactly: proven against the gguf package's own dequantization."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as peer_dequantize

from turnout.building import blocks
from turnout.errors import UnsupportedModelError

QUANTIZED = sorted(blocks.FORMATS)


def random_blocks(type_name: str, rows: int = 7, supers: int = 3) -> np.ndarray:
    """Rows of random block bytes whose float16 scales are finite and of ordinary size."""
    kind = gguf.GGMLQuantizationType[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(hash_free_seed(type_name))
    count = supers * 256 // block
    raw = generator.integers(0, 256, (rows, count, size), dtype=np.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for place in places.get(type_name, (0,)):
        halves = generator.normal(0, 0.02, (rows, count, 1)).astype(np.float16)
        raw[:, :, place : place + 2] = halves.view(np.uint8)
    return raw.reshape(rows, -1)


def hash_free_seed(name: str) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**32


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_random_block_bytes_dequantize_to_what_the_gguf_package_says(type_name):
    raw = random_blocks(type_name)
    expected = peer_dequantize(raw, gguf.GGMLQuantizationType[type_name])
    rows = blocks.block_rows(raw, type_name)
    values = blocks.dequantize(rows, blocks.FORMATS[type_name])
    if rows.offsets is None:
        np.testing.assert_array_equal(values, expected)
    else:
        # scale * (code - half) + (minimum + half * scale) rounds three times in float32.
        scale = np.abs(rows.scales).repeat(32, axis=1) * 32 + np.abs(expected)
        assert np.max(np.abs(values - expected) / (scale + 1e-30)) < 3 * 2.0**-24


@pytest.mark.parametrize("type_name", ["Q4_1", "Q5_1", "Q4_K", "Q5_K"])
def test_codes_of_affine_types_are_the_files_own(type_name):
    # Away from rounding: with scale 1 and minimum 0 every value is its code.
    raw = random_blocks(type_name)
    form = blocks.FORMATS[type_name]
    half = 8 if form.bits == 4 else 16
    rows = blocks.block_rows(raw, type_name)
    unit = blocks.BlockRows(rows.codes, np.ones_like(rows.scales), np.full_like(rows.scales, half))
    codes = blocks.dequantize(unit, form)
    minimums = rows.offsets - half * rows.scales
    again = codes * rows.scales.repeat(32, 1) + minimums.repeat(32, 1)
    expected = peer_dequantize(raw, gguf.GGMLQuantizationType[type_name])
    tolerance = np.abs(rows.scales).repeat(32, 1) * 1e-4 + 1e-12
    assert np.all(np.abs(again - expected) < tolerance)
    assert set(np.unique(codes)) == set(range(16 if form.bits == 4 else 32))


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_float_types_are_widened_exactly(type_name):
    kind = gguf.GGMLQuantizationType[type_name]
    values = np.random.default_rng(5).normal(size=(3, 64)).astype(np.float32)
    raw = gguf.quants.quantize(values, kind).view(np.uint8).reshape(3, -1)
    np.testing.assert_array_equal(blocks.float_rows(raw, type_name), peer_dequantize(raw, kind))


def test_four_bit_codes_are_packed_two_a_byte_low_half_first():
    codes = np.arange(32, dtype=np.uint8).reshape(1, 32) % 16
    packed = blocks.pack(codes, blocks.FORMATS["Q4_0"])
    assert packed.shape == (1, 1, 16)
    assert packed[0, 0, :3].tolist() == [0x10, 0x32, 0x54]


def test_eight_bit_codes_are_packed_as_they_are():
    codes = np.arange(32, dtype=np.uint8).reshape(1, 32)
    packed = blocks.pack(codes, blocks.FORMATS["Q6_K"])
    assert packed.shape == (1, 2, 16)
    assert packed.ravel().tolist() == list(range(32))


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_to_fewer_bits_is_off_by_at_most_half_a_step(bits):
    form = blocks.BlockFormat(bits, 32, affine=False)
    values = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    values[0, :32] = 0
    rows = blocks.quantize(values, form)
    error = np.abs(blocks.dequantize(rows, form) - values).reshape(5, 3, 32)
    # A value at the far end from the peak can only reach half - 1 steps: a whole step at most.
    assert np.all(error <= np.abs(rows.scales)[..., None] * 1.0001)
    assert np.mean(error <= np.abs(rows.scales)[..., None] * 0.5001) > 0.99
    assert not np.any(error[0, 0])


def test_a_type_that_is_not_listed_is_refused_naming_those_that_are():
    with pytest.raises(UnsupportedModelError, match="IQ4_XS") as caught:
        blocks.block_rows(np.zeros((1, 136), np.uint8), "IQ4_XS")
    assert "Q4_K" in caught.value.facts["expected"]
