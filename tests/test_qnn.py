"""Compiling for a Qualcomm NPU that is not here, by QNN's own compiler, and its simulator.

What needs the package onnxruntime-qnn is skipped where it is missing (`pip install
onnxruntime-qnn`, 99 MB; it has wheels for x86-64 Linux). No such NPU was at hand.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from bundle_fixtures import read_config, write_config
from qnn_fixtures import (
    DATA_FILE,
    HIDDEN,
    INNER,
    STEP,
    TOKENS,
    QuantizedWeights,
    build_bundle,
    write_graph,
    write_pair,
    write_products,
)
from session_fixtures import Terminal
from turnout.bundle import Bundle, GraphFile
from turnout.compiling import simulate, targets
from turnout.compiling.coverage import require_coverage
from turnout.compiling.hashes import ContentHashes
from turnout.compiling.jobs import Job, Member
from turnout.compiling.keys import Machine, difference, digest, key_inputs
from turnout.compiling.plan import plan_contexts
from turnout.compiling.verify import Verified, verify_artifacts
from turnout.compiling.worker_simulate import compared
from turnout.errors import (
    CompileError,
    DeviceUnavailableError,
    EpUnavailableError,
    LoadError,
    UsageError,
)
from turnout.machine import Inventory
from turnout.machine.inventory import Device, InstalledEp, Platform
from turnout.machine.plugins import platform_word
from turnout.processes import call
from turnout.routing import apply, route
from turnout.runtime import Session
from turnout.runtime.loading import refuse_native_code

pytest_plugins = ["session_plugin"]

QNN = "QNNExecutionProvider"
TARGET = {"soc_model": "60", "htp_arch": "73"}
# What QNN records of it in a graph, read off one that it wrote.
RECORD = "v2:6:2.51.0:5.51.0:73:60:0:0"
WEIGHTS = 2 * HIDDEN * INNER


def needs_qnn(test: Any) -> Any:
    """Not in `make check`: compiling takes a second, in a process of its own."""
    missing = importlib.util.find_spec("onnxruntime_qnn") is None
    reason = "the package onnxruntime-qnn is not installed"
    return pytest.mark.slow(pytest.mark.skipif(missing, reason=reason)(test))


needs_simulator = pytest.mark.skipif(
    platform_word() != "linux-x86_64", reason="QNN's simulator was run on x86-64 Linux alone"
)


def job_of(graphs: Mapping[str, Path], *, shared: bool = False, **changes: Any) -> Job:
    members = tuple(Member(stage, path, path.name) for stage, path in graphs.items())
    folder = next(iter(graphs.values())).parent
    facts = {"provider_options": {"backend_type": "htp"}, "target": TARGET, **changes}
    return Job("context", QNN, members, folder, shared=shared, **facts)


def libraries() -> dict[str, str]:
    return {QNN: importlib.import_module("onnxruntime_qnn").get_library_path()}


def compiled(job: Job, folder: Path) -> Verified:
    """The job, compiled in a child into `folder`, and verified."""
    folder.mkdir()
    call(
        "turnout.compiling.worker:compile_here",
        job.argument(folder, libraries()),
        timeout=100,
        doing=f"compiling {job.name}",
    )
    return verify_artifacts(folder, job, SimpleNamespace(blobs=None))  # type: ignore[arg-type]


def proven(job: Job, folder: Path, verified: Verified) -> simulate.Proof:
    return simulate.prove(job, folder, verified.graphs, libraries(), timeout=100)


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, Path]:
    return write_pair(tmp_path / "source")


# --- What describes a device, before anything is compiled.


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ("soc_model=60,htp_arch=73", TARGET),
        (["soc_model=60", "htp_arch=73"], TARGET),
        (" soc_model = 60 , htp_arch = 73 ", TARGET),
        ("soc_model=SM8550", {"soc_model": "SM8550"}),
        ([], {}),
    ],
)
def test_a_target_is_pairs_given_at_once_or_one_by_one(texts: Any, found: dict[str, str]) -> None:
    assert targets.parse(texts) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "''"),
        ("60", "'60'"),
        ("soc_model", "'soc_model'"),
        ("soc_model=", "'soc_model='"),
        ("=60", "'=60'"),
        ("soc_model=60,", "''"),
        ("soc_model=../60", "'soc_model=../60'"),
        ("soc_model=60;htp_arch=73", "'soc_model=60;htp_arch=73'"),
        ("soc_model=60,soc_model=57", "60 and 57"),
        ("soc_model=" + "6" * 99, "soc_model=666"),
    ],
)
def test_what_is_no_target_is_wrong_usage(text: str, found: str) -> None:
    with pytest.raises(UsageError) as error:
        targets.parse(text)
    assert found in error.value.facts["found"]


@pytest.mark.parametrize(
    ("ep", "target", "problem", "expected"),
    [
        ("qnn", {"soc": "60"}, "not described by soc", "soc_model, htp_arch, vtcm_mb"),
        # QNN passes over these, and compiles for no architecture at all.
        ("qnn", {"htp_arch": "v73"}, "this htp_arch", "a whole number, 0 or more"),
        ("qnn", {"htp_arch": "0"}, "this htp_arch", "a whole number, 0 or more"),
        ("qnn", {"vtcm_mb": "8"}, "names no device", "soc_model or htp_arch"),
        ("openvino", TARGET, "this machine alone", "a target with qnn"),
        ("cpu", TARGET, "this machine alone", "a target with qnn"),
        ("nobody", TARGET, "this machine alone", "a target with qnn"),
    ],
)
def test_a_target_that_an_ep_cannot_have_is_wrong_usage(
    ep: str, target: dict[str, str], problem: str, expected: str
) -> None:
    with pytest.raises(UsageError) as error:
        targets.validate(ep, target)
    assert problem in error.value.problem
    assert error.value.facts["expected"] == expected


def test_the_ep_is_told_of_the_target_and_of_the_backend_that_compiles_for_it() -> None:
    assert targets.provider_options("qnn", {}, TARGET) == {"backend_type": "htp", **TARGET}
    given = {"backend_path": "libQnnHtp.so", "vtcm_mb": "8"}
    # `backend_type` beside it would be refused.
    assert targets.provider_options("qnn", given, TARGET) == {**given, **TARGET}
    assert targets.provider_options("qnn", {"soc_model": "60"}, {}) == {"soc_model": "60"}


def test_options_that_contradict_the_target_are_wrong_usage() -> None:
    with pytest.raises(UsageError, match="differ") as error:
        targets.provider_options("qnn", {"soc_model": "57"}, TARGET)
    assert error.value.facts["found"] == "soc_model=60 and soc_model=57"


def linux_machine() -> Inventory:
    """x86-64 Linux with QNN, as `Inventory.discover` finds it: it can compile there."""
    host = Device(kind="cpu", vendor="Intel")
    return Inventory(
        platform=Platform(word="linux-x86_64"),
        runtimes={},
        eps=(
            InstalledEp("CPUExecutionProvider", "built-in", devices=(host,)),
            InstalledEp(QNN, "onnxruntime-qnn", devices=(Device(kind="cpu", compile_only=True),)),
        ),
    )


def test_a_route_for_the_target_is_decided_here_and_does_not_carry_it(tmp_path: Path) -> None:
    """A5: on the device it is the device that says what it is."""
    bundle = Bundle.open(build_bundle(tmp_path / "b"))
    here = linux_machine()
    with pytest.raises(DeviceUnavailableError, match="compile on this machine but not run"):
        route(bundle, ep="qnn", inventory=here)
    there = targets.inventory_with(here, "qnn", TARGET)
    decided = route(bundle, stages={"context": "qnn"}, inventory=there)
    assert [(s.stage, s.ep, s.device) for s in decided.stages if s.ep == QNN] == [
        ("context", QNN, "npu")
    ]
    effective = apply(bundle.config, decided)
    assert '"backend_type": "htp"' in effective.text
    assert "soc_model" not in effective.text
    assert targets.inventory_with(here, "qnn", {}) is here
    bare = Inventory(platform=here.platform, runtimes={}, eps=here.eps[:1])
    assert targets.inventory_with(bare, "qnn", TARGET) is bare


def routed(folder: Path, **stages: str) -> tuple[Bundle, Any]:
    bundle = Bundle.open(build_bundle(folder))
    there = targets.inventory_with(linux_machine(), "qnn", TARGET)
    return bundle, apply(bundle.config, route(bundle, stages=stages, inventory=there))


def test_the_target_is_a_part_of_the_key_and_a_miss_names_it(tmp_path: Path) -> None:
    """A13: what is compiled for one device is not taken for another."""
    bundle, effective = routed(tmp_path / "b", context="qnn")
    hashes, machine = ContentHashes(tmp_path), Machine({"onnxruntime": "1.32.0"})
    inputs = []
    for target in (TARGET, {**TARGET, "soc_model": "57"}, {}):
        (job,) = plan_contexts(bundle, effective, target=target).jobs
        assert job.target == target
        inputs.append(key_inputs(job, bundle, machine, hashes))
    assert len({digest(found) for found in inputs}) == 3
    assert difference(inputs[0], inputs[1]) == ("target soc_model 60 -> 57",)


def test_a_target_that_no_stage_is_compiled_for_is_wrong_usage(tmp_path: Path) -> None:
    bundle, effective = routed(tmp_path / "b")
    with pytest.raises(UsageError, match="no stage is compiled for it") as error:
        plan_contexts(bundle, effective, target=TARGET)
    assert error.value.facts["found"] == "soc_model=60,htp_arch=73"


# --- What was compiled, judged by its headers.


def compiled_graph(path: Path, record: str | None) -> GraphFile:
    node = onnx.helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", source=QNN)
    values = [onnx.helper.make_tensor_value_info(n, 1, [1]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    model = onnx.helper.make_model(graph)
    if record is not None:
        onnx.helper.set_model_props(
            model, {f"ep_compatibility_info.{QNN}": record, "external_dependencies": "x"}
        )
    path.write_bytes(model.SerializeToString())
    return GraphFile.read(path)


@pytest.mark.parametrize(
    ("record", "target", "known"),
    [
        (RECORD, TARGET, True),
        (RECORD, {"soc_model": "SC8380XP"}, True),  # a name is recorded as its number
        ("v2:6:2.51.0:5.51.0:73:60:8:0", {**TARGET, "vtcm_mb": "8"}, True),
        (RECORD, {}, False),
        (None, TARGET, False),
        ("v3:73:60", TARGET, False),  # of another version nothing is known
        ("", TARGET, False),
    ],
)
def test_a_graph_says_for_which_device_it_was_compiled(
    tmp_path: Path, record: str | None, target: dict[str, str], known: bool
) -> None:
    graph = compiled_graph(tmp_path / "g.onnx", record)
    assert targets.took_effect(graph, "qnn", target) is known


@pytest.mark.parametrize(
    ("record", "target", "found"),
    [
        ("v2:6:2.51.0:5.51.0:0:60:0:0", {**TARGET, "htp_arch": "99"}, "htp_arch=0"),
        ("v2:6:2.51.0:5.51.0:73:0:0:0", {"soc_model": "X1"}, "soc_model=0"),
        (RECORD, {"soc_model": "57"}, "soc_model=60"),
        (RECORD, {**TARGET, "vtcm_mb": "8"}, "vtcm_mb=0"),
        ("v2:6:2.51.0:5.51.0:73,75:60,57:0,0:0", TARGET, "soc_model=60,57"),
    ],
)
def test_a_graph_for_another_device_than_asked_is_refused(
    tmp_path: Path, record: str, target: dict[str, str], found: str
) -> None:
    """QNN passes over a value that it does not know, and compiles."""
    graph = compiled_graph(tmp_path / "g.onnx", record)
    with pytest.raises(CompileError, match="did not compile for the target") as error:
        targets.took_effect(graph, "qnn", target)
    assert found in error.value.facts["found"]


@pytest.mark.parametrize("value", ["/tmp/evil.so", "../evil.so", "sub/evil.so", "..\\evil.so"])
def test_a_bundle_does_not_choose_a_library_outside_of_the_plugin(
    tmp_path: Path, value: str
) -> None:
    """B12: the option is the bundle's own, and what it names runs with the user's rights."""
    plugin = tmp_path / "plugin" / "libonnxruntime_providers_qnn.so"
    with pytest.raises(CompileError, match="outside of its plugin"):
        targets.backend_library("qnn", {"backend_path": value}, plugin)


@pytest.mark.parametrize(
    ("option", "value", "refused"),
    [
        ("backend_path", "/tmp/evil.so", True),
        ("backend_path", "evil/libQnnHtp.so", True),
        ("backend_path", "..\\QnnHtp.dll", True),
        ("op_packages", "Add:libEvil.so:Interface", True),
        ("backend_path", "QnnHtp.dll", False),  # as real bundles have it
        ("backend_type", "htp", False),
    ],
)
def test_a_session_does_not_load_a_library_that_a_bundle_chooses(
    tmp_path: Path, option: str, value: str, refused: bool
) -> None:
    """B12: it would run with the user's rights."""
    folder = build_bundle(tmp_path / "b")
    config = read_config(folder)
    options = {"provider_options": [{"QNN": {option: value}}]}
    config["model"]["decoder"]["pipeline"][0]["context"]["session_options"] = options
    write_config(folder, config)
    bundle = Bundle.open(folder)
    if not refused:
        refuse_native_code(bundle.config, bundle)
        return
    with pytest.raises(LoadError, match="native code") as error:
        Session(bundle).load()
    assert error.value.facts["found"] == f"{option} {value!r}"


