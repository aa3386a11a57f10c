"""`turnout perf`: measure one route, or several in turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from turnout.cli import compile_options as preparing
from turnout.cli import perf_options as options
from turnout.cli import route_options as routes
from turnout.cli import route_set_options as sets
from turnout.cli.main import EXIT_FAILED
from turnout.cli.output import DebugOption, QuietOption, VerboseOption
from turnout.cli.taking import taking

if TYPE_CHECKING:
    from turnout.perf.report import Failure, Report

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
@taking(
    ask=options.AskOptions,
    how=options.HowOptions,
    asked=routes.RouteOptions,
    several=sets.RouteSetOptions,
    prepare=preparing.PrepareOptions,
    show=options.ShowOptions,
)
def perf(
    bundle: routes.BundleArgument,
    *,
    ask: options.AskOptions,
    how: options.HowOptions,
    asked: routes.RouteOptions,
    several: sets.RouteSetOptions,
    prepare: preparing.PrepareOptions,
    show: options.ShowOptions,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Measure how fast a route is, and what memory it takes; several routes in turn.

    Without options, the bundle as it says itself, which is --device config. Every route has a
    process of its own, and requests take turns. Answers are greedy. A route that fails is a row
    with its reason: the others are measured, and the exit code is 1. Ctrl-C ends it, reports what
    there is, and exits with 130.
    """
    from turnout.bundle import Bundle
    from turnout.cli.ending import interrupted_once
    from turnout.cli.perf_view import View
    from turnout.cli.sessions import note
    from turnout.perf.measuring import measure

    opened = Bundle.open(bundle)
    show.check(opened)
    candidates = several.candidates(asked, prepare)
    asks = ask.asks(opened)
    plan = how.plan(asks, ignore_eos=ask.ignores_eos(asks), native_code=prepare.allow_native_code)
    with interrupted_once() as interruption:
        with View(quiet=quiet, verbose=verbose) as view:
            report = measure(
                opened, candidates, plan, watcher=view, command=("turnout", *sys.argv[1:])
            )
        if report.interrupted and not report.requests_held:
            note("Interrupted before the first request: there is nothing to report.", quiet=quiet)
            raise typer.Exit(interruption.exit_code)
        _put(report, show, verbose=verbose, quiet=quiet)
    if report.interrupted:
        raise typer.Exit(interruption.exit_code)
    if not report.complete:
        raise typer.Exit(EXIT_FAILED)


def _put(report: Report, show: options.ShowOptions, *, verbose: bool, quiet: bool) -> None:
    """Write what was measured, and print it, whether or not it could be written."""
    from turnout.cli import reports
    from turnout.perf.report import encode

    try:
        reports.write_all(
            {show.output: lambda: encode(report), show.html: lambda: show.page(report)},
            overwrite=show.overwrite,
            quiet=quiet,
        )
    finally:
        if show.as_json:
            reports.print_document(encode(report))
        else:
            reports.print_text(_shown(report, show, verbose=verbose, quiet=quiet))


def _shown(report: Report, show: options.ShowOptions, *, verbose: bool, quiet: bool) -> str:
    if show.markdown:
        from turnout.perf.markdown import markdown

        return markdown(report)
    return "\n".join(lines(report, verbose=verbose, quiet=quiet)) + "\n"


def lines(report: Report, *, verbose: bool, quiet: bool) -> Iterator[str]:
    """The results for a person; with `quiet`, the table and what failed."""
    from turnout.cli.folding import printable
    from turnout.cli.tables import aligned
    from turnout.perf import tables

    rows = [tables.cells(replace(row, error=_briefly(row.error))) for row in tables.rows(report)]
    yield from aligned(tables.HEAD, [tuple(map(printable, row)) for row in rows])
    for route in report.routes:
        if route.error is not None:
            yield ""
            yield from _failed(route.name, route.error)
    if quiet:
        return
    found = list(_said(report, verbose=verbose))
    if found:
        yield ""
        yield from map(printable, found)


def _briefly(error: str | None) -> str | None:
    """What went wrong and when, in a cell; the rest is said below the table."""
    return error if error is None else error.partition(":")[0]


def _failed(name: str, error: Failure) -> Iterator[str]:
    from turnout.cli.folding import printable
    from turnout.perf import wording

    yield printable(f"{name}: {wording.failure(error)}")
    for fact, value in error.facts.items():
        first, *rest = map(printable, value.splitlines() or [""])
        yield f"  {fact}: {first}"
        yield from (f"    {line}" for line in rest)


def _said(report: Report, *, verbose: bool) -> Iterator[str]:
    """What it comes to; with `verbose`, every comparison, and where nodes ran."""
    from turnout.perf import summary, tables, wording

    if verbose:
        for comparison in report.comparisons:
            workload = summary.workload_name(report, comparison.workload)
            yield f"{workload}: {wording.verdict(comparison)}."
    else:
        yield from (said.text for said in summary.verdicts(report))
    yield from (said.text for said in summary.agreement(report))
    yield from tables.notes(report)
    if state := wording.state(report):
        yield state
    if verbose:
        yield from _placed(report)


def _placed(report: Report) -> Iterator[str]:
    """Where nodes really ran, a line a stage."""
    import msgspec

    from turnout.cli.explaining import placed_words
    from turnout.runtime.placement import Placement

    for route in report.routes:
        if route.placed is None:
            yield f"{route.name}: placed {route.placed_note}"
            continue
        for stage in msgspec.convert(route.placed, Placement).stages:
            yield f"{route.name}: {stage.stage} placed {placed_words(stage)}"
