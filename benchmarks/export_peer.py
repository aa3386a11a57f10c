"""Exports a llama GGUF file by onnxruntime-genai's model builder at int4, to race against.

    python export_peer.py MODEL.gguf BUILT_BUNDLE OUTPUT

Needs torch, transformers, safetensors and onnxruntime-genai. The checkpoint that the builder
reads holds the file's weights dequantized; the tokenizer is the built bundle's own.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from turnout.building.architectures import LayerPlan, plan_model
from turnout.building.gguf import GgufFile
from turnout.building.matrices import SourceRows
from turnout.building.spec import ModelSpec, read_spec


def main() -> None:
    source, bundle, output = (Path(argument) for argument in sys.argv[1:4])
    with tempfile.TemporaryDirectory() as name:
        checkpoint = Path(name) / "checkpoint"
        checkpoint.mkdir()
        write_checkpoint(source, checkpoint)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(bundle / file, checkpoint / file)
        run_builder(checkpoint, output, Path(name) / "cache")


def write_checkpoint(source: Path, folder: Path) -> None:
    with GgufFile.open(source) as gguf:
        spec = read_spec(gguf)
        if spec.architecture != "llama":
            sys.exit(f"only llama is written as a checkpoint here, not {spec.architecture}")
        plan = plan_model(gguf, spec)
        tensors = {
            "model.embed_tokens.weight": values(plan.embedding),
            "model.norm.weight": plan.output_norm.values(),
        }
        if plan.head is not None:
            tensors["lm_head.weight"] = values(plan.head.weight)
        for index, layer in enumerate(plan.layers):
            tensors |= layer_tensors(f"model.layers.{index}", layer)
    whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(spec, plan.tied)), encoding="utf-8")


def layer_tensors(prefix: str, layer: LayerPlan) -> dict[str, np.ndarray]:
    return {
        f"{prefix}.input_layernorm.weight": layer.attention_norm.values(),
        f"{prefix}.post_attention_layernorm.weight": layer.feed_forward_norm.values(),
        f"{prefix}.self_attn.q_proj.weight": values(layer.query.weight),
        f"{prefix}.self_attn.k_proj.weight": values(layer.key.weight),
        f"{prefix}.self_attn.v_proj.weight": values(layer.value.weight),
        f"{prefix}.self_attn.o_proj.weight": values(layer.attention_output.weight),
        f"{prefix}.mlp.gate_proj.weight": values(layer.gate.weight),
        f"{prefix}.mlp.up_proj.weight": values(layer.up.weight),
        f"{prefix}.mlp.down_proj.weight": values(layer.down.weight),
    }


def values(rows: SourceRows) -> np.ndarray:
    """The matrix in float32, heads in split rotary order as checkpoints have them."""
    return np.concatenate(list(rows.float_chunks()))


def config(spec: ModelSpec, tied: bool) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.feed_forward,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_size,
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope.base,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope.base},
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "float32",
    }


def run_builder(checkpoint: Path, output: Path, cache: Path) -> None:
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    place = ("", str(checkpoint), str(output), "int4", "cpu", str(cache))
    options = parse_extra_options(*place, ["int4_accuracy_level=4", "int4_block_size=32"])
    create_model(*place, **options)


if __name__ == "__main__":
    main()
