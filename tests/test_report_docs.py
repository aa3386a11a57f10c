"""`docs/report.md`, the published JSON Schema, and a report that later versions go on reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from report_fixtures import change, failed_route, make_report, make_request, make_route
from turnout.perf import markdown, report, tables
from turnout.perf.documentation import render, render_schema

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "report.md"
SCHEMA = ROOT / "docs" / "perf-report.schema.json"
VERSION_1 = Path(__file__).parent / "data" / "report-v1.json"


def problems(document: Any) -> list[str]:
    """What a validator that is not ours has against a document."""
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def plain(document: report.Report) -> Any:
    return json.loads(report.encode(document))


def version_1() -> Any:
    return json.loads(VERSION_1.read_text("utf-8"))


def test_the_page_and_the_schema_are_those_that_the_structs_make() -> None:
    assert PAGE.read_text("utf-8") == render(), "run `make docs`"
    assert SCHEMA.read_text("utf-8") == render_schema(), "run `make docs`"


def test_every_struct_and_every_field_is_explained() -> None:
    for name, struct in report.schema()["$defs"].items():
        assert struct["description"].endswith("."), name
        for field, described in struct["properties"].items():
            assert described.get("description"), f"{name}.{field}"
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    fields = sum(len(struct["properties"]) for struct in report.schema()["$defs"].values())
    assert len(rows) == fields
    assert all(row.count("|") == 5 for row in rows)


def test_reports_are_valid_by_the_published_schema() -> None:
    one_sample = make_report([make_route("config", [make_request(decode_s=())])])
    failed = make_report([make_route(), failed_route()])
    nothing = make_report([failed_route("config")], interrupted=True)
    for document in (make_report(), one_sample, failed, nothing):
        assert problems(plain(document)) == []


@pytest.mark.parametrize(
    ("broken", "place"),
    [
        ({"schema_version": "1"}, "$.schema_version"),
        ({"document": "something else"}, "$.document"),
        ({"complete": None}, "$.complete"),
        ({"comparisons": [{}]}, "$.comparisons[0]"),
        ({"bundle": {"name": "no more than that"}}, "$.bundle"),
    ],
)
def test_the_schema_refuses_what_no_report_says(broken: dict[str, Any], place: str) -> None:
    found = problems({**version_1(), **broken})
    assert found
    assert all(line.startswith(f"{place}: ") for line in found)


@pytest.mark.parametrize("missing", ["document", "schema_version", "routes", "settings"])
def test_the_schema_misses_a_field_that_must_be_there(missing: str) -> None:
    document = version_1()
    del document[missing]
    assert problems(document) == [f"$: {missing!r} is a required property"]


def test_a_report_of_version_1_is_still_read() -> None:
    """What the file says, by eye; it is never written again."""
    found = report.read(VERSION_1)
    assert [route.name for route in found.routes] == ["config", "ep=openvino", "ep=qnn"]
    config, openvino, qnn = found.routes
    assert [request.kind for request in config.requests] == ["warmup", "timed", "timed"]
    assert config.requests[1].decode_s == (0.02, 0.02, 0.02)
    assert config.requests[1].model_ttft_s == 0.1
    assert config.memory is not None
    assert len(config.memory.samples) == 7
    assert openvino.memory is None
    assert openvino.aggregate is not None
    assert openvino.aggregate.decode_tokens_per_second is not None
    assert openvino.aggregate.decode_tokens_per_second.mean == 100
    assert qnn.error is not None
    assert qnn.error.kind == "unavailable"
    assert found.comparisons[0].ratio == 2
    assert found.workloads[0].prompt == "What is the capital of France?"
    assert (found.complete, found.requests_held, found.requests_planned) == (False, 6, 9)
    # What is made of it still can be.
    assert len(tables.rows(found)) == 5
    assert "ep=openvino" in markdown.markdown(found)


def test_a_report_of_version_1_is_still_valid() -> None:
    assert problems(version_1()) == []


def test_fields_that_a_reader_does_not_know_are_ignored(tmp_path: Path) -> None:
    document = version_1()
    document["new"] = {"of": ["a later version"]}
    document["routes"][0]["requests"][0]["new"] = 1.5
    later = tmp_path / "later.json"
    later.write_text(json.dumps(document), "utf-8")
    assert report.read(later) == report.read(VERSION_1)
    assert problems(document) == []


def test_nothing_of_an_older_report_is_lost() -> None:
    assert_within(version_1(), plain(report.read(VERSION_1)), "$")


def assert_within(older: Any, newer: Any, place: str) -> None:
    """Everything of the one is in the other, which may have fields of its own."""
    if isinstance(older, dict) and isinstance(newer, dict):
        for name, value in older.items():
            assert_within(value, newer[name], f"{place}.{name}")
    elif isinstance(older, list) and isinstance(newer, list):
        assert len(older) == len(newer), place
        for index, (one, other) in enumerate(zip(older, newer, strict=True)):
            assert_within(one, other, f"{place}[{index}]")
    else:
        assert older == newer, place


def test_a_name_is_not_part_of_the_form() -> None:
    document = make_report()
    bundle = change(document.bundle, name='"]}, \u2028</script>\n')
    assert problems(plain(change(document, bundle=bundle))) == []
