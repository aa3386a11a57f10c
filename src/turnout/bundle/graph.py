"""`GraphFile`: the header of an ONNX file, read without its weights."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turnout.bundle.onnxheader import HeaderReader, InputsReader, ValueInfo
from turnout.bundle.onnxnames import Names
from turnout.bundle.onnxnodes import EpContext, Product
from turnout.bundle.onnxtensors import ELEMENT_TYPES, ExternalRange, Initializer
from turnout.bundle.protobuf import Walker
from turnout.errors import GraphError

__all__ = [
    "ELEMENT_TYPES",
    "EpContext",
    "ExternalRange",
    "GraphFile",
    "Initializer",
    "Names",
    "Product",
    "ValueInfo",
]


@dataclass(frozen=True, slots=True)
class GraphFile:
    """What the header of an ONNX file says. `file_bytes` is the size of the file itself.

    `ir_version` is None where it is missing. `products` are the different kinds of products with
    quantized weights in it, `functions` the domains of the functions that it defines itself.
    `evicts`: whether its attention keeps a window of its caches alone, and drops what is older.
    `reads` are the inputs and constants of the main graph that a node or an output reads, and
    `names` those that do not fit. `compatibility` is what each EP (by name) noted of the devices
    that it compiled the graph for.
    """

    path: Path
    file_bytes: int
    ir_version: int | None
    producer: str
    opsets: Mapping[str, int]
    name: str
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    initializers: tuple[Initializer, ...]
    ops: Mapping[tuple[str, str], int]
    ep_contexts: tuple[EpContext, ...]
    products: frozenset[Product]
    evicts: bool
    functions: frozenset[str]
    reads: frozenset[str]
    names: Names
    compatibility: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | str) -> GraphFile:
        """Read the header of the ONNX file at `path`, stepping over every payload.

        Raises `GraphError` naming the file and, where it is malformed, the byte.
        """
        with _walked(Path(path)) as walker:
            return _read(walker)

    @property
    def node_count(self) -> int:
        """Nodes of the graph and of the graphs inside it."""
        return sum(self.ops.values())

    def is_read(self, tensor: Initializer) -> bool:
        """Whether something may read that constant; of graphs inside the main one all are."""
        return tensor.depth > 0 or tensor.origin == "sparse" or tensor.name in self.reads

    @property
    def external_files(self) -> tuple[str, ...]:
        """Every external location that it names, sorted."""
        found = {item.external.location for item in self.initializers if item.external}
        return tuple(sorted(found))


def read_inputs(path: Path) -> tuple[ValueInfo, ...]:
    """The inputs of the ONNX file at `path`, stepping over nodes and constants as well.

    Takes a fifth of the time that its whole header does. Raises `GraphError`.
    """
    with _walked(path) as walker:
        reader = InputsReader(walker)
        reader.model()
        return tuple(reader.inputs)


@contextlib.contextmanager
def _walked(path: Path) -> Iterator[Walker]:
    descriptor, size = _open(path)
    try:
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            _refuse_other_formats(file.read(64), path)
            yield Walker(file, size, path)
    except OSError as error:
        raise GraphError(f"Cannot read {path}: {error.strerror or error}.", where=path) from error


def _open(path: Path) -> tuple[int, int]:
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError as error:
        raise GraphError(
            f"{path} is missing.", where=path, fix="fetch or build the bundle again"
        ) from error
    except OSError as error:
        raise GraphError(f"Cannot read {path}: {error.strerror or error}.", where=path) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise GraphError(f"{path} is no regular file.", expected="an ONNX file", where=path)
    return descriptor, status.st_size


def _refuse_other_formats(start: bytes, path: Path) -> None:
    known = [
        (
            b"version https://git-lfs",
            0,
            "a Git LFS pointer, not the file itself",
            "run `git lfs pull`",
        ),
        (b"ORTM", 4, "a file in ORT format", "use the .onnx file that it was made from"),
        (b"GGUF", 0, "a GGUF file", "make a bundle of it with `turnout build`"),
        (b"PK\x03\x04", 0, "a ZIP archive", "unpack it"),
        (b"<", 0, "HTML or XML", "fetch the file again; the download was a web page"),
    ]
    if not start:
        raise GraphError(f"{path} is empty.", expected="an ONNX file", where=path)
    for magic, offset, found, fix in known:
        if start[offset:].startswith(magic):
            raise GraphError(
                f"{path} is not an ONNX file.", found=found, expected="ONNX", where=path, fix=fix
            )


def _read(walker: Walker) -> GraphFile:
    reader = HeaderReader(walker)
    reader.model()
    return GraphFile(
        path=walker.where,
        file_bytes=walker.size,
        ir_version=reader.ir_version,
        producer=reader.producer,
        opsets=reader.opsets,
        name=reader.name,
        inputs=tuple(reader.inputs),
        outputs=tuple(reader.outputs),
        initializers=tuple(reader.initializers),
        ops=reader.ops,
        ep_contexts=tuple(reader.ep_contexts),
        products=frozenset(reader.products),
        compatibility=reader.compatibility,
        evicts=reader.evicts,
        functions=frozenset(reader.functions),
        reads=reader.reads,
        names=reader.names,
    )
