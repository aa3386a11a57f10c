"""What the README says can be done, can be done."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import real_model
from turnout.building.gguf_types import TENSOR_TYPES
from turnout.building.spec import FAMILIES
from turnout.building.tokenizer_bpe import PRE_TOKENIZERS
from turnout.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def code(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def row(title: str) -> str:
    """The second cell of the row of the README's tables that begins with `title`."""
    found = re.search(rf"^\| {re.escape(title)} \| (.*) \|$", README, re.MULTILINE)
    assert found, title
    return found[1]


@cache
def options_of(command: str) -> set[str]:
    """The options that the help of a command lists, or that of each command of a group."""
    words = [command.split()]
    if command == "cache":
        words = [[command, name] for name in ("list", "show", "verify", "remove", "prune")]
    shown = ""
    for word in words:
        done = subprocess.run(
            [sys.executable, "-m", "turnout", *word, "--help"],
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        shown += done.stdout
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown))


def test_the_python_example_runs(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "data" / "tiny" / "llama-mixed.gguf", tmp_path / "model.gguf")
    (example,) = code(README, "python")
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        f"{stage} CPUExecutionProvider --ep cpu"
        for stage in ("embeddings", "transformer", "lm_head")
    ]
    assert re.search(r" (length|eos) ([0-9.]+|None)$", lines[-1])


@pytest.mark.slow
def test_the_python_example_answers_well_with_the_demos_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(real_model.smollm2())
    (example,) = code(README, "python")
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    *_, first, second = done.stdout.splitlines()
    assert first == "The capital of France is Paris."
    assert second.startswith("The capital of Italy is Rome. eos ")


def test_what_the_readme_says_that_the_demo_asks_is_what_it_asks() -> None:
    demo = (ROOT / "scripts" / "demo.py").read_text("utf-8")
    (line,) = re.findall(r"^The demo asks `(.*?)`", README, re.MULTILINE)
    _, _, bundle, question, option, system = shlex.split(line)
    assert (bundle, option) == ("demo/smollm2", "--system")
    assert f'"{question}"' in demo
    assert f'"{system}"' in demo
    assert f'system = "{system}"' in code(README, "python")[0]


def test_the_table_of_commands_has_every_command_and_no_other() -> None:
    table = re.findall(r"^\| `turnout (\w+)", README, re.MULTILINE)
    assert table == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_named_with_a_command_is_in_its_help(command: str) -> None:
    shown = "\n".join(code(README, "")) + "\n".join(re.findall(r"`([^`\n]+)`", README))
    lines = [line for line in shown.splitlines() if f"turnout {command} " in line]
    table = [line for line in README.splitlines() if line.startswith(f"| `turnout {command} ")]
    named = {option for line in lines + table for option in re.findall(r"--[a-z][a-z-]+", line)}
    named |= {option for line in lines for option in re.findall(r" (-[a-z])\b", line)}
    assert named <= options_of(command)


def test_what_every_command_has_and_what_a_route_takes_is_in_the_help() -> None:
    (every,) = re.findall(r"^Every command has (.*?)\.", README, re.MULTILINE)
    shared = set(re.findall(r"`(-[^`]+)`", every))
    assert len(shared) == 5
    section = README.partition("take a route:")[2].partition("\n\nFor a machine that")[0]
    route = set(re.findall(r"--[a-z][a-z-]+", section))
    assert len(route) == 9
    for command in COMMANDS:
        assert shared <= options_of(command)
    for command in ("explain", "generate", "chat"):
        assert route <= options_of(command)


def test_what_is_said_to_be_supported_is_what_the_code_supports() -> None:
    assert set(re.findall(r"`(\w+)`(?!s)", row("architectures"))) - {"rope_freqs"} == set(FAMILIES)
    types = {kind.name for kind in TENSOR_TYPES.values()}
    assert set(re.findall(r"\b(?:B?F\d+|Q\d_[\dK])\b", row("tensor types"))) == types
    named = set(re.findall(r"`([\w-]+)`", row("tokenizers"))) - {"llama"}
    assert named == set(PRE_TOKENIZERS)
    assert PYPROJECT["project"]["requires-python"] == ">=3.11,<3.15"
    assert row("Python").startswith("3.11 to 3.14;")


def test_installing_names_files_and_extras_that_exist() -> None:
    for text in (README, CONTRIBUTING):
        for constraints in re.findall(r"-c (\S+)", text):
            assert (ROOT / constraints).is_file()
        for extras in re.findall(r"-e \"?\.\[([\w,]+)\]", text):
            known = PYPROJECT["project"]["optional-dependencies"]
            assert set(extras.split(",")) <= set(known)


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for text in (README, CONTRIBUTING):
        assert set(re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE)) <= targets


def test_links_and_files_that_are_named_exist() -> None:
    for text in (README, CONTRIBUTING):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (ROOT / target).exists(), target
    for path in re.findall(r"`((?:building|cli)/\w+\.py|catalog\.py)`", CONTRIBUTING):
        assert (ROOT / "src" / "turnout" / path).is_file(), path
    for path in re.findall(r"`(tests/[\w/.]+)`", CONTRIBUTING):
        assert (ROOT / path).exists(), path


def test_the_map_of_the_rooms_is_the_packages() -> None:
    source = ROOT / "src" / "turnout"
    rooms = {path.parent.name for path in source.glob("*/__init__.py")}
    rooms |= {path.stem for path in source.glob("*.py")} - {"__init__", "__main__"}
    assert set(re.findall(r"^\| `(\w+)` \|", CONTRIBUTING, re.MULTILINE)) == rooms
    order = re.split(r" <- |, ", code(CONTRIBUTING, "")[1].strip())
    assert set(order) == rooms
