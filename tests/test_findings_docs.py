"""`docs/findings.md` says of every code what the checks do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from turnout.checking import Rule, rules
from turnout.checking.documentation import render
from turnout.checking.findings import KINDS, SEVERITIES
from turnout.checking.parsing import check_bytes

PAGE = Path(__file__).parents[1] / "docs" / "findings.md"
PARSER = [rule for rule in rules() if rule.kind == "parser" and rule.bad.startswith("{")]


def test_the_page_is_the_one_that_the_rules_make() -> None:
    assert PAGE.read_text("utf-8") == render(), "run `make docs`"


def test_every_rule_has_a_code_of_its_own_and_is_explained() -> None:
    codes = [rule.code for rule in rules()]
    assert codes == sorted(set(codes))
    for rule in rules():
        assert re.fullmatch(r"T[1-9][0-9]{2}", rule.code)
        assert rule.severity in SEVERITIES
        assert rule.kind in KINDS
        assert len(rule.title) < 80
        assert not rule.title.endswith(".")
        assert rule.why.endswith(".")
        assert rule.bad and rule.good and rule.bad != rule.good


@pytest.mark.parametrize("rule", PARSER, ids=lambda rule: rule.code)
def test_examples_of_the_parser_are_what_they_are_said_to_be(rule: Rule) -> None:
    assert rule.code in {found.code for found in check_bytes(rule.bad.encode(), "c")}
    assert {found.severity for found in check_bytes(rule.good.encode(), "c")} <= {"info"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.code)
def test_examples_that_should_be_json_are(rule: Rule) -> None:
    if rule.code == "T101":
        return  # its bad example is no JSON, as it says
    for text in (rule.bad, rule.good):
        if text.startswith("{") and rule.code != "T104":
            json.JSONDecoder().raw_decode(text)  # what follows is said of it in prose
