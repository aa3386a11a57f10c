"""Writes GGUF files byte by byte, right ones and wrong ones.

Values of metadata are pairs (type number, bytes), made by the small functions below, so that
a test says exactly what stands in the file. Layout after ggml's docs/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Value = tuple[int, bytes]
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8


def text_bytes(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def u8(value: int) -> Value:
    return 0, struct.pack("<B", value)


def i8(value: int) -> Value:
    return 1, struct.pack("<b", value)


def u16(value: int) -> Value:
    return 2, struct.pack("<H", value)


def u32(value: int) -> Value:
    return 4, struct.pack("<I", value)


def i32(value: int) -> Value:
    return 5, struct.pack("<i", value)


def f32(value: float) -> Value:
    return 6, struct.pack("<f", value)


def flag(value: int) -> Value:
    return 7, struct.pack("<B", value)


def string(value: str | bytes) -> Value:
    return 8, text_bytes(value)


def i64(value: int) -> Value:
    return 11, struct.pack("<q", value)


def f64(value: float) -> Value:
    return 12, struct.pack("<d", value)


def array(kind: int, payload: bytes, count: int) -> Value:
    """An array of `count` elements (claimed) of type `kind`, with any bytes for them."""
    return 9, struct.pack("<IQ", kind, count) + payload


def strings(values: Sequence[str | bytes]) -> Value:
    return array(8, b"".join(text_bytes(value) for value in values), len(values))


def i32s(values: Sequence[int]) -> Value:
    return array(5, struct.pack(f"<{len(values)}i", *values), len(values))


def f32s(values: Sequence[float]) -> Value:
    return array(6, struct.pack(f"<{len(values)}f", *values), len(values))


@dataclass(frozen=True)
class Tensor:
    """A tensor's description, dimensions in the file's order, and its data."""

    name: str
    dims: Sequence[int]
    kind: int = F32
    data: bytes = b""
    offset: int | None = None  # None: after the one before, aligned


def gguf_bytes(
    metadata: Mapping[str | bytes, Value] | Sequence[tuple[str | bytes, Value]] = (),
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    alignment: int = 32,
    tensor_count: int | None = None,
    key_count: int | None = None,
) -> bytes:
    """A whole file. The counts and offsets can be made to lie."""
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if key_count is None else key_count,
    )
    for key, (kind, payload) in pairs:
        head += text_bytes(key) + struct.pack("<I", kind) + payload
    data = b""
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        offset = len(data) if tensor.offset is None else tensor.offset
        head += text_bytes(tensor.name) + struct.pack("<I", len(tensor.dims))
        head += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
        head += struct.pack("<IQ", tensor.kind, offset)
        data += tensor.data
    return head + bytes(-len(head) % alignment) + data


def write_gguf(
    path: Path,
    metadata: Mapping[str | bytes, Value] | Sequence[tuple[str | bytes, Value]] = (),
    tensors: Sequence[Tensor] = (),
) -> Path:
    """Write a right file to `path`."""
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte, from the description in its encoder.py."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    kept += range(ord("®"), ord("ÿ") + 1)
    moved = [byte for byte in range(256) if byte not in kept]
    return [chr(b) if b in kept else chr(256 + moved.index(b)) for b in range(256)]


def bpe_metadata(
    merges: Sequence[str],
    /,
    *,
    pre: str | None = "qwen2",
    special: Sequence[str] = ("<|begin|>", "<|end|>"),
    extra: Sequence[tuple[str, int]] = (),
    bytes_left_out: Sequence[int] = (),
    **changes: Value | None,
) -> dict[str | bytes, Value]:
    """Metadata of a byte-level tokenizer: special tokens, bytes, what `merges` make, `extra`.

    `changes` replace (or, None, leave out) keys under `tokenizer.ggml.`; the end token is the
    second special one.
    """
    tokens = [*special]
    types = [3] * len(special)
    tokens += [c for b, c in enumerate(byte_alphabet()) if b not in bytes_left_out]
    tokens += dict.fromkeys(merge.replace(" ", "", 1) for merge in merges)
    types += [1] * (len(tokens) - len(types))
    for token, kind in extra:
        tokens.append(token)
        types.append(kind)
    values: dict[str, Value | None] = {
        "model": string("gpt2"),
        "pre": None if pre is None else string(pre),
        "tokens": strings(tokens),
        "token_type": i32s(types),
        "merges": strings(merges),
        "bos_token_id": u32(0),
        "eos_token_id": u32(1),
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def spm_metadata(
    pieces: Mapping[str, float], /, **changes: Value | None
) -> dict[str | bytes, Value]:
    """Metadata of a SentencePiece tokenizer: `<unk>`, `<s>`, `</s>`, 256 bytes, `pieces`."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    values: dict[str, Value | None] = {
        "model": string("llama"),
        "tokens": strings(tokens),
        "token_type": i32s(types),
        "scores": f32s([0.0] * 259 + list(pieces.values())),
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
