"""The store: compiled jobs by their key, each complete or not there at all.

An entry is a folder named after the first half of its key, with the artifacts and a manifest.
It is written to a staging folder beside it, verified, flushed and renamed; one process at a time
writes a key, and others wait for it and use what it made. What is read back is not trusted: the
manifest is checked against the files, which lie in the entry's folder itself and are no links.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from turnout.compiling import leftovers
from turnout.compiling.hashes import ContentHashes
from turnout.compiling.leftovers import folder_bytes
from turnout.errors import CompileError, WriteError
from turnout.files import publish_folder, read_plain

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_DIGITS = 32  # of a key, in the name of its folder: long paths are scarce on Windows
_MAX_MANIFEST = 8 << 20
_ENTRY = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")
_LOCK_S = 7200.0


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of an entry, by its name: size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an entry is: the key and its inputs, the graph of every stage, all files.

    `created` is in seconds since 1970, `took_s` what compiling took, `bytes_saved` what sharing
    keeps off the disk. `checked` says how the artifacts were proven, such as "run" or "structure".
    """

    schema_version: int
    key: str
    inputs: dict[str, Any]
    graphs: dict[str, str]
    files: tuple[StoredFile, ...]
    created: float
    took_s: float
    bytes_saved: int = 0
    checked: str = "structure"
    tools: dict[str, str] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Entry:
    """A complete entry of a store."""

    folder: Path
    manifest: Manifest

    @property
    def key(self) -> str:
        """Its whole key."""
        return self.manifest.key

    def graph(self, stage: str) -> Path:
        """The compiled graph of a stage of the job."""
        return self.folder / self.manifest.graphs[stage]


@dataclass(frozen=True)
class Broken:
    """What lies in a store and is no usable entry, and why."""

    folder: Path
    problem: str


class Store:
    """The entries in `folder`, which need not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self, key: str) -> Entry | None:
        """The entry of a key; None where there is none, or none that is complete."""
        folder = self.folder / key[:_DIGITS]
        try:
            found = read_entry(folder)
        except CompileError:
            return None
        return found if found.key == key else None

    def entries(self) -> Iterator[Entry | Broken]:
        """Everything in the store, by name; what cannot be used as `Broken`."""
        for folder in sorted(self._folders()):
            try:
                yield read_entry(folder)
            except CompileError as error:
                yield Broken(folder, error.problem)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Be the only process that writes this key; waits for another one that does."""
        with self._locked(key[:_DIGITS]):
            yield

    @contextlib.contextmanager
    def staging(self, key: str) -> Iterator[Path]:
        """An empty folder to write the entry of a key in, under its lock; it goes at the end.

        What a process that was killed left there is removed first.
        """
        with leftovers.staging(self.folder, key[:_DIGITS]) as staging:
            yield staging

    def publish(self, staging: Path, manifest: Manifest) -> Entry:
        """Make an entry of a staging folder, in the place of what is there under its key."""
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        (staging / MANIFEST).write_bytes(data)
        target = self.folder / manifest.key[:_DIGITS]
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            target.unlink()  # planted: nobody else writes names like this one
        publish_folder(staging, target)
        return read_entry(target)

    def remove(self, folder: Path, *, wait_s: float = _LOCK_S) -> int:
        """Remove an entry, usable or not, under its lock; the bytes that it took.

        Raises `WriteError` where another process works on it for more than `wait_s` seconds.
        """
        if folder.parent != self.folder:
            raise CompileError(f"{folder} is not in the store.", expected=f"inside {self.folder}")
        with self._locked(folder.name, wait_s):
            size = folder_bytes(folder)
            # Renamed first, so that nobody finds half of it.
            doomed = leftovers.doomed_path(self.folder, folder.name)
            leftovers.remove(doomed)
            try:
                folder.rename(doomed)
            except FileNotFoundError:
                return 0
            leftovers.remove(doomed)
        return size

    def sweep(self) -> int:
        """Remove what killed processes left, where nobody is at work; the bytes that it took."""
        return leftovers.sweep(self.folder)

    def abandoned(self) -> list[Path]:
        """What `sweep` would remove now."""
        return leftovers.abandoned(self.folder)

    def verify(self, entry: Entry, hashes: ContentHashes | None = None) -> None:
        """Compare every file of an entry with its hash. Raises `CompileError`."""
        hashes = hashes or ContentHashes(None)
        for file in entry.manifest.files:
            found = hashes.file(entry.folder / file.name)
            if found != file.sha256:
                raise CompileError(
                    f"{file.name} of a compiled stage is not what was written.",
                    found=f"SHA-256 {found[:16]}...",
                    expected=f"{file.sha256[:16]}...",
                    where=entry.folder,
                    fix="remove it with `turnout cache remove`; it is compiled again when needed",
                )

    def _folders(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if _ENTRY.fullmatch(path.name)]
        except OSError:
            return []

    @contextlib.contextmanager
    def _locked(self, name: str, wait_s: float = _LOCK_S) -> Iterator[None]:
        path = leftovers.lock_path(self.folder, name)
        lock = FileLock(path, timeout=wait_s)
        try:
            lock.acquire()
        except Timeout as error:
            raise WriteError(
                f"Another process has been at work on {name} for {wait_s:g} seconds.",
                where=path,
                fix="wait for it, or end it",
            ) from error
        try:
            yield
        finally:
            lock.release()


