"""`turnout cache`: what was compiled and is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.main import EXIT_FAILED
from turnout.cli.output import DebugOption, JsonOption, QuietOption, VerboseOption, print_json

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.compiling.kept import Kept
    from turnout.compiling.pruning import Doomed

BundleOption = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="BUNDLE",
        help="What is kept of this bundle: in it, and in the cache folder. Without it, the cache "
        "folder.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
]
Key = Annotated[str, typer.Argument(help="The first digits of a key, as `list` shows them.")]

app = typer.Typer(
    help="What was compiled and is kept, in a bundle (--bundle) or in the cache folder.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command("list")
def list_(
    *,
    bundle: BundleOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 - every command has it
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Every entry: its key, stages, EP, size, age, and whether it can be used here.

    Then the derived bundles. With -q, the entries alone.
    """
    from turnout.cli import caching

    kept, opened = _kept(bundle)
    if as_json:
        print_json(caching.list_document(kept, opened))
        return
    _write(caching.list_lines(kept, opened, quiet=quiet))


@app.command()
def show(
    key: Key,
    *,
    bundle: BundleOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 - every command has it
    quiet: QuietOption = False,  # noqa: ARG001 - every command has it
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """One entry: what it was made of, its files, and in what it differs from this machine."""
    from turnout.cli import caching

    kept, opened = _kept(bundle)
    item = kept.find(key)
    if as_json:
        print_json(caching.item_document(item, opened))
        return
    _write(caching.item_lines(item, opened))


@app.command()
def verify(
    key: Annotated[
        str | None, typer.Argument(help="The first digits of a key; without it, every entry.")
    ] = None,
    *,
    bundle: BundleOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 - every command has it
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Compare every file of the entries with its hash; exits with 1 where one differs.

    Of a bundle that was made with `turnout compile --output`, its own files as well.
    """
    from turnout.cli import caching

    kept, opened = _kept(bundle)
    checked = caching.verified([kept.find(key)] if key is not None else kept.items())
    if key is None and opened is not None:
        checked += caching.shipped(opened)
    if as_json:
        print_json(caching.verify_document(checked))
    else:
        _write(caching.verify_lines(checked, quiet=quiet))
    if any(item.problems for item in checked):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def remove(
    key: Annotated[list[str], typer.Argument(help="The first digits of a key; one or more.")],
    *,
    bundle: BundleOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 - every command has it
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Remove entries, and the derived bundles that were made of them.

    They are compiled again when they are needed.
    """
    from turnout.compiling.pruning import with_dependents

    kept, _ = _kept(bundle)
    items = {item.folder: item for item in map(kept.find, key)}
    found = with_dependents(items.values(), kept)
    _remove(found, dry_run=dry_run, as_json=as_json, quiet=quiet)


@app.command()
def prune(
    *,
    bundle: BundleOption = None,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="DAYS", help="Also what was made before that."),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            help="Also every entry but the N newest; with --older-than, never one of those.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 - every command has it
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Remove what is of no more use: broken entries, what ended processes left, and derived
    bundles whose source or entries are gone.

    What a process is at work on is left alone. Everything is made again when it is needed.
    """
    from turnout.compiling.pruning import doomed

    kept, _ = _kept(bundle)
    found = doomed(kept, older_than_days=older_than, keep=keep, everything=everything)
    _remove(found, dry_run=dry_run, as_json=as_json, quiet=quiet)


def _kept(bundle: Path | None) -> tuple[Kept, Bundle | None]:
    from turnout.bundle import Bundle
    from turnout.compiling.kept import Kept

    opened = Bundle.open(bundle.resolve()) if bundle is not None else None
    return Kept(opened), opened


def _remove(found: list[Doomed], *, dry_run: bool, as_json: bool, quiet: bool) -> None:
    from turnout.cli import caching

    outcome = caching.removed(found, dry_run=dry_run)
    if as_json:
        print_json(outcome.document())
    else:
        _write(outcome.lines(quiet=quiet))
    if outcome.busy:
        raise typer.Exit(EXIT_FAILED)


def _write(lines: Iterable[str]) -> None:
    from turnout.cli.folding import printable
    from turnout.cli.text import writer

    write = writer(sys.stdout)
    # All of it before the first line, so that what is wrong is not told in the middle.
    for line in list(lines):
        # What lies in a cache comes from files, and must not drive the terminal.
        write(printable(line) + "\n")
