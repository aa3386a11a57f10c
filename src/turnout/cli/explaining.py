"""A route explained: as a JSON document, and as lines for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.cli.diffs import unified

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig, Stage
    from turnout.compiling.preview import JobPreview, Preview
    from turnout.machine import Inventory
    from turnout.routing import Lack, Route, StageRoute
    from turnout.runtime.placement import EpPlacement, Placement, StagePlacement

SCHEMA_VERSION = 1
_OPERATORS = 4


@dataclass(frozen=True)
class Explained:
    """A route, what the config becomes, and the machine that it was looked at for.

    `machine` is None where it did not matter; `elsewhere` is true for an inventory from a file.
    `preview` says what would be compiled and shared, None where nothing was asked to be.
    """

    bundle: Bundle
    route: Route
    effective: GenaiConfig
    machine: Inventory | None
    elsewhere: bool = False
    placement: Placement | None = None
    preview: Preview | None = None

    def with_placement(self, placement: Placement) -> Explained:
        """The same, measured."""
        return replace(self, placement=placement)

    @cached_property
    def lacks(self) -> Mapping[str, Lack]:
        """What the machine lacks, by stage."""
        from turnout.routing import lacks

        return lacks(self.route, self.machine) if self.machine is not None else {}

    @property
    def place(self) -> str:
        """What the machine is called in a sentence."""
        if not self.elsewhere or self.machine is None:
            return "this machine"
        return self.machine.platform.word or "the machine"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The route's own, then what the machine lacks, then what a measurement showed."""
        return (*self.route.warnings, *self._lacking(), *self._unused())

    def _lacking(self) -> Iterator[str]:
        groups: dict[str, list[str]] = {}
        for name, lack in self.lacks.items():
            groups.setdefault(str(lack), []).append(name)
        for problem, names in groups.items():
            yield f"{', '.join(names)}: on {self.place}, {problem}"

    def _unused(self) -> Iterator[str]:
        decided = {stage.stage: stage.alias for stage in self.route.stages}
        for stage in self.placement.stages if self.placement is not None else ():
            ep = decided[stage.stage]
            if stage.ran and ep not in {placed.ep for placed in stage.eps}:
                eps = ", ".join(placed.ep for placed in stage.eps)
                yield f"{stage.stage}: {ep} computed nothing, all nodes ran on {eps}"


def document(explained: Explained) -> dict[str, Any]:
    """What `--json` prints: everything that is known, untruncated. Times are seconds."""
    route, machine = explained.route, explained.machine
    stages = {stage.name: stage for stage in explained.bundle.stages}
    placement = explained.placement
    return {
        "schema_version": SCHEMA_VERSION,
        "bundle": str(explained.bundle.path),
        "machine": None if machine is None else machine.platform.word,
        "requested": route.requested,
        "effective": route.effective,
        "changes": route.changes,
        "stages": [
            _stage_document(decision, stages[decision.stage], explained)
            for decision in route.stages
        ],
        "warnings": list(explained.warnings),
        "diff": "".join(
            f"{line}\n" for line in unified(explained.bundle.config, explained.effective)
        ),
        "placed": None if placement is None else placement.to_json(),
        "preparing": None if explained.preview is None else explained.preview.to_json(),
    }


def _stage_document(decision: StageRoute, stage: Stage, explained: Explained) -> dict[str, Any]:
    lack = explained.lacks.get(decision.stage)
    return {
        **decision.to_json(),
        "file": stage.filename,
        "runs_on_prompt": stage.run_on_prompt,
        "runs_on_tokens": stage.run_on_token_gen,
        "providers": [
            {
                "name": entry.name,
                "ep": entry.ep,
                "options": dict(entry.options),
                "device_filter": dict(entry.device_filter),
            }
            for entry in decision.providers
        ],
        "dropped_session_options": list(decision.drop_options),
        "available": None if explained.machine is None else lack is None,
        "lacks": None if lack is None else {"problem": lack.problem, "fix": lack.fix},
    }


def lines(explained: Explained, *, verbose: bool, quiet: bool) -> Iterator[str]:
    """The report for people, a line at a time."""
    route = explained.route
    yield f"{explained.bundle.path}"
    yield f"  requested  {route.requested}"
    yield f"  effective  {route.effective}"
    yield ""
    yield from _table(explained, verbose=verbose, quiet=quiet)
    if explained.preview is not None:
        yield ""
        yield from _foreseen(explained.preview)
    warnings = explained.warnings
    if warnings:
        yield ""
        yield from (f"warning: {line}" for line in warnings)
    if not quiet:
        yield ""
        yield from unified(explained.bundle.config, explained.effective) or [
            "genai_config.json: no change"
        ]


