"""Facts of the GGUF format: value types, tensor types, and what other files look like.

Source of the numbers: docs/gguf.md and `gguf-py/gguf/constants.py` of the ggml project.
"""

from __future__ import annotations

from dataclasses import dataclass

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
STRING, ARRAY, BOOL = 8, 9, 7


@dataclass(frozen=True)
class ValueType:
    """A type of metadata value: its name in the format, struct code and size in bytes."""

    name: str
    code: str
    size: int


SCALARS = {
    0: ValueType("UINT8", "B", 1),
    1: ValueType("INT8", "b", 1),
    2: ValueType("UINT16", "H", 2),
    3: ValueType("INT16", "h", 2),
    4: ValueType("UINT32", "I", 4),
    5: ValueType("INT32", "i", 4),
    6: ValueType("FLOAT32", "f", 4),
    BOOL: ValueType("BOOL", "B", 1),
    10: ValueType("UINT64", "Q", 8),
    11: ValueType("INT64", "q", 8),
    12: ValueType("FLOAT64", "d", 8),
}
VALUE_NAMES = {number: kind.name for number, kind in SCALARS.items()}
VALUE_NAMES |= {STRING: "STRING", ARRAY: "ARRAY"}


@dataclass(frozen=True)
class TensorType:
    """A tensor type that can be imported: `block` values take `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}
# Known by name only, so that an error can say what a file holds.
OTHER_TENSOR_TYPES = {
    4: "Q4_2 (removed from the format)",
    5: "Q4_3 (removed from the format)",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4 (removed from the format)",
    32: "Q4_0_4_8 (removed from the format)",
    33: "Q4_0_8_8 (removed from the format)",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4 (removed from the format)",
    37: "IQ4_NL_4_8 (removed from the format)",
    38: "IQ4_NL_8_8 (removed from the format)",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}

_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint, or a file still packed)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded"),
    (b"tjgg", "a GGJT file, the format before GGUF"),
    (b"fmgg", "a GGMF file, an old format before GGUF"),
    (b"lmgg", "a GGML file, an old format before GGUF"),
    (b"algg", "a GGLA adapter, a format before GGUF"),
    (b"\x80", "a Python pickle (an old PyTorch checkpoint)"),
    (b"\x89HDF", "an HDF5 file"),
)


def looks_like(head: bytes) -> str | None:
    """What a file that starts with `head` (16 bytes or more, if it has them) seems to be."""
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    text = head.lstrip().lower()
    guesses = (
        (not head, "an empty file"),
        (not any(head), "zeros: the download did not finish"),
        (text.startswith((b"<!doctype", b"<html")), "a web page: the download went wrong"),
        # The length of a JSON object, then that object.
        (head[5:9] == b"\0\0\0{", "a safetensors file"),
        # Field 1, ir_version, a number below 32.
        (head[:1] == b"\x08" and b"\0" < head[1:2] < b" ", "an ONNX model"),
        (text.startswith((b"{", b"[")), "a JSON document"),
    )
    return next((name for fits, name in guesses if fits), None)