def test_a_backend_is_found_beside_the_plugin(tmp_path: Path) -> None:
    name = targets._file_name("QnnHtp")
    (tmp_path / name).write_bytes(b"")
    plugin = tmp_path / "plugin.so"
    for options in (
        {"backend_type": "htp"},
        {"backend_path": name},
        {"backend_path": str(tmp_path / name)},
    ):
        assert targets.backend_library("qnn", options, plugin) == tmp_path / name
    with pytest.raises(EpUnavailableError) as error:
        targets.backend_library("qnn", {"backend_type": "gpu"}, plugin)
    assert error.value.facts["fix"] == "choose one of htp"
    assert targets.backend_library("openvino", {"device_type": "CPU"}, plugin) is None


def test_answers_are_compared_by_their_root_mean_square() -> None:
    """Worked out by hand: differences of 3 and 4 against values of 6 and 8 are a half."""
    wanted = {"a": np.array([6.0, 8.0]), "b": np.zeros(2)}
    assert compared({"a": np.array([9.0, 4.0]), "b": np.zeros(2)}, wanted) == {
        "ratio": 0.5,
        "outputs": {"a": {"difference": 4.0, "value": 8.0}, "b": {"difference": 0.0, "value": 0.0}},
    }
    for wrong in (np.array([np.nan, 8.0]), np.array([np.inf, 8.0]), np.zeros(3)):
        assert compared({"a": wrong, "b": np.zeros(2)}, wanted)["ratio"] == float("inf")
    assert compared({"a": wanted["a"], "b": np.ones(2)}, wanted)["ratio"] == float("inf")


