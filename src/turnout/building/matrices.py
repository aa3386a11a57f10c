"""Weight matrices on their way from a GGUF file into a bundle's data file, by chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnout.building import blocks
from turnout.building.blocks import BlockFormat, BlockRows
from turnout.building.datafile import DataFile, StoredTensor, transposed_chunks
from turnout.building.gguf import GgufTensor
from turnout.errors import GgufError

# Bytes of a source tensor read at a time; float copies of a chunk are up to eight times that.
_CHUNK_BYTES = 2 * 1024 * 1024

Progress = Callable[[int], None]


@dataclass(frozen=True)
class SourceRows:
    """Rows of a matrix [N, K] of a GGUF file.

    `interleaved_head` is the size of a head whose rows are stored in the order of an
    interleaved rotary embedding (pairs side by side) and are read in the order of a split one
    (first halves, then second halves); None leaves the order alone.
    """

    tensor: GgufTensor
    interleaved_head: int | None = None

    @property
    def type(self) -> str:
        """The tensor's type."""
        return self.tensor.type

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        return self.tensor.rows, self.tensor.shape[-1]

    def chunks(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Raw rows, uint8 [rows, bytes a row], in order, a few megabytes at a time."""
        unit = self.interleaved_head or 1
        step = max(unit, _CHUNK_BYTES // self.tensor.row_bytes // unit * unit)
        for start in range(0, self.tensor.rows, step):
            raw = self.tensor.read(start, min(start + step, self.tensor.rows))
            yield raw if self.interleaved_head is None else split_halves(raw, unit)

    def float_chunks(self) -> Iterator[npt.NDArray[np.float32]]:
        """The same rows as float32 [rows, K], dequantized. Raises `GgufError` for no numbers."""
        for raw in self.chunks():
            if self.type in blocks.FLOAT_TYPES:
                values = blocks.float_rows(raw, self.type)
            else:
                values = blocks.dequantize(
                    blocks.block_rows(raw, self.type), blocks.FORMATS[self.type]
                )
            require_finite(self.tensor, values)
            yield values


def split_halves(rows: npt.NDArray[np.uint8], head_size: int) -> npt.NDArray[np.uint8]:
    """Whole rows of heads from interleaved to split rotary order; scales go with their rows."""
    width = rows.shape[1]
    return rows.reshape(-1, head_size // 2, 2, width).swapaxes(1, 2).reshape(-1, width)


def require_finite(tensor: GgufTensor, *values: npt.NDArray[np.float32] | None) -> None:
    """Refuse weights or scales that are infinite or no number: every answer would be empty."""
    for array in values:
        if array is not None and not np.isfinite(array).all():
            raise GgufError(
                f"The tensor {tensor.name} holds values that are no numbers.",
                found="NaN or infinity",
                expected="finite weights and scales",
                where=tensor.name,
                fix="the file is corrupt, or was converted by a faulty tool",
            )


@dataclass(frozen=True)
class SourceVector:
    """A norm or bias of a GGUF file; `interleaved_head` as in `SourceRows`."""

    tensor: GgufTensor
    interleaved_head: int | None = None

    def values(self) -> npt.NDArray[np.float32]:
        """Its values, float32 [N]. Raises `GgufError` for values that are no numbers."""
        values = blocks.float_rows(self.tensor.read(), self.tensor.type).reshape(-1)
        require_finite(self.tensor, values)
        if self.interleaved_head is None:
            return values
        raw = values.view(np.uint8).reshape(-1, values.itemsize)
        return split_halves(raw, self.interleaved_head).reshape(-1).view(np.float32)


@dataclass(frozen=True)
class Use:
    """What a matrix is for: a product with activations, a look-up of rows, or both (tied)."""

    product: bool = True
    lookup: bool = False


PRODUCT, LOOKUP, TIED = Use(), Use(product=False, lookup=True), Use(lookup=True)


@dataclass(frozen=True)
class FloatMatrix:
    """A float32 matrix: stored [K, N] for products only, [N, K] (`by_rows`) for look-ups."""

    values: StoredTensor
    by_rows: bool


@dataclass(frozen=True)
class BlockMatrix:
    """A block-quantized matrix of N rows and K columns.

    `codes` uint8 [N, K/block, block*bits/8]; `scales` float32 [N, K/block]. `mean_offsets`
    float32 [K/block, N] times block *means* are the offsets' part of a product (the block's
    length is multiplied in); `row_offsets` float32 [N, K/block] are those of a look-up. Both
    are None where every offset is zero, and where the matrix has no such use.
    """

    form: BlockFormat
    rows: int
    columns: int
    codes: StoredTensor
    scales: StoredTensor
    mean_offsets: StoredTensor | None
    row_offsets: StoredTensor | None


Matrix = FloatMatrix | BlockMatrix


@dataclass(frozen=True)
class Precision:
    """What `--precision` asks: how a tensor of each type is stored.

    `source` keeps what the file has (float types become float32); `fp32` dequantizes everything;
    `int8` and `int4` round the float matrices of the file to blocks of 32, and keep what is
    quantized already.
    """

    name: str = "source"

    def form_of(self, type_name: str) -> BlockFormat | None:
        """The block format in which a matrix of that type is stored; None for float32."""
        if self.name == "fp32":
            return None
        if type_name in blocks.FLOAT_TYPES:
            return {"int8": _INT8, "int4": _INT4}.get(self.name)
        return blocks.FORMATS[type_name]


_INT8 = BlockFormat(8, 32, affine=False)
_INT4 = BlockFormat(4, 32, affine=False)
PRECISIONS = ("source", "fp32", "int8", "int4")


class MatrixWriter:
    """Writes matrices to a data file; `progress` is told the source bytes of every chunk."""

    def __init__(self, data: DataFile, precision: Precision, progress: Progress) -> None:
        self._data = data
        self._precision = precision
        self._progress = progress

    def write(self, name: str, parts: Sequence[SourceRows], use: Use = PRODUCT) -> Matrix:
        """Stack `parts` below each other and store them as one matrix."""
        form = self._precision.form_of(parts[0].type)
        if form is None:
            return self._write_floats(name, parts, by_rows=use.lookup)
        return self._write_blocks(name, parts, form, use)

    def stacks(self, parts: Sequence[SourceRows]) -> bool:
        """Whether the matrices can be one product: same columns and one storage format.

        A type with offsets stacks with one without: its offsets are zero.
        """
        forms = [self._precision.form_of(part.type) for part in parts]
        kinds = {(form.bits, form.block) if form else None for form in forms}
        return len(kinds) == 1 and len({part.shape[1] for part in parts}) == 1

    def vector(self, name: str, *parts: SourceVector) -> StoredTensor:
        """Norms or biases, joined: float32 [N]."""
        for part in parts:
            self._progress(part.tensor.nbytes)
        return self._data.write(name, np.concatenate([part.values() for part in parts]))

    def table(
        self, name: str, shape: tuple[int, int], chunks: Iterator[npt.NDArray[np.float32]]
    ) -> StoredTensor:
        """A computed float32 matrix, given in chunks of rows."""
        return self._data.stream(name, "float32", shape, chunks)

    def _float_chunks(self, parts: Sequence[SourceRows]) -> Iterator[npt.NDArray[np.float32]]:
        for part in parts:
            for values in part.float_chunks():
                yield values
                self._progress(len(values) * part.tensor.row_bytes)

    def _write_floats(self, name: str, parts: Sequence[SourceRows], by_rows: bool) -> FloatMatrix:
        count, width = sum(part.shape[0] for part in parts), parts[0].shape[1]
        chunks = self._float_chunks(parts)
        shape = (count, width) if by_rows else (width, count)
        if not by_rows:
            chunks = transposed_chunks(chunks, (count, width))
        return FloatMatrix(self._data.stream(f"{name}.weight", "float32", shape, chunks), by_rows)

    def _block_chunks(self, part: SourceRows, form: BlockFormat) -> Iterator[BlockRows]:
        for raw in part.chunks():
            if part.type in blocks.FLOAT_TYPES:
                rows = blocks.quantize(blocks.float_rows(raw, part.type), form)
            else:
                rows = blocks.block_rows(raw, part.type)
            require_finite(part.tensor, rows.scales, rows.offsets)
            yield rows
            self._progress(raw.nbytes)

    def _write_blocks(
        self, name: str, parts: Sequence[SourceRows], form: BlockFormat, use: Use
    ) -> BlockMatrix:
        count, width = sum(part.shape[0] for part in parts), parts[0].shape[1]
        per_row = width // form.block
        affine = any(blocks.FORMATS[p.type].affine for p in parts if p.type in blocks.FORMATS)
        scales = np.empty((count, per_row), np.float32)
        offsets = np.zeros((count, per_row), np.float32) if affine else None

        def packed() -> Iterator[npt.NDArray[np.uint8]]:
            start = 0
            for part in parts:
                for rows in self._block_chunks(part, form):
                    stop = start + len(rows.codes)
                    scales[start:stop] = rows.scales
                    if offsets is not None and rows.offsets is not None:
                        offsets[start:stop] = rows.offsets
                    start = stop
                    yield blocks.pack(rows.codes, form)

        shape = (count, per_row, form.block * form.bits // 8)
        codes = self._data.stream(f"{name}.codes", "uint8", shape, packed())
        mean_offsets = row_offsets = None
        if offsets is not None and use.product:
            # The graph takes block means, which one pooling node gives; times the length, a
            # power of two, they are the sums exactly.
            by_block = (offsets * np.float32(form.block)).T
            mean_offsets = self._data.write(f"{name}.mean_offsets", by_block)
        if offsets is not None and use.lookup:
            row_offsets = self._data.write(f"{name}.row_offsets", offsets)
        return BlockMatrix(
            form=form,
            rows=count,
            columns=width,
            codes=codes,
            scales=self._data.write(f"{name}.scales", scales),
            mean_offsets=mean_offsets,
            row_offsets=row_offsets,
        )
