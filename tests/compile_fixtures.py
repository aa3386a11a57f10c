"""For tests of compiling: small static bundles, jobs, children that go wrong, and forged artifacts.

A toy is a pipeline of two stages, `context` and `iterator`: y = relu(x W) V with the same W and V,
for 8 rows and for 1, all shapes fixed as an NPU wants them. onnxruntime-genai does not load it;
onnxruntime does. What it answers is computed here with numpy.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bundle_fixtures import read_config, write_config
from turnout.bundle import INITIALIZER_FOLDER, Bundle
from turnout.compiling.jobs import Job, Member

OPENVINO = "OpenVINOExecutionProvider"
# What makes OpenVINO's arithmetic that of float32, whatever the processor offers.
EXACT = {"device_type": "CPU", "load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'}
ROWS = {"context": 8, "iterator": 1}
SIZE = 64
DATA = "weights.data"
# Between the two weights, so that an offset is more than a length.
GAP = 64
HERE = Path(__file__).stem


@dataclass(frozen=True)
class Toy:
    """A static bundle and the arithmetic of its graphs."""

    folder: Path
    w: np.ndarray[Any, Any]
    v: np.ndarray[Any, Any]

    @property
    def bundle(self) -> Bundle:
        """Opened anew."""
        return Bundle.open(self.folder)

    def inputs(self, stage: str) -> np.ndarray[Any, Any]:
        """Some numbers for a stage."""
        return np.random.default_rng(3).normal(size=(ROWS[stage], SIZE)).astype(np.float32)

    def answer(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What every stage makes of `x`."""
        return np.maximum(x @ self.w, 0) @ self.v


def make_toy(
    folder: Path,
    *,
    locations: tuple[str, str] = (DATA, DATA),
    inline: bool = False,
    quantized: bool = False,
    seed: int = 5,
) -> Toy:
    """A toy whose weights are in `locations`, relative to the graphs.

    `quantized`: its weights are int8 behind DequantizeLinear, and its inputs go through a pair.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    w, v = (rng.normal(size=(SIZE, SIZE)).astype(np.float32) for _ in range(2))
    if quantized:
        w, v = (rng.integers(-5, 6, (SIZE, SIZE)).astype(np.float32) for _ in range(2))
    kind = np.int8 if quantized else np.float32
    protos = []
    for name, array, location in zip("WV", (w, v), locations, strict=True):
        stored = array.astype(kind)
        if inline:
            protos.append(onnx.numpy_helper.from_array(stored, name))
        else:
            protos.append(_external(folder, name, stored, location))
    for stage, rows in ROWS.items():
        nodes, more = _quantized_nodes() if quantized else (_nodes(), [])
        save_graph(
            folder / f"{stage}.onnx",
            nodes,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, SIZE])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, SIZE])],
            [*protos, *more],
        )
    write_toy_config(folder)
    return Toy(folder, w, v)


def write_toy_config(folder: Path, stages: Sequence[str] = tuple(ROWS)) -> None:
    """The config of a pipeline of these stages, each `<stage>.onnx` on OpenVINO."""
    options = {"provider_options": [{"OpenVINO": dict(EXACT)}]}
    pipeline = {
        stage: {
            "filename": f"{stage}.onnx",
            "inputs": ["x"],
            "outputs": ["y"],
            "run_on_prompt": stage != "iterator",
            "run_on_token_gen": stage != "context",
            "session_options": options,
        }
        for stage in stages
    }
    model = {
        "type": "decoder-pipeline",
        "context_length": 16,
        "vocab_size": 16,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "decoder": {"pipeline": [pipeline]},
    }
    write_config(folder, {"model": model, "search": {"max_length": 16}})


def save_graph(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> Path:
    """Write a model of these parts."""
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


# -- jobs ----------------------------------------------------------------------------------


def job_of(
    folder: Path,
    stages: Sequence[str] = tuple(ROWS),
    *,
    shared: bool = False,
    ep: str = OPENVINO,
    provider_options: Mapping[str, str] | None = None,
    session_options: Mapping[str, str] | None = None,
    target: Mapping[str, str] | None = None,
) -> Job:
    """A job of stages of the bundle in `folder`."""
    bundle = Bundle.open(folder.resolve())
    members = [
        Member(
            stage=name,
            graph=bundle.graph_path(bundle.stage(name)).resolve(),
            filename=bundle.stage(name).filename or "",
            session_options=dict(session_options or {}),
        )
        for name in stages
    ]
    return Job(
        kind="context",
        ep=ep,
        members=tuple(members),
        data_folder=bundle.data_folder(bundle.stage(stages[0])).resolve(),
        provider_options=dict(EXACT if provider_options is None else provider_options),
        shared=shared,
        target=dict(target or {}),
    )


def libraries(ep: str = OPENVINO) -> dict[str, str]:
    """The plugin library of an EP; the test is skipped where it is not installed."""
    from turnout.machine import plugins

    found = {plugin.name: plugin.library for plugin in plugins.find() if plugin.problem is None}
    if found.get(ep) is None:
        pytest.skip(f"the plugin of {ep} is not installed")
    return {ep: str(found[ep])}


def compile_job(job: Job, staging: Path, *, timeout: float = 240) -> dict[str, Any]:
    """Compile a job in a child process, into `staging`, which is made; the child's answer."""
    from turnout.processes import call

    staging.mkdir(parents=True)
    argument = job.argument(staging, libraries(job.ep))
    answer: dict[str, Any] = call(
        "turnout.compiling.worker:compile_here", argument, timeout=timeout, doing="compiling"
    )
    return answer


