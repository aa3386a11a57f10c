"""GGUF tensor types as what ONNX Runtime's block-quantized operators take, exactly.

A quantized row of K values is cut into blocks; each value is `scale * code + minimum` with one
scale (and, in some types, one minimum) a block. `MatMulNBits` and `GatherBlockQuantized` compute
`scale * (code - 2**(bits-1))` when they are given no zero points. So codes are shifted until
the default zero point is right, and what a minimum leaves over is an `offset`, one real number a
block, which the graph adds as a small product of its own:

    value = scale * (code - 2**(bits-1)) + offset

The block layouts are those of ggml (ggml-common.h, `block_q4_0` and so on; the K types'
`get_scale_min_k4` packing in ggml-quants.c). All functions take and give numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnout.errors import UnsupportedModelError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """How a tensor type is stored in a bundle.

    `bits` (4 or 8) a code; `block` values share a scale; `affine` types carry offsets.
    """

    bits: int
    block: int
    affine: bool


@dataclass(frozen=True)
class BlockRows:
    """Rows of a quantized matrix: codes uint8 [N, K], scales float32 [N, K/block] and, where
    the type is affine, offsets of the same shape as the scales.
    """

    codes: Bytes
    scales: Floats
    offsets: Floats | None


# Types that are imported exactly. 5- and 6-bit values sit in 8 bits: on the CPU EP 8-bit blocks
# are as fast as 4-bit ones, and no operator takes 5 or 6.
FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(4, 32, affine=False),
    "Q4_1": BlockFormat(4, 32, affine=True),
    "Q5_0": BlockFormat(8, 32, affine=False),
    "Q5_1": BlockFormat(8, 32, affine=True),
    "Q8_0": BlockFormat(8, 32, affine=False),
    "Q4_K": BlockFormat(4, 32, affine=True),
    "Q5_K": BlockFormat(8, 32, affine=True),
    "Q6_K": BlockFormat(8, 16, affine=False),
}
FLOAT_TYPES = ("F32", "F16", "BF16")
SUPPORTED_TYPES = (*FLOAT_TYPES, *FORMATS)

_K_BLOCK = 256  # values in a super-block of the K types (QK_K in ggml-common.h)
_NIBBLE = np.uint8(4)
_HALF_OF_4_BITS = 8
_HALF_OF_5_BITS = 16
_HALF_OF_8_BITS = 128


def float_rows(raw: Bytes, type_name: str) -> Floats:
    """Rows of an F32, F16 or BF16 tensor as float32 [N, K]; exact."""
    if type_name == "F32":
        return raw.view("<f4")
    if type_name == "F16":
        return raw.view("<f2").astype(np.float32)
    if type_name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    raise _unsupported(type_name)


def block_rows(raw: Bytes, type_name: str) -> BlockRows:
    """Rows of a quantized tensor, uint8 [N, bytes a row], as codes, scales and offsets."""
    if type_name not in _READERS:
        raise _unsupported(type_name)
    return _READERS[type_name](raw)


def dequantize(rows: BlockRows, form: BlockFormat) -> Floats:
    """The float32 values [N, K] that the rows stand for."""
    count, width = rows.codes.shape
    blocks = rows.codes.reshape(count, -1, form.block).astype(np.float32) - 2.0 ** (form.bits - 1)
    values = blocks * rows.scales[..., None]
    if rows.offsets is not None:
        values += rows.offsets[..., None]
    return values.reshape(count, width).astype(np.float32, copy=False)


def pack(codes: Bytes, form: BlockFormat) -> Bytes:
    """Codes [N, K] as `MatMulNBits` stores them: uint8 [N, K/block, block*bits/8].

    Two 4-bit codes share a byte, the earlier one in the low half.
    """
    count = codes.shape[0]
    if form.bits == 4:
        codes = codes[:, 0::2] | (codes[:, 1::2] << _NIBBLE)
    return np.ascontiguousarray(codes.reshape(count, -1, form.block * form.bits // 8))


def quantize(values: Floats, form: BlockFormat) -> BlockRows:
    """Round float32 rows [N, K] to the nearest symmetric codes, one scale a block.

    Used only where a caller asked for fewer bits than a float tensor has (`--precision`).
    The largest magnitude of a block takes the lowest code, which has one more step than the
    highest: the rounding error is then at most half a step everywhere else.
    """
    count, width = values.shape
    half = 2 ** (form.bits - 1)
    blocks = values.reshape(count, -1, form.block)
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)
    scales = (peak / -half).astype(np.float32)
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    codes = np.clip(np.rint(steps), -half, half - 1) + half
    return BlockRows(codes.astype(np.uint8).reshape(count, width), scales[..., 0], None)


def _unsupported(type_name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Tensor type {type_name} is not supported.",
        found=type_name,
        expected=", ".join(SUPPORTED_TYPES),
        fix="use a file quantized to one of these types",
    )


def _blocks(raw: Bytes, size: int) -> Bytes:
    return raw.reshape(raw.shape[0], -1, size)


def _half(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of each block, [N, blocks]."""
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<f2")[..., 0].astype("<f4")


