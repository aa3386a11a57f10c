"""Child processes: a function of Turnout that runs in a process of its own, JSON in and out.

Native libraries can crash, hang, and print on stdout; a child keeps that from its parent:

    call("turnout.runtime.placement:measure_here", {"bundle": ...}, timeout=600)

or that stays, and is asked again and again:

    with worker("turnout.perf.child:Serving", doing="the route ep=cpu") as child:
        child.ask({"load": ...}, timeout=600)
        child.ask({"prompt": ...}, timeout=60, heard=show_progress)

The child is `python -m turnout.processes FUNCTION`. A line of its input is an argument, a line of
its output `{"result": ...}` or `{"error": ...}`, before which there may be lines of `{"said": ...}`
about how far it is. An answer counts once it is complete: how the child ends afterwards does not
matter, since libraries of EPs have crashed on the way out. A child whose parent is gone ends as
well, which it learns by the end of its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from turnout import errors
from turnout.errors import ProcessError, ProcessTimeoutError, TurnoutError

# What is kept of the end of a child's stderr, and how much of it an error shows.
STDERR_BYTES = 64 << 10
SHOWN_LINES = 4
MAX_ANSWER_BYTES = 64 << 20
# For a child that was killed to be gone.
_GRACE_S = 5.0
_POLL_S = 0.2
_CHUNK = 1 << 16
_SERVE = "--serve"
TIME_LIMIT_OPTION = "--time-limit"

Heard = Callable[[Any], None]


def call(
    function: str,
    argument: Any,
    *,
    timeout: float,
    doing: str = "the work",
    option: str = TIME_LIMIT_OPTION,
) -> Any:
    """What `function` ("package.module:name") returns for `argument`, in a child process.

    Both are plain data. `doing` names the work in errors. However it ends, Ctrl-C included, the
    child and its descendants are gone afterwards. Raises the `TurnoutError` that the function
    raised, or `ProcessError` for a child that crashed, met a defect, or took longer than
    `timeout` seconds, of which `option` of the command line allows more; it shows what the child
    last said on stderr.
    """
    with _started(function, doing) as child:
        return child.ask(argument, timeout=timeout, option=option)


@contextlib.contextmanager
def worker(factory: str, *, doing: str = "the work") -> Iterator[Child]:
    """A child process that can be asked again and again, and keeps what it has loaded.

    `factory` ("package.module:name") is called once in the child, without arguments; what it
    returns is called for each question with its argument and with a function to say how far it is.
    The child and its descendants are gone after the block. Raises `ProcessError` where no child
    could be started.
    """
    with _started(factory, doing, _SERVE) as child:
        yield child


def kill_tree(pid: int) -> None:
    """Kill a child that leads a process group, its group, and all descendants."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    doomed = []
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        doomed = [*process.children(recursive=True), process]
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()


