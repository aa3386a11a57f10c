"""JSON text read into nodes that remember where they stand.

Python's `json` forgets positions, number literals and duplicate keys, all of which a
config that is edited by splices, or explained to a user, needs. The dialect is strict JSON
(RFC 8259), because onnxruntime-genai refuses comments, trailing commas, `NaN` and a byte
order mark as well. Nesting and literal lengths are bounded, so untrusted text costs no more
than its own size.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from turnout.errors import ConfigError

MAX_DEPTH = 100
MAX_NUMBER_LENGTH = 400
PathKey = str | int
Path = tuple[PathKey, ...]

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[A-Za-z_0-9.+-]+")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """One `"key": value` of an object; `start` is the offset of the key's opening quote."""

    key: str
    start: int
    value: Node


@dataclass(frozen=True, slots=True)
class Node:
    """One JSON value and its span `text[start:end]`.

    `kind` is "object", "array", "string", "number", "bool" or "null". Objects have `members`
    (duplicates included, in order), arrays `items`, all others `scalar`.
    """

    kind: str
    start: int
    end: int
    scalar: str | int | float | bool | None = None
    members: tuple[Member, ...] = ()
    items: tuple[Node, ...] = ()
    # The members by key, once they have been asked for: a search for each of many is quadratic.
    _by_key: dict[str, Node] | None = field(default=None, init=False, repr=False, compare=False)

    def child(self, key: PathKey) -> Node | None:
        """The value under `key` (the last of duplicates, as onnxruntime-genai reads), or None."""
        if self.kind == "object" and isinstance(key, str):
            if self._by_key is None:
                object.__setattr__(self, "_by_key", {m.key: m.value for m in self.members})
            assert self._by_key is not None
            return self._by_key.get(key)
        if self.kind == "array" and isinstance(key, int) and 0 <= key < len(self.items):
            return self.items[key]
        return None

    def find(self, path: Path) -> Node | None:
        """The node at `path`, or None."""
        node: Node | None = self
        for key in path:
            if node is None:
                return None
            node = node.child(key)
        return node

    def data(self) -> Any:
        """The value as plain Python data, what `json.loads` gives."""
        if self.kind == "object":
            return {member.key: member.value.data() for member in self.members}
        if self.kind == "array":
            return [item.data() for item in self.items]
        return self.scalar


def show_path(path: Path) -> str:
    """A JSON path for people: `model.decoder.pipeline[0].context`."""
    shown = ""
    for key in path:
        shown += f"[{key}]" if isinstance(key, int) else (f".{key}" if shown else key)
    return shown or "(the document)"


