"""What is kept of compiling: the entries of stores and the bundles derived of them, looked at.

Without a bundle that is the cache folder; with one, what lies in the bundle, and what of the
cache folder was made of it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.bundle import CONFIG_NAME, DERIVED_MARK
from turnout.compiling import keys
from turnout.compiling.hashes import ContentHashes
from turnout.compiling.jobs import Job, Member
from turnout.compiling.leftovers import folder_bytes
from turnout.compiling.places import cache_folder, places, stores
from turnout.compiling.store import Broken, Entry, Store
from turnout.errors import EpUnavailableError, TurnoutError, UsageError
from turnout.files import read_plain

if TYPE_CHECKING:
    from turnout.bundle import Bundle

_MAX_MARK = 16 << 20
_SHOWN = 8


@dataclass(frozen=True)
class Item:
    """What lies in a store under the name of an entry: `entry`, or else `problem` says why none."""

    store: Store
    folder: Path
    nbytes: int
    entry: Entry | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """Its key, as far as it is known."""
        return self.entry.key if self.entry is not None else self.folder.name

    @property
    def created(self) -> float:
        """When it was made, in seconds since 1970."""
        if self.entry is not None:
            return self.entry.manifest.created
        with contextlib.suppress(OSError):
            return self.folder.lstat().st_mtime
        return 0.0


@dataclass(frozen=True)
class Derived:
    """A derived bundle, of which `problem` says why it is of no more use, "" where it is.

    `prepared` are the folders of the entries that it was made of. `nbytes` are those of its own
    files: what is linked lies elsewhere.
    """

    folder: Path
    source: str
    prepared: tuple[Path, ...]
    nbytes: int
    created: float
    problem: str = ""


@dataclass(frozen=True)
class Kept:
    """The stores and derived bundles of the cache folder, or of a bundle."""

    bundle: Bundle | None = None

    @property
    def stores(self) -> list[Store]:
        """The stores that are looked at."""
        folders = [cache_folder() / "store"] if self.bundle is None else stores(self.bundle)
        return [Store(folder) for folder in folders]

    def items(self) -> list[Item]:
        """Every entry, usable or not, the newest first."""
        found = [item for store in self.stores for item in self._items(store)]
        return sorted(found, key=lambda item: (-item.created, item.name))

    def find(self, text: str) -> Item:
        """The entry whose key begins with `text`. Raises `UsageError` for none, and for several."""
        word = text.strip().lower()
        found = [item for item in self.items() if word and item.name.startswith(word)]
        if len({item.name for item in found}) == 1:
            return found[0]
        names = ", ".join(item.name[:12] for item in (found or self.items())[:_SHOWN])
        raise UsageError(
            f"{'Several entries begin' if found else 'No entry begins'} with {text[:80]!r}.",
            found=f"{names or 'nothing'} in {self.where}",
            expected="the first digits of one key, as `turnout cache list` shows them",
        )

    @property
    def where(self) -> str:
        """The folders that are looked at, for people."""
        return ", ".join(str(store.folder) for store in self.stores)

    @property
    def own(self) -> list[Path]:
        """The folders of derived bundles."""
        if self.bundle is not None:
            return places(self.bundle)
        return sorted((cache_folder() / "bundles").glob("*/routes"))

    def derived(self) -> list[Derived]:
        """Every derived bundle, by its path."""
        return [
            _derived(folder, self.bundle)
            for place in self.own
            for folder in _folders(place)
            if not folder.name.startswith(".")
        ]

    def belongs(self, entry: Entry) -> bool:
        """Whether an entry was made of graphs that the bundle has; True without a bundle."""
        return self.bundle is None or any(
            stage.get("graph") in self._graphs for stage in keys.stages_of(entry.manifest.inputs)
        )

    def _items(self, store: Store) -> Iterator[Item]:
        # Others' entries are in the cache folder as well.
        mixed = self.bundle is not None and store.folder == cache_folder() / "store"
        for found in store.entries():
            if isinstance(found, Broken):
                if not mixed:
                    size = folder_bytes(found.folder)
                    yield Item(store, found.folder, size, problem=found.problem)
            elif not mixed or self.belongs(found):
                yield Item(store, found.folder, found.manifest.nbytes, found)

    @cached_property
    def _graphs(self) -> frozenset[str]:
        assert self.bundle is not None
        hashes, found = ContentHashes(cache_folder()), set()
        for stage in self.bundle.stages:
            with contextlib.suppress(TurnoutError):
                found.add(hashes.file(self.bundle.graph_path(stage)))
        return frozenset(found)


def stale(entry: Entry, bundle: Bundle | None = None) -> tuple[str, ...]:
    """In what an entry differs from what would be compiled here now, a line each; () if in nothing.

    Versions and devices are those of this machine; the graphs and weights those of `bundle`, and
    without one they are taken for unchanged. Options are a route's, and not compared.
    """
    from turnout.compiling.tools import machine_for

    inputs = entry.manifest.inputs
    hashes = ContentHashes(cache_folder())
    try:
        job = _job(inputs, bundle)
        machine = machine_for(job, hashes)
        if bundle is None:
            now = {**inputs, "tools": dict(machine.tools), "device": dict(machine.device)}
        else:
            now = keys.key_inputs(job, bundle, machine, hashes)
    except EpUnavailableError:
        return (f"{catalog.alias_of(str(inputs.get('ep')))} is not installed here",)
    except TurnoutError as error:
        return (error.problem,)
    except (KeyError, TypeError, ValueError, AttributeError):
        return ("its manifest does not say what it was made of",)
    return keys.difference(inputs, now)


def _job(inputs: dict[str, Any], bundle: Bundle | None) -> Job:
    """The job that an entry was compiled for, of the bundle's own stages."""
    members, folder = [], Path()
    for stage in keys.stages_of(inputs) if bundle is not None else ():
        assert bundle is not None
        own = bundle.stage(stage["stage"])
        folder = bundle.data_folder(own).resolve()
        members.append(
            Member(own.name, bundle.graph_path(own).resolve(), "", stage["session_options"])
        )
    return Job(
        kind=inputs["kind"],
        ep=inputs["ep"],
        members=tuple(members),
        data_folder=folder,
        provider_options=inputs["provider_options"],
        shared=inputs["shared"],
        target=inputs["target"],
    )


