"""`turnout verify`: whether routes give the same answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from turnout.cli import compile_options as preparing
from turnout.cli import route_options as routes
from turnout.cli import route_set_options as sets
from turnout.cli import verify_options as options
from turnout.cli.main import EXIT_FAILED
from turnout.cli.output import DebugOption, QuietOption, VerboseOption
from turnout.cli.taking import taking

if TYPE_CHECKING:
    from turnout.verify.report import Report, RouteReport

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
# Differences of a route that are told without -v.
_TOLD = 3


@app.command()
@taking(
    ask=options.QuestionOptions,
    judge=options.JudgeOptions,
    asked=routes.RouteOptions,
    several=sets.RouteSetOptions,
    prepare=preparing.PrepareOptions,
    show=options.ShowOptions,
)
def verify(
    bundle: routes.BundleArgument,
    *,
    ask: options.QuestionOptions,
    judge: options.JudgeOptions,
    asked: routes.RouteOptions,
    several: sets.RouteSetOptions,
    prepare: preparing.PrepareOptions,
    show: options.ShowOptions,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Whether routes give the same answers as a reference, by their logits.

    Without options, the bundle as it says itself against exact arithmetic on the CPU EP. Every
    route is asked the same: prompts, each continued as the reference continues it, and a text.
    Compared are the likeliest token at every position, the divergence of the distributions, the
    perplexity of the text, and where greedy continuations part. A route that exceeds a threshold
    differs, and the exit code is 1; so it is where a route fails, while the others are verified.
    Ctrl-C ends it, reports the routes that were verified by then, and exits with 130.
    """
    from turnout.bundle import Bundle
    from turnout.cli.ending import interrupted_once
    from turnout.cli.sessions import note
    from turnout.cli.verify_view import View
    from turnout.verify.verifying import verify as compare

    opened = Bundle.open(bundle)
    read = (bundle, *([judge.reference_bundle] if judge.reference_bundle is not None else []))
    show.check(read, (ask.prompts, ask.text))
    candidates = several.candidates(asked, prepare)
    plan = judge.plan(ask.asking(), native_code=prepare.allow_native_code)
    command = ("turnout", *sys.argv[1:])
    with interrupted_once() as interruption:
        try:
            with View(quiet=quiet, verbose=verbose) as view:
                report = compare(opened, candidates, plan, watcher=view, command=command)
        except KeyboardInterrupt:
            note("Interrupted before a route was verified: nothing to report.", quiet=quiet)
            raise typer.Exit(interruption.exit_code) from None
        _put(report, show, verbose=verbose, quiet=quiet)
    if report.interrupted:
        raise typer.Exit(interruption.exit_code)
    if not report.holds:
        raise typer.Exit(EXIT_FAILED)


def _put(report: Report, show: options.ShowOptions, *, verbose: bool, quiet: bool) -> None:
    """Write what was found, and print it, whether or not it could be written."""
    from turnout.cli import reports
    from turnout.verify.report import encode
    from turnout.verify.section import page

    try:
        reports.write_all(
            {show.output: lambda: encode(report), show.html: lambda: page(report).encode("utf-8")},
            overwrite=show.overwrite,
            quiet=quiet,
        )
    finally:
        if show.as_json:
            reports.print_document(encode(report))
        else:
            found = lines(report, verbose=verbose, quiet=quiet)
            reports.print_text("\n".join(found) + "\n")


def lines(report: Report, *, verbose: bool, quiet: bool) -> Iterator[str]:
    """The results for a person; with `quiet`, the table alone."""
    from turnout.cli.folding import printable
    from turnout.cli.tables import aligned
    from turnout.verify import tables

    rows = [tuple(map(printable, tables.cells(route))) for route in report.routes]
    yield from aligned(tables.HEAD, rows)
    if quiet:
        return
    for route in report.routes:
        told = list(_of_route(report, route, verbose=verbose))
        if told:
            yield ""
            yield printable(f"{route.name}:")
            yield from (f"  {printable(line)}" for line in told)
    yield ""
    yield from map(printable, tables.notes(report))


def _of_route(report: Report, route: RouteReport, *, verbose: bool) -> Iterator[str]:
    """Why it failed or differs, and where its continuations leave the reference's."""
    from turnout.cli.tables import aligned
    from turnout.perf import wording
    from turnout.verify import tables

    if route.error is not None:
        yield wording.failure(route.error)
        for name, value in route.error.facts.items():
            yield from (f"{name}: {part}" for part in value.splitlines())
    yield from route.reasons
    if verbose:
        yield from aligned(tables.FIGURES_HEAD, tables.figures(route))
    parts = [text for answer in route.answers if (text := tables.difference(report, answer))]
    yield from parts if verbose else parts[:_TOLD]
    if len(parts) > _TOLD and not verbose:
        yield f"and {len(parts) - _TOLD} more (-v)"
