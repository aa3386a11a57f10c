"""What the stages of a bundle share, could share, and store twice: by content, pair by pair.

Identical ranges of files are found from the headers alone (`turnout.bundle.weights`); this reads
the weights besides, as far as two tensors could be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from turnout.bundle.bundle import Bundle
from turnout.bundle.contents import (
    HashRange,
    StoredTensor,
    equal_graphs,
    sha256_range,
    stored_tensors,
)

Place = tuple[str, int, int]  # file, offset, length
# Of ranges over one place; an untrusted graph may hold a million of them.
_MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Amount:
    """So many tensors, and their bytes."""

    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class NamePair:
    """A tensor of each of two stages, by name, and the bytes in question."""

    one: str
    other: str
    nbytes: int


@dataclass(frozen=True)
class PairContents:
    """Two stages, compared by the bytes of their tensors.

    `same_graph`: both compute the same from the same weights. `equal` tensors of the one have
    their content in the other too, `twice` of them in another place only. `conflicts` have one
    name and different contents, `renamed` one content and no name in common; `overlapping` are
    ranges of one file that are not the same range. `only` are the tensors of each stage whose
    content the other lacks.
    """

    stages: tuple[str, str]
    same_graph: bool
    equal: Amount
    twice: Amount
    only: tuple[Amount, Amount]
    conflicts: tuple[NamePair, ...]
    renamed: tuple[NamePair, ...]
    overlapping: tuple[NamePair, ...]


@dataclass(frozen=True)
class SharedContents:
    """Every pair of stages with weights; `twice` is what the bundle stores more than once."""

    pairs: tuple[PairContents, ...]
    twice: Amount


def compare_contents(bundle: Bundle, hash_range: HashRange = sha256_range) -> SharedContents:
    """Compare every two stages of `bundle`. Raises `GraphError` for what cannot be read."""
    stages = [stage for stage in bundle.stages if stage.filename]
    tensors = {stage.name: stored_tensors(bundle, stage) for stage in stages}
    contents = _Contents([item for found in tensors.values() for item in found], hash_range)
    pairs = [
        _pair(
            (one.name, other.name),
            equal_graphs(bundle, one, other, hash_range),
            tensors[one.name],
            tensors[other.name],
            contents,
        )
        for one, other in combinations(stages, 2)
        if tensors[one.name] and tensors[other.name]
    ]
    return SharedContents(tuple(pairs), contents.twice())


class _Contents:
    """What the bytes of each tensor are; those in the only place of their length are not read."""

    def __init__(self, tensors: Iterable[StoredTensor], hash_range: HashRange) -> None:
        self._tensors = list(tensors)
        places: dict[tuple[int, bool], set[Place]] = {}
        for item in self._tensors:
            places.setdefault((item.length, item.typed), set()).add(place_of(item))
        self._lone = {key for key, found in places.items() if len(found) == 1}
        self._hash_range = hash_range
        self._known: dict[Place, str] = {}

    def of(self, item: StoredTensor) -> str:
        """A name for the bytes. Shapes do not count: a tied head has another one."""
        place = place_of(item)
        if (item.length, item.typed) in self._lone:
            return f"{place}"
        if place not in self._known:
            payload = self._hash_range(item.path, item.offset, item.length)
            # Numbers that stand in the graph in a form of their own depend on their type.
            self._known[place] = f"{item.dtype} {payload}" if item.typed else payload
        return self._known[place]

    def twice(self) -> Amount:
        """Places whose content is in an earlier place already."""
        places: dict[str, set[Place]] = {}
        for item in self._tensors:
            places.setdefault(self.of(item), set()).add(place_of(item))
        sizes = {self.of(item): item.nbytes for item in self._tensors}
        return Amount(
            sum(len(found) - 1 for found in places.values()),
            sum((len(found) - 1) * sizes[content] for content, found in places.items()),
        )


def place_of(item: StoredTensor) -> Place:
    """Where a tensor's bytes are; links to one file are one file."""
    return (str(item.path.resolve()), item.offset, item.length)


def _pair(
    names: tuple[str, str],
    same_graph: bool,
    one: tuple[StoredTensor, ...],
    other: tuple[StoredTensor, ...],
    contents: _Contents,
) -> PairContents:
    first, second = _by_content(one, contents), _by_content(other, contents)
    equal = [items for content, items in first.items() if content in second]
    twice = [
        items
        for content, items in first.items()
        if content in second and not _places(items) & _places(second[content])
    ]
    return PairContents(
        stages=names,
        same_graph=same_graph,
        equal=_amount(equal),
        twice=_amount(twice),
        only=(
            _amount(items for content, items in first.items() if content not in second),
            _amount(items for content, items in second.items() if content not in first),
        ),
        conflicts=_largest(_conflicts(one, other, contents)),
        renamed=_largest(_renamed(first, second)),
        overlapping=_largest(_overlapping(one, other)),
    )


def _by_content(
    tensors: tuple[StoredTensor, ...], contents: _Contents
) -> dict[str, list[StoredTensor]]:
    found: dict[str, list[StoredTensor]] = {}
    for item in tensors:
        found.setdefault(contents.of(item), []).append(item)
    return found


def _places(items: Iterable[StoredTensor]) -> set[Place]:
    return {place_of(item) for item in items}


def _amount(groups: Iterable[list[StoredTensor]]) -> Amount:
    sizes = [items[0].nbytes for items in groups]
    return Amount(len(sizes), sum(sizes))


def _largest(pairs: Iterable[NamePair]) -> tuple[NamePair, ...]:
    return tuple(sorted(pairs, key=lambda pair: -pair.nbytes))


def _conflicts(
    one: tuple[StoredTensor, ...], other: tuple[StoredTensor, ...], contents: _Contents
) -> Iterator[NamePair]:
    known = {item.name: item for item in one if item.name}
    for item in other:
        same = known.get(item.name)
        if same is not None and contents.of(same) != contents.of(item):
            yield NamePair(item.name, item.name, max(same.nbytes, item.nbytes))


def _renamed(
    first: dict[str, list[StoredTensor]], second: dict[str, list[StoredTensor]]
) -> Iterator[NamePair]:
    for content in first.keys() & second.keys():
        names = {item.name for item in first[content]}, {item.name for item in second[content]}
        if not names[0] & names[1]:
            yield NamePair(min(names[0]), min(names[1]), first[content][0].nbytes)


def _overlapping(
    one: tuple[StoredTensor, ...], other: tuple[StoredTensor, ...]
) -> Iterator[NamePair]:
    """Ranges of both stages that have bytes in common and are not the same."""
    ranges = [(*place_of(item), item.name, side) for side in (0, 1) for item in (one, other)[side]]
    ranges.sort(key=lambda row: (row[0], row[1]))
    active: list[tuple[str, int, int, str, int]] = []
    for row in ranges:
        file, offset, length, name, side = row
        active = [a for a in active if a[0] == file and a[1] + a[2] > offset][-_MOST_AT_ONCE:]
        for a in active:
            if a[4] != side and (a[1], a[2]) != (offset, length):
                shared = min(a[1] + a[2], offset + length) - offset
                pair = (a[3], name) if side else (name, a[3])
                yield NamePair(*pair, shared)
        active.append(row)
