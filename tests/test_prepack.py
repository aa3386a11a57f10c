"""Weights packed once: one file for all graphs, the same answers, and nothing unsound taken."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from real_model import smollm2
from session_fixtures import Bundles, reference
from turnout.building.rewrite import (
    ExternalData,
    PackedWeight,
    Place,
    read_external,
    rewrite_external,
)
from turnout.bundle import Bundle, GenaiConfig
from turnout.compiling.jobs import Job, Member
from turnout.compiling.naming import prepacked_name
from turnout.compiling.options import CompileOptions
from turnout.compiling.prepacked import DATA_FILE, verify_prepacked, verify_structure
from turnout.compiling.prepare import prepare
from turnout.compiling.sharing import choose, prepack_job
from turnout.compiling.worker_prepack import prepack_here
from turnout.errors import CompileError
from turnout.processes import call

pytestmark = pytest.mark.usefixtures("own_cache")

WORKER = "turnout.compiling.worker_prepack:prepack_here"
WIDTH = 128


def write_model(path: Path, nodes: list[Any], **tensors: np.ndarray[Any, Any]) -> None:
    """A graph from `x` to `y`, its tensors in `weights.data` beside it, equal ones once."""
    data = path.parent / "weights.data"
    stored = bytearray(data.read_bytes() if data.exists() else b"")
    protos = []
    for name, array in tensors.items():
        proto = numpy_helper.from_array(array, name)
        payload = array.tobytes()
        offset = stored.find(payload)
        if offset < 0:
            offset = len(stored)
            stored += payload
        proto.ClearField("raw_data")
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data.name), ("offset", offset), ("length", len(payload))):
            proto.external_data.add(key=key, value=str(value))
        protos.append(proto)
    data.write_bytes(stored)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens", WIDTH])],
        protos,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    path.write_bytes(model.SerializeToString())


def weight(seed: int) -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = np.random.default_rng(seed).normal(0, 0.1, (WIDTH, WIDTH))
    return made.astype(np.float32)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Two graphs that differ and hold two equal matrices, one under another name."""
    folder = tmp_path / "source"
    folder.mkdir()
    node = helper.make_node
    write_model(
        folder / "one.onnx",
        [node("MatMul", ["x", "a"], ["h"]), node("MatMul", ["h", "b"], ["y"])],
        a=weight(1),
        b=weight(2),
    )
    write_model(
        folder / "two.onnx",
        [node("MatMul", ["x", "a"], ["h"]), node("MatMul", ["h", "other"], ["g"]),
         node("Relu", ["g"], ["y"])],
        a=weight(1),
        other=weight(2),
    )  # fmt: skip
    members = tuple(
        Member(name, folder / f"{name}.onnx", f"{name}.onnx") for name in ("one", "two")
    )
    return Job("prepacked", "CPUExecutionProvider", members, folder)


@pytest.fixture
def packed(job: Job, tmp_path: Path) -> Path:
    """The folder in which the job's weights are packed."""
    staging = tmp_path / "staging"
    staging.mkdir()
    prepack_here(job.argument(staging, {}))
    return staging


