"""What makes two reports unlike: differences that are refused, and those that are told."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, get_args

from turnout.errors import UsageError
from turnout.perf.matching import Pairing
from turnout.perf.report import Report, RouteReport, Workload
from turnout.perf.wording import counted, first_few

Kind = Literal["bundle", "prompt", "lengths"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ALL = "all"
# Answers whose lengths are further apart than this are told of.
_LENGTHS_APART = 0.1
_SHOWN_LETTERS = 40
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Difference:
    """What would make ratios mislead: its kind, by which it can be allowed, and words."""

    kind: Kind
    what: str


def kinds(words: Sequence[str]) -> frozenset[Kind]:
    """Kinds of differences, from words such as "bundle,prompt" or "all". Raises `UsageError`."""
    named = {word.strip().lower() for text in words for word in text.split(",")}
    for word in sorted(named - {ALL, *KINDS}):
        raise UsageError(
            "There is no such difference that could be allowed.",
            found=repr(word),
            expected=", ".join((*KINDS, ALL)),
            where="--allow",
        )
    return frozenset(kind for kind in KINDS if ALL in named or kind in named)


def require_alike(differences: Sequence[Difference], allow: Collection[Kind]) -> None:
    """Raise `UsageError` for differences of kinds that are not in `allow`.

    It names the first few of them, and every kind.
    """
    refused = [item for item in differences if item.kind not in allow]
    if refused:
        named = [kind for kind in KINDS if any(item.kind == kind for item in refused)]
        raise UsageError(
            "The reports measured different things, so ratios between them would mislead.",
            found="\n".join(first_few([f"{item.kind}: {item.what}" for item in refused])),
            fix="measure both alike; or compare them all the same with --allow "
            + ",".join([*(kind for kind in KINDS if kind in allow), *named]),
        )


def differences(base: Report, other: Report, workloads: Pairing) -> Iterator[Difference]:
    """What differs between the reports A, `base`, and B, of what was measured."""
    mine, theirs = base.bundle, other.bundle
    if mine.content_sha256 != theirs.content_sha256:
        names = [f"{item.name} ({item.content_sha256[:_SHOWN_DIGITS]})" for item in (mine, theirs)]
        yield Difference("bundle", f"A measured {names[0]}, B {names[1]}")
    for one, two in workloads.pairs:
        yield from _of_workload(base.workloads[one], other.workloads[two])
    for name, report, indices in (
        ("A", base, workloads.only_first),
        ("B", other, workloads.only_second),
    ):
        for index in indices:
            yield Difference("lengths", f"only {name} has {report.workloads[index].name}")
    if base.settings.ignore_eos != other.settings.ignore_eos:
        which = "A" if base.settings.ignore_eos else "B"
        yield Difference("lengths", f"only {which} went on after the end of a text (--ignore-eos)")


def _of_workload(mine: Workload, theirs: Workload) -> Iterator[Difference]:
    named = mine.name
    if mine.prompt != theirs.prompt:
        yield Difference(
            "prompt", f"{named}: A asked {_quoted(mine.prompt)}, B {_quoted(theirs.prompt)}"
        )
    elif mine.templated != theirs.templated:
        which = "A" if mine.templated else "B"
        yield Difference("prompt", f"{named}: only {which} used the chat template")
    elif mine.prompt_tokens == theirs.prompt_tokens and _both_differ(
        mine.prompt_ids_sha256, theirs.prompt_ids_sha256
    ):
        yield Difference("prompt", f"{named}: the token ids of the prompt are others")
    for what, one, two in (
        ("tokens of the prompt", mine.prompt_tokens, theirs.prompt_tokens),
        ("new tokens at most", mine.max_new_tokens, theirs.max_new_tokens),
    ):
        if _both_differ(one, two):
            yield Difference("lengths", f"{named}: {what}: A {one}, B {two}")


def _both_differ(one: object, two: object) -> bool:
    """Whether both are known, and not the same."""
    return one is not None and two is not None and one != two


def _quoted(prompt: str | None) -> str:
    if prompt is None:
        return "made-up tokens"
    short = prompt if len(prompt) <= _SHOWN_LETTERS else prompt[:_SHOWN_LETTERS] + "..."
    return repr(short)


def notes(base: Report, other: Report) -> Iterator[str]:
    """What else differs between A and B: machines, versions, settings. Nothing of it is refused."""
    for what, one, two in _facts(base, other):
        if one != two:
            yield f"{what}: A {_words(one)}, B {_words(two)}"
    for name, report in (("A", base), ("B", other)):
        if not report.complete:
            held, planned = report.requests_held, report.requests_planned
            yield f"{name} is not complete: it holds {held} of {counted(planned, 'request')}"
        load, cores = report.environment.load_average, report.environment.usable_cores
        if load is not None and cores is not None and load > cores:
            where = counted(cores, "core")
            yield f"{name} began on a busy machine: a load average of {load:.1f} on {where}"


def _facts(base: Report, other: Report) -> Iterator[tuple[str, object, object]]:
    here, there = base.environment, other.environment
    for what, field in (
        ("CPU", "cpu"),
        ("machine", "machine"),
        ("system", "os"),
        ("usable cores", "usable_cores"),
        ("Python", "python"),
        ("turnout", "turnout"),
    ):
        yield what, getattr(here, field), getattr(there, field)
    for mine, theirs in ((here.runtimes, there.runtimes), (here.plugins, there.plugins)):
        for name in sorted({*mine, *theirs}):
            yield name, mine.get(name), theirs.get(name)
    for field in ("iterations", "warmup", "memory"):
        yield field, getattr(base.settings, field), getattr(other.settings, field)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)


def route_notes(
    mine: RouteReport, theirs: RouteReport, workloads: Sequence[tuple[str, int, int]]
) -> Iterator[str]:
    """What differs between a route of A and that of B which it is compared with.

    `workloads` are names, and indices into the reports' workloads.
    """
    if mine.name != theirs.name:
        yield f"{mine.name} of A is compared with {theirs.name} of B: each has just one route"
    if mine.effective != theirs.effective:
        yield f"{mine.name} took effect as {mine.effective} in A, as {theirs.effective} in B"
    for name, one, two in workloads:
        lengths = [_answer_length(mine, one), _answer_length(theirs, two)]
        if None in lengths:
            continue
        few, many = sorted(float(length or 0) for length in lengths)
        if many > few * (1 + _LENGTHS_APART):
            shown = counted(lengths[0] or 0, "token")
            yield (
                f"{mine.name}, {name}: answers have {shown} in A, {lengths[1]:g} in B "
                "(medians), which request_s follows"
            )


def _answer_length(route: RouteReport, workload: int) -> float | None:
    lengths = [
        request.generated_tokens
        for request in route.requests
        if request.kind == "timed" and request.workload == workload
    ]
    return median(lengths) if lengths else None
