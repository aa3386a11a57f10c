"""`turnout verify` as a person and as a program would call it."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import verify_fixtures as fixtures
from session_fixtures import Bundles, Terminal
from turnout.verify import plan, questions, verifying

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")

# Quick: two prompts of a few tokens, and no text.
QUICK = ("--random-tokens", "2,6", "--max-new-tokens", "3", "--no-text")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture(scope="module")
def tiny(bundles: Bundles) -> Path:
    return bundles("pipeline")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def words(line: str) -> list[str]:
    """The cells of a line of the table."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_without_options_the_bundle_is_verified_as_it_says_itself(
    turnout: Terminal, tiny: Path
) -> None:
    done = turnout("verify", tiny)
    assert done.code == 0, done.err
    head, row, *_ = done.out.splitlines()
    assert words(head) == [
        "Route",
        "Verdict",
        "Took effect",
        "Agreement",
        "Mean KL",
        "p99 KL",
        "Perplexity",
        "First difference",
    ]
    one = "1.0000 (1.0000 to 1.0000)"
    assert words(row) == ["config", "same", "config", "100%", "0", "0", one, "none"]
    assert "Reference: --ep cpu --reproducible, which took effect as cpu." in done.out
    assert re.search(r"Compared at \d+ positions: \d+ read out of prompts", done.out)
    assert "The same is what keeps within: mean KL 0.01, perplexity ratio 1.03." in done.out
    assert "Loading config." in done.err


@pytest.mark.slow
def test_a_route_that_differs_says_why_and_the_exit_code_is_1(
    turnout: Terminal, tiny: Path, bundles: Bundles
) -> None:
    altered = fixtures.with_noise(bundles("pipeline"), 0.1)
    done = turnout("verify", altered, "--reference-bundle", tiny, "--no-text")
    assert done.code == 1
    assert words(done.out.splitlines()[1])[1] == "differs"
    assert re.search(r"^  mean KL \S+ is above 0.01$", done.out, re.MULTILINE)
    assert re.search(
        r"^  after \d+ tokens? .* for .*, where the reference's margin is [\d.e-]+: \w",
        done.out,
        re.MULTILINE,
    )
    assert f"of {tiny}" in done.out
    lenient = ("--max-kl", "50")
    options = ("--reference-bundle", tiny, *QUICK, *lenient)
    assert turnout("verify", altered, *options).code == 0
    assert turnout("verify", altered, *options, "--min-agreement", "1").code == 1


