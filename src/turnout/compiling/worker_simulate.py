"""In a child process: what a compiled graph answers in its EP's simulator, against the CPU EP.

The only place of its kind that loads what was compiled for a device that is not here. The input
is made up: it is the same for both, and the same every time.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.compiling.worker_sessions import message_of, open_session, register
from turnout.errors import CompileError

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

# Whole numbers in an input may be positions or lengths: they are all one of these.
_WHOLE = (0, 1)
_SEED = 0


def simulate_here(argument: dict[str, Any]) -> dict[str, Any]:
    """Run `compiled` in the simulator of `ep`, and `source` on the CPU EP, on made-up input.

    Both are paths of graphs. `libraries` are those of plugins, by EP; `provider_options` are
    those that were compiled with, the target's included; `source_options` and `compiled_options`
    are session options. Returns what `compared` does, or {"reason": why there is nothing to
    compare}. Raises `CompileError` where the compiled graph does not load or run.
    """
    register(argument["libraries"])
    try:
        feeds, wanted = _answered(_reference(argument))
    except Exception as error:  # the runtime's errors have no base of their own
        return {"reason": f"the CPU EP does not run it on made-up input: {message_of(error)}"}
    names = list(wanted)
    try:
        session = open_session(
            Path(argument["compiled"]),
            ep=argument["ep"],
            provider_options=argument["provider_options"],
            session_options=argument.get("compiled_options", {}),
        )
        found = dict(zip(names, session.run(names, feeds), strict=True))
    except Exception as error:
        raise CompileError(
            "What was compiled does not run in the simulator of its device.",
            found=message_of(error),
            where=argument["compiled"],
        ) from error
    return compared(found, wanted)


def compared(found: Arrays, wanted: Arrays) -> dict[str, Any]:
    """{"ratio": how far `found` is from `wanted` in the worst output, "outputs": {name:
    {"difference", "value"}}}, the largest of each.

    The ratio is the root mean square of the differences as a part of that of the values: one
    value that rounds differently does not decide over thousands. Infinite for another shape, and
    for what is no number.
    """
    import numpy as np

    outputs: dict[str, dict[str, float]] = {}
    worst = 0.0
    for name in wanted:
        left = np.asarray(found[name], np.float64)
        right = np.asarray(wanted[name], np.float64)
        if left.shape != right.shape:
            return {"ratio": float("inf"), "outputs": {}}
        noise, signal = (
            float(np.sqrt(np.mean(array * array))) if array.size else 0.0
            for array in (left - right, right)
        )
        outputs[name] = {
            "difference": float(np.max(np.abs(left - right), initial=0.0)),
            "value": float(np.max(np.abs(right), initial=0.0)),
        }
        ratio = noise / signal if signal else (0.0 if noise == 0 else float("inf"))
        worst = max(worst, ratio) if math.isfinite(ratio) else float("inf")
    return {"ratio": worst, "outputs": outputs}


def _reference(argument: dict[str, Any]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # As the graph is written: fused quantized products would round in their own ways.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in argument.get("source_options", {}).items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(
        argument["source"], options, providers=["CPUExecutionProvider"]
    )


def _answered(session: Any) -> tuple[Arrays, Arrays]:
    """Input that the session takes, and its answer. Raises what it says of the last try."""
    names = [value.name for value in session.get_outputs()]
    for whole in _WHOLE:
        try:
            feeds = {value.name: _made_up(value, whole) for value in session.get_inputs()}
            return feeds, dict(zip(names, session.run(names, feeds), strict=True))
        except Exception:
            if whole == _WHOLE[-1]:
                raise
    raise AssertionError


def _made_up(value: Any, whole: int) -> Any:
    """Input for one value: normal numbers, all of a quantized type's range, or `whole`."""
    import numpy as np

    # Each input by its own name, so that the order of inputs does not matter.
    generator = np.random.default_rng([_SEED, *value.name.encode()])
    shape = [size if isinstance(size, int) else 1 for size in value.shape]
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    if kind in {"uint8", "int8", "uint16", "int16"}:
        bounds = np.iinfo(kind)
        return generator.integers(bounds.min, bounds.max, shape, kind, endpoint=True)
    dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
    if dtype in {"float16", "float32", "float64"}:
        return generator.standard_normal(shape).astype(dtype)
    return np.full(shape, whole, dtype)
