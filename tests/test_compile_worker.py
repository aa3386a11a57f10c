"""Compiling in a child process, with OpenVINO on the CPU: what is written, and what it answers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bundle_fixtures import build_pipeline, generate
from compile_fixtures import (
    DATA,
    EXACT,
    HERE,
    OPENVINO,
    ROWS,
    SIZE,
    Toy,
    as_derived,
    compile_job,
    job_of,
    libraries,
    make_toy,
    open_compiled,
    save_graph,
)
from session_fixtures import Bundles, reference
from turnout.bundle import GraphFile
from turnout.bundle.epcontext import read_context_binary
from turnout.compiling.jobs import Job
from turnout.compiling.naming import context_name
from turnout.compiling.verify import verify_artifacts
from turnout.errors import CompileError, DeviceUnavailableError, ProcessError
from turnout.processes import call

openvino = pytest.mark.openvino
TOKENS = [203, 84, 118, 84, 259, 151]  # of build_pipeline, by onnxruntime-genai from the source
BINARY = "context_openvino_ctx_OpenVINOExecutionProvider.bin"
BYTES = SIZE * SIZE * 4


def answers(
    toy: Toy, compiled: Path, data: Path | None, *, shared: bool, stages: Any = ROWS
) -> None:
    """Every stage, loaded with the others open, answers as numpy does."""
    sessions = {
        stage: open_compiled(compiled / context_name(stage, OPENVINO), data, shared=shared)
        for stage in stages
    }
    for stage, session in sessions.items():
        x = toy.inputs(stage)
        (found,) = session.run(None, {"x": x})
        np.testing.assert_allclose(found, toy.answer(x), atol=1e-3)


@openvino
@pytest.mark.slow
class TestOneBinaryEach:
    def test_what_is_written_is_told_with_the_tools_and_the_time(self, tmp_path: Path) -> None:
        """B6, B7: a graph of nothing but EPContext nodes, and beside it the binary it names."""
        toy = make_toy(tmp_path / "bundle")
        job = job_of(toy.folder, ["context"])
        told = compile_job(job, tmp_path / "staging")
        assert told["files"] == ["context_openvino_ctx.onnx", BINARY]
        assert list(told["seconds"]) == ["context"]
        assert 0 < told["seconds"]["context"] < 60
        assert told["tools"]["onnxruntime"].count(".") == 2
        assert "onnxruntime-ep-openvino" in told["tools"]
        assert len(told["tools"]["library of openvino"]) == 64
        graph = GraphFile.read(tmp_path / "staging" / "context_openvino_ctx.onnx")
        assert dict(graph.ops) == {("com.microsoft", "EPContext"): 1}
        assert [context.cache for context in graph.ep_contexts] == [BINARY]
        verified = verify_artifacts(tmp_path / "staging", job, toy.bundle)
        assert dict(verified.graphs) == {"context": "context_openvino_ctx.onnx"}
        assert (verified.binaries, verified.bytes_saved) == ((BINARY,), 0)

    def test_it_answers_from_anywhere_without_the_bundle(self, tmp_path: Path) -> None:
        toy = make_toy(tmp_path / "bundle")
        compile_job(job_of(toy.folder), tmp_path / "ö staging")
        (tmp_path / "ö staging").rename(tmp_path / "elsewhere")
        shutil.rmtree(toy.folder)
        answers(toy, tmp_path / "elsewhere", None, shared=False)

    def test_embedding_is_done_where_the_stage_asks_for_it(self, tmp_path: Path) -> None:
        toy = make_toy(tmp_path / "bundle")
        job = job_of(toy.folder, ["iterator"], session_options={"ep.context_embed_mode": "1"})
        told = compile_job(job, tmp_path / "staging")
        assert told["files"] == ["iterator_openvino_ctx.onnx"]
        assert verify_artifacts(tmp_path / "staging", job, toy.bundle).binaries == ()
        answers(toy, tmp_path / "staging", None, shared=False, stages=["iterator"])

    def test_options_about_contexts_are_the_jobs_alone(self, tmp_path: Path) -> None:
        """B12: no option of a stage says where the child writes."""
        toy = make_toy(tmp_path / "bundle")
        outside = tmp_path / "outside"
        job = job_of(
            toy.folder,
            ["context"],
            session_options={
                "ep.context_file_path": str(outside / "x.onnx"),
                "ep.context_model_external_initializers_file_name": str(outside / "x.data"),
                "ep.share_ep_contexts": "1",
                "session.model_external_initializers_file_folder_path": str(outside),
                "log_id": "x",
                "graph_optimization_level": "ORT_ENABLE_BASIC",
            },
        )
        compile_job(job, tmp_path / "staging")
        assert not outside.exists()
        verify_artifacts(tmp_path / "staging", job, toy.bundle)

    @pytest.mark.parametrize("option", ["cache_dir", "load_config"])
    def test_no_cache_of_the_ep_is_written(self, tmp_path: Path, option: str) -> None:
        """B9: the EP's own cache folder has no part in what is compiled."""
        toy = make_toy(tmp_path / "bundle")
        cache = str(tmp_path / "cache")
        value = cache if option == "cache_dir" else json.dumps({"CPU": {"CACHE_DIR": cache}})
        job = job_of(toy.folder, ["context"], provider_options={option: value})
        compile_job(job, tmp_path / "staging")
        verify_artifacts(tmp_path / "staging", job, toy.bundle)
        assert not (tmp_path / "cache").exists()


