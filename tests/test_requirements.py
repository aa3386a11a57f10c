"""The table of founding requirements says what the tests say."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "requirements.md"
FOUNDING = [*(f"A{n}" for n in range(1, 18)), *(f"B{n}" for n in range(1, 21))]
# What this release claims to keep in full.
CLAIMED = [
    *(f"A{n}" for n in range(1, 18)),
    *(f"B{n}" for n in range(1, 21) if n != 17),
]


@cache
def named_by_tests() -> dict[str, set[str]]:
    """For each requirement, the tests whose docstring names it: `file.py::name`."""
    found: dict[str, set[str]] = {name: set() for name in FOUNDING}
    for path in TESTS.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for name in re.findall(r"\b[AB]\d+\b", ast.get_docstring(node) or ""):
                    found.setdefault(name, set()).add(f"{path.name}::{node.name}")
    return found


def rows() -> dict[str, tuple[str, str, str]]:
    """The table: what is asked for, where it is kept, and the test."""
    lines = [line.split("|")[1:-1] for line in TABLE.read_text("utf-8").splitlines()]
    cells = [[cell.strip() for cell in line] for line in lines]
    return {
        row[0]: (row[1], row[2], row[3].strip("`")) for row in cells if row and row[0] in FOUNDING
    }


@pytest.mark.parametrize("requirement", CLAIMED)
def test_what_this_release_claims_is_named_by_a_test(requirement: str) -> None:
    assert named_by_tests()[requirement]
    text, place, test = rows()[requirement]
    assert test and "later" not in (text + place).lower()


def test_the_table_has_every_requirement_once_and_in_order() -> None:
    numbers = re.findall(r"^\| ([AB]\d+) \|", TABLE.read_text("utf-8"), re.MULTILINE)
    assert numbers == FOUNDING


@pytest.mark.parametrize("requirement", FOUNDING)
def test_a_row_names_a_test_that_names_it_or_says_what_comes_later(requirement: str) -> None:
    text, place, test = rows()[requirement]
    if test:
        assert test in named_by_tests()[requirement]
    else:
        assert "later: " in (text + place).lower()
    for room in re.findall(r"`([a-z]+)`", place):
        assert room == "explain" or list((TESTS.parent / "src" / "turnout").glob(f"{room}*"))


def test_no_test_names_a_requirement_that_does_not_exist() -> None:
    assert set(named_by_tests()) == set(FOUNDING)
