"""Faults that are made to happen: each gives the right answer or a clear error, and nothing wrong
is ever loaded. What a fault does is described in docs/reliability.md.

The quick ones have a compiler that forges (`fault_fixtures.forge`): its artifacts pass the real
judge, and say of which bytes they were made. The slow ones have real compilers, and are asked for
the tokens of the independent reference of tests/data/tiny.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compile_fixtures import DATA, Toy, change_contexts, libraries, make_toy
from fake_compiler import remember_at_once
from fault_fixtures import (
    K64,
    forge,
    forged_content,
    is_current,
    leftovers,
    made_of,
    require_sound,
)
from kill_fixtures import small_disk
from turnout.bundle import Bundle, GraphFile
from turnout.compiling import contents, obtain, tools
from turnout.compiling.hashes import ContentHashes
from turnout.compiling.options import CompileOptions
from turnout.compiling.prepare import Prepared, prepare
from turnout.compiling.store import Entry, Store
from turnout.errors import CompileError, GraphError, WriteError

posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and devices are those of Unix")
slow = pytest.mark.slow
CONTEXT = "context_openvino_ctx.onnx"
BINARY = "context_openvino_ctx.bin"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory of the hash of the plugin's library, which takes longer than a whole test."""
    folder = tmp_path_factory.mktemp("memory")
    hashes = ContentHashes(folder)
    for path in libraries().values():
        hashes.file(Path(path))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(library, tmp_path / "the cache"))
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def forged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that were compiled, by the compiler that forges."""
    compiled: list[str] = []

    def call(kind: str, argument: dict[str, Any], limit: float, doing: str) -> dict[str, Any]:
        answer = forge(argument)
        compiled.extend(member["stage"] for member in argument["members"])
        return answer

    monkeypatch.setattr(obtain, "call_worker", call)
    return compiled


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return make_toy(tmp_path / "bundle")


@pytest.fixture
def warm(toy: Toy, forged: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle that is compiled, derived and remembered: its receipt is believed."""
    remember_at_once(monkeypatch)
    prepared(toy.folder)
    assert list((cache / "receipts").glob("*.json"))
    forged.clear()
    assert prepared(toy.folder).folder.is_dir()
    assert forged == []
    return toy.folder


def prepared(folder: Path, **asked: Any) -> Prepared:
    bundle = Bundle.open(folder)
    return prepare(bundle, bundle.config, CompileOptions(compile=True, share="off", **asked))


def entry_of(folder: Path, stage: str = "context") -> Entry:
    entries = [e for e in Store(folder / "_compiled" / "store").entries() if isinstance(e, Entry)]
    return next(entry for entry in entries if stage in entry.manifest.graphs)


def route_of(folder: Path) -> Path:
    (route,) = (p for p in (folder / "_compiled" / "routes").iterdir() if p.name[0] != ".")
    return route


def set_back(path: Path, change: Callable[[Path], object]) -> None:
    """Change a file, and set its modification time back."""
    status = path.stat()
    change(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns


def flip(at: int) -> Callable[[Path], None]:
    """Another byte there, in place."""

    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))

    return change


def replaced(at: int) -> Callable[[Path], None]:
    """Another file of that name, which differs in one byte."""

    def change(path: Path) -> None:
        other = path.with_name("other")
        shutil.copyfile(path, other)
        flip(at)(other)
        status = path.stat()
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(path)

    return change


# -- the second memory: receipts --------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [flip(0), pytest.param(replaced(0), marks=slow)], ids=["in place", "another file"]
)
def test_a_weight_that_was_changed_unseen_is_seen(
    warm: Path, forged: list[str], change: Callable[[Path], None]
) -> None:
    """B9, W#1295: the same size, the same time, a moment later."""
    set_back(warm / DATA, change)
    assert is_current(warm, prepared(warm).folder)
    assert sorted(forged) == ["context", "iterator"]