@openvino
class TestShared:
    def test_there_is_one_binary_that_finds_the_weights_by_their_own_name(
        self, tmp_path: Path
    ) -> None:
        """B1, B3, B5: weights became inputs, bound from the ranges that the graphs name."""
        toy = make_toy(tmp_path / "bundle")
        job = job_of(toy.folder, shared=True)
        told = compile_job(job, tmp_path / "staging")
        assert told["files"] == sorted(
            ["context_openvino_ctx.onnx", "iterator_openvino_ctx.onnx", BINARY]
        )
        binary = read_context_binary(tmp_path / "staging" / BINARY)
        assert binary is not None
        assert len(binary.blobs) == 2
        assert sorted((w.name, w.location, w.offset, w.size) for w in binary.weights) == [
            ("V", DATA, BYTES + 64, BYTES),
            ("W", DATA, 0, BYTES),
        ]
        verified = verify_artifacts(tmp_path / "staging", job, toy.bundle)
        assert verified.binaries == (BINARY,)
        # Two graphs that each do without two matrices of 64 x 64 floats.
        inside = sum(size for _, size in binary.blobs.values())
        assert verified.bytes_saved == 2 * 2 * 16384 - inside > 50_000

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "locations",
        [("a b.data", "a b.data"), ("w/ö.data", "w/ö.data"), ("one.data", "w/two.data")],
    )
    def test_it_answers_from_a_folder_elsewhere(
        self, tmp_path: Path, locations: tuple[str, str]
    ) -> None:
        """B1, B10, B11: weights of one or several files, found below the folder that is named."""
        toy = make_toy(tmp_path / "ö bundle", locations=locations)
        compile_job(job_of(toy.folder, shared=True), tmp_path / "staging")
        (tmp_path / "staging").rename(tmp_path / "elsewhere")
        answers(toy, tmp_path / "elsewhere", toy.folder, shared=True)

    @pytest.mark.slow
    def test_graphs_whose_weights_are_in_another_folder_are_compiled_from_there(
        self, tmp_path: Path
    ) -> None:
        toy = make_toy(tmp_path / "bundle")
        (toy.folder / "weights").mkdir()
        (toy.folder / DATA).rename(toy.folder / "weights" / DATA)
        one = job_of(toy.folder, shared=True)
        job = Job(
            kind="context", ep=one.ep, members=one.members, shared=True,
            data_folder=toy.folder / "weights", provider_options=one.provider_options,
        )  # fmt: skip
        compile_job(job, tmp_path / "staging")
        verify_artifacts(tmp_path / "staging", job, toy.bundle)
        answers(toy, tmp_path / "staging", toy.folder / "weights", shared=True)

    @pytest.mark.slow
    def test_quantized_graphs_share_too(self, tmp_path: Path) -> None:
        """B16: graphs with pairs of QuantizeLinear and DequantizeLinear."""
        toy = make_toy(tmp_path / "bundle", quantized=True)
        job = job_of(toy.folder, shared=True)
        compile_job(job, tmp_path / "staging")
        verify_artifacts(tmp_path / "staging", job, toy.bundle)
        binary = read_context_binary(tmp_path / "staging" / BINARY)
        assert binary is not None
        assert [(weight.name, weight.size) for weight in binary.weights] == [
            ("V", SIZE * SIZE),
            ("W", SIZE * SIZE),
        ]
        for stage in ROWS:
            x = np.round(toy.inputs(stage) * 16) / 16
            session = open_compiled(
                tmp_path / "staging" / context_name(stage, OPENVINO), toy.folder, shared=True
            )
            np.testing.assert_allclose(session.run(None, {"x": x})[0], toy.answer(x), atol=1e-3)

    @pytest.mark.slow
    def test_two_jobs_of_one_process_do_not_share_with_each_other(self, tmp_path: Path) -> None:
        """B2: the last graph of a job ends its shared context. B18: registering twice is fine."""
        toys = [make_toy(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 2))]
        arguments = []
        for toy in toys:
            (toy.folder / "staging").mkdir()
            job = job_of(toy.folder, shared=True)
            arguments.append(job.argument(toy.folder / "staging", libraries()))
        call(f"{Path(__file__).stem}:compile_both", arguments, timeout=240)
        for toy in toys:
            staging = toy.folder / "staging"
            verify_artifacts(staging, job_of(toy.folder, shared=True), toy.bundle)
            answers(toy, staging, toy.folder, shared=True)

    @pytest.mark.slow
    def test_weights_that_only_seem_equal_are_not_shared(self, tmp_path: Path) -> None:
        """The EP takes equal names for equal weights, and notices other offsets alone."""
        toy = make_toy(tmp_path / "bundle")
        model = onnx.load(toy.folder / "iterator.onnx", load_external_data=False)
        first, second = model.graph.initializer
        first.name, second.name = second.name, first.name
        (toy.folder / "iterator.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(CompileError, match="does not compile the stage 'iterator'") as raised:
            compile_job(job_of(toy.folder, shared=True), tmp_path / "staging")
        assert "Mismatch for existing weight" in raised.value.facts["found"]

    @pytest.mark.slow
    def test_sharing_in_memory_needs_no_context_files(self, tmp_path: Path) -> None:
        """B8: the source graphs themselves, with the flag, compiled as they are loaded."""
        toy = make_toy(tmp_path / "bundle")
        sessions = {
            stage: open_compiled(toy.folder / f"{stage}.onnx", None, shared=True) for stage in ROWS
        }
        for stage, session in sessions.items():
            x = toy.inputs(stage)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], toy.answer(x), atol=1e-3)
        assert sorted(path.suffix for path in toy.folder.iterdir()) == [
            ".data", ".json", ".onnx", ".onnx",
        ]  # fmt: skip