def test_a_stage_whose_weights_stayed_outside_is_not_compiled(pair: dict[str, Path]) -> None:
    source = GraphFile.read(pair["context"])
    with pytest.raises(CompileError, match="Next to nothing of context") as error:
        require_coverage("context", source, source)
    assert error.value.facts["found"].startswith(f"{WEIGHTS + 11:,} of {WEIGHTS + 11:,} bytes")


# --- With QNN itself.


@needs_qnn
@needs_simulator
@pytest.mark.parametrize("stage", TOKENS)
def test_a_stage_of_qdq_compiles_for_a_device_that_is_not_here_and_answers_in_its_simulator(
    pair: dict[str, Path], tmp_path: Path, stage: str
) -> None:
    """B16: graphs of quantize/dequantize pairs compile. 0.0007 was measured."""
    job = job_of({stage: pair[stage]})
    verified = compiled(job, tmp_path / "out")
    assert verified.graphs == {stage: f"{stage}_qnn_ctx.onnx"}
    assert verified.binaries == (f"{stage}_qnn_ctx_qnn.bin",)
    graph = GraphFile.read(tmp_path / "out" / verified.graphs[stage])
    assert targets.took_effect(graph, QNN, TARGET)
    assert [node.source for node in graph.ep_contexts] == [QNN]
    proof = proven(job, tmp_path / "out", verified)
    assert proof.ratio is not None
    assert 0 < proof.ratio < 0.005
    assert proof.checked.startswith("simulator; differs from the CPU EP by 0.000")


