"""Ranges of data files that tensors of all graphs use, and where they overlap (code T314)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from turnout.bundle import Bundle
from turnout.bundle.graph import ExternalRange, Initializer
from turnout.checking.file_rules import OVERLAP
from turnout.checking.findings import Finding
from turnout.checking.locating import relative_name

Identity = tuple[int, int]


@dataclass(frozen=True)
class _Range:
    start: int
    end: int
    tensor: Initializer
    graph: str


@dataclass
class Placed:
    """Tensors by the file, as the system knows it, that they are in. Equal ranges count once."""

    _files: dict[Identity, Path] = field(default_factory=dict)
    _ranges: dict[Identity, dict[tuple[int, int], _Range]] = field(default_factory=dict)

    def add(
        self, file: Identity, path: Path, graph: str, tensor: Initializer, place: ExternalRange
    ) -> None:
        """Note that a graph's tensor is at that place of the file."""
        if not tensor.nbytes:
            return
        self._files.setdefault(file, path)
        start, end = place.offset, place.offset + tensor.nbytes
        ranges = self._ranges.setdefault(file, {})
        ranges.setdefault((start, end), _Range(start, end, tensor, graph))

    def overlaps(self, bundle: Bundle) -> Iterator[Finding]:
        """A finding for every two that overlap, and of which none is a part of the other."""
        for file, ranges in self._ranges.items():
            name = relative_name(bundle, self._files[file])
            for one, other in _overlapping(ranges):
                yield OVERLAP.at(
                    name,
                    f"The tensors {_shown(one)} and {_shown(other)} overlap in {name}.",
                    found=f"bytes {one.start} to {one.end}, and {other.start} to {other.end}",
                    expected="ranges apart, or the same",
                    fix="export the graphs again",
                )


def _shown(place: _Range) -> str:
    return f"{place.tensor.name[:200]!r} of {place.graph}"


def _overlapping(ranges: dict[tuple[int, int], _Range]) -> Iterator[tuple[_Range, _Range]]:
    around: list[_Range] = []
    for place in sorted(ranges.values(), key=lambda item: (item.start, -item.end)):
        while around and around[-1].end <= place.start:
            around.pop()
        if around and not _are_rows(place, around[-1]):
            yield around[-1], place
        around.append(place)


def _are_rows(inner: _Range, outer: _Range) -> bool:
    """Whether a tensor is some rows of a larger one, as a head may be of an embedding."""
    small, large = inner.tensor, outer.tensor
    if inner.end > outer.end or small.dtype != large.dtype or not small.shape or not large.shape:
        return False
    if small.shape[1:] != large.shape[1:]:
        return False
    row, rest = divmod(large.nbytes, large.shape[0])
    return not rest and row > 0 and (inner.start - outer.start) % row == 0
