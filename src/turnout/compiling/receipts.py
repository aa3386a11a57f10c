"""What a preparation came to, remembered, so that doing it again takes no reading of headers.

What is prepared of a bundle follows from its files, the effective config, the options, and the
runtimes and device of this machine. A receipt lists all of them: files by device, inode, size and
times, as `turnout.compiling.hashes` does, and with its reserve for files that were written just
now. It counts while every one is the same, nothing came or went in the bundle, the entries' files
are those whose hashes were compared, and the derived bundle is as it was written. Anything else is
prepared from the beginning. Receipts are in the user's cache folder: a bundle brings none along.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock, Timeout

from turnout.bundle import COMPILED, CONFIG_NAME, DERIVED_MARK, GenaiConfig
from turnout.compiling import contents, keys, store
from turnout.compiling.contents import Artifact, stamp_written
from turnout.compiling.jobs import Job
from turnout.compiling.places import cache_folder
from turnout.compiling.shared import Shared
from turnout.compiling.store import MANIFEST, Entry, Store
from turnout.errors import ConfigError, TurnoutError
from turnout.files import STAGING_PREFIX, read_plain, write_atomic

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.compiling.hashes import ContentHashes
    from turnout.compiling.options import CompileOptions
    from turnout.compiling.prepare import Prepared
    from turnout.machine import Inventory

SCHEMA_VERSION = 2
_SETTLED_NS = 3_000_000_000  # as in turnout.compiling.hashes
_WAIT_S = 5.0
_MOST_FILES = 4096
_MAX_BYTES = 16 << 20

Identity = tuple[int, ...]


class Receipt(msgspec.Struct, frozen=True):
    """What a preparation was made of (`facts`, `files`), and what it came to."""

    facts: dict[str, Any]
    files: dict[str, tuple[int, ...]]
    folder: str
    mark_sha256: str
    config: str
    compiled: dict[str, str]
    skipped: dict[str, str]
    entries: tuple[tuple[str, str], ...]  # folder of the store, and key
    stored: dict[str, tuple[int, ...]]  # the entries' files
    artifacts: dict[str, Artifact]
    shared: Shared
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Recalled:
    """A receipt that counts, with its entries, which were looked at just now."""

    receipt: Receipt
    config: GenaiConfig
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Ticket:
    """What is about to be prepared, as it is before anything of it is read."""

    path: Path
    facts: Mapping[str, Any]
    files: Mapping[str, Identity]
    taken_ns: int
    where: Path

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        effective: GenaiConfig,
        options: CompileOptions,
        hashes: ContentHashes,
        inventory: Inventory | None,
    ) -> Ticket | None:
        """None where nothing may be remembered: made anew, stored nowhere, or proven wholly; or
        where it cannot be told from what it is made. `bundle` is at its path without links.
        """
        if options.rebuild or options.no_cache or options.paranoid:
            return None
        taken_ns = time.time_ns()
        try:
            machine = _machine(bundle, effective, options, hashes, inventory)
            files = _identities(bundle)
        except (TurnoutError, OSError):
            return None  # preparing it says what is wrong
        if files is None:
            return None
        facts = {
            "bundle": str(bundle.path),
            "own": _digest(bundle.config.text),
            "effective": _digest(effective.text),
            "compile": options.compile,
            "share": options.share,
            "target": dict(options.target),
            "machine": machine,
            "cache": str(cache_folder().absolute()),
            "made_by": _made_by(),
        }
        name = _digest(json.dumps(facts, sort_keys=True))[:32]
        where = folder() / f"{name}.json"
        return cls(bundle.path, facts, files, taken_ns, where)

    def recall(self) -> Recalled | None:
        """What it came to the last time; None where there is no receipt that counts."""
        try:
            if self.where.stat().st_size > _MAX_BYTES:
                return None
            receipt = _read(self.where)
            if receipt.schema_version != SCHEMA_VERSION or receipt.facts != self.facts:
                return None
            if receipt.files != self.files or not _is_as_written(receipt):
                return None
            entries = [Store(Path(folder)).entry(key) for folder, key in receipt.entries]
            if _stored(entry for entry in entries if entry is not None) != receipt.stored:
                return None
            config = GenaiConfig.parse(receipt.config, self.path / "genai_config.json")
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError, ConfigError):
            return None
        found = tuple(entry for entry in entries if entry is not None)
        return Recalled(receipt, config, found) if len(found) == len(entries) else None

    def remember(self, bundle: Bundle, prepared: Prepared, hashes: ContentHashes) -> None:
        """Keep what it came to, where it can be proven that this was made of these very files.

        The headers of `bundle` have been read.
        """
        if prepared.uncompiled or self.taken_ns - _newest(self.files) < _SETTLED_NS:
            return  # to be tried again; or a second change could have the same times
        with contextlib.suppress(OSError, TurnoutError, Timeout):
            stored = _stored(prepared.entries)
            if time.time_ns() - _newest(stored) < _SETTLED_NS:
                return
            for entry in prepared.entries:
                Store(entry.folder.parent).verify(entry, hashes)
            receipt = _receipt(self, prepared, stored)
            if not self.files.keys() >= _named(bundle) or _identities(bundle) != self.files:
                return
            if _stored(prepared.entries) != stored or not _is_as_written(receipt):
                return
            _write(self.where, receipt)


def folder() -> Path:
    """Where receipts are; it need not be there."""
    return cache_folder() / "receipts"


def idle() -> list[Path]:
    """Receipts of what is not there any more, or that cannot be read."""
    return [path for path in folder().glob("*.json") if not _leads_somewhere(path)]


def _leads_somewhere(path: Path) -> bool:
    try:
        receipt = _read(path)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return False
    return Path(receipt.folder).is_dir()


def _write(path: Path, receipt: Receipt) -> None:
    """Write one, and remove what was left by writers that were killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent.with_name(".receipts.lock"), timeout=_WAIT_S):
        for left in path.parent.glob(f"{STAGING_PREFIX}*"):
            left.unlink(missing_ok=True)
        write_atomic(path, msgspec.json.encode(receipt, enc_hook=str))


