"""`turnout check`: what would fail, or silently go wrong, before anything is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli import folding
from turnout.cli import route_options as routes
from turnout.cli.main import EXIT_FAILED
from turnout.cli.output import (
    DebugOption,
    JsonOption,
    QuietOption,
    VerboseOption,
    print_json,
    some_path,
)
from turnout.cli.taking import taking
from turnout.cli.text import writer

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig
    from turnout.checking import Finding, Report
    from turnout.machine import Inventory
    from turnout.routing import RouteRequest

_STDIN = ("-", "/dev/stdin")

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        metavar="FILE",
        help="Check for the machine that wrote FILE with: turnout devices --json. Without it a "
        "bundle is checked for this machine, a lone configuration for none.",
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 for warnings, too, not for errors alone.")
]


@app.command()
@taking(asked=routes.RouteOptions)
def check(
    bundle: Annotated[
        Path,
        typer.Argument(
            help="A bundle's directory, or a genai_config.json alone; - reads one from standard "
            "input.",
            parser=some_path,
        ),
    ],
    *,
    asked: routes.RouteOptions,
    inventory: InventoryOption = None,
    strict: StrictOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """What would fail, or silently go wrong, before anything is loaded.

    Reads the configuration and headers, never weights. Of a configuration alone it says all that
    needs no files. With options of a route, the bundle is checked as that route would have it.
    Exits with 1 where there are errors. With -v, every finding is explained; with -q, errors and
    warnings only. docs/findings.md has all codes.
    """
    request = asked.request()
    report = _checked(bundle, request, asked.route, routes.inventory_from(inventory))
    if as_json:
        print_json(report.to_json())
    else:
        write = writer(sys.stdout)
        for line in list(lines(report, verbose=verbose, quiet=quiet)):
            # Values come from untrusted files, and must not drive the terminal.
            write(folding.printable(line) + "\n")
    if report.count("error") or (strict and report.count("warning")):
        raise typer.Exit(EXIT_FAILED)


def _checked(
    path: Path, request: RouteRequest, saved: Path | None, inventory: Inventory | None
) -> Report:
    from turnout.checking import check as check_bundle
    from turnout.checking.report import is_config
    from turnout.errors import ConfigError, UsageError
    from turnout.routing import RouteRequest

    asks = request != RouteRequest() or saved is not None
    from_stdin = str(path) in _STDIN
    if from_stdin or is_config(path):
        if asks:
            raise UsageError(
                "A route needs a bundle, and this is a configuration alone.",
                found=f"{path} with {request if saved is None else f'--route {saved}'}",
                expected="the directory of a bundle",
            )
        return _piped(inventory) if from_stdin else check_bundle(path, inventory=inventory)
    from turnout.bundle import Bundle

    try:
        opened = Bundle.open(path)
    except ConfigError:
        return check_bundle(path, inventory=inventory)
    effective = opened.config
    if asks:
        effective = _effective(opened, request, saved, inventory)
    machine = inventory or _machine_for(effective)
    return check_bundle(opened, config=effective, inventory=machine)


def _piped(inventory: Inventory | None) -> Report:
    """The report on the config that comes from standard input."""
    from turnout.bundle.config import MAX_CONFIG_BYTES
    from turnout.checking.report import check_document
    from turnout.errors import ConfigError

    data = sys.stdin.buffer.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(
            "What comes from standard input is too large for a configuration.",
            expected=f"at most {MAX_CONFIG_BYTES} bytes",
        )
    return check_document(data, Path("standard input"), inventory=inventory)


def _effective(
    bundle: Bundle, request: RouteRequest, saved: Path | None, inventory: Inventory | None
) -> GenaiConfig:
    from turnout.routing import Route, apply, route

    if saved is not None:
        return apply(bundle.config, Route.load(saved, bundle, inventory))
    return apply(bundle.config, route(bundle, request, inventory=inventory))


def _machine_for(config: GenaiConfig) -> Inventory | None:
    """This machine, where the config names an EP that not every machine has."""
    from turnout import catalog
    from turnout.errors import TurnoutError
    from turnout.machine import Inventory

    try:
        named = {entry.ep for stage in config.stages() for entry in stage.providers}
        if not named - {catalog.CPU.name}:
            return None
        return Inventory.discover()
    except TurnoutError as error:
        # What is wrong with the bundle can be said all the same.
        from turnout.cli.sessions import note

        note(f"not checked against this machine: {error.problem}")
        return None


def lines(report: Report, *, verbose: bool, quiet: bool) -> Iterator[str]:
    """The report for people, a line at a time."""
    whys = {}
    if verbose:
        from turnout.checking import rules

        whys = {rule.code: rule.why for rule in rules()}
    for finding in report.findings:
        if quiet and finding.severity == "info":
            continue
        yield from _finding_lines(finding, whys.get(finding.code))
        yield ""
    yield f"{report.path}: {_summary(report)}"


def _finding_lines(finding: Finding, why: str | None) -> Iterator[str]:
    where = f"{finding.path}"
    if finding.line is not None:
        where += f" (line {finding.line}, column {finding.column})"
    yield f"{finding.severity} {finding.code}: {where}"
    yield f"  {finding.message}"
    for name in ("found", "expected", "fix"):
        value = getattr(finding, name)
        if value is not None:
            yield f"  {name}: {value}"
    if why is not None:
        yield f"  why: {why}"


def _summary(report: Report) -> str:
    counts = [
        f"{count} {word if count == 1 or word == 'info' else word + 's'}"
        for word in ("error", "warning", "info")
        if (count := report.count(word))
    ]
    text = ", ".join(counts) or "nothing found"
    return text if report.accepted else text + "; onnxruntime-genai refuses the configuration"
