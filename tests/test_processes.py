"""Work in a child process: answers, errors, crashes, time limits, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from turnout.errors import LoadError, ProcessError
from turnout.processes import Heard, call, worker

HERE = Path(__file__).stem


# What the children run: found by its name, because a child imports what its parent could.
def double(number: int) -> int:
    os.write(1, b"a library prints on stdout\n")
    return number * 2


def echo(value: Any) -> Any:
    return value


def refuse(_: object) -> None:
    raise LoadError("It does not load.", found="no file", fix="bring one")


def stumble(_: object) -> None:
    raise KeyError("a defect")


def crash(_: object) -> None:
    os.write(2, b"first line\nthe native library says why\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(_: object) -> None:
    os._exit(3)


def crash_at_exit(_: object) -> str:
    def crashing(code: int) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    os._exit = crashing
    return "verified"


def hang_at_exit(_: object) -> str:
    os._exit = lambda code: time.sleep(600)
    return "verified"


class Adding:
    """Keeps a sum, and says what it is given; "crash", "refuse" and "hang" do what they say."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, given: Any, tell: Heard) -> int:
        acts = {"crash": crash, "refuse": refuse, "hang": lambda _: time.sleep(600)}
        if given in acts:
            acts[given](None)
        os.write(1, b"a library prints on stdout\n")
        tell({"given": given})
        tell("added")
        self.total += given
        return self.total


def break_off(_: object) -> None:
    # The answer's own pipe is the first descriptor after those that Python holds.
    for number in range(3, 10):
        try:
            os.write(number, b'{"result": "half of an ans')
        except OSError:
            continue
    os._exit(0)


def hang(folder: str) -> None:
    """Starts a process, writes who is there, and never ends."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    write_pids(folder, os.getpid(), started.pid)
    sys.stderr.write("still at it\n")
    sys.stderr.flush()
    time.sleep(600)


def leave_one_behind(folder: str) -> str:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    write_pids(folder, os.getpid(), started.pid)
    return "done"


def write_pids(folder: str, *pids: int) -> None:
    temporary = Path(folder) / "writing"
    temporary.write_text(json.dumps(pids))
    temporary.rename(Path(folder) / "pids")


def pids(folder: Path) -> list[int]:
    deadline = time.monotonic() + 30
    while not (folder / "pids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found: list[int] = json.loads((folder / "pids").read_text())
    return found


def gone(pid: int) -> bool:
    """Whether a process has ended, soon."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_function_is_called_with_plain_data_and_answers_with_it() -> None:
    assert call(f"{HERE}:double", 21, timeout=60) == 42


def test_arguments_and_answers_may_be_larger_than_a_pipe_and_hold_any_character() -> None:
    value = {"text": "\u00e9\n\0\U0001f600" * 100_000, "none": None, "list": [1, 2.5, True]}
    assert call(f"{HERE}:echo", value, timeout=60) == value


def test_an_error_of_the_child_is_the_parents_with_its_kind_and_facts() -> None:
    with pytest.raises(LoadError) as caught:
        call(f"{HERE}:refuse", None, timeout=60)
    assert caught.value.problem == "It does not load."
    assert caught.value.facts == {"found": "no file", "fix": "bring one"}


def test_a_defect_in_the_child_keeps_its_traceback_for_debugging() -> None:
    with pytest.raises(ProcessError, match="a defect of Turnout") as caught:
        call(f"{HERE}:stumble", None, timeout=60)
    assert caught.value.facts["found"] == "KeyError: 'a defect'"
    assert "in stumble" in "".join(caught.value.__notes__)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_crash_is_named_with_what_was_said_last() -> None:
    with pytest.raises(ProcessError, match=r"for the work crashed \(SIGSEGV\)") as caught:
        call(f"{HERE}:crash", None, timeout=60)
    assert caught.value.facts["found"].endswith("the native library says why")


def test_a_child_that_ends_without_an_answer_is_an_error_with_its_code() -> None:
    with pytest.raises(ProcessError, match="for a try ended with code 3") as caught:
        call(f"{HERE}:leave", None, timeout=60, doing="a try")
    assert caught.value.facts["found"] == "nothing on stderr"


