"""What `generate` and `chat` share: a session from their options, and lines for a person."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.routing import RouteRequest
    from turnout.runtime import Session


def open_session(
    bundle: Path,
    request: RouteRequest,
    inventory: Path | None,
    *,
    route: Path | None = None,
    save_route: Path | None = None,
    quiet: bool,
) -> Session:
    """A session that is not loaded yet; what there is to warn of goes to stderr.

    A request that asks for nothing makes no route: the bundle is loaded as it is. `route` names
    a saved one, `save_route` the file to save the decision in.
    """
    from turnout.bundle import Bundle
    from turnout.cli.route_options import exclusive, inventory_from
    from turnout.routing import Route, RouteRequest, apply, warnings_for
    from turnout.routing import route as decide
    from turnout.runtime import Session

    exclusive(route, request)
    opened = Bundle.open(bundle)
    machine = inventory_from(inventory, request)
    chosen = None
    if route is not None:
        chosen = Route.load(route, opened)
    elif request != RouteRequest() or save_route is not None:
        chosen = decide(opened, request, inventory=machine)
    if chosen is not None and save_route is not None:
        chosen.save(save_route)
    effective, warnings = opened.config, tuple[str, ...]()
    if chosen is not None:
        effective, warnings = apply(opened.config, chosen), chosen.warnings
    # It runs on this machine, whichever one the route was decided for.
    for warning in (*warnings, *warnings_for(effective)):
        note(warning, quiet=quiet)
    return Session(opened, chosen, say=lambda line: note(line, quiet=quiet))


def try_template(session: Session) -> None:
    """Apply the bundle's chat template once, before there is a conversation to lose.

    A template that never ends is then ended by Ctrl-C. What else is wrong shows when a message
    is answered.
    """
    from turnout.errors import TurnoutError
    from turnout.runtime.interrupts import killed_by_interrupt

    with killed_by_interrupt(), contextlib.suppress(TurnoutError):
        session.apply_chat_template("Hello")


def note(line: str, *, quiet: bool = False) -> None:
    """One line (or lines) on stderr, control characters as escapes; nothing if `quiet`."""
    from turnout.cli.folding import printable

    if not quiet:
        sys.stderr.write("\n".join(map(printable, line.split("\n"))) + "\n")
        sys.stderr.flush()


def show_pieces(pieces: Iterable[str]) -> None:
    """Write pieces of an answer to stdout as they come, and end the line."""
    from turnout.cli.text import writer

    write = writer(sys.stdout)
    for piece in pieces:
        write(piece)
    write("\n")
