"""`turnout inspect` as a person and as a program would call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from bundle_fixtures import (
    DATA_FILE,
    as_hub_cache,
    build_flat,
    build_pipeline,
    read_config,
    write_config,
)
from session_fixtures import Terminal
from turnout.bundle.graph import ValueInfo
from turnout.cli import folding

pytest_plugins = ("session_plugin",)


def test_a_pipeline_is_shown_stage_by_stage(turnout: Terminal, tmp_path: Path) -> None:
    folder = build_pipeline(
        tmp_path / "bundle",
        two_sessions=True,
        providers={"context": [{"OpenVINO": {"device_type": "NPU"}}]},
    )
    done = turnout("inspect", folder)
    assert (done.code, done.err) == (0, "")
    head, embeddings, context, iterator, lm_head = done.out.split("\n\n")
    assert head.splitlines() == [
        str(folder),
        "  model      decoder-pipeline",
        "  context    64 tokens",
        "  tokenizer  BPE (GPT2Tokenizer)",
        "  template   68 characters in tokenizer_config.json",
        f"  on disk    {folding.size(sum(p.stat().st_size for p in folder.iterdir()))},"
        " of which weights 41.6 KB",
    ]
    assert embeddings.splitlines()[2:4] == [
        "  EP         cpu",
        "  runs on    prompt and tokens",
    ]
    assert context.splitlines() == [
        "context",
        f"  file       context.onnx ({folding.size((folder / 'context.onnx').stat().st_size)})",
        "  EP         openvino (device_type=NPU)",
        "  runs on    prompt",
        "  weights    8.3 KB, 8.2 KB of them shared with iterator",
        "  inputs     hidden                        float32[batch,sequence,16]",
        "             past_key_values.{0..1}.key    float32[batch,2,past,8]",
        "             past_key_values.{0..1}.value  float32[batch,2,past,8]",
        "  outputs    normed                float32[batch,sequence,16]",
        "             present.{0..1}.key    float32[batch,2,total,8]",
        "             present.{0..1}.value  float32[batch,2,total,8]",
    ]
    assert iterator.splitlines()[3] == "  runs on    tokens"
    assert "  weights    16.6 KB" in lm_head.splitlines()


def test_a_flat_bundle_is_shown_too(turnout: Terminal, tmp_path: Path) -> None:
    done = turnout("inspect", build_flat(tmp_path / "bundle", inline=True), "-v")
    assert done.code == 0
    assert "\ndecoder\n" in done.out
    assert "  weights    41.5 KB\n" in done.out
    assert "  operators  13 MatMul, 10 Transpose," in done.out
    assert done.out.endswith("chat template\n  " + template_text(tmp_path / "bundle") + "\n")


def template_text(folder: Path) -> str:
    text: str = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    return text


def test_what_a_bundle_lacks_and_what_is_compiled_is_shown(
    turnout: Terminal, tmp_path: Path
) -> None:
    folder = build_pipeline(tmp_path / "bundle", providers={"lm_head": []})
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    node = onnx.helper.make_node(
        "EPContext", ["normed"], ["logits"], domain="com.microsoft", embed_mode=0,
        ep_cache_context="lm_head.bin", source="QNNExecutionProvider",
    )  # fmt: skip
    graph = onnx.helper.make_graph([node], "g", [], [])
    (folder / "lm_head.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    (folder / "lm_head.bin").write_bytes(b"compiled")
    config = read_config(folder)
    decoder = config["model"]["decoder"]
    decoder["session_options"]["provider_options"] = [{"qnn": {"soc_model": "60"}}]
    del config["model"]["context_length"], config["model"]["type"]
    write_config(folder, config)
    shown = turnout("inspect", folder).out
    assert "  tokenizer  incomplete: no tokenizer_config.json, no tokenizer.json\n" in shown
    assert "  template   none\n" in shown
    assert "  context    not stated\n" in shown
    assert "  model      of no stated type\n" in shown
    assert "  EP         qnn (soc_model=60), from the decoder's options\n" in shown
    assert "  compiled   1 EPContext node of QNNExecutionProvider\n" in shown
    assert "  weights    none\n" in shown
    (folder / "lm_head.bin").unlink()
    assert "found: lm_head.bin" in turnout("inspect", folder).err


def test_quiet_leaves_inputs_and_outputs_out(turnout: Terminal, tmp_path: Path) -> None:
    done = turnout("inspect", build_flat(tmp_path / "bundle"), "-q")
    assert "weights" in done.out
    assert "\n  inputs" not in done.out


def test_json_gives_everything_untruncated(turnout: Terminal, tmp_path: Path) -> None:
    folder = build_pipeline(tmp_path / "bundle", two_sessions=True)
    done = turnout("inspect", folder, "--json")
    assert (done.code, done.err) == (0, "")
    document = done.json
    assert document["schema_version"] == 1
    assert document["context_length"] == 64
    assert document["chat_template"] == {
        "file": "tokenizer_config.json",
        "text": template_text(folder),
    }
    assert document["sharing"] == [{"stages": ["context", "iterator"], "bytes": 8192, "ranges": 8}]
    names = ["embeddings", "context", "iterator", "lm_head"]
    assert [stage["name"] for stage in document["stages"]] == names
    context = document["stages"][1]
    model = onnx.load(folder / "context.onnx", load_external_data=False)
    assert [value["name"] for value in context["inputs"]] == [v.name for v in model.graph.input]
    assert context["inputs"][1] == {
        "name": "past_key_values.0.key",
        "dtype": "float32",
        "shape": ["batch", 2, "past", 8],
    }
    assert (context["runs_on_prompt"], context["runs_on_tokens"]) == (True, False)
    assert context["weights"] == {"total": 8252, "own": 60, "shared": 8192, "inline": 60}
    assert context["graph"]["nodes"] == len(model.graph.node)
    assert context["graph"]["external_files"] == [DATA_FILE]


# What the command opened in the bundle, and what it imported, on stderr.
WATCHED = """
import json, os, sys
folder, opened = sys.argv[2], []
def hook(event, arguments):
    if event == "open" and str(arguments[0]).startswith(folder):
        opened.append(os.path.basename(arguments[0]))
