"""`turnout cache`: what is kept can be seen, proven and removed."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from bundle_fixtures import as_hub_cache
from fake_compiler import FakeCompiler, files_in, on_openvino, read, remember_at_once
from session_fixtures import Bundles, Done, Terminal, edit_json
from turnout.compiling import tools

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")

DAY = 86400


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    return FakeCompiler(monkeypatch)


@pytest.fixture
def compiled(turnout: Terminal, bundles: Bundles) -> Path:
    """A bundle with two entries, made a day apart, and a derived bundle."""
    folder = on_openvino(bundles, "pipeline", "transformer", "lm_head")
    assert turnout("compile", folder).code == 0
    (older,) = (path for path in entries(folder) if stages_of(path) == ["lm_head"])
    edit_json(older / "manifest.json", lambda manifest: manifest.update(created=time.time() - DAY))
    return folder


def entries(folder: Path) -> list[Path]:
    return [path.parent for path in (folder / "_compiled" / "store").glob("*/manifest.json")]


def stages_of(entry: Path) -> list[str]:
    return [stage["stage"] for stage in read(entry / "manifest.json")["inputs"]["stages"]]


def entry_of(folder: Path, stage: str) -> Path:
    return next(path for path in entries(folder) if stages_of(path) == [stage])


def listed(turnout: Terminal, *arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = turnout("cache", "list", *arguments, "--json").json["entries"]
    return found


def test_entries_are_listed_the_newest_first(turnout: Terminal, compiled: Path) -> None:
    done = turnout("cache", "list", "--bundle", compiled)
    assert (done.code, done.err) == (0, "")
    head, transformer, lm_head, stored, derived = done.out.splitlines()
    assert head.split() == ["key", "stages", "ep", "size", "age", "state"]
    assert transformer.split()[1:3] == ["transformer", "openvino"]
    assert lm_head.split()[1:] == ["lm_head", "openvino", *lm_head.split()[3:5], "1", "d", "ready"]
    assert stored.startswith("stored   2 entries, ")
    assert stored.endswith(str(compiled / "_compiled" / "store"))
    assert derived.startswith(f"derived  {compiled / '_compiled' / 'routes'}{os.sep}")
    assert len(turnout("cache", "list", "--bundle", compiled, "-q").out.splitlines()) == 3


def test_json_has_everything(turnout: Terminal, compiled: Path) -> None:
    document = turnout("cache", "list", "--bundle", compiled, "--json").json
    assert list(document) == ["schema_version", "stores", "entries", "derived"]
    first = document["entries"][0]
    manifest = read(entry_of(compiled, "transformer") / "manifest.json")
    assert (first["key"], first["stages"]) == (manifest["key"], ["transformer"])
    assert first["bytes"] == sum(file["size"] for file in manifest["files"])
    assert first["tools"] == manifest["inputs"]["tools"]
    assert (first["stale"], first["problem"], first["ep"]) == ([], None, "openvino")
    (derived,) = document["derived"]
    assert derived["source"] == str(compiled.resolve())
    assert sorted(derived["entries"]) == sorted(path.name for path in entries(compiled))
    assert derived["problem"] is None


def test_an_empty_cache_is_said_to_be_empty(turnout: Terminal, own_cache: Path) -> None:
    done = turnout("cache", "list")
    assert (done.code, done.out) == (0, f"nothing is stored in {own_cache / 'store'}\n")
    assert turnout("cache", "prune").out == "nothing to remove\n"
    assert turnout("cache", "verify").out == "0 entries verified, 0 broken\n"
    assert not own_cache.exists()


def test_a_short_key_is_enough_where_it_is_unique(turnout: Terminal, compiled: Path) -> None:
    key = listed(turnout, "--bundle", compiled)[0]["key"]
    for text in (key, key[:12], key[:12].upper()):
        shown = turnout("cache", "show", text, "--bundle", compiled)
        assert shown.code == 0
        assert f"key      {key}" in shown.out
        assert "here     can be used" in shown.out
        assert "transformer_openvino_ctx.onnx" in shown.out
    document = turnout("cache", "show", key[:8], "--bundle", compiled, "--json").json
    assert document["made_of"]["stages"][0]["stage"] == "transformer"
    unknown = turnout("cache", "show", "zz", "--bundle", compiled)
    assert unknown.code == 2
    assert "No entry begins with 'zz'" in unknown.err
    assert key[:12] in unknown.err
    assert turnout("cache", "show", "", "--bundle", compiled).code == 2


def test_a_key_that_is_not_unique_is_refused(turnout: Terminal, compiled: Path) -> None:
    """Two entries are given keys that begin alike."""
    for path, digit in zip(entries(compiled), "01", strict=True):
        key = "abcdef" + digit * 58
        edit_json(path / "manifest.json", lambda manifest, key=key: manifest.update(key=key))
        path.rename(path.with_name(key[:32]))
    done = turnout("cache", "remove", "abc", "--bundle", compiled)
    assert done.code == 2
    assert "Several entries begin with 'abc'" in done.err
    assert len(entries(compiled)) == 2
    assert turnout("cache", "remove", "abcdef0", "--bundle", compiled).code == 0
    assert [path.name for path in entries(compiled)] == [("abcdef" + "1" * 58)[:32]]


def test_what_is_stale_says_why(
    turnout: Terminal, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tools.version_of("onnxruntime")
    monkeypatch.setattr(tools, "version_of", lambda _: "9.9.9")
    why = f"onnxruntime {installed} -> 9.9.9"
    assert {tuple(entry["stale"]) for entry in listed(turnout, "--bundle", compiled)} == {(why,)}
    assert f"stale: {why}" in turnout("cache", "list", "--bundle", compiled).out


def test_another_graph_or_weight_makes_it_stale(turnout: Terminal, compiled: Path) -> None:
    graph = compiled / "lm_head.onnx"
    graph.write_bytes(graph.read_bytes() + b"\x22\x00")  # an empty domain: the same, and not
    stale = {entry["stages"][0]: entry["stale"] for entry in listed(turnout, "--bundle", compiled)}
    assert stale == {"transformer": [], "lm_head": ["lm_head graph changed"]}


def test_a_stage_that_is_gone_makes_it_stale(turnout: Terminal, compiled: Path) -> None:
    def renamed(config: dict[str, Any]) -> None:
        pipeline = config["model"]["decoder"]["pipeline"]
        for item in pipeline:
            if "lm_head" in item:
                item["head"] = item.pop("lm_head")

    edit_json(compiled / "genai_config.json", renamed)
    stale = {entry["stages"][0]: entry["stale"] for entry in listed(turnout, "--bundle", compiled)}
    assert stale["transformer"] == []
    assert "There is no stage 'lm_head'" in stale["lm_head"][0]


def test_an_ep_that_is_not_installed_makes_it_stale(
    turnout: Terminal, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "locate", lambda *_: None)
    assert listed(turnout, "--bundle", compiled)[0]["stale"] == ["openvino is not installed here"]


def test_files_are_verified_by_their_hashes(turnout: Terminal, compiled: Path) -> None:
    good = turnout("cache", "verify", "--bundle", compiled)
    assert (good.code, good.out) == (0, "2 entries verified, 0 broken\n")
    binary = entry_of(compiled, "transformer") / "transformer.bin"
    binary.write_bytes(b"x" + binary.read_bytes()[1:])
    bad = turnout("cache", "verify", "--bundle", compiled)
    assert bad.code == 1
    assert "transformer.bin of a compiled stage is not what was written" in bad.out
    key = read(entry_of(compiled, "lm_head") / "manifest.json")["key"]
    assert turnout("cache", "verify", key[:12], "--bundle", compiled).code == 0
    document = turnout("cache", "verify", "--bundle", compiled, "--json")
    assert (document.code, document.json["broken"]) == (1, 1)


def broken_ways(folder: Path) -> dict[str, Path]:
    """Entries that are none, each in a way of its own."""
    store = folder / "_compiled" / "store"
    ways = {}
    for index, way in enumerate(("no manifest", "half a manifest", "a link", "a short file")):
        ways[way] = store / f"{index:032x}"
    shutil.copytree(entry_of(folder, "transformer"), ways["a short file"])
    shutil.copytree(entry_of(folder, "lm_head"), ways["no manifest"])
    (ways["no manifest"] / "manifest.json").unlink()
    ways["half a manifest"].mkdir()
    (ways["half a manifest"] / "manifest.json").write_text('{"schema_version": 1,')
    ways["a link"].symlink_to(folder)
    key = "3".rjust(32, "0") + "f" * 32
    edit_json(ways["a short file"] / "manifest.json", lambda manifest: manifest.update(key=key))
    (ways["a short file"] / "transformer.bin").write_bytes(b"blob")
    return ways


def test_broken_entries_are_shown_with_the_reason_and_pruned(
    turnout: Terminal, compiled: Path
) -> None:
    ways = broken_ways(compiled)
    before = files_in(compiled) - {name for name in files_in(compiled) if "_compiled" in name}
    reasons = {
        "no manifest": "no manifest",
        "half a manifest": "cannot be read",
        "a link": "it is a link",
        "a short file": "transformer.bin has 4 bytes where 4000 were written",
    }
    text = turnout("cache", "list", "--bundle", compiled).out
    shown = listed(turnout, "--bundle", compiled)
    problems = {entry["folder"]: entry["problem"] or "" for entry in shown}
    for way, reason in reasons.items():
        assert reason in problems[str(ways[way])]
        assert f"broken: {problems[str(ways[way])]}" in text
    dry = turnout("cache", "prune", "--bundle", compiled, "--dry-run")
    assert dry.code == 0
    assert all(os.path.lexists(path) for path in ways.values())
    done = turnout("cache", "prune", "--bundle", compiled)
    assert done.code == 0
    assert done.out.replace("removed ", "would remove ").replace("freed", "would free") == dry.out
    assert not any(os.path.lexists(path) for path in ways.values())
    assert len(entries(compiled)) == 2
    after = files_in(compiled) - {name for name in files_in(compiled) if "_compiled" in name}
    assert after == before  # a link out of the store leads to the bundle


def removed(done: Done) -> set[str]:
    return {Path(item["folder"]).name for item in done.json["removed"]}


def test_an_entry_is_removed_with_the_bundles_that_were_derived_of_it(
    turnout: Terminal, compiled: Path, compiler: FakeCompiler
) -> None:
    entry = entry_of(compiled, "lm_head")
    (route,) = (p for p in (compiled / "_compiled" / "routes").iterdir() if p.is_dir())
    room = sum(path.stat().st_size for path in (*entry.iterdir(), *route.iterdir()))
    linked = sum(path.stat().st_size for path in route.iterdir() if path.stat().st_nlink > 1)
    done = turnout("cache", "remove", entry.name[:10], "--bundle", compiled, "--json")
    assert (done.code, removed(done)) == (0, {entry.name, route.name})
    # What is linked to both is free once; what is linked to the other entry is still there.
    assert done.json["freed_bytes"] == room - linked
    assert not entry.exists()
    assert not route.exists()
    compiler.compiled.clear()
    assert turnout("compile", compiled).code == 0
    assert compiler.compiled == ["lm_head"]


def test_what_is_old_is_pruned_and_the_newest_are_kept(turnout: Terminal, compiled: Path) -> None:
    old, new = entry_of(compiled, "lm_head"), entry_of(compiled, "transformer")
    prune = ("cache", "prune", "--bundle", compiled, "--dry-run", "--json")

    def those(*arguments: object) -> set[str]:
        return removed(turnout(*prune, *arguments)) & {old.name, new.name}

    assert those() == set()
    assert those("--older-than", 2) == set()
    assert those("--older-than", 0.5) == {old.name}
    assert those("--older-than", 0) == {old.name, new.name}
    assert those("--older-than", 0, "--keep", 1) == {old.name}
    assert those("--keep", 1) == {old.name}
    assert those("--keep", 2) == set()
    assert those("--keep", 0) == {old.name, new.name}
    assert those("--all") == {old.name, new.name}


def test_all_is_pruned(turnout: Terminal, compiled: Path, bundles: Bundles) -> None:
    done = turnout("cache", "prune", "--bundle", compiled, "--all")
    assert done.code == 0
    assert not any("_compiled" in name for name in files_in(compiled))


@pytest.mark.parametrize(
    "arguments",
    [("--older-than", "-1"), ("--keep", "-1"), ("--all", "--keep", "1"), ("--older-than", "nan")],
)
def test_what_means_nothing_is_wrong_usage(
    turnout: Terminal, compiled: Path, arguments: tuple[str, ...]
) -> None:
    assert turnout("cache", "prune", "--bundle", compiled, *arguments).code == 2
    assert len(entries(compiled)) == 2


def test_what_killed_processes_left_is_pruned(turnout: Terminal, compiled: Path) -> None:
    store = compiled / "_compiled" / "store"
    left, busy = store / (".turnout-" + "a" * 32), store / (".turnout-" + "b" * 32)
    for folder in (left, busy):
        folder.mkdir()
        (folder / "half.bin").write_bytes(bytes(1000))
    with FileLock(store / f".{'b' * 32}.lock"):
        done = turnout("cache", "prune", "--bundle", compiled, "--json")
    assert removed(done) == {left.name}
    assert done.json["freed_bytes"] == 1000
    assert (left.exists(), busy.exists()) == (False, True)
    # In a process of its own, the folder's lock was that of a process that is gone by now.
    assert removed(turnout("cache", "prune", "--bundle", compiled, "--json")) == {busy.name}


def test_an_entry_that_is_being_compiled_is_left_alone(
    turnout: Terminal, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.compiling.pruning._WAIT_S", 0.05)
    entry = entry_of(compiled, "lm_head")
    lock = FileLock(entry.with_name(f".{entry.name}.lock"), is_singleton=False)
    with lock:
        done = turnout("cache", "remove", entry.name, "--bundle", compiled)
    assert done.code == 1
    assert f"in use, and kept: {entry}" in done.out
    assert entry.exists()


def test_derived_bundles_whose_source_is_gone_or_moved_are_pruned(
    turnout: Terminal, compiled: Path, bundles: Bundles, own_cache: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.move(compiled, moved)
    done = turnout("cache", "prune", "--bundle", moved, "--json")
    (item,) = done.json["removed"]
    assert "its source was moved from" in item["why"]
    hub = as_hub_cache(bundles("flat"), tmp_path / "hub")
    assert turnout("generate", hub, "the cat", "--max-new-tokens", "2").code == 0
    (place,) = (own_cache / "bundles").glob("*/routes")
    assert any(path.is_dir() for path in place.iterdir())
    assert turnout("cache", "prune").out == "nothing to remove\n"
    shutil.rmtree(tmp_path / "hub")
    assert "is gone" in turnout("cache", "list").out
    assert "is gone" in turnout("cache", "prune").out
    assert not any(path.is_dir() for path in place.iterdir())


def test_the_cache_folder_holds_what_is_compiled_of_bundles_that_cannot_be_written(
    turnout: Terminal, bundles: Bundles, own_cache: Path, tmp_path: Path
) -> None:
    """Of a hub's cache: each bundle is shown its own entries, the cache folder has all."""
    hub = as_hub_cache(on_openvino(bundles, "pipeline", "transformer"), tmp_path / "hub")
    other = bundles("flat")
    assert turnout("compile", hub).code == 0
    assert [entry["stages"] for entry in listed(turnout)] == [["transformer"]]
    assert [entry["stages"] for entry in listed(turnout, "--bundle", hub)] == [["transformer"]]
    assert listed(turnout, "--bundle", other) == []
    assert turnout("cache", "prune", "--bundle", other, "--all", "--json").json["removed"] == []
    assert len(list((own_cache / "store").glob("*/manifest.json"))) == 1
    assert turnout("cache", "prune", "--all").code == 0
    assert list((own_cache / "store").glob("*/manifest.json")) == []


