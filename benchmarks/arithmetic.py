"""How far the logits of each route are from exact ones, and which arithmetic is to blame.

    python benchmarks/arithmetic.py MODEL.gguf [MODEL.gguf ...] [--layout flat] [--prompts 4]

Every model is built at accuracy level 0, at the default level, and dequantized to float32. What
is printed is the relative difference (L2 norm) of the last token's logits from those of the CPU
EP at level 0, the largest of some prompts of random tokens. The hints are OpenVINO's properties:
a row that gives one and equals the row without any shows what the default is.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime_genai as og

import turnout
from turnout.machine import Inventory, plugins
from turnout.routing import apply, route

SEED = 7
PROMPT_TOKENS = 40
BUILDS = {"level 0": {"accuracy_level": 0}, "default": {}, "float32": {"precision": "fp32"}}
PRECISION, GROUP = "INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE"


def hinted(**properties: str) -> dict[str, object]:
    """OpenVINO with properties for its CPU."""
    return {
        "ep": "openvino",
        "device": "cpu",
        "provider_options": {"load_config": json.dumps({"CPU": properties})},
    }


EXACT = {"reproducible": True}
ROUTES: list[tuple[str, str, dict[str, object]]] = [
    # of the bundle, what is asked, by these options
    ("default", "CPU EP", {}),
    ("default", "CPU EP, --reproducible", EXACT),
    ("float32", "CPU EP", {}),
    ("float32", "OpenVINO", hinted()),
    ("float32", "OpenVINO, bf16", hinted(**{PRECISION: "bf16"})),
    ("float32", "OpenVINO, f16", hinted(**{PRECISION: "f16"})),
    ("float32", "OpenVINO, f32", hinted(**{PRECISION: "f32"})),
    ("float32", "OpenVINO, --reproducible", {**hinted(), **EXACT}),
    ("level 0", "OpenVINO", hinted()),
    ("default", "OpenVINO", hinted()),
    ("default", "OpenVINO, bf16", hinted(**{PRECISION: "bf16"})),
    ("default", "OpenVINO, no groups", hinted(**{GROUP: "0"})),
    ("default", "OpenVINO, f32", hinted(**{PRECISION: "f32"})),
    ("default", "OpenVINO, f32, no groups", hinted(**{PRECISION: "f32", GROUP: "0"})),
    ("default", "OpenVINO, --reproducible", {**hinted(), **EXACT}),
]


def main() -> None:
    options = parse()
    inventory = Inventory.discover()
    plugins.register([ep.name for ep in inventory.eps if ep.alias == "openvino"])
    for model in options.model:
        print(f"{model.name}, {options.layout}")
        with tempfile.TemporaryDirectory() as name:
            measure(model, Path(name), options, inventory)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="+")
    parser.add_argument("--layout", choices=["pipeline", "flat"], default="pipeline")
    parser.add_argument("--prompts", type=int, default=4)
    return parser.parse_args()


def measure(model: Path, folder: Path, options: argparse.Namespace, inventory: Inventory) -> None:
    bundles = {
        name: turnout.Bundle.open(
            turnout.build(model, folder / name, layout=options.layout, **given)  # type: ignore[arg-type]
        )
        for name, given in BUILDS.items()
    }
    size = bundles["default"].config.get(("model", "vocab_size"))
    rng = random.Random(SEED)
    prompts = [[rng.randrange(size) for _ in range(PROMPT_TOKENS)] for _ in range(options.prompts)]
    exact = logits(bundles["level 0"], {}, prompts, folder / "exact", inventory)
    for index, (name, asked, given) in enumerate(ROUTES):
        found = logits(bundles[name], given, prompts, folder / f"route {index}", inventory)
        away = max(
            np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(found, exact, strict=True)
        )
        print(f"  {name:8}  {asked:26}  {away:.1e}")


def logits(
    bundle: turnout.Bundle,
    given: dict[str, object],
    prompts: list[list[int]],
    folder: Path,
    inventory: Inventory,
) -> list[np.ndarray]:
    """What follows each prompt, float64 [vocabulary], by onnxruntime-genai alone."""
    made = route(bundle, inventory=inventory, **given)  # type: ignore[arg-type]
    shutil.copytree(bundle.path, folder, copy_function=lambda a, b: Path(b).hardlink_to(a))
    (folder / "genai_config.json").unlink()
    (folder / "genai_config.json").write_text(apply(bundle.config, made).text, "utf-8")
    loaded = og.Model(og.Config(str(folder)))
    found = []
    for prompt in prompts:
        parameters = og.GeneratorParams(loaded)
        parameters.set_search_options(max_length=len(prompt) + 1)
        generator = og.Generator(loaded, parameters)
        generator.append_tokens(np.array([prompt], np.int32))
        found.append(generator.get_logits()[0, -1].astype(np.float64))
    return found


if __name__ == "__main__":
    main()