def run(graph: Path, x: np.ndarray[Any, Any], **entries: str) -> np.ndarray[Any, Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    found: np.ndarray[Any, Any] = session.run(None, {"x": x})[0]
    return found


def sample() -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = np.random.default_rng(9).normal(size=(1, 3, WIDTH))
    return made.astype(np.float32)


def test_equal_tensors_and_equal_packed_weights_are_stored_once(job: Job, packed: Path) -> None:
    """Two matrices and what each was packed into, though two graphs name all four."""
    size = WIDTH * WIDTH * 4
    assert sorted(path.name for path in packed.iterdir()) == [
        "one_prepacked.onnx", DATA_FILE, "two_prepacked.onnx",
    ]  # fmt: skip
    one, two = (read_external(packed / prepacked_name(name)) for name in ("one", "two"))
    places = [[(item.place, item.packed) for item in graph] for graph in (one, two)]
    assert places[0] == places[1]
    assert all(len(item.packed) == 1 for item in one)
    found = verify_structure(packed, job)
    assert found.packed_bytes == 2 * size
    assert found.bytes_saved == 4 * size
    assert (packed / DATA_FILE).stat().st_size == found.stored_bytes < 4 * size + 4 * 65536


def test_packed_graphs_give_what_their_sources_give(job: Job, packed: Path) -> None:
    for member in job.members:
        expected = run(member.graph, sample())
        np.testing.assert_array_equal(
            run(packed / prepacked_name(member.stage), sample()), expected
        )
    data = sample() @ weight(1) @ weight(2)
    np.testing.assert_allclose(run(packed / "one_prepacked.onnx", sample()), data, atol=1e-5)
    assert verify_prepacked(packed, job, BUNDLELESS).graphs == {
        "one": "one_prepacked.onnx",
        "two": "two_prepacked.onnx",
    }


class _Bundleless:
    """Stands for a bundle whose config says nothing of inputs."""

    config = GenaiConfig.parse('{"model": {"decoder": {"filename": "one.onnx"}}}')


BUNDLELESS: Any = _Bundleless()


def test_inputs_and_outputs_keep_names_types_and_symbolic_dimensions(packed: Path) -> None:
    model = onnx.load(packed / "one_prepacked.onnx", load_external_data=False)
    for value, name in ((model.graph.input[0], "x"), (model.graph.output[0], "y")):
        dims = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        assert (value.name, dims) == (name, ["batch", "tokens", WIDTH])


def test_a_rewritten_graph_differs_in_external_data_alone(packed: Path, tmp_path: Path) -> None:
    source = packed / "two_prepacked.onnx"

    def move(item: ExternalData) -> ExternalData:
        return replace(item, location="elsewhere", place=Place(item.place.offset + 300, 7))

    rewrite_external(source, tmp_path / "moved.onnx", move)
    before = onnx.load(source, load_external_data=False)
    after = onnx.load(tmp_path / "moved.onnx", load_external_data=False)
    for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
        entries = {entry.key: entry.value for entry in new.external_data}
        offset = next(int(e.value) for e in old.external_data if e.key == "offset")
        assert entries["location"] == "elsewhere"
        assert (entries["offset"], entries["length"]) == (str(offset + 300), "7")
        packed_entry = next(e for e in old.external_data if e.key.startswith("prepacked"))
        assert entries["prepacked_0"] == packed_entry.value
        for item in (old, new):
            item.ClearField("external_data")
    assert before == after


def test_tensors_of_graphs_inside_graphs_are_moved_too(tmp_path: Path) -> None:
    inner = numpy_helper.from_array(weight(1), "w")
    inner.ClearField("raw_data")
    inner.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "a"), ("offset", "0"), ("length", "65536")):
        inner.external_data.add(key=key, value=value)
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [WIDTH, WIDTH])
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["o"])], "b", [], [out], [inner]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [flag], [out])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    assert [item.location for item in read_external(tmp_path / "m.onnx")] == ["a", "a"]
    rewrite_external(
        tmp_path / "m.onnx", tmp_path / "n.onnx", lambda item: replace(item, location="b")
    )
    assert [item.location for item in read_external(tmp_path / "n.onnx")] == ["b", "b"]


def test_weights_in_several_files_end_in_one(job: Job, tmp_path: Path) -> None:
    """B11: and equal ones in two files are there once."""
    source = job.data_folder
    shutil.copy(source / "weights.data", source / "other.data")
    moved = source / "moved.onnx"
    rewrite_external(source / "two.onnx", moved, lambda item: replace(item, location="other.data"))
    moved.replace(source / "two.onnx")
    staging = tmp_path / "staging"
    staging.mkdir()
    prepack_here(job.argument(staging, {}))
    assert verify_structure(staging, job).bytes_saved == 4 * WIDTH * WIDTH * 4
    expected = run(job.members[1].graph, sample())
    np.testing.assert_array_equal(run(staging / "two_prepacked.onnx", sample()), expected)


def tampered(packed: Path, change: Callable[[ExternalData], ExternalData]) -> Path:
    target = packed.parent / "tampered"
    shutil.copytree(packed, target)
    (target / "one_prepacked.onnx").unlink()
    rewrite_external(packed / "one_prepacked.onnx", target / "one_prepacked.onnx", change)
    return target


def blob_of(packed: Path) -> Place:
    return read_external(packed / "one_prepacked.onnx")[0].packed[0].blobs[0]


def test_a_damaged_packed_weight_is_noticed_as_it_is_loaded(packed: Path) -> None:
    """onnxruntime 1.32 packs once more, and compares: what is documented depends on it."""
    place = blob_of(packed)
    with (packed / DATA_FILE).open("r+b") as file:
        file.seek(place.offset + 100)
        file.write(b"\xff" * 8)
    with pytest.raises(Exception, match="do not match the buffers"):
        run(packed / "one_prepacked.onnx", sample())


def test_what_another_cpu_would_pack_in_another_way_is_not_taken(job: Job, packed: Path) -> None:
    """Another layout has another hash: the session keeps its own, and answers rightly."""

    def change(item: ExternalData) -> ExternalData:
        weights = (PackedWeight("MatMul+1", weight.blobs) for weight in item.packed)
        return replace(item, packed=tuple(weights))

    folder = tampered(packed, change)
    place = blob_of(packed)
    with (folder / DATA_FILE).open("r+b") as file:
        file.seek(place.offset)
        file.write(bytes(place.length))
    expected = run(job.members[0].graph, sample())
    np.testing.assert_array_equal(run(folder / "one_prepacked.onnx", sample()), expected)


