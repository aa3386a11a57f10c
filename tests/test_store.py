"""The store: an entry is complete or not there; what is read back is not trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import Timeout

from turnout.compiling import keys
from turnout.compiling.places import in_first
from turnout.compiling.store import Broken, Entry, Store, manifest_of, read_entry
from turnout.errors import CompileError, WriteError

KEY = "ab" * 32
INPUTS: dict[str, Any] = {
    "ep": "X", "kind": "context", "tools": {"onnxruntime": "1.32.0"},
    "stages": [{"stage": "context", "graph": "1" * 64}],
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = tmp_path / "store"
    folder.mkdir()
    return Store(folder)


def publish(store: Store, key: str = KEY, content: bytes = b"binary") -> Entry:
    with store.lock(key), store.staging(key) as staging:
        (staging / "context.onnx").write_bytes(b"graph")
        (staging / "context.bin").write_bytes(content)
        manifest = manifest_of(INPUTS, key, staging, {"context": "context.onnx"}, took_s=2.0)
        return store.publish(staging, manifest)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def test_an_entry_is_found_by_its_key_with_all_that_was_written(store: Store) -> None:
    """A13: a compiled artifact is named by stage, and found for its key alone."""
    publish(store)
    entry = store.entry(KEY)
    assert entry is not None
    assert entry.graph("context").read_bytes() == b"graph"
    assert [(f.name, f.size) for f in entry.manifest.files] == [
        ("context.bin", 6),
        ("context.onnx", 5),
    ]
    assert entry.manifest.inputs == INPUTS
    assert names(store.folder) == {KEY[:32]}
    assert store.entry("cd" * 32) is None


def test_a_key_that_begins_alike_is_another_key(store: Store) -> None:
    publish(store)
    assert store.entry(KEY[:32] + "cd" * 16) is None


def test_an_entry_is_replaced_as_a_whole(store: Store) -> None:
    publish(store)
    publish(store, content=b"newer binary")
    entry = store.entry(KEY)
    assert entry is not None
    assert (entry.folder / "context.bin").read_bytes() == b"newer binary"
    assert names(store.folder) == {KEY[:32]}


def test_nothing_is_left_of_an_entry_that_was_not_finished(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), store.lock(KEY), store.staging(KEY) as staging:
        (staging / "context.bin").write_bytes(b"half")
        raise KeyboardInterrupt
    assert names(store.folder) == set()
    assert store.entry(KEY) is None


def test_what_a_killed_process_left_is_removed_by_the_next_one(store: Store) -> None:
    code = (
        "import os, sys; from pathlib import Path; from turnout.compiling.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "with store.lock(sys.argv[2]), store.staging(sys.argv[2]) as staging:\n"
        "    (staging / 'context.bin').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(store.folder), KEY], check=False)
    assert len(names(store.folder)) == 1
    assert store.entry(KEY) is None
    publish(store)
    assert names(store.folder) == {KEY[:32]}


def test_a_sweep_removes_what_killed_processes_left_and_nothing_that_is_at_work(
    store: Store,
) -> None:
    publish(store)
    left = store.folder / f".turnout-{'9' * 32}"
    left.mkdir()
    (left / "half.bin").write_bytes(bytes(100))
    other = "ef" * 32
    with store.lock(other), store.staging(other) as staging:
        (staging / "x").write_bytes(b"x")
        assert store.sweep() == 100
        assert staging.exists()
    assert not left.exists()
    assert store.entry(KEY) is not None


def test_two_writers_of_one_key_come_one_after_the_other(store: Store) -> None:
    inside: list[int] = []
    most: list[int] = []

    def write(number: int) -> None:
        with store.lock(KEY), store.staging(KEY) as staging:
            inside.append(number)
            most.append(len(inside))
            (staging / "context.onnx").write_bytes(str(number).encode())
            manifest = manifest_of(INPUTS, KEY, staging, {"context": "context.onnx"}, took_s=0.0)
            inside.remove(number)
            store.publish(staging, manifest)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8
    assert store.entry(KEY) is not None


def edit_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        path = folder / "manifest.json"
        document = json.loads(path.read_text("utf-8"))
        change(document)
        path.write_text(json.dumps(document), "utf-8")

    return edit


def link(folder: Path, name: str, target: Path | str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(target)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a binary that is gone": lambda f: (f / "context.bin").unlink(),
    "a truncated binary": lambda f: os.truncate(f / "context.bin", 3),
    "junk behind a binary": lambda f: (f / "context.bin").write_bytes(b"binaryjunk"),
    "a link in the place of a binary": lambda f: link(f, "context.bin", "/etc/hostname"),
    "a link beside": lambda f: link(f, "context.bin", f / "context.onnx"),
    "a folder in the place of a graph": lambda f: (
        (f / "context.onnx").unlink(),
        (f / "context.onnx").mkdir(),
    ),
    "no manifest": lambda f: (f / "manifest.json").unlink(),
    "an empty manifest": lambda f: (f / "manifest.json").write_bytes(b""),
    "half a manifest": lambda f: os.truncate(f / "manifest.json", 40),
    "nesting": lambda f: (f / "manifest.json").write_text("[" * 100_000),
    "a huge manifest": lambda f: os.truncate(f / "manifest.json", 1 << 30),
    "another version": edit_manifest(lambda d: d.update(schema_version=99)),
    "another key": edit_manifest(lambda d: d.update(key="cd" * 32)),
    "a path out": edit_manifest(lambda d: d["files"][0].update(name="../../x")),
    "an absolute path": edit_manifest(lambda d: d["files"][0].update(name="/etc/hostname")),
    "a device": edit_manifest(lambda d: d["files"][0].update(name="/dev/zero")),
    "a graph that is no file": edit_manifest(lambda d: d["graphs"].update(context="y.onnx")),
    "a size of another kind": edit_manifest(lambda d: d["files"][0].update(size="6")),
    "unknown fields": edit_manifest(lambda d: d.update(more=1)),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_entry_is_no_entry(store: Store, damage: str) -> None:
    """B12: paths of contexts and binaries stay where they may be."""
    entry = publish(store)
    DAMAGE[damage](entry.folder)
    assert store.entry(KEY) is None
    (found,) = store.entries()
    assert isinstance(found, Broken)
    assert found.problem
    # And it is made anew.
    publish(store)
    assert store.entry(KEY) is not None


def test_an_entry_that_is_a_link_is_none(store: Store, tmp_path: Path) -> None:
    entry = publish(store)
    moved = tmp_path / entry.folder.name
    entry.folder.rename(moved)
    entry.folder.symlink_to(moved)
    assert store.entry(KEY) is None
    publish(store)
    assert not entry.folder.is_symlink()
    assert store.entry(KEY) is not None
    assert (moved / "context.bin").read_bytes() == b"binary"


def test_verifying_notices_other_bytes_of_the_same_size(store: Store) -> None:
    entry = publish(store)
    store.verify(entry)
    (entry.folder / "context.bin").write_bytes(b"binarY")
    assert store.entry(KEY) is not None
    with pytest.raises(CompileError, match="is not what was written"):
        store.verify(entry)


def test_removing_an_entry_gives_its_bytes_back(store: Store) -> None:
    entry = publish(store)
    assert store.remove(entry.folder) > 11
    assert names(store.folder) == set()
    assert store.remove(entry.folder) == 0


def test_only_what_is_in_the_store_is_removed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(CompileError, match="not in the store"):
        store.remove(tmp_path / "mine")
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize("left", ["link", "folder"])
def test_what_a_compiler_leaves_must_be_plain_files(store: Store, left: str) -> None:
    with store.lock(KEY), store.staging(KEY) as staging:
        if left == "link":
            (staging / "x").symlink_to("/etc/hostname")
        else:
            (staging / "x").mkdir()
        with pytest.raises(CompileError, match="no plain file"):
            manifest_of(INPUTS, KEY, staging, {}, took_s=0.0)


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(Store(tmp_path / "none").entries()) == []
    assert Store(tmp_path / "none").entry(KEY) is None
    with pytest.raises(CompileError):
        read_entry(tmp_path / "none")


def test_a_key_depends_on_every_input_and_not_on_their_order() -> None:
    assert keys.digest({"a": 1, "b": [2]}) == keys.digest({"b": [2], "a": 1})
    assert keys.digest({"a": 1}) != keys.digest({"a": "1"})
    assert keys.digest({"a": [1, 2]}) != keys.digest({"a": [2, 1]})


def test_a_miss_is_explained_in_words() -> None:
    new = json.loads(json.dumps(INPUTS))
    new["tools"]["onnxruntime"] = "1.33.0"
    new["stages"][0]["graph"] = "2" * 64
    new["provider_options"] = {"device_type": "NPU"}
    assert keys.difference(INPUTS, new) == (
        "onnxruntime 1.32.0 -> 1.33.0",
        "context graph changed",
        "provider_options device_type nothing -> NPU",
    )
    assert keys.difference(INPUTS, INPUTS) == ()


def test_a_miss_is_compared_with_what_has_something_in_common() -> None:
    other = {"stages": [{"stage": "context", "graph": "2" * 64, "weights": {"w": "3" * 64}}]}
    same_weights = {"stages": [{"stage": "context", "graph": "4" * 64, "weights": {"w": "3" * 64}}]}
    assert keys.are_related(INPUTS, INPUTS)
    assert keys.are_related(other, same_weights)
    assert not keys.are_related(INPUTS, other)
    assert not keys.are_related({}, {})


@pytest.mark.parametrize("stages", [5, "x", [5], {"a": 1}, None])
def test_stages_of_any_kind_in_a_planted_manifest_are_no_stages(stages: Any) -> None:
    assert keys.stages_of({"stages": stages}) == []
    assert not keys.are_related({"stages": stages}, INPUTS)
    assert keys.stages_of(INPUTS) == INPUTS["stages"]


def test_a_place_at_which_another_process_is_at_work_is_not_left_for_another(
    tmp_path: Path,
) -> None:
    used: list[Path] = []

    def busy(place: Path) -> None:
        used.append(place)
        raise WriteError("Another process is at work.") from Timeout("lock")

    def full(place: Path) -> str:
        used.append(place)
        if place.name == "a":
            raise WriteError("It is full.") from OSError("full")
        return place.name

    places = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(WriteError, match="at work"):
        in_first(places, busy)
    assert used == places[:1]
    assert in_first(places, full) == "b"
