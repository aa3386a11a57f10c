"""Files: atomic writes, containment of paths, and links that fall back to copies.

Every write goes to a temporary place beside its target, is flushed, and is then
renamed, so that a crash at any moment leaves the old state or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from turnout.errors import BundleError, OutputExistsError, WriteError

STAGING_PREFIX = ".turnout-"
# Not a staging folder: it may hold the only copy of what was there before.
ASIDE_PREFIX = ".replaced-by-turnout-"


def explain_os_error(error: OSError, path: Path) -> WriteError:
    """A `WriteError` that says in words why `path` could not be written."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return WriteError(
            f"No space left while writing {path}.",
            where=path,
            fix="free some space or choose another output; nothing was left behind",
        )
    return WriteError(
        f"Cannot write {path}: {error.strerror or error}.",
        where=path,
        fix="nothing was left behind",
    )


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8, newlines as they are) to `path`, whole or not at all."""
    payload = data.encode("utf-8") if isinstance(data, str) else data
    temporary = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=STAGING_PREFIX)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a staging folder that becomes `target` when the block ends without an error.

    An existing `target` is refused unless `overwrite`, also one that appears meanwhile; with it,
    the old folder is replaced only after the new one is complete. On any error, Ctrl-C included,
    nothing is left, not even parent folders that were made for it. What a process that was
    killed left beside `target` an hour ago or more is removed.

    Raises `OutputExistsError` or `WriteError`.
    """
    # Renaming the folder that a process stands in would take relative paths away from under it.
    target = Path(os.path.abspath(target))  # noqa: PTH100 - resolve() would follow links
    if os.path.lexists(target) and not overwrite:
        raise _exists(target)
    staging: Path | None = None
    made: list[Path] = []
    try:
        made = _make_parents(target.parent)
        _remove_abandoned(target.parent)
        staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=_staging_prefix()))
        staging.chmod(0o777 & ~_umask())
        yield staging
        _flush_tree(staging)
        _publish(staging, target, overwrite=overwrite)
        staging = None
        made = []
    except OSError as error:
        raise explain_os_error(error, target) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        _remove_empty(made)


def publish_folder(staging: Path, target: Path) -> None:
    """Flush the folder `staging` and give it the name `target`, in the place of what is there.

    Both are on one file system. A crash at any moment leaves the old folder or the new one.
    Raises `WriteError`.
    """
    try:
        _flush_tree(staging)
        _publish(staging, target, overwrite=True)
    except OSError as error:
        raise explain_os_error(error, target) from error


def contained(root: Path, relative: str, *, what: str = "path", also: Path | None = None) -> Path:
    """`root / relative`, proven to stay inside `root` after links are resolved.

    `relative` comes from an untrusted document. Absolute paths, drive letters, `..`, and
    links that lead out are refused with a `BundleError`; the file need not exist. Links may
    lead into the folder `also` as well, such as the `blobs` of a hub's cache.
    """
    windows, posix = PureWindowsPath(relative), PurePosixPath(relative)
    reason = None
    if not relative or "\0" in relative:
        reason = "is empty or holds a NUL"
    elif posix.is_absolute() or windows.drive or windows.root:
        reason = "is absolute"
    elif ".." in windows.parts:
        reason = "leaves the folder with '..'"
    else:
        reason = _leads_out(root / relative, [root] if also is None else [root, also])
    if reason is not None:
        raise BundleError(
            f"The {what} {relative!r} {reason}.",
            found=repr(relative),
            expected="a relative path that stays inside the folder",
            where=root,
        )
    return root / relative


def _leads_out(path: Path, roots: list[Path]) -> str | None:
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError) as error:  # links in a circle; RuntimeError until Python 3.12
        return f"cannot be followed ({error})"
    if any(resolved.is_relative_to(folder.resolve()) for folder in roots):
        return None
    return f"is a link to {resolved}, outside the folder"


