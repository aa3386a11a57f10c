"""`turnout explain`: the route, the reason for every stage, and what the config becomes."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli import compile_options as preparing
from turnout.cli import route_options as routes
from turnout.cli.output import DebugOption, JsonOption, QuietOption, VerboseOption, print_json
from turnout.cli.taking import taking

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.cli.explaining import Explained
    from turnout.compiling.options import CompileOptions
    from turnout.machine import Inventory
    from turnout.routing import Route, RouteRequest
    from turnout.runtime.loading import How
    from turnout.runtime.placement import Placement

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
@taking(asked=routes.RouteOptions, prepare=preparing.PrepareOptions)
def explain(
    bundle: routes.BundleArgument,
    *,
    asked: routes.RouteOptions,
    inventory: routes.ExplainInventoryOption = None,
    save_route: routes.SaveRouteOption = None,
    prepare: preparing.PrepareOptions,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Load the bundle along the route in a child process, generate a few tokens, and "
            "show where nodes really ran, and for how long.",
        ),
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit", metavar="SECONDS", help="How long --measure may take, loading included."
        ),
    ] = 600.0,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """What a route does to every stage, and why, before anything is loaded.

    For each stage: from which EP, to which, on what device, where its options come from, and
    whether the machine has them; then the difference that it makes to the bundle's config. With
    --compile or --share, what would be compiled and shared, and what of it is stored already.
    Without options, what the bundle says. Nothing is loaded and nothing is written, unless
    --measure or --save-route asks for it; --measure compiles what it is asked to. With -q, the
    stages alone; with -v, the prompt and the tokens of a measurement apart.
    """
    from turnout.bundle import Bundle
    from turnout.cli.ending import ended_cleanly
    from turnout.cli.explaining import document, lines
    from turnout.cli.folding import printable
    from turnout.cli.progress import JobProgress
    from turnout.cli.sessions import note
    from turnout.cli.text import writer
    from turnout.runtime.loading import How

    request = asked.request()
    prepared = prepare.options()
    _check_measure(measure, inventory, time_limit)
    opened = Bundle.open(bundle)
    explained = _explained(opened, request, routes.inventory_from(inventory), asked.route, prepared)
    if save_route is not None:
        explained.route.save(save_route)
    if measure:
        how = How(
            prepared,
            JobProgress(shown=not (quiet or as_json)),
            lambda line: note(line, quiet=quiet),
            prepare.allow_native_code,
        )
        with ended_cleanly(when=prepared.prepares):
            placement = _measured(opened, explained.route, time_limit, how)
        explained = explained.with_placement(placement)
    if as_json:
        print_json(document(explained))
        return
    write = writer(sys.stdout)
    for line in list(lines(explained, verbose=verbose, quiet=quiet)):
        # Names come from untrusted files, and must not drive the terminal.
        write(printable(line) + "\n")


def _check_measure(measure: bool, inventory: Path | None, time_limit: float) -> None:
    from turnout.errors import UsageError

    if measure and inventory is not None:
        raise UsageError(
            "Only this machine can be measured, and the inventory is that of another one.",
            found=f"--measure and --inventory {inventory}",
            expected="one of them",
        )
    if not time_limit > 0:
        raise UsageError(
            "The time limit is out of range.", found=time_limit, expected="more than 0 seconds"
        )


def _explained(
    bundle: Bundle,
    request: RouteRequest,
    machine: Inventory | None,
    saved: Path | None,
    options: CompileOptions,
) -> Explained:
    from turnout.cli.explaining import Explained
    from turnout.cli.sessions import with_target
    from turnout.errors import MachineError
    from turnout.machine import Inventory
    from turnout.routing import Route, apply
    from turnout.routing import route as decide

    given = machine is not None
    if machine is None and request.needs_inventory:
        machine = Inventory.discover()
    if options.target and machine is not None:
        machine = with_target(machine, options.target)
    if saved is not None:
        chosen = Route.load(saved, bundle, machine)
    else:
        chosen = decide(bundle, request, inventory=machine)
    if machine is None and _names_plugins(chosen):
        # What the bundle says is explained on a machine whose runtimes do not load, too.
        with contextlib.suppress(MachineError):
            machine = Inventory.discover()
    effective = apply(bundle.config, chosen)
    foreseen = None
    if options.prepares:
        from turnout.compiling.preview import preview

        foreseen = preview(bundle, effective, options, elsewhere=given)
    return Explained(bundle, chosen, effective, machine, elsewhere=given, preview=foreseen)


def _names_plugins(route: Route) -> bool:
    from turnout import catalog

    known = (catalog.find(ep) for ep in route.eps)
    return any(ep is None or not ep.builtin for ep in known)


def _measured(bundle: Bundle, route: Route, time_limit: float, how: How) -> Placement:
    from turnout.runtime.placement import measure

    return measure(bundle, route, timeout=time_limit, how=how)