def test_receipts_of_what_is_gone_are_pruned(
    turnout: Terminal, compiled: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_at_once(monkeypatch)
    assert turnout("compile", compiled).code == 0
    (receipt,) = (own_cache / "receipts").iterdir()
    assert turnout("cache", "prune").out == "nothing to remove\n"
    shutil.rmtree(compiled)
    assert f"removed {receipt} (what it remembers is gone)" in turnout("cache", "prune").out
    assert list((own_cache / "receipts").iterdir()) == []


def test_what_a_manifest_says_does_not_drive_the_terminal(
    turnout: Terminal, compiled: Path
) -> None:
    for path in entries(compiled):
        edit_json(
            path / "manifest.json",
            lambda m: m["inputs"].update(ep="\x1b[31mred", stages=[{"stage": "a\nb"}]),
        )
    done = turnout("cache", "list", "--bundle", compiled)
    assert done.code == 0
    assert "\x1b" not in done.out
    assert len(done.out.splitlines()) == 5


@pytest.mark.parametrize("inputs", [{}, {"stages": 3}, {"stages": [3]}, {"kind": [], "ep": 1}])
def test_a_manifest_of_nonsense_is_stale_and_no_crash(
    turnout: Terminal, compiled: Path, inputs: dict[str, Any]
) -> None:
    path = entry_of(compiled, "lm_head") / "manifest.json"
    manifest = read(path)
    path.write_text(json.dumps({**manifest, "inputs": inputs}))
    shown = {entry["key"]: entry for entry in listed(turnout, "--bundle", compiled)}
    assert shown[manifest["key"]]["stale"]
    assert turnout("cache", "list", "--bundle", compiled).code == 0
    assert turnout("cache", "show", manifest["key"], "--bundle", compiled).code == 0


def test_the_commands_of_the_group_have_the_common_options(turnout: Terminal) -> None:
    assert turnout("cache", "--help").code == 0
    for command in ("list", "show", "verify", "remove", "prune"):
        shown = turnout("cache", command, "--help").out
        for option in ("--bundle", "--json", "--verbose", "--quiet", "--debug", "--help"):
            assert option in shown, command
