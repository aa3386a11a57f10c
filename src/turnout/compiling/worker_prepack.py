"""The child that packs weights for the CPU EP, and the one that proves what came of it.

Kernels of the CPU EP lay out the weights of a product anew, in memory of the session's own:
twice for two sessions, once more for every process. onnxruntime can write that layout into the
file of external data; sessions that find it there map it read-only, as they map any weights.
It writes a file for each graph, so that here all graphs of a job are brought to one file, in
which equal ranges are stored once.

At load onnxruntime packs every weight once more and hashes what comes of it. Where that is the
hash recorded in the graph, the stored bytes must be the same, or loading fails; then they take
the place of the packed ones. Where it is another hash, since another CPU packs in another way,
what was packed stays, in memory of the session's own: right answers, nothing shared. The weights
themselves are believed, as in any data file. (Measured by tests/test_prepack.py.)
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from turnout.building.rewrite import (
    ExternalData,
    PackedWeight,
    Place,
    read_external,
    rewrite_external,
)
from turnout.bundle import INITIALIZER_FOLDER
from turnout.compiling.naming import prepacked_name
from turnout.compiling.prepacked import DATA_FILE, DISABLED
from turnout.errors import CompileError

_PARTS = "parts"
_LEVEL = "graph_optimization_level"
_LOWER_LEVELS = frozenset({"ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"})
_CHUNK = 1 << 20
# Ranges that begin at such an offset can be mapped on their own; Windows can map no others.
_GRANULE = mmap.ALLOCATIONGRANULARITY
# What kernels read with vector instructions begins at a multiple of this, as onnxruntime's own
# allocations do.
_ALIGNMENT = 64
# Smaller tensors stay in the graph, as onnxruntime's optimizers want to read them there.
_INLINE_BYTES = 1024
_PROMPT = 4
_LENGTHS = frozenset({"past_sequence_length", "current_sequence_length", "total_sequence_length"})
_NUMBERS = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


def prepack_here(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Pack the members of a job of kind "prepacked" into the empty folder `staging`.

    `<stage>_prepacked.onnx` for each member, and for all of them one `prepacked.data`. Returns
    `graphs` (by stage), `files`, `unpacked` (stages in which nothing was laid out anew),
    `stored_bytes` of the data file and `packed_bytes` in it, `once_bytes` that are there once
    instead of several times, and `tools`. Raises `CompileError`, also where nothing was packed.
    """
    import onnxruntime as ort

    staging = Path(argument["staging"])
    parts = staging / _PARTS
    graphs: dict[str, str] = {}
    unpacked: list[str] = []
    with _Pool.made(staging / DATA_FILE) as pool:
        for member in argument["members"]:
            parts.mkdir()
            saved = parts / "saved.onnx"
            _save(ort, member, argument["data_folder"], saved)
            if not any(item.packed for item in read_external(saved)):
                unpacked.append(member["stage"])
            name = prepacked_name(member["stage"])
            pool.source = parts
            rewrite_external(saved, staging / name, pool.move)
            graphs[member["stage"]] = name
            shutil.rmtree(parts)
    if len(unpacked) == len(graphs):
        for name in (*graphs.values(), DATA_FILE):
            (staging / name).unlink()
        raise CompileError(
            "Nothing was packed: no weights of these stages are laid out anew by the CPU EP.",
            found=", ".join(graphs),
            fix="leave out --share prepacked: such weights are shared as they are",
        )
    return {
        "graphs": graphs,
        "files": sorted([*graphs.values(), DATA_FILE]),
        "unpacked": unpacked,
        "stored_bytes": pool.end,
        "packed_bytes": pool.packed_bytes,
        "once_bytes": pool.once_bytes,
        "tools": {"onnxruntime": ort.__version__},
    }


def _save(ort: Any, member: Mapping[str, Any], data_folder: str, saved: Path) -> None:
    """Let onnxruntime write a member's graph as it would run it, its weights packed."""
    options = session_options(ort, member["session_options"])
    options.optimized_model_filepath = str(saved)
    for key, value in {
        "session.save_external_prepacked_constant_initializers": "1",
        "session.optimized_model_external_initializers_file_name": f"{saved.name}.data",
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_INLINE_BYTES),
    }.items():
        options.add_session_config_entry(key, value)
    graph = Path(member["graph"])
    if graph.parent != Path(data_folder):
        options.add_session_config_entry(INITIALIZER_FOLDER, data_folder)
    try:
        ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CompileError(
            f"onnxruntime could not pack the weights of the stage {member['stage']!r}.",
            found=str(error).strip().splitlines()[0][:400],
            where=graph,
        ) from error


