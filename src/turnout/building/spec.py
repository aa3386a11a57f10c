"""What a GGUF file says about its model: sizes, norms, rotary embedding; checked against itself.

`read_spec` turns metadata into a `ModelSpec`; `architectures.py` says which tensors go where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.errors import GgufError, UnsupportedModelError

if TYPE_CHECKING:
    from turnout.building.gguf import GgufFile


@dataclass(frozen=True)
class Family:
    """What sets an architecture of GGUF's apart.

    `interleaved_heads`: rows of Q and K are stored in the order of an interleaved rotary
    embedding, and are put back. `query_key_norms`: RMS norms on each head of Q and K.
    """

    interleaved_heads: bool = False
    query_key_norms: bool = False


# One row an architecture that is authored here; the key is also onnxruntime-genai's model type.
FAMILIES = {
    "llama": Family(interleaved_heads=True),
    "qwen2": Family(),
    "qwen3": Family(query_key_norms=True),
}

# Metadata that changes the mathematics in a way that no graph here expresses, with the value
# that leaves it unchanged.
_UNHANDLED: dict[str, object] = {
    "expert_count": 0,
    "attention.causal": True,
    "attention.sliding_window": 0,
    "attention.scale": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "pooling_type": 0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "embedding_scale": 0.0,
    "attention.clamp_kqv": 0.0,
}


# GroupQueryAttention on the CPU EP refuses others ("head_size must be a multiple of 8").
HEAD_UNIT = 8


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding: `base` of the frequencies, `linear_factor` that divides positions."""

    base: float
    linear_factor: float


@dataclass(frozen=True)
class ModelSpec:
    """The sizes of a decoder. Lengths are counts of values; `context` is in tokens."""

    architecture: str
    family: Family
    name: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    norm_epsilon: float
    rope: RopeSpec


def read_spec(gguf: GgufFile) -> ModelSpec:
    """The model that `gguf` describes.

    Raises `UnsupportedModelError` for an architecture or a feature that is not handled, and
    `GgufError` for metadata that is missing or contradicts itself.
    """
    architecture = gguf.architecture
    if architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"Architecture {architecture!r} is not supported.",
            found=repr(architecture),
            expected=", ".join(FAMILIES),
            where=f"{gguf.path}: general.architecture",
        )
    _refuse_unhandled(gguf, architecture)
    reader = _Sizes(gguf, architecture)
    heads, hidden = reader.positive("attention.head_count"), reader.positive("embedding_length")
    head_size = reader.head_size(hidden, heads)
    spec = ModelSpec(
        architecture=architecture,
        family=FAMILIES[architecture],
        name=gguf.text("general.name", default=architecture),
        layers=reader.positive("block_count"),
        hidden=hidden,
        feed_forward=reader.positive("feed_forward_length"),
        heads=heads,
        kv_heads=reader.positive("attention.head_count_kv", default=heads),
        head_size=head_size,
        vocabulary=_vocabulary(gguf, architecture),
        context=reader.positive("context_length"),
        norm_epsilon=reader.epsilon(),
        rope=_rope(gguf, architecture),
    )
    if spec.heads % spec.kv_heads:
        raise GgufError(
            "The query heads cannot be shared out among the key-value heads.",
            found=f"{spec.heads} query heads, {spec.kv_heads} key-value heads",
            expected="a multiple",
            where=f"{gguf.path}: {architecture}.attention.head_count_kv",
        )
    return spec