def _foreseen(preview: Preview) -> Iterator[str]:
    for item in preview.jobs:
        stages = "+".join(member.stage for member in item.job.members)
        work = "packs" if item.job.kind == "prepacked" else "compiles"
        yield f"{work} {stages}: {catalog.alias_of(item.job.ep)}, {_state(item)}"
    for stage, into in preview.merged.items():
        yield f"merges {stage} into the session of {into}"
    for stage, reason in preview.skipped.items():
        yield f"leaves {stage} as it is: {reason}"
    yield from (f"sharing: {reason}" for reason in preview.reasons)


def _state(item: JobPreview) -> str:
    if item.problem:
        return item.problem
    if item.stored is None:
        return "not looked for here"
    if item.stored:
        return f"stored already as {(item.key or '')[:12]}"
    return f"not stored yet ({', '.join(item.differs)})" if item.differs else "not stored yet"


def _table(explained: Explained, *, verbose: bool, quiet: bool) -> Iterator[str]:
    head = ["stage", "from", "to", "device", "options", "reason"]
    stages = {stage.name: stage for stage in explained.bundle.stages}
    rows = [_row(decision, stages[decision.stage]) for decision in explained.route.stages]
    if explained.machine is not None:
        head.insert(5, f"on {explained.place}")
        for row, decision in zip(rows, explained.route.stages, strict=True):
            row.insert(5, "no" if decision.stage in explained.lacks else "yes")
    placed = {}
    if explained.placement is not None:
        placed = {stage.stage: stage for stage in explained.placement.stages}
    merged = explained.preview.merged if explained.preview is not None else {}
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    yield _aligned(head, widths)
    for row, decision in zip(rows, explained.route.stages, strict=True):
        yield _aligned(row, widths)
        if not quiet:
            yield from _details(decision)
        if decision.stage in placed:
            yield from _placed(placed[decision.stage], verbose=verbose)
        elif explained.placement is not None and decision.stage in merged:
            yield f"  placed   in the session of {merged[decision.stage]}"


def _row(decision: StageRoute, stage: Stage) -> list[str]:
    untouched = "as they are" if decision.providers == stage.providers else "added to"
    return [
        decision.stage,
        catalog.alias_of(decision.before),
        decision.alias,
        decision.device or "open",
        untouched if decision.how == "config" else decision.how,
        decision.reason,
    ]


def _aligned(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _details(decision: StageRoute) -> Iterator[str]:
    """What does not fit into a row: the options themselves."""
    others = [entry for entry in decision.providers if entry.ep != decision.ep]
    for title, texts in (
        ("options", [f"{key}={value}" for key, value in decision.options.items()]),
        ("beside", [entry.name for entry in others]),
        ("session", [f"{key}={_value(value)}" for key, value in decision.set_options.items()]),
        ("dropped", decision.dropped),
    ):
        if texts:
            yield f"  {title:8} {', '.join(texts)}"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def placed_words(stage: StagePlacement) -> str:
    """Where the nodes of a stage ran: by EP, their number, the time and the operators."""
    if stage.ran is None:
        return stage.note
    if not stage.ran:
        return "did not run"
    return "; ".join(_share(placed) for placed in stage.eps)


def _placed(stage: StagePlacement, *, verbose: bool) -> Iterator[str]:
    yield f"  placed   {placed_words(stage)}"
    if verbose and stage.ran:
        for title, runs in (("prompt", stage.prompt_runs), ("tokens", stage.token_runs)):
            shares = [(placed.ep, getattr(placed, title)) for placed in stage.eps]
            shown = "; ".join(
                f"{ep}: {_nodes(share.nodes)} {_milliseconds(share.time_s)}"
                for ep, share in shares
                if share.nodes
            )
            yield f"    {title} {runs} run{'s' if runs != 1 else ''}" + (
                f", {shown}" if shown else ""
            )


def _share(placed: EpPlacement) -> str:
    text = f"{placed.ep}: {_nodes(placed.nodes)} {_milliseconds(placed.time_s)}"
    shown = [_counted(name, count) for name, count in placed.operators.items()]
    if len(shown) > _OPERATORS:
        more = sum(list(placed.operators.values())[_OPERATORS:])
        shown = [*shown[:_OPERATORS], f"{more} more"]
    return f"{text} ({', '.join(shown)})"


def _counted(operator: str, count: int) -> str:
    from turnout.runtime.profiles import SUBGRAPH

    # An operator's name has no plural.
    return f"{count} {operator}" + ("s" if operator == SUBGRAPH and count != 1 else "")


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
