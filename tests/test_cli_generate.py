"""`turnout generate` as a person and as a program would call it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from session_fixtures import LONG_PROMPT, Bundles, Terminal, edit_json, long_bundle, set_provider
from turnout.machine import Device, InstalledEp, Inventory
from turnout.runtime import Session

pytest_plugins = ("session_plugin",)

OPENVINO = {"OpenVINO": {"device_type": "CPU"}}
INVENTORY = Path(__file__).parent / "data" / "inventories" / "intel-laptop.json"
N = ("--max-new-tokens", "12")


@pytest.fixture(scope="module")
def flat(bundles: Bundles) -> Path:
    return bundles()


@pytest.fixture(scope="module")
def answer(flat: Path) -> str:
    """What the bundle answers to "the cat" with 12 tokens."""
    with Session(flat) as session:
        return session.generate("the cat", max_new_tokens=12).text


def test_the_answer_alone_goes_to_stdout(turnout: Terminal, flat: Path, answer: str) -> None:
    """A1"""
    done = turnout("generate", flat, "the cat", *N)
    assert (done.code, done.out, done.err) == (0, answer + "\n", "")


@pytest.mark.parametrize("how", ["dash", "pipe", "file", "windows"])
def test_a_prompt_comes_from_stdin_or_a_file_without_its_last_newline(
    turnout: Terminal, flat: Path, answer: str, tmp_path: Path, how: str
) -> None:
    if how == "file":
        (tmp_path / "prompt").write_bytes(b"\xef\xbb\xbfthe cat\n")
        done = turnout("generate", flat, "--prompt-file", tmp_path / "prompt", *N)
    elif how == "dash":
        done = turnout("generate", flat, "-", *N, stdin="the cat\n")
    else:
        done = turnout("generate", flat, *N, stdin="the cat" + ("\r\n" if how == "windows" else ""))
    assert done.code == 0, done.err
    assert done.out == answer + "\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("",), None, "prompt is empty"),
        (("  ",), None, "prompt is empty"),
        ((), "", "prompt is empty"),
        ((), "\n", "prompt is empty"),
        (("a\0b",), None, "NUL"),
        ((), b"\xff\xfe", "UTF-8"),
        (("x", "--seed", "-1"), None, "seed (--seed)"),
        (("x", "--temperature", "-1"), None, "temperature (--temperature)"),
        (("x", "--top-p", "1.5"), None, "top_p (--top-p)"),
        (("x", "--top-k", "-2"), None, "top_k (--top-k)"),
        (("x", "--repetition-penalty", "0"), None, "repetition_penalty (--repetition-penalty)"),
        (("x", "--max-new-tokens", "0"), None, "max_new_tokens (--max-new-tokens)"),
        (("x", "--greedy", "--top-k", "3"), None, "top_k (--top-k)"),
        (("x", "--raw", "--system", "y"), None, "raw prompt"),
        (("x", "--prompt-file", "somewhere"), None, "twice"),
        (("--prompt-file", "/no/such/file"), None, "/no/such/file"),
        (("x", "--ep", "nonsense"), None, "nonsense"),
        (("x", "--device", "tpu"), None, "tpu"),
        (("x", "--stage", "nowhere=cpu"), None, "decoder"),
    ],
)
def test_wrong_usage_exits_with_2_and_writes_nothing(
    turnout: Terminal, flat: Path, arguments: tuple[str, ...], stdin: str | None, words: str
) -> None:
    before = sorted(flat.rglob("*"))
    done = turnout("generate", flat, *arguments, stdin=stdin)
    assert done.code == 2, done.err
    assert done.out == ""
    assert words in done.err
    assert "Traceback" not in done.err
    assert sorted(flat.rglob("*")) == before


def test_a_path_that_is_no_bundle_is_wrong_usage(turnout: Terminal, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        done = turnout("generate", path, "hi")
        assert done.code == 2
        assert "genai_config.json" in done.err


def test_a_prompt_too_long_exits_with_1_and_says_both_numbers(
    turnout: Terminal, flat: Path
) -> None:
    done = turnout("generate", flat, "x" * 400)
    assert done.code == 1
    assert done.out == ""
    assert "417 tokens" in done.err
    assert "256" in done.err


def test_a_bundle_that_does_not_load_exits_with_1(turnout: Terminal, bundles: Bundles) -> None:
    path = bundles("pipeline")
    (path / "lm_head.onnx").write_bytes(b"")
    done = turnout("generate", path, "hi")
    assert done.code == 1
    assert "Stage lm_head" in done.err
    assert "Traceback" not in done.err


def test_debug_shows_the_traceback(turnout: Terminal, flat: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        turnout("generate", flat, "", "--debug")


def test_a_raw_prompt_skips_the_template(turnout: Terminal, flat: Path) -> None:
    done = turnout("generate", flat, "the cat", "--raw", "--json", *N)
    with Session(flat) as session:
        assert done.json["prompt_tokens"] == len(session.encode("the cat"))
    templated = turnout("generate", flat, "the cat", "--json", *N)
    assert templated.json["prompt_tokens"] == 22


def test_a_bundle_without_a_template_says_so_on_stderr(turnout: Terminal, bundles: Bundles) -> None:
    path = bundles()
    edit_json(path / "tokenizer_config.json", lambda config: config.pop("chat_template"))
    done = turnout("generate", path, "the cat", *N)
    assert done.code == 0
    assert "no chat template" in done.err
    assert turnout("generate", path, "the cat", *N, "--quiet").err == ""
    done = turnout("generate", path, "the cat", "--system", "Be kind.")
    assert done.code == 1
    assert "no chat template" in done.err


def test_json_is_one_document_with_text_counts_times_route_and_memory(
    turnout: Terminal, flat: Path, answer: str
) -> None:
    """A12: requested and effective are in the report."""
    done = turnout("generate", flat, "the cat", "--json", *N)
    assert done.code == 0
    document = done.json
    assert document["schema_version"] == 1
    assert document["text"] == answer
    assert len(document["token_ids"]) == document["generated_tokens"] == 12
    assert document["finish_reason"] == "length"
    assert document["prompt_tokens"] == document["timing"]["prefilled_tokens"] == 22
    assert len(document["timing"]["decode_s"]) == 11
    assert document["timing"]["request_ttft_s"] > 0
    assert document["load"]["total_s"] > document["load"]["model_s"] > 0
    assert document["route"]["requested"] == document["route"]["effective"] == "config"
    assert document["route"]["stages"] == {"decoder": "cpu"}
    assert document["route"]["placed"] is None
    assert document["memory"]["rss_bytes"] > 10 << 20


def test_stats_are_a_short_summary_on_stderr(turnout: Terminal, flat: Path, answer: str) -> None:
    """A12: per stage the EP that took effect, or config."""
    done = turnout("generate", flat, "the cat", "--stats", *N)
    assert done.out == answer + "\n"
    lines = dict(line.split(maxsplit=1) for line in done.err.splitlines())
    words = {"load", "prefill", "TTFT", "decode", "memory", "route", "placed", "stages"}
    assert set(lines) == words
    assert lines["prefill"].startswith("22 tokens in ")
    assert lines["decode"].startswith("12 tokens (length)")
    assert "tokens/s" in lines["decode"]
    assert lines["route"] == "requested config, effective config"
    assert lines["placed"] == "not measured (turnout explain --measure)"
    assert lines["stages"] == "decoder cpu"


def test_ep_cpu_runs_a_bundle_made_for_an_accelerator_that_is_not_here(
    turnout: Terminal, bundles: Bundles
) -> None:
    """A4, A12, W#1025: the override takes effect, and is what the report says."""
    path = bundles(
        "pipeline", change=set_provider("transformer", {"qnn": {"backend_path": "QnnHtp.dll"}})
    )
    failed = turnout("generate", path, "the cat", *N)
    assert failed.code == 1
    ways = re.search(r"fix: route to what this machine has, with (.*?); otherwise: ", failed.err)
    assert ways is not None, failed.err
    assert "--ep cpu" in ways[1].split(" or ")
    assert "qnn" not in ways[1]
    done = turnout("generate", path, "the cat", "--ep", "cpu", "--json", *N)
    assert done.code == 0, done.err
    assert done.json["route"]["effective"] == "cpu"
    assert set(done.json["route"]["stages"].values()) == {"cpu"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "Cannot read the inventory"),
        ("{}", "not a valid document"),
        ("[" * 100_000, "not a valid document"),
        (INVENTORY.read_text("utf-8"), "nothing is to be decided"),
    ],
    ids=["missing", "other", "deep", "good"],
)
@pytest.mark.parametrize("options", [(), ("--session-option", "a=b")])
def test_an_inventory_is_never_ignored(
    turnout: Terminal,
    flat: Path,
    tmp_path: Path,
    content: str | None,
    words: str,
    options: tuple[str, ...],
) -> None:
    """A12: nothing that was asked for silently does nothing."""
    path = tmp_path / "inventory.json"
    if content is not None:
        path.write_text(content, "utf-8")
    done = turnout("generate", flat, "x", "--inventory", path, *options)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert str(path) in done.err


