"""Text in and out of the terminal: where a prompt comes from, and how an answer is written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from turnout.errors import UsageError

STDIN = "-"
# C0 and C1 controls but tab and newline. A model's text must not drive the terminal.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def prompt_text(argument: str | None, file: Path | None) -> str:
    """The prompt: an argument, a file (`-`: standard input), or standard input.

    That is what an argument `-` means, or none where something is piped.

    The newline that ends a file or a pipe is no part of it. Raises `UsageError`.
    """
    if file is not None:
        if argument is not None:
            raise UsageError("The prompt is given twice.", found="PROMPT and --prompt-file")
        if str(file) == STDIN:
            return _decoded(sys.stdin.buffer.read(), "standard input")
        try:
            return _decoded(file.read_bytes(), str(file))
        except OSError as error:
            raise UsageError(
                f"Cannot read {file}: {error.strerror or error}.", where="--prompt-file"
            ) from error
    if argument == STDIN or (argument is None and not sys.stdin.isatty()):
        return _decoded(sys.stdin.buffer.read(), "standard input")
    if argument is None:
        raise UsageError(
            "There is no prompt.", fix="give one as an argument, with --prompt-file, or on stdin"
        )
    return argument


def _decoded(data: bytes, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            "The prompt is no UTF-8 text.", found=f"byte {error.start}", where=where
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def writer(stream: TextIO) -> Callable[[str], None]:
    """Writes pieces of text to `stream` as they come.

    On a terminal, control characters are shown as U+FFFD. A character that the stream's
    encoding lacks is replaced rather than ending the text.
    """
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    shown = stream.isatty()

    def write(piece: str) -> None:
        stream.write(piece.translate(_CONTROLS) if shown else piece)
        stream.flush()

    return write
