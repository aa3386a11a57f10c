"""Documents that a command writes and prints at its end, after work that must not be lost."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.errors import OutputExistsError


def check_outputs(
    paths: Iterable[Path | None],
    *,
    overwrite: bool,
    bundles: Iterable[Path],
    inputs: Iterable[Path | None] = (),
) -> None:
    """Raise for files that could not be written, before there is anything to write.

    `UsageError` for one that is given twice, is no regular file, belongs to one of the `bundles`,
    is one of the `inputs`, or is in a folder that is not there; `OutputExistsError` for one that
    is there and not to be replaced; `WriteError` for a folder that cannot be written.
    """
    from turnout.errors import UsageError

    seen: set[Path] = set()
    read = {_target(path) for path in inputs if path is not None}
    bundles = tuple(bundles)
    for path in paths:
        if path is None:
            continue
        target = _target(path)
        if target in seen:
            raise UsageError("One file is to hold two documents.", found=path, where=path)
        if target in read:
            raise UsageError("One file is to be read and to be replaced.", found=path, where=path)
        seen.add(target)
        _check(path, target, overwrite=overwrite)
        if target.exists() and any(_belongs(path, target, bundle) for bundle in bundles):
            raise UsageError(
                f"{path} is one of the bundle's own files, which are never changed.",
                where=target,
                fix="choose another name",
            )


def _belongs(path: Path, target: Path, bundle: Path) -> bool:
    """Whether it is in the bundle's folder, or what a link there leads to, as in a hub's cache."""
    folders = (bundle.absolute(), bundle.resolve())
    if any(
        place.is_relative_to(folder) for place in (path.absolute(), target) for folder in folders
    ):
        return True
    return any(found.is_symlink() and found.resolve() == target for found in bundle.rglob("*"))


def _check(path: Path, target: Path, *, overwrite: bool) -> None:
    from turnout.errors import UsageError
    from turnout.files import explain_os_error, kind_of

    # Asked of the path itself: a pipe that a shell has opened has a link that leads nowhere.
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is {kind_of(path)}.", expected="the name of a file", where=path)
    if target.exists() and not overwrite:
        raise _exists(path)
    if not target.parent.is_dir():
        raise UsageError(
            f"The folder of {path} is not there.", where=target.parent, fix="make it first"
        )
    try:
        handle, name = tempfile.mkstemp(dir=target.parent)
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        raise explain_os_error(error, path) from error


def _target(path: Path) -> Path:
    """The file that is written: where a link leads to, and not the link."""
    from turnout.errors import UsageError

    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{path} leads nowhere.", found=error, where=path) from error


def _exists(path: Path) -> OutputExistsError:
    from turnout.errors import OutputExistsError

    return OutputExistsError(
        f"{path} exists already.",
        where=path,
        fix="choose another name, or replace it with --overwrite",
    )


def write_all(
    documents: Mapping[Path | None, Callable[[], bytes]], *, overwrite: bool, quiet: bool
) -> None:
    """Write each document that has a path; one that fails does not keep another from it.

    Raises the first error, after all others were shown.
    """
    from turnout.cli.output import report_error
    from turnout.errors import TurnoutError

    failed: list[Exception] = []
    for path, made in documents.items():
        if path is None:
            continue
        try:
            write(path, made(), overwrite=overwrite, quiet=quiet)
        except Exception as error:  # a defect of one document must not cost the other
            failed.append(error)
    for other in failed[1:]:
        report_error(other if isinstance(other, TurnoutError) else TurnoutError(str(other)))
    if failed:
        raise failed[0]


def write(path: Path, data: bytes, *, overwrite: bool, quiet: bool) -> None:
    """Write a document, whole or not at all.

    Where that fails after all, or another one is there by now, it is kept in the system's temporary
    folder, which the error says.
    """
    from turnout.cli.sessions import note
    from turnout.errors import OutputExistsError, WriteError
    from turnout.files import write_atomic

    try:
        target = _target(path)
        if target.exists() and not overwrite:
            raise _exists(path)
        write_atomic(target, data)
    except (WriteError, OutputExistsError) as error:
        kept = _kept(data, path.suffix)
        if kept is None:
            raise
        raise WriteError(
            error.problem, found=f"it is kept as {kept}", where=path, fix="move it from there"
        ) from error
    note(f"Wrote {path} ({len(data) / 1e6:.1f} MB).", quiet=quiet)


def _kept(data: bytes, suffix: str) -> Path | None:
    name: str | None = None
    try:
        handle, name = tempfile.mkstemp(prefix="turnout-", suffix=suffix)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        return None
    return Path(name)


def print_document(data: bytes) -> None:
    """A JSON document on stdout."""
    from turnout.cli.output import for_stdout

    print_text(for_stdout(data.decode("utf-8")))


def print_text(text: str) -> None:
    """Text on stdout; what its encoding lacks is replaced."""
    from turnout.cli.text import writer

    writer(sys.stdout)(text)