def test_an_ep_that_can_only_compile_here_is_warned_about_once(
    turnout: Terminal, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A15, W#860: the config is respected, and its EP cannot run here."""
    devices = (Device("cpu", compile_only=True),)
    qnn = InstalledEp("QNNExecutionProvider", "onnxruntime-qnn", devices=devices)
    machine = msgspec.structs.replace(Inventory.minimal(), eps=(qnn,))
    monkeypatch.setattr(Inventory, "discover", staticmethod(lambda: machine))
    path = bundles("pipeline", change=set_provider("transformer", {"qnn": {}}))
    warning = "qnn can compile on this machine but not run"
    assert turnout("generate", path, "x").err.count(warning) == 1
    assert warning not in turnout("generate", path, "x", "--quiet").err
    assert warning not in turnout("generate", path, "x", "--stage", "transformer=cpu", *N).err


@pytest.mark.parametrize("writable", [True, False])
def test_a_config_that_the_runtime_refuses_is_named_where_the_user_has_it(
    turnout: Terminal,
    bundles: Bundles,
    writable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    path = bundles(change=lambda config: config["model"].update(type=7))
    if not writable:
        (path / "_compiled").write_text("in the way")
    done = turnout("generate", path, "the cat", "--session-option", "a.b=1")
    assert done.code == 1
    assert f"{path}/genai_config.json" in done.err
    assert "routes" not in done.err


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("options", "effective", "transformer"),
    [
        ((), "config", "openvino"),
        (("--device", "config"), "config", "openvino"),
        (("--ep", "openvino"), "openvino", "openvino"),
        (("--device", "cpu"), "cpu", "cpu"),
        (("--stage", "transformer=cpu"), "cpu", "cpu"),
        (("--stage", "lm_head=openvino"), "mixed", "openvino"),
    ],
)
def test_every_way_to_route_is_reported_as_it_took_effect(
    turnout: Terminal,
    bundles: Bundles,
    options: tuple[str, ...],
    effective: str,
    transformer: str,
) -> None:
    """A7, A12: a bundle whose transformer is on OpenVINO by itself."""
    path = bundles("pipeline", change=set_provider("transformer", OPENVINO))
    done = turnout("generate", path, "the cat", "--json", "--reproducible", *options, *N)
    assert done.code == 0, done.err
    assert done.json["route"]["stages"]["transformer"] == transformer
    plain = turnout("generate", path, "the cat", "--json", *options, *N)
    assert plain.json["route"]["effective"] == effective
    assert done.json["token_ids"] == plain.json["token_ids"]


def test_a_seed_makes_the_text_the_same_every_time(turnout: Terminal, flat: Path) -> None:
    texts = {turnout("generate", flat, "the cat", "--seed", "5", *N).out for _ in range(2)}
    other = turnout("generate", flat, "the cat", "--seed", "6", *N).out
    assert len(texts) == 1
    assert other not in texts


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the third piece is written."""
    from turnout.cli import sessions

    real = sessions.show_pieces

    def pressed(pieces: Iterable[str]) -> Iterator[str]:
        for index, piece in enumerate(pieces):
            yield piece
            if index + 1 == count:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sessions, "show_pieces", lambda pieces: real(pressed(pieces)))


def test_ctrl_c_ends_the_text_cleanly_and_still_prints_the_summary(
    turnout: Terminal, flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = turnout("generate", flat, "the cat", "--max-new-tokens", "60").out
    interrupt_after(3, monkeypatch)
    done = turnout("generate", flat, "the cat", "--max-new-tokens", "60", "--stats")
    assert done.code == 130
    assert done.out.endswith("\n")
    assert 0 < len(done.out) < len(whole)
    assert whole.startswith(done.out[:-1].rstrip("\ufffd"))
    assert "(interrupted)" in done.err
    assert "stages   decoder cpu" in done.err
    assert "Traceback" not in done.err


def test_help_names_the_config_value_and_every_option(turnout: Terminal) -> None:
    """A17"""
    done = turnout("generate", "--help")
    assert done.code == 0
    for word in (
        "config|auto|cpu|gpu|npu",
        "--raw",
        "--system",
        "--prompt-file",
        "--max-new-tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--repetition-penalty",
        "--seed",
        "--greedy",
        "--stats",
        "--ep",
        "--stage",
        "--reproducible",
    ):
        assert word in done.out


def test_control_characters_do_not_reach_a_terminal() -> None:
    import io

    from turnout.cli.text import writer

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen, pipe = Screen(), io.StringIO()
    for stream in (screen, pipe):
        writer(stream)("a\x1b[2J\x07b\tc\nd\x9b")
    assert screen.getvalue() == "a\ufffd[2J\ufffdb\tc\nd\ufffd"
    assert pipe.getvalue() == "a\x1b[2J\x07b\tc\nd\x9b"


def test_an_encoding_without_a_character_does_not_end_the_text(flat: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "turnout", "generate", str(flat), "the cat", *N],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"?" in done.stdout


def test_a_reader_that_goes_away_leaves_no_traceback(flat: Path) -> None:
    """`turnout generate ... | head -c 1`"""
    child = subprocess.Popen(
        [sys.executable, "-m", "turnout", "generate", str(flat), "the cat"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    err = child.stderr.read().decode()
    child.stderr.close()
    assert child.wait() != 0
    assert "Traceback" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_in_a_real_process_exits_with_130(flat: Path) -> None:
    """The prompt never comes, so the process waits: Ctrl-C ends it without a traceback."""
    child = subprocess.Popen(
        [sys.executable, "-m", "turnout", "generate", str(flat), "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(1.5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("kind", ["flat", "pipeline"])
def test_ctrl_c_is_heard_while_a_long_prompt_is_computed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "prompt").write_text(LONG_PROMPT)
    bundle = long_bundle(tmp_path, kind)
    options = ("--prompt-file", str(tmp_path / "prompt"), "-v", "--stats")
    child = subprocess.Popen(
        [sys.executable, "-m", "turnout", "generate", str(bundle), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    assert child.stderr.readline().startswith("prompt of ")
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out == "\n"
    found = re.search(r"^prefill  (\d+) of (\d+) tokens", err, re.MULTILINE)
    assert found, err
    assert 0 < int(found[1]) < int(found[2])
    assert "decode   0 tokens (interrupted)" in err


NOISY = """
import ctypes, os, sys
from turnout.cli.main import main
from turnout.runtime import loading
real = loading.register
def register(*arguments):
    os.write(1, b"# LIBNATIVE: at once\\n")
    ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None).puts(b"# LIBNATIVE: held by C")
    real(*arguments)
