"""Preparing a bundle: from what is asked to a folder that gives the right answer."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turnout
from bundle_fixtures import as_hub_cache
from session_fixtures import reference
from turnout.bundle import Bundle, GenaiConfig
from turnout.compiling import obtain
from turnout.compiling.options import CompileOptions
from turnout.compiling.plan import plan_contexts
from turnout.compiling.prepare import prepare
from turnout.errors import CompileError, ProcessError, UsageError, WriteError
from turnout.machine import plugins
from turnout.routing import apply, route

pytestmark = pytest.mark.usefixtures("own_cache")

TINY = Path(__file__).parent / "data" / "tiny"
MODEL = "llama-f32.gguf"
OPENVINO = {"context": "openvino", "iterator": "openvino"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return turnout.build(
        TINY / MODEL, tmp_path_factory.mktemp("built") / "bundle", two_sessions=True
    )


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "bundle"))


@pytest.fixture
def greedy() -> tuple[list[int], list[int]]:
    """A prompt, and the tokens of an independent float32 reference after it."""
    return reference("llama-f32", 0)


def effective(bundle: Bundle, **asked: Any) -> GenaiConfig:
    return apply(bundle.config, route(bundle, reproducible=True, **asked))


def answer(folder: Path, prompt: list[int], count: int) -> list[int]:
    import onnxruntime_genai as og

    plugins.register(["OpenVINOExecutionProvider"])
    model = og.Model(str(folder))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + count, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(prompt)
    tokens = []
    for _ in range(count):
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    del generator, params, model
    gc.collect()
    return tokens


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Children of jobs of more than one stage crash; what was asked of them all."""
    asked: list[str] = []
    real = obtain.call_worker

    def call(kind: str, argument: dict[str, Any], limit: float, doing: str) -> dict[str, Any]:
        asked.append(doing)
        if len(argument["members"]) > 1:
            raise ProcessError("The child process crashed.", found="SIGSEGV")
        return real(kind, argument, limit, doing)

    monkeypatch.setattr(obtain, "call_worker", call)
    yield asked


def failing(*_: object) -> dict[str, Any]:
    raise ProcessError("The child process crashed.", found="SIGSEGV")


def test_nothing_is_prepared_where_nothing_is_asked(folder: Path) -> None:
    bundle = Bundle.open(folder)
    with prepare(bundle, bundle.config) as prepared:
        assert prepared.folder == folder
    assert not (folder / "_compiled").exists()


@pytest.mark.slow
@pytest.mark.openvino
@pytest.mark.parametrize("cached", [False, True], ids=["bundle", "hub cache"])
@pytest.mark.parametrize("share", ["off", "session", "ep", "prepacked"])
def test_what_was_prepared_gives_the_references_answer(
    share: str, cached: bool, folder: Path, tmp_path: Path, greedy: tuple[list[int], list[int]]
) -> None:
    """A5, B1, B8: compiled, shared in every way, and from a cache of links."""
    if cached:
        folder = as_hub_cache(folder, tmp_path / "hub")
    bundle = Bundle.open(folder)
    stages = {} if share == "prepacked" else OPENVINO
    options = CompileOptions(compile=share != "prepacked", share=share)
    with prepare(bundle, effective(bundle, stages=stages), options) as prepared:
        assert prepared.uncompiled == {}
        shared = prepared.shared
        assert bool(shared.merged) == (share == "session")
        assert bool(shared.ep) == (share == "ep")
        assert bool(shared.prepacked) == (share == "prepacked")
        prompt, expected = greedy
        assert answer(prepared.folder, prompt, len(expected)) == expected


@pytest.mark.openvino
def test_what_is_stored_is_used_again_and_compiled_anew_when_that_is_asked(folder: Path) -> None:
    """W#1275"""
    bundle = Bundle.open(folder)
    config = effective(bundle, stages={"context": "openvino"})
    outcomes: list[tuple[str, str]] = []

    class Told:
        def started(self, name: str, expected_s: float | None) -> None:
            pass

        def ended(self, name: str, outcome: str) -> None:
            outcomes.append((name, outcome))

    for asked in ({}, {}, {"rebuild": True}, {"no_cache": True}):
        options = CompileOptions(compile=True, share="off", **asked)
        with prepare(bundle, config, options, progress=Told()) as prepared:
            folder_loaded = prepared.folder
            assert (folder_loaded / "context_openvino_ctx.onnx").is_file()
    # The second needs not even to look into the store, where that was remembered.
    assert [outcome for _, outcome in outcomes if outcome != "stored"] == ["compiled"] * 3
    assert not folder_loaded.exists()


