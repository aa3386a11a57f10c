"""`turnout compare`: two reports of `turnout perf`, and whether a gate fails the second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnout.cli.main import EXIT_FAILED
from turnout.cli.output import (
    DebugOption,
    JsonOption,
    QuietOption,
    VerboseOption,
    print_json,
    some_path,
)
from turnout.perf.comparing import MARGIN

if TYPE_CHECKING:
    from turnout.perf.comparing_reports import ReportComparison
    from turnout.perf.gates import Judgement
    from turnout.perf.report import Report

SCHEMA_VERSION = 1

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
def compare(
    base: Annotated[
        Path,
        typer.Argument(metavar="A.json", help="A report of turnout perf -o.", parser=some_path),
    ],
    other: Annotated[
        Path,
        typer.Argument(
            metavar="B.json", help="Another one, which is compared with it.", parser=some_path
        ),
    ],
    *,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="[ROUTE:] FIGURE OP RATIO",
            help='Exit with 1 if the whole interval is so, as in "decode_tokens_per_second < 0.95" '
            "(repeatable).",
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            "--margin",
            metavar="SHARE",
            help="What is less than that apart is neither faster nor slower.",
        ),
    ] = MARGIN,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="NAME",
            help="Show this figure instead of the usual ones (repeatable); a wrong one lists all.",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="bundle|prompt|lengths|all",
            help="Compare although that differs (repeatable, or with commas).",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """How many times as fast B is as A: ratios with intervals, "faster", "slower", "cannot tell".

    Routes are matched by name. Reports of other bundles, prompts or lengths are refused, unless
    --allow takes them. A verdict needs the whole 95% interval beyond the margin. Exits with 1 if a
    gate of --fail-if holds, or could not be judged. With -v also the answers that changed; with -q
    no notes.
    """
    from turnout.perf import comparing_reports, likeness
    from turnout.perf.gates import judge, parse
    from turnout.perf.report import read

    _check(margin=margin, markdown=markdown, as_json=as_json)
    gates = [parse(text) for text in fail_if or ()]
    figures = _figures(figure, [gate.figure for gate in gates])
    allowed = likeness.kinds(allow or ())
    reports = [(path, read(path)) for path in (base, other)]
    comparison = comparing_reports.compare(
        reports[0][1], reports[1][1], figures=figures, margin=margin, allow=allowed
    )
    judgements = [judge(gate, comparison) for gate in gates]
    if as_json:
        print_json(document(reports, comparison, judgements))
    else:
        _print(reports, comparison, judgements, markdown=markdown, verbose=verbose, quiet=quiet)
    if any(judgement.holds is not False for judgement in judgements):
        raise typer.Exit(EXIT_FAILED)


def _check(*, margin: float, markdown: bool, as_json: bool) -> None:
    from turnout.errors import UsageError

    if not 0 <= margin < 1:
        raise UsageError(
            "The margin is no share.", found=margin, expected="0 to below 1", where="--margin"
        )
    if markdown and as_json:
        raise UsageError("Only one document can be printed.", found="--markdown and --json")


def _figures(shown: Sequence[str] | None, of_gates: Sequence[str]) -> list[str]:
    """The figures to show, and then those of gates. Raises `UsageError` for one that is none."""
    from turnout.errors import UsageError
    from turnout.perf.comparing_reports import DEFAULT_FIGURES, FIGURES

    for name in shown or ():
        if name not in FIGURES:
            raise UsageError(
                f"There is no figure {name!r}.", expected=", ".join(FIGURES), where="--figure"
            )
    return list(dict.fromkeys([*(shown or DEFAULT_FIGURES), *of_gates]))


def _print(
    reports: Sequence[tuple[Path, Report]],
    comparison: ReportComparison,
    judgements: Sequence[Judgement],
    *,
    markdown: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    from turnout.cli import comparison as reading
    from turnout.cli.folding import printable
    from turnout.cli.reports import print_text

    if markdown:
        # It has no controls any more, and a mark that is not seen, which keeps from calling users.
        found = list(reading.markdown(reports, comparison, judgements))
    else:
        found = [] if quiet else [*reading.headings(reports), ""]
        found += reading.lines(comparison, judgements, verbose=verbose, quiet=quiet)
        found = [printable(line) for line in found]
    print_text("".join(line + "\n" for line in found))


def document(
    reports: Sequence[tuple[Path, Report]],
    comparison: ReportComparison,
    judgements: Sequence[Judgement],
) -> dict[str, Any]:
    """What `--json` prints."""
    sides = {
        name: {
            "path": str(path),
            "created": report.created,
            "bundle": report.bundle.name,
            "bundle_sha256": report.bundle.content_sha256,
        }
        for name, (path, report) in zip(("base", "other"), reports, strict=True)
    }
    return {
        "schema_version": SCHEMA_VERSION,
        **sides,
        **comparison.to_json(),
        "gates": [
            {"gate": item.gate.text, "holds": item.holds, "because": list(item.because)}
            for item in judgements
        ],
    }
