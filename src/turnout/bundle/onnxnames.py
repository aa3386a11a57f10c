"""Names in an ONNX graph: which are read, which nothing defines, and which stand twice.

What onnxruntime refuses was measured by tests/test_checking_graphs.py. A name is the bytes that
stand in the file: most are never shown, and are not decoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Names:
    """The first names of each kind that onnxruntime refuses a graph for.

    `undefined` are read and never defined, `repeated` are defined twice, and `twins` are names
    that two nodes of one graph have.
    """

    undefined: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()


@dataclass(slots=True)
class Scope:
    """The names of one graph, while it is read."""

    read: set[bytes] = field(default_factory=set)
    made: set[bytes] = field(default_factory=set)
    inputs: set[bytes] = field(default_factory=set)
    constants: set[bytes] = field(default_factory=set)
    nodes: set[bytes] = field(default_factory=set)
    repeated: list[bytes] = field(default_factory=list)
    twins: list[bytes] = field(default_factory=list)

    def node(self, name: bytes, inputs: Iterable[bytes], outputs: Iterable[bytes]) -> None:
        """Note a node's name, what it reads and what it makes."""
        self.read.update(inputs)
        if name:
            if name in self.nodes:
                _note(self.twins, name)
            self.nodes.add(name)
        for output in outputs:
            if output in self.made:
                _note(self.repeated, output)
            elif output:  # an output without a name is left out
                self.made.add(output)

    def input(self, name: bytes) -> None:
        """Note an input of the graph."""
        if name in self.inputs:
            _note(self.repeated, name)
        self.inputs.add(name)

    def close(self) -> set[bytes]:
        """What must come from the graph around this one. Call it when the graph has been read."""
        for name in sorted(self.made & (self.inputs | self.constants))[:MOST_SHOWN]:
            _note(self.repeated, name)
        return self.read - self.made - self.inputs - self.constants - {b""}


def _note(names: list[bytes], name: bytes) -> None:
    if len(names) < MOST_SHOWN:
        names.append(name)


def as_texts(names: Iterable[bytes]) -> tuple[str, ...]:
    """These names as text, whatever their bytes are."""
    return tuple(name.decode("utf-8", "replace") for name in names)
