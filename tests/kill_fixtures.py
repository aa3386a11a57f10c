"""Processes that are killed, interrupted, or out of room: at random, and at every single moment."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fault_fixtures import GREEDY, finish, forge, is_current, leftovers, require_sound, start

# -- killed at random -------------------------------------------------------------------------

ONE_STAGE = {"stages": {"transformer": "openvino"}}


class Killed:
    """Kills `ask_here` at random moments, and looks at what is left and what comes after.

    Moments are drawn evenly from the time that it takes once everything is imported.

    Every other time the bundle was compiled before, and is compiled anew (`rebuild`).
    """

    def __init__(self, bundle: Path, work: Path, seed: int) -> None:
        self.original, self.work = bundle, work
        self.chance = random.Random(seed)
        self.phases: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.swept = 0
        self.lasts = {False: self._lasts(False), True: self._lasts(True)}

    def run(self, number: int) -> None:
        """Once. Raises `AssertionError`."""
        place, argument, environment = self._prepared(number, old=bool(number % 2))
        moment = self.chance.uniform(0, 1) * self.lasts[bool(number % 2)]
        process = start("ask_here", argument, **environment)
        _wait_for(Path(argument["phases"]))
        time.sleep(moment)
        process.kill()
        out, _ = process.communicate()
        last = "answered" if out else Path(argument["phases"]).read_text().split()[-1]
        self.phases[last] += 1
        self._require_gone(environment["FAULT_RUN"])
        keys = require_sound(place / "bundle" / "_compiled" / "store")
        if number % 2:
            assert len(keys) == 1, "the old entry, or the new one"
        self.swept += bool(leftovers(place))
        after = finish(start("ask_here", {**argument, "options": {"compile": True}}, **environment))
        assert after["tokens"] == GREEDY, after
        assert list(after["compiled"]) == ["transformer"], after
        assert leftovers(place) == [], (last, leftovers(place))
        assert len(require_sound(place / "bundle" / "_compiled" / "store")) == 1
        derived = [p for p in (place / "bundle" / "_compiled" / "routes").iterdir() if p.is_dir()]
        assert [str(p) for p in derived] == [after["folder"]]
        self.outcomes[" ".join(after["outcomes"]) or "remembered"] += 1
        shutil.rmtree(place)

    def _prepared(self, number: int, *, old: bool) -> tuple[Path, dict[str, Any], dict[str, str]]:
        place = self.work / f"run {number}"
        shutil.copytree(self.original, place / "bundle")
        for name in ("cache", "tmp"):
            (place / name).mkdir()
        environment = {
            "TURNOUT_CACHE_DIR": str(place / "cache"),
            "TMPDIR": str(place / "tmp"),
            "FAULT_RUN": f"{os.getpid()}-{number}",
        }
        argument: dict[str, Any] = {
            "bundle": str(place / "bundle"),
            "route": ONE_STAGE,
            "options": {"compile": True},
        }
        if old:
            finish(start("ask_here", argument, **environment))
            argument["options"] = {"compile": True, "rebuild": True}
        argument["phases"] = str(place / "phases")
        return place, argument, environment

    def _lasts(self, old: bool) -> float:
        place, argument, environment = self._prepared(-1 - old, old=old)
        process = start("ask_here", argument, **environment)
        _wait_for(Path(argument["phases"]))
        begin = time.monotonic()
        finish(process)
        taken = time.monotonic() - begin
        shutil.rmtree(place)
        return taken

    def _require_gone(self, mark: str) -> None:
        """Nothing that the killed process started is there for long."""
        deadline = time.monotonic() + 5
        while found := _marked(mark):
            assert time.monotonic() < deadline, found
            time.sleep(0.02)


def _wait_for(phases: Path) -> None:
    deadline = time.monotonic() + 60
    while not phases.exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _marked(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"FAULT_RUN={mark}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


# -- at every operation on files --------------------------------------------------------------

CHANGING = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate"})


class Points:
    """Counts what this process does to files below `root`, and acts at the `at`-th time.

    `writing` counts only what takes room on a disk. With `for_good` it acts at every later time,
    too.
    """

    def __init__(
        self,
        root: Path,
        at: int,
        act: Callable[[], None],
        *,
        writing: bool = False,
        for_good: bool = False,
    ) -> None:
        self.root, self.at, self.act = str(root), at, act
        self.writing, self.for_good = writing, for_good
        self.count, self.on = 0, True

    def install(self) -> None:
        """For the rest of this process."""
        from turnout import files

        sys.addaudithook(self._hear)
        if self.writing:
            return
        fsync, exchange = os.fsync, files._exchange

        def counted(descriptor: int) -> None:
            self._point()
            fsync(descriptor)

        def exchanged(one: Path, other: Path) -> bool:
            self._point()
            done = exchange(one, other)
            self._point()
            return done

        os.fsync = counted
        files._exchange = exchanged

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or (event != "open" and event not in CHANGING):
            return
        where = arguments[1] if event == "os.link" else arguments[0]
        if not isinstance(where, (str, bytes, os.PathLike)):
            return
        if not os.fsdecode(where).startswith(self.root):
            return
        if self.writing:
            takes = event in {"os.mkdir", "os.link"}
            if event == "open":
                flags = arguments[2] if isinstance(arguments[2], int) else 0
                takes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if not takes:
                return
        self._point()

    def _point(self) -> None:
        if not self.on:
            return
        self.count += 1
        if self.count == self.at or (self.for_good and self.count > self.at):
            self.on = self.for_good
            self.act()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise KeyboardInterrupt


def fill() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


ACTS: dict[str, Callable[[], None]] = {"kill": kill, "interrupt": interrupt, "fill": fill}


def every_point(argument: dict[str, Any]) -> dict[str, Any]:
    """Prepare `bundle` again and again, each time with a fault at the next operation on files.

    `act` is one of `ACTS`, `old` whether it was compiled before and is compiled anew, `full` below
    which folder the disk is full. Returns how often, and how each ended.
    """
    import turnout.compiling.prepare
    import turnout.compiling.sharing
    import turnout.compiling.verify  # noqa: F401

    work = Path(argument["work"])
    ends: Counter[str] = Counter()
    left = 0
    for at in range(1, 2000):
        place = work / f"point {at}"
        shutil.copytree(argument["bundle"], place / "bundle")
        os.environ["TURNOUT_CACHE_DIR"] = str(place / "cache")
        if argument["old"]:
            assert _forked(place, None, {}) == "ready"
        full = place / argument["full"] if argument.get("full") else None
        end = _forked(place, Points(
            full or place, at, ACTS[argument["act"]],
            writing=full is not None, for_good=full is not None,
        ), {"rebuild": argument["old"]})  # fmt: skip
        keys = require_sound(place / "bundle" / "_compiled" / "store")
        require_sound(place / "cache" / "store")
        if argument["old"]:
            assert len(keys) >= 1, (at, end, "neither old nor new")
        found = leftovers(place)
        if argument["act"] == "fill":
            assert not found, (at, end, found)
        left += bool(found)
        assert _forked(place, None, {}) == "ready", (at, end)
        assert leftovers(place) == [], (at, end, leftovers(place))
        ends[end] += 1
        shutil.rmtree(place)
        if end == "ready" and argument["act"] != "fill":
            return {"points": at - 1, "ends": dict(ends), "left": left}
        if end == "not reached":
            return {"points": at - 1, "ends": dict(ends), "left": left}
    raise AssertionError("no end of points")


def _forked(place: Path, points: Points | None, options: dict[str, Any]) -> str:
    """Prepare in a fork of this process: "ready", "killed", "interrupted", or what was said."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        said = "crashed"
        try:
            said = _prepare_forged(place, points, options)
        except BaseException as error:
            said = f"crashed: {type(error).__name__}: {error}"
        finally:
            if points is not None:
                points.on = False
            os.write(writer, said.encode()[:4000])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(pid, 0)
    assert not said.startswith("crashed"), said
    return said or "killed"


