"""`turnout build` as a person meets it: help, refusals, and what is left behind (nothing)."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

import turnout as package
from turnout.building import datafile
from turnout.errors import OutputExistsError, UnsupportedModelError, UsageError, WriteError

pytest_plugins = ("session_plugin",)

DATA = Path(__file__).parent / "data" / "tiny"
SOURCE = DATA / "llama-f32.gguf"


def rewrite(target: Path, change) -> Path:
    """A copy of the small model, written by the gguf package; `change` edits fields and tensors."""
    reader = gguf.GGUFReader(SOURCE)
    fields = {
        name: (field.contents(), field.types[0], field.types[-1])
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = {
        tensor.name: (np.array(tensor.data), tensor.tensor_type) for tensor in reader.tensors
    }
    change(fields, tensors)
    writer = gguf.GGUFWriter(target, fields["general.architecture"][0])
    for name, (value, kind, item) in fields.items():
        if name == "general.architecture":
            continue
        sub = item if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=sub)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def set_field(name: str, value):
    def change(fields, tensors):
        _, kind, item = fields[name]
        fields[name] = (value, kind, item)

    return change


def drop_field(name: str):
    return lambda fields, tensors: fields.pop(name)


def add_number(name: str, value: int):
    def change(fields, tensors):
        kind = gguf.GGUFValueType.UINT32
        fields[name] = (value, kind, kind)

    return change


def set_heads_of_four(fields, tensors):
    set_field("llama.attention.head_count", 16)(fields, tensors)
    set_field("llama.rope.dimension_count", 4)(fields, tensors)


def add_text(name: str, text: str, other: str | None = None, number: float = 0.0):
    def change(fields, tensors):
        kind = gguf.GGUFValueType.STRING
        fields[name] = (text, kind, kind)
        if other is not None:
            kind = gguf.GGUFValueType.FLOAT32
            fields[other] = (number, kind, kind)

    return change


def add_flag(name: str, value: bool):
    def change(fields, tensors):
        kind = gguf.GGUFValueType.BOOL
        fields[name] = (value, kind, kind)

    return change


def add_tensor(name: str):
    def change(fields, tensors):
        tensors[name] = (np.ones(64, np.float32), gguf.GGMLQuantizationType.F32)

    return change


def set_tensor(name: str, data, kind=gguf.GGMLQuantizationType.F32):
    def change(fields, tensors):
        tensors[name] = (data, kind)

    return change


REFUSED = {
    "an architecture that is not supported names those that are": (
        set_field("general.architecture", "mamba"),
        ("mamba", "llama, qwen2, qwen3"),
    ),
    "a tensor that nothing consumes": (add_tensor("blk.0.attn_sinks.weight"), ("attn_sinks",)),
    "a layer more than the metadata says": (
        set_field("llama.block_count", 1),
        ("blk.1.attn_norm.weight",),
    ),
    "a layer less than the metadata says": (
        set_field("llama.block_count", 3),
        ("blk.2.attn_norm.weight", "missing"),
    ),
    "required metadata that is missing": (
        drop_field("llama.embedding_length"),
        ("llama.embedding_length",),
    ),
    "a norm epsilon that is missing": (
        drop_field("llama.attention.layer_norm_rms_epsilon"),
        ("layer_norm_rms_epsilon",),
    ),
    "shapes that contradict the metadata": (
        set_field("llama.feed_forward_length", 256),
        ("[128, 64]", "[256, 64]"),
    ),
    "heads that cannot be shared out": (
        set_field("llama.attention.head_count_kv", 3),
        ("head",),
    ),
    "zero layers": (set_field("llama.block_count", 0), ("llama.block_count",)),
    "layers without end": (set_field("llama.block_count", 2**32 - 1), ("llama.block_count",)),
    "a mixture of experts": (add_number("llama.expert_count", 8), ("llama.expert_count",)),
    "an unknown tokenizer kind": (
        set_field("tokenizer.ggml.model", "rwkv"),
        ("rwkv", "gpt2"),
    ),
    "an unknown pre-tokenizer": (
        set_field("tokenizer.ggml.pre", "dbrx"),
        ("dbrx", "smollm"),
    ),
    "a tensor type that is not supported": (
        set_tensor(
            "blk.0.ffn_up.weight",
            np.zeros((128, 72), np.uint8),
            gguf.GGMLQuantizationType.IQ4_NL,
        ),
        ("IQ4_NL", "Q4_K"),
    ),
    "heads of a size that the runtime does not take": (
        set_heads_of_four,
        ("multiple of 8",),
    ),
    "an adapter in place of a model": (add_text("general.type", "adapter"), ("adapter",)),
    "attention that sees what comes": (add_flag("llama.attention.causal", False), ("causal",)),
    "rotary scaling of a kind that is not handled": (
        add_text("llama.rope.scaling.type", "yarn", "llama.rope.scaling.factor", 4.0),
        ("yarn",),
    ),
    "a vocabulary that is not the embedding's": (
        set_field("llama.vocab_size", 999),
        ("999 tokens", "320 rows"),
    ),
    "biases of some projections only": (
        set_tensor("blk.0.attn_q.bias", np.ones(64, np.float32)),
        ("blk.0.attn_k", "blk.0.attn_v"),
    ),
    "a norm that is no number": (
        set_tensor("blk.1.ffn_norm.weight", np.full(64, np.nan, np.float32)),
        ("blk.1.ffn_norm.weight", "no numbers"),
    ),
    "an infinite weight": (
        set_tensor("blk.1.ffn_up.weight", np.full((128, 64), np.inf, np.float32)),
        ("blk.1.ffn_up.weight", "no numbers"),
    ),
    "an infinite scale": (
        set_tensor(
            "blk.1.ffn_up.weight",
            # Blocks of Q8_0: a float16 infinity, then 32 codes.
            np.tile(np.frombuffer(b"\x00\x7c" + bytes(32), np.uint8), (128, 2)),
            gguf.GGMLQuantizationType.Q8_0,
        ),
        ("blk.1.ffn_up.weight", "no numbers"),
    ),
    "rotary factors of nothing": (
        set_tensor("rope_freqs.weight", np.zeros(8, np.float32)),
        ("rope_freqs.weight", "positive"),
    ),
    "a template with a NUL": (
        set_field("tokenizer.chat_template", "{{ messages }}\0{{ more }}"),
        ("tokenizer.chat_template", "NUL"),
    ),
    "more tokens than embedding rows": (
        set_tensor("token_embd.weight", np.ones((300, 64), np.float32)),
        ("300",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_with_it_is_refused_and_nothing_is_written(case, tmp_path, turnout):
    change, said = REFUSED[case]
    source = rewrite(tmp_path / "model.gguf", change)
    result = turnout("build", source, "-o", tmp_path / "out" / "bundle")
    assert result.code == 1
    for words in said:
        assert words in result.err, result.err
    assert "Traceback" not in result.err
    assert not list((tmp_path / "out").glob("*"))


def test_the_copy_that_the_refusals_change_is_itself_accepted(tmp_path, turnout):
    source = rewrite(tmp_path / "model.gguf", lambda fields, tensors: None)
    assert turnout("build", source, "-o", tmp_path / "bundle").code == 0


@pytest.mark.parametrize(
    ("length", "where"), [(2, "header"), (20, "header"), (900, "metadata"), (467000, "tensor")]
)
def test_a_truncated_file_is_refused(length, where, tmp_path, turnout):
    source = tmp_path / "cut.gguf"
    source.write_bytes(SOURCE.read_bytes()[:length])
    result = turnout("build", source, "-o", tmp_path / "bundle")
    assert result.code == 1
    assert "where:" in result.err
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(64), b"not a model at all" * 9])
def test_another_kind_of_file_is_refused(content, tmp_path, turnout):
    source = tmp_path / "model.gguf"
    source.write_bytes(content)
    result = turnout("build", source, "-o", tmp_path / "bundle")
    assert result.code == 1
    assert "GGUF" in result.err
    assert not (tmp_path / "bundle").exists()


def test_a_source_that_does_not_exist_is_wrong_usage(tmp_path, turnout):
    result = turnout("build", tmp_path / "none.gguf", "-o", tmp_path / "bundle")
    assert result.code == 2
    assert "none.gguf" in result.err


WRONG_OPTIONS = {
    "layout": (["--layout", "spiral"], ("spiral", "pipeline, flat")),
    "level": (["--accuracy-level", "3"], ("3", "0 (exact float)")),
    "precision": (["--precision", "int2"], ("int2", "source, fp32, int8, int4")),
    "context too long": (["--context-length", "257"], ("257", "256")),
    "context of nothing": (["--context-length", "1"], ("1", "256")),
    "flat with two sessions": (["--layout", "flat", "--two-sessions"], ("flat",)),
    "flat and static": (["--layout", "flat", "--static-prefill", "8"], ("flat",)),
    "static prefill of one": (["--static-prefill", "1"], ("2 or more",)),
    "static prefill that does not divide": (["--static-prefill", "24"], ("256", "24", "240")),
    "static prefill above the context": (["--static-prefill", "512"], ("at most 256", "512")),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_a_wrong_option_is_wrong_usage(case, tmp_path, turnout):
    options, said = WRONG_OPTIONS[case]
    result = turnout("build", SOURCE, "-o", tmp_path / "bundle", *options)
    assert result.code == 2
    for words in said:
        assert words in result.err
    assert not (tmp_path / "bundle").exists()


def test_an_existing_output_is_refused_and_left_as_it_is(tmp_path, turnout):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "mine.txt").write_text("mine")
    (tmp_path / "bundle" / "genai_config.json").write_text("{}")
    result = turnout("build", SOURCE, "-o", tmp_path / "bundle")
    assert result.code == 2
    assert "--overwrite" in result.err
    (tmp_path / "bundle" / "genai_config.json").unlink()
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["mine.txt"]


def test_overwrite_replaces_the_whole_folder(tmp_path, turnout):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "stale.onnx").write_text("stale")
    (tmp_path / "bundle" / "genai_config.json").write_text("{}")
    assert turnout("build", SOURCE, "-o", tmp_path / "bundle", "--overwrite").code == 0
    assert not (tmp_path / "bundle" / "stale.onnx").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_overwrite_does_not_replace_a_folder_that_is_no_bundle(tmp_path, turnout):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    result = turnout("build", SOURCE, "-o", tmp_path / "home", "--overwrite")
    assert result.code == 2
    assert "no bundle" in result.err
    assert (tmp_path / "home" / "thesis.txt").read_text() == "years of work"


def test_a_failed_overwrite_leaves_the_old_folder(tmp_path, turnout):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "old.onnx").write_text("old")
    (tmp_path / "bundle" / "genai_config.json").write_text("{}")
    source = rewrite(tmp_path / "model.gguf", set_field("tokenizer.ggml.pre", "dbrx"))
    assert turnout("build", source, "-o", tmp_path / "bundle", "--overwrite").code == 1
    assert (tmp_path / "bundle" / "old.onnx").read_text() == "old"


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path, monkeypatch):
    """A fault that no test can make for real: the file system says that it is full."""
    real = datafile.DataFile.stream

    def full(self, name, *rest):
        if name.startswith("layers.1"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, name, *rest)

    monkeypatch.setattr(datafile.DataFile, "stream", full)
    with pytest.raises(WriteError, match="No space left"):
        package.build(SOURCE, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing(tmp_path):
    def interrupt(progress):
        if progress.done > progress.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        package.build(SOURCE, tmp_path / "bundle", progress=interrupt)
    assert not list(tmp_path.iterdir())


def test_progress_counts_every_byte_of_the_source_once(tmp_path):
    seen = []
    package.build(DATA / "qwen2-bias-tied.gguf", tmp_path / "bundle", progress=seen.append)
    done = [state.done for state in seen]
    assert done == sorted(done)
    assert seen[-1].done == seen[-1].total
    assert {state.step for state in seen} == {"tokenizer", "weights", "graphs"}


def test_the_same_source_and_options_give_the_same_bytes(tmp_path):
    first = package.build(DATA / "llama-mixed.gguf", tmp_path / "first", two_sessions=True)
    second = package.build(DATA / "llama-mixed.gguf", tmp_path / "second", two_sessions=True)
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_json_is_one_document_on_stdout(tmp_path, turnout):
    result = turnout("build", SOURCE, "-o", tmp_path / "bundle", "--json", "--context-length", "64")
    document = json.loads(result.out)
    assert document["context_length"] == 64
    assert document["stages"] == ["embeddings", "transformer", "lm_head"]
    assert document["bytes"] == sum(path.stat().st_size for path in (tmp_path / "bundle").iterdir())


def test_a_path_with_spaces_and_other_letters_works(tmp_path, turnout):
    folder = tmp_path / "größe und 雪"
    result = turnout("build", SOURCE, "-o", folder)
    assert result.code == 0
    assert turnout("generate", folder, "abc", "--raw", "--max-new-tokens", "2").code == 0


def test_a_pad_id_of_a_static_bundle_is_one_that_no_prompt_contains(tmp_path):
    """SmolLM's own pad id ends every chat turn; the runtime would cut the prompt there."""
    for name in ("llama-f32.gguf", "llama-spm.gguf"):
        bundle = package.build(DATA / name, tmp_path / name, static_prefill=16)
        opened = package.Bundle.open(bundle)
        pad = opened.config.get(("model", "pad_token_id"))
        with package.Session(opened) as session:
            every = session.apply_chat_template("every letter: abcxyz ABC 123 <|im_end|> é 雪 🙂")
            assert pad not in session.encode(every)


