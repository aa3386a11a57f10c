"""Sessions over real bundles: loading, generating, failing, and conversations."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import real_model
from session_fixtures import KINDS, Bundles, edit_json, reference, set_eos, set_provider
from turnout import checking
from turnout.bundle import Bundle
from turnout.errors import (
    GenerationError,
    LoadError,
    NotABundleError,
    PromptTooLongError,
    TurnoutError,
    UsageError,
)
from turnout.machine import plugins
from turnout.routing import route
from turnout.runtime import Conversation, SearchOptions, Session, generation, layout, loading
from turnout.runtime.interrupts import stop_on_interrupt

pytest_plugins = ("session_plugin",)

OPENVINO = {"OpenVINO": {"device_type": "CPU"}}
QNN = {"qnn": {"backend_path": "QnnHtp.dll"}}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The EPs that were asked to be registered; they really are."""
    seen: list[str] = []
    real = plugins.register

    def register(names: Any, *rest: Any) -> None:
        names = list(names)
        seen.extend(names)
        real(names, *rest)

    monkeypatch.setattr(plugins, "register", register)
    return seen


# Generating


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", range(4))
def test_a_session_gives_the_tokens_of_the_float32_reference(
    bundles: Bundles, kind: str, index: int
) -> None:
    """A1: generation over every layout; tokens from tests/data/tiny."""
    prompt, expected = reference("llama-f32", index)
    with Session(bundles(kind)) as session:
        result = session.generate(prompt, max_new_tokens=8)
    assert list(result.token_ids) == expected
    assert result.finish_reason == "length"
    assert result.prompt_tokens == len(prompt)


def test_streaming_gives_the_text_of_generating(bundles: Bundles) -> None:
    """A1: streaming."""
    with Session(bundles()) as session:
        whole = session.generate("the cat", max_new_tokens=40)
        stream = session.stream("the cat", max_new_tokens=40)
        pieces = list(stream)
        assert all(pieces)
        assert len(pieces) > 10
        assert "".join(pieces) == whole.text == session.decode(whole.token_ids)
        assert stream.result().token_ids == whole.token_ids
        assert stream.result().timing.generated_tokens == 40


def test_the_end_of_text_is_neither_shown_nor_counted(bundles: Bundles) -> None:
    """The third reference token ends the text here."""
    prompt, expected = reference("llama-f32", 2)
    with Session(bundles(change=set_eos(expected[2]))) as session:
        result = session.generate(prompt, max_new_tokens=8)
        assert result.finish_reason == "eos"
        assert list(result.token_ids) == expected[:2]
        assert result.text == session.decode(expected[:2])


def test_a_text_that_ends_at_once_is_empty(bundles: Bundles) -> None:
    prompt, expected = reference("llama-f32", 2)
    with Session(bundles(change=set_eos(expected[0]))) as session:
        result = session.generate(prompt, max_new_tokens=8)
    assert (result.text, result.token_ids, result.finish_reason) == ("", (), "eos")
    assert result.timing.first_token_s is None
    assert result.timing.end_s is not None


@pytest.mark.parametrize("kind", ["flat", "pipeline", "static"])
def test_an_answer_is_cut_where_the_context_ends(bundles: Bundles, kind: str) -> None:
    """G#1425: 22 tokens of 256; fixed shapes take 32 for them."""
    with Session(bundles(kind)) as session:
        result = session.generate("the cat", max_new_tokens=300)
    assert result.prompt_tokens == 22
    assert len(result.token_ids) == {"flat": 234, "pipeline": 234, "static": 224}[kind]
    assert result.finish_reason == "length"


@pytest.mark.parametrize("kind", ["flat", "pipeline", "static"])
def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    bundles: Bundles, kind: str
) -> None:
    """G#1558"""
    with Session(bundles(kind)) as session:
        with pytest.raises(PromptTooLongError) as caught:
            session.stream([5] * 3216)
        assert "3216" in caught.value.facts["found"]
        assert "256" in caught.value.facts["expected"]
        # The longest that fits still gets its token; fixed shapes take whole windows of 16.
        longest = 240 if kind == "static" else 255
        assert len(session.generate([5] * longest).token_ids) == 256 - longest


def test_key_value_buffers_are_no_longer_than_asked_for(bundles: Bundles) -> None:
    """565 MB against 213 for five tokens, measured on a real model."""
    with Session(bundles()) as session:
        assert session.request([5] * 10, max_new_tokens=5).length.max_length == 15
    with Session(bundles("static")) as session:
        assert session.request([5] * 10, max_new_tokens=5).length.max_length == 256


