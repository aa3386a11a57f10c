"""The `genai_config.json` of a bundle that is built here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnout.building import layers, stages

if TYPE_CHECKING:
    from turnout.building.spec import ModelSpec
    from turnout.building.tokenizer import TokenizerFacts

# Every stage is a session with a thread pool of its own, and the threads of the stage that ran
# before go on spinning for work that does not come, on the cores that the next stage needs. With
# two threads on two cores a token took 20.1 ms; with this option 9.0 ms, which is what the same
# model takes as one graph (docs/building.md).
STAGE_SESSION_OPTIONS = {"session.force_spinning_stop": "1"}


@dataclass(frozen=True)
class PipelineStage:
    """A stage as the config names it: when it runs, what it takes and gives."""

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    run_on_prompt: bool = True
    run_on_token_gen: bool = True
    is_lm_head: bool = False

    @property
    def filename(self) -> str:
        """The graph's file."""
        return f"{self.name}.onnx"

    def document(self) -> dict[str, Any]:
        """As an element of `pipeline`."""
        return {
            self.name: {
                "filename": self.filename,
                "inputs": list(self.inputs),
                "outputs": list(self.outputs),
                "run_on_prompt": self.run_on_prompt,
                "run_on_token_gen": self.run_on_token_gen,
                "is_lm_head": self.is_lm_head,
                "session_options": dict(STAGE_SESSION_OPTIONS),
            }
        }


def config_text(
    spec: ModelSpec,
    tokenizer: TokenizerFacts,
    context: int,
    pipeline: Sequence[PipelineStage] | None,
    window: int | None,
) -> str:
    """The document, UTF-8 text without escapes (onnxruntime-genai rejects them).

    `pipeline` is None for a flat bundle; `window` is the length of a static prefill.
    """
    model: dict[str, Any] = {
        "type": spec.architecture if pipeline is None else "decoder-pipeline",
        "vocab_size": spec.vocabulary,
        "context_length": context,
        **_token_ids(tokenizer, window),
        "decoder": _decoder(spec, pipeline, window),
    }
    search = {
        "max_length": context,
        "do_sample": False,
        "num_beams": 1,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "past_present_share_buffer": True,
    }
    return json.dumps({"model": model, "search": search}, indent=2, ensure_ascii=False) + "\n"


def _token_ids(tokenizer: TokenizerFacts, window: int | None) -> dict[str, Any]:
    eos = list(tokenizer.eos_ids)
    ids: dict[str, Any] = {"eos_token_id": eos[0] if len(eos) == 1 else eos}
    if tokenizer.bos_id is not None:
        ids["bos_token_id"] = tokenizer.bos_id
    # onnxruntime-genai counts a windowed prompt up to its first pad id, so that one must be an
    # id that no prompt contains; a chat prompt contains the file's own.
    pad = tokenizer.unused_id if window is not None else tokenizer.pad_id
    ids["pad_token_id"] = eos[0] if pad is None else pad
    return ids


def _decoder(
    spec: ModelSpec, pipeline: Sequence[PipelineStage] | None, window: int | None
) -> dict[str, Any]:
    lengths = (
        {"attention_mask": layers.ATTENTION_MASK}
        if window is None
        else {
            "past_sequence_length": layers.PAST_LENGTH,
            "total_sequence_length": layers.TOTAL_LENGTH,
        }
    )
    decoder: dict[str, Any] = {"session_options": {"provider_options": []}}
    if pipeline is None:
        decoder["filename"] = "model.onnx"
    decoder |= {
        "head_size": spec.head_size,
        "hidden_size": spec.hidden,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "num_hidden_layers": spec.layers,
        "inputs": {
            "input_ids": stages.INPUT_IDS,
            **lengths,
            "past_key_names": layers.PAST_NAMES[0],
            "past_value_names": layers.PAST_NAMES[1],
        },
        "outputs": {
            "logits": stages.LOGITS,
            "present_key_names": layers.PRESENT_NAMES[0],
            "present_value_names": layers.PRESENT_NAMES[1],
        },
    }
    if window is not None:
        decoder["sliding_window"] = {
            "window_size": window,
            "pad_value": 0,
            "alignment": "left",
            "slide_inputs": True,
            "slide_key_value_cache": False,
        }
    if pipeline is not None:
        decoder["pipeline"] = [stage.document() for stage in pipeline]
    return decoder
