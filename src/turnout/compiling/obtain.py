"""Getting a job's entry: from the store, or by compiling it in a child process.

The child writes to an empty staging folder and is then judged by what lies there, not by how it
ended: a crash after everything was written has lost nothing, and a success that wrote nothing is
a failure.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from turnout.compiling import keys
from turnout.compiling.places import in_first, opened
from turnout.compiling.simulate import prove
from turnout.compiling.store import MANIFEST, Entry, Store, manifest_of
from turnout.errors import CompileError, ProcessError, TurnoutError

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.compiling.hashes import ContentHashes
    from turnout.compiling.jobs import Job
    from turnout.compiling.options import CompileOptions
    from turnout.machine import Inventory

_WORKERS = {
    "context": "turnout.compiling.worker:compile_here",
    "prepacked": "turnout.compiling.worker_prepack:prepack_here",
}
# For a place that another process took away again while this one was about to use it.
_ATTEMPTS = 3
# What is left on a disk that was written until nothing went on it.
_FULL_BYTES = 64 << 10


class Progress(Protocol):
    """Who is told of jobs as they are compiled."""

    def started(self, name: str, expected_s: float | None) -> None:
        """A job begins; what the like took before, in seconds, None where that is not known."""

    def ended(self, name: str, outcome: str) -> None:
        """It ended: "compiled", "stored" (it was there already), or "failed"."""


@dataclass
class Obtainer:
    """Gets the entries of one bundle's jobs. `stores` are places for them, the best first."""

    bundle: Bundle
    stores: list[Path]
    hashes: ContentHashes
    options: CompileOptions
    inventory: Inventory | None = None
    progress: Progress | None = None
    missed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _unsound: tuple[str, ...] = ()

    def entry(self, job: Job) -> Entry:
        """The entry of a job. Raises `CompileError`, `EpUnavailableError` or `WriteError`."""
        inputs = self.inputs(job)
        key = keys.digest(inputs)
        found = self._stored(key, job)
        if found is not None:
            self._tell_end(job, "stored")
            return found
        self.missed[job.name] = (*self._unsound, *self._why_missed(inputs))
        return in_first(
            self.stores, lambda place: _made_in(place, lambda s: self._make(job, s, key, inputs))
        )

    def look(self, job: Job) -> tuple[str, Entry | None, tuple[str, ...]]:
        """The key of a job, its entry if it is stored, else in what the newest alike differs.

        Compiles nothing. Raises what `entry` does, but for `WriteError`.
        """
        inputs = self.inputs(job)
        key = keys.digest(inputs)
        found = self._stored(key, job)
        return key, found, () if found is not None else self._why_missed(inputs)

    def inputs(self, job: Job) -> dict[str, Any]:
        """What the job's key is made of."""
        from turnout.compiling.tools import machine_for

        machine = machine_for(job, self.hashes, self.inventory)
        return keys.key_inputs(job, self.bundle, machine, self.hashes)

    def _stored(self, key: str, job: Job) -> Entry | None:
        self._unsound = ()
        for folder in self.stores:
            entry = self._sound(Store(folder), key, job)
            if entry is not None:
                return entry
        return None

    def _sound(self, store: Store, key: str, job: Job) -> Entry | None:
        """The entry of a key that may be used; None where what is there is to be made anew.

        A store may lie in a bundle, so that an entry is judged as what a child left is, and its
        bytes by their hashes, which are remembered, but for `paranoid`.
        """
        entry = None if self.options.rebuild else store.entry(key)
        if entry is None:
            return None
        try:
            verify_stored(entry, job, self.bundle)
            store.verify(entry, None if self.options.paranoid else self.hashes)
        except TurnoutError as error:
            self._unsound = (f"what was stored is not used: {error.problem}",)
            return None
        return entry

    def _why_missed(self, inputs: dict[str, Any]) -> tuple[str, ...]:
        """In what the newest entry of the same stages differs; () where there is none.

        Entries of other models, which share the cache folder, have nothing in common with it.
        """
        if self.options.rebuild:
            return ("made anew, as asked",)
        alike = [
            entry
            for folder in self.stores
            for entry in Store(folder).entries()
            if isinstance(entry, Entry)
            and _stages(entry.manifest.inputs) == _stages(inputs)
            and keys.are_related(entry.manifest.inputs, inputs)
        ]
        if not alike:
            return ()
        newest = max(alike, key=lambda entry: entry.manifest.created)
        return keys.difference(newest.manifest.inputs, inputs)

    def _make(self, job: Job, store: Store, key: str, inputs: dict[str, Any]) -> Entry:
        with store.lock(key):
            # Another process may have made it while this one waited.
            found = self._sound(store, key, job)
            if found is not None:
                self._tell_end(job, "stored")
                return found
            if self.progress is not None:
                self.progress.started(job.name, _expected(store, job))
            outcome = "failed"
            try:
                with store.staging(key) as staging, _room_is_told_of(staging):
                    entry = self._compile(job, store, staging, key, inputs)
                outcome = "compiled"
            finally:
                self._tell_end(job, outcome)
            return entry

    def _compile(
        self, job: Job, store: Store, staging: Path, key: str, inputs: dict[str, Any]
    ) -> Entry:
        from turnout.compiling.tools import libraries

        start = time.monotonic()
        argument = job.argument(staging, libraries(job, self.inventory))
        limit = self.options.timeout_s * len(job.members)
        with _judged_by_what_it_left(job) as ending:
            ending.answer = call_worker(job.kind, argument, limit, f"compiling {job.name}")
        graphs, saved, checked = self._verified(staging, job, ending)
        self._require_unchanged(job, key)
        if job.kind == "context":
            limit = self.options.timeout_s
            checked = prove(job, staging, graphs, argument["libraries"], timeout=limit).checked
        tools = ending.answer.get("tools", {}) if ending.answer else {}
        manifest = manifest_of(
            inputs,
            key,
            staging,
            graphs,
            took_s=time.monotonic() - start,
            bytes_saved=saved,
            checked=checked,
            tools={str(name): str(value) for name, value in tools.items()},
        )
        return store.publish(staging, manifest)

    def _verified(
        self, staging: Path, job: Job, ending: _Ending
    ) -> tuple[dict[str, str], int, str]:
        try:
            return verify(staging, job, self.bundle)
        except TurnoutError as error:
            # How the child ended says more than what is missing because of it.
            if ending.error is not None:
                raise CompileError(
                    f"{job.name} was not compiled: {ending.error.problem}", **ending.error.facts
                ) from error
            raise

    def _require_unchanged(self, job: Job, key: str) -> None:
        """What was compiled is what the key says, and not what took its place meanwhile."""
        if keys.digest(self.inputs(job)) != key:
            raise CompileError(
                f"What {job.name} is made of was changed while it was compiled.",
                where=self.bundle.path,
                fix="wait until whatever writes there is done",
            )

    def _tell_end(self, job: Job, outcome: str) -> None:
        if self.progress is not None:
            self.progress.ended(job.name, outcome)


