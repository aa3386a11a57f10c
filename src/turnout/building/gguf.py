"""Reads GGUF files, version 2 and 3, little endian: metadata, and tensors by ranges of rows.

The header is parsed once, in bounded time and memory, whatever the file claims (`gguf_header`).
Arrays of metadata and the data of tensors stay in the file until they are asked for, so a
reader holds little more than the names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from turnout.building.gguf_header import TensorInfo, read_header
from turnout.building.gguf_metadata import GgufArray, Value
from turnout.building.gguf_source import Source
from turnout.errors import GgufError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["GgufArray", "GgufFile", "GgufTensor"]


_T = TypeVar("_T")
# The default of a key that must be there.
REQUIRED: Final = object()
INTEGER_TYPES = ("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64")
FLOAT_TYPES = ("FLOAT32", "FLOAT64")


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF file.

    `shape` is in numpy order (rows first, the reverse of the file's dimensions); `type` is
    the format's name ("Q4_1"), of which `block` values take `block_bytes` bytes; `offset` is
    counted from the start of the file.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    block: int
    block_bytes: int
    _source: Source

    @property
    def rows(self) -> int:
        """The number of rows: the product of all dimensions but the last; 1 for a vector."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return self.shape[-1] // self.block * self.block_bytes

    def read(self, start_row: int = 0, stop_row: int | None = None) -> npt.NDArray[np.uint8]:
        """Rows `start_row` up to `stop_row` (all, if None) as uint8 [rows, row_bytes].

        Only what is asked for is read, into memory of its own. Raises `UsageError` for rows
        that the tensor does not have, and `GgufError` if the file ends or fails meanwhile.
        """
        import numpy as np

        stop = self.rows if stop_row is None else stop_row
        if not 0 <= start_row <= stop <= self.rows:
            raise UsageError(
                f"The tensor {self.name!r} has no rows {start_row} to {stop}.",
                found=f"{start_row}:{stop}",
                expected=f"a range within 0:{self.rows}",
            )
        data = np.empty((stop - start_row, self.row_bytes), np.uint8)
        if data.size:
            offset = self.offset + start_row * self.row_bytes
            self._source.read_into(offset, data.data.cast("B"), f"data of tensor {self.name!r}")
        return data


class GgufFile:
    """An open GGUF file. A context manager; reading from several threads is safe.

    `metadata` maps keys to str, int, float, bool or `GgufArray`; `tensors` maps names to
    `GgufTensor`, in the file's order.
    """

    def __init__(self, source: Source) -> None:
        header = read_header(source)
        self.path = source.path
        self.size = source.size
        self.version = header.version
        self.alignment = header.alignment
        self.metadata: dict[str, Value] = header.metadata
        self.tensors = {name: _tensor(info, source) for name, info in header.tensors.items()}
        self._source = source

    @classmethod
    def open(cls, path: Path | str) -> GgufFile:
        """Open `path` and parse its header.

        Raises `UsageError` if there is no such file, `GgufError` if it is no sound GGUF file,
        and `UnsupportedModelError` if it holds a tensor type that is not handled or is one
        part of several.
        """
        source = Source(Path(path))
        try:
            return cls(source)
        except BaseException:
            source.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; tensors and arrays can no longer be read. Closing twice is safe."""
        self._source.close()

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return self.text("general.architecture")

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: _T) -> str | _T: ...
    def text(self, key: str, default: object = REQUIRED) -> object:
        """The string at `key`, or `default`. Raises `GgufError` if missing or of another type."""
        return self._get(key, default, (str,), "a string")

    @overload
    def flag(self, key: str) -> bool: ...
    @overload
    def flag(self, key: str, default: _T) -> bool | _T: ...
    def flag(self, key: str, default: object = REQUIRED) -> object:
        """The boolean at `key`, or `default`. Raises `GgufError`."""
        return self._get(key, default, (bool,), "a boolean")

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: _T) -> int | _T: ...
    def integer(self, key: str, default: object = REQUIRED) -> object:
        """The integer at `key`, or `default`. Raises `GgufError`."""
        return self._get(key, default, (int,), "an integer")

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: _T) -> float | _T: ...
    def number(self, key: str, default: object = REQUIRED) -> object:
        """The finite number at `key` as a float, or `default`. Raises `GgufError`."""
        value = self._get(key, default, (int, float), "a number")
        if key not in self.metadata:
            return value
        if not math.isfinite(value):
            raise self.wrong(key, value, "a finite number")
        return float(value)

    @overload
    def strings(self, key: str) -> list[str]: ...
    @overload
    def strings(self, key: str, default: _T) -> list[str] | _T: ...
    def strings(self, key: str, default: object = REQUIRED) -> object:
        """The array of strings at `key`, or `default`. Raises `GgufError`."""
        return self._array(key, default, ("STRING",), "an array of strings")

    @overload
    def integers(self, key: str) -> list[int]: ...
    @overload
    def integers(self, key: str, default: _T) -> list[int] | _T: ...
    def integers(self, key: str, default: object = REQUIRED) -> object:
        """The array of integers at `key`, or `default`. Raises `GgufError`."""
        values = self._array(key, default, INTEGER_TYPES, "an array of integers")
        return values.tolist() if key in self.metadata else values

    @overload
    def numbers(self, key: str) -> list[float]: ...
    @overload
    def numbers(self, key: str, default: _T) -> list[float] | _T: ...
    def numbers(self, key: str, default: object = REQUIRED) -> object:
        """The array of finite numbers at `key` as floats, or `default`. Raises `GgufError`."""
        import numpy as np

        values = self._array(key, default, INTEGER_TYPES + FLOAT_TYPES, "an array of numbers")
        if key not in self.metadata:
            return values
        finite = np.isfinite(values)
        if not finite.all():
            index = int(np.argmin(finite))
            raise self.wrong(key, f"{values[index]} at index {index}", "finite numbers")
        return values.astype(np.float64).tolist()

    def wrong(self, key: str, found: object, expected: str, fix: str | None = None) -> GgufError:
        """The error to raise for a metadata value that makes no sense."""
        return GgufError(
            f"The metadata of {self.path.name} is wrong: {key!r} is not {expected}.",
            found=found,
            expected=expected,
            where=f"{self.path}, metadata key {key!r}",
            fix=fix or "the file is corrupt, or was converted by a faulty tool",
        )

    def _get(self, key: str, default: object, kinds: tuple[type, ...], expected: str) -> Any:
        value = self.metadata.get(key, default)
        if value is REQUIRED:
            raise GgufError(
                f"{self.path.name} lacks the metadata key {key!r}.",
                expected=expected,
                where=self.path,
                fix="the file was converted by a faulty or very old tool; get another one",
            )
        # A bool is an int to Python, and not to the format.
        if key in self.metadata and (
            not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        ):
            raise self.wrong(key, _describe(value), expected)
        return value

    def _array(self, key: str, default: object, types: tuple[str, ...], expected: str) -> Any:
        value = self._get(key, default, (GgufArray,), expected)
        if key not in self.metadata:
            return default
        if value.type not in types:
            raise self.wrong(key, _describe(value), expected)
        return value.read()


def _describe(value: object) -> str:
    if isinstance(value, GgufArray):
        return f"an array of {value.count} values of type {value.type}"
    return f"{value!r:.100}"


def _tensor(info: TensorInfo, source: Source) -> GgufTensor:
    kind = info.type
    return GgufTensor(
        name=info.name,
        type=kind.name,
        shape=tuple(reversed(info.dims)),
        offset=info.offset,
        nbytes=info.nbytes,
        block=kind.block,
        block_bytes=kind.nbytes,
        _source=source,
    )
