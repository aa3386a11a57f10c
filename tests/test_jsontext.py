"""JSON text with positions, and edits that leave every other byte alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.bundle import jsonedit, jsontext
from turnout.errors import ConfigError, UsageError

CORPUS = Path(
    os.environ.get("TURNOUT_CORPUS", Path(__file__).parents[1] / ".." / "shared" / "corpus")
)
CONFIGS = sorted((CORPUS / "genai_configs").glob("*.json"))

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('abc é"\\'), inner, max_size=4)
    ),
    max_leaves=20,
)


def replaced(text: str, path: jsontext.Path, value: Any) -> str:
    return jsonedit.replace(text, jsontext.parse(text), path, value)


def removed(text: str, path: jsontext.Path) -> str:
    return jsonedit.remove(text, jsontext.parse(text), path)


@pytest.mark.parametrize(
    ("text", "line", "column", "found", "expected"),
    [
        ("", 1, 1, "an empty text", "a value"),
        ("   \n ", 2, 2, "an empty text", "a value"),
        ("{", 1, 2, "the end of the text", "a key in double quotes or '}'"),
        ('{"a": 1,\n "b" 2}', 2, 6, "'2'", "':' after the key 'b'"),
        ('{"a": 1\n "b": 2}', 2, 2, "'\"'", "',' or '}'"),
        ('{"a": [1, 2,]}', 1, 12, "a trailing comma", "another element"),
        ('{\n  "a": 1,\n}', 2, 9, "a trailing comma", "another element"),
        ("{a: 1}", 1, 2, "'a'", "a key in double quotes"),
        ("{'a': 1}", 1, 2, '"\'"', "a key in double quotes"),
        ('{"a": True}', 1, 7, "'True'", "a value"),
        ('{"a": NaN}', 1, 7, "'NaN'", "a value"),
        ('{"a": 01}', 1, 7, "'01'", "a number as JSON writes it"),
        ('{"a": 1.}', 1, 7, "'1.'", "a number as JSON writes it"),
        ('{"a": +1}', 1, 7, "'+1'", "a value"),
        ('{"a": -}', 1, 7, "'-'", "a number as JSON writes it"),
        ('{"a": 1e999}', 1, 7, "1e999", "64-bit"),
        ('{"a": "x', 1, 7, "a string that never ends", "a closing"),
        ('{"a": "x\ty"}', 1, 9, "'\\t'", "no control character"),
        ('{"a": "\\q"}', 1, 8, "'\\\\q'", "one of the escapes"),
        ('{"a": "\\u12x4"}', 1, 8, "'\\\\'", "four hexadecimal digits"),
        ('{"a": "\\ud800"}', 1, 8, "half of one", "a surrogate pair"),
        ('{} // done', 1, 4, "a comment", "JSON without comments"),
        ('/* a */ {}', 1, 1, "a comment", "JSON without comments"),
        ("{} {}", 1, 4, "'{'", "nothing after the end"),
        ("test/models/target", 1, 1, "'test'", "a value"),
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused_with_line_column_found_and_expected(
    text: str, line: int, column: int, found: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        jsontext.parse(text, "config.json")
    assert caught.value.problem == "config.json is not JSON."
    assert caught.value.facts["where"] == f"config.json, line {line}, column {column}"
    assert found in caught.value.facts["found"]
    assert expected in caught.value.facts["expected"]


@pytest.mark.parametrize(
    ("data", "fix"),
    [
        (b"\xef\xbb\xbf{}", "save it as UTF-8 without BOM"),
        ('{"a": 1}'.encode("utf-16"), "save it as UTF-8"),
        (b'{"a": "\xe9"}', "save it as UTF-8"),
    ],
)
def test_other_encodings_are_refused_with_the_way_to_fix_them(data: bytes, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        jsontext.decode(data, "config.json")
    assert caught.value.facts["fix"] == fix
    assert caught.value.facts["expected"].startswith("UTF-8")


def test_nesting_is_bounded_instead_of_exhausting_the_stack() -> None:
    assert jsontext.parse("[" * 100 + "]" * 100).kind == "array"
    for opening in ("[", '{"a":'):
        with pytest.raises(ConfigError, match="not JSON") as caught:
            jsontext.parse(opening * 100_000)
        assert "100 levels" in caught.value.facts["expected"]


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        jsontext.parse("9" * 5000)
    assert caught.value.facts["found"] == "one of 5000"


@given(JSON_VALUES, st.sampled_from([None, 2, "\t"]))
@settings(max_examples=150, deadline=None)
def test_it_reads_what_python_writes(value: Any, indent: Any) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=indent is None)
    assert jsontext.parse(text).data() == value


@given(st.text(st.sampled_from('{}[]",:\\u0dae1.-+ \n\ttrueflsn"é'), max_size=40))
@settings(max_examples=400, deadline=None)
def test_it_accepts_and_refuses_what_python_does(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ConfigError):
            jsontext.parse(text)
        return
    try:
        assert jsontext.parse(text).data() == expected
    except ConfigError as error:  # stricter than Python in these alone
        stricter = {"a surrogate pair", "the second half of a surrogate pair"}
        assert error.facts["expected"] in stricter or "64-bit" in error.facts["expected"]


@pytest.mark.skipif(not CONFIGS, reason="the corpus is not here: set TURNOUT_CORPUS")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name[:40])
def test_every_real_file_reads_as_python_reads_it(path: Path) -> None:
    data = path.read_bytes()
    try:
        expected = json.loads(data)
    except ValueError:
        with pytest.raises(ConfigError, match="is not JSON"):
            jsontext.parse(jsontext.decode(data, path), path)
        return
    assert jsontext.parse(jsontext.decode(data, path), path).data() == expected


def test_the_last_of_duplicate_keys_wins() -> None:
    root = jsontext.parse('{"a": 1, "b": 2, "a": 3}')
    assert root.data() == {"a": 3, "b": 2}
    assert root.child("a") == root.members[2].value


def test_spans_give_the_text_back() -> None:
    text = '{\n  "a": [1, {"b": "\\u00e9"}]\n}'
    node = jsontext.parse(text).find(("a", 1, "b"))
    assert node is not None
    assert node.scalar == "é"
    assert text[node.start : node.end] == '"\\u00e9"'


def test_an_edit_changes_its_value_and_no_other_byte() -> None:
    text = '{\r\n\t"a" :1e-05 ,\r\n\t"b": [ 1,2 ], "c":{"x": "\\u00e9"}\r\n}\r\n'
    assert replaced(text, ("b", 0), 7) == text.replace("[ 1,2 ]", "[ 7,2 ]")
    assert replaced(text, ("c", "x"), "é") == text  # it is there already, escaped or not
    assert replaced(text, ("a",), 1e-05) == text


def test_what_is_added_follows_its_neighbours() -> None:
    four = '{\n    "a": {\n        "b": 1\n    },\n    "c": []\n}\n'
    assert replaced(four, ("a", "d"), {"e": ["f"]}) == (
        '{\n    "a": {\n        "b": 1,\n        "d": {\n            "e": [\n                "f"\n'
        '            ]\n        }\n    },\n    "c": []\n}\n'
    )
    assert replaced(four, ("c", 0), "x") == four.replace("[]", '[\n        "x"\n    ]')
    tabs = '{\r\n\t"a": {}\r\n}'
    assert replaced(tabs, ("a", "b"), 1) == '{\r\n\t"a": {\r\n\t\t"b": 1\r\n\t}\r\n}'
    assert replaced('{"a":1}', ("b",), {"c": [1, 2]}) == '{"a":1,"b":{"c":[1,2]}}'
    assert replaced('{"a": 1}', ("b",), [1, 2]) == '{"a": 1, "b": [1, 2]}'
    inline = '{\n  "a": { "b": 1 }\n}'
    assert replaced(inline, ("a", "c"), "d") == '{\n  "a": { "b": 1, "c": "d" }\n}'


def test_objects_missing_on_the_way_are_added() -> None:
    text = '{\n  "model": {}\n}'
    changed = replaced(text, ("model", "decoder", "list", 0, "x"), "y")
    assert json.loads(changed) == {"model": {"decoder": {"list": [{"x": "y"}]}}}


def test_a_path_through_another_kind_of_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a\.b\.c cannot be set") as caught:
        replaced('{"a": {"b": 1}}', ("a", "b", "c"), 2)
    assert caught.value.facts == {"expected": "an object there, not number", "where": "a.b"}
    with pytest.raises(ConfigError, match=r"a\[5\] cannot be set"):
        replaced('{"a": [1]}', ("a", 5), 2)


@pytest.mark.parametrize("value", [float("nan"), object(), b"x", {"a": float("inf")}, "\ud800"])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="JSON cannot hold"):
        replaced('{"a": 1}', ("a",), value)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("a",), '{\n  "b": [1, 2, 3],\n  "c": 2\n}'),
        (("c",), '{\n  "a": {"x": 1},\n  "b": [1, 2, 3]\n}'),
        (("b", 0), '{\n  "a": {"x": 1},\n  "b": [2, 3],\n  "c": 2\n}'),
        (("b", 2), '{\n  "a": {"x": 1},\n  "b": [1, 2],\n  "c": 2\n}'),
        (("a", "x"), '{\n  "a": {},\n  "b": [1, 2, 3],\n  "c": 2\n}'),
        (("d",), '{\n  "a": {"x": 1},\n  "b": [1, 2, 3],\n  "c": 2\n}'),
    ],
)
def test_removing_takes_the_comma_with_it(path: jsontext.Path, expected: str) -> None:
    assert removed('{\n  "a": {"x": 1},\n  "b": [1, 2, 3],\n  "c": 2\n}', path) == expected


def test_removing_a_key_removes_its_duplicates_too() -> None:
    assert removed('{"a": 1, "b": 2, "a": 3}', ("a",)) == '{"b": 2}'
    assert removed('{"a": 1, "a": 3}', ("a",)) == "{}"


@given(JSON_VALUES.filter(lambda value: isinstance(value, dict)), JSON_VALUES, st.data())
@settings(max_examples=100, deadline=None)
def test_edits_and_removals_give_what_the_same_change_of_data_gives(
    document: Any, value: Any, data: st.DataObject
) -> None:
    text = json.dumps(document, indent=data.draw(st.sampled_from([None, 3])))
    key = data.draw(st.sampled_from([*document, "new"]))
    assert json.loads(replaced(text, (key,), value)) == {**document, key: value}
    kept = {other: item for other, item in document.items() if other != key}
    assert json.loads(removed(text, (key,))) == kept