@needs_qnn
def test_sharing_gives_one_binary_that_is_smaller_than_two_and_not_run_here(
    pair: dict[str, Path], tmp_path: Path
) -> None:
    """B1, B2, B16: the second graph adds less than its weights. 229,376 and 401,408 bytes."""
    job = job_of(pair, shared=True)
    verified = compiled(job, tmp_path / "shared")
    assert verified.binaries == ("context_qnn_ctx_qnn.bin",)
    assert verified.bytes_saved == WEIGHTS
    for name in verified.graphs.values():
        (node,) = GraphFile.read(tmp_path / "shared" / name).ep_contexts
        assert node.cache == "context_qnn_ctx_qnn.bin"
    proof = proven(job, tmp_path / "shared", verified)
    assert proof == simulate.Proof(
        "structure; not run here: contexts that share weights load on the device alone"
    )
    shared = (tmp_path / "shared" / verified.binaries[0]).stat().st_size
    apart = 0
    for stage, graph in pair.items():
        alone = compiled(job_of({stage: graph}), tmp_path / stage)
        apart += (tmp_path / stage / alone.binaries[0]).stat().st_size
    assert shared < apart - WEIGHTS


@needs_qnn
def test_the_weights_of_graphs_that_differ_are_not_shared_by_their_names(tmp_path: Path) -> None:
    """The names are the same, the bytes are not: QNN compares bytes."""
    first = write_pair(tmp_path / "source")
    weights = QuantizedWeights(tmp_path / "source" / "other.data")
    weights.generator = np.random.default_rng(99)
    graphs = {**first, "iterator": write_graph(tmp_path / "source" / "o.onnx", weights, 1)}
    verified = compiled(job_of(graphs, shared=True), tmp_path / "out")
    assert (tmp_path / "out" / verified.binaries[0]).stat().st_size > 2 * WEIGHTS


