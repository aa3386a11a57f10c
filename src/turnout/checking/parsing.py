"""What onnxruntime-genai's parser refuses, and what it takes without a word (codes T1xx).

A config without a finding of severity error here is one that `onnxruntime_genai.Config` takes,
and the other way round; tests/test_checking_parsing.py holds that against the runtime itself for
real configs and mutated ones. All that is wrong is said, where the runtime stops at the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cached_property

from turnout.bundle.jsontext import Lines, Member, Node, Path, show_path
from turnout.checking import dialect, keys
from turnout.checking.findings import Finding, Place
from turnout.checking.keys import Key
from turnout.checking.parsing_rules import (
    DUPLICATE,
    ENCODING,
    ESCAPE,
    IGNORED,
    NEWER,
    NOT_UNICODE,
    ODD,
    REMOVED,
    RULES,
    SYNTAX,
    UNKNOWN,
    VALUE,
    WRONG_KIND,
)
from turnout.checking.whole import check_whole

__all__ = ["RULES", "check_bytes", "check_path"]

_INT_BITS = {"int": 32, "int64": 64}
_SHOWN = 60
_LONGEST_PATH = 300
_MOST_HINTS = 100
_DRAFT = ("model", "draft")
_ARTICLES = {"object": "an object", "array": "a list", "null": "null"}


class Source:
    """A config's text, and the places in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.text)

    def place(self, shown: Path | str, offset: int) -> Place:
        """A JSON path, or a name, with the line and column of `offset`."""
        path = shown if isinstance(shown, str) else self.named(shown)
        return Place(path, *self._lines.at(offset))

    def named(self, path: Path) -> str:
        """A JSON path for a person."""
        return _cut(show_path(path), _LONGEST_PATH)

    def shown(self, node: Node) -> str:
        """A value for a person, cut to a readable length."""
        if node.kind in _ARTICLES:
            return _ARTICLES[node.kind]
        return f"the {node.kind} {_cut(self.text[node.start : node.end], _SHOWN)}"


def check_bytes(data: bytes, name: str, genai: str = "") -> Iterator[Finding]:
    """Findings about the config `data`, a file that is shown as `name`.

    `genai` is the version of onnxruntime-genai that is to read it, "" for the one that the table
    of keys describes.
    """
    for mark, found in (
        (b"\xef\xbb\xbf", "a UTF-8 byte order mark before the text"),
        (b"\xff\xfe", "UTF-16 text"),
        (b"\xfe\xff", "UTF-16 text"),
    ):
        if data.startswith(mark):
            yield ENCODING.at(
                Place(name, 1, 1),
                "The text is not plain UTF-8.",
                found=found,
                expected="UTF-8 without a byte order mark",
                fix="save it as UTF-8 without BOM",
            )
            return
    source = Source(data.decode("utf-8", "surrogateescape"))
    yield from _check_text(source, name, genai)


def check_path(path: str) -> Iterator[Finding]:
    """Findings about the path of a bundle, as it is given to the runtime."""
    if any("\ud800" <= letter <= "\udfff" for letter in path):
        yield NOT_UNICODE.at(
            ".",
            "The path of the bundle is not UTF-8, and the runtime takes no other.",
            found=path.encode("utf-8", "backslashreplace").decode("utf-8"),
            expected="a path in UTF-8",
            fix="rename the folder",
        )


def _check_text(source: Source, name: str, genai: str) -> Iterator[Finding]:
    try:
        reading = dialect.read(source.text)
    except dialect.DialectError as error:
        rule = ESCAPE if isinstance(error, dialect.EscapeError) else SYNTAX
        yield rule.at(
            source.place(name, error.offset),
            "The text cannot be read."
            if rule is SYNTAX
            else "A string has an escape by number, which onnxruntime-genai refuses.",
            found=_printable(error.found),
            expected=error.expected,
            fix=error.fix,
        )
        return
    for oddity in reading.oddities:
        yield ODD.at(
            source.place(name, oddity.offset),
            "The text is no JSON here, though onnxruntime-genai reads it.",
            found=_printable(oddity.found),
            expected="JSON",
            fix=oddity.fix,
        )
    yield from _not_utf8(source, name)
    root = reading.root
    if root.kind not in {"object", dialect.DROPPED}:
        yield WRONG_KIND.at(
            source.place(name, root.start),
            "The document is no object.",
            found=source.shown(root),
            expected="an object with a model",
        )
        return
    walk = _Walk(source, genai)
    yield from walk.object(root, keys.ROOT, ())
    yield from check_whole(source, root, walk.paths.values())


