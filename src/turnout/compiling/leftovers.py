"""Staging folders beside what they become, and what killed processes left of them.

A staging folder is `.turnout-<name>.<random>` for what becomes `<name>`, and whoever works in it
holds the lock `.<name>.lock` beside it. One whose lock is free belongs to nobody that lives.
Each has a name of its own: a child may outlive its parent by a moment, and then writes into a
folder that is gone, not into the next one's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from turnout.files import STAGING_PREFIX

_REMOVED = "removed-"


def lock_path(folder: Path, name: str) -> Path:
    """The lock of whoever makes `name` in `folder`."""
    return folder / f".{name}.lock"


@contextlib.contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """An empty folder to make `name` in, for who holds its lock; it goes at the end.

    What a process that was killed left of the same name is removed first.
    """
    for old in _named(folder, f"{STAGING_PREFIX}{name}"):
        remove(old)
    # Named before it is made, so that it goes wherever Ctrl-C comes.
    place = folder / f"{STAGING_PREFIX}{name}.{secrets.token_hex(4)}"
    try:
        place.mkdir()
        yield place
    finally:
        remove(place)


def doomed_path(folder: Path, name: str) -> Path:
    """What `name` is called while it is being removed, so that nobody finds half of it."""
    return folder / f"{STAGING_PREFIX}{_REMOVED}{name}"


def abandoned(folder: Path) -> list[Path]:
    """What killed processes left in `folder`, which has no staging folders of others."""
    found = []
    for place in _named(folder, STAGING_PREFIX):
        with idle_lock(folder, _what(place)) as idle:
            if idle:
                found.append(place)
    return found


def sweep(folder: Path) -> int:
    """Remove what `abandoned` lists; the bytes that it took."""
    freed = 0
    for place in _named(folder, STAGING_PREFIX):
        with idle_lock(folder, _what(place)) as idle:
            if idle:
                freed += folder_bytes(place)
                remove(place)
    return freed


def remove(path: Path) -> None:
    """Remove a folder, a file, or a link, as far as that can be done."""
    if path.is_symlink() or path.is_file():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder; 0 where it cannot be looked into."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total


def _named(folder: Path, prefix: str) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.startswith(prefix)]
    except OSError:
        return []


def _what(place: Path) -> str:
    """What a staging folder is to become."""
    return place.name.removeprefix(STAGING_PREFIX).removeprefix(_REMOVED).partition(".")[0]


@contextlib.contextmanager
def idle_lock(folder: Path, name: str) -> Iterator[bool]:
    """Whether nobody makes `name` in `folder`, which stays so meanwhile."""
    lock = FileLock(lock_path(folder, name), timeout=0)
    try:
        lock.acquire()
    except (Timeout, OSError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
