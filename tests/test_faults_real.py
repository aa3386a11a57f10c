"""Faults, with the real compilers: what is loaded then gives the reference's tokens, or what the
runtime itself says of the weights that are there now.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compile_fixtures import make_toy
from fault_fixtures import (
    GREEDY,
    HERE,
    IDS,
    LOG,
    all_files,
    finish,
    leftovers,
    phases,
    require_sound,
    start,
)
from kill_fixtures import ONE_STAGE, Killed, small_disk
from session_fixtures import Bundles, edit_json
from turnout.bundle import Bundle
from turnout.compiling import obtain
from turnout.compiling.options import CompileOptions
from turnout.errors import TurnoutError
from turnout.routing import Route, route
from turnout.runtime import Session

pytest_plugins = ("session_plugin",)
pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.slow, pytest.mark.openvino]

OPENVINO = {"ep": "openvino"}
# How a bundle is prepared: its kind, its route, and the options of preparing.
WAYS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "compiled": ("two sessions", OPENVINO, {"compile": True, "share": "off"}),
    "shared by the EP": ("static", OPENVINO, {"compile": True, "share": "ep"}),
    "packed": ("two sessions", {}, {"share": "prepacked"}),
}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What real children were asked to compile."""
    asked: list[str] = []
    call = obtain.call_worker

    def counted(kind: str, argument: dict[str, Any], limit: float, doing: str) -> dict[str, Any]:
        asked.append("+".join(member["stage"] for member in argument["members"]))
        return call(kind, argument, limit, doing)

    monkeypatch.setattr(obtain, "call_worker", counted)
    return asked


def chosen(folder: Path, asked: dict[str, Any]) -> tuple[Bundle, Route]:
    bundle = Bundle.open(folder)
    return bundle, route(bundle, reproducible=True, **asked)


def ask(folder: Path, asked: dict[str, Any], options: dict[str, Any]) -> list[int]:
    """The tokens of a session that is prepared so."""
    bundle, decided = chosen(folder, asked)
    with Session(bundle, decided, preparing=CompileOptions(**options)) as session:
        return tokens(session)


def tokens(session: Session) -> list[int]:
    return list(session.generate(IDS, max_new_tokens=8, greedy=True).token_ids)


def plain(folder: Path) -> list[int]:
    """What the runtime says on the CPU, of a copy that nothing was ever prepared of."""
    copy = folder.with_name(f"{folder.name} plain")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("_compiled"))
    with Session(copy) as session:
        found = tokens(session)
    shutil.rmtree(copy)
    return found


# -- children ----------------------------------------------------------------------------------

CHILDREN = {
    # the child: whether what it left is used, and what is said otherwise
    "crash_after": (True, ""),
    "crash_halfway": (False, "crashed"),
    "write_nothing": (False, "no compiled graph was left"),
    "compile_nothing": (False, "Nothing was compiled"),
    "as_another_ep": (False, "compiled by another EP"),
    "hang": (False, "did not answer within"),
}


@pytest.mark.skipif(os.name == "nt", reason="a signal makes the crash")
@pytest.mark.parametrize("child", CHILDREN)
def test_whatever_a_child_does_the_answer_is_right(
    bundles: Bundles, own_cache: Path, monkeypatch: pytest.MonkeyPatch, child: str
) -> None:
    """B19: what is sound is used, what is not is said and left out, and nothing of it stays."""
    used, problem = CHILDREN[child]
    folder = bundles("pipeline")
    monkeypatch.setitem(obtain._WORKERS, "context", f"compile_fixtures:{child}")
    bundle, decided = chosen(folder, ONE_STAGE)
    said: list[str] = []
    options = CompileOptions(compile=True, timeout_s=2.0 if child == "hang" else 120.0)
    with Session(bundle, decided, preparing=options, say=said.append) as session:
        assert session.prepared is not None
        assert list(session.prepared.compiled) == (["transformer"] if used else [])
        assert list(session.prepared.uncompiled) == ([] if used else ["transformer"])
        assert tokens(session) == GREEDY
    assert problem in " ".join(said)
    assert leftovers(folder, own_cache) == []
    stored = require_sound(folder / "_compiled" / "store")
    assert len(stored) == used


