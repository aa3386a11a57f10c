"""`turnout compile`, `--output`, and the options of compiling where a session is made."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fake_compiler import FakeCompiler, files_in, on_openvino, read
from session_fixtures import Bundles, Terminal, edit_json, reference
from turnout.bundle import Bundle, GenaiConfig
from turnout.cli.progress import JobProgress
from turnout.compiling import tools
from turnout.compiling.ship import damage
from turnout.errors import CompileError
from turnout.machine import Inventory
from turnout.runtime import Session

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")

IDS, GREEDY = reference("llama-f32", 0)
EXACT = ("--ep", "openvino", "--reproducible")
MARK = "turnout-compiled.json"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    return FakeCompiler(monkeypatch)


def rows(text: str) -> dict[str, list[str]]:
    """The table's rows by their first cell."""
    lines = [line.split("  ") for line in text.splitlines()]
    return {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in lines}


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {stage["stage"]: stage["outcome"] for stage in document["stages"]}


def test_stages_are_compiled_once_and_the_table_says_so(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler
) -> None:
    folder = on_openvino(bundles, "pipeline", "transformer")
    first = turnout("compile", folder)
    assert (first.code, first.err) == (0, "")
    assert compiler.compiled == ["transformer"]
    table = rows(first.out)
    assert table["transformer"][:2] == ["openvino", "compiled"]
    assert table["embeddings"] == ["cpu", "skipped", "-", "-", "cpu compiles nothing ahead of time"]
    assert f"stored   {folder / '_compiled' / 'store'}" in first.out
    again = turnout("compile", folder)
    assert rows(again.out)["transformer"][:3] == ["openvino", "stored already", "-"]
    assert compiler.compiled == ["transformer"]
    rebuilt = turnout("compile", folder, "--rebuild", "--json").json
    assert outcomes(rebuilt)["transformer"] == "compiled"
    assert compiler.compiled == ["transformer"] * 2


def test_json_has_everything(turnout: Terminal, bundles: Bundles, compiler: FakeCompiler) -> None:
    folder = on_openvino(bundles, "two sessions", "context", "iterator")
    document = turnout("compile", folder, "--json").json
    assert list(document) == [
        "schema_version", "bundle", "requested", "effective", "stages", "bytes", "shared", "missed",
        "stores", "derived", "output", "failure",
    ]  # fmt: skip
    assert outcomes(document) == {
        "embeddings": "skipped",
        "context": "compiled",
        "iterator": "merged",
        "lm_head": "skipped",
    }
    context = document["stages"][1]
    entry = read(next((folder / "_compiled" / "store").glob("*/manifest.json")))
    assert (context["key"], context["job"]) == (entry["key"], ["context"])
    assert context["bytes"] == document["bytes"] == sum(f["size"] for f in entry["files"])
    assert document["shared"]["merged"] == {"iterator": "context"}
    assert (document["failure"], document["output"]) == (None, None)
    assert Path(document["derived"]).parent == folder.resolve() / "_compiled" / "routes"


def test_nothing_to_compile_is_a_failure_that_says_why(turnout: Terminal, bundles: Bundles) -> None:
    folder = bundles("pipeline")
    done = turnout("compile", folder)
    assert done.code == 1
    assert "error: Nothing can be compiled: cpu compiles nothing ahead of time." in done.err
    assert not (folder / "_compiled").exists()
    document = turnout("compile", folder, "--json")
    assert document.code == 1
    assert document.json["failure"].startswith("Nothing can be compiled")


def test_sharing_that_was_asked_for_is_something_to_do(turnout: Terminal, bundles: Bundles) -> None:
    folder = bundles("two sessions")
    assert turnout("compile", folder).code == 1
    done = turnout("compile", folder, "--share", "session")
    assert done.code == 0
    assert rows(done.out)["iterator"][1] == "merged"
    assert "shared   iterator in the session of context" in done.out


def test_a_stage_that_fails_is_named_with_the_reason(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler
) -> None:
    folder = on_openvino(bundles)
    compiler.broken = {"lm_head"}
    done = turnout("compile", folder)
    assert done.code == 1
    assert "SIGSEGV" in done.err
    assert "error: Not compiled: lm_head." in done.err
    table = rows(done.out)
    assert table["lm_head"][1] == "uncompiled"
    assert "SIGSEGV" in done.out
    # The others are kept.
    assert [table[name][1] for name in ("embeddings", "transformer")] == ["compiled"] * 2
    compiler.broken = set()
    assert outcomes(turnout("compile", folder, "--json").json) == {
        "embeddings": "stored",
        "transformer": "stored",
        "lm_head": "compiled",
    }