class _Sizes:
    """Reads one architecture's integers with bounds."""

    # No model of this field comes near; a larger count is damage, and would be looped over.
    LARGEST = 2**24

    def __init__(self, gguf: GgufFile, architecture: str) -> None:
        self._gguf = gguf
        self._prefix = architecture

    def positive(self, key: str, default: int | None = None) -> int:
        full = f"{self._prefix}.{key}"
        if default is not None and full not in self._gguf.metadata:
            return default
        value: int = self._gguf.integer(full)
        if not 0 < value <= self.LARGEST:
            raise GgufError(
                f"{full} makes no sense.",
                found=value,
                expected=f"1 to {self.LARGEST}",
                where=f"{self._gguf.path}: {full}",
            )
        return value

    def head_size(self, hidden: int, heads: int) -> int:
        size = self.positive("attention.key_length", default=hidden // heads or 1)
        value_size = self.positive("attention.value_length", default=size)
        rope_size = self.positive("rope.dimension_count", default=size)
        where = f"{self._gguf.path}: {self._prefix}.attention"
        if not size == value_size == rope_size:
            raise UnsupportedModelError(
                "Heads whose keys, values and rotary embedding differ in size are not supported.",
                found=f"key {size}, value {value_size}, rotary {rope_size}",
                expected="one size",
                where=where,
                fix="check the head count and the lengths of keys, values and rotary embedding",
            )
        if size % HEAD_UNIT:
            raise UnsupportedModelError(
                "The runtime does not take heads of that size.",
                found=f"{size} values: {hidden} in {heads} heads",
                expected=f"a multiple of {HEAD_UNIT}",
                where=where,
            )
        return size

    def epsilon(self) -> float:
        key = f"{self._prefix}.attention.layer_norm_rms_epsilon"
        value: float = self._gguf.number(key)
        if not 0 < value < 1:
            raise GgufError(
                f"{key} makes no sense.",
                found=value,
                expected="a small positive number",
                where=f"{self._gguf.path}: {key}",
            )
        return value


def _vocabulary(gguf: GgufFile, architecture: str) -> int:
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise GgufError(
            "The file has no token embedding.",
            found="no token_embd.weight" if embedding is None else f"shape {embedding.shape}",
            expected="a matrix token_embd.weight",
            where=gguf.path,
        )
    rows = embedding.shape[0]
    key = f"{architecture}.vocab_size"
    claimed = gguf.integer(key, default=rows)
    if claimed != rows:
        raise GgufError(
            "The vocabulary of the metadata is not that of the token embedding.",
            found=f"{claimed} tokens, {rows} rows",
            expected="as many tokens as rows",
            where=f"{gguf.path}: {key}",
        )
    return rows


def _rope(gguf: GgufFile, architecture: str) -> RopeSpec:
    prefix = f"{architecture}.rope"
    # A file that has a factor and names no type means the linear one, as llama.cpp reads it;
    # `scale_linear` is what files had before `scaling.factor`, and 0 is none.
    kind = gguf.text(f"{prefix}.scaling.type", default="linear")
    factor = gguf.number(f"{prefix}.scaling.factor", default=None)
    if factor is None:
        factor = gguf.number(f"{prefix}.scale_linear", default=1.0)
    if kind == "none" or factor == 0:
        factor = 1.0
    elif kind != "linear":
        raise UnsupportedModelError(
            f"Rotary scaling {kind!r} is not supported.",
            found=kind,
            expected="none, linear, or factors in rope_freqs.weight",
            where=f"{gguf.path}: {prefix}.scaling.type",
        )
    base = gguf.number(f"{prefix}.freq_base", default=10000.0)
    if base <= 1 or factor <= 0:
        raise GgufError(
            "The rotary embedding's base or factor makes no sense.",
            found=f"base {base}, factor {factor}",
            expected="a base above 1, a factor above 0",
            where=f"{gguf.path}: {prefix}.freq_base",
        )
    return RopeSpec(base=base, linear_factor=factor)


def _refuse_unhandled(gguf: GgufFile, architecture: str) -> None:
    kind = gguf.text("general.type", default="model")
    if kind != "model":
        raise UnsupportedModelError(
            f"The file holds no model, but what it calls {kind!r}.",
            found=kind,
            expected="model",
            where=f"{gguf.path}: general.type",
        )
    for key, neutral in _UNHANDLED.items():
        full = f"{architecture}.{key}"
        value = gguf.metadata.get(full, neutral)
        if value != neutral:
            raise UnsupportedModelError(
                f"{full} is set, and models with it are not supported.",
                found=value,
                expected=f"absent, or {neutral}",
                where=f"{gguf.path}: {full}",
            )
