"""The JSON that onnxruntime-genai reads: here laxer than the standard, there stricter.

Measured against onnxruntime-genai 0.18 on Linux by tests/test_checking_parsing.py. It stops at
the end of the first value; a word that begins with `t`, `f` or `n` and is no literal is dropped
without a value; strings may hold any byte but end at a zero byte; numbers are those of the C++
function `from_chars`, `-inf` and `01` included; an escape `\\uXXXX` is refused, and any other
unknown escape stands for its letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from turnout.bundle.jsontext import MAX_DEPTH, Member, Node

# A value that the runtime drops: `{"a": t}` sets nothing.
DROPPED = "nothing"

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(
    r"-?(?:(?:inf(?:inity)?|nan(?:\([A-Za-z0-9_]*\))?)|"
    r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)",
    re.IGNORECASE,
)
_STANDARD_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LITERALS = {"t": ("rue", True), "f": ("alse", False), "n": ("ull", None)}
_ESCAPES = {"b": "\b", "n": "\n", "f": "\f", "r": "\r", "t": "\t"}
_STANDARD_ESCAPES = frozenset('"\\/bnfrt')
_MAX_ODDITIES = 20


@dataclass(frozen=True)
class Oddity:
    """A place where the text is no JSON by the standard, though the runtime reads on."""

    offset: int
    found: str
    fix: str


class DialectError(Exception):
    """What the runtime refuses while reading. Never leaves this package."""

    def __init__(self, offset: int, found: str, expected: str, fix: str | None = None) -> None:
        super().__init__(found)
        self.offset, self.found, self.expected, self.fix = offset, found, expected, fix


class EscapeError(DialectError):
    """An escape `\\uXXXX`, which the runtime refuses though JSON has it."""


@dataclass
class Reading:
    """What was read: the first value of the text, and what is odd about it."""

    root: Node
    oddities: list[Oddity] = field(default_factory=list)


def read(text: str) -> Reading:
    """Read `text` as onnxruntime-genai does. Raises `DialectError`."""
    reader = _Reader(text)
    root = reader.value()
    if reader.at < len(text):
        reader.odd(reader.at, "text after the end of the document", "remove it")
    return Reading(root, reader.oddities)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.oddities: list[Oddity] = []

    def odd(self, offset: int, found: str, fix: str) -> None:
        if len(self.oddities) < _MAX_ODDITIES:
            self.oddities.append(Oddity(offset, found, fix))

    def fail(self, expected: str, *, found: str | None = None, fix: str | None = None) -> NoReturn:
        if found is None:
            found = repr(self.text[self.at]) if self.at < len(self.text) else "the end of the text"
        raise DialectError(self.at, found, expected, fix)

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None  # it matches the empty string
        self.at = match.end()

    def skip(self, char: str) -> bool:
        if not self.text.startswith(char, self.at):
            return False
        self.at += len(char)
        return True

    def value(self) -> Node:
        self.skip_space()
        node = self.one_value()
        self.skip_space()
        return node

    def one_value(self) -> Node:
        start = self.at
        char = self.text[start : start + 1]
        if char == "{":
            return self.nested(self.object)
        if char == "[":
            return self.nested(self.array)
        if char == '"':
            string = self.string()
            return Node("string", start, self.at, string)
        if char in _LITERALS:
            return self.literal(char)
        if char == "-" or "0" <= char <= "9":
            return self.number()
        comment = self.text.startswith(("//", "/*", "#"), start)
        return self.fail("a value", fix="remove the comment" if comment else None)

    def nested(self, read_inner: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            # No key of the runtime is nowhere near this deep.
            self.fail(f"at most {MAX_DEPTH} levels of nesting", found="deeper nesting")
        node = read_inner()
        self.depth -= 1
        return node

    def object(self) -> Node:
        start = self.at
        self.at += 1
        members: list[Member] = []
        self.skip_space()
        if self.skip("}"):
            return Node("object", start, self.at)
        while True:
            key_at = self.at
            if not self.text.startswith('"', key_at):
                self.fail("a key in double quotes", fix=self.fix_for_key(bool(members)))
            key = self.string()
            self.skip_space()
            if not self.skip(":"):
                self.fail(f"':' after the key {key[:40]!r}")
            members.append(Member(key, key_at, self.value()))
            if self.skip("}"):
                return Node("object", start, self.at, members=tuple(members))
            if not self.skip(","):
                self.fail("',' or '}'")
            self.skip_space()

    def fix_for_key(self, started: bool) -> str | None:
        if self.text.startswith(("//", "/*", "#"), self.at):
            return "remove the comment"
        if started and self.text.startswith("}", self.at):
            return "remove the comma before it"
        return "write keys in double quotes" if self.at < len(self.text) else None

    def array(self) -> Node:
        start = self.at
        self.at += 1
        items: list[Node] = []
        self.skip_space()
        if self.skip("]"):
            return Node("array", start, self.at)
        while True:
            items.append(self.value())
            if self.skip("]"):
                return Node("array", start, self.at, items=tuple(items))
            if not self.skip(","):
                self.fail("',' or ']'")

    def literal(self, char: str) -> Node:
        start = self.at
        self.at += 1
        rest, value = _LITERALS[char]
        # The runtime wants one more character after a literal.
        if self.text.startswith(rest, self.at) and self.at + len(rest) < len(self.text):
            self.at += len(rest)
            return Node("null" if value is None else "bool", start, self.at, value)
        self.odd(start, f"{char!r} where a value is due, which sets nothing", "write the value")
        return Node(DROPPED, start, self.at)

    def number(self) -> Node:
        start = self.at
        match = _NUMBER.match(self.text, start)
        if match is None:
            self.fail("a number")
        literal = match.group()
        number = _value_of(literal)
        if number is None:
            self.fail("a number that fits into 64-bit floating point", found=literal[:40])
        self.at = match.end()
        if not _STANDARD_NUMBER.fullmatch(literal):
            self.odd(start, f"the number {literal[:40]}", "write it as JSON does")
        return Node("number", start, self.at, number)

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
            if not char:
                self.at = opened
                self.fail("a closing '\"'", found="a string that never ends")
            self.at += 1
            if char == '"':
                return "".join(parts)
            if char == "\0":
                self.odd(self.at - 1, "a zero byte, which ends the string", "remove it")
                return "".join(parts)
            if char == "\\":
                parts.append(self.escape(opened))
            else:
                self.odd(self.at - 1, f"{char!r} in a string", "write it as an escape such as \\n")
                parts.append(char)

    def escape(self, opened: int) -> str:
        letter = self.text[self.at : self.at + 1]
        if not letter:
            self.at = opened
            self.fail("a closing '\"'", found="a string that never ends")
        if letter == "u":
            raise EscapeError(
                self.at - 1,
                found=repr(self.text[self.at - 1 : self.at + 5]),
                expected="the character itself, in UTF-8",
                fix="write the character itself: onnxruntime-genai refuses escapes by number",
            )
        if letter not in _STANDARD_ESCAPES:
            self.odd(self.at - 1, f"the escape {chr(92) + letter!r}", "write a backslash as \\\\")
        self.at += 1
        return _ESCAPES.get(letter, letter)


def _value_of(literal: str) -> float | None:
    """The number, None where it overflows or underflows. Words are floats, too."""
    word = literal.lstrip("-").lower()
    sign = "-" if literal.startswith("-") else ""
    if word[0] == "i":
        return float(f"{sign}inf")
    if word[0] == "n":
        return float("nan")
    value = float(literal)
    mantissa = re.split("[eE]", literal)[0]
    underflows = value == 0 and any(digit in "123456789" for digit in mantissa)
    return None if underflows or value in {float("inf"), float("-inf")} else value