def _not_utf8(source: Source, name: str) -> Iterator[Finding]:
    at = next((i for i, char in enumerate(source.text) if "\ud800" <= char <= "\udfff"), None)
    if at is not None:
        yield ODD.at(
            source.place(name, at),
            "The text is not UTF-8, though onnxruntime-genai reads it.",
            found=f"the byte 0x{ord(source.text[at]) & 0xFF:02x}",
            expected="UTF-8",
            fix="save it as UTF-8",
        )


class _Walk:
    """One pass over a document along the table of keys."""

    def __init__(self, source: Source, genai: str) -> None:
        self.source, self.genai = source, genai
        self.hints = _MOST_HINTS
        # The file names that take effect: of the same stage, named twice, the last.
        self.paths: dict[Path, tuple[Path, Node]] = {}

    def object(self, node: Node, section: str, path: Path) -> Iterator[Finding]:
        """Findings in an object that is that section of the table."""
        table = keys.sections()[section]
        yield from self._duplicates(node, path)
        for member in node.members:
            where = (*path, member.key)
            key = table.get(member.key) or table.get(keys.ANY)
            scalar = member.value.kind not in {"object", "array"}
            if section == keys.ROOT and scalar:
                if member.value.kind != dialect.DROPPED:
                    yield self._ignored(member, where)
            elif member.value.kind == dialect.DROPPED:
                continue
            elif key is None:
                yield self._unknown(member, where, section)
            else:
                yield from self._known(member, key, where)

    def _known(self, member: Member, key: Key, path: Path) -> Iterator[Finding]:
        # The paths of a draft model are the only ones that the parser does not look at.
        if key.is_path and member.value.kind == "string" and path[:2] != _DRAFT:
            names = tuple(step for step in path if isinstance(step, str))
            self.paths[names] = (path, member.value)
        refused = key.removed and any(_fits(kind, member.value) for kind in key.kinds)
        if key.since and not refused:
            yield self._since(member, key, path)
        yield from self.value(member.value, key, path)

    def value(self, node: Node, key: Key, path: Path) -> Iterator[Finding]:
        """Findings in a value that stands where `key` does."""
        if node.kind == dialect.DROPPED:
            return
        kind = next((kind for kind in key.kinds if _fits(kind, node)), None)
        if key.removed and kind is not None:
            yield REMOVED.at(
                self.source.place(path, node.start),
                f"{self.source.named(path)} is no longer read.",
                found=self.source.shown(node),
                fix=key.removed,
            )
        elif kind is None:
            yield self._wrong_kind(node, key, path)
        elif kind.startswith("["):
            for index, item in enumerate(node.items):
                yield from self.value(item, Key((kind[1:-1],)), (*path, index))
        elif kind.startswith("{*"):
            yield from self._map(node, kind[2:-1], path)
        elif kind.startswith("{"):
            yield from self.object(node, kind[1:-1], path)
        else:
            problem = _out_of_range(node, kind, key)
            if problem is not None:
                yield VALUE.at(
                    self.source.place(path, node.start),
                    f"{self.source.named(path)} has a value that is not allowed.",
                    found=self.source.shown(node),
                    expected=problem,
                    fix=self._word(node, key),
                )

    def _map(self, node: Node, inner: str, path: Path) -> Iterator[Finding]:
        kind = inner if inner in {"string", "int", "number", "bool"} else f"{{{inner}}}"
        yield from self._duplicates(node, path)
        for member in node.members:
            yield from self.value(member.value, Key((kind,)), (*path, member.key))

    def _word(self, node: Node, key: Key) -> str | None:
        near = self._near(str(node.scalar), key.words)
        return f"write {near[0]}" if near else None

    def _duplicates(self, node: Node, path: Path) -> Iterator[Finding]:
        seen: set[str] = set()
        for member in node.members:
            if member.key in seen:
                yield self._duplicate(member, (*path, member.key))
            seen.add(member.key)

    def _duplicate(self, member: Member, path: Path) -> Finding:
        merged = member.value.kind == "object"
        return DUPLICATE.at(
            self.source.place(path, member.start),
            f"{self.source.named(path)} is there more than once.",
            found="the same key again",
            expected="each key once",
            fix="keep one: the runtime "
            + ("reads both into one another" if merged else "takes the last"),
        )

    def _ignored(self, member: Member, path: Path) -> Finding:
        near = self._near(member.key, keys.sections()[keys.ROOT])
        return IGNORED.at(
            self.source.place(path, member.start),
            f"{self.source.named(path)} is ignored.",
            found=self.source.shown(member.value),
            expected=f"one of {', '.join(keys.sections()[keys.ROOT])}, each an object",
            fix=f"write it inside {near[0]}" if near else None,
        )

    def _unknown(self, member: Member, path: Path, section: str) -> Finding:
        near = self._near(member.key, keys.sections()[section])
        elsewhere = keys.places_of(member.key)
        fix = None
        if near:
            fix = f"write {near[0]}, if that is meant"
        elif elsewhere:
            fix = f"move it to {' or '.join(map(keys.shown, elsewhere[:3]))}"
        return UNKNOWN.at(
            self.source.place(path, member.start),
            f"{self.source.named(path)} is no key that onnxruntime-genai reads;"
            " it refuses the file.",
            found=f"the key {member.key[:_SHOWN]!r}",
            expected=f"a key of {keys.shown(section)}",
            fix=fix or "remove it; it may be of a newer onnxruntime-genai",
        )

    def _near(self, word: str, known: Iterable[str | int]) -> list[str]:
        """The word that was meant, if any. Looking for one costs more than all else here."""
        self.hints -= 1
        words = [name for name in known if isinstance(name, str) and name != keys.ANY]
        return get_close_matches(word[:_SHOWN], words, n=1) if self.hints >= 0 else []

    def _since(self, member: Member, key: Key, path: Path) -> Finding:
        if self.genai and keys.is_older(self.genai, key.since):
            return UNKNOWN.at(
                self.source.place(path, member.start),
                f"{self.source.named(path)} is not read by onnxruntime-genai {self.genai},"
                " and it refuses the file.",
                found=f"the key {member.key!r}",
                expected=f"onnxruntime-genai {key.since} or newer",
                fix=f"install onnxruntime-genai {key.since}, or remove the key",
            )
        return NEWER.at(
            self.source.place(path, member.start),
            f"{self.source.named(path)} is read from onnxruntime-genai {key.since} on;"
            " older ones refuse the file.",
            found=f"the key {member.key!r}",
        )

    def _wrong_kind(self, node: Node, key: Key, path: Path) -> Finding:
        return WRONG_KIND.at(
            self.source.place(path, node.start),
            f"{self.source.named(path)} has a value of the wrong kind.",
            found=self.source.shown(node),
            expected=" or ".join(map(_worded, key.kinds)),
            fix=_fix_for_kind(node, key),
        )