def session_options(ort: Any, named: Mapping[str, str]) -> Any:
    """onnxruntime's session options for those of a config that matter to packing."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    level = named.get(_LEVEL)
    # What comes above is laid out for one kind of CPU, and done again at load.
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        getattr(levels, level) if level in _LOWER_LEVELS else levels.ORT_ENABLE_EXTENDED
    )
    for key, value in named.items():
        if "." in key and key not in {INITIALIZER_FOLDER, DISABLED}:
            options.add_session_config_entry(key, value)
    return options


class _Pool:
    """A file in which each content is stored once; `source` is where what is moved comes from."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stored: dict[tuple[int, bytes], int] = {}
        self.source = Path()
        self.end = self.packed_bytes = self.once_bytes = 0

    @classmethod
    @contextmanager
    def made(cls, path: Path) -> Iterator[_Pool]:
        """A new file at `path`, flushed when the block ends."""
        with path.open("x+b") as file:
            yield cls(file)
            file.flush()
            os.fsync(file.fileno())

    def move(self, item: ExternalData) -> ExternalData:
        """`item` with its bytes, and those that it was packed into, in this file."""
        with (self.source / item.location).open("rb") as source:
            place = self._keep(source, item.place)
            packed = tuple(
                PackedWeight(
                    weight.key,
                    tuple(self._keep(source, blob, packed=True) for blob in weight.blobs),
                )
                for weight in item.packed
            )
        return ExternalData(item.tensor, DATA_FILE, place, packed)

    def _keep(self, source: BinaryIO, place: Place, *, packed: bool = False) -> Place:
        """Where the bytes are now: written to the end, and taken back if they were there."""
        alignment = _GRANULE if place.length >= _GRANULE else _ALIGNMENT
        start = -(-self.end // alignment) * alignment
        self._file.seek(start)
        digest = hashlib.sha256()
        source.seek(place.offset)
        left = place.length
        while left:
            chunk = source.read(min(left, _CHUNK))
            if not chunk:
                raise CompileError(
                    "onnxruntime wrote fewer bytes than its graph says.",
                    expected=f"{place.length} bytes from offset {place.offset}",
                    where=source.name,
                )
            digest.update(chunk)
            self._file.write(chunk)
            left -= len(chunk)
        key = place.length, digest.digest()
        found = self._stored.get(key)
        if found is not None:
            self._file.truncate(self.end)
            self.once_bytes += place.length
            return Place(found, place.length)
        self._stored[key] = start
        self.end = start + place.length
        self.packed_bytes += place.length if packed else 0
        return Place(start, place.length)


def first_outputs_here(argument: Mapping[str, Any]) -> dict[str, Any]:
    """What the first run of each member gives, from its source graph and from its packed one.

    Both get the same inputs: `roles` names those that onnxruntime-genai makes, by what they are.
    Returns, by stage, `difference` and `largest`: the largest absolute difference between the
    outputs, and the largest output. Raises `CompileError` for what does not run.
    """
    import onnxruntime as ort

    found = {}
    for member in argument["members"]:
        outputs = []
        for graph, folder in (
            (member["graph"], argument["data_folder"]),
            (member["packed"], str(Path(member["packed"]).parent)),
        ):
            options = session_options(ort, member["session_options"])
            # As it is loaded later.
            if _LEVEL not in member["session_options"]:
                options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
            if Path(graph).parent != Path(folder):
                options.add_session_config_entry(INITIALIZER_FOLDER, folder)
            try:
                session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
                outputs.append(session.run(None, _inputs(session.get_inputs(), argument)))
            except Exception as error:
                raise CompileError(
                    f"The stage {member['stage']!r} does not run.",
                    found=str(error).strip().splitlines()[0][:400],
                    where=graph,
                ) from error
        found[member["stage"]] = _difference(*outputs)
    return found


def _inputs(wanted: list[Any], argument: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a first run: a short prompt, nothing in the cache."""
    import numpy as np

    roles = {name: role for role, name in argument["roles"].items()}
    tokens = _tokens(wanted)
    generator = np.random.default_rng(7)
    made: dict[str, Any] = {}
    for value in wanted:
        shape = [_size(dim, tokens) for dim in value.shape]
        kind = _NUMBERS.get(value.type)
        if kind is None:
            raise CompileError(f"An input of type {value.type} cannot be made up.")
        role = roles.get(value.name, "")
        if role == "input_ids":
            made[value.name] = (np.arange(math.prod(shape)) % argument["vocab_size"]).reshape(shape)
        elif role == "attention_mask":
            made[value.name] = np.ones(shape)
        elif role in _LENGTHS:
            made[value.name] = np.full(shape, 0 if "past" in role else tokens)
        elif role == "position_ids":
            made[value.name] = np.broadcast_to(np.arange(shape[-1]), shape)
        elif "past" in value.name or "float" not in value.type:
            made[value.name] = np.zeros(shape)
        else:
            made[value.name] = generator.normal(0, 0.1, shape)
        made[value.name] = made[value.name].astype(kind)
    return made


def _tokens(wanted: list[Any]) -> int:
    """Tokens of the run: what a fixed second dimension says, a few where it is open."""
    for value in wanted:
        fixed = len(value.shape) in {2, 3} and isinstance(value.shape[1], int)
        if fixed and "past" not in value.name:
            return int(value.shape[1])
    return _PROMPT


def _size(dim: Any, tokens: int) -> int:
    if isinstance(dim, int):
        return dim
    name = str(dim).lower()
    if "batch" in name:
        return 1
    return 0 if "past" in name else tokens


def _difference(one: list[Any], other: list[Any]) -> dict[str, float]:
    import numpy as np

    difference = largest = 0.0
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return {"difference": math.inf, "largest": 0.0}
        if a.size and np.array_equal(a, b):
            largest = max(largest, abs(float(a.max())), abs(float(a.min())))
        elif a.size:
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            apart = np.where(same, 0.0, np.abs(x - y))
            # A difference that is none, as of a number and NaN, is as large as can be.
            difference = max(difference, float(np.nan_to_num(apart, nan=math.inf).max()))
            largest = max(largest, float(np.nan_to_num(np.abs(x)).max()))
    return {"difference": difference, "largest": largest}
