"""Child processes: a function of Turnout that runs in a process of its own, JSON in and out.

Native libraries can crash, hang, and print on stdout; a child keeps that from its parent:

    call("turnout.runtime.placement:measure_here", {"bundle": ...}, timeout=600)

The child is `python -m turnout.processes FUNCTION`. Its first line of input is the argument, its
one line of output `{"result": ...}` or `{"error": ...}`. An answer counts once it is complete:
how the child ends afterwards does not matter, since libraries of EPs have crashed on the way out.
A child whose parent is gone ends as well, which it learns by the end of its input.
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
from collections.abc import Iterator
from typing import IO, Any

from turnout import errors
from turnout.errors import ProcessError, TurnoutError

# What is kept of the end of a child's stderr, and how much of it an error shows.
STDERR_BYTES = 64 << 10
SHOWN_LINES = 4
MAX_ANSWER_BYTES = 64 << 20
# For a child that was killed to be gone.
_GRACE_S = 5.0
_POLL_S = 0.2
_CHUNK = 1 << 16


def call(function: str, argument: Any, *, timeout: float, doing: str = "the work") -> Any:
    """What `function` ("package.module:name") returns for `argument`, in a child process.

    Both are plain data. `doing` names the work in errors. However it ends, Ctrl-C included, the
    child and its descendants are gone afterwards. Raises the `TurnoutError` that the function
    raised, or `ProcessError` for a child that crashed, met a defect, or took longer than
    `timeout` seconds; it shows what the child last said on stderr.
    """
    with _started(function, argument, doing) as child:
        answer = child.answer(timeout)
        if answer is None:
            raise child.without_answer(timeout)
    if "error" in answer:
        raise _as_error(answer["error"], doing)
    return answer["result"]


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


class _Child:
    """A running child, and the threads that write to it and read what it says.

    Threads, because a child that hangs neither reads nor writes, and a pipe has little room.
    """

    def __init__(self, process: subprocess.Popen[bytes], argument: Any, doing: str) -> None:
        self._process = process
        self._doing = doing
        self._line = json.dumps(argument).encode() + b"\n"
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._said = bytearray()
        self._late = False
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._write, self._read_answer, self._read_stderr)
        ]
        for thread in self._threads:
            thread.start()

    def answer(self, timeout: float) -> dict[str, Any] | None:
        """What the child answers; None if it ends, or `timeout` seconds pass, without an answer."""
        deadline = time.monotonic() + timeout
        while not self._late:
            # Short waits, because a long one does not hear Ctrl-C on Windows.
            with contextlib.suppress(queue.Empty):
                left = max(deadline - time.monotonic(), 0)
                line = self._answers.get(timeout=min(left, _POLL_S))
                answer: dict[str, Any] | None = None
                if line.endswith(b"\n"):
                    answer = json.loads(line)
                return answer
            self._late = time.monotonic() >= deadline
        return None

    def without_answer(self, timeout: float) -> ProcessError:
        """The error for a child that gave none. It is ended first, so that all it said is here."""
        self.end()
        lines = self._said.decode(errors="replace").strip().splitlines()
        ending = f"did not answer within {timeout:g} s" if self._late else _ending(self._process)
        return ProcessError(
            f"The child process for {self._doing} {ending}.",
            found="\n".join(lines[-SHOWN_LINES:]) or "nothing on stderr",
            fix="allow it more time, on the command line with --time-limit" if self._late else None,
        )

    def end(self) -> None:
        """Kill it, if it still runs, and what it started; release the pipes. Safe to repeat."""
        process = self._process
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
        with contextlib.suppress(OSError):  # a child that is gone is found by `answer`
            stream.write(self._line)
            # Stays open: its end would tell the child that its parent is gone.
            stream.flush()

    def _read_answer(self) -> None:
        # The end of the output counts as an answer that is none: nobody waits for more.
        self._answers.put(_open(self._process.stdout).readline(MAX_ANSWER_BYTES))

    def _read_stderr(self) -> None:
        stream = _open(self._process.stderr)
        while chunk := os.read(stream.fileno(), _CHUNK):
            self._said += chunk
            del self._said[:-STDERR_BYTES]


@contextlib.contextmanager
def _started(function: str, argument: Any, doing: str) -> Iterator[_Child]:
    command = [sys.executable, "-P", "-m", "turnout.processes", function]
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
        child = _Child(process, argument, doing)
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
    """The child: one answer on the stdout that it was started with, then the end at once."""
    answers = os.fdopen(os.dup(1), "wb")
    # What native code prints must not get into the answer.
    os.dup2(2, 1)
    argument = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answers.write(json.dumps(_answer(sys.argv[1], argument)).encode() + b"\n")
    answers.flush()
    # Plugins have crashed while a process that used them ended; the answer is complete here.
    os._exit(0)


def _answer(function: str, argument: Any) -> dict[str, Any]:
    from importlib import import_module

    module, _, name = function.partition(":")
    try:
        return {"result": getattr(import_module(module), name)(argument)}
    except TurnoutError as error:
        kind = type(error).__name__
        return {"error": {"kind": kind, "problem": error.problem, "facts": error.facts}}
    except Exception as error:
        import traceback

        problem = f"{type(error).__name__}: {error}"
        return {"error": {"problem": problem, "traceback": traceback.format_exc()}}


def _end_with_parent() -> None:
    """End this process, and what it started, when its input ends: nobody waits for it then."""
    sys.stdin.buffer.read()
    if os.name == "posix":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
