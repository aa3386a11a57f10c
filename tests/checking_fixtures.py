"""What the tests of checks share: one change to a bundle that runs, and what is found of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import read_config, write_config
from turnout.bundle import Bundle, GenaiConfig
from turnout.checking import Finding, Rule, Subject

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


def needing_no_files(rules: Iterable[Rule]) -> list[Rule]:
    """The rules whose bad example is a config that shows the fault by itself."""
    return [rule for rule in rules if rule.bad.endswith("}")]


def example_tells(check: Check, rule: Rule, example: str) -> bool:
    """Whether a rule's code is found in one of its examples, made a whole config."""
    config = json.loads(example)
    found = config.setdefault("model", {})
    staged = {"pipeline", "sliding_window"} & set(found.setdefault("decoder", {}))
    found.setdefault("type", "decoder-pipeline" if staged else "llama")
    return rule.code in {finding.code for finding in found_alone(check, config)}


def failures(folders: Sequence[Path]) -> list[str]:
    """What the runtime says when each bundle is asked for a token; "" if it gives one.

    All are asked in one process of its own, beside the first folder: some options have the plugin
    of OpenVINO write files where it runs. Where that plugin is not installed, it is not registered.
    """
    command = [sys.executable, "-c", _ASK_EACH, *map(str, folders)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=folders[0].parent
    )
    answers: list[str] = json.loads(done.stdout.splitlines()[-1])
    return answers


_ASK_EACH = """
import json, os, sys
import onnxruntime_genai as og
try:
    import onnxruntime_ep_openvino as plugin
    og.register_execution_provider_library(
        "OpenVINOExecutionProvider", plugin.get_library_path())
except ImportError:
    pass
said = []
for folder in sys.argv[1:]:
    try:
        model = og.Model(folder)
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=8)
        generator = og.Generator(model, params)
        generator.append_tokens([1, 2, 3])
        generator.generate_next_token()
        said.append("")
    except Exception as error:
        said.append(str(error) or repr(error))
print(json.dumps(said), flush=True)
os._exit(0)
"""
