"""The one real model of the slow tests: SmolLM2-135M-Instruct in Q4_1.

Found by $TURNOUT_SMOLLM2, in demo/, or in .cache/; otherwise fetched into .cache/ as the demo
fetches it. Only when it cannot be had does a test skip, and then it says why.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


fetch_model = load_script("fetch_model")


@cache
def _found() -> tuple[Path | None, str]:
    try:
        return fetch_model.model_file(ROOT / ".cache", others=[ROOT / "demo"]), ""
    except fetch_model.FetchError as error:
        return None, str(error)


def smollm2() -> Path:
    """The path of the model file; skips the test when it cannot be had."""
    path, reason = _found()
    if path is None:
        pytest.skip(f"the real model is not here: {reason}")
    return path