def _nibbles(packed: Bytes) -> Bytes:
    """[..., B] bytes to [..., 2B] codes: all low halves, then all high halves (ggml's order)."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _flat(codes: Bytes) -> Bytes:
    return codes.reshape(codes.shape[0], -1)


def _fifth_bits(high: Bytes) -> Bytes:
    """The 32 high bits of a Q5_0/Q5_1 block, uint8 [N, blocks, 4] -> 0 or 1 [N, blocks, 32]."""
    return np.unpackbits(high, axis=-1, bitorder="little")


def _q4_0(raw: Bytes) -> BlockRows:
    blocks = _blocks(raw, 18)
    return BlockRows(_flat(_nibbles(blocks[:, :, 2:])), _half(blocks, 0), None)


def _q4_1(raw: Bytes) -> BlockRows:
    blocks = _blocks(raw, 20)
    scales, minimums = _half(blocks, 0), _half(blocks, 2)
    codes = _flat(_nibbles(blocks[:, :, 4:]))
    return BlockRows(codes, scales, minimums + _HALF_OF_4_BITS * scales)


def _q5_0(raw: Bytes) -> BlockRows:
    blocks = _blocks(raw, 22)
    codes = _nibbles(blocks[:, :, 6:]) | (_fifth_bits(blocks[:, :, 2:6]) << _NIBBLE)
    return BlockRows(_centre_5_bits(codes), _half(blocks, 0), None)


def _q5_1(raw: Bytes) -> BlockRows:
    blocks = _blocks(raw, 24)
    scales, minimums = _half(blocks, 0), _half(blocks, 2)
    codes = _nibbles(blocks[:, :, 8:]) | (_fifth_bits(blocks[:, :, 4:8]) << _NIBBLE)
    return BlockRows(_centre_5_bits(codes), scales, minimums + _HALF_OF_5_BITS * scales)


def _centre_5_bits(codes: Bytes) -> Bytes:
    # Centred on the default zero point: the offset that remains is then as small as it can be,
    # and so is the error that 8-bit activations leave uncorrected.
    return _flat(codes + np.uint8(_HALF_OF_8_BITS - _HALF_OF_5_BITS))


def _q8_0(raw: Bytes) -> BlockRows:
    blocks = _blocks(raw, 34)
    # int8 -> uint8 + 128 is a flip of the top bit.
    return BlockRows(_flat(blocks[:, :, 2:] ^ np.uint8(0x80)), _half(blocks, 0), None)


def _k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """The 6-bit scales and minimums, [N, super-blocks, 8] each, of 12 packed bytes."""
    low, mid, top = packed[:, :, 0:4], packed[:, :, 4:8], packed[:, :, 8:12]
    scales = np.concatenate([low & 63, (top & 15) | ((low >> 6) << 4)], axis=-1)
    minimums = np.concatenate([mid & 63, (top >> 4) | ((mid >> 6) << 4)], axis=-1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _k_affine(blocks: Bytes, codes: Bytes, half: int) -> BlockRows:
    """Q4_K and Q5_K: 8 blocks of 32 with `d * scale * q - dmin * minimum`."""
    packed_scales, packed_minimums = _k_scales(blocks[:, :, 4:16])
    scales = _half(blocks, 0)[..., None] * packed_scales
    minimums = -_half(blocks, 2)[..., None] * packed_minimums
    offsets = minimums + half * scales
    count = blocks.shape[0]
    return BlockRows(_flat(codes), scales.reshape(count, -1), offsets.reshape(count, -1))


def _k_nibbles(packed: Bytes) -> Bytes:
    """[N, super-blocks, 128] -> codes [N, super-blocks, 8, 32]: each 32 bytes hold two blocks."""
    quarters = packed.reshape(*packed.shape[:2], 4, 1, 32)
    return np.concatenate([quarters & 0x0F, quarters >> 4], axis=3).reshape(
        *packed.shape[:2], 8, 32
    )


def _q4_k(raw: Bytes) -> BlockRows:
    blocks = _blocks(raw, 144)
    return _k_affine(blocks, _k_nibbles(blocks[:, :, 16:]), _HALF_OF_4_BITS)


def _q5_k(raw: Bytes) -> BlockRows:
    blocks = _blocks(raw, 176)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, :, 16:48][:, :, None, :] >> shifts) & np.uint8(1)
    codes = _k_nibbles(blocks[:, :, 48:]) | (fifth << _NIBBLE)
    return _k_affine(blocks, _centre_5_bits(codes), _HALF_OF_5_BITS)


def _q6_k(raw: Bytes) -> BlockRows:
    blocks = _blocks(raw, 210)
    count, supers = blocks.shape[:2]
    low = blocks[:, :, :128].reshape(count, supers, 2, 1, 64)
    low = np.concatenate([low & 0x0F, low >> 4], axis=3).reshape(count, supers, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, :, 128:192].reshape(count, supers, 2, 1, 32) >> shifts) & np.uint8(3)
    codes = (low | (high << _NIBBLE)) + np.uint8(_HALF_OF_8_BITS - 32)
    sub_scales = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8).astype(np.float32)
    scales = _half(blocks, 208)[..., None] * sub_scales
    return BlockRows(_flat(codes), scales.reshape(count, -1), None)


_READERS: dict[str, Callable[[Bytes], BlockRows]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