def test_a_graph_that_was_replaced_is_seen(warm: Path, forged: list[str]) -> None:
    # The name of a node, in a graph that is as long as before and as old.
    data = (warm / "context.onnx").read_bytes()
    at = data.index(b"context", 8)
    set_back(warm / "context.onnx", replaced(at))
    assert is_current(warm, prepared(warm).folder)
    assert forged == ["context"]


@pytest.mark.parametrize("name", [BINARY, pytest.param(CONTEXT, marks=slow)])
@pytest.mark.parametrize("change", [flip, replaced], ids=["in place", "another file"])
def test_what_is_stored_and_was_changed_unseen_is_made_anew(
    warm: Path, forged: list[str], change: Callable[[int], Callable[[Path], None]], name: str
) -> None:
    """The same size and times: neither the receipt nor the store serves it."""
    place = entry_of(warm).folder / name
    at = K64 if name == BINARY else place.read_bytes().index(b"context")
    set_back(place, change(at))
    found = prepared(warm)
    assert forged == ["context"]
    assert is_current(warm, found.folder)
    assert "what was stored is not used" in found.missed["context"][0]
    require_sound(warm / "_compiled" / "store")


def test_a_copy_in_a_derived_bundle_that_was_changed_unseen_is_made_anew(
    toy: Toy, forged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no links can be made, what is loaded is a copy of what is stored."""
    remember_at_once(monkeypatch)

    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    folder = prepared(toy.folder).folder
    set_back(folder / BINARY, flip(K64))
    assert not is_current(toy.folder, folder)
    assert is_current(toy.folder, prepared(toy.folder).folder)
    assert sorted(forged) == ["context", "iterator"]


def test_another_version_of_the_plugin_library_or_of_turnout_is_seen(
    warm: Path, forged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = ContentHashes.file

    def updated(self: ContentHashes, path: Path) -> str:
        return "0" * 64 if path.suffix in {".so", ".dll", ".dylib"} else hashed(self, path)

    # What derives writes something else: the same artifacts, derived anew.
    monkeypatch.setattr(contents, "SCHEMA_VERSION", 99)
    folder = prepared(warm).folder
    assert json.loads((folder / "turnout-derived.json").read_text())["schema_version"] == 99
    assert forged == []
    monkeypatch.setattr(ContentHashes, "file", updated)
    assert "library of openvino" in prepared(warm).missed["context"][0]
    assert sorted(forged) == ["context", "iterator"]


def test_a_cache_that_was_copied_to_another_machine_is_of_no_harm(
    toy: Toy, forged: list[str], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another processor has other keys; the same one takes what has the right hashes."""
    remember_at_once(monkeypatch)
    (toy.folder / "_compiled").write_text("in the way, so that all goes to the cache")
    prepared(toy.folder)
    other = tmp_path / "other"
    shutil.copytree(cache, other)
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(other))
    forged.clear()
    found = prepared(toy.folder)
    assert found.folder.is_relative_to(other)
    assert is_current(toy.folder, found.folder)
    assert forged == []
    monkeypatch.setattr(tools, "processor", lambda: "another processor")
    assert is_current(toy.folder, prepared(toy.folder).folder)
    assert sorted(forged) == ["context", "iterator"]


def test_bundles_that_change_places_do_not_meet(
    warm: Path, forged: list[str], tmp_path: Path
) -> None:
    other = make_toy(tmp_path / "other", seed=6).folder
    prepared(other)
    forged.clear()
    for _ in range(2):
        warm.rename(tmp_path / "aside")
        other.rename(warm)
        (tmp_path / "aside").rename(other)
        for folder in (warm, other):
            found = prepared(folder)
            assert found.folder.is_relative_to(folder)
            assert is_current(folder, found.folder)
    assert forged == []  # what is stored went along, and is found by its key


