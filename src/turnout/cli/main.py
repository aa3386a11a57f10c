"""The `turnout` command: finds the module of a command, and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

# One row a command: its module in turnout.cli and the line that `turnout --help` shows, so that
# help needs to import none of them.
COMMANDS = {
    "devices": ("devices", "EPs and devices of this machine, and what is missing."),
    "build": ("build", "Make a bundle from a GGUF file."),
    "inspect": ("inspect", "Stages, graphs, inputs and outputs, weights and routing of a bundle."),
    "generate": ("generate", "Stream an answer to a prompt."),
    "chat": ("chat", "A conversation in the terminal."),
}

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class LazyGroup(TyperGroup):
    """A group that imports the module of a command when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Every command in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's signature
        """The command of that name, imported now; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = typer.main.get_command(import_module(f"turnout.cli.{module}").app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        """List the commands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    help="Route, compile, share and measure language model bundles on ONNX Runtime.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(value: bool) -> None:
    if value:
        from turnout import __version__

        print(f"turnout {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version and exit.",
        callback=_print_version,
        is_eager=True,
    ),
) -> None:
    """Route, compile, share and measure language model bundles on ONNX Runtime."""


def main() -> None:
    """Run the command line; the only place that turns an error into an exit code."""
    from turnout.cli.output import wants_traceback

    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _discard_output()
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if isinstance(error, OSError):
            # What could not be written would be tried again, and fail again, at exit.
            _discard_output()
        if wants_traceback(sys.argv):
            raise
        sys.exit(_explained(error))


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
