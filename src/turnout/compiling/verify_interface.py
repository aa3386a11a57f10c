"""Whether a compiled graph takes and gives what its source does."""

from __future__ import annotations

from turnout.bundle import GraphFile
from turnout.bundle.graph import ValueInfo
from turnout.errors import CompileError

_SHOWN = 200


def require_same_interface(source: GraphFile, compiled: GraphFile) -> None:
    """Inputs and outputs are the source's, by name, type and shape. Raises `CompileError`.

    onnxruntime leaves out inputs that have a default value, and writes what it has inferred of
    outputs whose shape is open; all else stays as it was.
    """
    defaults = {item.name for item in source.initializers if item.depth == 0}
    inputs = [value for value in source.inputs if value.name not in defaults]
    given = [value for value in compiled.inputs if value.name not in defaults]
    _require_same(inputs, given, "input", compiled, open_shapes=False)
    _require_same(list(source.outputs), list(compiled.outputs), "output", compiled,
                  open_shapes=True)  # fmt: skip


def _require_same(
    expected: list[ValueInfo],
    found: list[ValueInfo],
    what: str,
    graph: GraphFile,
    *,
    open_shapes: bool,
) -> None:
    by_name = {value.name: value for value in found}
    names = [value.name for value in expected]
    if len(by_name) != len(found) or sorted(by_name) != sorted(names):
        raise CompileError(
            f"{graph.path.name} has other {what}s than its source.",
            found=", ".join(value.name for value in found)[:_SHOWN] or "none",
            expected=", ".join(names)[:_SHOWN] or "none",
            where=graph.path,
        )
    for value in expected:
        other = by_name[value.name]
        if other.dtype != value.dtype or not _same_shape(value, other, open_shapes):
            raise CompileError(
                f"The {what} {value.name[:_SHOWN]!r} of {graph.path.name} is not its source's.",
                found=_shown(other),
                expected=_shown(value),
                where=graph.path,
            )


def _same_shape(source: ValueInfo, compiled: ValueInfo, open_shapes: bool) -> bool:
    if source.shape is None:
        return compiled.shape is None or open_shapes
    if compiled.shape is None or len(source.shape) != len(compiled.shape):
        return False
    return all(
        one == other or (open_shapes and not isinstance(one, int))
        for one, other in zip(source.shape, compiled.shape, strict=True)
    )


def _shown(value: ValueInfo) -> str:
    shape = "any shape" if value.shape is None else str(list(value.shape))
    return f"{value.dtype} {shape}"[:_SHOWN]
