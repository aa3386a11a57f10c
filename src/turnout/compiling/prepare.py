"""Preparing a bundle to be loaded: compiling and sharing ahead of time, then deriving.

with prepare(bundle, effective, CompileOptions(compile=True)) as prepared:
    og.Config(str(prepared.folder))
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.bundle import Bundle, require_regular
from turnout.bundle.session_keys import SHARE_CONTEXTS
from turnout.compiling import leftovers
from turnout.compiling.contents import Artifact
from turnout.compiling.derive import derive, derive_into, loadable
from turnout.compiling.hashes import ContentHashes
from turnout.compiling.jobs import Job
from turnout.compiling.obtain import Obtainer, Progress
from turnout.compiling.options import CompileOptions
from turnout.compiling.places import cache_folder, places, scratch, stores
from turnout.compiling.plan import plan_contexts
from turnout.compiling.receipts import Recalled, Ticket
from turnout.compiling.shared import Shared
from turnout.compiling.tools import needs_inventory
from turnout.errors import CompileError, EpUnavailableError, TurnoutError, WriteError
from turnout.machine import Inventory

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig
    from turnout.compiling.store import Entry

Say = Callable[[str], None]
_log = logging.getLogger(__name__)


@dataclass
class Prepared:
    """What is loaded: `folder`, and what came of every stage.

    `compiled` maps stages to the keys of their entries, `uncompiled` those that were to be
    compiled to the reason why they are not; `missed` says of jobs that were compiled anew in what
    they differ from what was stored. `artifacts` are what took the place of stages' own graphs,
    out of `entries`. It is closed when the folder is not needed any more.
    """

    folder: Path
    config: GenaiConfig
    compiled: Mapping[str, str] = field(default_factory=dict)
    uncompiled: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    missed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shared: Shared = field(default_factory=Shared)
    entries: tuple[Entry, ...] = ()
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def to_json(self) -> dict[str, Any]:
        """What came of every stage, as plain data. Sizes are bytes."""
        return {
            "folder": str(self.folder),
            "compiled": dict(self.compiled),
            "uncompiled": dict(self.uncompiled),
            "skipped": dict(self.skipped),
            "missed": {name: list(lines) for name, lines in self.missed.items()},
            "bytes": sum(entry.manifest.nbytes for entry in self.entries),
            "shared": self.shared.to_json(),
        }

    def close(self) -> None:
        """Remove what was made for this use alone. Safe to repeat."""
        self._held.close()


def prepare(
    bundle: Bundle,
    effective: GenaiConfig,
    options: CompileOptions | None = None,
    *,
    inventory: Inventory | None = None,
    progress: Progress | None = None,
    say: Say = _log.info,
) -> Prepared:
    """The folder that onnxruntime-genai loads for `effective`, prepared as `options` ask.

    A stage that cannot be compiled is loaded as it is, and `say` gets a line that says why.
    Raises `CompileError` where that is not allowed, and what `derive` raises.
    """
    options = options or CompileOptions()
    if not options.prepares:
        return Prepared(loadable(bundle, effective, say=say), effective)
    # Without the headers that were read before: they may not be those of the files any more.
    bundle = Bundle(bundle.path.resolve(), bundle.config)
    for place in (*stores(bundle), *places(bundle)):
        leftovers.sweep(place)
    if inventory is None and not options.target and needs_inventory(effective):
        inventory = Inventory.discover()  # once, and not for every job
    hashes = ContentHashes(None if options.paranoid else cache_folder())
    ticket = Ticket.of(bundle, effective, options, hashes, inventory)
    recalled = ticket.recall() if ticket is not None else None
    if recalled is not None:
        return _recalled(recalled)
    require_regular(bundle)

    def fresh() -> _Preparation:
        return _Preparation(
            bundle,
            effective,
            options,
            hashes=hashes,
            inventory=inventory,
            progress=progress,
            say=say,
        )

    prepared = _run(fresh)
    if ticket is not None:
        ticket.remember(replace(bundle, config=effective), prepared, hashes)
    return prepared


def _run(fresh: Callable[[], _Preparation]) -> Prepared:
    """Run it, and once more where something was removed meanwhile, as by `turnout cache prune`."""
    for again in (True, False):
        try:
            with contextlib.ExitStack() as held:
                prepared = fresh().run(held)
                prepared._held = held.pop_all()
                return prepared
        except (CompileError, WriteError) as error:
            if not (again and _was_removed(error)):
                raise
    raise AssertionError("the second run returns or raises")


def _was_removed(error: BaseException | None) -> bool:
    """Whether a file that was not there any more is the cause."""
    while error is not None and not isinstance(error, FileNotFoundError):
        error = error.__cause__
    return error is not None


def _recalled(recalled: Recalled) -> Prepared:
    receipt = recalled.receipt
    return Prepared(
        folder=Path(receipt.folder),
        config=recalled.config,
        compiled=receipt.compiled,
        skipped=receipt.skipped,
        shared=receipt.shared,
        entries=recalled.entries,
        artifacts=receipt.artifacts,
    )


class _Preparation:
    """One run of `prepare`."""

    def __init__(
        self,
        bundle: Bundle,
        effective: GenaiConfig,
        options: CompileOptions,
        *,
        hashes: ContentHashes,
        inventory: Inventory | None,
        progress: Progress | None,
        say: Say,
    ) -> None:
        self.bundle, self.effective, self.options = bundle, effective, options
        self.inventory, self.progress, self.say = inventory, progress, say
        self.hashes = hashes
        self.source = bundle
        self.artifacts: dict[str, Artifact] = {}
        self.entries: list[Entry] = []
        self.compiled: dict[str, str] = {}
        self.uncompiled: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self.shared = Shared()

    def run(self, held: contextlib.ExitStack) -> Prepared:
        """Share, compile, derive. `held` is what lives as long as the result."""
        folder = held.enter_context(scratch(self.bundle)) if self.options.no_cache else None
        self.source = self._source(folder)
        obtainer = Obtainer(
            self.source,
            [folder / "store"] if folder is not None else stores(self.bundle),
            self.hashes,
            self.options,
            self.inventory,
            self.progress,
        )
        self._share()
        if self.options.compile or self.shared.ep:
            self._compile(obtainer)
        self._prepack(obtainer)
        return Prepared(
            folder=self._derived(folder),
            config=self.effective,
            compiled=self.compiled,
            uncompiled=self.uncompiled,
            skipped=self.skipped,
            missed=obtainer.missed,
            shared=self._figures(),
            entries=tuple(self.entries),
            artifacts=self.artifacts,
        )

    def _source(self, folder: Path | None) -> Bundle:
        """The bundle whose files are compiled: of a hub's cache, one without its links.

        No EP compiles a graph whose weights lie behind a link out of its folder.
        """
        if self.bundle.blobs is None:
            return self.bundle
        if folder is None:
            plain = derive(self.bundle, self.bundle.config, say=self.say)
        else:
            plain = derive_into(folder / "plain", self.bundle, self.bundle.config, say=self.say)
        return replace(self.bundle, path=plain)

    def _share(self) -> None:
        from turnout.compiling.sharing import choose

        choice = choose(
            self.bundle,
            self.effective,
            self.options.sharing,
            compiling=self.options.compile and self.options.share is None,
            hashes=self.hashes,
            inventory=self.inventory,
        )
        asked = self.options.share not in {None, "off", "auto"}
        if asked and not choice.is_any:
            reasons = "; ".join(choice.reasons) or "no two stages have weights in common"
            self.say(f"Nothing is shared by --share {self.options.share}: {reasons}.")
        self.effective = choice.config
        self.shared = Shared(
            choice.merged, choice.ep_groups, choice.prepack, reasons=choice.reasons
        )

    def _compile(self, obtainer: Obtainer) -> None:
        plan = plan_contexts(
            self.source, self.effective, groups=self.shared.ep, target=self.options.target
        )
        self.skipped = dict(plan.skipped)
        if self.options.compile and not plan.jobs:
            reasons = "; ".join(dict.fromkeys(plan.skipped.values()))
            self.say(f"Nothing is compiled ahead of time: {reasons}.")
        wanted = {name for group in self.shared.ep for name in group}
        for job in plan.jobs:
            if self.options.compile or wanted.intersection(m.stage for m in job.members):
                self._obtain(obtainer, job)

    def _prepack(self, obtainer: Obtainer) -> None:
        if not self.shared.prepacked:
            return
        from turnout.compiling.sharing import prepack_job

        self._obtain(obtainer, prepack_job(self.source, self.effective, self.shared.prepacked))

    def _obtain(self, obtainer: Obtainer, job: Job) -> None:
        """Get a job's entry; of a shared job that fails, every stage by itself."""
        try:
            self._take(job, obtainer.entry(job))
        except CompileError as error:
            if job.kind == "context" and len(job.members) > 1 and self.options.share is None:
                self.say(f"{job.name} cannot share one copy of their weights: {error.problem}")
                self._unshare(job)
                for member in job.members:
                    self._obtain(obtainer, replace(job, members=(member,), shared=False))
                return
            self._failed(job, error)
        except (EpUnavailableError, WriteError) as error:
            self._failed(job, error)

    def _unshare(self, job: Job) -> None:
        names = {member.stage for member in job.members}
        groups = tuple(group for group in self.shared.ep if not names.intersection(group))
        self.shared = replace(self.shared, ep=groups)

    def _failed(self, job: Job, error: TurnoutError) -> None:
        if self.options.require_compiled or self.options.share == "require":
            raise error
        for member in job.members:
            self.uncompiled[member.stage] = error.problem
        if job.kind == "prepacked":
            self.shared = replace(self.shared, prepacked=())
        else:
            self._unshare(job)
        how = "not packed" if job.kind == "prepacked" else "loaded uncompiled"
        self.say(f"{job.name}: {how}. {error}")

    def _take(self, job: Job, entry: Entry) -> None:
        self.entries.append(entry)
        graphs = set(entry.manifest.graphs.values())
        binaries = [f.name for f in entry.manifest.files if f.name not in graphs]
        for member in job.members:
            graph = entry.manifest.graphs[member.stage]
            self.compiled[member.stage] = entry.key
            self.artifacts[member.stage] = Artifact(
                folder=entry.folder,
                graph=graph,
                files=(graph, *binaries),
                options={SHARE_CONTEXTS: "1"} if job.shared else {},
                binds_source=job.kind == "context",
            )

    def _derived(self, folder: Path | None) -> Path:
        if folder is not None:
            return derive_into(
                folder / "bundle",
                self.bundle,
                self.effective,
                artifacts=self.artifacts,
                say=self.say,
            )
        if not self.artifacts and self.effective.text == self.bundle.config.text:
            return loadable(self.bundle, self.effective, say=self.say)
        words = " ".join([self.options.sharing, *sorted(e.key for e in self.entries)])
        return derive(
            self.bundle, self.effective, artifacts=self.artifacts, sharing=words, say=self.say
        )

    def _figures(self) -> Shared:
        return replace(
            self.shared, bytes_saved=sum(entry.manifest.bytes_saved for entry in self.entries)
        )
