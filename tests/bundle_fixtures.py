"""Small bundles that really load and run in onnxruntime-genai, built in well under a second.

A bundle is a two-layer decoder with a vocabulary of 260 (256 bytes and four special tokens),
all weights in one external file, key-value caches by `Concat`. The same weights make a flat
bundle, a pipeline of three stages, and one of four whose prefill and decode stages are the
same graph over the same ranges of the data file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

VOCAB, HIDDEN, HEADS, LAYERS = 260, 16, 2, 2
HEAD_SIZE = HIDDEN // HEADS
DATA_FILE = "weights.data"
CONTEXT_LENGTH = 64
SPECIAL = {"<s>": 256, "</s>": 257, "<|user|>": 258, "<|end|>": 259}
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"


class WeightFile:
    """One data file; a tensor that is added twice is stored once."""

    def __init__(self, path: Path, *, inline: bool = False) -> None:
        self.path, self.inline = path, inline
        self.ranges: dict[str, tuple[int, int]] = {}
        self.generator = np.random.default_rng(7)
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        if not inline:
            path.write_bytes(b"")

    def tensor(self, name: str, shape: Sequence[int]) -> onnx.TensorProto:
        if name not in self.arrays:
            scale = 2.0 if name == "lm_head" else 0.6
            self.arrays[name] = self.generator.normal(0, scale, shape).astype(np.float32)
        array = self.arrays[name]
        if self.inline:
            return onnx.numpy_helper.from_array(array, name)
        if name not in self.ranges:
            with self.path.open("ab") as file:
                offset = -(-file.tell() // 64) * 64
                file.write(bytes(offset - file.tell()) + array.tobytes())
            self.ranges[name] = (offset, array.nbytes)
        offset, length = self.ranges[name]
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=list(shape))
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.path.name), ("offset", offset), ("length", length)):
            proto.external_data.add(key=key, value=str(value))
        return proto


def build_flat(folder: Path, *, inline: bool = False, **changes: Any) -> Path:
    """A bundle of one decoder, `model.onnx`; `inline` keeps the weights inside the graph."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = WeightFile(folder / DATA_FILE, inline=inline)
    nodes = [*_embed_nodes(), *_layer_nodes(), *_head_nodes()]
    graph = helper.make_graph(
        nodes,
        "flat",
        [_info("input_ids", TensorProto.INT64, ["batch", "sequence"]), *_past()],
        [_info("logits", TensorProto.FLOAT, ["batch", "sequence", VOCAB]), *_present()],
        [
            *_constants(),
            *_embed_weights(weights),
            *_layer_weights(weights),
            *_head_weights(weights),
        ],
    )
    _save(graph, folder / "model.onnx")
    decoder: dict[str, Any] = {"filename": "model.onnx"}
    _finish(folder, "llama", decoder, changes)
    return folder


def build_pipeline(
    folder: Path,
    *,
    two_sessions: bool = False,
    layout: str = "one object",
    providers: Mapping[str, list[dict[str, Any]]] | None = None,
    subfolder: str = "",
    **changes: Any,
) -> Path:
    """Stages embeddings, transformer (or context and iterator), lm_head.

    `layout` is "one object", "many objects" or "plain object"; `providers` gives stages their
    own `provider_options`; `subfolder` holds the graphs and the data file.
    """
    place = folder / subfolder
    place.mkdir(parents=True, exist_ok=True)
    weights = WeightFile(place / DATA_FILE)
    ids = _info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    hidden = _info("hidden", TensorProto.FLOAT, ["batch", "sequence", HIDDEN])
    normed = _info("normed", TensorProto.FLOAT, ["batch", "sequence", HIDDEN])
    logits = _info("logits", TensorProto.FLOAT, ["batch", "sequence", VOCAB])
    middle = ("context", "iterator") if two_sessions else ("transformer",)
    embed = helper.make_graph(
        _embed_nodes(), "embeddings", [ids], [hidden], _embed_weights(weights)
    )
    _save(embed, place / "embeddings.onnx")
    for name in middle:
        graph = helper.make_graph(
            _layer_nodes(),
            name,
            [hidden, *_past()],
            [normed, *_present()],
            [*_constants(), *_layer_weights(weights)],
        )
        _save(graph, place / f"{name}.onnx")
    head = helper.make_graph(_head_nodes(), "lm_head", [normed], [logits], _head_weights(weights))
    _save(head, place / "lm_head.onnx")
    pipeline = _pipeline(middle, subfolder, providers or {})
    laid_out: Any = pipeline
    if layout == "one object":
        laid_out = [pipeline]
    elif layout == "many objects":
        laid_out = [{name: stage} for name, stage in pipeline.items()]
    _finish(folder, "decoder-pipeline", {"pipeline": laid_out}, changes)
    return folder


