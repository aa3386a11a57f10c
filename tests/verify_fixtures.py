"""Bundles whose logits come out in different ways, and processes of routes that go wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from turnout.bundle import COMPILED
from turnout.files import STAGING_PREFIX
from turnout.processes import Heard
from turnout.verify.child import Serving

LAST = "lm_head/last/Unsqueeze/output_0"
STATES = "output_norm/SkipSimplifiedLayerNormalization/output_0"


def with_every_position(bundle: Path) -> Path:
    """A flat bundle of `turnout build` whose head gives logits of all positions, as others do."""

    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.input[:] = [STATES if name == LAST else name for name in node.input]
        dim = _logits(graph).type.tensor_type.shape.dim[1]
        dim.Clear()
        dim.dim_param = "sequence_length"

    return rewritten(bundle, change)


def with_logits_of(bundle: Path, kind: int) -> Path:
    """The bundle with logits of another type."""

    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.output[:] = ["logits32" if name == "logits" else name for name in node.output]
        graph.node.append(helper.make_node("Cast", ["logits32"], ["logits"], to=kind))
        _logits(graph).type.tensor_type.elem_type = kind

    return rewritten(bundle, change)


def with_a_wrong_number(bundle: Path, token: int, number: float) -> Path:
    """The bundle with that number in the place of a token's logit, at every position."""

    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.output[:] = ["right" if name == "logits" else name for name in node.output]
        size = _logits(graph).type.tensor_type.shape.dim[2].dim_value
        here = np.zeros(size, dtype=bool)
        here[token] = True
        graph.initializer.append(onnx.numpy_helper.from_array(here, "here"))
        wrong = onnx.numpy_helper.from_array(np.array(number, np.float32), "wrong")
        graph.initializer.append(wrong)
        graph.node.append(helper.make_node("Where", ["here", "wrong", "right"], ["logits"]))

    return rewritten(bundle, change)


def with_nonsense_beyond(bundle: Path, tokens: int) -> Path:
    """The bundle with logits turned around wherever more tokens than that were computed."""

    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.output[:] = ["right" if name == "logits" else name for name in node.output]
        limit = onnx.numpy_helper.from_array(np.array([tokens], np.int64), "limit")
        graph.initializer.append(limit)
        graph.node.extend(
            [
                helper.make_node("Shape", ["attention_mask"], ["computed"], start=1, end=2),
                helper.make_node("Greater", ["computed", "limit"], ["beyond"]),
                helper.make_node("Neg", ["right"], ["turned"]),
                helper.make_node("Where", ["beyond", "turned", "right"], ["logits"]),
            ]
        )

    return rewritten(bundle, change)


def with_noise(bundle: Path, scale: float) -> Path:
    """The bundle with weights that are off by as much of what they are, at random, as if they had
    been quantized anew. Of the file's floats, all but the smallest are weights.
    """
    data = bundle / "model.data"
    weights = np.frombuffer(data.read_bytes(), dtype=np.float32).copy()
    noise = np.random.default_rng(5).normal(0, scale, weights.size).astype(np.float32)
    data.write_bytes((weights * (1 + noise)).tobytes())
    return bundle


def files_near(bundle: Path) -> set[Path]:
    """What is in the bundle and beside it, but for derived bundles, which are meant to stay."""
    stays = bundle / COMPILED / "routes"
    near = {*bundle.rglob("*"), *bundle.parent.iterdir()}
    return {
        path
        for path in near - {stays, stays.parent}
        if stays not in path.parents or path.name.startswith(STAGING_PREFIX)
    }


def named_scores(graph: onnx.GraphProto) -> None:
    """Gives logits another name."""
    for node in graph.node:
        node.output[:] = ["scores" if name == "logits" else name for name in node.output]
    _logits(graph).name = "scores"


def rewritten(bundle: Path, change: Callable[[onnx.GraphProto], None]) -> Path:
    path = bundle / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())
    return bundle


def _logits(graph: onnx.GraphProto) -> onnx.ValueInfoProto:
    return next(output for output in graph.output if output.name == "logits")


HALF, BRAIN = TensorProto.FLOAT16, TensorProto.BFLOAT16


class Faulty(Serving):
    """Serves, until it is time for the fault."""

    # Questions that are answered before it.
    before = 2

    def __call__(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        if question["do"] == "read":
            self.before -= 1
            if self.before < 0:
                self.asked(tell)
        return super().__call__(question, tell)

    def asked(self, tell: Heard) -> None:
        pass


class Crashing(Faulty):
    def asked(self, tell: Heard) -> None:
        os.write(2, b"the native library says why\n")
        os.kill(os.getpid(), signal.SIGSEGV)


class CrashingLate(Crashing):
    before = 4


class Hanging(Faulty):
    def asked(self, tell: Heard) -> None:
        time.sleep(600)


class Failing(Faulty):
    before = 0

    def asked(self, tell: Heard) -> None:
        raise RuntimeError("The native library refuses.")


class Interrupting(Faulty):
    """Sends its parent what Ctrl-C does, and is then too slow to answer."""

    def asked(self, tell: Heard) -> None:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)