@needs_qnn
@needs_simulator
def test_the_simulator_finds_that_other_weights_were_compiled(
    pair: dict[str, Path], tmp_path: Path
) -> None:
    job = job_of({"context": pair["context"]})
    verified = compiled(job, tmp_path / "out")
    data = pair["context"].with_name(DATA_FILE)
    data.write_bytes(data.read_bytes()[::-1])
    with pytest.raises(CompileError, match="answers otherwise than the CPU EP") as error:
        proven(job, tmp_path / "out", verified)
    assert error.value.facts["expected"] == "at most 0.2"


@needs_qnn
@needs_simulator
@pytest.mark.parametrize(("step", "right"), [(2 / 65536, True), (STEP, False)])
def test_the_simulator_finds_an_operator_that_the_npu_computes_otherwise(
    tmp_path: Path, step: float, right: bool
) -> None:
    """QNN's 16-bit Tanh has steps of 1/32768, whatever the graph says: with steps of 1/4096 the
    answer is 8 times too large, and no header shows it.
    """
    path = write_products(tmp_path / "tanh.onnx", "Tanh", step)
    job = job_of({"context": path})
    verified = compiled(job, tmp_path / "out")
    if right:
        assert (proven(job, tmp_path / "out", verified).ratio or 1) < 0.005
        return
    with pytest.raises(CompileError, match="answers otherwise") as error:
        proven(job, tmp_path / "out", verified)
    assert error.value.facts["found"].startswith("a difference of 7 ")


