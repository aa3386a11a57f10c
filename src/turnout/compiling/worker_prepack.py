"""The child that packs weights for the CPU EP, and the one that proves what came of it.

Kernels of the CPU EP lay out the weights of a product anew, in memory of the session's own:
twice for two sessions, once more for every process. onnxruntime can write that layout into the
file of external data; sessions that find it there map it read-only, as they map any weights.
It writes a file for each graph, so that here all graphs of a job are brought to one file, in
which equal ranges are stored once.

Whether what is found is what a kernel would make is decided by onnxruntime at load: it packs
each weight, hashes that, and takes the stored blob whose *recorded* hash is the same; the blob
itself is not looked at. Another CPU that packs in another way therefore is safe, and keeps
weights of its own; a damaged blob is not noticed. (Read in `SessionState`, and measured by
tests/test_prepack.py.)
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from turnout.building.rewrite import ExternalData, PackedWeight, Place, rewrite_external
from turnout.building.rewrite import read_external as read_external
from turnout.bundle import INITIALIZER_FOLDER
from turnout.compiling.prepacked import DATA_FILE, DISABLED, artifact_names
from turnout.errors import CompileError

_PARTS = "parts"
_CHUNK = 1 << 20
# Ranges that begin at such an offset can be mapped on their own; Windows can map no others.
_GRANULE = mmap.ALLOCATIONGRANULARITY
# What kernels read with vector instructions begins at a multiple of this, as onnxruntime's own
# allocations do.
_ALIGNMENT = 64
# Smaller tensors stay in the graph, as onnxruntime's optimizers want to read them there.
_INLINE_BYTES = 1024


def prepack_here(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Pack the members of a job of kind "prepacked" into the empty folder `staging`.

    For each member in which something was packed, `<stage>_prepacked.onnx`; for all of them one
    `prepacked.data`. Returns `graphs` (by stage), `files`, `unpacked` (stages in which nothing
    was), `stored_bytes` of the data file and `packed_bytes` of it, `once_bytes` that are there
    once instead of several times, and `tools`. Raises `CompileError` where nothing was packed.
    """
    import onnxruntime as ort

    staging = Path(argument["staging"])
    members = argument["members"]
    names = artifact_names([member["stage"] for member in members])
    parts = staging / _PARTS
    graphs: dict[str, str] = {}
    unpacked: list[str] = []
    with _Pool.made(staging / DATA_FILE) as pool:
        for member in members:
            parts.mkdir()
            saved = parts / "saved.onnx"
            _save(ort, member, argument["data_folder"], saved)
            if any(item.packed for item in read_external(saved)):
                name = names[member["stage"]]
                pool.source = parts
                rewrite_external(saved, staging / name, pool.move)
                graphs[member["stage"]] = name
            else:
                unpacked.append(member["stage"])
            shutil.rmtree(parts)
    if not graphs:
        (staging / DATA_FILE).unlink()
        raise CompileError(
            "Nothing was packed: no weights of these stages are laid out anew by the CPU EP.",
            found=", ".join(member["stage"] for member in members),
            fix="leave out --share prepacked: their weights are shared as they are",
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
    for key, value in named.items():
        if key == "graph_optimization_level":
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, value)
        elif "." in key and key not in {INITIALIZER_FOLDER, DISABLED}:
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