def compile_both(arguments: list[dict[str, Any]]) -> None:
    """Two jobs in one process, as nothing but this test compiles them."""
    from turnout.compiling.worker import compile_here

    for argument in arguments:
        compile_here(argument)


@openvino
@pytest.mark.slow
class TestRefused:
    def test_where_nothing_is_compiled_it_is_said_and_why(self, tmp_path: Path) -> None:
        """V#1913, W#267: no EPContext node is a failure, and not a success that wrote nothing."""
        toy = make_toy(tmp_path / "bundle")
        texts = [
            helper.make_tensor_value_info(name, TensorProto.STRING, [3]) for name in ("x", "s", "y")
        ]
        save_graph(
            toy.folder / "context.onnx",
            [helper.make_node("StringConcat", ["x", "s"], ["y"])],
            texts[:2],
            texts[2:],
        )
        with pytest.raises(CompileError, match="nothing was compiled of the stage") as raised:
            compile_job(job_of(toy.folder), tmp_path / "staging")
        assert raised.value.facts["found"] == "its nodes go elsewhere: 1 on cpu (StringConcat)"

    def test_a_device_that_is_not_here_is_named_with_those_that_are(self, tmp_path: Path) -> None:
        toy = make_toy(tmp_path / "bundle")
        job = job_of(toy.folder, provider_options={"device_type": "NPU"})
        with pytest.raises(DeviceUnavailableError, match="no device 'NPU'") as raised:
            compile_job(job, tmp_path / "staging")
        assert "CPU" in raised.value.facts["found"]

    @pytest.mark.parametrize(
        ("text", "fits"),
        [
            ('{"hardware_device_type": "CPU"}', True),
            ('{"hardware_device_type": "npu"}', False),
            ('{"hardware_vendor_id": 1}', False),
        ],
    )
    def test_a_device_filter_selects_as_onnxruntime_genai_does(
        self, tmp_path: Path, text: str, fits: bool
    ) -> None:
        toy = make_toy(tmp_path / "bundle")
        job = job_of(toy.folder, ["context"], provider_options={"device_filtering_options": text})
        if fits:
            compile_job(job, tmp_path / "staging")
            return
        with pytest.raises(DeviceUnavailableError):
            compile_job(job, tmp_path / "staging")

    def test_an_option_that_the_ep_refuses_fails_with_its_words(self, tmp_path: Path) -> None:
        toy = make_toy(tmp_path / "bundle")
        job = job_of(toy.folder, provider_options={**EXACT, "load_config": "{broken"})
        with pytest.raises(CompileError, match="openvino does not compile"):
            compile_job(job, tmp_path / "staging")

    def test_a_folder_that_is_not_empty_is_refused(self, tmp_path: Path) -> None:
        toy = make_toy(tmp_path / "bundle")
        (tmp_path / "staging").mkdir()
        (tmp_path / "staging" / "old").write_text("")
        argument = job_of(toy.folder).argument(tmp_path / "staging", {})
        with pytest.raises(CompileError, match="not empty"):
            call("turnout.compiling.worker:compile_here", argument, timeout=60)