def read_entry(folder: Path) -> Entry:
    """The entry in `folder`: its manifest, and its files with the sizes that it says.

    Raises `CompileError` for anything else, links included.
    """
    if folder.is_symlink():
        raise _unusable(folder, "it is a link")
    try:
        data = read_plain(folder / MANIFEST, _MAX_MANIFEST)
        manifest = msgspec.json.decode(data, type=Manifest)
    except OSError as error:
        raise _unusable(folder, f"no manifest ({error.strerror})") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unusable(folder, f"its manifest cannot be read ({error})") from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise _unusable(folder, f"its manifest is of version {manifest.schema_version}")
    if manifest.key[:_DIGITS] != folder.name:
        raise _unusable(folder, "its manifest is that of another entry")
    names = {file.name for file in manifest.files}
    if not names.issuperset(manifest.graphs.values()):
        raise _unusable(folder, "its manifest names graphs that are not among its files")
    for file in manifest.files:
        _check_file(folder, file)
    return Entry(folder, manifest)


def list_files(folder: Path) -> tuple[StoredFile, ...]:
    """The files of a staging folder, hashed. Raises `CompileError` for what is no plain file."""
    hashes = ContentHashes(None)
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            raise CompileError(
                f"{path.name} was left by the compiler and is no plain file.",
                expected="files only, in one folder",
                where=folder,
            )
        if path.name != MANIFEST:
            found.append(StoredFile(path.name, path.stat().st_size, hashes.file(path)))
    return tuple(found)


def manifest_of(
    inputs: dict[str, Any], key: str, staging: Path, graphs: dict[str, str], **facts: Any
) -> Manifest:
    """The manifest of what lies in a staging folder; `facts` are its other fields."""
    return Manifest(
        schema_version=SCHEMA_VERSION,
        key=key,
        inputs=inputs,
        graphs=graphs,
        files=list_files(staging),
        created=time.time(),
        **facts,
    )


def _check_file(folder: Path, file: StoredFile) -> None:
    path = folder / file.name
    if Path(file.name).name != file.name or file.name in {"", ".", "..", MANIFEST}:
        raise _unusable(folder, f"it names the file {file.name!r}")
    if path.is_symlink() or not path.is_file():
        raise _unusable(folder, f"{file.name} is missing, or no plain file")
    size = path.stat().st_size
    if size != file.size:
        raise _unusable(folder, f"{file.name} has {size} bytes where {file.size} were written")


def _unusable(folder: Path, why: str) -> CompileError:
    return CompileError(
        f"{folder.name} is no usable entry of the store: {why}.",
        where=folder,
        fix="remove it with `turnout cache remove`; it is compiled again when needed",
    )
