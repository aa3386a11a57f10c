"""What the stages of a bundle have in common, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from turnout.cli import folding

if TYPE_CHECKING:
    from turnout.bundle.comparing import Amount, NamePair, PairContents, SharedContents

_SHOWN = 4
# Bytes; any two graphs have a constant of one or zero in common.
_WORTH_SAYING = 1024


def document(contents: SharedContents) -> dict[str, Any]:
    """Everything, untruncated. Sizes are bytes."""
    return {
        "pairs": [_pair_document(pair) for pair in contents.pairs],
        "stored_twice": _amount_document(contents.twice),
    }


def lines(contents: SharedContents, *, verbose: bool) -> Iterator[str]:
    """The report for people, a line at a time; pairs with next to nothing in common are one."""
    yield "sharing"
    apart = [pair for pair in contents.pairs if _is_apart(pair)]
    for pair in contents.pairs:
        if pair not in apart:
            yield from _pair_lines(pair, verbose=verbose)
    if apart:
        names = ", ".join(" and ".join(pair.stages) for pair in apart)
        yield f"  nothing in common: {names}"
    yield f"  stored twice: {_amount(contents.twice)}"


def _pair_lines(pair: PairContents, *, verbose: bool) -> Iterator[str]:
    one, other = pair.stages
    yield f"  {one} and {other}"
    if pair.same_graph:
        yield "    graphs     the same, from the same weights"
    else:
        yield "    graphs     different"
    twice = f", {_amount(pair.twice)} of them stored twice" if pair.twice.tensors else ""
    yield f"    equal      {_amount(pair.equal)}{twice}"
    for name, only in zip(pair.stages, pair.only, strict=True):
        if only.tensors:
            yield f"    only one   {_amount(only)} in {name}"
    yield from _names("conflict", "of one name, different", pair.conflicts, verbose)
    yield from _names("renamed", "equal under different names", pair.renamed, verbose)
    yield from _names("overlap", "in overlapping ranges", pair.overlapping, verbose)


def _names(title: str, what: str, pairs: Sequence[NamePair], verbose: bool) -> Iterator[str]:
    if not pairs:
        return
    yield f"    {title:9}  {_count(len(pairs))} {what}"
    for pair in pairs if verbose else pairs[:_SHOWN]:
        names = pair.one if pair.one == pair.other else f"{pair.one or '?'} = {pair.other or '?'}"
        yield f"               {names} ({folding.size(pair.nbytes)})"
    if len(pairs) > _SHOWN and not verbose:
        yield f"               and {len(pairs) - _SHOWN} more (-v shows them)"


def _is_apart(pair: PairContents) -> bool:
    found = pair.same_graph or pair.conflicts or pair.overlapping
    return not found and pair.equal.nbytes < _WORTH_SAYING


def _amount(amount: Amount) -> str:
    if not amount.tensors:
        return "nothing"
    return f"{_count(amount.tensors)} ({folding.size(amount.nbytes)})"


def _count(tensors: int) -> str:
    return f"{tensors} tensor{'' if tensors == 1 else 's'}"


def _pair_document(pair: PairContents) -> dict[str, Any]:
    return {
        "stages": list(pair.stages),
        "same_graph": pair.same_graph,
        "equal": _amount_document(pair.equal),
        "stored_twice": _amount_document(pair.twice),
        "only": {
            name: _amount_document(only) for name, only in zip(pair.stages, pair.only, strict=True)
        },
        "conflicts": [_name_document(item) for item in pair.conflicts],
        "renamed": [_name_document(item) for item in pair.renamed],
        "overlapping": [_name_document(item) for item in pair.overlapping],
    }


def _amount_document(amount: Amount) -> dict[str, int]:
    return {"tensors": amount.tensors, "bytes": amount.nbytes}


def _name_document(item: NamePair) -> dict[str, Any]:
    found = asdict(item)
    found["bytes"] = found.pop("nbytes")
    return found