def test_an_answer_that_broke_off_is_none() -> None:
    with pytest.raises(ProcessError, match="without an answer"):
        call(f"{HERE}:break_off", None, timeout=60)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_crash_after_the_answer_is_no_failure() -> None:
    """B19: a crash on the way out does not undo work that is complete."""
    assert call(f"{HERE}:crash_at_exit", None, timeout=60) == "verified"


def test_a_child_that_hangs_after_its_answer_is_ended() -> None:
    """B19: nor does one that never comes back."""
    start = time.monotonic()
    assert call(f"{HERE}:hang_at_exit", None, timeout=60) == "verified"
    assert time.monotonic() - start < 30


def test_nothing_that_a_child_started_outlives_its_answer(tmp_path: Path) -> None:
    assert call(f"{HERE}:leave_one_behind", str(tmp_path), timeout=60) == "done"
    assert all(gone(pid) for pid in pids(tmp_path))


def test_after_the_time_limit_the_child_and_what_it_started_are_gone(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="did not answer within 2 s") as caught:
        call(f"{HERE}:hang", str(tmp_path), timeout=2)
    assert caught.value.facts["found"] == "still at it"
    assert "more time" in caught.value.facts["fix"]
    assert all(gone(pid) for pid in pids(tmp_path))


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_when_the_parent_is_interrupted_or_killed_the_child_and_what_it_started_are_gone(
    tmp_path: Path, ending: signal.Signals
) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from turnout.processes import call;"
            "call(sys.argv[1], sys.argv[2], timeout=600)",
            f"{HERE}:hang",
            str(tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stderr=subprocess.PIPE,
    )
    try:
        found = pids(tmp_path)
        parent.send_signal(ending)
        _, said = parent.communicate(timeout=30)
    finally:
        parent.kill()
    assert (b"KeyboardInterrupt" in said) == (ending == signal.SIGINT)
    assert all(gone(pid) for pid in found)


def test_what_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ProcessError, match="No child process could be started for the work"):
        call(f"{HERE}:double", 1, timeout=60)


def test_a_worker_keeps_what_it_has_between_questions_and_says_how_far_it_is() -> None:
    heard: list[Any] = []
    with worker(f"{HERE}:Adding") as child:
        assert child.ask(40, timeout=60, heard=heard.append) == 40
        assert child.ask(2, timeout=60) == 42
        assert child.ask(0, timeout=60, heard=heard.append) == 42
        pid = child.pid
    assert heard == [{"given": 40}, "added", {"given": 0}, "added"]
    assert gone(pid)


def test_workers_do_not_share_what_they_have() -> None:
    with worker(f"{HERE}:Adding") as one, worker(f"{HERE}:Adding") as other:
        assert one.ask(1, timeout=60) == 1
        assert other.ask(2, timeout=60) == 2
        assert one.ask(3, timeout=60) == 4


def test_a_worker_whose_function_raised_can_be_asked_again() -> None:
    with worker(f"{HERE}:Adding") as child:
        child.ask(1, timeout=60)
        with pytest.raises(LoadError, match="It does not load"):
            child.ask("refuse", timeout=60)
        assert child.ask(1, timeout=60) == 2


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_worker_that_crashed_is_an_error_then_and_ever_after() -> None:
    with worker(f"{HERE}:Adding", doing="a sum") as child:
        for _ in range(2):
            with pytest.raises(ProcessError, match=r"for a sum crashed \(SIGSEGV\)"):
                child.ask("crash", timeout=60)


def test_a_worker_that_takes_too_long_is_gone() -> None:
    with worker(f"{HERE}:Adding") as child:
        child.ask(1, timeout=60)
        with pytest.raises(ProcessError, match=r"did not answer within 0\.5 s") as caught:
            child.ask("hang", timeout=0.5, option="--patience")
        assert "--patience" in caught.value.facts["fix"]
        assert gone(child.pid)


def test_a_factory_that_fails_is_an_error_of_the_first_question() -> None:
    with (
        worker(f"{HERE}:Nothing") as child,
        pytest.raises(ProcessError, match="a defect of Turnout"),
    ):
        child.ask(1, timeout=60)