def test_json_is_the_one_document_on_stdout_and_the_file_holds_the_same(
    turnout: Terminal, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "verify.json"
    done = turnout("verify", tiny, *QUICK, "--ep", "cpu", "--json", "-o", path)
    assert done.code == 0, done.err
    assert done.json == json.loads(path.read_text("utf-8"))
    assert done.json["document"] == "turnout verify report"
    assert done.json["schema_version"] == 1
    assert done.json["command"][:2] == ["turnout", "verify"]
    assert done.json["settings"]["thresholds"]["max_kl"] == plan.MAX_KL
    (route,) = done.json["routes"]
    assert (route["name"], route["requested"], route["effective"]) == ("ep=cpu", "--ep cpu", "cpu")
    assert route["verdict"] == "same"
    assert [question["kind"] for question in done.json["questions"]] == ["random"] * 2


@pytest.mark.slow
def test_several_routes_and_another_reference_are_said_in_the_words_of_a_set(
    turnout: Terminal, tiny: Path
) -> None:
    options = ("--route-set", "config; name=second ep=cpu", "--reference", "ep=cpu")
    done = turnout("verify", tiny, *QUICK, *options)
    assert done.code == 0, done.err
    assert [words(line)[0] for line in done.out.splitlines()[1:3]] == ["config", "second"]
    assert "Reference: --ep cpu, which took effect as cpu." in done.out


@pytest.mark.slow
def test_prompts_and_a_text_come_from_files(turnout: Terminal, tiny: Path, tmp_path: Path) -> None:
    lines, listed = tmp_path / "prompts.txt", tmp_path / "prompts.json"
    lines.write_text("\ufeffthe cat\n\n  the hat  \n", "utf-8")
    listed.write_text(json.dumps(["the cat", "two\nlines"]), "utf-8")
    text = tmp_path / "text.txt"
    text.write_text("the cat and the hat. " * 5, "utf-8")
    quick = ("--max-new-tokens", "2", "--json")
    found = turnout("verify", tiny, *quick, "--prompts", lines, "--no-text").json
    assert [question["text"] for question in found["questions"]] == ["the cat", "the hat"]
    assert found["settings"]["prompts_from"] == "prompts.txt"
    assert found["settings"]["text_from"] is None
    options = ("--prompts", listed, "--random-tokens", "1", "--text", text)
    found = turnout("verify", tiny, *quick, *options).json
    asked = [(question["kind"], question["text"]) for question in found["questions"]]
    assert asked == [
        ("prompt", "the cat"),
        ("prompt", "two\nlines"),
        ("random", None),
        ("text", None),
    ]
    assert found["settings"]["text_from"] == "text.txt"


@pytest.mark.slow
def test_quiet_prints_the_table_and_verbose_the_figures_by_place(
    turnout: Terminal, tiny: Path
) -> None:
    done = turnout("verify", tiny, *QUICK, "-q")
    assert done.err == ""
    assert len(done.out.splitlines()) == 2
    done = turnout("verify", tiny, *QUICK, "-v")
    assert re.search(r"^  inside prompts +\d+ +100% ", done.out, re.MULTILINE)
    assert re.search(r"^config  question 2 of 2: \d", done.err, re.MULTILINE)


def test_help_says_what_the_thresholds_are(turnout: Terminal) -> None:
    done = turnout("verify", "--help")
    said = " ".join(done.out.split())
    assert done.code == 0
    assert f"{plan.MAX_KL} unless said otherwise" in said
    assert f"{plan.MAX_PERPLEXITY_RATIO} unless said otherwise" in said
    assert "config|auto|cpu|gpu|npu" in said
    for default in (questions.NEW_TOKENS, questions.TEXT_TOKENS, questions.RANDOM_LENGTH):
        assert str(default) in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--max-kl", "-1"), "threshold is out of range"),
        (("--max-kl", "nan"), "threshold is out of range"),
        (("--max-kl", "inf"), "threshold is out of range"),
        (("--max-perplexity-ratio", "1e400"), "threshold is out of range"),
        (("--max-perplexity-ratio", "2", "--no-text"), "there is no text"),
        (("--prompts", "nul.txt"), "nul.txt: line 2"),
        (("--text", "nul.txt"), "nul.txt: line 2"),
        (("--prompts", "surrogate.json"), "surrogate.json: prompt 1"),
        (("--text", "lone.txt"), "lone.txt: line 3"),
        (("--prompts", "."), "no regular file"),
        (("--prompts", "-", "--text", "-"), "read once"),
        (("--min-agreement", "1.5"), "from 0 to 1"),
        (("--max-new-tokens", "0"), "number of tokens is out of range"),
        (("--text-tokens", "0"), "number of tokens is out of range"),
        (("--random-tokens", "x"), "in a way that is not known"),
        (("--random-tokens", "3,"), "in a way that is not known"),
        (("--random-tokens", "0"), "out of range"),
        (("--random-tokens", "3,0"), "out of range"),
        (("--prompts", "nowhere.txt"), "Cannot read the prompts in nowhere.txt"),
        (("--prompts", "empty.txt"), "number of prompts is out of range"),
        (("--prompts", "broken.json"), "prompts are no JSON"),
        (("--prompts", "numbers.json"), "A prompt is no text"),
        (("--prompts", "surrogate.json"), "no valid Unicode"),
        (("--text", "empty.txt"), "text is empty"),
        (("--text", "latin.txt"), "Cannot read the text in latin.txt"),
        (("--text", "empty.txt", "--no-text"), "is to be left out"),
        (("--reference", "config; ep=cpu"), "There is one reference"),
        (("--reference", "nonsense"), "not known"),
        (("--reference-bundle", "nowhere"), "nowhere"),
        (("--route-set", "ep=cpu", "--ep", "cpu"), "asked for in two ways"),
        (("--ep", "nonsense"), "unknown"),
        (("--time-limit", "0"), "time limit is out of range"),
        (("-o", "nowhere/verify.json"), "is not there"),
        (("-o", "one.json", "--html", "one.json"), "hold two documents"),
    ],
)
def test_what_cannot_be_asked_is_wrong_usage_before_anything_is_loaded(
    turnout: Terminal,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "broken.json").write_text('["one", ')
    (tmp_path / "numbers.json").write_text('["one", 2]')
    (tmp_path / "surrogate.json").write_text('["\\ud800"]')
    (tmp_path / "nul.txt").write_bytes(b"one\ntw\0o\n")
    (tmp_path / "lone.txt").write_bytes(b"one\ntwo\n\xed\xa0\x80\n")
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    done = turnout("verify", tiny, *options)
    assert done.code == 2, done.err
    assert says in done.err
    assert "Loading" not in done.err
    assert done.out == ""