def test_a_bundle_that_another_one_replaced_within_a_second_is_not_taken_for_it(
    warm: Path, forged: list[str], tmp_path: Path
) -> None:
    """Its files have the same names, sizes and times, and maybe the same numbers."""
    times = {path.name: path.stat() for path in warm.iterdir() if path.is_file()}
    compiled = tmp_path / "compiled"
    for seed in (6, 7, 8):
        shutil.move(warm / "_compiled", compiled)
        shutil.rmtree(warm)
        make_toy(warm, seed=seed)
        shutil.move(compiled, warm / "_compiled")
        for name, status in times.items():
            os.utime(warm / name, ns=(status.st_atime_ns, status.st_mtime_ns))
            assert (warm / name).stat().st_size == status.st_size
        assert is_current(warm, prepared(warm).folder)
    assert sorted(forged) == ["context"] * 3 + ["iterator"] * 3


def test_headers_that_were_read_before_a_change_are_not_believed(
    toy: Toy, forged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle that was opened earlier, as by a session that is loaded again."""
    remember_at_once(monkeypatch)
    bundle = Bundle.open(toy.folder)
    options = CompileOptions(compile=True, share="off")
    for stage in bundle.stages:
        bundle.graph(stage)
    other = make_toy(toy.folder.with_name("other"), locations=("a.data", "b.data"), seed=9)
    for path in other.folder.iterdir():
        shutil.copyfile(path, toy.folder / path.name)
    found = prepare(bundle, bundle.config, options)
    assert is_current(toy.folder, found.folder)
    assert set(entry_of(toy.folder).manifest.inputs["stages"][0]["weights"]) == {"a.data", "b.data"}


@pytest.mark.parametrize("way", ["the graph", "a weight"])
def test_what_changes_while_it_is_compiled_is_not_stored(
    toy: Toy, forged: list[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Else the old key would lead to what was made of the new weights."""
    path = toy.folder / (DATA if way == "a weight" else "context.onnx")
    before = path.read_bytes()
    call = obtain.call_worker

    def changing(kind: str, argument: dict[str, Any], limit: float, doing: str) -> dict[str, Any]:
        if path.read_bytes() == before and argument["members"][0]["stage"] == "context":
            set_back(path, flip(0 if way == "a weight" else before.index(b"context", 8)))
        return call(kind, argument, limit, doing)

    monkeypatch.setattr(obtain, "call_worker", changing)
    with pytest.raises(CompileError, match="changed while it was compiled"):
        prepared(toy.folder, require_compiled=True)
    path.write_bytes(before)
    monkeypatch.setattr(obtain, "call_worker", call)
    assert is_current(toy.folder, prepared(toy.folder).folder)


# -- hashes -----------------------------------------------------------------------------------


def test_links_that_others_make_meanwhile_are_no_change(tmp_path: Path) -> None:
    """Deriving links what is stored, and so changes its status while another process reads it."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(1000))
    hashes = ContentHashes(tmp_path / "memory")
    original, done = hashes._hash, []

    def linking(*arguments: Any) -> str:
        if not done:
            time.sleep(0.01)
            os.link(path, tmp_path / "link")
            done.append(1)
        return original(*arguments)

    hashes._hash = linking  # type: ignore[method-assign]
    assert hashes.file(path) == hashlib.sha256(bytes(1000)).hexdigest()
    assert done


def test_a_file_that_never_stays_the_same_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1000))
    hashes = ContentHashes(None)
    original = hashes._hash

    def writing(*arguments: Any) -> str:
        with path.open("ab") as file:
            file.write(b"x")
        return original(*arguments)

    hashes._hash = writing  # type: ignore[method-assign]
    with pytest.raises(GraphError, match="changed while it was read"):
        hashes.range(path, 0, 1000)


def test_what_was_written_just_before_a_long_reading_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change could have come within one tick of the clock, after its part was read."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(1000))
    hashes, clock = ContentHashes(tmp_path / "memory"), [time.time()]
    original = hashes._hash

    def reading(*arguments: Any) -> str:
        clock[0] += 100
        return original(*arguments)

    hashes._hash = reading  # type: ignore[method-assign]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    hashes.file(path)
    monkeypatch.undo()
    again = ContentHashes(tmp_path / "memory")
    again.file(path)
    assert again.bytes_read == 1000


@pytest.mark.parametrize("hours", [pytest.param(-24, marks=slow), 24])
def test_files_of_a_clock_that_was_wrong_are_compiled_and_found(
    toy: Toy, forged: list[str], monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """With times to come nothing is remembered, and everything is found all the same."""
    stamp = time.time_ns() + hours * 3600 * 10**9
    for path in toy.folder.iterdir():
        os.utime(path, ns=(stamp, stamp))
    for _ in range(2):
        assert is_current(toy.folder, prepared(toy.folder).folder)
    assert sorted(forged) == ["context", "iterator"]
    set_back(toy.folder / DATA, flip(0))
    assert is_current(toy.folder, prepared(toy.folder).folder)
    # And the clock is set back after all that was made.
    year = 365 * 86400
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() - year)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() - year * 10**9)
    set_back(toy.folder / DATA, flip(1))
    assert is_current(toy.folder, prepared(toy.folder).folder)


# -- what others put there --------------------------------------------------------------------


def rewrite_manifest(entry: Entry) -> None:
    """As somebody who wants to be believed."""
    path = entry.folder / "manifest.json"
    document = json.loads(path.read_text("utf-8"))
    for file in document["files"]:
        data = (entry.folder / file["name"]).read_bytes()
        file.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    path.write_text(json.dumps(document), "utf-8")


def binary_with(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / BINARY
        path.write_bytes(change(path.read_bytes()))

    return write


def naming(cache: str) -> Callable[[Path], None]:
    return lambda folder: change_contexts(folder / CONTEXT, ep_cache_context=cache.encode())


PLANTED: dict[str, Callable[[Path], None]] = {
    "a parent": naming("../../../weights.data"),
    "an absolute path": naming("/etc/hostname"),
    "a device": naming("/dev/zero"),
    "another EP": lambda folder: change_contexts(folder / CONTEXT, source=b"QNNExecutionProvider"),
    "a truncated binary": binary_with(lambda data: data[: K64 + 10]),
    "half a header": binary_with(lambda data: data[:20]),
    "junk behind": binary_with(lambda data: data + b"junk"),
    "another version": binary_with(lambda data: data[:8] + b"\2" + data[9:]),
    "a huge description": binary_with(lambda data: data[:32] + b"\xff" * 8 + data[40:]),
    "a huge BSON length": binary_with(lambda data: data[:40] + b"\xff\xff\xff\x7f" + data[44:]),
    "an uncompiled graph": lambda folder: shutil.copyfile(
        folder.parents[2] / "context.onnx", folder / CONTEXT
    ),
    "one more file": lambda folder: (folder / "more.bin").write_bytes(b"x"),
}


QUICK = {"a parent", "a device", "junk behind", "another version", "a huge BSON length"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else slow) for case in PLANTED]
)
def test_an_entry_that_came_with_a_bundle_is_judged_as_what_a_child_left(
    toy: Toy, forged: list[str], case: str
) -> None:
    """B12: its manifest is in order, with the right key and right hashes; it is not believed."""
    prepared(toy.folder)
    entry = entry_of(toy.folder)
    shutil.rmtree(toy.folder / "_compiled" / "routes")
    PLANTED[case](entry.folder)
    rewrite_manifest(entry)
    assert Store(entry.folder.parent).entry(entry.key) is not None
    forged.clear()
    found = prepared(toy.folder)
    assert forged == ["context"]
    assert is_current(toy.folder, found.folder)
    assert "is not used" in found.missed["context"][0]
    require_sound(toy.folder / "_compiled" / "store")


def endless(path: Path, way: str) -> None:
    """Something that never ends in the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if way == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@posix
@pytest.mark.parametrize("way", ["pipe", pytest.param("device", marks=slow)])
@pytest.mark.parametrize("what", ["manifest.json", "turnout-derived.json", "genai_config.json"])
@pytest.mark.timeout(30)
def test_what_never_ends_is_not_waited_for(
    warm: Path, forged: list[str], what: str, way: str
) -> None:
    place = entry_of(warm).folder if what == "manifest.json" else route_of(warm)
    endless(place / what, way)
    assert is_current(warm, prepared(warm).folder)
    assert forged == (["context"] if what == "manifest.json" else [])
    endless(place / what, way)
    from turnout.compiling.kept import Kept

    kept = Kept(Bundle.open(warm))
    assert kept.items()
    assert kept.derived()


def plant(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target, target_is_directory=target.is_dir())


@posix
@pytest.mark.parametrize(
    "before", [True, pytest.param(False, marks=slow)], ids=["compiled before", "fresh"]
)
@pytest.mark.parametrize(
    "name", ["_compiled", "_compiled/store", "_compiled/routes", "store entry", "route", "locks"]
)
def test_links_that_were_planted_lead_nowhere(
    toy: Toy, forged: list[str], tmp_path: Path, cache: Path, name: str, before: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nothing outside is written or removed, and nothing is loaded from there."""
    remember_at_once(monkeypatch)
    folder = toy.folder
    prepared(folder)
    entry, route = entry_of(folder).folder, route_of(folder)
    places = {"store entry": [entry], "route": [route]}
    if name == "locks":
        places[name] = [p.with_name(f".{p.name}.lock") for p in (entry, route)]
        for place in places[name]:
            place.unlink()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    if not before:
        shutil.rmtree(folder / "_compiled")
        shutil.rmtree(cache)
    for index, place in enumerate(places.get(name, [folder / name])):
        target = outside / f"target {index}"
        if before and name != "locks":
            place.rename(target)  # all is as it was, but elsewhere
        elif name == "locks":
            target.write_text("mine")
        else:
            target.mkdir()
        plant(place, target)
    held = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    found = prepared(folder)
    assert is_current(folder, found.folder)
    assert found.folder.resolve() == found.folder
    assert not found.folder.is_relative_to(outside)
    for artifact in found.artifacts.values():
        assert not artifact.folder.resolve().is_relative_to(outside)
    after = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    assert after == held


@posix
def test_a_link_in_the_place_of_a_receipt_is_written_over_and_not_through(
    warm: Path, forged: list[str], cache: Path, tmp_path: Path
) -> None:
    (receipt,) = (cache / "receipts").glob("*.json")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    receipt.unlink()
    receipt.symlink_to(victim)
    assert is_current(warm, prepared(warm).folder)
    assert victim.read_text() == "mine"
    assert forged == []


def test_a_rebuild_while_it_is_derived_from_is_never_half_of_each(
    toy: Toy, forged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is replaced between the links of its two files."""
    prepared(toy.folder)
    shutil.rmtree(toy.folder / "_compiled" / "routes")
    entry = entry_of(toy.folder).folder
    link, done = os.link, []

    def linking(source: Path, target: Path, **more: Any) -> None:
        link(source, target, **more)
        if not done:
            done.append(1)
            fresh = entry.with_name("fresh")
            shutil.copytree(entry, fresh)
            shutil.rmtree(entry)
            fresh.rename(entry)

    monkeypatch.setattr(os, "link", linking)
    folder = prepared(toy.folder).folder
    assert done
    for name in (CONTEXT, BINARY):
        assert (folder / name).stat().st_ino == (entry / name).stat().st_ino


# -- leftovers --------------------------------------------------------------------------------


def test_what_killed_processes_left_goes_with_the_next_run_whatever_that_does(
    warm: Path, forged: list[str], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a run for which nothing is to be compiled, and what is of other keys."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    left = [
        warm / "_compiled" / "store" / f".turnout-{'9' * 32}.12345678",
        warm / "_compiled" / "store" / f".turnout-removed-{'8' * 32}",
        warm / "_compiled" / "routes" / ".turnout-0123456789ab.12345678",
        cache / "store" / f".turnout-{'7' * 32}.12345678",
        tmp_path / "tmp" / ".turnout-scratch-0123456789abcdef",
    ]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "half.bin").write_bytes(bytes(100))
    # Of others: made by a build that is at work there.
    other = tmp_path / "tmp" / ".turnout-host.1.abcdefgh"
    other.mkdir()
    prepared(warm)
    assert forged == []
    assert [path for path in left if path.exists()] == left[-1:]
    prepared(warm, no_cache=True).close()
    assert leftovers(warm, cache, tmp_path / "tmp") == [str(other)]


def test_a_scratch_folder_that_is_in_use_stays(
    toy: Toy, forged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with prepared(toy.folder, no_cache=True) as first, prepared(toy.folder, no_cache=True):
        assert is_current(toy.folder, first.folder)
    assert leftovers(tmp_path) == []
    assert not list(tmp_path.glob(".scratch*"))


def test_a_lock_that_somebody_waits_for_is_not_taken_away(
    toy: Toy, forged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fails and tidies up after itself, while the other waits to do the same."""
    call, inside = obtain.call_worker, threading.Event()
    most: list[int] = []
    at_work: list[int] = []

    def failing(kind: str, argument: dict[str, Any], limit: float, doing: str) -> dict[str, Any]:
        at_work.append(1)
        most.append(len(at_work))
        try:
            if not inside.is_set():
                inside.set()
                time.sleep(0.3)
                raise CompileError("It fails the first time.")
            return call(kind, argument, limit, doing)
        finally:
            at_work.pop()

    monkeypatch.setattr(obtain, "call_worker", failing)
    found: list[Prepared] = []
    threads = [
        threading.Thread(target=lambda: found.append(prepared(toy.folder))) for _ in range(2)
    ]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 2
    assert any(set(one.compiled) == {"context", "iterator"} for one in found)
    require_sound(toy.folder / "_compiled" / "store")
    assert leftovers(toy.folder) == []


def test_a_full_disk_is_passed_over_for_the_cache(
    toy: Toy, forged: list[str], cache: Path, tmp_path: Path
) -> None:
    """The bundle's own disk has room for a part of it."""
    try:
        with small_disk(tmp_path / "disk", 300 << 10) as disk:
            folder = Path(shutil.copytree(toy.folder, disk / "bundle"))
            found = prepared(folder)
            assert is_current(folder, found.folder)
            assert set(found.compiled) == {"context", "iterator"}
            assert leftovers(disk, cache) == []
            require_sound(folder / "_compiled" / "store")
            require_sound(cache / "store")
    except OSError as error:
        pytest.skip(str(error))


def test_where_all_is_full_it_is_said_and_nothing_is_left(
    toy: Toy, forged: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("turnout.compiling.store.publish_folder", full)
    with pytest.raises(WriteError, match="cannot be written") as caught:
        prepared(toy.folder, require_compiled=True)
    assert "free some space" in caught.value.facts["fix"]
    found = prepared(toy.folder)
    assert found.folder == toy.folder, "the stages run as they are"
    assert set(found.uncompiled) == {"context", "iterator"}
    assert leftovers(toy.folder, cache) == []
    assert not (toy.folder / "_compiled").exists()


def test_forged_artifacts_tell_what_they_were_made_of(toy: Toy, forged: list[str]) -> None:
    """The check of these tests: it sees a change."""
    folder = prepared(toy.folder).folder
    assert forged_content(folder / CONTEXT) == made_of(toy.folder / "context.onnx", toy.folder)
    assert is_current(toy.folder, folder)
    flip(0)(toy.folder / DATA)
    assert not is_current(toy.folder, folder)
    assert GraphFile.read(folder / CONTEXT).ep_contexts


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="files of other systems tell it")
def test_a_change_that_no_time_tells_is_seen_by_who_asks_for_it(
    forged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that has a file of weights mapped changes it, and the system keeps its times."""
    import mmap
    import tempfile

    remember_at_once(monkeypatch)
    monkeypatch.setattr("turnout.compiling.hashes._SETTLED_S", -60.0)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = make_toy(Path(name) / "bundle").folder
        with (folder / DATA).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] ^= 1
            prepared(folder)
            before = (folder / DATA).stat()
            mapped[0] ^= 1
            after = (folder / DATA).stat()
            assert (before.st_mtime_ns, before.st_ctime_ns) == (
                after.st_mtime_ns,
                after.st_ctime_ns,
            )
            assert is_current(folder, prepared(folder, paranoid=True).folder)
