"""What `generate` and `chat` share: a session from their options, and lines for a person."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig
    from turnout.compiling.options import CompileOptions
    from turnout.machine import Inventory
    from turnout.routing import Route, RouteRequest
    from turnout.runtime import Session


@dataclass(frozen=True)
class Decided:
    """What is to run: a route, None where nothing was asked for, and the config that it makes."""

    route: Route | None
    effective: GenaiConfig


def open_session(
    bundle: Path,
    request: RouteRequest,
    inventory: Path | None,
    *,
    route: Path | None = None,
    save_route: Path | None = None,
    preparing: CompileOptions | None = None,
    allow_native_code: bool = False,
    quiet: bool,
    progress: bool = True,
) -> Session:
    """A session that is not loaded yet; what there is to warn of goes to stderr.

    A request that asks for nothing makes no route: the bundle is loaded as it is. `route` names
    a saved one, `save_route` the file to save the decision in. `preparing` says what is compiled
    ahead of time, of which a bar is shown with `progress`.
    """
    from turnout.bundle import Bundle
    from turnout.cli.progress import JobProgress
    from turnout.cli.route_options import exclusive, inventory_from
    from turnout.runtime import Session

    exclusive(route, request)
    opened = Bundle.open(bundle)
    decided = decide(
        opened,
        request,
        inventory_from(inventory, request),
        route=route,
        save_route=save_route,
        target=preparing.target if preparing is not None else {},
        quiet=quiet,
    )
    return Session(
        opened,
        decided.route,
        preparing=preparing,
        progress=JobProgress(shown=progress and not quiet),
        say=lambda line: note(line, quiet=quiet),
        allow_native_code=allow_native_code,
    )


def decide(
    bundle: Bundle,
    request: RouteRequest,
    machine: Inventory | None,
    *,
    route: Path | None,
    save_route: Path | None,
    target: Mapping[str, str],
    quiet: bool,
) -> Decided:
    """The route that the options say, with what there is to warn of on stderr.

    For a `target`, a device that is not here, it is decided as if that were here.
    """
    from turnout.machine import Inventory
    from turnout.routing import Route, RouteRequest, apply, warnings_for
    from turnout.routing import route as decide_route

    chosen = None
    if route is not None:
        chosen = Route.load(route, bundle)
    elif request != RouteRequest() or save_route is not None:
        if target and request.needs_inventory:
            machine = with_target(machine or Inventory.discover(), target)
        chosen = decide_route(bundle, request, inventory=machine)
    if chosen is not None and save_route is not None:
        chosen.save(save_route)
    effective, warnings = bundle.config, tuple[str, ...]()
    if chosen is not None:
        effective, warnings = apply(bundle.config, chosen), chosen.warnings
    # It runs on this machine, whichever one the route was decided for; but for a target, which
    # is compiled for alone.
    for warning in (*warnings, *(() if target else warnings_for(effective))):
        note(warning, quiet=quiet)
    return Decided(chosen, effective)


def with_target(machine: Inventory, target: Mapping[str, str]) -> Inventory:
    """The inventory as if the device that `target` describes were here."""
    from turnout import catalog
    from turnout.compiling.targets import inventory_with

    for installed in machine.eps:
        known = catalog.find(installed.name)
        if known is not None and known.target is not None:
            machine = inventory_with(machine, installed.name, target)
    return machine


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
