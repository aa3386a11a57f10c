"""`turnout compile`: prepare the stages of a route ahead of time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli import compile_options as preparing
from turnout.cli import route_options as routes
from turnout.cli.main import EXIT_FAILED
from turnout.cli.output import DebugOption, JsonOption, QuietOption, VerboseOption, print_json
from turnout.cli.taking import taking

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.cli.compiling import Report
    from turnout.compiling.options import CompileOptions
    from turnout.machine import Inventory
    from turnout.routing import RouteRequest

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
@taking(asked=routes.RouteOptions)
def compile(
    bundle: routes.BundleArgument,
    *,
    asked: routes.RouteOptions,
    inventory: routes.InventoryOption = None,
    save_route: routes.SaveRouteOption = None,
    target: preparing.TargetOption = None,
    share: preparing.ShareOption = None,
    timeout: preparing.TimeoutOption = preparing.TIMEOUT_S,
    rebuild: preparing.RebuildOption = False,
    paranoid: preparing.ParanoidOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Also write a bundle of its own there, to ship: compiled, weights included. It "
            "loads from anywhere, and has a manifest.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing bundle at --output.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Compile the stages of a route ahead of time, so that sessions with --compile load fast.

    What was compiled before for the same graphs, weights, options, versions and device is used
    again. Each job runs in a process of its own, and is verified before it is stored. Exits with 1
    where nothing can be compiled, or a stage that could be was not.
    """
    from turnout.bundle import Bundle
    from turnout.cli.ending import ended_cleanly
    from turnout.cli.sessions import note
    from turnout.compiling.ship import require_place

    request = asked.request()
    options = preparing.options_from(
        compile=True,
        share=share,
        rebuild=rebuild,
        paranoid=paranoid,
        timeout=timeout,
        target=target,
    )
    _check_overwrite(output, overwrite)
    opened = Bundle.open(bundle)
    if output is not None:
        require_place(opened, output, overwrite=overwrite)
    with ended_cleanly():
        report = _prepared(
            opened, request, routes.inventory_from(inventory, request), options,
            route=asked.route, save_route=save_route, output=output, overwrite=overwrite,
            shown=not (quiet or as_json), quiet=quiet,
        )  # fmt: skip
    if as_json:
        print_json(report.document())
    else:
        _show(report, verbose=verbose, quiet=quiet)
    if report.failure is not None:
        note(f"error: {report.failure}")
        raise typer.Exit(EXIT_FAILED)


def _check_overwrite(output: Path | None, overwrite: bool) -> None:
    from turnout.errors import UsageError

    if overwrite and output is None:
        raise UsageError(
            "Nothing is written that could replace anything.",
            found="--overwrite",
            expected="--output with it",
        )


def _prepared(
    bundle: Bundle,
    request: RouteRequest,
    machine: Inventory | None,
    options: CompileOptions,
    *,
    route: Path | None,
    save_route: Path | None,
    output: Path | None,
    overwrite: bool,
    shown: bool,
    quiet: bool,
) -> Report:
    """Decide, prepare, ship."""
    from turnout.cli.compiling import Report
    from turnout.cli.progress import JobProgress
    from turnout.cli.sessions import decide, note
    from turnout.compiling.prepare import prepare
    from turnout.compiling.ship import ship

    decided = decide(
        bundle, request, machine, route=route, save_route=save_route,
        target=options.target, quiet=quiet,
    )  # fmt: skip
    progress = JobProgress(shown=shown)
    with prepare(
        bundle,
        decided.effective,
        options,
        progress=progress,
        say=lambda line: note(line, quiet=quiet),
    ) as prepared:
        report = Report(bundle, decided.route, prepared, progress.outcomes, options)
        if output is None or report.failure is not None:
            return report
        return report.with_shipped(ship(bundle, prepared, output, overwrite=overwrite))


def _show(report: Report, *, verbose: bool, quiet: bool) -> None:
    from turnout.cli.folding import printable
    from turnout.cli.text import writer

    write = writer(sys.stdout)
    for line in report.lines(verbose=verbose, quiet=quiet):
        # Names come from untrusted files, and must not drive the terminal.
        write(printable(line) + "\n")
