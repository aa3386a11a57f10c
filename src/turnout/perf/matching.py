"""Which routes and workloads of two reports belong together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from turnout.perf.report import Report, RouteReport, Workload

T = TypeVar("T")


@dataclass(frozen=True)
class Pairing:
    """Pairs of indices into two sequences, and the indices that are in no pair."""

    pairs: tuple[tuple[int, int], ...]
    only_first: tuple[int, ...]
    only_second: tuple[int, ...]


def workloads(base: Report, other: Report) -> Pairing:
    """Workloads by prompt and lengths, then by lengths; where each has just one, these two."""
    return _match(base.workloads, other.workloads, (_question, _lengths))


def routes(base: Report, other: Report) -> Pairing:
    """Routes by name; where each report has just one, these two."""
    return _match(base.routes, other.routes, (_name,))


def _question(workload: Workload) -> Hashable:
    return (*_lengths(workload), workload.prompt, workload.templated, workload.prompt_ids_sha256)


def _lengths(workload: Workload) -> tuple[int | None, int]:
    return workload.prompt_tokens, workload.max_new_tokens


def _name(route: RouteReport) -> str:
    return route.name


def _match(
    first: Sequence[T], second: Sequence[T], keys: Sequence[Callable[[T], Hashable]]
) -> Pairing:
    """By each key in turn what none before it matched; of several alike, one by one in order."""
    pairs: list[tuple[int, int]] = []
    mine, theirs = list(range(len(first))), list(range(len(second)))
    for key in keys:
        waiting: dict[Hashable, list[int]] = {}
        for index in reversed(theirs):
            waiting.setdefault(key(second[index]), []).append(index)
        found = {index: same.pop() for index in mine if (same := waiting.get(key(first[index])))}
        pairs += found.items()
        mine = [index for index in mine if index not in found]
        taken = set(found.values())
        theirs = [index for index in theirs if index not in taken]
    if not pairs and len(first) == len(second) == 1:
        return Pairing(((0, 0),), (), ())
    return Pairing(tuple(sorted(pairs)), tuple(mine), tuple(theirs))
