"""What the tests of checks share: one change to a bundle that runs, and what is found of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import read_config, write_config
from turnout.bundle import Bundle, GenaiConfig
from turnout.checking import Finding, Subject

CORPUS = Path(
    os.environ.get("TURNOUT_CORPUS", Path(__file__).parents[1] / ".." / "shared" / "corpus")
)
CONFIGS = sorted((CORPUS / "genai_configs").glob("*.json"))
needs_corpus = pytest.mark.skipif(not CONFIGS, reason="the corpus is not here: set TURNOUT_CORPUS")

# What the runtime does with a changed bundle: the answer of the unchanged one, or another one
# without failing. Any other text is what its error says.
SAME, NONSENSE = "same", "nonsense"
Edit = Callable[[dict[str, Any]], object]
Check = Callable[[Subject], Iterator[Finding]]


def changed(bundle: Path, folder: Path, edit: Edit) -> Path:
    """A copy of a bundle at `folder`, with its config edited."""
    shutil.copytree(bundle, folder)
    config = read_config(folder)
    edit(config)
    write_config(folder, config)
    return folder


def found_in(check: Check, folder: Path) -> list[Finding]:
    """The findings of one check about a bundle."""
    bundle = Bundle.open(folder)
    return list(check(Subject(bundle.config, bundle)))


def found_alone(check: Check, config: Any) -> list[Finding]:
    """The findings of one check about a config without any file."""
    return list(check(Subject(GenaiConfig.parse(json.dumps(config)))))


def places_of(found: list[Finding], *beneath: str) -> dict[str, str]:
    """Paths by code, without the parts in front that are in `beneath`; each code is there once."""
    result: dict[str, str] = {}
    for finding in found:
        path = finding.path
        for part in beneath:
            path = path.removeprefix(part)
        assert finding.code not in result, f"{finding.code} twice"
        result[finding.code] = path
    return result