def test_the_same_seed_gives_the_same_text_and_another_seed_another(bundles: Bundles) -> None:
    with Session(bundles()) as session:

        def tokens(**options: Any) -> tuple[int, ...]:
            return session.generate("the cat", max_new_tokens=12, **options).token_ids

        assert tokens(seed=1) == tokens(seed=1)
        assert tokens(seed=1) != tokens(seed=2)
        assert tokens(temperature=0) == tokens(greedy=True) == tokens()


def test_the_search_section_of_the_bundle_decides_what_is_not_given(bundles: Bundles) -> None:
    """W#1053: this bundle samples, from a seed of its own."""
    path = bundles(
        change=lambda config: config["search"].update(do_sample=True, random_seed=1, top_k=50)
    )
    with Session(path) as session:
        sampled = session.generate("the cat", max_new_tokens=12).token_ids
        greedy = session.generate("the cat", max_new_tokens=12, greedy=True).token_ids
        assert sampled == session.generate("the cat", max_new_tokens=12).token_ids
    with Session(bundles()) as session:
        assert greedy == session.generate("the cat", max_new_tokens=12).token_ids
        assert sampled == session.generate("the cat", max_new_tokens=12, seed=1).token_ids
    assert sampled != greedy


def test_a_bundle_that_searches_with_beams_is_still_streamed(bundles: Bundles) -> None:
    """A beam's text is known only at its end."""
    prompt, expected = reference("llama-f32", 2)
    with Session(bundles(change=lambda config: config["search"].update(num_beams=3))) as session:
        assert list(session.generate(prompt, max_new_tokens=8).token_ids) == expected


def test_asking_to_stop_ends_the_text_between_two_tokens(bundles: Bundles) -> None:
    answers = iter([False, False, True])
    with Session(bundles()) as session:
        stream = session.stream("the cat", max_new_tokens=40, stop=lambda: next(answers))
        text = "".join(stream)
        result = stream.result()
        assert result.finish_reason == "interrupted"
        assert len(result.token_ids) == 2
        assert text == result.text == session.decode(result.token_ids)


LONG = [(index * 7) % 300 for index in range(200)]


