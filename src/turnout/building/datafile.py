"""The external weight file of a bundle: tensors appended one by one, each remembered by its range.

Every stage of a bundle points into one such file, so a tensor that two stages use (the prefill
and the decode stage, or a tied embedding and output head) is stored once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

# Where a tensor may start. onnxruntime maps external data by pages: tensors large enough to be
# worth mapping start on a page of their own, small ones on a cache line.
_PAGE = 4096
_LINE = 64
_PAGE_WORTHY = 65536


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in the data file: numpy dtype name, shape, and its range in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Its length in the file."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def viewed(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """The same bytes under another name and shape of equal size."""
        other = replace(self, name=name, shape=shape)
        if other.nbytes != self.nbytes:
            raise AssertionError(f"{shape} is not a view of {self}")
        return other


class DataFile:
    """Appends tensors to `path`. A context manager; tensors can be streamed in chunks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")

    @property
    def name(self) -> str:
        """The file's name, as graphs beside it refer to it."""
        return self.path.name

    def __enter__(self) -> DataFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, name: str, array: npt.NDArray[Any]) -> StoredTensor:
        """Append a whole tensor."""
        return self.stream(name, array.dtype.name, array.shape, [array])

    def stream(
        self, name: str, dtype: str, shape: tuple[int, ...], chunks: Iterable[npt.NDArray[Any]]
    ) -> StoredTensor:
        """Append a tensor given in consecutive chunks, little endian as ONNX stores it."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        tensor = StoredTensor(name, dtype, shape, self._align(nbytes))
        stored = np.dtype(dtype).newbyteorder("<")
        for chunk in chunks:
            self._file.write(np.ascontiguousarray(chunk, dtype=stored).data)
        if self._file.tell() != tensor.offset + nbytes:
            raise AssertionError(f"{name}: chunks do not add up to {shape} of {dtype}")
        return tensor

    def _align(self, nbytes: int) -> int:
        step = _PAGE if nbytes >= _PAGE_WORTHY else _LINE
        position = self._file.tell()
        offset = -(-position // step) * step
        self._file.write(b"\0" * (offset - position))
        return offset


def transposed_chunks(
    rows: Iterable[npt.NDArray[np.float32]], shape: tuple[int, int]
) -> Iterator[npt.NDArray[np.float32]]:
    """Row chunks of a [N, K] matrix as one chunk [K, N].

    Holds the whole matrix: a transpose has no smaller form that can be appended.
    """
    count, width = shape
    whole = np.empty((width, count), np.float32)
    start = 0
    for chunk in rows:
        whole[:, start : start + len(chunk)] = chunk.T
        start += len(chunk)
    yield whole
