"""`turnout generate`: stream an answer to a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli import compile_options as preparing
from turnout.cli import route_options as routes
from turnout.cli import search_options as search
from turnout.cli.main import EXIT_INTERRUPTED
from turnout.cli.output import DebugOption, JsonOption, QuietOption, VerboseOption, print_json
from turnout.cli.taking import taking

if TYPE_CHECKING:
    from turnout.runtime import Session
    from turnout.runtime.generation import Request

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
@taking(answer=search.AnswerOptions, asked=routes.RouteOptions, prepare=preparing.PrepareOptions)
def generate(
    bundle: routes.BundleArgument,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - or nothing reads standard input.")
    ] = None,
    *,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", metavar="FILE", help="Read the prompt from it.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Use the prompt as it is, without the chat template.")
    ] = False,
    answer: search.AnswerOptions,
    asked: routes.RouteOptions,
    inventory: routes.InventoryOption = None,
    save_route: routes.SaveRouteOption = None,
    prepare: preparing.PrepareOptions,
    stats: search.StatsOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Stream an answer to a prompt.

    The prompt goes through the bundle's chat template once. Ctrl-C ends the text cleanly,
    still prints the summary, and exits with 130.
    """
    from turnout.cli.ending import ended_cleanly
    from turnout.cli.sessions import open_session
    from turnout.cli.streams import results_only
    from turnout.cli.text import prompt_text
    from turnout.runtime.interrupts import killed_by_interrupt
    from turnout.runtime.prompt import check_text

    options = answer.options()
    request = asked.request()
    prepared = prepare.options()
    shown = Shown(stats=stats, as_json=as_json, verbose=verbose, quiet=quiet)
    try:
        with results_only(), ended_cleanly(when=prepared.prepares):
            session = open_session(
                bundle,
                request,
                inventory,
                route=asked.route,
                save_route=save_route,
                preparing=prepared,
                allow_native_code=prepare.allow_native_code,
                quiet=quiet,
                progress=not as_json,
            )
            text = check_text(prompt_text(prompt, prompt_file))
            with session:
                with killed_by_interrupt():
                    worded = session.request(text, system=answer.system, raw=raw, options=options)
                interrupted = _answer(session, worded, shown)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


@dataclass(frozen=True)
class Shown:
    """What is shown beside the text."""

    stats: bool
    as_json: bool
    verbose: bool
    quiet: bool


def _answer(session: Session, request: Request, shown: Shown) -> bool:
    """Answer and report; whether the answer was interrupted."""
    from turnout.cli import stats
    from turnout.cli.sessions import note, show_pieces
    from turnout.runtime.generation import FreshGenerators, Measuring
    from turnout.runtime.interrupts import stop_on_interrupt

    for line in request.notes:
        note(line, quiet=shown.quiet)
    if shown.verbose:
        note(stats.request_line(request))
    source = Measuring(FreshGenerators(session.loaded.model))
    with stop_on_interrupt() as stop:
        answer = session.run(request, source=source, stop=stop)
        if not shown.as_json:
            show_pieces(answer)
        result = answer.result()
    if shown.as_json:
        print_json(stats.document(session, result, source.memory))
    elif shown.stats:
        for line in stats.lines(session, result, source.memory):
            note(line)
    return result.finish_reason == "interrupted"
