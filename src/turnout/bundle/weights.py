"""Where the weights of each stage are, and which ranges of a file several stages use.

Identical file ranges are what is proven here without reading a weight. Tensors that are equal
by content but stored twice are another question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turnout.bundle.bundle import Bundle
from turnout.bundle.layouts import Stage
from turnout.errors import GraphError

# File identity (device, inode), offset, length.
Range = tuple[int, int, int, int]


@dataclass(frozen=True)
class StageWeights:
    """Bytes of one stage's weights: in all, in ranges of its own, and in ranges it shares.

    `inline` are those inside the graph file, a part of `own`. A range used twice by one stage
    counts once.
    """

    stage: str
    total: int
    own: int
    shared: int
    inline: int


@dataclass(frozen=True)
class Sharing:
    """`nbytes` in `ranges` identical file ranges that exactly these stages use."""

    stages: tuple[str, ...]
    nbytes: int
    ranges: int


@dataclass(frozen=True)
class Weights:
    """The weights of a bundle; `stored` is what all stages together take on disk."""

    stages: tuple[StageWeights, ...]
    sharing: tuple[Sharing, ...]
    stored: int


def weigh(bundle: Bundle) -> Weights:
    """Sizes and shared ranges of every stage's weights, from the headers.

    Raises `GraphError` for a data file that is missing, or too short for a range in it.
    """
    stages = [stage for stage in bundle.stages if stage.filename]
    ranges = {stage.name: external_ranges(bundle, stage) for stage in stages}
    users: dict[Range, list[str]] = {}
    for name, found in ranges.items():
        for key in found:
            users.setdefault(key, []).append(name)
    weights = []
    for stage in stages:
        graph = bundle.graph(stage)
        inline = sum(item.nbytes for item in graph.initializers if item.external is None)
        total = sum(found[3] for found in ranges[stage.name])
        shared = sum(found[3] for found in ranges[stage.name] if len(users[found]) > 1)
        weights.append(
            StageWeights(stage.name, total + inline, total + inline - shared, shared, inline)
        )
    stored = sum(key[3] for key in users) + sum(item.inline for item in weights)
    return Weights(tuple(weights), _sharing(users), stored)


def external_ranges(bundle: Bundle, stage: Stage) -> Mapping[Range, str]:
    """Each external range of a stage's weights, and the name of a tensor in it.

    Raises `GraphError` for a data file that is missing, or too short for a range in it.
    """
    graph = bundle.graph(stage)
    files = bundle.data_files(stage)
    found: dict[Range, str] = {}
    status: dict[str, tuple[int, int, int]] = {}
    for location, path in files.items():
        try:
            stat = path.stat()
        except OSError as error:
            raise GraphError(
                f"The data file {location!r} of {graph.path.name} is missing.",
                expected=path,
                where=graph.path,
                fix="fetch or build the bundle again",
            ) from error
        status[location] = (stat.st_dev, stat.st_ino, stat.st_size)
    for item in graph.initializers:
        if item.external is None:
            continue
        device, inode, size = status[item.external.location]
        offset, length = item.external.offset, item.external.length
        if offset + length > size or length < item.nbytes:
            raise GraphError(
                f"The tensor {item.name!r} is not wholly in its data file.",
                found=f"{length} bytes from offset {offset} of {size} bytes",
                expected=f"{item.nbytes} bytes inside {item.external.location}",
                where=graph.path,
                fix="the data file is truncated or another one: fetch or build the bundle again",
            )
        found.setdefault((device, inode, offset, length), item.name)
    return found


def _sharing(users: Mapping[Range, list[str]]) -> tuple[Sharing, ...]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for key, names in users.items():
        if len(names) > 1:
            groups.setdefault(tuple(names), []).append(key[3])
    return tuple(Sharing(names, sum(sizes), len(sizes)) for names, sizes in groups.items())