class Lines:
    """Line and column of many offsets of one text, which is looked through once."""

    def __init__(self, text: str) -> None:
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def at(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1, of a character offset."""
        line = bisect_left(self._breaks, offset)
        return line + 1, offset - (self._breaks[line - 1] if line else -1)


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Line and column, both from 1, of a character offset; see `Lines` for many of them."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def parse(text: str, where: object = "the document") -> Node:
    """The root node of `text`.

    Raises `ConfigError` naming line, column, what was found and what was expected.
    """
    return _Parser(text, where).document()


def decode(data: bytes, where: object = "the document") -> str:
    """`data` as UTF-8 text, every character kept.

    Raises `ConfigError` for other encodings, naming the byte, and for a byte order mark,
    which onnxruntime-genai refuses.
    """
    problem = f"{where} is not JSON."
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        raise ConfigError(
            problem, found="UTF-16 text", expected="UTF-8", where=where, fix="save it as UTF-8"
        )
    if data.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(
            problem,
            found="a UTF-8 byte order mark before the text",
            expected="UTF-8 without one (onnxruntime-genai refuses it)",
            where=f"{where}, line 1, column 1",
            fix="save it as UTF-8 without BOM",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            problem,
            found=f"byte 0x{data[error.start]:02x} at offset {error.start}",
            expected="UTF-8 text",
            where=f"{where}, line {line}",
            fix="save it as UTF-8",
        ) from error


class _Parser:
    def __init__(self, text: str, where: object) -> None:
        self.text, self.where, self.at, self.depth = text, where, 0, 0

    def fail(
        self,
        expected: str,
        *,
        at: int | None = None,
        found: str | None = None,
        fix: str | None = None,
    ) -> NoReturn:
        at = self.at if at is None else at
        line, column = line_and_column(self.text, at)
        raise ConfigError(
            f"{self.where} is not JSON.",
            found=found or self._shown(at),
            expected=expected,
            where=f"{self.where}, line {line}, column {column}",
            fix=fix,
        )

    def _shown(self, at: int) -> str:
        if at >= len(self.text):
            return "the end of the text" if self.text.strip() else "an empty text"
        word = _WORD.match(self.text, at)
        return repr(word.group()[:40] if word else self.text[at])

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None  # it matches the empty string
        self.at = match.end()
        if self.text.startswith(("//", "/*", "#"), self.at):
            self.fail("JSON without comments", found="a comment", fix="remove the comment")

    def document(self) -> Node:
        if self.text.startswith("\ufeff"):
            self.fail(
                "text without a byte order mark (onnxruntime-genai refuses it)",
                found="a byte order mark before the text",
                fix="save it as UTF-8 without BOM",
            )
        self.skip_space()
        root = self.value()
        self.skip_space()
        if self.at < len(self.text):
            self.fail("nothing after the end of the document")
        return root

    def value(self) -> Node:
        char = self.text[self.at : self.at + 1]
        if char == "{":
            return self.nested(self.object)
        if char == "[":
            return self.nested(self.array)
        start = self.at
        if char == '"':
            string = self.string()
            return Node("string", start, self.at, string)
        if char == "-" or ("0" <= char <= "9"):
            return self.number()
        return self.literal()

    def nested(self, read: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} levels of nesting", found="deeper nesting")
        node = read()
        self.depth -= 1
        return node

    def object(self) -> Node:
        start = self.at
        members: list[Member] = []
        self.at += 1
        self.skip_space()
        while not self.closes("}", bool(members)):
            key_at = self.at
            if self.text[key_at : key_at + 1] != '"':
                fix = "write keys in double quotes" if members or key_at < len(self.text) else None
                self.fail("a key in double quotes" + ("" if members else " or '}'"), fix=fix)
            key = self.string()
            self.skip_space()
            if self.text[self.at : self.at + 1] != ":":
                self.fail(f"':' after the key {key!r}")
            self.at += 1
            self.skip_space()
            members.append(Member(key, key_at, self.value()))
            self.skip_space()
        return Node("object", start, self.at, members=tuple(members))

    def array(self) -> Node:
        start = self.at
        items: list[Node] = []
        self.at += 1
        self.skip_space()
        while not self.closes("]", bool(items)):
            items.append(self.value())
            self.skip_space()
        return Node("array", start, self.at, items=tuple(items))

    def closes(self, bracket: str, started: bool) -> bool:
        """Step over the closing bracket, or over the comma before another element."""
        if self.text[self.at : self.at + 1] == bracket:
            self.at += 1
            return True
        if not started:
            return False
        comma = self.at
        if self.text[comma : comma + 1] != ",":
            self.fail(f"',' or '{bracket}'")
        self.at += 1
        self.skip_space()
        if self.text[self.at : self.at + 1] in {"}", "]"}:
            self.fail(
                "another element after ','",
                at=comma,
                found="a trailing comma",
                fix="remove the comma",
            )
        return False

    def string(self) -> str:
        opened = self.at
        self.at += 1
        parts: list[str] = []
        while True:
            match = _PLAIN.match(self.text, self.at)
            assert match is not None  # it matches the empty string
            parts.append(match.group())
            self.at = match.end()
            char = self.text[self.at : self.at + 1]
            if char == '"':
                self.at += 1
                return "".join(parts)
            if not char:
                self.fail("a closing '\"'", at=opened, found="a string that never ends")
            if char != "\\":
                self.fail(
                    "no control character in a string",
                    found=repr(char),
                    fix="close the string, or write the character as an escape such as \\n",
                )
            parts.append(self.escape())

    def escape(self) -> str:
        letter = self.text[self.at + 1 : self.at + 2]
        if letter in _ESCAPES:
            self.at += 2
            return _ESCAPES[letter]
        if letter != "u":
            self.fail(
                'one of the escapes \\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX',
                found=repr("\\" + letter),
                fix="write a backslash as \\\\",
            )
        code = self.code_unit()
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", self.at):
            at, low = self.at, self.code_unit()
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
            self.fail("the second half of a surrogate pair", at=at)
        if 0xD800 <= code < 0xE000:
            self.fail("a surrogate pair", at=self.at - 6, found="half of one")
        return chr(code)

    def code_unit(self) -> int:
        match = _HEX.match(self.text, self.at + 2)
        if match is None:
            self.fail("four hexadecimal digits after \\u")
        self.at += 6
        return int(match.group(), 16)

    def number(self) -> Node:
        start = self.at
        match = _NUMBER.match(self.text, start)
        word = _WORD.match(self.text, start)
        if match is None or word is None or word.end() > match.end():
            self.fail("a number as JSON writes it (such as 1, -0.5 or 2e-3), or another value")
        self.at = match.end()
        literal = match.group()
        if len(literal) > MAX_NUMBER_LENGTH:
            self.fail(
                f"a number of at most {MAX_NUMBER_LENGTH} characters",
                at=start,
                found=f"one of {len(literal)}",
            )
        if not (match.group(1) or match.group(2)):
            return Node("number", start, self.at, int(literal))
        number = float(literal)
        if not math.isfinite(number):
            self.fail("a number that fits into 64-bit floating point", at=start, found=literal[:40])
        return Node("number", start, self.at, number)

    def literal(self) -> Node:
        start = self.at
        match = _WORD.match(self.text, start)
        word = match.group() if match else ""
        if word not in _LITERALS:
            lower = {"none": "null", "null": "null", "true": "true", "false": "false"}
            fix = None
            if word.lower() in lower:
                fix = f"write {lower[word.lower()]}"
            elif self.text[start : start + 1] == "'":
                fix = "use double quotes"
            self.fail(
                "a value: an object, an array, a string, a number, true, false or null", fix=fix
            )
        self.at += len(word)
        value = _LITERALS[word]
        return Node("null" if value is None else "bool", start, self.at, value)
