"""`turnout chat`: from a pipe, and at a real terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from session_fixtures import LONG_PROMPT, Bundles, Terminal, edit_json, long_bundle, set_eos
from turnout.runtime import Session

pytest_plugins = ("session_plugin",)

N = ("--max-new-tokens", "8")


@pytest.fixture(scope="module")
def flat(bundles: Bundles) -> Path:
    return bundles()


def messages(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def test_every_line_of_a_pipe_is_answered_in_the_light_of_those_before(
    turnout: Terminal, flat: Path
) -> None:
    """A1. The same texts as requests that carry the whole history."""
    with Session(flat) as session:
        first = session.generate(messages("the cat"), max_new_tokens=8).text
        second = session.generate(messages("the cat", first, "and then"), max_new_tokens=8).text
    done = turnout("chat", flat, *N, stdin="the cat\n\nand then\n")
    assert done.code == 0
    assert done.out == f"{first}\n{second}\n"
    assert done.err == ""


@pytest.mark.parametrize("kind", ["pipeline", "static"])
def test_a_pipeline_says_the_same_as_a_flat_bundle(
    turnout: Terminal, bundles: Bundles, flat: Path, kind: str
) -> None:
    """A pipeline computes every turn anew, a flat bundle continues."""
    lines = "the cat\nand then\nagain\n"
    assert (
        turnout("chat", bundles(kind), *N, stdin=lines).out
        == turnout("chat", flat, *N, stdin=lines).out
    )


def test_a_system_message_stands_before_what_follows(turnout: Terminal, flat: Path) -> None:
    with Session(flat) as session:
        kind = session.generate("the cat", system="Be kind.", max_new_tokens=8).text
        plain = session.generate("the cat", max_new_tokens=8).text
    assert turnout("chat", flat, "--system", "Be kind.", *N, stdin="the cat\n").out == kind + "\n"
    done = turnout("chat", flat, *N, stdin="/system\n/system Be kind.\nthe cat\n")
    assert done.out == kind + "\n"
    assert "system: (none)" in done.err
    assert "system: Be kind." in done.err
    assert kind != plain


def test_reset_forgets_what_was_said_and_keeps_the_system_message(
    turnout: Terminal, flat: Path
) -> None:
    done = turnout("chat", flat, *N, stdin="/system Be kind.\nthe cat\nmore\n/reset\nthe cat\n")
    pieces = turnout("chat", flat, "--system", "Be kind.", *N, stdin="the cat\n").out
    assert done.out.startswith(pieces)
    assert done.out.endswith("\n" + pieces)


def test_a_line_that_begins_with_two_slashes_is_a_message(turnout: Terminal, flat: Path) -> None:
    done = turnout("chat", flat, *N, "--json", stdin="//help\n")
    assert done.json["messages"][0] == {"role": "user", "content": "/help"}


def test_help_exit_and_unknown_commands(turnout: Terminal, flat: Path) -> None:
    done = turnout("chat", flat, *N, stdin="/help\n/exit\nthe cat\n")
    assert (done.code, done.out) == (0, "")
    for command in ("/system", "/reset", "/save", "/exit"):
        assert command in done.err
    done = turnout("chat", flat, *N, stdin="/nonsense\nthe cat\n")
    assert done.code == 1
    assert "/nonsense" in done.err
    assert done.out != ""


def test_json_is_the_whole_conversation_at_the_end(turnout: Terminal, flat: Path) -> None:
    """A12"""
    done = turnout("chat", flat, "--json", *N, stdin="the cat\nand then\n")
    document = done.json
    assert [m["role"] for m in document["messages"]] == ["user", "assistant"] * 2
    assert document["messages"][1]["content"] == document["turns"][0]["text"]
    assert document["route"]["effective"] == "config"
    assert (
        document["turns"][1]["timing"]["prefilled_tokens"] < document["turns"][1]["prompt_tokens"]
    )
    assert document["load"]["total_s"] > 0


def test_saving_writes_json_or_markdown_by_the_suffix(
    turnout: Terminal, flat: Path, tmp_path: Path
) -> None:
    markdown, data = tmp_path / "talk.md", tmp_path / "talk.json"
    lines = f"/system Be kind.\nthe cat\n/save {markdown}\n/save {data}\nmore\n/save {data}\n"
    done = turnout("chat", flat, *N, stdin=lines)
    assert done.code == 0, done.err
    document = json.loads(data.read_text("utf-8"))
    assert document["system"] == "Be kind."
    assert len(document["messages"]) == 4
    answer = document["messages"][1]["content"]
    assert markdown.read_text("utf-8") == (
        f"**system**\n\nBe kind.\n\n**user**\n\nthe cat\n\n**assistant**\n\n{answer}\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["talk.json", "talk.md"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", "needs a file"),
        ("talk.txt", "FILE.json"),
        ("there.md", "exists"),
        ("no/x.md", "no/x.md"),
    ],
)
def test_what_cannot_be_saved_is_said_and_the_conversation_goes_on(
    turnout: Terminal, flat: Path, tmp_path: Path, target: str, words: str
) -> None:
    (tmp_path / "there.md").write_text("mine")
    path = tmp_path / target if target else ""
    done = turnout("chat", flat, *N, stdin=f"/save {path}\nthe cat\n")
    assert done.code == 1
    assert words in done.err
    assert done.out != ""
    assert (tmp_path / "there.md").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there.md"]


@pytest.mark.parametrize("name", ["~nosuchuser/x.json", "x" * 300 + ".json", "a\0b.json"])
def test_a_name_that_no_file_can_have_does_not_end_the_conversation(
    turnout: Terminal, flat: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = turnout("chat", flat, *N, stdin=f"/save {name}\nthe cat\n")
    assert done.code == 1
    assert "cannot be saved" in done.err
    assert list(tmp_path.iterdir()) == []
    assert done.out == turnout("chat", flat, *N, stdin="the cat\n").out


def test_a_full_context_leaves_out_the_oldest_turns_and_says_so(
    turnout: Terminal, flat: Path
) -> None:
    lines = "".join(f"message number {index} of many\n" for index in range(6))
    done = turnout("chat", flat, *N, "--json", stdin=lines)
    assert done.code == 0
    assert "oldest turn" in done.err
    assert len(done.json["messages"]) == 12
    assert max(turn["prompt_tokens"] for turn in done.json["turns"]) <= 256 - 8


def test_a_message_too_long_is_an_error_and_the_conversation_goes_on(
    turnout: Terminal, flat: Path
) -> None:
    done = turnout("chat", flat, *N, stdin=f"{'x' * 400}\nthe cat\n")
    assert done.code == 1
    assert "417 tokens" in done.err
    assert done.out == turnout("chat", flat, *N, stdin="the cat\n").out


def test_a_bundle_without_a_template_cannot_chat(turnout: Terminal, bundles: Bundles) -> None:
    path = bundles()
    edit_json(path / "tokenizer_config.json", lambda config: config.pop("chat_template"))
    done = turnout("chat", path, stdin="the cat\n")
    assert done.code == 1
    assert "no chat template" in done.err


@pytest.mark.parametrize(
    "arguments", [("--seed", "-1"), ("--system", ""), ("--ep", "nonsense"), ("--device", "tpu")]
)
def test_wrong_usage_exits_with_2(
    turnout: Terminal, flat: Path, arguments: tuple[str, ...]
) -> None:
    assert turnout("chat", flat, *arguments, stdin="the cat\n").code == 2


def test_stats_follow_every_answer(turnout: Terminal, flat: Path) -> None:
    """A12: the route once, the times of every answer."""
    done = turnout("chat", flat, "--stats", *N, stdin="the cat\nand then\n")
    assert done.err.count("decode ") == 2
    assert done.err.count("stages   decoder cpu") == 1
    assert "kept from the last turn" in done.err


def test_ctrl_c_stops_an_answer_and_not_the_program(
    turnout: Terminal, flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnout.cli import chatting

    real, pressed = chatting.show_pieces, []

    def press(pieces: Iterable[str]) -> Iterator[str]:
        for index, piece in enumerate(pieces):
            yield piece
            if index == 2 and not pressed:
                pressed.append(True)
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chatting, "show_pieces", lambda pieces: real(press(pieces)))
    done = turnout("chat", flat, "--max-new-tokens", "60", stdin="the cat\nand then\n")
    assert done.code == 0
    assert "(stopped)" in done.err
    assert done.err.count("(stopped)") == 1
    assert done.out.count("\n") >= 2
    assert "Traceback" not in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_stops_a_long_message_and_the_conversation_goes_on(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "turnout", "chat", str(long_bundle(tmp_path, "flat")), "--json", *N],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stderr is not None
    child.stdin.write("/system\n")
    child.stdin.flush()
    # Whoever answers to this has been loaded.
    assert child.stderr.readline() == "system: (none)\n"
    child.stdin.write(LONG_PROMPT + "\n")
    child.stdin.flush()
    time.sleep(0.7)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate("the cat\n", timeout=60)
    assert child.returncode == 0, err
    assert err == "(stopped)\n"
    document = json.loads(out)
    assert [turn["finish_reason"] for turn in document["turns"]] == ["interrupted", "length"]
    stopped = document["turns"][0]
    assert 0 < stopped["timing"]["prefilled_tokens"] < stopped["prompt_tokens"]
    assert document["messages"][0]["content"] == "the cat"


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
def test_at_a_terminal_ctrl_c_is_ignored_between_answers_and_ctrl_d_ends(bundles: Bundles) -> None:
    """The first token ends the text, so an answer is an empty line."""
    import pty

    path = bundles()
    with Session(path) as session:
        first = session.generate("hi", max_new_tokens=1).token_ids[0]
    edit_json(path / "genai_config.json", set_eos(first))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "turnout", "chat", str(path)])
    screen = read_until(terminal, "> ")
    assert "/help" in screen
    # The prompt is shown a moment before the terminal library is ready for a signal.
    time.sleep(0.5)
    os.write(terminal, b"\x03")
    assert "Ctrl-D or /exit ends" in read_until(terminal, "> ")
    os.write(terminal, b"hi\n")
    read_until(terminal, "> ")
    os.write(terminal, b"/system\n")
    assert "system: (none)" in read_until(terminal, "> ")
    os.write(terminal, b"\x04")
    rest = read_until(terminal, None)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "Traceback" not in screen + rest


def read_until(terminal: int, mark: str | None, limit: float = 60) -> str:
    """What the terminal shows until `mark` comes, or (None) until it is closed."""
    import select

    text, end = "", time.monotonic() + limit
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(terminal, 4096)
        except OSError:  # Linux says so when the other end is closed
            return text
        text += data.decode("utf-8", "replace")
        if not data or (mark is not None and text.endswith(mark)):
            return text
    raise AssertionError(f"{mark!r} did not come, but {text!r}")