@openvino
@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["two sessions", "static"])
def test_built_bundles_answer_as_their_source_does(tmp_path: Path, kind: str, shared: bool) -> None:
    """B4: attention stays on the CPU, so a graph comes in parts, each with a node of its own."""
    source = Bundles(tmp_path)(kind)
    job = job_of(source, ["context", "iterator"], shared=shared)
    compile_job(job, tmp_path / "staging")
    verified = verify_artifacts(tmp_path / "staging", job, job_bundle(source))
    assert len(verified.binaries) == (1 if shared else 2)
    assert (verified.bytes_saved > 0) == shared
    for name in verified.graphs.values():
        graph = GraphFile.read(tmp_path / "staging" / name)
        assert graph.ops["com.microsoft", "EPContext"] == 3
        assert graph.ops["com.microsoft", "GroupQueryAttention"] == 2
        assert len({context.partition_name for context in graph.ep_contexts}) == 3
    place = tmp_path / "else where" / "ö"
    derived = as_derived(source, tmp_path / "staging", place, verified.graphs, shared=shared)
    assert not list(derived.glob("*.data"))
    for index in range(2):
        prompt, tokens = reference("llama-f32", index)
        assert generate_static(derived, prompt, kind) == tokens


@openvino
@pytest.mark.slow
@pytest.mark.parametrize("embed", ["0", "1"])
def test_a_flat_bundle_in_parts_answers_as_its_source_does(tmp_path: Path, embed: str) -> None:
    """B4: of an embedded graph in parts the first node holds the binary, for all of them."""
    source = Bundles(tmp_path)("flat")
    job = job_of(source, ["decoder"], session_options={"ep.context_embed_mode": embed})
    told = compile_job(job, tmp_path / "staging")
    assert len(told["files"]) == (2 if embed == "0" else 1)
    verified = verify_artifacts(tmp_path / "staging", job, job_bundle(source))
    graph = GraphFile.read(tmp_path / "staging" / verified.graphs["decoder"])
    assert [context.main_context for context in graph.ep_contexts] == (
        [1, 1, 1] if embed == "0" else [1, 0, 0]
    )
    place = tmp_path / "elsewhere"
    derived = as_derived(source, tmp_path / "staging", place, verified.graphs, shared=False)
    prompt, tokens = reference("llama-f32", 0)
    assert generate_static(derived, prompt, "flat") == tokens


