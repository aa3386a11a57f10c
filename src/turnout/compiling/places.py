"""Where derived bundles go, and what to say where they cannot be written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from turnout.bundle import COMPILED, Bundle
from turnout.compiling import leftovers
from turnout.errors import WriteError
from turnout.files import STAGING_PREFIX

CACHE_VARIABLE = "TURNOUT_CACHE_DIR"
Made = TypeVar("Made")
_SCRATCH = "scratch-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def cache_folder() -> Path:
    """`$TURNOUT_CACHE_DIR`, or the user's cache folder for this program."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("turnout", appauthor=False)


def places(bundle: Bundle) -> list[Path]:
    """Folders for derived bundles of this source, the best first; they may not be there yet."""
    inside = bundle.path / COMPILED / "routes"
    name = hashlib.sha256(os.fsencode(bundle.path)).hexdigest()[:12]
    cache = cache_folder() / "bundles" / name / "routes"
    if any(path.is_symlink() for path in (inside, inside.parent)):
        return [cache]  # an untrusted bundle does not choose where files go
    if bundle.blobs is not None and same_disk(bundle.blobs, cache):
        return [cache, inside]  # a hub's folder is left as its client made it
    return [inside, cache]


def stores(bundle: Bundle) -> list[Path]:
    """Folders for what is compiled of this source, the best first; they may not be there yet."""
    inside = bundle.path / COMPILED / "store"
    cache = cache_folder() / "store"
    planted = any(path.is_symlink() for path in (inside, inside.parent))
    return [cache] if planted or bundle.blobs is not None else [inside, cache]


@contextlib.contextmanager
def scratch(bundle: Bundle, *, links: bool = True) -> Iterator[Path]:
    """A temporary folder, without links, that goes again with all that is in it.

    On the disk of the source's files where possible, so that large ones can be linked; never
    in a hub's folder, and in the bundle's own only if its disk has no other place. Where nothing is
    to be linked (not `links`), it is in the system's folder for such things, or the cache.
    """
    source = bundle.blobs or bundle.path.resolve()
    system = Path(tempfile.gettempdir())
    if links:
        roots = [root for root in (system, cache_folder()) if same_disk(source, root)]
        roots += [source] if bundle.blobs is None else []
    else:
        roots = [system, cache_folder()]
    # Named before it is made, so that it goes wherever Ctrl-C comes.
    name = f"{_SCRATCH}{secrets.token_hex(8)}"
    with contextlib.ExitStack() as held:
        for root in (*roots, system):
            with contextlib.suppress(OSError):
                root.mkdir(parents=True, exist_ok=True)
                _sweep_scratch(root)
                held.enter_context(_locked_for_good(root, name))
                folder = root / f"{STAGING_PREFIX}{name}"
                held.callback(shutil.rmtree, folder, ignore_errors=True)
                folder.mkdir(mode=0o700)
                break
        else:
            raise WriteError(
                "No temporary folder can be made.",
                found=", ".join(map(str, (*roots, system))),
                fix=f"set TMPDIR or {CACHE_VARIABLE} to a folder that can be written",
            )
        yield folder.resolve()


def _sweep_scratch(root: Path) -> None:
    """Remove what killed processes left of such folders."""
    for folder in root.glob(f"{STAGING_PREFIX}{_SCRATCH}*"):
        name = folder.name.removeprefix(STAGING_PREFIX)
        with leftovers.idle_lock(root, name) as idle:
            if idle:
                leftovers.remove(folder)
                with contextlib.suppress(OSError):
                    leftovers.lock_path(root, name).unlink()


@contextlib.contextmanager
def _locked_for_good(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of a name that nobody else has, and remove it at the end."""
    with FileLock(leftovers.lock_path(root, name), timeout=0):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                leftovers.lock_path(root, name).unlink()


def same_disk(folder: Path, future: Path) -> bool:
    """Whether `future`, which need not be there, will be on the file system of `folder`."""
    try:
        while not future.exists():
            future = future.parent
        return folder.stat().st_dev == future.stat().st_dev
    except OSError:
        return False


@contextlib.contextmanager
def opened(place: Path) -> Iterator[Path]:
    """`place`, made now, without links. What was made for it goes again when the block fails.

    Raises `OSError` where it cannot be made or written in.
    """
    missing = [path for path in (place, *place.parents) if not path.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
        _require_writable(place)
        yield place.resolve()
    except BaseException:
        _remove_empty(missing)
        raise


def _require_writable(place: Path) -> None:
    if not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders that hold nothing but locks, the deepest first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            if all(path.name.endswith(".lock") for path in folder.iterdir()):
                for lock in folder.iterdir():
                    _unlink_idle(lock)
            folder.rmdir()


def _unlink_idle(lock: Path) -> None:
    """Remove a lock that nobody has: who has one relies on nobody else getting it."""
    with leftovers.idle_lock(
        lock.parent, lock.name.removeprefix(".").removesuffix(".lock")
    ) as idle:
        if idle:
            lock.unlink()


def in_first(folders: list[Path], use: Callable[[Path], Made]) -> Made:
    """What `use` makes of the first folder that can be written and has room.

    Raises `WriteError` where none does, and what else `use` raises.
    """
    problems: list[tuple[Path, OSError]] = []
    for place in folders:
        try:
            return use(place)
        except OSError as error:
            problems.append((place, error))
        except WriteError as error:
            cause = error.__cause__
            # Another process that is at work there is no reason to go elsewhere.
            if not isinstance(cause, OSError) or isinstance(cause, Timeout):
                raise
            problems.append((place, cause))
    raise cannot_write(problems) from problems[-1][1]


def cannot_write(problems: list[tuple[Path, OSError]]) -> WriteError:
    """The error for what no place took; `problems` are what each said."""
    reasons = [f"{place}: {error.strerror or error}" for place, error in problems]
    full = any(error.errno in _FULL for _, error in problems)
    wanted = "with more room" if full else "that can be written"
    return WriteError(
        "What is prepared of the bundle cannot be written anywhere.",
        found="; ".join(reasons),
        expected=f"a folder {wanted}, in the bundle or in the cache",
        fix=("free some space, or " if full else "") + f"set {CACHE_VARIABLE} to a folder {wanted}",
    )
