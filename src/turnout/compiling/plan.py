"""(bundle, effective config) -> what is compiled together. Decides; compiles nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.bundle import DEVICE_FILTER
from turnout.compiling.jobs import Job, Member
from turnout.compiling.keys import material
from turnout.compiling.targets import for_ep, require_taken
from turnout.errors import BundleError

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig, Stage


@dataclass(frozen=True)
class Plan:
    """The jobs of an effective config, and why the other stages are in none."""

    jobs: tuple[Job, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)


def plan_contexts(
    bundle: Bundle,
    effective: GenaiConfig,
    *,
    groups: Sequence[Sequence[str]] = (),
    target: Mapping[str, str] | None = None,
) -> Plan:
    """A job for every stage whose EP compiles ahead of time; one for each of `groups`.

    `groups` are stages whose weights their EP is to share. `target` describes a device that is
    not here, for the EPs that compile for such. Raises `BundleError` for a bundle whose graphs
    cannot be read, `UsageError` for a target that an EP cannot have, or that none takes.
    """
    routed = replace(bundle, config=effective)
    skipped: dict[str, str] = {}
    able: dict[str, Stage] = {}
    for stage in routed.stages:
        reason = why_not(routed, stage)
        if reason is None:
            able[stage.name] = stage
        else:
            skipped[stage.name] = reason
    jobs = []
    for names in _in_jobs(able, groups):
        stages = [able[name] for name in names]
        jobs.append(_job(routed, stages, for_ep(stages[0].ep, target or {})))
    require_taken([job.target for job in jobs], target or {})
    return Plan(tuple(jobs), skipped)


def why_not(bundle: Bundle, stage: Stage) -> str | None:
    """Why a stage is not compiled ahead of time, as a phrase; None where it is."""
    known = catalog.find(stage.ep)
    if not stage.filename or not _is_plain(bundle, stage):
        return "the runtime reads no graph of its own for it"
    if not stage.takes_options:
        return "the runtime takes no options for it"
    if known is None or not known.compiles:
        return f"{catalog.alias_of(stage.ep)} compiles nothing ahead of time"
    try:
        graph = bundle.graph(stage)
    except BundleError as error:
        return error.problem
    if graph.ep_contexts:
        return "it is compiled already"
    return None


def _is_plain(bundle: Bundle, stage: Stage) -> bool:
    """Whether its graph is named where a compiled one can take its place."""
    named: object = bundle.config.get((*stage.path, "filename"))
    return named == stage.filename


def _in_jobs(able: Mapping[str, Stage], groups: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    grouped = {name for group in groups for name in group}
    done: set[str] = set()
    for name in able:
        if name in done:
            continue
        group = next((list(group) for group in groups if name in group), [name])
        members = [member for member in group if member in able] if name in grouped else [name]
        done |= set(members)
        yield members


def _job(bundle: Bundle, stages: Sequence[Stage], target: Mapping[str, str]) -> Job:
    first = stages[0]
    return Job(
        kind="context",
        ep=first.ep,
        members=tuple(member_of(bundle, stage) for stage in stages),
        data_folder=bundle.data_folder(first).resolve(),
        provider_options=_provider_options(first),
        shared=len(stages) > 1,
        target=dict(target),
    )


def member_of(bundle: Bundle, stage: Stage) -> Member:
    """A stage as a member of a job. Raises `GraphError` where its graph is missing."""
    return Member(
        stage=stage.name,
        graph=bundle.graph_path(stage).resolve(),
        filename=stage.filename or "",
        session_options=material(stage.effective_options),
    )


def _provider_options(stage: Stage) -> dict[str, str]:
    """What the stage's EP is given; a device filter of the runtime's own as JSON text."""
    entry = next((entry for entry in stage.providers if entry.ep == stage.ep), None)
    if entry is None:
        return {}
    if not entry.device_filter:
        return dict(entry.options)
    return {**entry.options, DEVICE_FILTER: json.dumps(entry.device_filter, sort_keys=True)}