@openvino
@pytest.mark.slow
def test_dynamic_stages_share_and_answer_in_onnxruntime_genai(tmp_path: Path) -> None:
    """B1: the prefill and the decode stage of a pipeline, loaded by onnxruntime-genai."""
    source = build_pipeline(tmp_path / "bundle", two_sessions=True)
    job = job_of(source, ["context", "iterator"], shared=True)
    compile_job(job, tmp_path / "staging")
    verified = verify_artifacts(tmp_path / "staging", job, job_bundle(source))
    place = tmp_path / "elsewhere"
    derived = as_derived(source, tmp_path / "staging", place, verified.graphs, shared=True)
    open_compiled(derived / verified.graphs["context"], source, shared=True)  # registers
    assert generate(derived) == TOKENS


def job_bundle(folder: Path) -> Any:
    from turnout.bundle import Bundle

    return Bundle.open(folder)


def generate_static(folder: Path, prompt: list[int], kind: str) -> list[int]:
    """8 greedy tokens through onnxruntime-genai itself; a static bundle has its own length."""
    import onnxruntime_genai as og

    from turnout.machine import plugins

    plugins.register([OPENVINO])
    model = og.Model(og.Config(str(folder)))
    params = og.GeneratorParams(model)
    options: dict[str, Any] = {"do_sample": False}
    if kind != "static":
        options["max_length"] = len(prompt) + 8
    params.set_search_options(**options)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([prompt], dtype=np.int32))
    tokens = []
    for _ in range(8):
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    return tokens


FAULTS: dict[str, tuple[str, str]] = {
    # the child -> how it ends, and what is said of what it left ("" where that is sound)
    "hang": ("did not answer within", "no compiled graph was left"),
    "crash_after": ("crashed", ""),
    "crash_halfway": ("crashed", "is no complete binary"),
    "write_nothing": ("", "no compiled graph was left"),
    "compile_nothing": ("", "Nothing was compiled"),
    "as_another_ep": ("", "was compiled by another EP"),
}


@openvino
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a signal makes the crash")
@pytest.mark.parametrize("child", FAULTS)
def test_what_a_child_left_is_judged_and_not_how_it_ended(tmp_path: Path, child: str) -> None:
    """B19: a crash after everything was written loses nothing."""
    ending, problem = FAULTS[child]
    toy = make_toy(tmp_path / "bundle")
    job = job_of(toy.folder, shared=True)
    staging = tmp_path / "staging"
    staging.mkdir()
    argument = job.argument(staging, libraries())
    limit = 1.0 if child == "hang" else 240.0
    if ending:
        with pytest.raises(ProcessError, match=ending):
            call(f"{HERE}:{child}", argument, timeout=limit)
    else:
        call(f"{HERE}:{child}", argument, timeout=limit)
    if problem:
        with pytest.raises(CompileError, match=problem):
            verify_artifacts(staging, job, toy.bundle)
    else:
        assert verify_artifacts(staging, job, toy.bundle).binaries == (BINARY,)


def test_names_of_artifacts_are_plain_and_differ_as_stages_do() -> None:
    """A13: a compiled artifact belongs to a stage and an EP."""
    assert context_name("context", OPENVINO) == "context_openvino_ctx.onnx"
    assert context_name("context", "QNNExecutionProvider") == "context_qnn_ctx.onnx"
    hostile = ["../x", "a/b", "a\\b", "A", "a", "a.b", "", "nul\0", "ö", "o", "x" * 300, "\udcff"]
    names = [context_name(stage, OPENVINO) for stage in hostile]
    assert len({name.lower() for name in names}) == len(hostile)
    for name in names:
        assert Path(name).name == name
        assert name.isascii()
        assert len(name) < 100
        assert name.count(".") == 1
    assert "/" not in context_name("a", "../../ep")
