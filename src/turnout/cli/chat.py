"""`turnout chat`: a conversation in the terminal."""

from __future__ import annotations

import sys

import typer

from turnout.cli import compile_options as preparing
from turnout.cli import route_options as routes
from turnout.cli import search_options as search
from turnout.cli.main import EXIT_FAILED, EXIT_INTERRUPTED
from turnout.cli.output import DebugOption, JsonOption, QuietOption, VerboseOption, print_json
from turnout.cli.taking import taking

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
@taking(answer=search.AnswerOptions, asked=routes.RouteOptions, prepare=preparing.PrepareOptions)
def chat(
    bundle: routes.BundleArgument,
    *,
    answer: search.AnswerOptions,
    asked: routes.RouteOptions,
    inventory: routes.InventoryOption = None,
    save_route: routes.SaveRouteOption = None,
    prepare: preparing.PrepareOptions,
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
    from turnout.cli.ending import ended_cleanly
    from turnout.cli.sessions import open_session, try_template
    from turnout.cli.streams import results_only
    from turnout.runtime import Conversation
    from turnout.runtime.prompt import check_text

    options = answer.options()
    request = asked.request()
    prepared = prepare.options()
    if answer.system is not None:
        check_text(answer.system, "system message")
    try:
        with (
            results_only(),
            ended_cleanly(when=prepared.prepares),
            open_session(
                bundle,
                request,
                inventory,
                route=asked.route,
                save_route=save_route,
                preparing=prepared,
                allow_native_code=prepare.allow_native_code,
                quiet=quiet,
                progress=not as_json,
            ) as session,
        ):
            try_template(session)
            conversation = Conversation(session, system=answer.system, options=options)
            chatting = Chat(conversation, stats=stats, show=not as_json, quiet=quiet)
            chatting.run(sys.stdin)
            if as_json:
                print_json(chatting.document())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if chatting.failed:
        raise typer.Exit(EXIT_FAILED)