def test_why_it_is_compiled_anew_is_said(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = on_openvino(bundles, "pipeline", "transformer")
    installed = tools.version_of("onnxruntime")
    turnout("compile", folder)
    monkeypatch.setattr(tools, "version_of", lambda _: "9.9.9")
    done = turnout("compile", folder)
    assert f"anew     transformer: onnxruntime {installed} -> 9.9.9" in done.out
    missed = turnout("compile", folder, "--rebuild", "--json").json["missed"]
    assert missed == {"transformer": ["made anew, as asked"]}


def test_the_time_limit_is_that_of_each_stage(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler
) -> None:
    turnout("compile", on_openvino(bundles), "--compile-timeout", "7")
    assert compiler.limits == [7, 7, 7]


def test_an_interrupt_leaves_nothing(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler, own_cache: Path
) -> None:
    folder = on_openvino(bundles)
    before = files_in(folder)
    compiler.raises = KeyboardInterrupt
    done = turnout("compile", folder)
    assert (done.code, done.out) == (130, "")
    assert files_in(folder) == before
    assert turnout("generate", folder, "the cat", "--compile").code == 130
    assert files_in(folder) == before
    assert not (own_cache / "store").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compile", "--overwrite"), "--output with it"),
        (("compile", "--share", "everything"), "off, auto, require"),
        (("compile", "--compile-timeout", "0"), "more than 0 seconds"),
        (("compile", "--target", "soc_model"), "KEY=VALUE"),
        (("compile", "--target", "soc_model=60"), "a stage on"),
        (("generate", "x", "--rebuild"), "--compile or --share with it"),
        (("generate", "x", "--no-cache", "--paranoid"), "--compile or --share with it"),
        (("generate", "x", "--require-compiled"), "--compile with it"),
        (("generate", "x", "--compile", "--rebuild", "--no-cache"), "one of them"),
        (("chat", "--compile-timeout", "5"), "--compile or --share with it"),
        (("explain", "--target", "soc_model=60"), "--compile or --share with it"),
    ],
)
def test_what_means_nothing_is_wrong_usage(
    turnout: Terminal, bundles: Bundles, arguments: tuple[str, ...], words: str
) -> None:
    command, *rest = arguments
    done = turnout(command, bundles("pipeline"), *rest)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


@pytest.mark.parametrize("place", ["itself", "inside", "around", "full", "not a bundle", "a file"])
def test_a_bundle_is_shipped_to_a_place_of_its_own(
    turnout: Terminal, bundles: Bundles, tmp_path: Path, compiler: FakeCompiler, place: str
) -> None:
    folder = on_openvino(bundles, "pipeline", "transformer")
    before = files_in(folder)
    full = bundles("flat") if place == "full" else tmp_path / "output"
    if place == "not a bundle":
        full.mkdir()
        (full / "precious.txt").write_text("mine")
    if place == "a file":
        full.write_text("mine")
    output = {"itself": folder, "inside": folder / "out", "around": folder.parent}.get(place, full)
    more = () if place == "full" else ("--overwrite",)
    done = turnout("compile", folder, "--output", output, *more)
    assert (done.code, done.out) == (2, "")
    assert compiler.compiled == []  # it is said before the work is done
    assert files_in(folder) == before
    if place == "not a bundle":
        assert (full / "precious.txt").read_text() == "mine"


def test_a_shipped_bundle_is_whole_and_has_a_manifest(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler, tmp_path: Path
) -> None:
    folder = on_openvino(bundles, "pipeline", "transformer")
    output = tmp_path / "new" / "shipped"
    done = turnout("compile", folder, "--output", output, "--json")
    assert done.code == 0, done.err
    names = {
        "embeddings.onnx", "genai_config.json", "lm_head.onnx", "model.data", "tokenizer.json",
        "tokenizer_config.json", "transformer.bin", "transformer_openvino_ctx.onnx",
    }  # fmt: skip
    assert set(done.json["output"]["files"]) == names
    assert files_in(output) == {*names, MARK}
    assert all(path.stat().st_nlink == 1 for path in output.iterdir())
    assert done.json["output"]["bytes"] == sum((output / name).stat().st_size for name in names)
    assert ".." not in (output / "genai_config.json").read_text()
    stage = Bundle.open(output).stage("transformer")
    assert (stage.filename, stage.ep) == (
        "transformer_openvino_ctx.onnx",
        "OpenVINOExecutionProvider",
    )
    manifest = read(output / MARK)
    assert manifest["source"]["name"] == folder.name
    assert list(manifest["stages"]) == ["transformer"]
    assert manifest["stages"]["transformer"]["made_of"]["ep"] == "OpenVINOExecutionProvider"
    assert set(manifest["uncompiled"]) == {"embeddings", "lm_head"}
    assert {file["name"] for file in manifest["files"]} == names
    assert damage(output) == ()
    # Again, over it.
    assert turnout("compile", folder, "--output", output).code == 2
    assert turnout("compile", folder, "--output", output, "--overwrite").code == 0