@dataclass
class _Ending:
    """How a child ended."""

    answer: dict[str, Any] | None = None
    error: TurnoutError | None = None


@contextlib.contextmanager
def _room_is_told_of(staging: Path) -> Iterator[None]:
    """A failure on a full disk is that of the disk: an EP does not say so, and there may be room
    in another place. Raises `OSError` for one.
    """
    try:
        yield
    except CompileError as error:
        if shutil.disk_usage(staging).free >= _FULL_BYTES:
            raise
        reason = f"{os.strerror(errno.ENOSPC)} ({error.problem})"
        raise OSError(errno.ENOSPC, reason, str(staging)) from error


@contextlib.contextmanager
def _judged_by_what_it_left(job: Job) -> Iterator[_Ending]:
    """Keep how a child ended for later. Errors that it raised on purpose are passed on."""
    ending = _Ending()
    try:
        yield ending
    except ProcessError as error:
        ending.error = error
    except CompileError:
        raise
    except TurnoutError as error:
        raise CompileError(
            f"{job.name} was not compiled: {error.problem}", **error.facts
        ) from error


def call_worker(kind: str, argument: dict[str, Any], limit: float, doing: str) -> dict[str, Any]:
    """What the worker of that kind of job answers, from a child process."""
    from turnout.processes import call

    answer: dict[str, Any] = call(
        _WORKERS[kind], argument, timeout=limit, doing=doing, option="--compile-timeout"
    )
    return answer


def verify(staging: Path, job: Job, bundle: Bundle) -> tuple[dict[str, str], int, str]:
    """Graphs by stage, bytes saved, and how it was checked. Raises `CompileError`."""
    if job.kind == "prepacked":
        from turnout.compiling.prepacked import verify_prepacked

        packed = verify_prepacked(staging, job, bundle)
        return dict(packed.graphs), packed.bytes_saved, "run"
    from turnout.compiling.verify import verify_artifacts

    verified = verify_artifacts(staging, job, bundle)
    return dict(verified.graphs), verified.bytes_saved, "structure"


def verify_stored(entry: Entry, job: Job, bundle: Bundle) -> None:
    """Judge an entry by its headers, as what a child left. Raises `CompileError`."""
    besides = frozenset({MANIFEST})
    if job.kind == "prepacked":
        from turnout.compiling.prepacked import verify_structure

        graphs = verify_structure(entry.folder, job, besides=besides).graphs
    else:
        from turnout.compiling.verify import verify_artifacts

        graphs = verify_artifacts(entry.folder, job, bundle, besides=besides).graphs
    if dict(graphs) != entry.manifest.graphs:
        raise CompileError("It names other graphs for its stages.", where=entry.folder)


def _made_in(place: Path, make: Callable[[Store], Entry]) -> Entry:
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError), opened(place) as folder:
            return make(Store(folder))
    with opened(place) as folder:
        return make(Store(folder))


def _expected(store: Store, job: Job) -> float | None:
    """What the like took last, in seconds."""
    names = [member.stage for member in job.members]
    took = [
        (entry.manifest.created, entry.manifest.took_s)
        for entry in store.entries()
        if isinstance(entry, Entry) and _stages(entry.manifest.inputs) == (job.ep, job.kind, names)
    ]
    return max(took)[1] if took else None


def _stages(inputs: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    names = [item.get("stage") for item in keys.stages_of(inputs)]
    return (inputs.get("ep"), inputs.get("kind"), names)
