"""Edits of JSON text as splices: every byte outside the edited value stays as it was.

New text follows its surroundings: their line ends, indentation, and spacing of colons and
commas, so a config edited by this project reads as if its author had written it.
"""

from __future__ import annotations

import json
import math
from typing import Any

from turnout.bundle.jsontext import Node, Path, PathKey, show_path
from turnout.errors import ConfigError, UsageError


def replace(text: str, root: Node, path: Path, value: Any) -> str:
    """`text` with `value` at `path`; members and objects that are missing on the way are added.

    `root` is `text` parsed. An index equal to an array's length appends. Text is unchanged
    where the value is there already. Raises `ConfigError` where the path runs through a value
    of another kind, and `UsageError` for a value that JSON cannot hold.
    """
    node = root.find(path)
    layout = _Layout(text, root)
    if node is not None:
        if _same(node, value):
            return text
        new = layout.write(value, layout.indent_at(node.start), layout.has_lines(node))
        return text[: node.start] + new + text[node.end :]
    depth = len(path)
    parent = None
    while parent is None:
        depth -= 1
        parent = root.find(path[:depth])
    for key in reversed(path[depth + 1 :]):
        if isinstance(key, int) and key != 0:
            raise _cannot(path, f"an array of at least {key} elements at its end")
        value = [value] if isinstance(key, int) else {key: value}
    return _insert(layout, parent, path[: depth + 1], value)


def rewrite(text: str, root: Node, node: Node, value: Any) -> str:
    """`text` with `value` in the place of `node`, which is one of `root`, `text` parsed.

    Only what stands before `node` needs to be as it was when `root` was parsed.
    """
    layout = _Layout(text, root)
    new = layout.write(value, layout.indent_at(node.start), layout.has_lines(node))
    return text[: node.start] + new + text[node.end :]


def remove(text: str, root: Node, path: Path) -> str:
    """`text` without the member or element at `path` (all duplicates of a key).

    `root` is `text` parsed. Unchanged when nothing is there. Raises `UsageError` for the
    empty path.
    """
    if not path:
        raise UsageError("The document itself cannot be removed.", expected="a path with a key")
    parent, key = root.find(path[:-1]), path[-1]
    if parent is None or parent.child(key) is None:
        return text
    spans = _elements(parent)
    names: list[PathKey] = [member.key for member in parent.members] or [*range(len(parent.items))]
    kept = [index for index, name in enumerate(names) if name != key]
    if not kept:
        return text[: parent.start + 1] + text[parent.end - 1 :]
    for index in reversed(range(len(spans))):
        if names[index] != key:
            continue
        if index > kept[-1]:  # nothing is kept after it, so the comma before it goes
            text = text[: spans[index - 1][1]] + text[spans[index][1] :]
        else:
            text = text[: spans[index][0]] + text[spans[index + 1][0] :]
    return text


def _elements(node: Node) -> list[tuple[int, int]]:
    if node.kind == "object":
        return [(member.start, member.value.end) for member in node.members]
    return [(item.start, item.end) for item in node.items]


def _cannot(path: Path, expected: str) -> ConfigError:
    return ConfigError(
        f"{show_path(path)} cannot be set.", expected=expected, where=show_path(path[:-1])
    )


def _same(node: Node, value: Any) -> bool:
    try:  # as JSON, since Python holds 1, 1.0 and True to be equal
        return json.dumps(node.data()) == json.dumps(value)
    except (TypeError, ValueError):
        return False


def _is_text(value: str) -> bool:
    # A file name that is no UTF-8 comes as surrogates, which no JSON file can hold.
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _insert(layout: _Layout, parent: Node, path: Path, value: Any) -> str:
    key, text = path[-1], layout.text
    if parent.kind == "object" and isinstance(key, str):
        head = json.dumps(key, ensure_ascii=False) + layout.colon
    elif parent.kind == "array" and key == len(parent.items):
        head = ""
    else:
        kind = "an object" if isinstance(key, str) else f"an array of at least {key} elements"
        raise _cannot(path, f"{kind} there, not {parent.kind}")
    elements = _elements(parent)
    base, lines = layout.indent_at(parent.start), layout.has_lines(parent)
    inner = base
    if lines:
        inner = layout.indent_at(elements[0][0]) if elements else base + layout.unit
    new = head + layout.write(value, inner, lines)
    if lines:
        new = layout.newline + inner + new
    if elements:
        end = elements[-1][1]
        return text[:end] + ("," if lines else layout.comma) + new + text[end:]
    if lines:
        new += layout.newline + base
    return text[: parent.start + 1] + new + text[parent.end - 1 :]


class _Layout:
    """How a document is laid out: `unit` is one level of indentation, "" in one-line text."""

    def __init__(self, text: str, root: Node) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.unit, self.colon, self.comma = "    ", ": ", ", "
        self.lines = "\n" in text[root.start : root.end] or not _elements(root)
        if root.members:
            self._learn(root)

    def _learn(self, root: Node) -> None:
        member = root.members[0]
        lead = self.text[root.start + 1 : member.start]
        between = self.text[member.start : member.value.start]
        colon = between[len(between.rstrip().removesuffix(":").rstrip()) :]
        if "\n" not in colon:
            self.colon = colon
        if "\n" in lead:
            self.unit = lead.rsplit("\n", 1)[1]
        elif self.colon == ":":
            self.comma = ","

    def indent_at(self, offset: int) -> str:
        """The white space that the line holding `offset` starts with."""
        line = self.text[self.text.rfind("\n", 0, offset) + 1 : offset]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def has_lines(self, node: Node) -> bool:
        """Whether new text in or for `node` goes on lines of its own, as its neighbours' does."""
        elements = _elements(node)
        if elements:
            return "\n" in self.text[node.start : elements[0][0]]
        return self.lines

    def write(self, value: Any, indent: str, lines: bool) -> str:
        """`value` as JSON text; `indent` is that of the line it starts on."""
        if isinstance(value, dict):
            parts = [
                json.dumps(str(key), ensure_ascii=False)
                + self.colon
                + self.write(item, indent + self.unit, lines)
                for key, item in value.items()
            ]
            return "{" + self._join(parts, indent, lines) + "}"
        if isinstance(value, list | tuple):
            parts = [self.write(item, indent + self.unit, lines) for item in value]
            return "[" + self._join(parts, indent, lines) + "]"
        if value is None or isinstance(value, bool | int):
            return json.dumps(value)
        if isinstance(value, str) and _is_text(value):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        raise UsageError("JSON cannot hold this value.", found=repr(value)[:80])

    def _join(self, parts: list[str], indent: str, lines: bool) -> str:
        if not parts or not lines:
            return self.comma.join(parts)
        lead = self.newline + indent + self.unit
        return lead + ("," + lead).join(parts) + self.newline + indent