def test_the_python_api_raises_the_same_errors(tmp_path):
    with pytest.raises(UsageError):
        package.build(SOURCE, tmp_path / "bundle", layout="spiral")
    (tmp_path / "bundle").mkdir()
    with pytest.raises(OutputExistsError):
        package.build(SOURCE, tmp_path / "bundle")
    source = rewrite(tmp_path / "model.gguf", set_field("general.architecture", "mamba"))
    with pytest.raises(UnsupportedModelError):
        package.build(source, tmp_path / "other")


def test_the_price_of_a_long_static_cache_is_said(tmp_path, turnout):
    """Two layers of keys and values, float32, 2 heads of 16, 256 tokens: 131 kB, no word of it."""
    small = turnout("build", SOURCE, "-o", tmp_path / "small", "--static-prefill", "16")
    assert "caches" not in small.err
    # 2 layers * 2 * 4 bytes * 2 heads * 16 values * 1,048,576 tokens are 537 MB.
    source = rewrite(tmp_path / "long.gguf", set_field("llama.context_length", 1048576))
    long = turnout("build", source, "-o", tmp_path / "long", "--static-prefill", "16")
    assert "537 MB" in long.err and "--context-length" in long.err


def test_the_hint_can_be_typed_as_it_is(tmp_path, turnout):
    result = turnout("build", SOURCE, "-o", tmp_path / "my model")
    assert f"generate '{tmp_path / 'my model'}'" in result.err


