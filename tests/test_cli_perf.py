"""`turnout perf` as a person and as a program would call it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import perf_faults
from session_fixtures import Bundles, Done, Terminal
from turnout.perf import measuring

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")

# Quick: a few tokens, and nothing that takes another load.
QUICK = ("--iterations", "2", "--max-new-tokens", "3", "--no-placement")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture(scope="module")
def int4(bundles: Bundles) -> Path:
    """A16: a tiny real bundle with weights of 4 bits."""
    return bundles("pipeline", model="llama-mixed")


@pytest.fixture(scope="module")
def tiny(bundles: Bundles) -> Path:
    return bundles("pipeline")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def words(line: str) -> list[str]:
    """The cells of a line of the table."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.mark.parametrize(
    ("options", "name", "requested", "effective"),
    [
        ((), "config", "config", "config"),
        (("--device", "config"), "config", "config", "config"),
        (("--ep", "cpu"), "ep=cpu", "--ep cpu", "cpu"),
        (("--device", "cpu"), "device=cpu", "--device cpu", "cpu"),
    ],
)
def test_a_bundle_is_benchmarked_four_ways_and_each_says_what_took_effect(
    turnout: Terminal,
    int4: Path,
    options: tuple[str, ...],
    name: str,
    requested: str,
    effective: str,
) -> None:
    """A16, A11, A12: the report and the table show the route's EP, or "config"."""
    done = turnout("perf", int4, *QUICK, "--json", *options)
    assert done.code == 0, done.err
    (route,) = done.json["routes"]
    assert (route["name"], route["requested"], route["effective"]) == (name, requested, effective)
    assert {stage["effective"] for stage in route["stages"]} == {"cpu"}
    assert {stage["device"] for stage in route["stages"]} == {"cpu"}
    assert route["aggregate"]["decode_tokens_per_second"]["samples"] == 2
    shown = turnout("perf", int4, *QUICK, *options)
    assert shown.code == 0
    rows = [words(line) for line in shown.out.splitlines()[1:3]]
    assert [row[:2] for row in rows] == [[name, effective]] * 2


def test_an_ep_outranks_a_device_and_a_device_the_config(turnout: Terminal, tiny: Path) -> None:
    """A10"""
    both = turnout("perf", tiny, *QUICK, "--json", "--ep", "cpu", "--device", "cpu").json
    assert both["routes"][0]["requested"] == "--ep cpu --device cpu"
    assert {stage["requested"] for stage in both["routes"][0]["stages"]} == {
        "--ep cpu --device cpu"
    }
    device = turnout("perf", tiny, *QUICK, "--json", "--device", "cpu").json
    assert all("--device cpu" in s["requested"] for s in device["routes"][0]["stages"])


def test_a_path_that_is_a_plain_graph_is_wrong_usage(turnout: Terminal, tiny: Path) -> None:
    """A14"""
    graph = next(tiny.rglob("*.onnx"))
    done = turnout("perf", graph, "--device", "config")
    assert done.code == 2
    assert done.out == ""
    assert "not a bundle" in done.err
    assert "a directory with a genai_config.json" in done.err


def test_help_names_the_config_value(turnout: Terminal) -> None:
    """A17"""
    done = turnout("perf", "--help")
    assert done.code == 0
    assert "config|auto|cpu|gpu|npu" in done.out
    assert "config, the default" in " ".join(done.out.split())


def test_the_table_reads_like_llama_benchs(turnout: Terminal, tiny: Path) -> None:
    done = turnout(
        "perf", tiny, "--prompt-tokens", "5,9", "--max-new-tokens", "3", "--iterations", "2"
    )
    assert done.code == 0, done.err
    head, *rows = done.out.splitlines()
    assert words(head) == [
        "Route",
        "Took effect",
        "Test",
        "Tokens/s",
        "TTFT / TPOT",
        "Load",
        "Peak memory",
    ]
    assert [words(row)[2] for row in rows[:4]] == ["pp5", "tg3 @ d5", "pp9", "tg3 @ d9"]
    assert all("±" in row for row in rows[:4])
    assert [words(row)[4].split()[0] for row in rows[:4]] == ["TTFT", "TPOT", "TTFT", "TPOT"]


