"""Folders appear whole or not at all, and what the killed leave is removed, and only that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnout import files
from turnout.errors import OutputExistsError, UsageError, WriteError

HOURS_AGO = 7200


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid


def leave(folder: Path, process: int, age: float) -> Path:
    """A staging folder as a process that was killed leaves it."""
    name = files._staging_prefix().replace(f".{os.getpid()}.", f".{process}.")
    left = folder / f"{name}abc"
    left.mkdir()
    (left / "model.data").write_bytes(b"half")
    then = left.stat().st_mtime - age
    for path in (left / "model.data", left):
        os.utime(path, (then, then))
    return left


def test_a_folder_is_not_there_before_its_block_ends(tmp_path):
    target = tmp_path / "made"
    with files.atomic_folder(target) as staging:
        (staging / "file").write_text("whole")
        assert not target.exists()
    assert (target / "file").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_in_the_block_leaves_nothing(tmp_path, error):
    with pytest.raises(error), files.atomic_folder(tmp_path / "a" / "b") as staging:
        (staging / "file").write_text("half")
        raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "dangling link"])
def test_what_appears_meanwhile_is_kept(tmp_path, kind):
    target = tmp_path / "made"

    def appear():
        if kind == "file":
            target.write_text("mine")
        elif kind == "dangling link":
            target.symlink_to(tmp_path / "nowhere")
        else:
            target.mkdir()
            if kind == "folder":
                (target / "mine").write_text("mine")

    with pytest.raises(OutputExistsError), files.atomic_folder(target) as staging:
        (staging / "file").write_text("new")
        appear()
    assert os.path.lexists(target)
    assert not (target / "file").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_overwriting_from_inside_the_old_folder_works(tmp_path, monkeypatch):
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    with files.atomic_folder(Path("../made"), overwrite=True) as staging:
        (staging / "file").write_text("new")
    assert (tmp_path / "made" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("swaps", [True, False], ids=["in one step", "in two"])
def test_overwriting_replaces_the_whole_folder(tmp_path, monkeypatch, swaps):
    if not swaps:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    with files.atomic_folder(tmp_path / "made", overwrite=True) as staging:
        (staging / "new").write_text("new")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two names")
def test_there_is_no_moment_without_the_old_or_the_new_folder(tmp_path, monkeypatch):
    """Killed in the middle of replacing, a process leaves one of them whole at the name."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    monkeypatch.setattr(files, "_step_aside", None)
    real = files._exchange

    def killed(one, other):
        assert real(one, other)
        raise SystemExit

    monkeypatch.setattr(files, "_exchange", killed)
    with pytest.raises(SystemExit), files.atomic_folder(tmp_path / "made", overwrite=True) as new:
        (new / "new").write_text("new")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["new"]


def test_an_old_folder_that_stepped_aside_is_never_taken_for_rubbish(tmp_path, monkeypatch):
    """Where names cannot be exchanged, a kill between two renames leaves only that copy."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    code = (
        "import os, pathlib, signal, sys\n"
        "from turnout import files\n"
        "files._exchange = lambda one, other: False\n"
        "real = pathlib.Path.replace\n"
        "def replace(self, target):\n"
        "    real(self, target)\n"
        "    os._exit(9)\n"
        "pathlib.Path.replace = replace\n"
        "with files.atomic_folder(pathlib.Path(sys.argv[1]), overwrite=True):\n"
        "    pass\n"
    )
    child = subprocess.run([sys.executable, "-c", code, tmp_path / "made"], check=False)
    assert child.returncode == 9
    then = tmp_path.stat().st_mtime - HOURS_AGO
    for path in tmp_path.rglob("*"):
        os.utime(path, (then, then))
    with files.atomic_folder(tmp_path / "other"):
        pass
    assert [path.read_text() for path in tmp_path.rglob("old")] == ["old"]


def test_an_old_folder_that_cannot_come_back_is_kept_aside(tmp_path, monkeypatch):
    """Neither the new folder nor the old one gets the name: the old one is the only copy."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    real = Path.replace

    def replace(self, target):
        if Path(target).name == "made" and Path(target).parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(WriteError), files.atomic_folder(tmp_path / "made", overwrite=True):
        pass
    assert [path.read_text() for path in tmp_path.rglob("old")] == ["old"]


def test_a_name_that_the_file_system_does_not_take_is_a_write_error(tmp_path):
    with (
        pytest.raises(WriteError, match="name too long"),
        files.atomic_folder(tmp_path / ("x" * 300)) as staging,
    ):
        (staging / "file").write_text("new")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    left = leave(tmp_path, dead_process(), HOURS_AGO)
    with files.atomic_folder(tmp_path / "made"):
        pass
    assert not left.exists()


@pytest.mark.parametrize(
    ("process", "age"), [("alive", HOURS_AGO), ("dead", 0)], ids=["alive", "just written"]
)
def test_what_may_be_at_work_is_not_removed(tmp_path, process, age):
    left = leave(tmp_path, os.getppid() if process == "alive" else dead_process(), age)
    with files.atomic_folder(tmp_path / "made"):
        pass
    assert left.exists()


def test_a_refused_output_is_a_usage_error(tmp_path):
    (tmp_path / "made").mkdir()
    with pytest.raises(UsageError), files.atomic_folder(tmp_path / "made"):
        raise AssertionError("the block must not run")


def test_a_file_is_written_whole_with_ordinary_permissions(tmp_path):
    files.write_atomic(tmp_path / "file", "größe\n")
    assert (tmp_path / "file").read_bytes() == "größe\n".encode()
    mask = os.umask(0)
    os.umask(mask)
    if os.name != "nt":
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