sys.addaudithook(hook)
from turnout.cli.main import main
try:
    main()
finally:
    heavy = {"numpy", "onnx", "onnx_ir", "onnxruntime", "onnxruntime_genai", "rich", "tokenizers"}
    print(json.dumps([sorted(opened), sorted(heavy & set(sys.modules))]), file=sys.stderr)
"""


def test_of_a_bundle_of_any_size_the_weights_are_not_opened(tmp_path: Path) -> None:
    """A 30 GB bundle: its data file is sparse, so the test itself takes no room."""
    folder = build_flat(tmp_path / "bundle")
    graph = onnx.load(folder / "model.onnx", load_external_data=False)
    gigabytes = 10
    for index in range(3):
        tensor = graph.graph.initializer.add(
            name=f"huge{index}", data_type=onnx.TensorProto.UINT8, dims=[gigabytes << 30]
        )
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "huge.data"), ("offset", index * gigabytes << 30)):
            tensor.external_data.add(key=key, value=str(value))
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    with (folder / "huge.data").open("wb") as file:
        file.truncate(3 * gigabytes << 30)
    command = [sys.executable, "-c", WATCHED, "inspect", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "  weights    32.2 GB\n" in done.stdout
    opened, imported = json.loads(done.stderr)
    assert opened == sorted(
        ["genai_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"]
    )
    assert imported == []


def test_a_hub_cache_is_inspected_in_its_own_layout(turnout: Terminal, tmp_path: Path) -> None:
    folder = as_hub_cache(build_flat(tmp_path / "source"), tmp_path / "hub", "cpu/int4")
    assert "  weights    41.5 KB\n" in turnout("inspect", folder).out


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a bundle, and of what is none."""
    place = tmp_path_factory.mktemp("spoilt")
    for folder in ("bundle", "broken", "nostage", "nodata", "outside", "garbage"):
        build_flat(place / folder)
    (place / "empty").mkdir()
    (place / "broken" / "genai_config.json").write_text("{,}")
    (place / "nodata" / DATA_FILE).unlink()
    (place / "garbage" / "model.onnx").write_bytes(b"\x07garbage")
    for folder, file in (("nostage", "gone.onnx"), ("outside", "../bundle/model.onnx")):
        config = read_config(place / folder)
        config["model"]["decoder"]["filename"] = file
        write_config(place / folder, config)
    return place


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("nothing", 2, "is not a bundle"),
        ("bundle/model.onnx", 2, "a plain ONNX model"),
        ("empty", 2, "has no genai_config.json"),
        ("broken", 1, "line 1, column 2"),
        ("nostage", 1, "found: gone.onnx"),
        ("nodata", 1, "found: weights.data"),
        ("outside", 1, "leaves the folder"),
        ("garbage", 1, "byte 0"),
    ],
)
def test_what_cannot_be_inspected_is_an_error_without_a_traceback(
    turnout: Terminal, spoilt: Path, name: str, code: int, text: str
) -> None:
    """A14: a path that is no bundle is wrong usage, exit 2; a broken bundle is exit 1."""
    for extra in ([], ["--json"]):
        done = turnout("inspect", spoilt / name, *extra)
        assert (done.code, done.out) == (code, "")
        assert text in done.err
        assert "Traceback" not in done.err


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
@pytest.mark.parametrize("name", ["model.onnx", DATA_FILE, "tokenizer.json"])
def test_a_pipe_is_said_to_be_no_file_and_nobody_waits_for_it(
    turnout: Terminal, tmp_path: Path, name: str
) -> None:
    folder = build_flat(tmp_path / "bundle")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    for command in (["inspect", folder], ["generate", folder, "x"]):
        done = turnout(*command)
        assert (done.code, done.out) == (1, "")
        assert f"{name} of the bundle is no regular file" in done.err
        assert "found: a pipe" in done.err


