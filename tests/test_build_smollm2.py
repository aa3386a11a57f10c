"""The real model: what `turnout build` must reach, against an independent float32 reference."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import pytest

import turnout
from real_model import smollm2
from staged import Staged, mean_nll

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]

DATA = Path(__file__).parent / "data"
GOLDEN = json.loads((DATA / "smollm2-135m-q4_1.json").read_text("utf-8"))
EVALUATION = json.loads((DATA / "smollm2-135m-q4_1-eval.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A pipeline bundle at each accuracy level, built once."""
    folder = tmp_path_factory.mktemp("smollm2")
    made: dict[int, Path] = {}

    def get(level: int) -> Path:
        if level not in made:
            made[level] = turnout.build(smollm2(), folder / f"level-{level}", accuracy_level=level)
        return made[level]

    return get


@pytest.fixture(scope="module")
def staged(bundles):
    made: dict[int, Staged] = {}

    def get(level: int) -> Staged:
        if level not in made:
            made[level] = Staged(bundles(level))
        return made[level]

    return get


def test_the_source_is_the_file_of_the_reference():
    import hashlib

    assert hashlib.sha256(smollm2().read_bytes()).hexdigest() == GOLDEN["sha256"]


@pytest.mark.parametrize("prompt", GOLDEN["prompts"], ids=lambda prompt: prompt["text"][:24])
def test_token_ids_equal_the_references_through_the_template_too(bundles, prompt):
    with turnout.Session(bundles(4)) as session:
        text = session.apply_chat_template(prompt["text"]) if prompt["chat"] else prompt["text"]
        assert text == prompt["rendered"]
        assert list(session.encode(text)) == prompt["token_ids"]


@pytest.mark.parametrize("prompt", GOLDEN["prompts"], ids=lambda prompt: prompt["text"][:24])
def test_at_level_0_every_prompt_is_as_likely_as_in_the_reference(staged, prompt):
    logits = staged(0).logits(prompt["token_ids"])
    if prompt in LIKELY:
        assert mean_nll(logits, prompt["token_ids"]) == pytest.approx(
            prompt["mean_nll"], abs=0.0001
        )
    assert int(logits[-1].argmax()) == prompt["last_logits_top20"][0][0]


# A prompt of one token has no likelihood.
LIKELY = [prompt for prompt in GOLDEN["prompts"] if len(prompt["token_ids"]) > 1]


@pytest.mark.parametrize("prompt", LIKELY, ids=lambda prompt: prompt["text"][:24])
def test_at_the_default_level_every_prompt_is_nearly_as_likely(staged, prompt):
    logits = staged(4).logits(prompt["token_ids"])
    assert mean_nll(logits, prompt["token_ids"]) == pytest.approx(prompt["mean_nll"], abs=0.2)


@pytest.mark.parametrize(("level", "most"), [(0, 1.0005), (4, 1.008)])
def test_perplexity_on_prose_is_the_references(staged, level, most):
    """5,120 tokens of prose: exp of the mean excess of the negative log likelihood."""
    excess = [
        mean_nll(staged(level).logits(chunk["token_ids"]), chunk["token_ids"]) - chunk["mean_nll"]
        for chunk in EVALUATION["chunks"]
    ]
    assert sum(len(chunk["token_ids"]) for chunk in EVALUATION["chunks"]) == 5120
    ratio = float(np.exp(np.mean(excess)))
    assert 0.99 < ratio < most


def test_at_level_0_greedy_continuations_are_the_references(bundles):
    model = og.Model(og.Config(str(bundles(0))))
    end = 2
    for prompt in GOLDEN["prompts"][:4]:
        expected = [token for token in prompt["greedy_token_ids"] if token != end]
        params = og.GeneratorParams(model)
        params.set_search_options(
            max_length=len(prompt["token_ids"]) + len(prompt["greedy_token_ids"]), do_sample=False
        )
        generator = og.Generator(model, params)
        generator.append_tokens(np.array([prompt["token_ids"]], np.int32))
        answer = []
        while not generator.is_done():
            generator.generate_next_token()
            answer.append(int(generator.get_next_tokens()[0]))
        assert [token for token in answer if token != end] == expected


@pytest.mark.openvino
def test_routes_with_exact_arithmetic_answer_as_the_reference(bundles):
    """The default bundle, made exact by --reproducible on the CPU EP and on OpenVINO."""
    bundle = turnout.Bundle.open(bundles(4))
    prompt = GOLDEN["prompts"][0]
    for ep in ("cpu", "openvino"):
        route = turnout.route(bundle, ep=ep, reproducible=True)
        with turnout.Session(bundle, route) as session:
            result = session.generate(prompt["text"], max_new_tokens=8, greedy=True)
        assert result.text == prompt["greedy_text"].removesuffix("<|im_end|>")


def test_building_holds_little_more_than_the_largest_tensor(tmp_path):
    """The embedding table is 30 MB in the file; its codes and scales pass through by chunks."""
    turnout.build(smollm2(), tmp_path / "warm")
    tracemalloc.start()
    turnout.build(smollm2(), tmp_path / "measured")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6


def test_the_same_source_gives_the_same_bytes(bundles, tmp_path):
    again = turnout.build(smollm2(), tmp_path / "again")
    for file in sorted(bundles(4).iterdir()):
        if file.is_file():
            assert (again / file.name).read_bytes() == file.read_bytes(), file.name