@needs_qnn
def test_a_device_that_qnn_does_not_know_is_an_error(pair: dict[str, Path], tmp_path: Path) -> None:
    """It compiles for an unknown architecture all the same, and for an unknown chip nothing."""
    stage = {"context": pair["context"]}
    with pytest.raises(CompileError, match="did not compile for the target") as error:
        compiled(job_of(stage, target={**TARGET, "htp_arch": "99"}), tmp_path / "a")
    assert error.value.facts["expected"] == "htp_arch=99"
    with pytest.raises(CompileError, match="nothing was compiled") as error:
        compiled(job_of(stage, target={"soc_model": "99999"}), tmp_path / "b")
    assert "check the target" in error.value.facts["fix"]


@needs_qnn
def test_open_shapes_are_not_compiled_and_the_error_names_one(
    pair: dict[str, Path], tmp_path: Path
) -> None:
    model = onnx.load(str(pair["context"]), load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "tokens"
    pair["context"].write_bytes(model.SerializeToString())
    with pytest.raises(CompileError, match="nothing was compiled") as error:
        compiled(job_of({"context": pair["context"]}), tmp_path / "out")
    assert "the input hidden has the open shape [1, tokens, 64]" in error.value.facts["found"]


@needs_qnn
def test_a_stage_of_which_qnn_takes_next_to_nothing_is_not_compiled(tmp_path: Path) -> None:
    """QNN takes the node with fixed shapes; all weights stay outside, and are copied."""
    path = write_products(tmp_path / "mixed.onnx", "Relu", STEP, open_product=True)
    with pytest.raises(CompileError, match="Next to nothing of context") as error:
        compiled(job_of({"context": path}), tmp_path / "out")
    assert "outside of the 1 compiled part" in error.value.facts["found"]


@needs_qnn
@needs_simulator
def test_a_graph_in_floats_is_compiled_in_16_bits(tmp_path: Path) -> None:
    """B15: QNN rounds float32 to float16, and says so nowhere; 0.0003 was measured."""
    path = write_products(tmp_path / "float.onnx", None, STEP)
    job = job_of({"context": path})
    proof = proven(job, tmp_path / "out", compiled(job, tmp_path / "out"))
    assert proof.ratio is not None
    assert 1e-5 < proof.ratio < 2e-3


@needs_qnn
@needs_simulator
@pytest.mark.parametrize("stage", ["model.v1", "b\u00fcndel a.b.c"])
def test_stages_with_dots_and_spaces_compile_to_names_that_load(
    pair: dict[str, Path], tmp_path: Path, stage: str
) -> None:
    """B4: names with two dots once came out wrong (O#25473, I#572)."""
    folder = tmp_path / "a.b \u00fc"
    folder.mkdir()
    graph = shutil.copy(pair["context"], folder / "con.text.onnx")
    shutil.copy(pair["context"].with_name(DATA_FILE), folder)
    job = job_of({stage: Path(graph)})
    verified = compiled(job, folder / "out")
    assert proven(job, folder / "out", verified).ratio


@needs_qnn
@needs_simulator
def test_options_that_only_compiling_takes_are_not_simulated_with(
    pair: dict[str, Path], tmp_path: Path
) -> None:
    options = {"backend_type": "htp", "enable_htp_prepare_only": "1"}
    job = job_of({"context": pair["context"]}, provider_options=options)
    assert proven(job, tmp_path / "out", compiled(job, tmp_path / "out")).ratio


@needs_qnn
def test_a_binary_for_several_chips_is_not_run_here(pair: dict[str, Path], tmp_path: Path) -> None:
    options = {"backend_type": "htp", "soc_model": "60,57", "htp_arch": "73,75"}
    job = job_of({"context": pair["context"]}, provider_options=options, target={})
    proof = proven(job, tmp_path / "out", compiled(job, tmp_path / "out"))
    assert proof.ratio is None


@needs_qnn
def test_the_same_graph_twice_shares_nothing(pair: dict[str, Path], tmp_path: Path) -> None:
    """QNN refuses a second graph of the same name: such stages become one session instead."""
    twice = {"context": pair["context"], "iterator": pair["context"]}
    with pytest.raises(CompileError, match="does not compile the stage 'iterator'"):
        compiled(job_of(twice, shared=True), tmp_path / "out")


# --- A whole bundle.


BOTH = ("--stage", "context=qnn", "--stage", "iterator=qnn", "--target", "soc_model=60,htp_arch=73")


@needs_qnn
@needs_simulator
def test_a_bundle_compiles_for_a_device_that_is_elsewhere(
    tmp_path: Path, turnout: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5, A8, B1: shared, then each by itself; then it is found again, and for no other device."""
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    folder = build_bundle(tmp_path / "b \u00fc")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    shared = turnout("compile", folder, *BOTH, "--json")
    rows = {row["stage"]: row for row in shared.json["stages"]}
    assert (shared.code, rows["context"]["outcome"]) == (0, "compiled")
    assert rows["context"]["key"] == rows["iterator"]["key"]
    assert rows["context"]["checked"].startswith("structure; not run here: contexts that share")
    binary = "context_qnn_ctx_qnn.bin"
    assert binaries(shared.json) == {"context": {binary}, "iterator": {binary}}

    apart = turnout("compile", folder, *BOTH, "--share", "off", "--json")
    rows = {row["stage"]: row for row in apart.json["stages"]}
    assert rows["context"]["key"] != rows["iterator"]["key"]
    assert rows["iterator"]["checked"].startswith("simulator; differs from the CPU EP by 0.000")
    assert binaries(apart.json)["iterator"] == {"iterator_qnn_ctx_qnn.bin"}

    again = turnout("compile", folder, *BOTH, "--json")
    assert {row["outcome"] for row in again.json["stages"]} == {"stored", "skipped"}
    other = turnout("compile", folder, *BOTH[:-1], "soc_model=57,htp_arch=75", "--json")
    assert other.json["missed"]["context+iterator"] == [
        "target htp_arch 73 -> 75",
        "target soc_model 60 -> 57",
    ]
    shown = turnout("compile", folder, *BOTH)
    assert "checked  context+iterator: structure; not run here: contexts that share" in shown.out
    assert "can compile on this machine but not run" not in shown.err
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


def binaries(report: dict[str, Any]) -> dict[str, set[str]]:
    """The binaries that each compiled stage of the derived bundle names, all of them there."""
    derived = Path(report["derived"])
    (pipeline,) = read_config(derived)["model"]["decoder"]["pipeline"]
    found = {}
    for stage in TOKENS:
        options = pipeline[stage]["session_options"]
        # The device is what it is; the target was for compiling alone.
        assert options["provider_options"] == [{"QNN": {"backend_type": "htp"}}]
        assert options["ep.context_file_path"] == pipeline[stage]["filename"]
        graph = GraphFile.read(derived / pipeline[stage]["filename"])
        assert targets.took_effect(graph, QNN, TARGET)
        shape = (1, TOKENS[stage], HIDDEN)
        assert [(v.name, v.shape) for v in (*graph.inputs, *graph.outputs)] == [
            ("hidden", shape),
            ("normed", shape),
        ]
        found[stage] = {str(node.cache) for node in graph.ep_contexts}
        assert all((derived / name).is_file() for name in found[stage])
    return found


@needs_qnn
def test_what_cannot_be_compiled_for_a_target_is_told(tmp_path: Path, turnout: Terminal) -> None:
    folder = build_bundle(tmp_path / "b")
    wrong = turnout("compile", folder, *BOTH[:2], "--target", "soc_model=60,htp_arch=v73")
    assert (wrong.code, "write the number alone" in wrong.err) == (2, True)
    without = turnout("compile", folder, "--ep", "qnn")
    assert (without.code, "--target" in without.err) == (1, True)
    # Every stage was asked for, and two have open shapes.
    some = turnout("compile", folder, "--ep", "qnn", *BOTH[4:])
    assert some.code == 1
    assert "the input input_ids has the open shape [batch, sequence]" in some.err
    assert "Not compiled: embeddings, lm_head." in some.err