def quantized(folder: Path, bits: int, level: int) -> Path:
    """One product with weights of that many bits in blocks of 32."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(bits)
    codes = generator.integers(0, 256, (WIDTH, WIDTH // 32, 32 * bits // 8), dtype=np.uint8)
    scales = generator.uniform(0.01, 0.02, (WIDTH, WIDTH // 32)).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft",
        K=WIDTH, N=WIDTH, bits=bits, block_size=32, accuracy_level=level,
    )  # fmt: skip
    path = folder / f"q{bits}.onnx"
    write_model(path, [node], codes=codes, scales=scales)
    return path


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("level", [0, 4])
def test_quantized_products_are_packed_for_the_options_of_their_session(
    tmp_path: Path, bits: int, level: int
) -> None:
    """With other options the kernels pack in another way: right answers, whichever were packed."""
    graph = quantized(tmp_path / "source", bits, level)
    exact = {"mlas.qnbit.force_fp32": "1"}
    for name, options in (("plain", {}), ("exact", exact)):
        staging = tmp_path / name
        staging.mkdir()
        member = Member("q", graph, graph.name, options)
        job = Job("prepacked", "CPUExecutionProvider", (member,), graph.parent)
        try:
            prepack_here(job.argument(staging, {}))
        except CompileError as error:
            # Not every product of every width is packed, and there is nothing to keep then.
            assert "Nothing was packed" in error.problem
            assert list(staging.iterdir()) == []
            continue
        for entries in ({}, {"mlas__qnbit__force_fp32": "1"}):
            expected = run(graph, sample(), **entries)
            found = run(staging / "q_prepacked.onnx", sample(), **entries)
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        assert verify_prepacked(staging, job, BUNDLELESS).packed_bytes > 0


def test_a_child_packs_as_this_process_does(job: Job, packed: Path, tmp_path: Path) -> None:
    staging = tmp_path / "of the child"
    staging.mkdir()
    answer = call(WORKER, job.argument(staging, {}), timeout=120)
    assert answer["files"] == sorted(path.name for path in staging.iterdir())
    for path in packed.iterdir():
        assert (staging / path.name).read_bytes() == path.read_bytes()


def test_where_nothing_is_packed_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    write_model(folder / "add.onnx", [helper.make_node("Add", ["x", "a"], ["y"])], a=weight(1))
    job = Job(
        "prepacked", "CPUExecutionProvider", (Member("add", folder / "add.onnx", ""),), folder
    )
    staging = tmp_path / "staging"
    staging.mkdir()
    with pytest.raises(CompileError, match="Nothing was packed"):
        prepack_here(job.argument(staging, {}))
    assert list(staging.iterdir()) == []


def junk(folder: Path) -> None:
    (folder / "more.txt").write_text("?")


def no_data(folder: Path) -> None:
    (folder / DATA_FILE).unlink()


def truncated(folder: Path) -> None:
    os.truncate(folder / DATA_FILE, (folder / DATA_FILE).stat().st_size - 1)


def linked(folder: Path) -> None:
    (folder / DATA_FILE).rename(folder.parent / "aside.data")
    (folder / DATA_FILE).symlink_to(folder.parent / "aside.data")


def half_a_graph(folder: Path) -> None:
    os.truncate(folder / "two_prepacked.onnx", 500)


def other_input(folder: Path) -> None:
    model = onnx.load(folder / "two_prepacked.onnx", load_external_data=False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    (folder / "two_prepacked.onnx").write_bytes(model.SerializeToString())


def compiled(folder: Path) -> None:
    model = onnx.load(folder / "two_prepacked.onnx", load_external_data=False)
    model.graph.node.append(helper.make_node("EPContext", ["x"], ["z"], domain="com.microsoft"))
    (folder / "two_prepacked.onnx").write_bytes(model.SerializeToString())


def outside(folder: Path) -> None:
    moved = folder.parent / "moved.onnx"
    rewrite_external(
        folder / "two_prepacked.onnx", moved, lambda item: replace(item, location="../x.data")
    )
    moved.replace(folder / "two_prepacked.onnx")


FAULTS = {
    junk: "not complete, or more",
    no_data: "not complete, or more",
    linked: "not complete, or more",
    truncated: "not wholly in its data file",
    half_a_graph: "is not sound",
    other_input: "is not its source's",
    compiled: "holds what an EP compiled",
    outside: "a data file that was not made for it",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_sound_is_not_taken(job: Job, packed: Path, fault: Any) -> None:
    fault(packed)
    with pytest.raises(CompileError, match=FAULTS[fault]):
        verify_structure(packed, job)


def test_a_graph_that_answers_otherwise_is_not_taken(job: Job, packed: Path) -> None:
    """A weight that is another one is sound by its headers; the first run tells."""
    place = read_external(packed / "one_prepacked.onnx")[0].place
    with (packed / DATA_FILE).open("r+b") as file:
        file.seek(place.offset)
        file.write(weight(5).tobytes())
    verify_structure(packed, job)
    with pytest.raises(CompileError, match="does not give what its source gives"):
        verify_prepacked(packed, job, BUNDLELESS)


def test_stages_of_any_name_get_files_in_the_folder() -> None:
    names = {prepacked_name(stage) for stage in ("a", "A", "../a", "ü", "a.b", "x" * 300, "")}
    assert len(names) == 7
    assert all("/" not in name and len(name) < 80 and name.count(".") == 1 for name in names)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("bundles"))


def greedy(
    folder: Path, prompt: list[int], length: int, while_loaded: Callable[[], object] = bool
) -> list[int]:
    import onnxruntime_genai as og

    model = og.Model(og.Config(str(folder)))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=length, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([prompt], dtype=np.int32))
    found = []
    for _ in range(8):
        generator.generate_next_token()
        found.append(int(generator.get_next_tokens()[0]))
    while_loaded()
    return found


TINY = [
    ("flat", "llama-f32"),
    ("static", "llama-f32"),
    ("two sessions", "llama-mixed"),
    ("pipeline", "llama-ropefreqs-tied"),
]


@pytest.mark.parametrize(("kind", "model"), TINY)
def test_packed_bundles_answer_as_the_reference_does(
    bundles: Bundles, kind: str, model: str
) -> None:
    """Float and quantized products, tied heads, two graphs over one file, from any folder."""
    bundle = Bundle.open(bundles(kind, model=model))
    prompt, expected = reference(model, 0)
    with prepare(bundle, bundle.config, CompileOptions(share="prepacked")) as prepared:
        assert prepared.shared.prepacked
        assert greedy(prepared.folder, prompt, 64) == expected
        packed = {path.name for path in prepared.folder.glob("*_prepacked.onnx")}
        assert packed == {prepacked_name(stage) for stage in prepared.shared.prepacked}
        data = prepared.folder / DATA_FILE
        # Not a copy for each derived bundle.
        assert data.stat().st_nlink == 2
    onnx.load(bundle.graph_path(bundle.stages[-1]))  # other tools still read the source


def measure_here(argument: dict[str, Any]) -> dict[str, Any]:
    """In a child: load, answer, and say what memory it takes."""
    from turnout import memory

    found: dict[str, Any] = {}
    prompt = [(n * 37) % 40_000 for n in range(20)]
    # The whole length of the cache, which is what the static graphs always take.
    tokens = greedy(
        Path(argument["folder"]), prompt, 512, lambda: found.update(memory.measure().to_json())
    )
    return {"tokens": tokens, **found}


@pytest.mark.slow
def test_two_sessions_of_the_real_model_hold_packed_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 1.25 times what one session with the same cache takes (docs/sharing.md)."""
    from turnout.building import build

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    source = smollm2()
    common = {"precision": "fp32", "context_length": 512}
    static = Bundle.open(build(source, tmp_path / "static", static_prefill=64, **common))
    two = Bundle.open(build(source, tmp_path / "two", two_sessions=True, **common))

    def measured(folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = call(
            "test_prepack:measure_here", {"folder": str(folder)}, timeout=300
        )
        return found

    with prepare(static, static.config, CompileOptions(share="auto")) as prepared:
        assert prepared.shared.prepacked == ("context", "iterator", "lm_head")
        shared = measured(prepared.folder)
    apart = measured(static.path)
    with prepare(two, two.config, CompileOptions(share="auto")) as prepared:
        assert prepared.shared.merged == {"iterator": "context"}
        one = measured(prepared.folder)
    assert shared["tokens"] == apart["tokens"] == one["tokens"]
    if one["pss_bytes"] is not None:
        assert shared["pss_bytes"] <= 1.25 * one["pss_bytes"]
        assert shared["private_bytes"] < 0.25 * apart["private_bytes"]


def test_the_job_names_what_is_packed_and_where_its_weights_are(bundles: Bundles) -> None:
    bundle = Bundle.open(bundles("static"))
    choice = choose(bundle, bundle.config, "prepacked")
    job = prepack_job(bundle, choice.config, choice.prepack)
    assert (job.kind, job.name) == ("prepacked", "context+iterator+lm_head")
    assert job.data_folder == bundle.path.resolve()
    assert json.dumps(job.argument(Path("/s"), {}))