# -- loading what was compiled --------------------------------------------------------------


def open_compiled(graph: Path, data_folder: Path | None, *, shared: bool) -> Any:
    """A session of a compiled graph in this process, as a derived bundle loads it."""
    import onnxruntime

    from turnout.machine import plugins

    plugins.register([OPENVINO])
    options = onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == OPENVINO][:1]
    options.add_provider_for_devices(devices, {"load_config": EXACT["load_config"]})
    options.add_session_config_entry("ep.context_file_path", str(graph))
    if data_folder is not None:
        options.add_session_config_entry(INITIALIZER_FOLDER, str(data_folder))
    if shared:
        options.add_session_config_entry("ep.share_ep_contexts", "1")
    return onnxruntime.InferenceSession(str(graph), options, enable_fallback=0)


def as_derived(
    source: Path, compiled: Path, target: Path, graphs: Mapping[str, str], *, shared: bool
) -> Path:
    """A folder that onnxruntime-genai loads: compiled graphs by stage, and no weights.

    Weights are found in the source, relative to it; other stages are copied.
    """
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix in {".onnx", ".json"}:
            shutil.copyfile(path, target / path.name)
    for path in compiled.iterdir():
        shutil.copyfile(path, target / path.name)
    config = read_config(target)
    decoder = config["model"]["decoder"]
    entries = decoder.get("pipeline", [{"decoder": decoder}])
    stages = {name: stage for entry in entries for name, stage in entry.items()}
    folder = Path(os.path.relpath(source, target)).as_posix()
    for name, stage in stages.items():
        options = stage.setdefault("session_options", {"provider_options": []})
        options[INITIALIZER_FOLDER] = folder
        if name not in graphs:
            continue
        stage["filename"] = graphs[name]
        options["provider_options"] = [{"OpenVINO": dict(EXACT)}]
        options["ep.context_file_path"] = graphs[name]
        if shared:
            options["ep.share_ep_contexts"] = "1"
    write_config(target, config)
    return target


# -- children that go wrong: called by name, instead of the worker ----------------------------


def _as_the_worker(argument: dict[str, Any]) -> dict[str, Any]:
    from turnout.compiling.worker import compile_here

    return compile_here(argument)


def hang(argument: dict[str, Any]) -> None:
    """Never answers."""
    time.sleep(600)


def crash_after(argument: dict[str, Any]) -> None:
    """Writes everything, and crashes before it answers."""
    _as_the_worker(argument)
    os.kill(os.getpid(), signal.SIGSEGV)


def crash_halfway(argument: dict[str, Any]) -> None:
    """Writes everything, cuts every binary in half, and crashes."""
    _as_the_worker(argument)
    for path in Path(argument["staging"]).glob("*.bin"):
        os.truncate(path, path.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGSEGV)


def write_nothing(argument: dict[str, Any]) -> dict[str, Any]:
    """Says that all went well."""
    return {"files": [], "tools": {}, "seconds": {}}


def compile_nothing(argument: dict[str, Any]) -> dict[str, Any]:
    """Leaves the graphs as they were, under the names of compiled ones."""
    from turnout.compiling.naming import context_name

    for member in argument["members"]:
        name = context_name(member["stage"], argument["ep"])
        shutil.copyfile(member["graph"], Path(argument["staging"]) / name)
    return write_nothing(argument)