def test_a_folder_as_source_is_wrong_usage_and_a_bundle_is_called_one(tmp_path, turnout):
    assert turnout("build", SOURCE, "-o", tmp_path / "bundle").code == 0
    again = turnout("build", tmp_path / "bundle", "-o", tmp_path / "other")
    assert again.code == 2 and "is a bundle" in again.err
    folder = turnout("build", tmp_path, "-o", tmp_path / "other")
    assert folder.code == 2 and "is a directory" in folder.err


def test_an_output_that_appears_during_the_build_is_left_alone(tmp_path):
    """Two builds at once, or a person: whoever is there first keeps the name."""
    target = tmp_path / "bundle"

    def appear(progress):
        if progress.step == "graphs" and not target.exists():
            target.mkdir()
            (target / "notes.txt").write_text("precious")

    with pytest.raises(OutputExistsError):
        package.build(SOURCE, target, progress=appear)
    assert (target / "notes.txt").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("output", ["../bundle", ".", "../../work/bundle"])
def test_a_folder_that_one_stands_in_is_not_replaced(output, tmp_path, monkeypatch, turnout):
    """The shell would be left in a deleted folder."""
    package.build(SOURCE, tmp_path / "work" / "bundle")
    (tmp_path / "work" / "bundle" / "mine.txt").write_text("mine")
    monkeypatch.chdir(tmp_path / "work" / "bundle")
    result = turnout("build", SOURCE, "-o", output, "--overwrite")
    assert result.code == 2
    assert "current folder" in result.err
    assert (tmp_path / "work" / "bundle" / "mine.txt").exists()