@posix
@pytest.mark.parametrize("option", ["--prompts", "--text"])
def test_a_pipe_with_a_name_is_refused_rather_than_waited_for(
    turnout: Terminal, tiny: Path, tmp_path: Path, option: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = turnout("verify", tiny, option, tmp_path / "pipe")
    assert done.code == 2
    assert "no regular file" in done.err


def test_prompts_are_read_from_standard_input(tiny: Path, tmp_path: Path) -> None:
    options = ("--prompts", "-", "--no-text", "--max-new-tokens", "2", "--json")
    process = start(tmp_path, "verify", tiny, *options, stdin=subprocess.PIPE)
    out, err = process.communicate("the cat\nthe hat\n", timeout=120)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert [question["text"] for question in found["questions"]] == ["the cat", "the hat"]
    assert found["settings"]["prompts_from"] == "standard input"


def test_a_text_that_was_given_and_is_too_short_to_judge_is_not_the_same(
    turnout: Terminal, tiny: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat", "utf-8")
    options = ("--random-tokens", "1,4", "--max-new-tokens", "2")
    done = turnout("verify", tiny, *options, "--text", text)
    assert done.code == 1
    assert "the text is too short to judge its perplexity: " in done.out
    # Turnout's own, cut short, is only noted.
    done = turnout("verify", tiny, *options, "--text-tokens", "8")
    assert done.code == 0, done.err
    assert "The text is too short to judge its perplexity: " in done.out
    done = turnout("verify", tiny, *options, "--text-tokens", "8", "--max-perplexity-ratio", "2")
    assert done.code == 1


def test_a_path_that_is_no_bundle_is_wrong_usage(turnout: Terminal, tiny: Path) -> None:
    done = turnout("verify", next(tiny.rglob("*.onnx")))
    assert done.code == 2
    assert "not a bundle" in done.err


@pytest.mark.slow
def test_a_file_that_is_there_is_kept_unless_it_is_to_be_replaced(
    turnout: Terminal, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "verify.json"
    path.write_text("mine")
    done = turnout("verify", tiny, *QUICK, "-o", path)
    assert done.code == 2
    assert "--overwrite" in done.err
    assert path.read_text() == "mine"
    assert turnout("verify", tiny, *QUICK, "-o", path, "--overwrite").code == 0
    assert json.loads(path.read_text("utf-8"))["routes"]


@posix
def test_a_failed_route_is_a_row_with_its_reason_and_the_exit_code_is_1(
    turnout: Terminal, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = {"ep=cpu": f"{fixtures.__name__}:Crashing"}
    patched = functools.partial(verifying.verify, serving=serving)
    monkeypatch.setattr(verifying, "verify", patched)
    options = ("--random-tokens", "4,6", "--no-text", "--route-set", "ep=cpu; config")
    done = turnout("verify", tiny, *options)
    assert done.code == 1
    rows = [words(line) for line in done.out.splitlines()[1:3]]
    assert [(row[0], row[1]) for row in rows] == [("ep=cpu", "failed"), ("config", "same")]
    assert "crashed during question 3 of 4" in done.out
    assert "the native library says why" in done.out
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_text_of_prompts_does_not_drive_the_terminal(
    turnout: Terminal, tiny: Path, bundles: Bundles, tmp_path: Path
) -> None:
    altered = fixtures.with_noise(bundles("pipeline"), 0.3)
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(["\x1b[31mred\x07 <b>bold</b> \u202e"]), "utf-8")
    options = ("--prompts", prompts, "--no-text", "--reference-bundle", tiny)
    done = turnout("verify", altered, *options)
    assert done.code == 1
    assert "\\x1b[31mred" in done.out
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", done.out)


def start(folder: Path, *arguments: object, **how: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "turnout", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        **how,
    )


@posix
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_ends_it_and_leaves_nothing(
    number: signal.Signals, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    options = ("--random-tokens", "1000,100", "-v", "--json", "-o", tmp_path / "verify.json")
    beside = fixtures.files_near(tiny)
    process = start(tmp_path, "verify", tiny, "--route-set", "config; ep=cpu", *options)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "Loading config" in line:
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (130 if number == signal.SIGINT else 128 + number), err
    assert out == ""
    assert "Traceback" not in err
    # The runtime itself leaves a file there, by which it tells its sessions apart.
    assert {path.name for path in temporary.iterdir()} <= {".ses"}
    assert not (tmp_path / "verify.json").exists()
    assert fixtures.files_near(tiny) == beside


@posix
def test_an_interrupt_keeps_the_routes_that_were_verified(
    turnout: Terminal, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = {"ep=cpu": f"{fixtures.__name__}:Interrupting"}
    patched = functools.partial(verifying.verify, serving=serving)
    monkeypatch.setattr(verifying, "verify", patched)
    path = tmp_path / "verify.json"
    options = ("--random-tokens", "4,6", "--no-text", "--route-set", "config; ep=cpu")
    done = turnout("verify", tiny, *options, "-o", path)
    assert done.code == 130
    rows = [words(line) for line in done.out.splitlines()[1:3]]
    assert [(row[0], row[1]) for row in rows] == [("config", "same"), ("ep=cpu", "failed")]
    assert "It was interrupted; " in done.out
    found = json.loads(path.read_text("utf-8"))
    assert found["interrupted"] is True
    assert [route["verdict"] for route in found["routes"]] == ["same", None]


@pytest.mark.openvino
def test_what_a_route_has_to_warn_of_is_said(turnout: Terminal, tiny: Path) -> None:
    options = ("--ep", "openvino", "--provider-option", "nobody_knows=1")
    done = turnout("verify", tiny, *QUICK, *options)
    assert done.code == 0, done.err
    assert len([line for line in done.err.splitlines() if "not known" in line]) == 1


@pytest.mark.openvino
def test_a_route_is_compiled_where_that_is_asked_for(turnout: Terminal, bundles: Bundles) -> None:
    folder = bundles("pipeline")
    done = turnout("verify", folder, *QUICK, "--ep", "openvino", "--compile", "--reproducible")
    assert done.code == 0, done.err
    assert words(done.out.splitlines()[1])[1] == "same"
    assert list((folder / "_compiled" / "store").iterdir())
