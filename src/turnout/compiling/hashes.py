"""Content hashes of weights, remembered, so that a warm lookup reads no weights.

A hash is remembered for a file's device, inode, size, and times of last change of content and
of status in nanoseconds (on Windows the latter is the time of creation, and the former counts).
A rewrite in place whose modification time is set back changes the status time. What changed
within the last seconds is hashed and not remembered: a second change could have the same times.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from turnout.errors import GraphError

CHUNK = 1 << 20
# File systems keep times as coarsely as two seconds (FAT).
_SETTLED_S = 3.0
# Making a hard link changes a file's status as well, which is no reason to give up at once.
_ATTEMPTS = 4
_NAME = "hashes.sqlite"
_WAIT_S = 10.0

Span = tuple[int, int]  # offset and length in bytes
_Identity = tuple[int, int, int, int, int]


class ContentHashes:
    """SHA-256 of ranges of files, remembered in `folder`; None remembers nothing on disk.

    A memory that cannot be read or written is done without: hashes are then computed.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.bytes_read = 0

    def file(self, path: Path) -> str:
        """The hash of a whole file. Raises `GraphError` where it cannot be read."""
        size = _status(path).st_size
        return self.ranges(path, [(0, size)])[0]

    def range(self, path: Path, offset: int, length: int) -> str:
        """The hash of `length` bytes at `offset`. Raises `GraphError`, also for a short file."""
        return self.ranges(path, [(offset, length)])[0]

    def ranges(self, path: Path, spans: Sequence[Span]) -> list[str]:
        """The hash of every span of one file, in their order. Raises `GraphError`."""
        wanted = list(dict.fromkeys(spans))
        with self._memory() as memory:
            for _ in range(_ATTEMPTS):
                known = self._known(path, wanted, memory)
                if known is not None:
                    return [known[span] for span in spans]
        raise GraphError(
            f"{path} was changed while it was read.",
            where=path,
            fix="wait until whatever writes it is done",
        )

    def _known(
        self, path: Path, wanted: Sequence[Span], memory: sqlite3.Connection | None
    ) -> dict[Span, str] | None:
        """The hashes of these spans; None where the file changed meanwhile."""
        before, began = _status(path), time.time()
        known = _recall(memory, _identity(before), wanted) if memory else {}
        missing = [span for span in wanted if span not in known]
        if missing:
            fresh = self._hashed(path, missing)
            known |= fresh
            if _identity(_status(path)) != _identity(before):
                return None
            # Settled when reading began: a change after that could have the same times.
            if memory and _is_settled(before, began):
                _remember(memory, _identity(before), fresh)
        return known

    def digest(self, path: Path, spans: Sequence[Span]) -> str:
        """One hash over spans of a file and where they are, whatever their order."""
        ordered = sorted(set(spans))
        hashes = self.ranges(path, ordered)
        lines = [f"{o} {n} {h}" for (o, n), h in zip(ordered, hashes, strict=True)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _hashed(self, path: Path, spans: Sequence[Span]) -> dict[Span, str]:
        found = {}
        try:
            with path.open("rb", buffering=0) as file:
                for offset, length in spans:
                    found[offset, length] = self._hash(file.fileno(), path, offset, length)
        except OSError as error:
            raise GraphError(
                f"Cannot read {path}: {error.strerror or error}.", where=path
            ) from error
        return found

    def _hash(self, descriptor: int, path: Path, offset: int, length: int) -> str:
        hasher, done = hashlib.sha256(), 0
        os.lseek(descriptor, offset, os.SEEK_SET)
        while done < length:
            data = os.read(descriptor, min(CHUNK, length - done))
            if not data:
                raise GraphError(
                    f"{path} is too short for what is said to be in it.",
                    found=f"{offset + done} bytes",
                    expected=f"{offset + length} bytes",
                    where=path,
                    fix="fetch or build the bundle again",
                )
            hasher.update(data)
            done += len(data)
        self.bytes_read += length
        return hasher.hexdigest()

    @contextlib.contextmanager
    def _memory(self) -> Iterator[sqlite3.Connection | None]:
        connection = None
        if self.folder is not None:
            connection = _opened(self.folder / _NAME)
        try:
            yield connection
        finally:
            if connection is not None:
                connection.close()


def _opened(path: Path) -> sqlite3.Connection | None:
    """The memory at `path`, made or made anew where it is damaged; None where that fails."""
    for _ in range(2):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return _connected(path)
        except sqlite3.OperationalError:
            return None  # locked by another process for too long, or not writable
        except sqlite3.DatabaseError:
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:
            return None
    return None


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS hashes (device INTEGER, inode INTEGER, "
            "size INTEGER, changed INTEGER, status INTEGER, start INTEGER, "
            "length INTEGER, hash TEXT, PRIMARY KEY (device, inode, start, length))"
        )
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _recall(
    memory: sqlite3.Connection, identity: _Identity, spans: Sequence[Span]
) -> dict[Span, str]:
    device, inode, *state = identity
    try:
        rows = memory.execute(
            "SELECT start, length, hash FROM hashes WHERE device = ? AND inode = ? "
            "AND size = ? AND changed = ? AND status = ?",
            (device, inode, *state),
        ).fetchall()
    except sqlite3.Error:
        return {}
    wanted = set(spans)
    return {
        (start, length): value
        for start, length, value in rows
        if (start, length) in wanted and isinstance(value, str) and len(value) == 64
    }


def _remember(memory: sqlite3.Connection, identity: _Identity, hashes: dict[Span, str]) -> None:
    device, inode, *state = identity
    with contextlib.suppress(sqlite3.Error):
        memory.execute("BEGIN IMMEDIATE")
        # What is known of an earlier state of the file is of no more use.
        memory.execute(
            "DELETE FROM hashes WHERE device = ? AND inode = ? AND "
            "(size != ? OR changed != ? OR status != ?)",
            (device, inode, *state),
        )
        memory.executemany(
            "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(*identity, *span, value) for span, value in hashes.items()],
        )
        memory.execute("COMMIT")


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise GraphError(f"Cannot read {path}: {error.strerror or error}.", where=path) from error


def _identity(status: os.stat_result) -> _Identity:
    return (
        _signed(status.st_dev),
        _signed(status.st_ino),
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _signed(number: int) -> int:
    """A 64-bit number as SQLite keeps it: Windows' inodes use all bits."""
    return (number & (1 << 64) - 1) - (1 << 64) if number & (1 << 63) else number


def _is_settled(status: os.stat_result, now: float) -> bool:
    """Whether the last change is old enough; False for one that the clock says is to come."""
    return now - max(status.st_mtime, status.st_ctime) > _SETTLED_S