@pytest.mark.skipif(os.name == "nt", reason="asks /proc")
def test_a_child_that_hangs_goes_with_its_descendants(
    bundles: Bundles, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that left its process group."""
    log = tmp_path / "pids"
    monkeypatch.setenv(LOG, str(log))
    monkeypatch.setitem(obtain._WORKERS, "context", f"{HERE.stem}:hang_with_descendants")
    folder = bundles("pipeline")
    begin = time.monotonic()
    assert ask(folder, ONE_STAGE, {"compile": True, "timeout_s": 2.0}) == GREEDY
    assert time.monotonic() - begin < 30
    pids = [int(word) for word in log.read_text().split()]
    assert len(pids) == 2
    assert not any(_is_alive(pid) for pid in pids)
    assert leftovers(folder, own_cache) == []


def _is_alive(pid: int) -> bool:
    """Whether it runs; what was killed may wait for somebody to ask how it ended."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- killed ------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="looks for children in /proc")
@pytest.mark.timeout(600)
def test_a_process_that_is_killed_at_any_moment_leaves_the_old_or_the_new(
    bundles: Bundles, tmp_path: Path
) -> None:
    """20 of the 200 runs of benchmarks/faults.py."""
    killed = Killed(bundles("pipeline"), tmp_path, seed=11)
    for number in range(20):
        killed.run(number)
    assert len(killed.phases) > 2, killed.phases


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and swaps folders in one call")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("old", [False, True], ids=["fresh", "anew"])
@pytest.mark.parametrize("act", ["kill", "interrupt"])
def test_at_every_operation_on_files(tmp_path: Path, act: str, old: bool) -> None:
    """Killed, or interrupted, there: the store is whole, and the next run leaves nothing behind."""
    toy = make_toy(tmp_path / "toy")
    argument = {"bundle": str(toy.folder), "work": str(tmp_path / "w"), "act": act, "old": old}
    found = finish(start("kill_fixtures:every_point", argument), timeout=600)
    assert found["points"] > 60
    if act == "interrupt":
        assert found["ends"] == {"interrupted": found["points"], "ready": 1}
        assert found["left"] == 0, "Ctrl-C leaves nothing"


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and swaps folders in one call")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("old", [False, True], ids=["fresh", "anew"])
@pytest.mark.parametrize("full", ["bundle", "."], ids=["its own disk", "every disk"])
def test_a_disk_that_is_full_from_any_moment_on(tmp_path: Path, full: str, old: bool) -> None:
    """The other place is taken, or it is said; nothing is left, and nothing wrong is stored."""
    toy = make_toy(tmp_path / "toy")
    argument = {
        "bundle": str(toy.folder), "work": str(tmp_path / "w"), "act": "fill", "old": old,
        "full": full,
    }  # fmt: skip
    found = finish(start("kill_fixtures:every_point", argument), timeout=600)
    assert found["points"] > 15
    if full == "bundle":
        assert set(found["ends"]) <= {"ready", "not reached"}
    else:
        refused = {end for end in found["ends"] if "cannot be written anywhere" in end}
        assert refused
        assert set(found["ends"]) - refused <= {"ready", "not reached"}


@pytest.mark.timeout(600)
def test_a_disk_of_any_size(tmp_path: Path, own_cache: Path) -> None:
    """Every page of a small file system more: the writing itself fails, in the middle."""
    toy = make_toy(tmp_path / "toy")
    try:
        with small_disk(tmp_path / "disk", 1 << 20):
            pass
    except OSError as error:
        pytest.skip(str(error))
    command = {"disk": str(tmp_path / "disk"), "bundle": str(toy.folder)}
    found = finish(start("kill_fixtures:every_size", command), timeout=600)
    assert found["in the bundle"] > 0
    assert found["in the cache"] > 10


@pytest.mark.parametrize("elsewhere", [True, False], ids=["room in the cache", "no room at all"])
@pytest.mark.parametrize("kilobytes", [540, 700, 1000])
def test_a_real_compiler_on_a_full_disk(
    bundles: Bundles, tmp_path: Path, own_cache: Path, kilobytes: int, elsewhere: bool
) -> None:
    """The EP says that it could not write, and not why; where there is room, it is used."""
    source = bundles("pipeline")
    if not elsewhere:
        (own_cache / "store").parent.mkdir(exist_ok=True)
        (own_cache / "store").write_text("in the way")
    try:
        with small_disk(tmp_path / "disk", kilobytes << 10) as disk:
            folder = Path(shutil.copytree(source, disk / "bundle"))
            said: list[str] = []
            bundle, decided = chosen(folder, ONE_STAGE)
            options = CompileOptions(compile=True)
            with Session(bundle, decided, preparing=options, say=said.append) as session:
                assert session.prepared is not None
                assert list(session.prepared.compiled) == ["transformer"] * elsewhere
                assert tokens(session) == GREEDY
            assert bool(said) != elsewhere
            assert elsewhere or "No space left" in said[0]
            assert require_sound(folder / "_compiled" / "store") == []
            assert leftovers(disk, own_cache) == []
    except OSError as error:
        pytest.skip(str(error))


# -- at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worker", "count", "compilations"),
    [
        ("forge_slowly", 2, 1),
        ("forge_slowly", 8, 1),
        ("forge_the_second_time", 8, 1),
    ],
)
def test_of_processes_that_compile_the_same_one_does_and_the_rest_wait(
    tmp_path: Path, worker: str, count: int, compilations: int
) -> None:
    """One that fails does not take the place away from under those that wait."""
    toy = make_toy(tmp_path / "toy")
    gate, log = tmp_path / "gate", tmp_path / "log"
    log.touch()
    argument = {"bundle": str(toy.folder), "worker": worker, "gate": str(gate)}
    argument["options"] = {"share": "off"}
    running = [start("prepare_here", argument, **{LOG: str(log)}) for _ in range(count)]
    time.sleep(1)
    gate.touch()
    found = [finish(process) for process in running]
    # Two stages: so many compilations of each.
    assert len(log.read_text().splitlines()) == 2 * compilations
    whole = [one for one in found if len(one["compiled"]) == 2]
    assert len(whole) >= count - 1
    assert len({json.dumps([one["folder"], one["compiled"]]) for one in whole}) == 1
    assert leftovers(toy.folder) == []
    assert len(require_sound(toy.folder / "_compiled" / "store")) == 2


