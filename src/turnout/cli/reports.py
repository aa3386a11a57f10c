"""Documents that a command writes and prints at its end, after work that must not be lost."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path


def check_outputs(paths: Iterable[Path | None], *, overwrite: bool) -> None:
    """Raise for files that could not be written, before there is anything to write.

    `UsageError` for one that is given twice, a folder, or one in a folder that is not there;
    `OutputExistsError` for one that is there and not to be replaced; `WriteError` for a folder
    that cannot be written.
    """
    from turnout.errors import OutputExistsError, UsageError
    from turnout.files import explain_os_error

    seen: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        resolved = path.resolve()
        if resolved in seen:
            raise UsageError("One file is to hold two documents.", found=path, where=path)
        seen.add(resolved)
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", expected="a file's name", where=path)
        if path.exists() and not overwrite:
            raise OutputExistsError(
                f"{path} exists already.",
                where=path,
                fix="choose another name, or replace it with --overwrite",
            )
        if not path.parent.is_dir():
            raise UsageError(
                f"The folder of {path} is not there.", where=path.parent, fix="make it first"
            )
        try:
            handle, name = tempfile.mkstemp(dir=path.parent)
            os.close(handle)
            Path(name).unlink()
        except OSError as error:
            raise explain_os_error(error, path) from error


def write(path: Path, data: bytes, *, quiet: bool) -> None:
    """Write a document, whole or not at all.

    Where that fails after all, it is kept in the system's temporary folder, which the error says.
    """
    from turnout.cli.sessions import note
    from turnout.errors import WriteError
    from turnout.files import write_atomic

    try:
        write_atomic(path, data)
    except WriteError as error:
        kept = _kept(data, path.suffix)
        if kept is None:
            raise
        raise WriteError(
            error.problem, found=f"it is kept as {kept}", where=path, fix="move it from there"
        ) from error
    note(f"Wrote {path} ({len(data) / 1e6:.1f} MB).", quiet=quiet)


def _kept(data: bytes, suffix: str) -> Path | None:
    try:
        handle, name = tempfile.mkstemp(prefix="turnout-", suffix=suffix)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError:
        return None
    return Path(name)


def print_document(data: bytes) -> None:
    """A JSON document on stdout, as UTF-8."""
    print_text(data.decode("utf-8"))


def print_text(text: str) -> None:
    """Text on stdout; what its encoding lacks is replaced."""
    from turnout.cli.text import writer

    writer(sys.stdout)(text)
