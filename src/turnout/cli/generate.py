"""`turnout generate`: stream an answer to a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli import route_options as routes
from turnout.cli import search_options as search
from turnout.cli.main import EXIT_INTERRUPTED
from turnout.cli.output import DebugOption, JsonOption, QuietOption, VerboseOption, print_json

if TYPE_CHECKING:
    from turnout.runtime import Session
    from turnout.runtime.generation import Request

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
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
    system: search.SystemOption = None,
    max_new_tokens: search.MaxNewTokensOption = 256,
    temperature: search.TemperatureOption = None,
    top_k: search.TopKOption = None,
    top_p: search.TopPOption = None,
    repetition_penalty: search.RepetitionPenaltyOption = None,
    seed: search.SeedOption = None,
    greedy: search.GreedyOption = False,
    ep: routes.EpOption = None,
    device: routes.DeviceOption = "config",
    stage: routes.StageOption = None,
    scope: routes.ScopeOption = "pipeline",
    provider_option: routes.ProviderOptionOption = None,
    session_option: routes.SessionOptionOption = None,
    inventory: routes.InventoryOption = None,
    reproducible: routes.ReproducibleOption = False,
    route: routes.RouteOption = None,
    save_route: routes.SaveRouteOption = None,
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
    from turnout.cli.sessions import open_session
    from turnout.cli.streams import results_only
    from turnout.cli.text import prompt_text
    from turnout.runtime.interrupts import killed_by_interrupt
    from turnout.runtime.options import SearchOptions
    from turnout.runtime.prompt import check_text

    options = SearchOptions(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        greedy=greedy,
    )
    request = routes.request_from(
        ep=ep,
        device=device,
        stage=stage,
        scope=scope,
        provider_option=provider_option,
        session_option=session_option,
        reproducible=reproducible,
    )
    shown = Shown(stats=stats, as_json=as_json, verbose=verbose, quiet=quiet)
    try:
        with results_only():
            session = open_session(
                bundle, request, inventory, route=route, save_route=save_route, quiet=quiet
            )
            text = check_text(prompt_text(prompt, prompt_file))
            with session:
                with killed_by_interrupt():
                    asked = session.request(text, system=system, raw=raw, options=options)
                interrupted = _answer(session, asked, shown)
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
    from turnout.runtime.generation import FreshGenerators
    from turnout.runtime.interrupts import stop_on_interrupt

    for line in request.notes:
        note(line, quiet=shown.quiet)
    if shown.verbose:
        note(stats.request_line(request))
    source = stats.Measuring(FreshGenerators(session.loaded.model))
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