def test_a_report_that_fails_is_not_begun(turnout: Terminal, tmp_path: Path) -> None:
    folder = build_pipeline(tmp_path / "bundle")
    config = read_config(folder)
    config["model"]["decoder"]["pipeline"] = []
    write_config(folder, config)
    done = turnout("inspect", folder)
    assert (done.code, done.out) == (1, "")
    assert "names no file" in done.err


@pytest.mark.parametrize("length", [-1, 0, True, "64", 1.5, None])
def test_a_context_length_that_is_none_is_not_stated(
    turnout: Terminal, tmp_path: Path, length: Any
) -> None:
    folder = build_flat(tmp_path / "bundle", model={"context_length": length})
    assert "  context    not stated\n" in turnout("inspect", folder).out
    assert turnout("inspect", folder, "--json").json["context_length"] is None


def test_provider_options_that_no_stage_uses_are_no_hindrance(
    turnout: Terminal, tmp_path: Path
) -> None:
    own: dict[str, Any] = {name: [] for name in ("embeddings", "transformer", "lm_head")}
    options = {"session_options": {"provider_options": [1]}}
    folder = build_pipeline(tmp_path / "bundle", providers=own, decoder=options)
    assert turnout("inspect", folder).code == 0
    done = turnout("generate", folder, "x", "--ep", "cpu")
    assert done.code == 1
    assert "decoder.session_options.provider_options[0]" in done.err


def test_names_in_a_graph_cannot_drive_the_terminal(turnout: Terminal, tmp_path: Path) -> None:
    folder = build_flat(tmp_path / "bundle")
    graph = onnx.load(folder / "model.onnx", load_external_data=False)
    graph.graph.input[0].name = "\x1b[2J\x07évil"
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    done = turnout("inspect", folder)
    assert "\\x1b[2J\\x07évil" in done.out
    assert "\x1b" not in done.out


