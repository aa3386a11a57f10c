"""Removing what is kept of compiling: what is broken or left over, and what is old.

Everything that is removed can be made again. What another process is at work on is left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from turnout.bundle import DERIVED_MARK
from turnout.compiling import leftovers, receipts
from turnout.compiling.kept import Derived, Item, Kept
from turnout.compiling.store import Store
from turnout.errors import UsageError, WriteError
from turnout.files import explain_os_error

_DAY_S = 86400.0
_WAIT_S = 5.0


@dataclass(frozen=True)
class Doomed:
    """What is to be removed, and why. `store` is where an entry lies, None for other things."""

    folder: Path
    why: str
    store: Store | None = None
    derived: bool = False


@dataclass(frozen=True)
class Removed:
    """What was removed, what was not since somebody is at work there, and the bytes that are free.

    Bytes of files that have another link count for nothing: that link keeps them.
    """

    gone: tuple[Doomed, ...]
    busy: tuple[Doomed, ...]
    freed: int


def doomed(
    kept: Kept,
    *,
    older_than_days: float | None = None,
    keep: int | None = None,
    everything: bool = False,
) -> list[Doomed]:
    """What pruning removes: what is broken or left over, and beyond that what these say.

    `older_than_days`: entries and derived bundles that were made before. `keep`: entries but the
    newest of that number, or with `older_than_days` never one of them. Raises `UsageError`.
    """
    _check(older_than_days, keep, everything)
    found: list[Doomed] = []
    spared = 0
    for item in kept.items():
        why = _why(item, spared, older_than_days, keep, everything)
        spared += item.entry is not None
        if why is not None:
            found.append(Doomed(item.folder, why, item.store))
    gone = {entry.folder for entry in found}
    for derived in kept.derived():
        why = _why_derived(derived, gone, older_than_days, everything)
        if why is not None:
            found.append(Doomed(derived.folder, why, derived=True))
    left = "left by a process that was ended"
    for store in kept.stores:
        found += [Doomed(folder, left, store) for folder in store.abandoned()]
    found += [Doomed(folder, left) for place in kept.own for folder in leftovers.abandoned(place)]
    if kept.bundle is None:
        old = receipts.folder().glob("*.json") if everything else receipts.idle()
        found += [Doomed(path, "what it remembers is gone") for path in old]
    return found


def with_dependents(items: Iterable[Item], kept: Kept) -> list[Doomed]:
    """Entries that are to be removed on request, and the derived bundles that were made of them."""
    found = [Doomed(item.folder, "asked for", item.store) for item in items]
    gone = {entry.folder for entry in found}
    found += [
        Doomed(derived.folder, "made of it", derived=True)
        for derived in kept.derived()
        if gone.intersection(derived.prepared)
    ]
    return found


def remove(found: Sequence[Doomed]) -> Removed:
    """Remove them. Raises `WriteError` where the system does not let go of a file."""
    # Derived bundles first: they need the entries, not the other way round.
    files: dict[tuple[int, int], list[int]] = {}
    gone, busy = [], []
    for item in sorted(found, key=lambda item: not item.derived):
        sizes = _files(item.folder)
        if not _remove(item):
            busy.append(item)
            continue
        gone.append(item)
        for identity, links, size in sizes:
            files.setdefault(identity, [links, 0, size])[1] += 1
    return Removed(tuple(gone), tuple(busy), _freed(files))


def would_free(found: Sequence[Doomed]) -> int:
    """The bytes that removing them would free."""
    files: dict[tuple[int, int], list[int]] = {}
    for item in found:
        for identity, links, size in _files(item.folder):
            files.setdefault(identity, [links, 0, size])[1] += 1
    return _freed(files)


def _check(older_than_days: float | None, keep: int | None, everything: bool) -> None:
    if older_than_days is not None and not older_than_days >= 0:
        raise UsageError(
            "The age is out of range.", found=older_than_days, expected="0 days or more"
        )
    if keep is not None and keep < 0:
        raise UsageError("The number to keep is out of range.", found=keep, expected="0 or more")
    if everything and (older_than_days is not None or keep is not None):
        raise UsageError(
            "All is removed, or what is old.",
            found="--all with --older-than or --keep",
            expected="one of them",
        )


def _why(
    item: Item, newer: int, older_than_days: float | None, keep: int | None, everything: bool
) -> str | None:
    if item.entry is None:
        return item.problem
    if everything:
        return "all are removed"
    if keep is not None and newer < keep:
        return None
    if older_than_days is not None:
        return (
            f"older than {older_than_days:g} days"
            if _is_older(item.created, older_than_days)
            else None
        )
    return f"not among the {keep} newest" if keep is not None else None


def _why_derived(
    derived: Derived, gone: set[Path], older_than_days: float | None, everything: bool
) -> str | None:
    if derived.problem:
        return derived.problem
    if everything:
        return "all are removed"
    if gone.intersection(derived.prepared):
        return "an entry that it was made of goes"
    if older_than_days is not None and _is_older(derived.created, older_than_days):
        return f"older than {older_than_days:g} days"
    return None


def _is_older(created: float, days: float) -> bool:
    return time.time() - created > days * _DAY_S


def _remove(item: Doomed) -> bool:
    """Remove one; False where somebody is at work there."""
    try:
        if item.store is not None:
            return _remove_stored(item.store, item.folder)
        if item.derived:
            with FileLock(item.folder.with_name(f".{item.folder.name}.lock"), timeout=0):
                # Whoever finds what is left of it makes it anew.
                (item.folder / DERIVED_MARK).unlink(missing_ok=True)
                _delete(item.folder)
        else:
            _delete(item.folder)
    except Timeout:
        return False
    except OSError as error:
        raise explain_os_error(error, item.folder) from error
    return True


def _remove_stored(store: Store, folder: Path) -> bool:
    if folder.name.startswith("."):
        store.sweep()
        return not folder.exists()
    try:
        store.remove(folder, wait_s=_WAIT_S)
    except WriteError as error:
        if isinstance(error.__cause__, Timeout):
            return False
        raise
    return True


def _delete(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def _files(folder: Path) -> list[tuple[tuple[int, int], int, int]]:
    """Identity, number of links and size of every file in a folder; links are not followed."""
    found: list[tuple[tuple[int, int], int, int]] = []
    if folder.is_symlink():
        return found
    paths = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    for path in paths or [folder]:
        with contextlib.suppress(OSError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                found.append(((status.st_dev, status.st_ino), status.st_nlink, status.st_size))
    return found


def _freed(files: dict[tuple[int, int], list[int]]) -> int:
    return sum(size for links, removed, size in files.values() if removed >= links)