@pytest.mark.parametrize("kind", ["flat", "pipeline", "two sessions"])
def test_a_long_prompt_is_computed_in_steps_to_the_same_tokens(
    bundles: Bundles, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(bundles(kind)) as session:
        in_steps = session.generate(LONG, max_new_tokens=8)
        assert session.loaded.takes_steps
        monkeypatch.setattr(generation, "PROMPT_STEP", 1000)
        at_once = session.generate(LONG, max_new_tokens=8)
    assert in_steps.token_ids == at_once.token_ids
    assert in_steps.timing.prefilled_tokens == at_once.timing.prefilled_tokens == 200


@pytest.mark.openvino
@pytest.mark.parametrize("kind", ["flat", "pipeline"])
def test_a_long_prompt_is_computed_in_steps_on_openvino_too(
    bundles: Bundles, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(bundles(kind))
    with Session(bundle, route(bundle, ep="openvino", reproducible=True)) as session:
        in_steps = session.generate(LONG, max_new_tokens=8)
        monkeypatch.setattr(generation, "PROMPT_STEP", 1000)
        assert session.generate(LONG, max_new_tokens=8).token_ids == in_steps.token_ids


@pytest.mark.parametrize("kind", ["flat", "pipeline"])
def test_asking_to_stop_is_heard_while_a_long_prompt_is_computed(
    bundles: Bundles, kind: str
) -> None:
    with Session(bundles(kind)) as session:
        result = session.generate(LONG, max_new_tokens=8, stop=lambda: True)
        again = session.generate(LONG, max_new_tokens=8)
    assert result.finish_reason == "interrupted"
    assert (result.text, result.token_ids) == ("", ())
    assert (result.prompt_tokens, result.timing.prefilled_tokens) == (200, 128)
    assert result.timing.prefill_s > 0
    assert result.timing.model_ttft_s is None
    assert again.finish_reason == "length"


def test_windows_of_fixed_length_are_left_to_the_runtime(bundles: Bundles) -> None:
    """It pads what is appended to whole windows, so two parts are more than their sum."""
    with Session(bundles("static")) as session:
        assert not session.loaded.takes_steps
        static = session.generate(LONG, max_new_tokens=8)
    with Session(bundles("flat")) as session:
        assert session.generate(LONG, max_new_tokens=8).token_ids == static.token_ids


def test_a_bundle_that_takes_no_steps_after_all_is_computed_at_once(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is made: bundles of other builders refuse to append (Concat, measured)."""
    real = generation.create_generator
    parts: list[int] = []

    class Refusing:
        def __init__(self, *arguments: Any) -> None:
            self._real, self._appended = real(*arguments), False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def append_tokens(self, tokens: list[int]) -> None:
            parts.append(len(tokens))
            if self._appended:
                raise RuntimeError("Non-zero status code returned while running Concat node.")
            self._appended = True
            self._real.append_tokens(tokens)

    with Session(bundles()) as session:
        expected = session.generate(LONG, max_new_tokens=8).token_ids
        monkeypatch.setattr(generation, "create_generator", Refusing)
        first, second = (session.generate(LONG, max_new_tokens=8) for _ in range(2))
    assert first.token_ids == second.token_ids == expected
    assert parts == [128, 72, 200, 200]
    assert first.timing.prefilled_tokens == 200


def test_a_stream_that_is_closed_has_no_result(bundles: Bundles) -> None:
    with Session(bundles()) as session:
        with session.stream("the cat", max_new_tokens=40) as stream:
            next(stream)
        with pytest.raises(GenerationError, match="closed before its end"):
            stream.result()


NO_PROMPTS = [5, None, 1.5, b"the cat", {"role": "user", "content": "hi"}, ["the cat"], [1, 2.5]]


@pytest.mark.parametrize("said", NO_PROMPTS, ids=repr)
def test_what_is_no_prompt_is_wrong_usage_that_says_what_one_is(
    bundles: Bundles, said: Any
) -> None:
    with Session(bundles()) as session:
        for ask in (session.generate, session.stream):
            with pytest.raises(UsageError, match="no prompt") as caught:
                ask(said)
            assert "token ids" in caught.value.facts["expected"]
        for wrong in (5, None, [{"role": "user", "content": "hi"}]):
            with pytest.raises(UsageError, match="no text"):
                Conversation(session).say(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="system message is no text"):
            session.generate("the cat", system=5)
        with pytest.raises(UsageError, match="not one"):
            session.generate([{"role": "user", "content": "hi"}, 5])  # type: ignore[list-item]


def test_token_ids_may_be_an_array(bundles: Bundles) -> None:
    import numpy as np

    prompt, expected = reference("llama-f32", 0)
    with Session(bundles()) as session:
        result = session.generate(np.array(prompt), max_new_tokens=8)  # type: ignore[arg-type]
    assert list(result.token_ids) == expected


def test_the_public_names_are_listed() -> None:
    import turnout

    assert {"Bundle", "Session", "build", "route"} <= set(dir(turnout))


def test_an_option_that_is_none_is_named(bundles: Bundles) -> None:
    with Session(bundles()) as session, pytest.raises(UsageError, match="beams"):
        session.generate("the cat", beams=3)


def test_what_fails_inside_the_runtime_is_one_error(bundles: Bundles) -> None:
    """A config that promises caches of another name: found when the first prompt runs."""

    def rename(config: dict[str, Any]) -> None:
        inputs = config["model"]["decoder"]["inputs"]
        inputs["past_key_names"] = "past.%d.key"

    with Session(bundles(change=rename)) as session:
        with pytest.raises(GenerationError) as caught:
            session.generate("the cat")
        assert caught.value.facts["found"]
        assert caught.value.facts["where"]


# Loading


def test_loading_twice_is_a_no_op_and_unloading_twice_is_safe(bundles: Bundles) -> None:
    session = Session(bundles())
    session.unload()
    first = session.load()
    model = session.loaded.model
    assert session.load() is first
    assert session.loaded.model is model
    del model
    session.unload()
    session.unload()
    assert not session.is_loaded
    with pytest.raises(UsageError, match="not loaded"):
        session.generate("the cat")
    with session:
        assert session.generate("the cat", max_new_tokens=1).token_ids
    assert not session.is_loaded


def test_unloading_closes_what_still_runs(bundles: Bundles) -> None:
    session = Session(bundles())
    session.load()
    stream = session.stream("the cat", max_new_tokens=40)
    next(stream)
    session.unload()
    for _ in range(2):
        with pytest.raises(GenerationError, match="closed before its end"):
            next(stream)


def test_a_session_takes_a_path_or_an_opened_bundle(bundles: Bundles, tmp_path: Path) -> None:
    path = bundles()
    assert Session(str(path)).bundle.path == path
    assert Session(Bundle.open(path)).bundle.path == path
    with pytest.raises(NotABundleError):
        Session(tmp_path)


def test_without_a_route_the_bundle_is_loaded_from_its_own_folder(
    bundles: Bundles, registered: list[str]
) -> None:
    """A2: the config is respected unchanged, and nothing is registered for CPU stages."""
    path = bundles("pipeline")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with Session(path) as session:
        assert session.loaded.folder == path
        assert session.loaded.config is session.bundle.config
        assert session.in_effect.requested == session.in_effect.effective == "config"
        session.generate("the cat", max_new_tokens=1)
    assert registered == []
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.mark.openvino
def test_without_a_route_what_the_config_names_is_registered(
    bundles: Bundles, registered: list[str]
) -> None:
    """A2, A7: registration follows from the config."""
    prompt, expected = reference("llama-f32", 2)
    path = bundles("pipeline", change=set_provider("transformer", OPENVINO))
    with Session(path) as session:
        result = session.generate(prompt, max_new_tokens=1)
        assert session.in_effect.stages == {
            "embeddings": "cpu",
            "transformer": "openvino",
            "lm_head": "cpu",
        }
    assert registered == ["OpenVINOExecutionProvider"]
    assert result.token_ids[0] == expected[0]


def test_cpu_strips_accelerators_and_registers_nothing(
    bundles: Bundles, registered: list[str]
) -> None:
    """A4: the bundle names an EP that this machine lacks; A12: what took effect is said."""
    prompt, expected = reference("llama-f32", 2)
    path = bundles("pipeline", change=set_provider("transformer", QNN))
    bundle = Bundle.open(path)
    with Session(bundle, route(bundle, ep="cpu")) as session:
        assert list(session.generate(prompt, max_new_tokens=8).token_ids) == expected
        effect = session.in_effect
    assert registered == []
    assert effect.effective == "cpu"
    assert set(effect.stages.values()) == {"cpu"}


@pytest.mark.openvino
@pytest.mark.parametrize("kind", ["flat", "pipeline"])
def test_registration_follows_the_effective_config_and_not_the_bundles(
    bundles: Bundles, registered: list[str], kind: str
) -> None:
    """A7: the override replaces what the bundle names; A12 for a whole EP."""
    prompt, expected = reference("llama-f32", 2)
    path = bundles(kind, change=set_provider("transformer", QNN))
    bundle = Bundle.open(path)
    chosen = route(bundle, ep="openvino", reproducible=True)
    with Session(bundle, chosen) as session:
        assert list(session.generate(prompt, max_new_tokens=8).token_ids) == expected
        effect = session.in_effect
        assert session.loaded.folder != path
    assert registered == ["OpenVINOExecutionProvider"]
    assert effect.effective == "openvino"
    assert "openvino" in effect.requested
    assert set(effect.stages.values()) == {"openvino"}


@pytest.mark.openvino
def test_one_stage_on_another_ep_is_reported_as_mixed(bundles: Bundles) -> None:
    """A12: per stage what took effect."""
    bundle = Bundle.open(bundles("pipeline"))
    with Session(bundle, route(bundle, stages={"transformer": "openvino"})) as session:
        assert session.generate("the cat", max_new_tokens=2).token_ids
        assert session.in_effect.effective == "mixed"
        assert session.in_effect.stages["transformer"] == "openvino"
        assert session.in_effect.stages["lm_head"] == "cpu"


def test_what_has_to_be_registered_is_decided_generically(bundles: Bundles) -> None:
    """A7: an EP that no table knows counts like any other; CPU, in any spelling, never does."""
    path = bundles("pipeline", change=set_provider("transformer", {"cpu": {}}, {"Ggml": {}}))
    config = Bundle.open(path).config
    assert loading.plugin_eps(config) == ("Ggml",)


# Failing to load


def break_file(name: str, data: bytes | None) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        if data is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(data)

    return act


@pytest.mark.parametrize(
    ("breaking", "words"),
    [
        (break_file("transformer.onnx", None), ["transformer", "cpu", "transformer.onnx"]),
        (break_file("transformer.onnx", b"junk" * 99), ["transformer", "cpu", "damaged"]),
        (break_file("lm_head.onnx", b""), ["lm_head", "cpu", "damaged"]),
        (break_file("model.data", None), ["Stage embeddings", "cpu", "model.data"]),
        (break_file("model.data", b"short"), ["Stage embeddings", "cpu", "embeddings.onnx"]),
        (break_file("tokenizer.json", None), ["tokenizer", "tokenizer.json"]),
        (break_file("tokenizer.json", b"{"), ["tokenizer"]),
    ],
)
def test_a_failed_load_is_one_error_that_names_the_culprit_and_leaves_nothing(
    bundles: Bundles, tmp_path: Path, breaking: Callable[[Path], None], words: list[str]
) -> None:
    whole = bundles("pipeline")
    path = tmp_path / "broken"
    shutil.copytree(whole, path)
    breaking(path)
    session = Session(path)
    with pytest.raises(TurnoutError) as caught:
        session.load()
    assert not isinstance(caught.value, UsageError)
    assert not session.is_loaded
    for word in words:
        assert word in str(caught.value)
    # The same session loads once the bundle is whole.
    shutil.copytree(whole, path, dirs_exist_ok=True)
    with session:
        assert session.generate("the cat", max_new_tokens=1).token_ids


def test_an_ep_that_is_not_installed_is_named_with_its_stage_and_what_to_install(
    bundles: Bundles,
) -> None:
    """V#1962: say how to install. The bundle asks for it by itself."""
    path = bundles("pipeline", change=set_provider("transformer", {"cuda": {}}))
    session = Session(path)
    with pytest.raises(LoadError) as caught:
        session.load()
    assert "Stage transformer" in caught.value.problem
    assert "cuda" in caught.value.problem
    assert caught.value.facts["fix"]
    assert not session.is_loaded


@pytest.mark.openvino
def test_a_device_that_is_not_there_is_blamed_on_the_stage_that_asks_for_it(
    bundles: Bundles,
) -> None:
    """W#569: exactly what was asked, or an error. This machine has no such OpenVINO device."""
    missing = {"OpenVINO": {"device_type": "GPU.7"}}
    path = bundles("pipeline", change=set_provider("lm_head", missing))
    with pytest.raises(LoadError) as caught:
        Session(path).load()
    assert caught.value.problem == "Stage lm_head cannot be loaded on openvino."
    assert "GPU.7" in caught.value.facts["found"]
    assert "turnout devices" in caught.value.facts["fix"]


def test_a_config_that_the_runtime_refuses_is_blamed_on_the_config(bundles: Bundles) -> None:
    path = bundles(change=lambda config: config["model"].update(nonsense=1))
    with pytest.raises(LoadError) as caught:
        Session(path).load()
    assert "nonsense" in caught.value.facts["found"]
    assert "genai_config.json" in caught.value.facts["fix"]


@pytest.mark.parametrize(
    ("option", "value"), [("graph_optimization_level", "FOO"), ("log_severity_level", "99")]
)
@pytest.mark.parametrize("kind", ["flat", "pipeline"])
def test_an_option_of_the_route_that_the_runtime_refuses_is_wrong_usage(
    bundles: Bundles, kind: str, option: str, value: str
) -> None:
    """The same value in the bundle's own config is the bundle's fault."""
    path = bundles(kind)
    asked = route(path, session_options={option: value})
    session = Session(path, asked)
    with pytest.raises(UsageError, match="session option of the route") as caught:
        session.load()
    assert caught.value.facts["where"] == f"{option}={value}"
    assert value in caught.value.facts["found"]
    assert not session.is_loaded
    own = int(value) if value.isdigit() else value
    decoder = ("model", "decoder", "session_options", option)
    if kind == "flat":
        config = path / "genai_config.json"
        config.write_text(Bundle.open(path).config.edit(decoder, own).text, "utf-8")
        with pytest.raises(LoadError):
            Session(path).load()


@pytest.mark.skipif(sys.platform != "linux", reason="names need not be UTF-8 there alone")
def test_a_path_that_is_not_utf8_is_a_clear_error_and_a_finding(
    bundles: Bundles, tmp_path: Path
) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    bundles().rename(path)
    with pytest.raises(LoadError, match="no path that is not UTF-8") as caught:
        Session(path).load()
    assert "UTF-8" in caught.value.facts["fix"]
    (finding,) = checking.check(path).findings
    assert (finding.code, finding.severity, finding.kind) == ("T117", "error", "files")
    assert str(finding.found).endswith("caf\\udce9")
    right = path.rename(tmp_path / "caf\u00e9")
    with Session(right) as session:
        assert session.generate("the cat", max_new_tokens=1).token_ids
    assert checking.check(right).findings == ()


@pytest.mark.parametrize(
    "message",
    [
        'Deserialize tensor lm_head failed.open file "x/model.data" failed: Permission denied',
        "Load model from x/model.onnx failed:system error number 13",
    ],
)
def test_what_may_not_be_read_is_not_to_be_fetched_again(bundles: Bundles, message: str) -> None:
    """As onnxruntime 1.32 words it."""
    from turnout.runtime import failures

    bundle = Bundle.open(bundles())
    error = failures.explain(message, "model", bundle.config, bundle)
    assert error.facts["fix"].startswith("let this user read it")


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("flat", "decoder-pipeline", "decoder"),
        ("flat", "whisper", "decoder"),
        ("flat", "phi3v", "decoder"),
        ("flat", "phi4mm", "decoder"),
        ("flat", "gemma3", "decoder"),
        ("flat", "qwen2_5_vl", "decoder"),
        ("flat", "nemotron_speech", "decoder"),
        ("flat", "parakeet_tdt", "decoder"),
        ("flat", "marian-ssru", "decoder"),
        ("flat", "mymodel", "decoder"),
        ("pipeline", "llama", "decoder-pipeline"),
        ("pipeline", "whisper", "decoder-pipeline"),
        ("pipeline", "gemma3", "decoder-pipeline"),
        ("pipeline", "nemotron_speech", "decoder-pipeline"),
        ("pipeline", "mymodel", "decoder-pipeline"),
    ],
)
def test_a_model_type_that_does_not_fit_the_layout_is_named(
    bundles: Bundles, kind: str, wrong: str, right: str
) -> None:
    """G#1825: what the error proposes loads."""
    path = bundles(kind, change=lambda config: config["model"].update(type=wrong))
    with pytest.raises(LoadError, match="model type") as caught:
        Session(path).load()
    facts = caught.value.facts
    assert facts["found"].startswith(f'"{wrong}"')
    assert right in facts["expected"]
    assert facts["where"] == f"{path / 'genai_config.json'}: model.type"
    assert f'"{right}"' in facts["fix"]
    edit_json(path / "genai_config.json", lambda config: config["model"].update(type=right))
    with Session(path) as session:
        assert session.generate("the cat", max_new_tokens=1).token_ids


def test_other_failures_of_a_right_type_are_not_blamed_on_the_type(bundles: Bundles) -> None:
    path = bundles("pipeline")
    (path / "lm_head.onnx").unlink()
    with pytest.raises(LoadError, match="Stage lm_head"):
        Session(path).load()


def test_a_graph_without_the_inputs_of_its_type_fails_with_a_hint(bundles: Bundles) -> None:
    """gpt2 reads one tensor of keys and values a layer."""
    path = bundles(change=lambda config: config["model"].update(type="gpt2"))
    with Session(path) as session, pytest.raises(GenerationError) as caught:
        session.generate("the cat")
    assert "model.type" in caught.value.facts["fix"]


def test_only_what_was_tried_is_computed_in_steps(bundles: Bundles) -> None:
    from turnout.runtime.layout import takes_steps

    def with_vision(config: dict[str, Any]) -> None:
        config["model"]["vision"] = {"filename": "vision.onnx"}

    def slides(config: dict[str, Any]) -> None:
        config["model"]["decoder"]["sliding_window"] = {"window_size": 16, "slide_inputs": True}

    plain, vision, window = (
        Bundle.open(bundles(change=change)) for change in (None, with_vision, slides)
    )
    assert takes_steps(plain.config, plain)
    assert not takes_steps(vision.config, vision)
    assert not takes_steps(window.config, window)


def test_a_failure_that_names_no_stage_is_blamed_on_those_with_a_plugin(bundles: Bundles) -> None:
    from turnout.runtime import failures

    path = bundles("two sessions", change=set_provider("context", QNN))
    bundle = Bundle.open(path)
    error = failures.explain("something went wrong", "model", bundle.config, bundle)
    assert error.problem == "Stage context cannot be loaded on qnn."
    error = failures.explain(
        "QNN execution provider is not supported", "model", bundle.config, bundle
    )
    assert error.problem == "Stage context cannot be loaded on qnn."
    error = failures.explain(
        "Load model from x/iterator.onnx failed", "model", bundle.config, bundle
    )
    assert error.problem == "Stage iterator cannot be loaded on cpu."
    assert error.facts["where"] == str(path / "iterator.onnx")


def test_a_reason_is_one_line_without_source_positions() -> None:
    from turnout.runtime.failures import tidy

    noise = (
        "/onnxruntime_src/onnxruntime/core/session/x.cc:393 virtual void F::G(int)"
        " [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : JSON parsing error\n at line 1"
    )
    assert tidy(noise) == "JSON parsing error at line 1"
    assert tidy("") == "no reason given"
    assert len(tidy("x" * 5000)) == 600


# Interrupts


def test_the_first_interrupt_asks_to_stop_and_the_second_is_raised() -> None:
    import signal

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_the_flag_is_just_never_set() -> None:
    seen = []

    def work() -> None:
        with stop_on_interrupt() as stop:
            seen.append(stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


# Conversations

LINES = ("the cat", "and then", "one", "what about the hat", "the end", "ok, the hat", "and on")
SHORT = SearchOptions(max_new_tokens=12)


def talk(path: Path, *, continued: bool, options: SearchOptions = SHORT) -> list[Any]:
    results = []
    with Session(path) as session:
        conversation = Conversation(
            session, system="Be kind.", options=options, continued=continued
        )
        for line in LINES:
            answer = conversation.say(line)
            text = "".join(answer)
            assert text == answer.result().text
            results.append(answer.result())
    return results


@pytest.mark.parametrize("shared", [True, False])
def test_a_conversation_that_is_continued_says_what_one_computed_anew_says(
    bundles: Bundles, shared: bool
) -> None:
    """With one key-value buffer, and with buffers that grow; a pipeline says the same too."""

    def change(config: dict[str, Any]) -> None:
        config["search"]["past_present_share_buffer"] = shared

    path = bundles(change=change)
    continued = talk(path, continued=True)
    anew = talk(path, continued=False)
    assert [r.token_ids for r in continued] == [r.token_ids for r in anew]
    assert [r.prompt_tokens for r in continued] == [r.prompt_tokens for r in anew]
    if shared:
        pipeline = talk(bundles("pipeline"), continued=True)
        assert [r.token_ids for r in pipeline] == [r.token_ids for r in anew]
        assert all(r.timing.prefilled_tokens == r.prompt_tokens for r in pipeline)
    assert all(r.timing.prefilled_tokens == r.prompt_tokens for r in anew)
    # The second turn begins with all of the first prompt, which is kept.
    first, second = continued[:2]
    assert second.timing.prefilled_tokens == second.prompt_tokens - first.prompt_tokens


@pytest.mark.openvino
def test_a_continued_conversation_says_the_same_on_openvino(bundles: Bundles) -> None:
    path = bundles(change=set_provider("decoder", OPENVINO))
    continued = talk(path, continued=True)
    assert [r.token_ids for r in continued] == [r.token_ids for r in talk(path, continued=False)]
    assert continued[1].timing.prefilled_tokens < continued[1].prompt_tokens


def test_seeded_sampling_says_the_same_continued_or_not(bundles: Bundles) -> None:
    options = SearchOptions(max_new_tokens=12, seed=4)
    path = bundles()
    continued = talk(path, continued=True, options=options)
    assert [r.token_ids for r in continued] == [
        r.token_ids for r in talk(path, continued=False, options=options)
    ]


def test_a_bundle_that_cannot_rewind_after_all_is_computed_anew(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline refuses to rewind; here it is taken for one that can."""
    from turnout.runtime import conversation as module
    from turnout.runtime.continuation import KeptGenerator

    expected = talk(bundles("pipeline"), continued=False)

    def source(session: Session, *, continued: bool) -> KeptGenerator:
        return KeptGenerator(session.loaded.model, session.loaded.limits, can_rewind=continued)

    monkeypatch.setattr(module, "_source", source)
    found = talk(bundles("pipeline"), continued=True)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]
    assert all(r.timing.prefilled_tokens == r.prompt_tokens for r in found)


def test_the_oldest_turns_are_left_out_when_the_context_is_full_and_that_is_said(
    bundles: Bundles,
) -> None:
    """Context of 256; a quarter of it is kept free for answers that may be long."""
    with Session(bundles()) as session:
        options = SearchOptions(max_new_tokens=100)
        conversation = Conversation(session, system="Be kind.", options=options)
        notes = []
        for index in range(6):
            answer = conversation.say(f"message {index}")
            notes.append(answer.notes)
            result = answer.result()
            assert result.prompt_tokens <= 256 - 64
        assert notes[0] == ()
        assert any("left out" in note for some in notes for note in some)
        assert conversation.left_out > 0
        assert conversation.left_out % 2 == 0
        # All that was said is still there to be saved.
        assert len(conversation.messages) == 12
        seen = session.apply_chat_template(
            conversation.messages[conversation.left_out :], system="Be kind."
        )
        assert seen.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")


def test_a_message_too_long_for_the_context_is_refused_and_forgotten(bundles: Bundles) -> None:
    with Session(bundles()) as session:
        conversation = Conversation(session, options=SHORT)
        conversation.say("the cat").result()
        with pytest.raises(PromptTooLongError):
            conversation.say("x" * 400)
        assert len(conversation.messages) == 2
        assert conversation.left_out == 0
        assert conversation.say("and then").result().token_ids


def test_a_stopped_answer_stays_in_the_history_and_an_empty_one_does_not(
    bundles: Bundles,
) -> None:
    with Session(bundles()) as session:
        conversation = Conversation(session, options=SHORT)
        count = itertools.count()
        stopped = conversation.say("the cat", stop=lambda: next(count) == 5).result()
        assert stopped.finish_reason == "interrupted"
        assert conversation.messages[1] == {"role": "assistant", "content": stopped.text}
        conversation.say("and then", stop=lambda: True).result()
        assert len(conversation.messages) == 2


def test_a_conversation_goes_on_after_a_stop_while_its_prompt_was_computed(
    bundles: Bundles,
) -> None:
    long = "many words " * 14
    with Session(bundles()) as session:
        conversation = Conversation(session, options=SHORT)
        stopped = conversation.say(long, stop=lambda: True).result()
        assert 0 < stopped.timing.prefilled_tokens < stopped.prompt_tokens
        assert conversation.messages == []
        answer = conversation.say(long).result()
        fresh = session.generate(long, options=SHORT)
    assert answer.timing.continued_tokens > 0
    assert answer.text == fresh.text


def test_a_conversation_that_is_reset_begins_anew(bundles: Bundles) -> None:
    with Session(bundles()) as session:
        conversation = Conversation(session, system="Be kind.", options=SHORT)
        first = conversation.say("the cat").result()
        conversation.say("and then").result()
        conversation.reset()
        assert conversation.messages == []
        again = conversation.say("the cat").result()
        assert again.token_ids == first.token_ids
        assert again.prompt_tokens == first.prompt_tokens


def test_unloading_releases_the_generator_of_a_conversation(bundles: Bundles) -> None:
    session = Session(bundles())
    with session:
        conversation = Conversation(session, options=SHORT)
        first = conversation.say("the cat").result()
    assert conversation._source is None
    with session:
        conversation.reset()
        assert conversation.say("the cat").result().token_ids == first.token_ids


def test_a_failed_load_keeps_no_runtime_object_alive(bundles: Bundles) -> None:
    """The exception is still looked at; its frames must not hold the model."""
    import onnxruntime_genai as og

    path = bundles()
    (path / "tokenizer.json").unlink()
    with pytest.raises(LoadError) as caught:
        Session(path).load()
    held = [value for value in _locals_of(caught.value) if isinstance(value, og.Model)]
    assert held == []


def _locals_of(error: BaseException) -> Iterator[Any]:
    gc.collect()
    seen: BaseException | None = error
    while seen is not None:
        trace = seen.__traceback__
        while trace is not None:
            for value in trace.tb_frame.f_locals.values():
                yield value
                if isinstance(value, (list, tuple)):
                    yield from value
            trace = trace.tb_next
        seen = seen.__cause__ or seen.__context__


def test_a_stages_own_tokens_are_whole_after_an_edit_of_its_template(bundles: Bundles) -> None:
    """A template with another role word changes the prompt and nothing else."""
    path = bundles()
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    edit_json(path / "tokenizer_config.json", lambda config: config.update(chat_template=template))
    with Session(path) as session:
        assert (
            session.generate("the cat", max_new_tokens=4).token_ids
            == session.generate("the cat", raw=True, max_new_tokens=4).token_ids
        )


# A real model


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """SmolLM2 as a flat bundle and as a pipeline."""
    from turnout.building import build

    source = real_model.smollm2()
    folder = tmp_path_factory.mktemp("smollm2")
    return {
        layout: build(source, folder / layout, layout=layout) for layout in ("flat", "pipeline")
    }


@pytest.mark.slow
def test_a_real_model_is_asked_with_the_reference_tokens_of_its_chat_prompts(
    smollm2: dict[str, Path],
) -> None:
    """G#1349: the template, applied once."""
    path = Path(__file__).parent / "data" / "smollm2-135m-q4_1.json"
    prompts = json.loads(path.read_text("utf-8"))["prompts"]
    templated = 0
    with Session(smollm2["flat"]) as session:
        for row in prompts:
            raw = session.encode(row["text"]) == row["token_ids"]
            assert session.request(row["text"], raw=raw).token_ids == row["token_ids"]
            templated += not raw
    assert templated > 3


@pytest.mark.slow
@pytest.mark.parametrize("ep", ["cpu", pytest.param("openvino", marks=pytest.mark.openvino)])
def test_a_real_conversation_is_the_same_continued_and_computed_anew(
    smollm2: dict[str, Path], ep: str
) -> None:
    """With 8-bit activations, keys and values of an answer must not be reused: they round
    otherwise when they are computed one at a time."""
    lines = (
        "Write one sentence about the sea.",
        "Now one about mountains 🙂.",
        "Translate that to French.",
        "Thanks!",
        "What is 3 plus 4?",
        "Say hello to Bob.",
    )

    def texts(bundle: Bundle, *, continued: bool) -> list[str]:
        with Session(bundle, route(bundle, ep=ep)) as session:
            options = SearchOptions(max_new_tokens=30)
            conversation = Conversation(session, options=options, continued=continued)
            return [conversation.say(line).result().text for line in lines]

    flat = Bundle.open(smollm2["flat"])
    anew = texts(flat, continued=False)
    assert texts(flat, continued=True) == anew
    if ep == "cpu":
        assert texts(Bundle.open(smollm2["pipeline"]), continued=True) == anew


def test_a_prefill_stage_that_does_not_read_the_cache_is_given_the_prompt_at_once(
    bundles: Bundles,
) -> None:
    """Some exports for NPUs have such: the second part of a prompt would stand alone."""
    path = bundles("two sessions")
    bundle = Bundle.open(path)
    assert layout.takes_steps(bundle.config, bundle)
    stage = bundle.stage("context")
    kept = [name for name in stage.inputs if not name.startswith("past_key_values")]
    blind = bundle.config.edit((*stage.path, "inputs"), kept)
    assert not layout.takes_steps(blind, bundle)
