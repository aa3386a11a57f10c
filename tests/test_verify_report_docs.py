"""The published JSON Schema of a verification's report."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from session_fixtures import Bundles, Terminal
from turnout.verify.documentation import render_schema

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")

SCHEMA = Path(__file__).parents[1] / "docs" / "verify-report.schema.json"


def test_the_published_schema_is_the_one_that_the_structs_make() -> None:
    assert SCHEMA.read_text("utf-8") == render_schema(), "run `make docs`"


@pytest.mark.parametrize("options", [("--ep", "cpu"), ("--ep", "rocm")])
def test_a_real_report_is_valid_by_it(
    turnout: Terminal, bundles: Bundles, options: tuple[str, ...]
) -> None:
    """One of a route that is the same, and one of a route that failed."""
    folder = bundles("flat")
    asked = ("--no-text", "--random-tokens", "1,4", "--max-new-tokens", "2")
    done = turnout("verify", folder, *asked, "--json", *options)
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    problems = jsonschema.Draft202012Validator(schema).iter_errors(done.json)
    assert [f"{error.json_path}: {error.message}" for error in problems] == []