def _made_by() -> list[Any]:
    from turnout import __version__

    versions = (contents.SCHEMA_VERSION, keys.SCHEMA_VERSION, store.SCHEMA_VERSION)
    return [__version__, *versions]


def _newest(files: Mapping[str, Identity]) -> int:
    """The last change of any of them, in nanoseconds since 1970."""
    return max((max(identity[3:], default=0) for identity in files.values()), default=0)


def _stored(entries: Iterable[Entry]) -> dict[str, Identity]:
    """The files of entries."""
    return {
        str(path): _identity(path)
        for entry in entries
        for path in (
            entry.folder / MANIFEST,
            *(entry.folder / f.name for f in entry.manifest.files),
        )
    }


def _receipt(ticket: Ticket, prepared: Prepared, stored: dict[str, Identity]) -> Receipt:
    return Receipt(
        facts=dict(ticket.facts),
        files=dict(ticket.files),
        folder=str(prepared.folder),
        mark_sha256=_mark_digest(prepared.folder),
        config=prepared.config.text,
        compiled=dict(prepared.compiled),
        skipped=dict(prepared.skipped),
        entries=tuple((str(entry.folder.parent), entry.key) for entry in prepared.entries),
        stored=stored,
        artifacts=dict(prepared.artifacts),
        shared=prepared.shared,
    )


def _read(path: Path) -> Receipt:
    """Raises `OSError`, or `msgspec.MsgspecError`."""
    return msgspec.json.decode(path.read_bytes(), type=Receipt, dec_hook=lambda kind, x: kind(x))


def _mark_digest(folder: Path) -> str:
    """The SHA-256 of a derived bundle's mark, "" where it has none."""
    try:
        return hashlib.sha256(read_plain(folder / DERIVED_MARK, _MAX_BYTES)).hexdigest()
    except OSError:
        return ""


def _machine(
    bundle: Bundle,
    effective: GenaiConfig,
    options: CompileOptions,
    hashes: ContentHashes,
    inventory: Inventory | None,
) -> list[Any]:
    """Runtimes and devices, as keys have them, for every EP with its options."""
    from turnout.compiling.tools import machine_for

    found: dict[str, Any] = {}
    for stage in effective.stages():
        entries = {entry.ep: dict(entry.options) for entry in stage.providers}
        given = entries.get(stage.ep, {})
        job = Job("context", stage.ep, (), bundle.path, given, target=options.target)
        name = json.dumps([stage.ep, given], sort_keys=True)
        if name not in found:
            machine = machine_for(job, hashes, inventory)
            found[name] = [name, dict(machine.tools), dict(machine.device)]
    return list(found.values())


def _identities(bundle: Bundle) -> dict[str, Identity] | None:
    """Every file and folder in the bundle's, by its relative name; None for too many."""
    found: dict[str, Identity] = {}
    for path in _walked(bundle.path):
        found[path.relative_to(bundle.path).as_posix()] = _identity(path)
        if len(found) > _MOST_FILES:
            return None
    return found


def _walked(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        place = Path(folder)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not (place == root and name == COMPILED)
        ]
        yield from (place / name for name in (*folders, *names))


def _named(bundle: Bundle) -> set[str]:
    """The files that the bundle's stages are made of. Some may be out of the walk's way."""
    paths: list[Path] = []
    for stage in bundle.stages:
        if stage.filename:
            paths.append(bundle.graph_path(stage))
            paths += [*bundle.data_files(stage).values(), *bundle.context_files(stage).values()]
    return {path.relative_to(bundle.path).as_posix() for path in paths}


def _identity(path: Path) -> Identity:
    """Of what a name leads to; () for what leads nowhere, and a folder's without its times."""
    try:
        status = path.stat()
    except OSError:
        return ()
    if stat.S_ISDIR(status.st_mode):
        return (status.st_dev, status.st_ino, -1)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _is_as_written(receipt: Receipt) -> bool:
    """Whether the derived bundle's files are those that its mark lists, and its mark the same."""
    folder = Path(receipt.folder)
    for place in (receipt.folder, *(entry[0] for entry in receipt.entries)):
        if os.path.realpath(place) != place:
            return False  # a link was planted on the way; weights are found relative to it
    if not receipt.mark_sha256:
        return not (folder / DERIVED_MARK).exists()  # the source itself is loaded
    if _mark_digest(folder) != receipt.mark_sha256:
        return False
    mark = json.loads(read_plain(folder / DERIVED_MARK, _MAX_BYTES))
    config = read_plain(folder / CONFIG_NAME, _MAX_BYTES)
    if hashlib.sha256(config).hexdigest() != mark["config_sha256"]:
        return False
    return all(stamp_written(folder / name) == written for name, written in mark["written"].items())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
