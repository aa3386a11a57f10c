"""What onnxruntime-genai checks when a config has been read as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from turnout.bundle.jsontext import Node, Path
from turnout.checking.findings import Finding
from turnout.checking.parsing_rules import CONTEXT, PATH, STATE_GROUPS

if TYPE_CHECKING:
    from turnout.checking.parsing import Source

# Models of streamed speech have no context length (measured: no other type does without).
_WITHOUT_CONTEXT = frozenset({"nemotron_speech", "streaming_enc_dec_asr"})
_MOST_CAPACITY = 8
_DECODER = ("model", "decoder")
_RECURRENT = "fixed_recurrent"


def check_whole(
    source: Source, root: Node, paths: Iterable[tuple[Path, Node]]
) -> Iterator[Finding]:
    """Findings about the document `root`; `paths` are the file names that take effect."""
    yield from _context_length(source, root)
    for path, node in paths:
        problem = _path_problem(str(node.scalar))
        if problem is not None:
            yield PATH.at(
                source.place(path, node.start),
                f"{source.named(path)} leads out of the bundle.",
                found=source.shown(node),
                expected="a path relative to the bundle, without ..",
                fix=problem,
            )
    yield from _Groups(source, root).findings()


def _every(root: Node, *names: str) -> list[Node]:
    """Every node under these keys, through duplicates, which the runtime reads one by one."""
    nodes = [root]
    for name in names:
        nodes = [m.value for node in nodes for m in node.members if m.key == name]
    return nodes


def _last(nodes: list[Node], kind: str) -> Node | None:
    return next((node for node in reversed(nodes) if node.kind == kind), None)


def _context_length(source: Source, root: Node) -> Iterator[Finding]:
    if _last(_every(root, "model", "context_length"), "number") is not None:
        return
    kind = _last(_every(root, "model", "type"), "string")
    if kind is not None and kind.scalar in _WITHOUT_CONTEXT:
        return
    model = _last(_every(root, "model"), "object") or root
    yield CONTEXT.at(
        source.place(("model",), model.start),
        "The model has no context_length.",
        expected="model.context_length, a whole number above 0",
        fix="add the number of tokens that prompt and answer may take together",
    )


def _path_problem(path: str) -> str | None:
    if path.startswith(("/", "\\")):
        return "write it relative to the bundle's folder"
    if ".." in path.replace("\\", "/").split("/"):
        return "put the file into the bundle"
    return None


def _kind_of(group: Node) -> str:
    kind = _last(_every(group, "kind"), "string")
    return str(kind.scalar) if kind is not None else ""


def _declares(group: Node) -> bool:
    return any(node.kind == "object" for node in _every(group, "state_update"))


def _size(group: Node) -> object:
    node = _last(_every(group, "state_update", "capacity"), "number")
    return node.scalar if node is not None else 0.0


def _enabled(group: Node) -> object:
    node = _last(_every(group, "state_update", "enabled"), "bool")
    return node.scalar if node is not None else True


class _Groups:
    """`model.decoder.state_groups`."""

    def __init__(self, source: Source, root: Node) -> None:
        self.source = source
        arrays = _every(root, *_DECODER, "state_groups")
        self.arrays = [node for node in arrays if node.kind == "array"]
        self.groups = [item for node in self.arrays for item in node.items]
        layers = _last(_every(root, *_DECODER, "num_hidden_layers"), "number")
        self.layers = float(layers.scalar) if layers and isinstance(layers.scalar, float) else 0

    def findings(self) -> Iterator[Finding]:
        """What does not fit."""
        if self.arrays and not self.groups:
            yield self._at(self.arrays[0], None, "The state groups are empty.", "remove the key")
        taken: dict[str, set[float]] = {}
        for index, group in enumerate(self.groups):
            if group.kind == "object":
                yield from self._group(index, group, taken)
        yield from self._agreement()

    def _group(self, index: int, group: Node, taken: dict[str, set[float]]) -> Iterator[Finding]:
        kind = _last(_every(group, "kind"), "string")
        if kind is None:
            yield self._at(group, index, "A state group has no kind.", "add its kind")
            return
        listed = [
            item
            for array in _every(group, "layer_ids")
            for item in array.items
            if isinstance(item.scalar, float)
        ]
        if not listed:
            yield self._at(group, index, "A state group has no layers.", "add its layer_ids")
        for item in listed:
            yield from self._layer(index, item, str(kind.scalar), taken)
        updates = [node for node in _every(group, "state_update") if node.kind == "object"]
        if updates:
            yield from self._update(index, group, str(kind.scalar), updates)

    def _layer(
        self, index: int, item: Node, kind: str, taken: dict[str, set[float]]
    ) -> Iterator[Finding]:
        layer = item.scalar
        assert isinstance(layer, float)
        if not 0 <= layer < self.layers:
            yield self._at(
                item,
                index,
                f"Layer {layer:g} is outside the decoder's {self.layers:g} layers.",
                "mend layer_ids, or model.decoder.num_hidden_layers",
            )
        elif layer in taken.setdefault(kind, set()):
            yield self._at(
                item, index, f"Layer {layer:g} is named twice by groups of {kind}.", "name it once"
            )
        taken.setdefault(kind, set()).add(layer)

    def _update(self, index: int, group: Node, kind: str, updates: list[Node]) -> Iterator[Finding]:
        capacity = _last([n for u in updates for n in _every(u, "capacity")], "number")
        heads = _last([n for u in updates for n in _every(u, "key_head_count")], "number")
        if not kind.startswith("fixed_"):
            yield self._at(group, index, f"A group of {kind} takes no state_update.", "remove it")
            return
        size = capacity.scalar if capacity is not None else 0
        if not isinstance(size, float) or not 1 <= size <= _MOST_CAPACITY:
            yield self._at(
                group,
                index,
                "The capacity of a state_update is missing or not allowed.",
                f"write a capacity from 1 to {_MOST_CAPACITY}",
            )
        if (heads is not None) != (kind == _RECURRENT):
            fix = "add key_head_count" if kind == _RECURRENT else "remove key_head_count"
            yield self._at(group, index, f"A state_update of {kind} does not fit.", fix)

    def _agreement(self) -> Iterator[Finding]:
        """All groups of fixed states update alike, or none does."""
        fixed = [group for group in self.groups if _kind_of(group).startswith("fixed_")]
        said = {(_declares(group), _size(group), _enabled(group)) for group in fixed}
        if len(said) > 1 and any(declares for declares, _, _ in said):
            yield self._at(
                fixed[0],
                self.groups.index(fixed[0]),
                "The groups of fixed states differ in their state_update.",
                "give all of them the same capacity and the same enabled, or none a state_update",
            )

    def _at(self, node: Node, index: int | None, message: str, fix: str) -> Finding:
        path: Path = (*_DECODER, "state_groups")
        if index is not None:
            path = (*path, index)
        return STATE_GROUPS.at(
            self.source.place(path, node.start),
            message,
            found=self.source.shown(node),
            expected="groups with a kind, and with layers that the decoder has, each once",
            fix=fix,
        )
