"""Where nodes ran: from real profiles of real sessions, and from profiles that are broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from bundle_fixtures import as_hub_cache, build_flat, build_pipeline
from session_fixtures import Bundles, set_eos
from turnout.bundle import Bundle
from turnout.compiling import places, scratch
from turnout.errors import GenerationError, LoadError, ProcessError, TurnoutError
from turnout.files import STAGING_PREFIX
from turnout.routing import route
from turnout.runtime.placement import StagePlacement, measure, prompt_ids
from turnout.runtime.profiles import Profile

pytest_plugins = ("session_plugin",)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Whatever happens, no temporary folder stays behind."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "the cache"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    # Only Turnout's: onnxruntime leaves a file there, and Python one while it tries the folder.
    assert list(folder.glob(f"{STAGING_PREFIX}*")) == []


def operators(graph: Path) -> int:
    """Nodes of a graph, in the file."""
    return len(onnx.load(graph, load_external_data=False).graph.node)


def eps(stage: StagePlacement) -> list[str]:
    return [placed.ep for placed in stage.eps]


def test_every_node_of_a_stage_on_the_cpu_ep_is_found_there(tmp_path: Path) -> None:
    bundle = Bundle.open(build_pipeline(tmp_path / "bundle"))
    placed = measure(bundle)
    assert [stage.stage for stage in placed.stages] == ["embeddings", "transformer", "lm_head"]
    # Graphs of one node, which no optimizer can make fewer.
    for stage, operator in ((placed.stages[0], "Gather"), (placed.stages[2], "MatMul")):
        (cpu,) = stage.eps
        assert (cpu.ep, cpu.nodes, cpu.operators) == ("cpu", 1, {operator: 1})
        assert (cpu.prompt.nodes, cpu.tokens.nodes) == (1, 1)
        assert cpu.time_s == pytest.approx(cpu.prompt.time_s + cpu.tokens.time_s)
        assert cpu.time_s > 0
    (cpu,) = placed.stages[1].eps
    assert 20 < cpu.nodes <= operators(bundle.path / "transformer.onnx")


def test_prompt_and_tokens_are_told_apart(tmp_path: Path) -> None:
    """A token of the answer is computed once less than tokens are drawn."""
    bundle = Bundle.open(build_pipeline(tmp_path / "bundle", two_sessions=True))
    placed = measure(bundle)
    assert (placed.prompt_tokens, placed.new_tokens) == (8, 4)
    runs = {stage.stage: (stage.prompt_runs, stage.token_runs) for stage in placed.stages}
    assert runs == {"embeddings": (1, 3), "context": (1, 0), "iterator": (0, 3), "lm_head": (1, 3)}
    (context,), (iterator,) = placed.stages[1].eps, placed.stages[2].eps
    assert (context.tokens.nodes, iterator.prompt.nodes) == (0, 0)
    assert context.prompt.nodes == iterator.tokens.nodes


@pytest.mark.parametrize("kind", ["flat", "static"])
def test_flat_bundles_and_fixed_shapes_are_measured(bundles: Bundles, kind: str) -> None:
    placed = measure(Bundle.open(bundles(kind)))
    assert all(stage.ran for stage in placed.stages)
    assert {name for stage in placed.stages for name in eps(stage)} == {"cpu"}


def test_an_end_of_text_does_not_keep_decode_stages_from_running(bundles: Bundles) -> None:
    path = bundles("two sessions", change=set_eos([*range(300)]))
    placed = measure(Bundle.open(path))
    assert [stage.token_runs for stage in placed.stages] == [3, 0, 3, 3]


@pytest.mark.openvino
def test_what_falls_back_inside_the_runtime_is_seen(bundles: Bundles) -> None:
    """A15: attention runs on the CPU EP, though the stage was forced onto OpenVINO."""
    bundle = Bundle.open(bundles("pipeline"))
    placed = measure(bundle, route(bundle, ep="openvino"))
    embeddings, transformer, _ = placed.stages
    assert eps(embeddings) == ["openvino"]
    openvino, cpu = transformer.eps
    # Two layers: two attention nodes, between three subgraphs.
    assert (cpu.ep, cpu.nodes, cpu.operators) == ("cpu", 2, {"GroupQueryAttention": 2})
    assert (openvino.ep, openvino.nodes, openvino.operators) == ("openvino", 3, {"subgraph": 3})
    assert openvino.prompt.nodes == openvino.tokens.nodes == 3


@pytest.mark.openvino
def test_one_stage_on_openvino_leaves_the_others_where_they_are(bundles: Bundles) -> None:
    """A15: each stage has a session of its own, hence a profile of its own."""
    bundle = Bundle.open(bundles("two sessions"))
    placed = measure(bundle, route(bundle, stages={"iterator": "openvino"}))
    assert [eps(stage) for stage in placed.stages] == [
        ["cpu"],
        ["cpu"],
        ["openvino", "cpu"],
        ["cpu"],
    ]


def test_nothing_stays_in_the_bundle_which_need_not_be_writable(tmp_path: Path) -> None:
    folder = build_flat(tmp_path / "bundle")
    before = sorted(path.name for path in folder.iterdir())
    folder.chmod(0o555)
    try:
        assert measure(Bundle.open(folder)).stages[0].ran
    finally:
        folder.chmod(0o755)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_bundle_in_a_hubs_cache_is_measured_and_left_as_it_is(tmp_path: Path) -> None:
    snapshot = as_hub_cache(build_pipeline(tmp_path / "bundle"), tmp_path / "hub")
    before = sorted(str(path) for path in (tmp_path / "hub").rglob("*"))
    assert all(stage.ran for stage in measure(Bundle.open(snapshot)).stages)
    assert sorted(str(path) for path in (tmp_path / "hub").rglob("*")) == before


def test_a_relative_path_and_a_profile_that_the_bundle_asks_for_are_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"session_options": {"enable_profiling": str(tmp_path / "theirs")}}
    build_flat(tmp_path / "bundle", decoder=options)
    monkeypatch.chdir(tmp_path)
    assert measure(Bundle.open("bundle")).stages[0].ran
    assert list(tmp_path.glob("theirs*")) == []


def test_stages_that_a_text_prompt_does_not_reach_did_not_run(tmp_path: Path) -> None:
    """A speech model beside a decoder whose type makes no use of it."""
    folder = build_flat(tmp_path / "bundle", model={"speech": {"filename": "model.onnx"}})
    placed = measure(Bundle.open(folder))
    assert [(stage.stage, stage.ran) for stage in placed.stages] == [
        ("speech", False),
        ("decoder", True),
    ]


def test_a_stage_without_options_cannot_be_measured(tmp_path: Path) -> None:
    vision = {"pipeline": [{"patch_embed": {"filename": "model.onnx"}}]}
    folder = build_flat(tmp_path / "bundle", model={"vision": vision})
    placed = measure(Bundle.open(folder)).stages[0]
    assert (placed.stage, placed.ran) == ("patch_embed", None)
    assert "takes no options" in placed.note


def test_what_cannot_be_loaded_is_the_same_error_as_ever(tmp_path: Path) -> None:
    folder = build_flat(tmp_path / "bundle")
    (folder / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(TurnoutError) as caught:
        measure(Bundle.open(folder))
    assert str(folder) in str(caught.value)


def test_what_the_runtime_says_of_the_temporary_folder_is_said_of_the_bundle(
    tmp_path: Path, nothing_left: Path
) -> None:
    bundle = Bundle.open(build_flat(tmp_path / "bundle", model={"type": "unheard-of"}))
    with pytest.raises(LoadError) as caught:
        measure(bundle)
    assert str(nothing_left) not in str(caught.value)
    assert "unheard-of" in str(caught.value)


def test_what_fails_while_it_runs_is_an_error(tmp_path: Path) -> None:
    bundle = Bundle.open(build_flat(tmp_path / "bundle", decoder={"outputs": {"logits": "lgts"}}))
    with pytest.raises(TurnoutError):
        measure(bundle)


def test_a_time_limit_is_kept(tmp_path: Path) -> None:
    bundle = Bundle.open(build_flat(tmp_path / "bundle"))
    with pytest.raises(
        ProcessError, match=r"measuring the placement did not answer within 0\.001 s"
    ):
        measure(bundle, timeout=0.001)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_leaves_nothing(tmp_path: Path, nothing_left: Path) -> None:
    folder = build_flat(tmp_path / "bundle")
    process = subprocess.Popen(
        [sys.executable, "-m", "turnout", "explain", str(folder), "--measure"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 30
    while not list(nothing_left.glob(f"{STAGING_PREFIX}*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err


def test_the_prompt_is_short_plain_and_fits(tmp_path: Path) -> None:
    bundle = Bundle.open(build_flat(tmp_path / "bundle"))
    assert prompt_ids(bundle.config) == list(range(24, 32))
    config = bundle.config.edit(("model", "vocab_size"), 5).edit(("model", "eos_token_id"), [2, 3])
    assert prompt_ids(config) == [0, 1, 4]
    config = bundle.config.edit(("model", "context_length"), 6)
    assert prompt_ids(config) == [30, 31]
    assert prompt_ids(bundle.config.edit(("model", "vocab_size"), 1)) == [0]


def event(name: str, begin: int, lasted: int, **args: str) -> str:
    return json.dumps(
        {"cat": "Node", "pid": 1, "tid": 1, "dur": lasted, "ts": begin, "name": name, "args": args}
    )


RUN = '{"cat" : "Session","pid" :1,"tid" :1,"dur" :9,"ts" :0,"ph" : "X","name" :"model_run"}'


def written(path: Path, *events: str) -> Path:
    path.write_text("[\n" + ",\n".join(events) + "\n]\n", "utf-8")
    return path


def test_time_inside_the_body_of_a_node_is_counted_once(tmp_path: Path) -> None:
    """An `If` ends after the nodes of its branch, and lasts as long as they do and its own work."""
    cpu = {"provider": "CPUExecutionProvider"}
    path = written(
        tmp_path / "p.json",
        event("before", 0, 10, node_index="0", op_name="Add", **cpu),
        event("a", 20, 30, node_index="0", op_name="Mul", **cpu),
        event("b", 50, 40, node_index="1", op_name="Mul", **cpu),
        event("if", 15, 100, node_index="1", op_name="If", **cpu),
        RUN,
    )
    profile = Profile()
    profile.read(path, token_runs=0)
    tally = profile.prompt["CPUExecutionProvider"]
    assert tally.time_s == pytest.approx((10 + 100) / 1e6)
    assert sorted(tally.nodes.values()) == ["Add", "If", "Mul", "Mul"]


def test_a_body_is_counted_once_by_the_real_runtime_too(tmp_path: Path) -> None:
    """An `If` whose branch multiplies matrices: the time of all nodes is within that of the run."""
    import numpy as np
    import onnxruntime as ort

    info = helper.make_tensor_value_info
    branches = [
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "x"], [f"y{n}"], name=f"product{n}")],
            f"branch{n}",
            [],
            [info(f"y{n}", TensorProto.FLOAT, None)],
        )
        for n in (0, 1)
    ]
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1], name="choice"
    )
    graph = helper.make_graph(
        [node],
        "g",
        [info("c", TensorProto.BOOL, []), info("x", TensorProto.FLOAT, [400, 400])],
        [info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "p")
    session = ort.InferenceSession(model.SerializeToString(), options)
    session.run(None, {"c": np.array(True), "x": np.ones((400, 400), np.float32)})
    path = Path(session.end_profiling())
    events = json.loads(path.read_text("utf-8"))
    (run,) = [item["dur"] for item in events if item["name"] == "model_run"]
    profile = Profile()
    profile.read(path, token_runs=0)
    tally = profile.prompt["CPUExecutionProvider"]
    assert sorted(tally.nodes.values()) == ["If", "MatMul"]
    assert 0 < tally.time_s <= run / 1e6


def test_kernels_inside_an_ep_and_nodes_without_an_ep_are_not_counted(tmp_path: Path) -> None:
    kernel = event("OV::x", 0, 5, provider="OpenVINOExecutionProvider").replace("Node", "Kernel")
    path = written(tmp_path / "p.json", kernel, event("fence", 0, 5, op_name="Add"), RUN)
    profile = Profile()
    profile.read(path, token_runs=1)
    assert (profile.token_runs, profile.prompt, profile.tokens) == (1, {}, {})


COMPLETE = "[\n" + event("a", 0, 1, provider="X", op_name="Add") + ",\n" + RUN + "\n]\n"


@pytest.mark.parametrize(
    "text",
    ["", "[\n", COMPLETE[:-2], COMPLETE[: len(COMPLETE) // 2], "\0" * 4096, "no profile at all\n"],
)
def test_a_profile_that_is_cut_off_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text, "utf-8")
    with pytest.raises(GenerationError, match="profile is not complete") as caught:
        Profile().read(path, token_runs=0)
    assert caught.value.facts["where"] == str(path)


@pytest.mark.parametrize(
    "line",
    [
        '{"cat": "Node", "args": {"provider": "X"',
        '{"cat": "Node", "args": {"provider": "X"}},',
        '{"ts": "1", "dur": 1, "tid": 1, "name": "a", "args": {"provider": "X"}},',
        '{"ts": 1, "dur": 1, "tid": 1, "name": "a", "args": ["provider"], "x": "provider"},',
        '["provider"],',
    ],
)
def test_a_line_that_is_no_event_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(f"[\n{line}\n]\n", "utf-8")
    with pytest.raises(GenerationError, match="profile is not complete"):
        Profile().read(path, token_runs=0)


def test_a_profile_of_any_size_is_read_in_little_memory(tmp_path: Path) -> None:
    """50,000 events, 18 MB."""
    import tracemalloc

    filler = {"provider": "X", "op_name": "Add", "node_index": "0", "shapes": "x" * 200}
    line = event("a", 0, 1, **filler) + ",\n"
    path = tmp_path / "p.json"
    with path.open("w", encoding="utf-8") as file:
        file.write("[\n")
        for _ in range(500):
            file.write(line * 100 + RUN + ",\n")
        file.write(RUN + "\n]\n")
    tracemalloc.start()
    profile = Profile()
    profile.read(path, token_runs=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert profile.prompt_runs == 501
    assert peak < 4 << 20


def test_a_scratch_folder_is_on_the_disk_of_the_files_it_is_for(
    tmp_path: Path, nothing_left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large graphs and binaries are then linked into it, and not copied."""
    bundle = Bundle.open(build_flat(tmp_path / "bundle"))
    monkeypatch.setattr(places, "same_disk", lambda _, future: future != nothing_left)
    with scratch(bundle) as folder:
        assert folder.parent == tmp_path / "the cache"
    monkeypatch.setattr(places, "same_disk", lambda *_: False)
    with scratch(bundle) as folder:
        assert folder.parent == bundle.path
    hub = Bundle.open(as_hub_cache(bundle.path, tmp_path / "hub"))
    with scratch(hub) as folder:
        assert folder.parent == nothing_left
    assert not folder.exists()