def _prepare_forged(place: Path, points: Points | None, options: dict[str, Any]) -> str:
    from turnout.bundle import Bundle
    from turnout.compiling import obtain, receipts
    from turnout.compiling.options import CompileOptions
    from turnout.compiling.prepare import prepare
    from turnout.errors import WriteError

    obtain.call_worker = lambda kind, argument, limit, doing: forge(argument)
    receipts._SETTLED_NS = 0
    bundle = Bundle.open(place / "bundle")
    if points is not None:
        points.install()
    try:
        with prepare(
            bundle, bundle.config, CompileOptions(compile=True, share="off", **options)
        ) as prepared:
            if points is not None:
                points.on = False
            if prepared.uncompiled:
                return "uncompiled: " + "; ".join(sorted(set(prepared.uncompiled.values())))
            assert is_current(place / "bundle", prepared.folder)
            reached = points is None or points.count >= points.at
            return "ready" if points is None or not points.for_good or reached else "not reached"
    except KeyboardInterrupt:
        return "interrupted"
    except WriteError as error:
        return f"refused: {error.problem.replace(str(place), '')}"


@contextlib.contextmanager
def small_disk(place: Path, nbytes: int) -> Iterator[Path]:
    """A file system of that size at `place`. Raises `OSError` where none can be mounted."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise OSError("no file system can be mounted")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def every_size(argument: dict[str, Any]) -> dict[str, Any]:
    """Prepare `bundle` on a file system at `disk` with room for nothing beside it, then for a page
    more, and so on until all fits; where it was stored.
    """
    disk = Path(argument["disk"])
    size = sum(path.stat().st_size for path in Path(argument["bundle"]).iterdir())
    ends: Counter[str] = Counter()
    for pages in range(size // 4096 + 4, size // 4096 + 400, 2):
        with small_disk(disk, pages * 4096):
            try:
                shutil.copytree(argument["bundle"], disk / "bundle")
            except OSError:
                continue
            cache = disk.with_name(f"cache {pages}")
            # `_prepare_forged` looks for the bundle beside the cache.
            os.environ["TURNOUT_CACHE_DIR"] = str(cache)
            end = _forked(disk, None, {})
            assert end == "ready", (pages, end)
            assert leftovers(disk, cache) == [], pages
            within = require_sound(disk / "bundle" / "_compiled" / "store")
            require_sound(cache / "store")
            ends["in the bundle" if len(within) == 2 else "in the cache"] += 1
            if len(within) == 2 and not list((cache / "bundles").rglob("*.onnx")):
                return dict(ends)
    raise AssertionError(f"it never fits: {ends}")