def _fits(kind: str, node: Node) -> bool:
    if kind.startswith("{"):
        return node.kind == "object"
    if kind.startswith("["):
        return node.kind == "array"
    return node.kind == ("number" if kind in {"int", "int64"} else kind)


def _worded(kind: str) -> str:
    if kind.startswith("["):
        inner = kind[1:-1]
        return "a list of " + ("objects" if inner.startswith("{") else f"{_plural(inner)}")
    if kind.startswith("{"):
        return "an object"
    words = {"int": "a whole number", "int64": "a whole number", "bool": "true or false"}
    return words.get(kind, f"a {kind}")


def _plural(kind: str) -> str:
    return {"int": "whole numbers", "int64": "whole numbers"}.get(kind, f"{kind}s")


def _fix_for_kind(node: Node, key: Key) -> str | None:
    scalar = key.kinds[0]
    if node.kind == "null":
        return "remove the key: null is never taken"
    if scalar == "string" and node.kind in {"number", "bool"}:
        return "write the value in double quotes"
    if scalar in {"int", "int64", "number", "bool"} and node.kind == "string":
        return "write the value without quotes"
    if scalar in {"int", "number"} and node.kind == "array":
        return "write one number" + ("" if len(node.items) != 1 else ", without the brackets")
    return None


def _out_of_range(node: Node, kind: str, key: Key) -> str | None:
    """What is expected instead of the value, None when it may stand."""
    if key.words:
        folded = str(node.scalar).lower() if key.any_case else node.scalar
        if folded not in key.words:
            return "one of " + ", ".join(map(str, key.words))
    if not isinstance(node.scalar, int | float) or isinstance(node.scalar, bool):
        return None
    value = float(node.scalar)
    bits = _INT_BITS.get(kind)
    if bits is not None:
        limit = 2.0 ** (bits - 1)
        inside = -limit <= value < limit and math.isfinite(value)
        if not inside or value != math.trunc(value):
            return f"a whole number of {bits} bits"
    return _bounds(key) if _outside(value, key) else None


def _outside(value: float, key: Key) -> bool:
    if key.least is None and key.most is None and key.above is None:
        return False
    return not (
        (key.least is None or value >= key.least)
        and (key.most is None or value <= key.most)
        and (key.above is None or value > key.above)
    )


def _bounds(key: Key) -> str:
    parts = []
    if key.least is not None:
        parts.append(f"at least {key.least:g}")
    if key.above is not None:
        parts.append(f"above {key.above:g}")
    if key.most is not None:
        parts.append(f"at most {key.most:g}")
    return "a number " + " and ".join(parts)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
