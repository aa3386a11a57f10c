"""The table of keys, measured again against the runtime that is installed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from runtime_parser import RuntimeParser
from turnout.checking import keys
from turnout.checking.keys import Key

# A value of every kind that JSON has; none is a file name, and none is one of the words.
VALUES: dict[str, Any] = {
    "string": "x", "int": 1, "number": 0.5, "bool": True, "null": None, "{": {}, "[": [],
}  # fmt: skip
# Sections that the runtime takes only whole.
WHOLE = {
    "state_groups": {"kind": "fixed_conv", "layer_ids": [0]},
    "state_update": {"capacity": 1, "key_head_count": 1},
}
BASE = {
    "model": {"type": "llama", "context_length": 8, "decoder": {"num_hidden_layers": 1}},
}

Place = tuple[str | int, ...]


def _places() -> dict[str, Place]:
    """One place of the document for every section, found by following the table itself."""
    found: dict[str, Place] = {keys.ROOT: ()}
    waiting = [keys.ROOT]
    while waiting:
        section = waiting.pop(0)
        for name, key in keys.sections()[section].items():
            for kind in key.kinds:
                inner = kind.strip("[]{}*")
                if inner not in keys.sections() or inner in found:
                    continue
                place = (*found[section], "any" if name == keys.ANY else name)
                place += (0,) if kind.startswith("[") else ()
                place += ("any",) if "*" in kind else ()
                found[inner] = place
                waiting.append(inner)
    return found


PLACES = _places()


def _document(section: str, name: str, value: Any) -> dict[str, Any]:
    """A config that is sound but for `value` under `name` in the section."""
    document: dict[str, Any] = copy.deepcopy(BASE)
    here: Any = document
    place = PLACES[section]
    for index, step in enumerate(place):
        following = place[index + 1] if index + 1 < len(place) else ""
        fresh: Any = [] if following == 0 else {}
        if isinstance(here, list):
            here.append(fresh)
            here = here[0]
        else:
            here = here.setdefault(step, fresh)
        _complete(here, place[: index + 1])
    if name == "state_update" and isinstance(value, dict):
        value = {**WHOLE["state_update"], **value}
        here["kind"] = "fixed_recurrent"
    if isinstance(value, dict) and isinstance(here.get(name), dict):
        value = {**here[name], **value}
    here[name] = value
    return document


def _complete(here: Any, place: Place) -> None:
    """Give a section that is taken only whole what it needs."""
    for section, needed in WHOLE.items():
        if PLACES[section] == place:
            here.update(copy.deepcopy(needed))
    if place == PLACES["state_update"][:-1] and PLACES["state_update"]:
        here["kind"] = "fixed_recurrent"


def _all() -> Iterator[tuple[str, str, Key]]:
    for section, table in keys.sections().items():
        for name, key in table.items():
            yield section, name, key


def _good(name: str, key: Key, kind: str) -> Any:
    if key.words:
        return key.words[0]
    if kind.startswith("["):
        return {"state_groups": [WHOLE["state_groups"]], "layer_ids": [0]}.get(name, [])
    if kind.startswith("{"):
        return {}
    return {"int64": 1}.get(kind, VALUES[kind]) if key.least is None else key.least


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> RuntimeParser:
    return RuntimeParser(tmp_path_factory.mktemp("parser"))


def test_every_section_is_reached_from_the_document() -> None:
    assert set(PLACES) == set(keys.sections())


@pytest.mark.parametrize("section", list(keys.sections()))
def test_the_runtime_takes_what_the_table_says(section: str, parser: RuntimeParser) -> None:
    for name, key in keys.sections()[section].items():
        for kind in key.kinds if not key.removed else ():
            document = _document(section, name.replace("*", "any"), _good(name, key, kind))
            assert parser.refusal(json.dumps(document)) is None, (section, name, kind)


@pytest.mark.parametrize("section", list(keys.sections()))
def test_the_runtime_refuses_every_other_kind(section: str, parser: RuntimeParser) -> None:
    for name, key in keys.sections()[section].items():
        for kind, value in VALUES.items():
            if section == keys.ROOT and kind != "[":
                continue  # what is no list there is ignored, or is the section itself
            fits = any(
                own == kind
                or (own.startswith(("{", "[")) and own[0] == kind)
                or (kind in {"int", "number"} and own in {"int", "int64", "number"})
                for own in key.kinds
            )
            if fits:
                continue
            refusal = parser.refusal(
                json.dumps(_document(section, name.replace("*", "any"), value))
            )
            assert refusal is not None, (section, name, kind)


@pytest.mark.parametrize("section", [s for s, t in keys.sections().items() if keys.ANY not in t])
def test_the_runtime_refuses_a_key_that_the_table_does_not_have(
    section: str, parser: RuntimeParser
) -> None:
    value: Any = [] if section == keys.ROOT else 1
    refusal = parser.refusal(json.dumps(_document(section, "no_such_key", value)))
    assert refusal is not None
    assert 'Unknown value "no_such_key"' in refusal


def _beside_the_bounds(key: Key) -> Iterator[tuple[float | str, bool]]:
    """Values at and beyond what the table allows, and whether they are allowed."""
    whole = key.kinds[0] in {"int", "int64"}
    if whole:
        yield 1.5, False
    if key.kinds[0] == "int":
        yield 2**31, False
        yield -(2**31) - 1, False
    if key.least is not None:
        yield key.least - 1, False
        yield key.least, True
    if key.most is not None:
        yield key.most, True
        yield key.most * 2 + 1, False
    if key.above is not None:
        yield key.above, False
        yield key.above + 0.5, True
    if key.words:
        yield from ((word, True) for word in key.words)
        yield ("no such word" if isinstance(key.words[0], str) else 99), False
        if isinstance(key.words[0], str):
            yield key.words[0].swapcase(), key.any_case
    if key.least is key.most is key.above is None and not key.words and key.kinds[0] != "string":
        yield -7, True


@pytest.mark.parametrize("section", list(keys.sections()))
def test_the_runtime_draws_the_same_bounds(section: str, parser: RuntimeParser) -> None:
    plain = {"int", "int64", "number", "string"}
    for name, key in keys.sections()[section].items():
        if key.kinds[0] not in plain or key.removed or section in WHOLE or name == keys.ANY:
            continue
        for value, allowed in _beside_the_bounds(key):
            refusal = parser.refusal(json.dumps(_document(section, name, value)))
            assert (refusal is None) == allowed, (section, name, value, refusal)


def test_the_runtime_refuses_paths_out_of_the_bundle_where_the_table_says_so(
    parser: RuntimeParser,
) -> None:
    checked = 0
    for section, name, key in _all():
        if key.kinds[0] != "string" or name == keys.ANY or key.words or key.removed:
            continue
        for path in ("/x", "\\x", "../x", "a/..", "a\\..\\b"):
            refusal = parser.refusal(json.dumps(_document(section, name, path)))
            assert (refusal is not None) == key.is_path, (section, name, path, refusal)
            checked += 1
    assert checked > 100


def test_keys_that_were_removed_are_refused_saying_so(parser: RuntimeParser) -> None:
    removed = [(s, n, k) for s, n, k in _all() if k.removed]
    assert removed
    for section, name, key in removed:
        value = {} if key.kinds[0].startswith("{") else "x"
        refusal = parser.refusal(json.dumps(_document(section, name, value)))
        assert refusal is not None, name
        assert "no longer supported" in refusal


def test_versions_are_compared_by_their_numbers() -> None:
    assert keys.is_older("0.9.2", "0.18.0")
    assert keys.is_older("0.17.1", "0.18.0")
    assert not keys.is_older("0.18.0", "0.18.0")
    assert not keys.is_older("0.18.1.dev0+cuda", "0.18.0")
    assert not keys.is_older("", "0.18.0")
    assert not keys.is_older("unknown", "0.18.0")