def generate(folder: Path, prompt: Sequence[int] = (5, 6, 7), tokens: int = 6) -> list[int]:
    """Greedy tokens of the bundle through onnxruntime-genai itself."""
    import onnxruntime_genai as og

    model = og.Model(og.Config(str(folder)))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + tokens, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([prompt], dtype=np.int32))
    answer = []
    for _ in range(tokens):
        generator.generate_next_token()
        answer.append(int(generator.get_next_tokens()[0]))
    return answer


def as_hub_cache(bundle: Path, root: Path, inside: str = "") -> Path:
    """`bundle` as a hub's client stores it: links from a snapshot into `root/blobs`."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "0123abcd" / inside
    blobs.mkdir(parents=True)
    for path in sorted(bundle.rglob("*")):
        if path.is_file():
            blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
            shutil.copyfile(path, blob)
            link = snapshot / path.relative_to(bundle)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def write_tokenizer(folder: Path, **changes: Any) -> None:
    """A byte-level BPE tokenizer without merges but one."""
    letters = _byte_letters()
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    added = [
        {"id": index, "content": text, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for text, index in SPECIAL.items()
    ]  # fmt: skip
    split = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": False}
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": split, "post_processor": None, "decoder": split,
        "model": model,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        **changes,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def read_config(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "genai_config.json").read_text("utf-8"))
    return data


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    text = json.dumps(config, indent=4, ensure_ascii=False)
    (folder / "genai_config.json").write_text(text + "\n", "utf-8")


def _finish(folder: Path, kind: str, decoder: dict[str, Any], changes: Mapping[str, Any]) -> None:
    config = {
        "model": {
            "bos_token_id": 256,
            "context_length": CONTEXT_LENGTH,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                **decoder,
                "head_size": HEAD_SIZE,
                "hidden_size": HIDDEN,
                "inputs": {
                    "input_ids": "input_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
                "num_attention_heads": HEADS,
                "num_hidden_layers": LAYERS,
                "num_key_value_heads": HEADS,
                **changes.get("decoder", {}),
            },
            "eos_token_id": 257,
            "pad_token_id": 257,
            "type": kind,
            "vocab_size": VOCAB,
            **changes.get("model", {}),
        },
        "search": {
            "do_sample": False,
            "max_length": CONTEXT_LENGTH,
            "past_present_share_buffer": False,
        },
    }
    write_config(folder, config)
    write_tokenizer(folder)


def _pipeline(
    middle: Sequence[str], subfolder: str, providers: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    past = [info.name for info in _past()]
    present = [info.name for info in _present()]
    stages: dict[str, dict[str, Any]] = {
        "embeddings": {"inputs": ["input_ids"], "outputs": ["hidden"]}
    }
    for name in middle:
        stages[name] = {"inputs": ["hidden", *past], "outputs": ["normed", *present]}
    if len(middle) == 2:
        stages["context"]["run_on_token_gen"] = False
        stages["iterator"]["run_on_prompt"] = False
    stages["lm_head"] = {"inputs": ["normed"], "outputs": ["logits"], "is_lm_head": True}
    prefix = f"{subfolder}/" if subfolder else ""
    for name, stage in stages.items():
        stage["filename"] = f"{prefix}{name}.onnx"
        if name in providers:
            stage["session_options"] = {"provider_options": providers[name]}
    return stages


def _info(name: str, kind: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _cache(prefix: str, length: str) -> list[onnx.ValueInfoProto]:
    return [
        _info(f"{prefix}.{layer}.{part}", TensorProto.FLOAT, ["batch", HEADS, length, HEAD_SIZE])
        for layer in range(LAYERS)
        for part in ("key", "value")
    ]


def _past() -> list[onnx.ValueInfoProto]:
    return _cache("past_key_values", "past")


def _present() -> list[onnx.ValueInfoProto]:
    return _cache("present", "total")


def _constants() -> list[onnx.TensorProto]:
    return [
        helper.make_tensor("split", TensorProto.INT64, [4], [0, 0, HEADS, HEAD_SIZE]),
        helper.make_tensor("join", TensorProto.INT64, [3], [0, 0, HIDDEN]),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [HEAD_SIZE**-0.5]),
    ]


def _embed_weights(weights: WeightFile) -> list[onnx.TensorProto]:
    return [weights.tensor("embed", [VOCAB, HIDDEN])]


def _layer_weights(weights: WeightFile) -> list[onnx.TensorProto]:
    return [
        weights.tensor(f"layer.{layer}.{part}", [HIDDEN, HIDDEN])
        for layer in range(LAYERS)
        for part in ("q", "k", "v", "o")
    ]


def _head_weights(weights: WeightFile) -> list[onnx.TensorProto]:
    return [weights.tensor("lm_head", [HIDDEN, VOCAB])]


def _embed_nodes() -> list[onnx.NodeProto]:
    return [helper.make_node("Gather", ["embed", "input_ids"], ["hidden"], name="embed")]


def _head_nodes() -> list[onnx.NodeProto]:
    return [helper.make_node("MatMul", ["normed", "lm_head"], ["logits"], name="head")]


def _layer_nodes() -> list[onnx.NodeProto]:
    nodes = []
    state = "hidden"
    for layer in range(LAYERS):
        made, state = _one_layer(layer, state)
        nodes += made
    return [*nodes, helper.make_node("Tanh", [state], ["normed"], name="norm")]


def _one_layer(layer: int, state: str) -> tuple[list[onnx.NodeProto], str]:
    p = f"l{layer}."
    node = helper.make_node
    nodes = []
    for part in ("q", "k", "v"):
        nodes += [
            node("MatMul", [state, f"layer.{layer}.{part}"], [p + part], name=p + part),
            node("Reshape", [p + part, "split"], [p + part + "4"], name=p + part + "4"),
            node("Transpose", [p + part + "4"], [p + part + "t"], name=p + part + "t",
                 perm=[0, 2, 1, 3]),
        ]  # fmt: skip
    key, value = f"present.{layer}.key", f"present.{layer}.value"
    nodes += [
        node("Concat", [f"past_key_values.{layer}.key", p + "kt"], [key], axis=2, name=p + "ck"),
        node(
            "Concat", [f"past_key_values.{layer}.value", p + "vt"], [value], axis=2, name=p + "cv"
        ),
        node("Transpose", [key], [p + "kT"], perm=[0, 1, 3, 2], name=p + "kT"),
        node("MatMul", [p + "qt", p + "kT"], [p + "qk"], name=p + "qk"),
        node("Mul", [p + "qk", "scale"], [p + "scaled"], name=p + "scaled"),
        node("Softmax", [p + "scaled"], [p + "soft"], axis=-1, name=p + "soft"),
        node("MatMul", [p + "soft", value], [p + "mixed"], name=p + "mixed"),
        node("Transpose", [p + "mixed"], [p + "back"], perm=[0, 2, 1, 3], name=p + "back"),
        node("Reshape", [p + "back", "join"], [p + "joined"], name=p + "joined"),
        node("MatMul", [p + "joined", f"layer.{layer}.o"], [p + "out"], name=p + "out"),
        node("Add", [state, p + "out"], [p + "sum"], name=p + "sum"),
    ]
    return nodes, p + "sum"


def _save(graph: onnx.GraphProto, path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="fixtures")
    path.write_bytes(model.SerializeToString())


def _byte_letters() -> list[str]:
    """The printable letter of each byte, as byte-level BPE vocabularies write it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + sum(1 for b in letters if b not in plain)))
    return [letters[byte] for byte in range(256)]
