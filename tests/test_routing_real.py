"""Every layout of a built bundle, loaded for real by every route, stage by stage and whole.

With exact arithmetic a route does not change an answer: the tokens are those of the same source
built at accuracy level 0, on the CPU EP and without a route. What differs without it, and why,
is in docs/routing.md.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import turnout
from session_fixtures import KINDS, TINY
from turnout.bundle import COMPILED, Bundle
from turnout.machine import Inventory, plugins
from turnout.routing import Route, apply, route

pytestmark = [
    pytest.mark.openvino,
    pytest.mark.skipif(
        importlib.util.find_spec("onnxruntime_ep_openvino") is None,
        reason="onnxruntime-ep-openvino is absent",
    ),
]

MODELS = {
    model["file"].removesuffix(".gguf"): model
    for model in json.loads((TINY / "tiny.json").read_text("utf-8"))["models"]
}
STAGES = {
    "flat": ("decoder",),
    "pipeline": ("embeddings", "transformer", "lm_head"),
    "two sessions": ("embeddings", "context", "iterator", "lm_head"),
    "static": ("embeddings", "context", "iterator", "lm_head"),
}
# One float and one quantized model in `make check`; the others, and int8 on top, when all runs.
MODELS_TRIED = [
    "llama-f32",
    "qwen3-qknorm",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama-mixed", "qwen2-bias-tied")),
]
WAYS = [
    pytest.param(kind, stage, marks=pytest.mark.slow if kind == "two sessions" else ())
    for kind, stages in STAGES.items()
    for stage in (None, *stages)
    if (kind, stage) != ("flat", "decoder")  # the whole of it
]


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    return Inventory.discover()


class Built:
    """Bundles of a model and layout, at accuracy level 0 and at the default; built when asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[tuple[str, str], list[list[int]]] = {}

    def bundle(self, model: str, kind: str, **options: object) -> Bundle:
        path = self.folder / f"{model} {kind} {options}"
        if not path.exists():
            turnout.build(TINY / f"{model}.gguf", path, **KINDS[kind], **options)
        return Bundle.open(path)

    def exact(self, model: str, kind: str) -> list[list[int]]:
        """The tokens of the same source at accuracy level 0, as its config says: on the CPU EP."""
        if (model, kind) not in self.answers:
            bundle = self.bundle(model, kind, accuracy_level=0)
            self.answers[model, kind] = tokens(bundle, None, model)
        return self.answers[model, kind]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("built"))


def tokens(bundle: Bundle, made: Route | None, model: str) -> list[list[int]]:
    """Greedy tokens after each of the reference's prompts."""
    with turnout.Session(bundle, made) as session:
        return [
            list(session.generate(case["token_ids"], max_new_tokens=8, greedy=True).token_ids)
            for case in MODELS[model]["reference"]
        ]


def test_each_stage_of_each_layout_is_routed_below(built: Built) -> None:
    for kind, names in STAGES.items():
        assert tuple(stage.name for stage in built.bundle("llama-f32", kind).stages) == names


@pytest.mark.parametrize(("kind", "stage"), WAYS)
@pytest.mark.parametrize("model", MODELS_TRIED)
def test_with_exact_arithmetic_no_stage_on_openvino_changes_an_answer(
    built: Built, inventory: Inventory, model: str, kind: str, stage: str | None
) -> None:
    """A3, A5: `--ep openvino`, and each stage alone on it, of float and of quantized bundles."""
    bundle = built.bundle(model, kind)
    asked = {"ep": "openvino"} if stage is None else {"stages": {stage: "openvino"}}
    made = route(bundle, inventory=inventory, reproducible=True, **asked)  # type: ignore[arg-type]
    on = {decision.stage for decision in made.stages if decision.alias == "openvino"}
    assert on == (set(STAGES[kind]) if stage is None else {stage})
    assert made.warnings == ()
    assert tokens(bundle, made, model) == built.exact(model, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS_TRIED)
def test_with_exact_arithmetic_the_cpu_ep_answers_as_at_level_0(
    built: Built, inventory: Inventory, model: str, kind: str
) -> None:
    """A4: the default bundle rounds activations; `--reproducible` undoes it."""
    bundle = built.bundle(model, kind)
    made = route(bundle, inventory=inventory, ep="cpu", reproducible=True)
    assert tokens(bundle, made, model) == built.exact(model, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "pipeline"])
def test_int8_bundles_answer_alike_on_both_eps_with_exact_arithmetic(
    built: Built, inventory: Inventory, kind: str
) -> None:
    """Eight bits are forced exact by other means than four."""
    bundle = built.bundle("llama-f32", kind, precision="int8")
    level_0 = built.bundle("llama-f32", kind, precision="int8", accuracy_level=0)
    expected = tokens(level_0, None, "llama-f32")
    for ep in ("cpu", "openvino"):
        made = route(bundle, inventory=inventory, ep=ep, reproducible=True)
        assert tokens(bundle, made, "llama-f32") == expected


# Why answers differ without it: docs/routing.md, "Arithmetic"


def logits(bundle: Bundle, made: Route, model: str, folder: Path) -> np.ndarray:
    """What follows the reference's longest prompt, float64 [vocabulary], by the runtime alone."""
    import onnxruntime_genai as og

    plugins.register(made.eps)
    shutil.copytree(bundle.path, folder, ignore=shutil.ignore_patterns(COMPILED))
    (folder / "genai_config.json").write_text(apply(bundle.config, made).text, "utf-8")
    loaded = og.Model(og.Config(str(folder)))
    parameters = og.GeneratorParams(loaded)
    prompt = MODELS[model]["reference"][-1]["token_ids"]
    parameters.set_search_options(max_length=256)
    generator = og.Generator(loaded, parameters)
    generator.append_tokens(np.array([prompt], np.int32))
    found: np.ndarray = generator.get_logits()[0, -1].astype(np.float64)
    return found


@pytest.mark.parametrize("ep", ["cpu", "openvino"])
def test_exact_arithmetic_brings_the_logits_to_those_of_level_0(
    built: Built, inventory: Inventory, ep: str, tmp_path: Path
) -> None:
    """Rounded activations and bfloat16 are percents off; exact arithmetic is float32's rounding."""
    level_0 = built.bundle("qwen3-qknorm", "pipeline", accuracy_level=0)
    plain = route(level_0, inventory=inventory)
    expected = logits(level_0, plain, "qwen3-qknorm", tmp_path / "level 0")
    bundle = built.bundle("qwen3-qknorm", "pipeline")
    made = route(bundle, inventory=inventory, ep=ep, reproducible=True)
    found = logits(bundle, made, "qwen3-qknorm", tmp_path / "exact")
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


def test_openvino_does_not_look_at_the_accuracy_level(
    built: Built, inventory: Inventory, tmp_path: Path
) -> None:
    """The level is the CPU EP's: OpenVINO rounds as its own properties say."""
    found = []
    for level in (0, 4):
        bundle = built.bundle("qwen3-qknorm", "flat", accuracy_level=level)
        made = route(bundle, inventory=inventory, ep="openvino")
        found.append(logits(bundle, made, "qwen3-qknorm", tmp_path / str(level)))
    assert np.linalg.norm(found[0] - found[1]) < 1e-6 * np.linalg.norm(found[0])
