"""Whether compiling was worth it: how much of a stage its EP really took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.errors import CompileError

if TYPE_CHECKING:
    from turnout.bundle import GraphFile

# A graph that keeps more than this part of its weights outside of the compiled parts has not been
# compiled in any useful sense: its weights are stored, and loaded, twice.
MOST_OUTSIDE = 0.5
# Graphs with less than this are too small to judge by their weights.
LEAST_BYTES = 4096


def require_coverage(stage: str, source: GraphFile, compiled: GraphFile) -> None:
    """Nothing, if most weights of `source` went into what its EP compiled.

    An EP takes what it can, be it three nodes of a thousand, and the runtime writes the rest,
    weights included, into the compiled graph without a word. Raises `CompileError` for that.
    """
    whole, outside = weight_bytes(source), weight_bytes(compiled)
    if whole < LEAST_BYTES or outside <= whole * MOST_OUTSIDE:
        return
    contexts = len(compiled.ep_contexts)
    raise CompileError(
        f"Next to nothing of {stage} can be compiled.",
        found=f"{outside:,} of {whole:,} bytes of weights, and "
        f"{compiled.node_count - contexts:,} nodes, are outside of the {contexts} compiled parts",
        expected="most of the weights inside of them",
        fix="give the EP shapes that are fixed (turnout build --static-prefill), or operators that"
        " it takes; or leave the stage on the CPU EP",
    )


def weight_bytes(graph: GraphFile) -> int:
    """Bytes of its initializers; a range of a file that several name counts once."""
    ranges = {item.external: item.nbytes for item in graph.initializers if item.external}
    inline = sum(item.nbytes for item in graph.initializers if item.external is None)
    return sum(ranges.values()) + inline