def test_names_that_differ_in_a_number_are_folded() -> None:
    def row(name: str, *shape: int | str | None) -> ValueInfo:
        return ValueInfo(name, "float32", shape)

    values = [
        *(row(f"past.{layer}.{part}", 1, None) for layer in range(30) for part in ("key", "value")),
        *(row(f"conv.{layer}", 4) for layer in (0, 1, 2, 5, 9)),
        row("conv.7", 8),
        row("logits", "batch", 16),
        ValueInfo("free", "sequence(float32)", None),
        row("x" + "9" * 5000, 1),
        row("a.00", 1),
        row("a.01", 1),
    ]
    assert folding.fold(values) == [
        ("past.{0..29}.key", "float32[1,*]"),
        ("past.{0..29}.value", "float32[1,*]"),
        ("conv.{0..2,5,9}", "float32[4]"),
        ("conv.7", "float32[8]"),
        ("logits", "float32[batch,16]"),
        ("free", "sequence(float32)"),
        ("x" + "9" * 5000, "float32[1]"),
        ("a.00", "float32[1]"),
        ("a.01", "float32[1]"),
    ]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (999_949, "999.9 KB"), (999_950, "1.0 MB"),
     (145_300_000, "145.3 MB"), (32_212_254_720, "32.2 GB"), (10**16, "10000.0 TB")],
)  # fmt: skip
def test_sizes_read_as_disks_are_sold(nbytes: int, text: str) -> None:
    assert folding.size(nbytes) == text


@pytest.mark.usefixtures("own_cache")
def test_sharing_tells_what_stages_have_in_common(turnout: Terminal, tmp_path: Path) -> None:
    """Eight matrices of 16 x 16 floats, and constants of 32, 24 and 4 bytes inside each graph."""
    folder = build_pipeline(tmp_path / "bundle", two_sessions=True)
    done = turnout("inspect", folder, "--sharing", "-q")
    assert (done.code, done.err) == (0, "")
    assert done.out.split("\n\n")[-1].splitlines() == [
        "sharing",
        "  context and iterator",
        "    graphs     the same, from the same weights",
        "    equal      11 tensors (8.3 KB), 3 tensors (60 B) of them stored twice",
        "  nothing in common: embeddings and context, embeddings and iterator,"
        " embeddings and lm_head, context and lm_head, iterator and lm_head",
        "  stored twice: 3 tensors (60 B)",
    ]
    document = turnout("inspect", folder, "--sharing", "--json").json
    pair = next(p for p in document["contents"]["pairs"] if p["stages"] == ["context", "iterator"])
    assert pair["same_graph"] is True
    assert pair["equal"] == {"tensors": 11, "bytes": 8252}
    assert pair["only"] == {
        "context": {"tensors": 0, "bytes": 0},
        "iterator": {"tensors": 0, "bytes": 0},
    }
    assert document["contents"]["stored_twice"] == {"tensors": 3, "bytes": 60}
    assert "contents" not in turnout("inspect", folder, "--json").json


@pytest.mark.usefixtures("own_cache")
def test_sharing_names_what_differs_under_one_name(turnout: Terminal, tmp_path: Path) -> None:
    folder = build_pipeline(tmp_path / "bundle", two_sessions=True)
    model = onnx.load(folder / "iterator.onnx", load_external_data=False)
    for item in model.graph.initializer:
        for entry in item.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + 512)
    (folder / "iterator.onnx").write_bytes(model.SerializeToString())
    done = turnout("inspect", folder, "--sharing", "-q")
    assert "    conflict   8 tensors of one name, different" in done.out
    assert "               and 4 more (-v shows them)" in done.out
    assert "in overlapping ranges" in done.out
    # The next call reads no weight again, and says the same.
    assert turnout("inspect", folder, "--sharing", "-q").out == done.out
    assert "more (-v" not in turnout("inspect", folder, "--sharing", "-v").out