def as_another_ep(argument: dict[str, Any]) -> dict[str, Any]:
    """Compiles, and signs it with another EP's name."""
    answer = _as_the_worker(argument)
    for path in Path(argument["staging"]).glob("*_ctx.onnx"):
        change_contexts(path, source=b"QNNExecutionProvider")
    return answer


# -- forged artifacts -----------------------------------------------------------------------


def context_node(name: str, **attributes: Any) -> onnx.NodeProto:
    """An `EPContext` node of x and y."""
    known = {"source": OPENVINO, "embed_mode": 0, "main_context": 1, **attributes}
    return helper.make_node("EPContext", ["x"], ["y"], name=name, domain="com.microsoft", **known)


def save_context(path: Path, *nodes: onnx.NodeProto, rows: int = 8, **changes: Any) -> Path:
    """A compiled graph with the interface of the toy's stage of that many rows."""
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, SIZE]) for name in "xy"
    }
    return save_graph(
        path,
        nodes,
        changes.get("inputs", [values["x"]]),
        changes.get("outputs", [values["y"]]),
        changes.get("initializers", []),
    )


def change_contexts(path: Path, **values: bytes | int) -> None:
    """Change attributes of every `EPContext` node of a graph."""
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "EPContext" else ():
            value = values.get(attribute.name)
            if isinstance(value, bytes):
                attribute.s = value
            elif value is not None:
                attribute.i = value
    path.write_bytes(model.SerializeToString())


def bson(document: Mapping[str, Any]) -> bytes:
    """A BSON document of documents, texts, and numbers of 64 bits; bytes stay as they are."""
    body = []
    for name, value in document.items():
        key = name.encode() + b"\0"
        if isinstance(value, bytes):
            body.append(value)
        elif isinstance(value, Mapping):
            body.append(b"\x03" + key + bson(value))
        elif isinstance(value, str):
            text = value.encode() + b"\0"
            body.append(b"\x02" + key + len(text).to_bytes(4, "little") + text)
        else:
            body.append(b"\x12" + key + value.to_bytes(8, "little", signed=True))
    inside = b"".join(body)
    return (len(inside) + 5).to_bytes(4, "little") + inside + b"\0"


def forge_binary(
    parts: Mapping[str, tuple[int, int]],
    weights: Mapping[str, tuple[str, int, int]] | None = None,
    *,
    size: int | None = None,
    header: tuple[int, int, int, int] | None = None,
    change: Callable[[dict[str, Any]], object] = lambda document: None,
) -> bytes:
    """A binary as OpenVINO's plugin writes it: parts are (offset, size), and so are weights, behind
    their location. `size` is the file's; `header` its version, size, and the description's place.
    """
    document: dict[str, Any] = {
        "blob_metadata_map": {
            name: {"data_offset": offset, "size": length}
            for name, (offset, length) in parts.items()
        },
        "producer": "a test",
        "version": "1.1.0",
        "weights_metadata_map": {
            name: {"data_offset": offset, "location": location, "size": length}
            for name, (location, offset, length) in (weights or {}).items()
        },
    }
    change(document)
    described = bson(document)
    numbers = header or (1, 40, 40, len(described))
    data = b"OVEP_BIN" + b"".join(number.to_bytes(8, "little") for number in numbers) + described
    end = max([sum(place) for place in parts.values()], default=len(data))
    return data.ljust(-(-end // 65536) * 65536 if size is None else size, b"\0")[:size]


def _external(
    folder: Path, name: str, array: np.ndarray[Any, Any], location: str
) -> onnx.TensorProto:
    path = folder / location
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        offset = file.tell()
        file.write(array.tobytes() + bytes(GAP))
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    proto = TensorProto(name=name, data_type=kind, dims=list(array.shape))
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
        proto.external_data.add(key=key, value=str(value))
    return proto


def _nodes() -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "V"], ["y"]),
    ]


def _quantized_nodes() -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    one = onnx.numpy_helper.from_array(np.array(1, np.float32), "one")
    scale = onnx.numpy_helper.from_array(np.array(1 / 256, np.float32), "scale")
    zero = onnx.numpy_helper.from_array(np.array(0, np.int16), "zero")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["W", "one"], ["wd"]),
        helper.make_node("DequantizeLinear", ["V", "one"], ["vd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "vd"], ["y"]),
    ]
    return nodes, [one, scale, zero]