def kind_of(path: Path) -> str:
    """What is there, in words: "a folder", "a pipe", ... Never raises."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return "nothing"
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def is_forbidden(path: Path) -> bool:
    """Whether something is there, or may be, that this user may not read."""
    try:
        path.stat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return not os.access(path, os.R_OK)


def is_file(path: Path) -> bool:
    """Whether a regular file is there; False also for names that no file system takes."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_plain(path: Path, limit: int) -> bytes:
    """The bytes of a regular file that is no link, and has at most `limit` of them.

    For files that somebody may have planted: nothing is waited for, and no device is read. Raises
    `OSError`.
    """
    flags = os.O_RDONLY
    for name in ("O_BINARY", "O_NONBLOCK", "O_NOFOLLOW"):
        flags |= getattr(os, name, 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"more than {limit} bytes", str(path))
        return file.read(limit)


def link_or_copy(source: Path, target: Path) -> bool:
    """Hard-link `source` to `target`, or copy it where links cannot be made. True if linked."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
        return False
    return True


def _umask() -> int:
    # There is no call that only reads it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            # A hard link to a read-only file was written and flushed by somebody else.
            with contextlib.suppress(PermissionError), path.open("rb+") as file:
                os.fsync(file.fileno())


def _exists(target: Path) -> OutputExistsError:
    return OutputExistsError(
        f"{target} exists already.",
        where=target,
        fix="choose another output, or pass --overwrite to replace it",
    )


def _publish(staging: Path, target: Path, *, overwrite: bool) -> None:
    if overwrite and os.path.lexists(target):
        _replace(staging, target)
        return
    try:
        if os.name != "nt":
            # Here a rename replaces what it can, so that the name is claimed first. In its turn
            # it replaces the claim only while that is empty.
            target.mkdir()
        staging.rename(target)
    except OSError as error:
        if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
            raise _exists(target) from error
        raise


def _replace(staging: Path, target: Path) -> None:
    """Put `staging` in the place of `target`, or leave `target` as it was."""
    if not _exchange(staging, target):
        _step_aside(staging, target)
        return
    # What was replaced has the staging folder's name now: were this process to be killed before
    # all of it is gone, the rest would be removed as any staging folder.
    _remove(staging)


def _step_aside(staging: Path, target: Path) -> None:
    """Replace in two renames, where the system cannot do it in one.

    A process that is killed between them leaves the old folder under a name that nothing
    removes, beside the target; so does one that can neither go on nor go back.
    """
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=ASIDE_PREFIX))
    old = aside / target.name
    try:
        target.replace(old)
        try:
            staging.replace(target)
        except BaseException:
            old.replace(target)
            raise
        _remove(old)
    finally:
        with contextlib.suppress(OSError):
            aside.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step. False where the system or the file system has no such call."""
    if sys.platform != "linux":
        return False
    import ctypes

    # From <linux/fs.h> and <fcntl.h>.
    rename_exchange, at_fdcwd = 2, -100
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    done = call(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange)
    return bool(done == 0)


def _make_parents(folder: Path) -> list[Path]:
    """Make `folder`; those of it and its parents that were not there, the deepest first."""
    missing = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


# A staging folder is named after its process, so that one that was killed can be told from one
# that is at work: `.turnout-<host>.<process>.<random>`.
_ABANDONED_SECONDS = 3600


def _staging_prefix() -> str:
    return f"{STAGING_PREFIX}{_host()}.{os.getpid()}."


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:40]


def abandoned(folder: Path) -> list[Path]:
    """Staging folders of this host's dead processes that nothing touches any more.

    Containers may share a host's name and not its process numbers, hence the age as well.
    """
    found = []
    for path in folder.glob(f"{STAGING_PREFIX}{_host()}.*.*"):
        number = path.name.split(".")[-2]
        if number.isdigit() and not _is_alive(int(number)) and _age(path) > _ABANDONED_SECONDS:
            found.append(path)
    return found


def _remove_abandoned(folder: Path) -> None:
    for path in abandoned(folder):
        shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    return bool(psutil.pid_exists(process))


def _age(folder: Path) -> float:
    """Seconds since anything in the folder was written; 0 if that cannot be told."""
    try:
        times = [path.stat().st_mtime for path in (folder, *folder.rglob("*"))]
    except OSError:
        return 0.0
    return time.time() - max(times)
