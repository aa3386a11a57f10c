"""`turnout chat`: a conversation in the terminal."""

from __future__ import annotations

import sys

import typer

from turnout.cli import route_options as routes
from turnout.cli import search_options as search
from turnout.cli.main import EXIT_FAILED, EXIT_INTERRUPTED
from turnout.cli.output import DebugOption, JsonOption, QuietOption, VerboseOption, print_json

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
def chat(
    bundle: routes.BundleArgument,
    *,
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
    verbose: VerboseOption = False,  # noqa: ARG001 - every command has it
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """A conversation in the terminal, or line by line from a pipe.

    /help lists what else can be typed. Ctrl-C stops an answer, Ctrl-D or /exit ends the
    conversation. With --json, the whole of it is printed at the end.
    """
    from turnout.cli.chatting import Chat
    from turnout.cli.sessions import open_session, try_template
    from turnout.cli.streams import results_only
    from turnout.runtime import Conversation, SearchOptions
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
    if system is not None:
        check_text(system, "system message")
    try:
        with (
            results_only(),
            open_session(
                bundle, request, inventory, route=route, save_route=save_route, quiet=quiet
            ) as session,
        ):
            try_template(session)
            conversation = Conversation(session, system=system, options=options)
            chatting = Chat(conversation, stats=stats, show=not as_json, quiet=quiet)
            chatting.run(sys.stdin)
            if as_json:
                print_json(chatting.document())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if chatting.failed:
        raise typer.Exit(EXIT_FAILED)