class Child:
    """A running child, and the threads that write to it and read what it says.

    Threads, because a child that hangs neither reads nor writes, and a pipe has little room.
    """

    def __init__(self, process: subprocess.Popen[bytes], doing: str) -> None:
        self._process = process
        self._doing = doing
        self._questions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._said = bytearray()
        self._late = False
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._write, self._read_lines, self._read_stderr)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ask(
        self,
        argument: Any,
        *,
        timeout: float,
        heard: Heard | None = None,
        option: str = TIME_LIMIT_OPTION,
    ) -> Any:
        """What the child's function returns for `argument`; `heard` gets what it says meanwhile.

        `option` of the command line is what allows more than `timeout` seconds.
        Raises the `TurnoutError` that the function raised, after which the child can be asked
        again; and `ProcessError` for a child that crashed, met a defect, or took longer than
        `timeout` seconds (`ProcessTimeoutError`), after which it is gone.
        """
        self._questions.put(json.dumps(argument).encode() + b"\n")
        answer = self._answer(time.monotonic() + timeout, heard)
        if answer is None:
            raise self._without_answer(timeout, option)
        if "error" in answer:
            raise _as_error(answer["error"], self._doing)
        return answer["result"]

    def _answer(self, deadline: float, heard: Heard | None) -> dict[str, Any] | None:
        """The next answer; None if the child ends, or the deadline passes, without one."""
        while not self._late:
            # Short waits, because a long one does not hear Ctrl-C on Windows.
            with contextlib.suppress(queue.Empty):
                left = max(deadline - time.monotonic(), 0)
                line = self._lines.get(timeout=min(left, _POLL_S))
                if not line.endswith(b"\n"):
                    self._lines.put(line)  # for whoever asks again
                    return None
                answer: dict[str, Any] = json.loads(line)
                if "said" not in answer:
                    return answer
                if heard is not None:
                    heard(answer["said"])
            self._late = time.monotonic() >= deadline
        return None

    def _without_answer(self, timeout: float, option: str) -> ProcessError:
        """The error for a child that gave none. It is ended first, so that all it said is here."""
        self.end()
        lines = self._said.decode(errors="replace").strip().splitlines()
        said = "\n".join(lines[-SHOWN_LINES:]) or "nothing on stderr"
        if self._late:
            return ProcessTimeoutError(
                f"The child process for {self._doing} did not answer within {timeout:g} s.",
                found=said,
                fix=f"allow it more time, on the command line with {option}",
            )
        ending = _ending(self._process)
        return ProcessError(f"The child process for {self._doing} {ending}.", found=said)

    def end(self) -> None:
        """Kill it, if it still runs, and what it started; release the pipes. Safe to repeat."""
        process = self._process
        self._questions.put(None)
        if process.returncode is None:
            # Nobody has waited for it yet, so that its number is still its own.
            kill_tree(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        for thread in self._threads:
            thread.join(_GRACE_S)
        if any(thread.is_alive() for thread in self._threads):
            return  # somebody else holds a pipe, and closing one that is read would wait
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                _open(stream).close()

    def _write(self) -> None:
        stream = _open(self._process.stdin)
        with contextlib.suppress(OSError):  # a child that is gone is found by `ask`
            # Stays open in between: its end would tell the child that its parent is gone.
            while (line := self._questions.get()) is not None:
                stream.write(line)
                stream.flush()

    def _read_lines(self) -> None:
        stream = _open(self._process.stdout)
        # The end of the output counts as an answer that is none: nobody waits for more.
        while (line := stream.readline(MAX_ANSWER_BYTES)).endswith(b"\n"):
            self._lines.put(line)
        self._lines.put(b"")

    def _read_stderr(self) -> None:
        stream = _open(self._process.stderr)
        while chunk := os.read(stream.fileno(), _CHUNK):
            self._said += chunk
            del self._said[:-STDERR_BYTES]


@contextlib.contextmanager
def _started(function: str, doing: str, *how: str) -> Iterator[Child]:
    command = [sys.executable, "-P", "-m", "turnout.processes", function, *how]
    # The same modules as here, wherever they were found.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    # A group of its own: Ctrl-C goes to the parent alone, which ends it in an orderly way.
    own_group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            creationflags=own_group,
        )
    except OSError as error:
        raise ProcessError(
            f"No child process could be started for {doing}.", found=error, where=sys.executable
        ) from error
    child = None
    try:
        child = Child(process, doing)
        yield child
    finally:
        if child is None:
            kill_tree(process.pid)
        else:
            child.end()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # the child was started with pipes
    return stream


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is None:
        return "does not end"
    if code >= 0:
        return f"ended with code {code} and without an answer"
    try:
        return f"crashed ({signal.Signals(-code).name})"
    except ValueError:
        return f"crashed (signal {-code})"


def _as_error(answer: dict[str, Any], doing: str) -> TurnoutError:
    """The error that the child's function raised."""
    if "traceback" in answer:
        error = ProcessError(
            f"The child process for {doing} met something that Turnout does not handle; this is"
            " a defect of Turnout.",
            found=answer["problem"],
        )
        error.add_note(f"In the child process:\n{answer['traceback']}")
        return error
    kind = getattr(errors, answer["kind"], TurnoutError)
    raised: TurnoutError = kind(answer["problem"], **answer["facts"])
    return raised


def main() -> None:
    """The child: answers on the stdout that it was started with, then the end at once."""
    answers = os.fdopen(os.dup(1), "wb")
    # What native code prints must not get into the answers.
    os.dup2(2, 1)
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    serve = _SERVE in sys.argv[2:]
    function: Callable[..., Any] | None = None
    while True:
        argument = json.loads(questions.get())
        try:
            if function is None:
                function = _function(sys.argv[1], serve=serve)
            result = function(argument, lambda said: _put(answers, {"said": said}))
            answer = {"result": result}
        except TurnoutError as error:
            kind = type(error).__name__
            answer = {"error": {"kind": kind, "problem": error.problem, "facts": error.facts}}
        except Exception as error:
            answer = {"error": _defect(error)}
        _put(answers, answer)
        if not serve:
            # Plugins have crashed while a process that used them ended; the answer is complete.
            os._exit(0)


def _function(name: str, *, serve: bool) -> Callable[[Any, Heard], Any]:
    """What answers the questions: the function of that name, or what it makes to serve."""
    from importlib import import_module

    module, _, attribute = name.partition(":")
    function = getattr(import_module(module), attribute)
    if serve:
        served: Callable[[Any, Heard], Any] = function()
        return served
    return lambda argument, _: function(argument)


def _put(answers: IO[bytes], document: dict[str, Any]) -> None:
    answers.write(json.dumps(document).encode() + b"\n")
    answers.flush()


def _defect(error: Exception) -> dict[str, str]:
    import traceback

    problem = f"{type(error).__name__}: {error}"
    return {"problem": problem, "traceback": traceback.format_exc()}


def _listen(questions: queue.SimpleQueue[bytes]) -> None:
    """Pass on what comes in; at its end, end this process, and what it started.

    Nobody waits for it then.
    """
    while line := sys.stdin.buffer.readline():
        questions.put(line)
    if os.name == "posix":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
