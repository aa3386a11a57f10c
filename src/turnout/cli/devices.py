"""`turnout devices`: what this machine can run, what is broken, and what is missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from turnout.cli.output import (
    DebugOption,
    JsonOption,
    QuietOption,
    VerboseOption,
    print_json,
    stdout_console,
)

if TYPE_CHECKING:
    from rich.console import Console

    from turnout.machine import InstalledEp, Inventory

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
def devices(
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """EPs and devices of this machine, versions, where found, and what is missing.

    With --json, the inventory document: save it on a target machine, and use it elsewhere.
    """
    from turnout.machine import Inventory

    inventory = Inventory.discover()
    if as_json:
        print_json(json.loads(inventory.to_json()))
        return
    console = stdout_console()
    _print_working(console, inventory, verbose=verbose)
    _print_idle(console, inventory)
    _print_problems(console, inventory)
    if not quiet:
        _print_missing(console, inventory)


def _print_working(console: Console, inventory: Inventory, *, verbose: bool) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("EP", "Device", "Hardware", "Version", "From"):
        table.add_column(column, overflow="fold")
    for ep in inventory.eps:
        if ep.problem is None:
            for row in _rows(ep):
                table.add_row(*row)
    console.print(table)
    runtimes = ", ".join(f"{name} {version}" for name, version in inventory.runtimes.items())
    console.print(
        f"\n{runtimes}; {inventory.platform.word}, Python {inventory.platform.python}",
        soft_wrap=True,
    )
    if verbose:
        for ep in inventory.eps:
            if ep.library is not None:
                console.print(f"{ep.alias}: {ep.library}", markup=False, soft_wrap=True)


def _rows(ep: InstalledEp) -> list[tuple[str, ...]]:
    if not ep.devices:
        return [(ep.alias, "none found", "", ep.version or "", ep.source)]
    rows: list[tuple[str, ...]] = []
    for device in ep.devices:
        kind: str = device.kind
        if device.compile_only:
            kind += " (compile only)"
        elif device.assumed:
            kind += " (not verified)"
        rows.append((ep.alias, kind, device.label, ep.version or "", ep.source))
    return rows


def _print_idle(console: Console, inventory: Inventory) -> None:
    """What to do about EPs that work and find no device."""
    from turnout import catalog

    for ep in inventory.eps:
        if ep.problem is None and not ep.devices:
            advice = catalog.device_advice(ep.name)
            console.print(f"\n{ep.alias} finds no device: {advice}", markup=False, soft_wrap=True)


def _print_problems(console: Console, inventory: Inventory) -> None:
    for ep in inventory.problems:
        console.print(
            f"\n{ep.alias} is installed but broken ({ep.source}):", markup=False, soft_wrap=True
        )
        if ep.library is not None:
            console.print(f"  library: {ep.library}", markup=False, soft_wrap=True)
        console.print(f"  problem: {ep.problem}", markup=False, soft_wrap=True)
        if ep.fix is not None:
            console.print(f"  fix: {ep.fix}", markup=False, soft_wrap=True)


def _print_missing(console: Console, inventory: Inventory) -> None:
    from rich.table import Table

    from turnout import catalog

    if not inventory.missing:
        return
    console.print("\nNot installed:")
    table = Table(box=None, pad_edge=False, show_header=False)
    for ep in inventory.missing:
        table.add_row(
            f"  {catalog.alias_of(ep.name)}",
            ", ".join(ep.devices) or "compile only",
            f"pip install {ep.package}",
        )
    console.print(table)
