"""The loop of a conversation: reading lines, commands, answers, and saving."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from turnout.cli import stats
from turnout.cli.output import report_error
from turnout.cli.sessions import note, show_pieces
from turnout.errors import OutputExistsError, TurnoutError, UsageError
from turnout.files import write_atomic
from turnout.runtime.interrupts import stop_on_interrupt

if TYPE_CHECKING:
    from turnout.runtime import Conversation, GenerationResult

PROMPT = "> "
HELP = """\
/system TEXT   say what the model should be; alone, show it
/reset         forget everything that was said; the system message stays
/save FILE     write the conversation to FILE.json or FILE.md
/help          this
/exit          end (or Ctrl-D)
Ctrl-C stops an answer. A line that begins with // is a message that begins with /."""


class Chat:
    """A conversation with a person, or with a pipe (one message a line).

    Answers go to stdout, everything else to stderr. A turn that fails is reported and the
    conversation goes on; from a pipe, it is `failed` afterwards.
    """

    def __init__(self, conversation: Conversation, *, stats: bool, show: bool, quiet: bool) -> None:
        self._conversation = conversation
        self._stats = stats
        self._show = show
        self._quiet = quiet
        self._saved: set[Path] = set()
        self._turns: list[dict[str, Any]] = []
        self._commands = {
            "/system": self._system,
            "/reset": self._reset,
            "/save": self._save,
            "/help": self._help,
        }
        self.failed = False

    def run(self, source: TextIO) -> None:
        """Talk until `source` ends, or `/exit`."""
        person = source.isatty()
        if person:
            note("/help lists what can be typed, Ctrl-D ends.", quiet=self._quiet)
        for line in _typed() if person else _piped(source):
            if line.strip() == "/exit":
                return
            try:
                self._take(line)
            except TurnoutError as error:
                report_error(error)
                self.failed = self.failed or not person
            except KeyboardInterrupt:
                # Pressed again before the runtime came back: the answer is given up.
                note("(stopped)", quiet=self._quiet)

    def document(self) -> dict[str, Any]:
        """The conversation and what every turn took, as plain data."""
        return {
            **self._transcript(),
            "turns": self._turns,
            "load": self._conversation.session.load().to_json(),
            "prepared": stats.prepared_document(self._conversation.session),
        }

    def _take(self, line: str) -> None:
        text = line.strip()
        if not text:
            return
        if text.startswith("/") and not text.startswith("//"):
            command, _, argument = text.partition(" ")
            if command not in self._commands:
                raise UsageError(
                    f"There is no {command}.", expected=", ".join([*self._commands, "/exit"])
                )
            self._commands[command](argument.strip())
            return
        self._answer(text.removeprefix("/") if text.startswith("//") else text)

    def _answer(self, text: str) -> None:
        with stop_on_interrupt() as stop:
            answer = self._conversation.say(text, stop=stop)
            for line in answer.notes:
                note(line, quiet=self._quiet)
            if self._show:
                show_pieces(answer)
            result = answer.result()
        self._turns.append(result.to_json())
        if result.finish_reason == "interrupted":
            note("(stopped)", quiet=self._quiet)
        if self._stats:
            self._report(result)

    def _report(self, result: GenerationResult) -> None:
        from turnout.memory import measure

        # The load and the route stay what they were: they are said once.
        first = len(self._turns) == 1
        session = self._conversation.session
        memory = measure()
        lines = stats.lines(session, result, memory) if first else stats.answer_lines(result)
        for line in lines:
            note(line)

    def _system(self, argument: str) -> None:
        if argument:
            self._conversation.system = argument
        note(f"system: {self._conversation.system or '(none)'}", quiet=self._quiet)

    def _reset(self, argument: str) -> None:
        if argument:
            raise UsageError("/reset takes nothing after it.", found=argument)
        self._conversation.reset()
        note("Everything that was said is forgotten.", quiet=self._quiet)

    def _help(self, argument: str) -> None:  # noqa: ARG002 - every command takes one
        note(HELP)

    def _save(self, argument: str) -> None:
        if not argument:
            raise UsageError("/save needs a file.", expected="/save FILE.json or /save FILE.md")
        try:
            path = Path(argument).expanduser()
            self._save_to(path)
        except TurnoutError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            # A home that nobody has, a name that no file can have.
            reason = error.strerror if isinstance(error, OSError) else None
            raise UsageError(
                "The conversation cannot be saved there.",
                found=f"{argument[:100]}: {reason or error}",
                fix="choose another name",
            ) from error
        note(f"saved to {path}", quiet=self._quiet)

    def _save_to(self, path: Path) -> None:
        writers = {".json": self._as_json, ".md": self._as_markdown}
        if path.suffix.lower() not in writers:
            raise UsageError(
                "The kind of file is not known.", found=path.name, expected="FILE.json or FILE.md"
            )
        if path.resolve() not in self._saved and path.exists():
            raise OutputExistsError(
                f"{path} exists already.", where=path, fix="choose another name"
            )
        write_atomic(path, writers[path.suffix.lower()]())
        self._saved.add(path.resolve())

    def _transcript(self) -> dict[str, Any]:
        session = self._conversation.session
        return {
            "schema_version": 1,
            "bundle": str(session.bundle.path),
            "route": stats.route_document(session),
            "system": self._conversation.system,
            "messages": [dict(message) for message in self._conversation.messages],
        }

    def _as_json(self) -> str:
        return json.dumps(self._transcript(), indent=2, ensure_ascii=False) + "\n"

    def _as_markdown(self) -> str:
        messages = [dict(message) for message in self._conversation.messages]
        if self._conversation.system is not None:
            messages.insert(0, {"role": "system", "content": self._conversation.system})
        return "\n".join(f"**{m['role']}**\n\n{m['content']}\n" for m in messages)


def _piped(source: TextIO) -> Iterator[str]:
    buffer = getattr(source, "buffer", None)
    lines = source if buffer is None else (line.decode("utf-8", "replace") for line in buffer)
    for line in lines:
        yield line.rstrip("\r\n")


def _typed() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() editing and a history
    # input() writes its prompt to stdout, where only answers belong when it is a file.
    on_stdout = sys.stdout.isatty()
    while True:
        if not on_stdout:
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        try:
            yield input(PROMPT if on_stdout else "")
        except EOFError:
            sys.stderr.write("\n")
            return
        except KeyboardInterrupt:
            note("\n(Ctrl-D or /exit ends)")
