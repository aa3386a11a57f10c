"""Small models of every architecture, in every layout, give the reference's answers.

The reference values (tests/data/tiny/tiny.json) come from an independent float32 implementation
with the files' own weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import pytest

import turnout
from staged import Staged

DATA = Path(__file__).parent / "data" / "tiny"
MODELS = {
    model["file"]: model for model in json.loads((DATA / "tiny.json").read_text("utf-8"))["models"]
}
LAYOUTS = {
    "pipeline": {},
    "flat": {"layout": "flat"},
    "two sessions": {"two_sessions": True},
    "static prefill": {"static_prefill": 16},
}
EVERY_CASE = [(file, layout) for file in MODELS for layout in LAYOUTS]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Bundles at accuracy level 0, each built once."""
    folder = tmp_path_factory.mktemp("built")
    made: dict[tuple[str, str], Path] = {}

    def get(file: str, layout: str) -> Path:
        if (file, layout) not in made:
            output = folder / f"{file}-{layout}"
            made[file, layout] = turnout.build(
                DATA / file, output, accuracy_level=0, **LAYOUTS[layout]
            )
        return made[file, layout]

    return get


def generator(bundle: Path, max_length: int) -> og.Generator:
    model = og.Model(og.Config(str(bundle)))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=max_length, do_sample=False)
    return og.Generator(model, params)


@pytest.mark.parametrize(("file", "layout"), EVERY_CASE)
def test_a_bundle_gives_the_references_logits_and_greedy_tokens(built, file, layout):
    """A1: onnxruntime-genai alone loads the bundle and answers as the reference does."""
    bundle = built(file, layout)
    for case in MODELS[file]["reference"]:
        prompt = case["token_ids"]
        # A static bundle keeps its cache's length; others need the prompt and eight tokens.
        length = 256 if layout == "static prefill" else len(prompt) + 8
        run = generator(bundle, length)
        run.append_tokens(np.array([prompt], np.int32))
        logits, expected = run.get_logits()[0, -1], np.array(case["last_logits"])
        assert np.linalg.norm(logits - expected) < 0.001 * np.linalg.norm(expected)
        answer = []
        while len(answer) < 8 and not run.is_done():
            run.generate_next_token()
            answer.append(int(run.get_next_tokens()[0]))
        assert answer == case["greedy_8"]


@pytest.mark.parametrize(
    ("file", "layout"), [case for case in EVERY_CASE if case[1] != "static prefill"]
)
def test_the_top_token_is_the_references_at_every_position(built, file, layout):
    staged = Staged(built(file, layout))
    for case in MODELS[file]["reference"]:
        top = staged.logits(case["token_ids"]).argmax(axis=1)
        assert top.tolist() == case["argmax_every_position"]


@pytest.mark.parametrize("file", MODELS)
def test_a_static_prefill_has_the_references_top_token_at_every_position(built, file):
    """Position by position: the prompt is given in growing prefixes, padded by the runtime."""
    bundle = built(file, "static prefill")
    model = og.Model(og.Config(str(bundle)))
    case = MODELS[file]["reference"][-1]
    for length, expected in enumerate(case["argmax_every_position"], start=1):
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=256, do_sample=False)
        run = og.Generator(model, params)
        run.append_tokens(np.array([case["token_ids"][:length]], np.int32))
        assert int(run.get_logits()[0, -1].argmax()) == expected


@pytest.mark.parametrize("layout", ["pipeline", "flat", "two sessions"])
@pytest.mark.parametrize("file", MODELS)
def test_prompts_of_unequal_length_answer_in_a_batch_as_they_do_alone(built, file, layout):
    """The runtime pads the shorter one on the right: its last token is not its last position."""
    model = og.Model(og.Config(str(built(file, layout))))
    cases = MODELS[file]["reference"][1:3]
    pad = json.loads((built(file, layout) / "genai_config.json").read_text("utf-8"))["model"][
        "pad_token_id"
    ]
    longest = max(len(case["token_ids"]) for case in cases)
    batch = [[*case["token_ids"], *[pad] * longest][:longest] for case in cases]
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=longest + 8, do_sample=False, batch_size=2)
    run = og.Generator(model, params)
    run.append_tokens(np.array(batch, np.int32))
    for row, case in enumerate(cases):
        logits, expected = run.get_logits()[row, -1], np.array(case["last_logits"])
        assert np.linalg.norm(logits - expected) < 0.001 * np.linalg.norm(expected)
    answers = []
    for _ in range(8):
        if run.is_done():
            break
        run.generate_next_token()
        answers.append(run.get_next_tokens().tolist())
    for row, case in enumerate(cases):
        answer = [tokens[row] for tokens in answers]
        assert answer == case["greedy_8"][: len(answer)]


@pytest.mark.parametrize("file", MODELS)
def test_the_bundles_own_tokenizer_gives_the_references_ids(built, file):
    bundle = built(file, "pipeline")
    tokenizer = og.Tokenizer(og.Model(og.Config(str(bundle))))
    for case in MODELS[file]["tokenization"]:
        assert tokenizer.encode(case["text"]).tolist() == case["ids"], case["text"]


@pytest.mark.openvino
@pytest.mark.parametrize("layout", ["pipeline", "static prefill"])
@pytest.mark.parametrize("file", MODELS)
def test_openvino_with_exact_arithmetic_gives_the_references_greedy_tokens(built, file, layout):
    bundle = turnout.Bundle.open(built(file, layout))
    route = turnout.route(bundle, ep="openvino", reproducible=True)
    with turnout.Session(bundle, route) as session:
        for case in MODELS[file]["reference"]:
            options = {"max_new_tokens": 8, "greedy": True}
            result = session.generate(case["token_ids"], **options)
            assert list(result.token_ids) == [
                token for token in case["greedy_8"] if token not in _end_ids(bundle)
            ]


def _end_ids(bundle: turnout.Bundle) -> list[int]:
    ids = bundle.config.get(("model", "eos_token_id"))
    return ids if isinstance(ids, list) else [ids]


@pytest.mark.parametrize("file", MODELS)
def test_the_default_accuracy_level_stays_near_the_reference(tmp_path, file):
    """8-bit activations cost these random models 1-6%; a wrong scale or offset, far more."""
    bundle = turnout.build(DATA / file, tmp_path / "bundle")
    staged = Staged(bundle)
    for case in MODELS[file]["reference"]:
        logits = staged.logits(case["token_ids"])[-1]
        expected = np.array(case["last_logits"])
        assert np.linalg.norm(logits - expected) < 0.1 * np.linalg.norm(expected)


@pytest.mark.parametrize("file", MODELS)
def test_dequantized_to_float_a_bundle_still_gives_the_references_logits(tmp_path, file):
    bundle = turnout.build(DATA / file, tmp_path / "bundle", precision="fp32")
    staged = Staged(bundle)
    for case in MODELS[file]["reference"]:
        logits = staged.logits(case["token_ids"])[-1]
        expected = np.array(case["last_logits"])
        assert np.linalg.norm(logits - expected) < 0.001 * np.linalg.norm(expected)