def test_json_is_the_one_document_on_stdout_and_the_file_holds_the_same(
    turnout: Terminal, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    done = turnout("perf", tiny, *QUICK, "--json", "-o", path)
    assert done.code == 0
    assert done.json == json.loads(path.read_text("utf-8"))
    assert done.json["schema_version"] == 1
    assert done.json["command"][:2] == ["turnout", "perf"]
    assert done.json["settings"]["iterations"] == 2
    assert [r["kind"] for r in done.json["routes"][0]["requests"]] == ["warmup", "timed", "timed"]


def test_several_routes_are_compared_in_one_call(turnout: Terminal, tiny: Path) -> None:
    done = turnout(
        "perf", tiny, *QUICK, "--iterations", "6", "--route-set", "config; ep=cpu; name=x config"
    )
    assert done.code == 0, done.err
    assert [words(row)[0] for row in done.out.splitlines()[1:7]] == [
        "config",
        "config",
        "ep=cpu",
        "ep=cpu",
        "x",
        "x",
    ]
    sentences = [
        line for line in done.out.splitlines() if "than config" in line or "as config" in line
    ]
    assert len(sentences) == 4  # decoding and TTFT, of two routes


def test_routes_come_from_a_file_too(turnout: Terminal, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "routes.txt"
    path.write_text("\ufeffconfig\nep=cpu  # what ships\n", "utf-8")
    done = turnout("perf", tiny, *QUICK, "--json", "--route-set", f"@{path}")
    assert [route["name"] for route in done.json["routes"]] == ["config", "ep=cpu"]


def test_quiet_prints_the_table_and_nothing_else(turnout: Terminal, tiny: Path) -> None:
    done = turnout("perf", tiny, *QUICK, "-q")
    assert done.err == ""
    assert len(done.out.splitlines()) == 3


def test_verbose_says_of_each_request_what_it_took_and_where_nodes_ran(
    turnout: Terminal, tiny: Path
) -> None:
    done = turnout("perf", tiny, "--iterations", "1", "--max-new-tokens", "3", "-v")
    assert done.err.count("config: timed, prompt of") == 1
    assert done.err.count("config: warmup, prompt of") == 1
    assert "config: transformer placed cpu: " in done.out


def test_a_file_that_is_there_is_kept_unless_it_is_to_be_replaced(
    turnout: Terminal, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    path.write_text("mine")
    done = turnout("perf", tiny, *QUICK, "-o", path)
    assert done.code == 2
    assert "exists already" in done.err
    assert "--overwrite" in done.err
    assert "Loading" not in done.err  # it is said before anything is measured
    assert path.read_text() == "mine"
    assert turnout("perf", tiny, *QUICK, "-o", path, "--overwrite").code == 0
    assert json.loads(path.read_text("utf-8"))["complete"]
    assert {found.name for found in tmp_path.iterdir()} <= {"report.json", "the cache"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--iterations", "0"), "timed requests is out of range"),
        (("--warmup", "-1"), "warm-up requests is out of range"),
        (("--max-new-tokens", "8,x"), "list of lengths is malformed"),
        (("--max-new-tokens", "0"), "list of lengths is malformed"),
        (("--max-new-tokens", "1_0"), "list of lengths is malformed"),
        (("--max-new-tokens", "9999999999", "--prompt", "x"), "new tokens is out of range"),
        (("--max-new-tokens", "8,8"), "asked for twice"),
        (("--prompt-tokens", "-5"), "list of lengths is malformed"),
        (("--prompt-tokens", "300"), "too long for this bundle"),
        (("--prompt-tokens", "5", "--prompt", "x"), "asked for in two ways"),
        (("--prompt", ""), "prompt is empty"),
        (("--prompt", "x", "--prompt-file", "y"), "given twice"),
        (("--prompt-file", "nowhere.txt"), "Cannot read nowhere.txt"),
        (("--json", "--markdown"), "Only one document"),
        (("--verified", "x.json"), "shown on a page"),
        (("--route-set", "ep=cpu", "--ep", "cpu"), "asked for in two ways"),
        (("--route-set", "ep"), "ep without a value"),
        (("--route-set", "@nowhere.txt"), "cannot be read"),
        (("--ep", "nonsense"), "unknown"),
        (("--request-timeout", "0"), "time limit is out of range"),
        (("-o", "nowhere/report.json"), "is not there"),
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
    done = turnout("perf", tiny, *options)
    assert done.code == 2, done.err
    assert says in done.err
    assert "Loading" not in done.err
    assert done.out == ""
    assert list(tmp_path.glob("*.json")) == []


@posix
def test_a_failed_route_is_a_row_with_its_reason_and_the_exit_code_is_1(
    turnout: Terminal, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = {"ep=cpu": f"{perf_faults.__name__}:Crashing"}
    monkeypatch.setattr(measuring, "measure", functools.partial(measuring.measure, serving=serving))
    path = tmp_path / "report.json"
    done = turnout("perf", tiny, *QUICK, "--route-set", "ep=cpu; config", "-o", path)
    assert done.code == 1
    table = [words(line) for line in done.out.splitlines()]
    assert ["config", "config", "pp64"] in [row[:3] for row in table]
    assert "crashed during timed request 2 of 2" in done.out
    assert "the native library says why" in done.out
    assert "Traceback" not in done.err
    document = json.loads(path.read_text("utf-8"))
    assert document["routes"][0]["error"]["kind"] == "crashed"
    assert len(document["routes"][1]["requests"]) == 3


def start(
    folder: Path, *arguments: object, program: tuple[str, ...] = ("-m", "turnout")
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


@posix
def test_after_ctrl_c_the_report_says_how_many_requests_it_holds(
    tiny: Path, tmp_path: Path
) -> None:
    options = ("--iterations", "100000", "--max-new-tokens", "3", "--json", "-v")
    process = start(tmp_path, "perf", tiny, *options, "-o", tmp_path / "report.json")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "timed" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    document: dict[str, Any] = json.loads(out)
    assert document == json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert document["interrupted"]
    assert not document["complete"]
    assert document["requests_planned"] == 100_001
    assert 2 <= document["requests_held"] == len(document["routes"][0]["requests"])
    assert "Traceback" not in err


@posix
def test_an_interrupt_before_the_first_request_leaves_nothing_and_says_so(
    tiny: Path, tmp_path: Path
) -> None:
    script = (
        "from turnout.perf import measuring, child; import perf_faults, functools;"
        "serving = {'config': 'perf_faults:Slow'};"
        "measuring.measure = functools.partial(measuring.measure, serving=serving);"
        "from turnout.cli.main import main; main()"
    )
    process = start(tmp_path, "perf", tiny, "-o", "report.json", program=("-c", script))
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "Loading" in line:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "Interrupted before the first request: there is nothing to report.\n"
    assert not (tmp_path / "report.json").exists()


@posix
@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGINT, signal.SIGINT, signal.SIGINT), 130),
        ((signal.SIGTERM,), 143),
        ((signal.SIGTERM, signal.SIGINT), 143),
    ],
)
def test_however_it_is_ended_and_how_often_what_was_measured_is_kept(
    tiny: Path, tmp_path: Path, signals: tuple[signal.Signals, ...], code: int
) -> None:
    """People press Ctrl-C twice, and CI ends what takes too long."""
    options = ("--iterations", "100000", "--max-new-tokens", "3", "-v")
    process = start(tmp_path, "perf", tiny, *options, "-o", "report.json")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "timed" in line:
                break
        for number in signals:
            process.send_signal(number)
            time.sleep(0.05)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, err
    document = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert document["interrupted"]
    assert document["requests_held"] >= 2
    assert "Incomplete" in out
    assert "Traceback" not in err


def test_a_report_that_cannot_be_written_after_all_is_kept_elsewhere(
    turnout: Terminal, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnout import files
    from turnout.errors import WriteError

    def full(path: Path, data: bytes) -> None:
        raise WriteError(f"No space left while writing {path}.")

    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    monkeypatch.setattr(files, "write_atomic", full)
    done: Done = turnout("perf", tiny, *QUICK, "-o", tmp_path / "report.json")
    assert done.code == 1
    assert "No space left" in done.err
    (kept,) = elsewhere.glob("turnout-*.json")
    assert f"it is kept as {kept}" in done.err
    assert json.loads(kept.read_text("utf-8"))["complete"]


@pytest.mark.openvino
def test_what_a_route_has_to_warn_of_is_said_as_it_is_when_generating(
    turnout: Terminal, tiny: Path
) -> None:
    options = ("--ep", "openvino", "--provider-option", "nobody_knows=1")
    done = turnout("perf", tiny, *QUICK, *options)
    assert done.code == 0, done.err
    generated = turnout("generate", tiny, "the cat", "--max-new-tokens", "1", *options)
    (warning,) = [line for line in generated.err.splitlines() if "not known" in line]
    (said,) = [line for line in done.err.splitlines() if "not known" in line]
    assert said.endswith(warning)


def test_a_prompt_that_is_used_as_it_is_says_so(turnout: Terminal, bundles: Bundles) -> None:
    folder = bundles("pipeline")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = folder / "tokenizer_config.json"
    document = json.loads(tokenizer.read_text("utf-8"))
    document.pop("chat_template", None)
    tokenizer.write_text(json.dumps(document), "utf-8")
    done = turnout("perf", folder, *QUICK, "--prompt", "the cat")
    assert done.code == 0
    assert done.err.count("The bundle has no chat template: the prompt is used as it is.") == 1


@pytest.mark.slow
def test_what_was_verified_is_on_the_page_if_it_is_of_the_same_bundle(
    turnout: Terminal, tiny: Path, int4: Path, tmp_path: Path
) -> None:
    verified, page = tmp_path / "verified.json", tmp_path / "page.html"
    assert turnout("verify", tiny, "--ep", "cpu", "--no-text", "-o", verified).code == 0
    done = turnout("perf", tiny, *QUICK, "--html", page, "--verified", verified)
    assert done.code == 0, done.err
    assert "Same answers?" in page.read_text("utf-8")
    other = turnout("perf", int4, *QUICK, "--html", tmp_path / "other.html", "--verified", verified)
    assert other.code == 2
    assert "another bundle" in other.err
    assert "Loading" not in other.err
    assert not (tmp_path / "other.html").exists()


def test_a_page_opens_offline_and_holds_the_results(
    turnout: Terminal, tiny: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    done = turnout("perf", tiny, *QUICK, "--html", page)
    assert done.code == 0, done.err
    text = page.read_text("utf-8")
    assert text.lower().startswith("<!doctype html>")
    assert "pp64" in text


def test_markdown_is_a_table_for_a_pull_request(turnout: Terminal, tiny: Path) -> None:
    done = turnout("perf", tiny, *QUICK, "--markdown")
    assert done.code == 0
    assert done.out.startswith("| Route | Took effect | Test |")
    assert "| `config` | config | tg3 @ d64 |" in done.out


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_is_the_same_document_whatever_the_outputs_encoding(
    tiny: Path, tmp_path: Path, encoding: str
) -> None:
    prompt = "h\u00e9llo \U0001f600"
    done = subprocess.run(
        [sys.executable, "-m", "turnout", "perf", str(tiny), *QUICK, "--prompt", prompt, "--json"],
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout.decode("utf-8"))["workloads"][0]["prompt"] == prompt


@posix
def test_what_is_no_regular_file_is_not_replaced_and_a_link_is_followed(
    turnout: Terminal, tiny: Path, tmp_path: Path
) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.json", tmp_path / "target.json"
    os.mkfifo(pipe)
    refused = turnout("perf", tiny, *QUICK, "-o", pipe, "--overwrite")
    assert (refused.code, "a pipe" in refused.err) == (2, True)
    assert pipe.is_fifo()
    target.write_text("old")
    link.symlink_to(target)
    assert turnout("perf", tiny, *QUICK, "-o", link).code == 2
    assert turnout("perf", tiny, *QUICK, "-o", link, "--overwrite").code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text("utf-8"))["complete"]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    done = turnout("perf", tiny, *QUICK, "-o", loop)
    assert (done.code, "leads nowhere" in done.err or "exists" in done.err) == (2, True)


def test_the_bundles_own_files_are_never_replaced(turnout: Terminal, bundles: Bundles) -> None:
    folder = bundles("pipeline")
    config = folder / "genai_config.json"
    before = config.read_bytes()
    done = turnout("perf", folder, *QUICK, "-o", config, "--overwrite")
    assert done.code == 2
    assert "one of the bundle's own files" in done.err
    assert config.read_bytes() == before


def test_a_file_that_appeared_meanwhile_is_not_replaced(
    turnout: Terminal, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    measure = measuring.measure

    def slowly(*arguments: Any, **options: Any) -> Any:
        path.write_text("of somebody else")
        return measure(*arguments, **options)

    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    monkeypatch.setattr(measuring, "measure", slowly)
    done = turnout("perf", tiny, *QUICK, "-o", path)
    assert done.code == 1
    assert "exists already" in done.err
    assert path.read_text() == "of somebody else"
    assert len(list(elsewhere.glob("turnout-*.json"))) == 1


def test_one_document_that_cannot_be_written_does_not_keep_another_from_it(
    turnout: Terminal, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnout import files
    from turnout.errors import WriteError

    write = files.write_atomic

    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".json":
            raise WriteError(f"No space left while writing {path}.")
        write(path, data)

    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    monkeypatch.setattr(files, "write_atomic", full)
    page = tmp_path / "page.html"
    done = turnout("perf", tiny, *QUICK, "-o", tmp_path / "report.json", "--html", page)
    assert done.code == 1
    assert page.is_file()
    assert "tg3" in done.out


def test_quiet_still_says_why_a_route_failed(turnout: Terminal, tiny: Path) -> None:
    done = turnout("perf", tiny, *QUICK, "-q", "--ep", "rocm")
    assert done.code == 1
    assert "unavailable during the decision: " in done.out


def test_what_is_prepared_may_be_said_by_one_route_alone(
    turnout: Terminal, bundles: Bundles
) -> None:
    folder = bundles("two sessions")
    routes = "config; name=merged config share=session"
    done = turnout("perf", folder, *QUICK, "--json", "--route-set", routes, "--paranoid")
    assert done.code == 0, done.err
    assert [route["prepared"] is None for route in done.json["routes"]] == [True, False]
    idle = turnout("perf", folder, *QUICK, "--route-set", "config; ep=cpu", "--paranoid")
    assert (idle.code, "Nothing is prepared" in idle.err) == (2, True)


def test_routes_and_prompts_come_from_standard_input_too(turnout: Terminal, tiny: Path) -> None:
    done = turnout("perf", tiny, *QUICK, "--json", "--route-set", "@-", stdin="config\nep=cpu\n")
    assert [route["name"] for route in done.json["routes"]] == ["config", "ep=cpu"]
    done = turnout("perf", tiny, *QUICK, "--json", "--prompt-file", "-", stdin="the cat\n")
    assert done.json["workloads"][0]["prompt"] == "the cat"


def test_a_bundle_with_a_short_context_is_asked_what_fits(
    turnout: Terminal, bundles: Bundles
) -> None:
    folder = bundles("pipeline", change=lambda config: config["model"].update(context_length=16))
    done = turnout("perf", folder, "--iterations", "1", "--no-placement", "--json")
    assert done.code == 0, done.err
    (workload,) = done.json["workloads"]
    assert (workload["name"], workload["prompt"]) == ("pp4+tg12", None)
    assert {r["generated_tokens"] for r in done.json["routes"][0]["requests"]} == {12}


@posix
def test_files_that_a_bundle_links_to_and_inputs_are_never_replaced(
    turnout: Terminal, bundles: Bundles, tmp_path: Path
) -> None:
    """A hub's cache: the files of a bundle are links to blobs."""
    made = bundles("flat")
    blobs, snapshot = tmp_path / "m" / "blobs", tmp_path / "m" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in made.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / path.name)
    config = blobs / "genai_config.json"
    before = config.read_bytes()
    for output in (snapshot / "genai_config.json", config):
        done = turnout("perf", snapshot, *QUICK, "-o", output, "--overwrite")
        assert (done.code, "bundle's own files" in done.err) == (2, True)
    verified = tmp_path / "v.json"
    verified.write_text("{}")
    options = ("--html", tmp_path / "p.html", "--verified", verified, "-o", verified)
    done = turnout("perf", snapshot, *QUICK, *options, "--overwrite")
    assert (done.code, "to be read and to be replaced" in done.err) == (2, True)
    assert config.read_bytes() == before


@posix
def test_a_name_that_is_no_unicode_costs_no_report(tiny: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"b\xff.txt")
    (tmp_path / name).write_text("the cat")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "turnout",
            "perf",
            tiny,
            *QUICK,
            "--prompt-file",
            name,
            "-o",
            report,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "b\ufffd.txt" in json.loads(report.read_text("utf-8"))["command"]