loading.register = register
main()
"""


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("options", [["--json"], []])
def test_what_a_plugin_prints_is_kept_from_the_results(
    flat: Path, answer: str, command: str, options: list[str]
) -> None:
    """The fault is made: QNN's library prints when it is loaded."""
    done = subprocess.run(
        [sys.executable, "-c", NOISY, command, str(flat), *N, *options],
        input="the cat\n",
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if options:
        json.loads(done.stdout)
    else:
        assert done.stdout == answer + "\n"
    assert done.stderr.splitlines() == ["# LIBNATIVE: at once", "# LIBNATIVE: held by C"]


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_outputs_change_no_exit_code(flat: Path, command: str, closed: str) -> None:
    line = f'exec "$0" -m turnout {command} "$1" --max-new-tokens 2 --stats {closed}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, str(flat)],
        input="the cat\n",
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (">&- 2" not in closed and closed != ">&-")
    assert ("decode " in done.stderr) == (closed == ">&-")


def test_names_out_of_a_bundle_do_not_drive_the_terminal(
    turnout: Terminal, bundles: Bundles
) -> None:
    """CSI as one character (C1); the runtime refuses escapes in its config."""
    path = bundles(change=lambda config: config["model"]["decoder"].update(filename="a\x9b2J.onnx"))
    for command in (("generate", path, "hi"), ("chat", path)):
        done = turnout(*command, stdin="hi\n")
        assert done.code == 1
        assert "\x9b" not in done.err
        assert "a\\x9b2J.onnx" in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_ctrl_c_ends_a_chat_template_that_never_does(bundles: Bundles, command: str) -> None:
    path = bundles()
    loop = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
    edit_json(path / "tokenizer_config.json", lambda config: config.update(chat_template=loop))
    child = subprocess.Popen(
        [sys.executable, "-m", "turnout", command, str(path), *["hi"][: command == "generate"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(2)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    try:
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
    # The signal itself, which a shell shows as 130.
    assert child.returncode == -signal.SIGINT
    assert err == b""


def test_the_document_survives_a_round_trip(turnout: Terminal, flat: Path) -> None:
    done = turnout("generate", flat, "the cat", "--json", *N)
    assert json.loads(json.dumps(done.json)) == done.json
