"""What the commands share: consoles, the common options, JSON, and how an error reads."""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from turnout.errors import TurnoutError

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more, on stderr.")]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Results and errors, and nothing else.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def stdout_console() -> Console:
    """A console for results."""
    from rich.console import Console

    return Console(highlight=False)


def stderr_console(*, quiet: bool = False) -> Console:
    """A console for logs and progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, quiet=quiet)


def print_json(document: Any) -> None:
    """One JSON document on stdout: UTF-8, two spaces, keys in the order given.

    What a path holds that is no UTF-8 is an escape, from which JSON readers make the same path.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False)
    sys.stdout.write(for_stdout(text) + "\n")


def for_stdout(text: str) -> str:
    """JSON text for stdout: with escapes for what is not UTF-8 there, or is no Unicode text."""
    try:
        is_utf8 = codecs.lookup(sys.stdout.encoding or "").name == "utf-8"
    except LookupError:
        is_utf8 = False
    # Outside of strings there is nothing but ASCII.
    return re.sub("[\ud800-\udfff]" if is_utf8 else "[^\0-\x7f]", _escape, text)


def _escape(found: re.Match[str]) -> str:
    """One character as JSON escapes it: in UTF-16, so that some are two."""
    units = found.group().encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs)


def some_path(text: str) -> Path:
    """A path of the command line; an empty one would be the folder that one stands in."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


def wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether `--debug` stands among the arguments (before any `--`)."""
    for argument in arguments[1:]:
        if argument == "--":
            return False
        if argument == "--debug":
            return True
    return False


def program() -> str:
    """How a person calls Turnout here: by name where the shell finds it, else as a module."""
    import shutil

    if shutil.which("turnout") is not None:
        return "turnout"
    beside = Path(sys.executable).with_name("turnout.exe" if sys.platform == "win32" else "turnout")
    if not beside.is_file():
        return f"{sys.executable} -m turnout"
    with contextlib.suppress(OSError, ValueError):
        return str(beside.relative_to(Path.cwd()))
    return str(beside)


def report_error(error: TurnoutError) -> None:
    """Print an error and its facts to stderr.

    Values come from files that nobody vouches for: they must neither drive the terminal nor
    look like facts of their own.
    """
    from turnout.cli.folding import printable

    lines = [f"error: {printable(error.problem)}"]
    for name, value in error.facts.items():
        first, *rest = map(printable, value.split("\n"))
        lines += [f"  {name}: {first}", *(f"    {line}" for line in rest)]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