def stage_names(entry: Entry) -> tuple[str, ...]:
    """The stages of an entry's job, in order."""
    return tuple(str(stage.get("stage")) for stage in keys.stages_of(entry.manifest.inputs))


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:
        return []


def _own_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = (Path(place) / name).lstat()
                total += status.st_size if status.st_nlink == 1 else 0
    return total


def _derived(folder: Path, bundle: Bundle | None) -> Derived:
    created = 0.0
    with contextlib.suppress(OSError):
        created = folder.lstat().st_mtime
    if folder.is_symlink():
        return Derived(folder, "", (), 0, created, "a link, which Turnout makes none of")
    size = _own_bytes(folder)
    mark: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        mark = json.loads(read_plain(folder / DERIVED_MARK, _MAX_MARK))
    source = mark.get("source") if isinstance(mark, dict) else None
    if not isinstance(source, str) or not source:
        return Derived(folder, "", (), size, created, "it does not say what it was derived from")
    named = mark.get("prepared")
    prepared = tuple(Path(name) for name in named if isinstance(name, str)) if named else ()
    problem = ""
    if bundle is not None and Path(source) != bundle.path.resolve():
        problem = f"its source was moved from {source}"
    elif not (Path(source) / CONFIG_NAME).is_file():
        problem = f"its source {source} is gone"
    elif gone := [path for path in prepared if not path.is_dir()]:
        problem = f"the entry {gone[0].name[:12]} that it was made of is gone"
    return Derived(folder, source, prepared, size, created, problem)
