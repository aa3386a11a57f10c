"""Keys that stand twice in one object, read as onnxruntime-genai reads them.

It reads a document as it goes: each object or array under a key adds to what the ones before it
said, and only of plain values does the last one win (measured on onnxruntime-genai 0.18: two
`session_options` of which the first names an EP run on that EP). Whoever took the last one
alone would miss an EP, or a file, that takes effect. So it is with the stages of a pipeline that
have one name, in different elements of its list, too: one stage, in the place of the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from turnout.bundle import jsonedit
from turnout.bundle.jsontext import Member, Node, Path

_CONTAINERS = ("object", "array")
_STAGES = "pipeline"


def merged(node: Node) -> Node:
    """`node` with what stands twice as one; `node` itself where nothing does.

    Spans are those of the last one.
    """
    if node.kind == "array":
        items = tuple(merged(item) for item in node.items)
        same = all(new is old for new, old in zip(items, node.items, strict=True))
        return node if same else replace(node, items=items)
    if node.kind != "object":
        return node
    inner = tuple(_inside(member) for member in _joined(node.members))
    same = len(inner) == len(node.members) and all(
        new is old for new, old in zip(inner, node.members, strict=True)
    )
    return node if same else replace(node, members=inner)


def repeated(pipeline: Node) -> Iterator[Path]:
    """The paths, below a pipeline that is a list, of stages that an element before it names."""
    seen: set[str] = set()
    for index, item in enumerate(pipeline.items):
        names = dict.fromkeys(member.key for member in item.members)
        yield from ((index, name) for name in names if name in seen)
        seen |= names.keys()


def collapse(text: str, root: Node) -> str:
    """`text` with each object that holds something twice written anew as one.

    `root` is `text` parsed. All other bytes stay.
    """
    for node, whole in reversed(_doubled(root, merged(root))):
        text = jsonedit.rewrite(text, root, node, whole.data())
    return text


def _inside(member: Member) -> Member:
    value = merged(_staged(member.value) if member.key == _STAGES else member.value)
    return member if value is member.value else replace(member, value=value)


def _staged(node: Node) -> Node:
    """A pipeline whose stages of one name are one, where the first of them stands.

    What the elements of a list leave behind stays, empty, so that places are still the same.
    """
    groups: dict[str, list[Member]] = {}
    for item in node.items if node.kind == "array" else (node,):
        for member in item.members:
            if member.value.kind == "object":
                groups.setdefault(member.key, []).append(member)
    if all(len(members) == 1 for members in groups.values()):
        return node
    kept = {id(members[0]): _one([m.value for m in members]) for members in groups.values()}

    def without(item: Node) -> Node:
        members = tuple(
            replace(member, value=kept[id(member)]) if id(member) in kept else member
            for member in item.members
            if id(member) in kept or member.value.kind != "object"
        )
        return replace(item, members=members)

    if node.kind == "object":
        return without(node)
    return replace(node, items=tuple(without(item) for item in node.items))


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
    if len(values) == 1:
        return last
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