def test_damage_of_a_shipped_bundle_is_found(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler, tmp_path: Path
) -> None:
    folder, output = on_openvino(bundles, "pipeline", "transformer"), tmp_path / "shipped"
    output.mkdir()  # an empty folder is no obstacle
    turnout("compile", folder, "--output", output)
    data = output / "model.data"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    (output / "lm_head.onnx").unlink()
    assert set(damage(output)) == {"model.data is not what was written", "lm_head.onnx is missing"}
    done = turnout("cache", "verify", "--bundle", output)
    assert done.code == 1
    assert "model.data is not what was written" in done.out
    (output / MARK).write_text('{"files": [{"name": "../x", "size": 1, "sha256": ""}]}')
    assert turnout("cache", "verify", "--bundle", output).code == 1
    (output / MARK).write_text("{")
    with pytest.raises(CompileError):
        damage(output)


def test_what_rotted_in_the_store_is_made_anew_and_not_shipped(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler, tmp_path: Path
) -> None:
    folder = on_openvino(bundles, "pipeline", "transformer")
    turnout("compile", folder)
    (binary,) = (folder / "_compiled" / "store").glob("*/transformer.bin")
    binary.write_bytes(b"x" + binary.read_bytes()[1:])
    done = turnout("compile", folder, "--output", tmp_path / "shipped")
    assert done.code == 0, done.err
    assert compiler.compiled == ["transformer", "transformer"]
    assert "is not what was written" in done.out
    assert damage(tmp_path / "shipped") == ()


def test_graphs_in_a_folder_of_their_own_find_their_weights_when_shipped(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler, tmp_path: Path
) -> None:
    folder = on_openvino(bundles, "pipeline", "transformer")
    (folder / "graphs").mkdir()
    for name in ("model.data", "transformer.onnx", "embeddings.onnx", "lm_head.onnx"):
        (folder / name).rename(folder / "graphs" / name)

    def moved(config: dict[str, Any]) -> None:
        for item in config["model"]["decoder"]["pipeline"]:
            for stage in item.values():
                stage["filename"] = f"graphs/{stage['filename']}"

    edit_json(folder / "genai_config.json", moved)
    output = tmp_path / "shipped"
    assert turnout("compile", folder, "--output", output).code == 0
    config = GenaiConfig.load(output / "genai_config.json")
    options = {stage.name: stage.effective_options for stage in config.stages()}
    key = "session.model_external_initializers_file_folder_path"
    assert options["transformer"][key] == "graphs"
    assert key not in options["lm_head"]
    assert Bundle.open(output).missing == ()


def test_explain_shows_what_would_be_compiled_and_does_nothing(
    turnout: Terminal, bundles: Bundles, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inventory, "discover", staticmethod(Inventory.minimal))
    folder = on_openvino(bundles, "two sessions", "context", "iterator")
    before = files_in(folder)
    done = turnout("explain", folder, "--compile")
    assert done.code == 0
    assert "compiles context: openvino, not stored yet" in done.out
    assert "merges iterator into the session of context" in done.out
    assert "leaves lm_head as it is: cpu compiles nothing ahead of time" in done.out
    assert (compiler.compiled, files_in(folder)) == ([], before)
    turnout("compile", folder)
    document = turnout("explain", folder, "--compile", "--json").json["preparing"]
    assert [(job["stages"], job["stored"]) for job in document["jobs"]] == [(["context"], True)]
    assert document["merged"] == {"iterator": "context"}
    apart = turnout("explain", folder, "--compile", "--share", "off", "--json").json["preparing"]
    assert [(job["stages"], job["stored"]) for job in apart["jobs"]] == [
        (["context"], True),
        (["iterator"], False),
    ]
    assert turnout("explain", folder, "--json").json["preparing"] is None


