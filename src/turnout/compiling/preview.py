"""What preparing a bundle would do, without doing any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.compiling.hashes import ContentHashes
from turnout.compiling.obtain import Obtainer
from turnout.compiling.places import cache_folder, stores
from turnout.compiling.plan import plan_contexts
from turnout.errors import EpUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnout.bundle import Bundle, GenaiConfig
    from turnout.compiling.jobs import Job
    from turnout.compiling.options import CompileOptions


@dataclass(frozen=True)
class JobPreview:
    """A job. `stored`: whether it is there already; None where that was not looked for.

    `differs` says why what is stored of the same stages cannot be used, `problem` why it cannot
    be compiled here at all.
    """

    job: Job
    key: str | None = None
    stored: bool | None = None
    differs: tuple[str, ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "stages": [member.stage for member in self.job.members],
            "ep": catalog.alias_of(self.job.ep),
            "kind": self.job.kind,
            "shared": self.job.shared,
            "key": self.key,
            "stored": self.stored,
            "differs": list(self.differs),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Preview:
    """What would be compiled, why other stages would not, and how weights would be shared.

    `merged` maps a stage to the one whose session it would become a part of.
    """

    jobs: tuple[JobPreview, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "jobs": [job.to_json() for job in self.jobs],
            "skipped": dict(self.skipped),
            "merged": dict(self.merged),
            "reasons": list(self.reasons),
        }


def preview(
    bundle: Bundle, effective: GenaiConfig, options: CompileOptions, *, elsewhere: bool = False
) -> Preview:
    """What `prepare` would do. Reads weights only where their hashes are not remembered.

    `elsewhere`: on another machine, so that what is stored here does not count. Raises
    `BundleError`, `UsageError`, and `CompileError` where sharing is required and impossible.
    """
    from turnout.compiling.sharing import choose, prepack_job

    source = replace(bundle, path=bundle.path.resolve())
    hashes = ContentHashes(cache_folder())
    choice = choose(
        source,
        effective,
        options.sharing,
        compiling=options.compile and options.share is None,
        hashes=hashes,
        inventory=None,
    )
    jobs: list[Job] = []
    skipped: Mapping[str, str] = {}
    if options.compile or choice.ep_groups:
        plan = plan_contexts(source, choice.config, groups=choice.ep_groups, target=options.target)
        shared = {name for group in choice.ep_groups for name in group}
        jobs = [
            job
            for job in plan.jobs
            if options.compile or shared.intersection(member.stage for member in job.members)
        ]
        skipped = plan.skipped
    if choice.prepack:
        jobs.append(prepack_job(source, choice.config, choice.prepack))
    obtainer = Obtainer(source, stores(source), hashes, options)
    return Preview(
        tuple(_looked(obtainer, jobs, elsewhere=elsewhere)), skipped, choice.merged, choice.reasons
    )


def _looked(obtainer: Obtainer, jobs: list[Job], *, elsewhere: bool) -> Iterator[JobPreview]:
    for job in jobs:
        if elsewhere:
            yield JobPreview(job)
            continue
        try:
            key, entry, differs = obtainer.look(job)
        except EpUnavailableError as error:
            yield JobPreview(job, problem=error.problem)
            continue
        yield JobPreview(job, key, entry is not None, differs)