def test_a_stage_that_cannot_be_compiled_runs_as_it_is_with_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obtain, "call_worker", failing)
    bundle = Bundle.open(folder)
    config = effective(bundle, stages={"context": "openvino"})
    said: list[str] = []
    options = CompileOptions(compile=True, share="off")
    with prepare(bundle, config, options, say=said.append) as prepared:
        assert list(prepared.uncompiled) == ["context"]
        assert prepared.compiled == {}
        stage = Bundle(prepared.folder, GenaiConfig.load(prepared.folder / "genai_config.json"))
        assert stage.stage("context").filename == "context.onnx"
    assert "crashed" in said[0]
    assert not list((folder / "_compiled" / "store").glob("[!.]*"))


def test_a_stage_that_must_be_compiled_and_cannot_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obtain, "call_worker", failing)
    bundle = Bundle.open(folder)
    config = effective(bundle, stages={"context": "openvino"})
    with pytest.raises(CompileError, match="context was not compiled"):
        prepare(bundle, config, CompileOptions(compile=True, require_compiled=True))


@pytest.mark.openvino
def test_stages_that_cannot_be_compiled_together_are_compiled_one_by_one(
    folder: Path, crashing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnout.compiling import sharing

    def grouped(bundle: Bundle, config: GenaiConfig, share: str, **_: Any) -> sharing.Choice:
        return sharing.Choice(config, ep_groups=(("context", "iterator"),))

    monkeypatch.setattr(sharing, "choose", grouped)
    bundle = Bundle.open(folder)
    said: list[str] = []
    config = effective(bundle, stages=OPENVINO)
    with prepare(bundle, config, CompileOptions(compile=True), say=said.append) as prepared:
        assert set(prepared.compiled) == {"context", "iterator"}
        assert prepared.shared.ep == ()
    assert crashing == [
        "compiling context+iterator",
        "compiling context",
        "compiling iterator",
    ]
    assert "cannot share" in said[0]


def test_what_is_not_compiled_says_why(folder: Path) -> None:
    """V#1913"""
    bundle = Bundle.open(folder)
    plan = plan_contexts(bundle, effective(bundle, ep="cpu"))
    assert plan.jobs == ()
    assert set(plan.skipped.values()) == {"cpu compiles nothing ahead of time"}


def test_the_runtimes_own_device_filter_is_a_part_of_the_job(folder: Path) -> None:
    bundle = Bundle.open(folder)
    entry = {"OpenVINO": {"device_filtering_options": {"hardware_device_type": "cpu"}}}
    place = (*bundle.stage("context").path, "session_options")
    config = bundle.config.edit(place, {"provider_options": [entry]})
    (job,) = plan_contexts(bundle, config).jobs
    assert json.loads(job.provider_options["device_filtering_options"]) == {
        "hardware_device_type": "cpu"
    }


@pytest.mark.parametrize(
    "asked",
    [
        {"share": "everything"},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"require_compiled": True},
        {"compile": True, "rebuild": True, "no_cache": True},
    ],
)
def test_options_that_mean_nothing_are_wrong_usage(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CompileOptions(**asked)


def test_what_is_removed_while_it_is_prepared_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`turnout cache prune --all` while another process compiles."""
    from turnout.compiling import prepare as module

    real, calls = module.derive, []

    def derive(*arguments: Any, **options: Any) -> Path:
        calls.append(1)
        if len(calls) == 1:
            shutil.rmtree(folder / "_compiled")
            raise WriteError("It cannot be written.") from FileNotFoundError("removed")
        return real(*arguments, **options)

    monkeypatch.setattr(module, "derive", derive)
    monkeypatch.setattr(obtain, "call_worker", failing)
    bundle = Bundle.open(folder)
    config = effective(bundle, stages={"context": "openvino"})
    (folder / "_compiled").mkdir()
    with prepare(bundle, config, CompileOptions(compile=True, share="off")) as prepared:
        assert (prepared.folder / "genai_config.json").is_file()
    assert len(calls) == 2


def test_what_is_asked_and_does_nothing_is_said(folder: Path) -> None:
    bundle = Bundle.open(folder)
    said: list[str] = []
    options = CompileOptions(compile=True, share="ep")
    with prepare(bundle, effective(bundle, ep="cpu"), options, say=said.append) as prepared:
        assert prepared.compiled == {}
    assert said[0].startswith("Nothing is shared by --share ep: ")
    assert said[1] == "Nothing is compiled ahead of time: cpu compiles nothing ahead of time."