def test_stats_say_what_is_shared(turnout: Terminal, bundles: Bundles) -> None:
    folder = bundles("two sessions")
    words = ("the cat", "--max-new-tokens", "4")
    shared = turnout("generate", folder, *words, "--share", "session", "--stats")
    assert shared.code == 0, shared.err
    assert "shared   iterator in the session of context\n" in shared.err
    assert "compiled nothing\n" in shared.err
    assert "PSS" in shared.err
    plain = turnout("generate", folder, *words, "--stats")
    assert plain.out == shared.out
    assert "shared" not in plain.err
    document = turnout("generate", folder, *words, "--share", "session", "--json").json
    assert document["prepared"]["shared"]["merged"] == {"iterator": "context"}
    assert turnout("generate", folder, *words, "--json").json["prepared"] is None
    chat = turnout("chat", folder, "--share", "session", "--json", stdin="the cat\n")
    assert chat.json["prepared"]["shared"]["merged"] == {"iterator": "context"}


def test_a_bar_shows_what_is_compiled_where_a_person_sees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()

    def console(*, quiet: bool = False) -> Console:
        return Console(file=written, force_terminal=True, width=100, quiet=quiet)

    monkeypatch.setattr("turnout.cli.progress.stderr_console", console)
    for shown in (False, True):
        progress = JobProgress(shown=shown)
        progress.started("context+iterator", 12.3)
        progress.ended("context+iterator", "compiled")
        progress.ended("lm_head", "stored")
        assert progress.outcomes == {"context+iterator": "compiled", "lm_head": "stored"}
        assert ("compiling context+iterator" in written.getvalue()) == shown
    assert "of about 12 s" in written.getvalue()
    progress.started("a\x1b[31m" + "b" * 100, None)
    progress.ended("", "failed")
    assert "\\x1b[31mbbb" in written.getvalue()


# The real compiler.


def ask(folder: Path) -> list[int]:
    """What a bundle answers, in a process of its own that knows nothing but that folder."""
    code = (
        "import sys, json, turnout\n"
        "with turnout.Session(sys.argv[1]) as session:\n"
        "    ids = json.loads(sys.argv[2])\n"
        "    result = session.generate(ids, max_new_tokens=8, greedy=True)\n"
        "    print(json.dumps(list(result.token_ids)))\n"
    )
    command = [sys.executable, "-c", code, str(folder), json.dumps(IDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.openvino
@pytest.mark.parametrize("share", ["auto", "ep"])
def test_a_shipped_bundle_loads_from_anywhere(
    turnout: Terminal, bundles: Bundles, tmp_path: Path, share: str
) -> None:
    """A8, B1: also where the EP shares weights that lie beside."""
    folder, output = bundles("static"), tmp_path / "shipped"
    done = turnout("compile", folder, *EXACT, "--share", share, "--output", output)
    assert done.code == 0, done.err
    shutil.rmtree(folder)
    moved = tmp_path / "ein anderer Ort, 日本"
    shutil.move(output, moved)
    assert damage(moved) == ()
    assert ask(moved) == GREEDY


@pytest.mark.slow
@pytest.mark.openvino
def test_weights_that_compiled_stages_hold_are_not_shipped_once_more(
    turnout: Terminal, bundles: Bundles, tmp_path: Path
) -> None:
    folder, output = bundles("pipeline"), tmp_path / "shipped"
    done = turnout("compile", folder, *EXACT, "--output", output)
    assert done.code == 0, done.err
    assert not (output / "model.data").exists()
    assert ask(output) == GREEDY


@pytest.mark.slow
@pytest.mark.openvino
@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C of one process is a signal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_compiler_is_stopped_and_leaves_nothing(
    bundles: Bundles, own_cache: Path, number: signal.Signals
) -> None:
    import psutil

    folder = on_openvino(bundles)
    before = files_in(folder)
    command = [sys.executable, "-m", "turnout", "compile", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    staged = folder / "_compiled" / "store"
    deadline = time.monotonic() + 60
    while not list(staged.glob(".turnout-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert (out, err) == ("", "")
    assert not any(is_alive(child) for child in children)
    assert files_in(folder) == before
    assert not (own_cache / "store").exists()


def is_alive(process: Any) -> bool:
    """Whether it runs; one that was killed may wait for somebody to ask how it ended."""
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.openvino
def test_a_compiled_bundle_is_left_as_it_is(
    turnout: Terminal, bundles: Bundles, tmp_path: Path
) -> None:
    """What came compiled is used as it is, by every command."""
    folder, output = bundles("pipeline"), tmp_path / "shipped"
    turnout("compile", folder, *EXACT, "--output", output)
    done = turnout("compile", output)
    assert done.code == 0, done.err
    assert "it is compiled already" in done.out
    with Session(output, compile=True) as session:
        assert session.generate(IDS, max_new_tokens=8, greedy=True).token_ids == tuple(GREEDY)