def test_two_real_processes_compile_once_and_answer_alike(bundles: Bundles) -> None:
    folder = bundles("pipeline")
    argument = {"bundle": str(folder), "route": ONE_STAGE, "options": {"compile": True}}
    found = [finish(process) for process in [start("ask_here", argument) for _ in range(2)]]
    assert [one["tokens"] for one in found] == [GREEDY, GREEDY]
    outcomes = [outcome for one in found for outcome in one["outcomes"]]
    assert sorted(outcomes) == ["compiled", "stored"]


# -- places ------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    folder = Path("/dev/shm") / f"turnout test {os.getpid()}"
    if not folder.parent.is_dir() or folder.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_bundle_runs_wherever_it_goes_and_is_compiled_once(
    bundles: Bundles, compiled: list[str], tmp_path: Path, way: str
) -> None:
    """A8: renamed, moved, with spaces and other letters, and far down."""
    kind, asked, options = WAYS[way]
    folder = bundles(kind)
    assert ask(folder, asked, options) == GREEDY
    assert compiled
    compiled.clear()
    deep = tmp_path.joinpath(*["a folder of forty letters, and then some"] * 8)
    assert len(str(deep)) > 300
    for place in (
        tmp_path / "ein Bündel, 日本語 и так далее",
        tmp_path / "%s 'quoted' $HOME; #1",
        deep / "bundle",
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = folder.rename(place)
        assert ask(folder, asked, options) == GREEDY
        assert compiled == []
        assert leftovers(folder) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_bundle_on_another_file_system_than_the_cache(
    bundles: Bundles, elsewhere: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it can be written, and where all goes to the cache and is found from there."""
    kind, asked, options = WAYS[way]
    folder = Path(shutil.copytree(bundles(kind), elsewhere / "bundle"))
    assert ask(folder, asked, options) == GREEDY
    shutil.rmtree(folder / "_compiled")
    (folder / "_compiled").write_text("in the way, as a read-only file system would be")
    assert ask(folder, asked, options) == GREEDY
    assert ask(folder, asked, {**options, "no_cache": True}) == GREEDY
    assert leftovers(folder) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_bundle_that_is_read_only(
    bundles: Bundles, tmp_path: Path, compiled: list[str], own_cache: Path, way: str
) -> None:
    """A13: on a file system that refuses to be written: everything goes to the cache, once."""
    kind, asked, options = WAYS[way]
    source = bundles(kind)
    before = all_files(source)
    try:
        with small_disk(tmp_path / "disk", 8 << 20) as disk:
            folder = Path(shutil.copytree(source, disk / "bundle"))
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            for _ in range(2):
                assert ask(folder, asked, options) == GREEDY
            assert len(compiled) == len(set(compiled))
            assert not (folder / "_compiled").exists()
            assert len(all_files(folder)) == len(before)
            assert leftovers(own_cache) == []
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("way", WAYS)
def test_other_tools_still_read_the_source(bundles: Bundles, way: str) -> None:
    """The onnx package refuses data files that have more than one name."""
    kind, asked, options = WAYS[way]
    folder = bundles(kind)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    read = read_by_onnx(folder)
    assert ask(folder, asked, options) == GREEDY
    assert (folder / "_compiled").is_dir()
    assert read_by_onnx(folder) == read
    assert all(path.stat().st_nlink == 1 for path in folder.iterdir() if path.is_file())
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    # The check can fail.
    os.link(folder / "model.data", folder / "another name")
    with pytest.raises(Exception, match="hard link"):
        read_by_onnx(folder)


def read_by_onnx(folder: Path) -> dict[str, list[bytes]]:
    """The weights of every graph, as the onnx package reads them."""
    return {
        graph.name: [tensor.raw_data for tensor in onnx.load(graph).graph.initializer]
        for graph in sorted(folder.glob("*.onnx"))
    }


# -- what changes ------------------------------------------------------------------------------


def other_weights(folder: Path) -> None:
    """Other weights of the same size, in another file, whose time is that of the first."""
    path = folder / "model.data"
    status = path.stat()
    values = np.fromfile(path, np.float32)
    whole = np.isfinite(values) & (np.abs(values) < 1e3) & (np.abs(values) > 1e-6)
    values[whole] *= np.where(np.arange(whole.sum()) % 3, 1.0, -1.0).astype(np.float32)
    other = folder / "other"
    values.tofile(other)
    with other.open("ab") as file:
        file.write(path.read_bytes()[other.stat().st_size :])
    assert other.stat().st_size == status.st_size
    other.replace(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("settled", [False, True], ids=["at once", "remembered"])
@pytest.mark.parametrize("way", WAYS)
def test_weights_that_were_replaced_unseen_give_their_own_answer(
    bundles: Bundles, compiled: list[str], way: str, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3: an EP loads a swapped file of the same size without a word, and answers nonsense."""
    kind, asked, options = WAYS[way]
    folder = bundles(kind)
    if settled:
        monkeypatch.setattr("turnout.compiling.receipts._SETTLED_NS", 0)
        monkeypatch.setattr("turnout.compiling.hashes._SETTLED_S", -1e9)
    for _ in range(2):
        assert ask(folder, asked, options) == GREEDY
    first = list(compiled)
    original = (folder / "model.data").read_bytes()
    other_weights(folder)
    expected = plain(folder)
    assert expected != GREEDY
    assert ask(folder, asked, options) == expected
    assert compiled == first * 2
    # And back: what was compiled of the first is still there.
    (folder / "model.data").write_bytes(original)
    assert ask(folder, asked, options) == GREEDY
    assert compiled == first * 2


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def junk(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"junk" * 1000)


def scramble(path: Path) -> None:
    """Other bytes in its last quarter, of the same size and time."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    at = len(data) * 3 // 4
    data[at:] = bytes(byte ^ 0x55 for byte in data[at:])
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def version(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\2" + data[9:])


@pytest.mark.parametrize("damage", [cut, junk, scramble, version, Path.unlink])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_stored_and_damaged_is_made_anew(
    bundles: Bundles, way: str, damage: Callable[[Path], None]
) -> None:
    """In processes of their own: one that still has a file mapped dies when that is cut."""
    kind, asked, options = WAYS[way]
    folder = bundles(kind)
    argument = {"bundle": str(folder), "route": asked, "options": options}
    first = finish(start("ask_here", argument))
    assert first["tokens"] == GREEDY
    assert set(first["outcomes"]) == {"compiled"}
    stored = folder / "_compiled" / "store"
    binaries = [*stored.glob("*/*.bin"), *stored.glob("*/*.data")]
    assert binaries
    for binary in binaries:
        damage(binary)
    again = finish(start("ask_here", argument))
    assert again["tokens"] == GREEDY
    assert again["outcomes"] == first["outcomes"]
    require_sound(stored)


@pytest.mark.parametrize("way", WAYS)
def test_a_config_that_was_edited_after_compiling_takes_effect(
    bundles: Bundles, compiled: list[str], way: str
) -> None:
    kind, asked, options = WAYS[way]
    folder = bundles(kind)
    assert ask(folder, asked, options) == GREEDY
    compiled.clear()
    # The third of the tokens ends the text now.
    edit_json(folder / "genai_config.json", lambda c: c["model"].update(eos_token_id=GREEDY[2]))
    found = ask(folder, asked, options)
    assert found == GREEDY[: len(found)]
    assert len(found) < 8
    assert compiled == []


# -- Ctrl-C ------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C of one process is a signal")
@pytest.mark.parametrize(
    "phase", ["hashing", "compiling", "verifying", "publishing", "deriving", "loading"]
)
def test_ctrl_c_in_any_phase_leaves_nothing_and_the_next_run_is_right(
    bundles: Bundles, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    folder = bundles("pipeline")
    before = all_files(folder)
    owner, name = phases()[phase]
    original = getattr(owner, name)

    def interrupted(*a: Any, **k: Any) -> Any:
        # While it is at work, not before it begins.
        threading.Timer(0.3 if phase == "compiling" else 0.0, _interrupt).start()
        if phase != "compiling":
            time.sleep(0.05)
        return original(*a, **k)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(folder, ONE_STAGE, {"compile": True})
        time.sleep(1)
    assert leftovers(folder, own_cache) == []
    done = {"deriving", "loading"}
    stored = require_sound(folder / "_compiled" / "store")
    assert len(stored) == (phase in done)
    if phase not in done:
        assert all_files(folder) == before
    monkeypatch.setattr(owner, name, original)
    assert ask(folder, ONE_STAGE, {"compile": True}) == GREEDY
    assert leftovers(folder, own_cache) == []


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_whatever_goes_wrong_is_an_error_of_turnouts(bundles: Bundles) -> None:
    """Where it must be compiled, and the child cannot: in words, and nothing is loaded."""
    folder = bundles("pipeline")
    bundle, decided = chosen(folder, ONE_STAGE)
    options = CompileOptions(compile=True, require_compiled=True, timeout_s=0.01)
    session = Session(bundle, decided, preparing=options)
    with pytest.raises(TurnoutError, match="did not answer within") as caught:
        session.load()
    assert "--compile-timeout" in caught.value.facts["fix"]
    assert not session.is_loaded
    assert leftovers(folder) == []
