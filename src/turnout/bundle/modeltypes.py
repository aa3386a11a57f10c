"""Values of `model.type` that onnxruntime-genai 0.18 takes, and the layouts each one takes.

Each was tried on a flat bundle and on a pipeline. The runtime compares them exactly, in case
too; later versions may know more.
"""

from __future__ import annotations

PIPELINE = "decoder-pipeline"
# They run a `decoder.pipeline`; all but the first want other sections beside it, or instead.
PIPELINE_TYPES = frozenset({PIPELINE, "fara", "gemma4", "qwen2_5_vl", "qwen3_vl"})
# They want graphs beside the decoder: vision, speech, an encoder.
_COMPOSED = (
    "fara gemma3 gemma4 gemma4_unified lfm2_audio lfm2_vl marian-ssru mistral3 nemotron_speech"
    " parakeet_tdt phi3v phi4mm qwen2_5_vl qwen3_5 qwen3_5_moe qwen3_vl streaming_enc_dec_asr"
    " videochat_flash_qwen whisper"
)
# One decoder graph, by the model's family; "decoder" stands for any.
_DECODERS = (
    "chatglm decoder ernie4_5 gemma gemma2 gemma3_text gemma3_vl_text gemma4_text gpt2 gptoss"
    " granite granitemoehybrid hunyuandensev1 internlm2 lfm2 lfm2_audio_text lfm2_moe lfm2_vl_text"
    " llama mistral mistral3_text nemotron olmo phi phi3 phi3small phimoe qwen2 qwen2_5_vl_text"
    " qwen3 qwen3_5_moe_text qwen3_5_text qwen3_vl_text smollm3"
)
COMPOSED_TYPES = frozenset(_COMPOSED.split())
DECODER_TYPES = frozenset(_DECODERS.split())
KNOWN_TYPES = DECODER_TYPES | COMPOSED_TYPES | PIPELINE_TYPES
# Layers of attention and of convolution, told apart by `decoder.layer_types`.
LAYER_TYPED = frozenset({"lfm2", "lfm2_audio_text", "lfm2_moe", "lfm2_vl_text"})
# Sections of other kinds of models, which a text model's runtime does not open (tried with files
# that are missing), and those that are opened only where a program asks for what they are for.
_FOREIGN = frozenset({"vad", "vision", "speech", "encoder", "joiner"})
_ON_DEMAND = frozenset({"mtp", "dflash2", "dspark"})


def unopened_sections(kind: str) -> frozenset[str]:
    """The sections of `model` whose graphs the runtime does not open to load that type."""
    if kind == PIPELINE:
        return _FOREIGN | _ON_DEMAND | {"embedding"}
    return _FOREIGN | _ON_DEMAND if kind in DECODER_TYPES else frozenset()
