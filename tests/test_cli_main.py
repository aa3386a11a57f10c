"""What every command has in common: help, exit codes, and no traceback without --debug."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from turnout.cli import group
from turnout.cli import main as cli
from turnout.cli.output import report_error
from turnout.errors import LoadError

pytest_plugins = ("session_plugin",)

FULL = Path("/dev/full")


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turnout", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_help_lists_every_command_and_imports_none_of_them():
    code = (
        "import sys; sys.argv = ['turnout', '--help']\n"
        "from turnout.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'onnxruntime', 'onnxruntime_genai', 'onnx_ir', 'tokenizers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    *lines, imported = result.stdout.strip().splitlines()
    assert imported == "[]"
    for command in cli.COMMANDS:
        assert any(line.split()[:1] == [command] for line in lines), command


# A group of commands; tests/test_cli_cache.py looks at each of them.
@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name != "cache"])
def test_every_command_has_the_common_options(command, turnout):
    shown = turnout(command, "--help").out
    for option in ("--json", "--verbose", "--quiet", "--debug", "--help"):
        assert option in shown


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_help_of_a_route_names_the_config_value(command, turnout):
    """A17: whoever reads --help learns that the default is what the bundle says."""
    assert "config" in turnout(command, "--help").out


def test_no_command_shows_the_help_and_an_unknown_one_is_wrong_usage(turnout):
    assert turnout("nonsense").code == 2
    assert turnout("devices", "--nonsense").code == 2


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["devices", "--json"]])
def test_a_full_output_is_an_error_and_no_traceback(arguments):
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "turnout", *arguments]
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert result.stderr == "error: No space left on device.\n"


def test_a_reader_that_goes_away_ends_the_command_in_silence():
    command = [sys.executable, "-m", "turnout", "devices", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 1


def test_a_defect_is_called_one_and_shows_its_traceback_only_with_debug(monkeypatch, capsys):
    def broken() -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(group, "app", broken)
    monkeypatch.setattr(sys, "argv", ["turnout", "devices"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero" in said and "--debug" in said
    monkeypatch.setattr(sys, "argv", ["turnout", "devices", "--debug"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


INTERRUPTED = """
import builtins, runpy, sys
real = builtins.__import__
def imported(name, *rest, **named):
    if name == {name!r}:
        raise KeyboardInterrupt
    return real(name, *rest, **named)
builtins.__import__ = imported
sys.argv = ["turnout", "devices"]
{start}
"""


MODULE = "runpy.run_module('turnout', run_name='__main__')"
SCRIPT = "from turnout.cli.main import main; main()"


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (MODULE, "turnout.cli.main"),
        (MODULE, "typer"),
        (MODULE, "turnout.cli.output"),
        (SCRIPT, "turnout.cli.streams"),
        (SCRIPT, "typer"),
        (SCRIPT, "turnout.cli.output"),
    ],
)
def test_ctrl_c_while_turnout_is_imported_is_as_quiet_as_later(start, name):
    code = INTERRUPTED.format(name=name, start=start)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_what_the_script_imports_unguarded_is_light():
    code = (
        "import os, sys; before = set(sys.modules); import turnout.cli.main;"
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(cli.__file__).parents[2])},
    )
    assert result.stdout.split() == ["__future__", "turnout", "turnout.cli", "turnout.cli.main"]


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"), [("--version", 0), ("devices --json", 0), ("inspect /nowhere", 2)]
)
def test_a_stream_that_is_closed_changes_no_exit_code(closed, arguments, code):
    line = f'exec "$0" -m turnout {arguments} {closed}'
    result = subprocess.run(
        ["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False
    )
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    assert ("error: " in result.stderr) == (code != 0 and "2>" not in closed)


def test_an_error_shows_control_characters_and_lets_no_value_look_like_a_fact(capsys):
    report_error(
        LoadError(
            "Stage \x1b[2J cannot be loaded.",
            found="a\x07b\x9b\r\n  fix: run this",
            where="naïve/路径 \u202e",
            fix="one\ntwo",
        )
    )
    assert capsys.readouterr().err == (
        "error: Stage \\x1b[2J cannot be loaded.\n"
        "  found: a\\x07b\\x9b\\r\n"
        "      fix: run this\n"
        "  where: naïve/路径 \\u202e\n"
        "  fix: one\n"
        "    two\n"
    )


def test_ctrl_c_inside_an_import_is_ctrl_c():
    """Native modules turn it into an error of the import, as numpy does."""
    try:
        try:
            raise KeyboardInterrupt  # noqa: TRY301 - as it comes
        except KeyboardInterrupt as interrupt:
            raise ImportError("import numpy failed") from interrupt
    except ImportError as error:
        assert cli._is_interrupt(error)
    assert not cli._is_interrupt(ImportError("no such module"))
    assert not cli._is_interrupt(ValueError("else"))