def test_a_source_inside_the_output_is_not_replaced_with_it(tmp_path, turnout):
    package.build(SOURCE, tmp_path / "bundle")
    own = tmp_path / "bundle" / "model.gguf"
    own.write_bytes(SOURCE.read_bytes())
    result = turnout("build", own, "-o", tmp_path / "bundle", "--overwrite")
    assert result.code == 2
    assert own.read_bytes() == SOURCE.read_bytes()


def test_folders_made_for_an_output_go_with_a_failed_build(tmp_path, turnout):
    source = rewrite(tmp_path / "model.gguf", set_field("tokenizer.ggml.pre", "dbrx"))
    assert turnout("build", source, "-o", tmp_path / "a" / "b" / "bundle").code == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows ends a process without asking it")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_plain_kill_leaves_nothing(tmp_path, name):
    code = (
        "import os, signal, sys\n"
        "from turnout import building\n"
        "from turnout.cli import main\n"
        "real = building.build\n"
        "def build(*a, progress, **k):\n"
        "    kill = lambda state: state.done and os.kill(os.getpid(), signal.SIGNAL)\n"
        "    return real(*a, progress=kill, **k)\n"
        "building.build = build\n"
        "main.main()\n"
    )
    code = code.replace("SIGNAL", name)
    command = [sys.executable, "-c", code, "build", SOURCE, "-o", tmp_path / "bundle"]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    assert result.returncode == 128 + getattr(signal, name)
    assert result.stderr == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [{"context_length": 10.5}, {"static_prefill": "16"}, {"accuracy_level": True}],
    ids=str,
)
def test_an_argument_of_another_type_is_a_usage_error(wrong, tmp_path):
    with pytest.raises(UsageError, match="no usable name"):
        package.build(SOURCE, f"{tmp_path}/a\0b")
    with pytest.raises(UsageError, match="no whole number"):
        package.build(SOURCE, tmp_path / "bundle", **wrong)


def test_a_factor_without_a_type_is_the_linear_rotary_scaling(tmp_path):
    """llama.cpp takes a missing type for linear, and so did files before there were types."""
    kind = gguf.GGUFValueType.FLOAT32

    def scaled(*pairs):
        def change(fields, tensors):
            for name, value in pairs:
                item = gguf.GGUFValueType.STRING if isinstance(value, str) else kind
                fields[f"llama.rope.{name}"] = (value, item, item)

        return change

    cases = {
        "plain": scaled(),
        "typed": scaled(("scaling.type", "linear"), ("scaling.factor", 4.0)),
        "untyped": scaled(("scaling.factor", 4.0)),
        "old": scaled(("scale_linear", 4.0)),
        "none": scaled(("scaling.type", "none"), ("scaling.factor", 4.0)),
    }
    data = {}
    for name, change in cases.items():
        source = rewrite(tmp_path / f"{name}.gguf", change)
        data[name] = (package.build(source, tmp_path / name) / "model.data").read_bytes()
    assert data["typed"] == data["untyped"] == data["old"]
    assert data["plain"] == data["none"] != data["typed"]
