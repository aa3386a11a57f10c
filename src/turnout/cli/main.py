"""The `turnout` command: turns errors into exit codes.

What it imports is imported inside `main`, so that Ctrl-C meanwhile ends it as quietly as later.
"""

from __future__ import annotations

import os
import sys

# One row a command: its module in turnout.cli and the line that `turnout --help` shows, so that
# help needs to import none of them.
COMMANDS = {
    "devices": ("devices", "EPs and devices of this machine, and what is missing."),
    "build": ("build", "Make a bundle from a GGUF file."),
    "inspect": ("inspect", "Stages, graphs, inputs and outputs, weights and routing of a bundle."),
    "check": ("check", "What would fail or silently go wrong, before loading."),
    "explain": ("explain", "The route, the reason for every stage, and what the config becomes."),
    "compile": ("compile", "Prepare the stages of a route ahead of time."),
    "generate": ("generate", "Stream an answer to a prompt."),
    "chat": ("chat", "A conversation in the terminal."),
    "perf": ("perf", "Measure a route, or several in turn: speed and memory."),
    "compare": ("compare", "Two reports of perf: what became faster or slower, with a gate."),
    "verify": ("verify", "Whether routes give the same answers, by their logits."),
    "cache": ("cache", "What was compiled and is kept: list, show, verify, remove, prune."),
}

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line; the only place that turns an error into an exit code."""
    try:
        try:
            from turnout.cli.streams import open_closed

            open_closed()
            from turnout.cli.group import app

            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _discard_output()
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if _is_interrupt(error):
            sys.exit(EXIT_INTERRUPTED)
        if isinstance(error, OSError):
            # What could not be written would be tried again, and fail again, at exit.
            _discard_output()
        from turnout.cli.output import wants_traceback

        if wants_traceback(sys.argv):
            raise
        sys.exit(_explained(error))


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error of an import, as native modules turn it into one."""
    if not isinstance(error, ImportError):
        return False
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def _explained(error: Exception) -> int:
    """Say what went wrong, for a person; the exit code."""
    from turnout.cli.output import report_error
    from turnout.errors import TurnoutError, UsageError

    if isinstance(error, TurnoutError):
        report_error(error)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        report_error(TurnoutError(f"{error.strerror or error}{where}."))
        return EXIT_FAILED
    report_error(
        TurnoutError(
            "Turnout met something that it does not handle; this is a defect of Turnout.",
            found=f"{type(error).__name__}: {error}",
            fix="run the same command with --debug, and report what it prints",
        )
    )
    return EXIT_FAILED


def _discard_output() -> None:
    """Let the flush at exit succeed: stdout's reader is gone, or its disk is full."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
