"""Keys that stand twice in one object, read as onnxruntime-genai reads them.

It reads a document as it goes: each object or array under a key adds to what the ones before it
said, and only of plain values does the last one win (measured on onnxruntime-genai 0.18: two
`session_options` of which the first names an EP run on that EP). Whoever took the last one
alone would miss an EP, or a file, that takes effect.
"""

from __future__ import annotations

from dataclasses import replace

from turnout.bundle import jsonedit
from turnout.bundle.jsontext import Member, Node

_CONTAINERS = ("object", "array")
# Each member of a pipeline is a stage; two of one name are an error, not one stage.
_APART = "pipeline"


def merged(node: Node, *, apart: bool = False) -> Node:
    """`node` with what stands twice as one; `node` itself where nothing does.

    Spans are those of the last one. Duplicate names of stages stay: see `apart`.
    """
    if node.kind == "array":
        items = tuple(merged(item, apart=apart) for item in node.items)
        same = all(new is old for new, old in zip(items, node.items, strict=True))
        return node if same else replace(node, items=items)
    if node.kind != "object":
        return node
    members = node.members if apart else _joined(node.members)
    inner = tuple(_inside(member) for member in members)
    same = len(inner) == len(node.members) and all(
        new is old for new, old in zip(inner, node.members, strict=True)
    )
    return node if same else replace(node, members=inner)


def collapse(text: str, root: Node) -> str:
    """`text` with each object that holds something twice written anew as one.

    `root` is `text` parsed. All other bytes stay.
    """
    for node, whole in reversed(_doubled(root, merged(root))):
        text = jsonedit.rewrite(text, root, node, whole.data())
    return text


def _inside(member: Member) -> Member:
    value = merged(member.value, apart=member.key == _APART)
    return member if value is member.value else replace(member, value=value)


def _joined(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Members in which an object or array is alone under its key, where the last of them stood.

    Plain values beside it are left out: the runtime refuses them, or passes them on as options.
    """
    groups: dict[str, list[Member]] = {}
    for member in members:
        if member.value.kind in _CONTAINERS:
            groups.setdefault(member.key, []).append(member)
    kept = tuple(m for m in members if m.key not in groups or m is groups[m.key][-1])
    if len(kept) == len(members):
        return members
    return tuple(
        replace(member, value=_one([each.value for each in groups[member.key]]))
        if len(groups.get(member.key, ())) > 1
        else member
        for member in kept
    )


def _one(values: list[Node]) -> Node:
    last = values[-1]
    if all(value.kind == "object" for value in values):
        return replace(last, members=tuple(m for value in values for m in value.members))
    # An object where a list may stand, too, is a list of one.
    items = tuple(
        item for value in values for item in (value.items if value.kind == "array" else (value,))
    )
    return Node("array", last.start, last.end, items=items)


def _doubled(node: Node, whole: Node) -> list[tuple[Node, Node]]:
    """The outermost objects whose members were joined, with what they became, in order."""
    if whole is node:
        return []
    if node.kind == "object" and len(node.members) != len(whole.members):
        return [(node, whole)]
    pairs = (
        zip(node.items, whole.items, strict=True)
        if node.kind == "array"
        else ((a.value, b.value) for a, b in zip(node.members, whole.members, strict=True))
    )
    return [found for a, b in pairs for found in _doubled(a, b)]
