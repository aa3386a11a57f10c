"""A report in Markdown, for a pull request: the table, what it comes to, and where it was measured.

Names stand in code spans, where neither markup nor mentions of users mean anything; other text
of the report is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from turnout.perf import summary, tables, wording

if TYPE_CHECKING:
    from turnout.perf.report import Report, RouteReport

_FIRST_FIGURE = 3  # the column from which on cells are aligned to the right
_MARKUP = re.compile(r"([\\`*_\[\]<>|~&#$])")


def markdown(report: Report) -> str:
    """The report's results as GitHub reads Markdown, with a line's end."""
    marked = _marked(report)
    parts = []
    if wording.state(report):
        parts.append(f"**{wording.state(report)}**")
    parts.append("\n".join(table(tables.HEAD, list(map(tables.cells, tables.rows(marked))))))
    if tables.notes(marked):
        parts.append("\n".join(tables.notes(marked)))
    said = summary.verdicts(marked) + summary.agreement(marked)
    if said:
        parts.append("\n".join(f"- {sentence.text}" for sentence in said))
    parts.append(_where(report))
    return "\n\n".join(parts) + "\n"


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], figures: int = _FIRST_FIGURE
) -> list[str]:
    """Lines of a table whose cells are Markdown already; columns from `figures` on are figures."""
    rule = ["---:" if column >= figures else "---" for column in range(len(head))]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]


def code(text: str) -> str:
    """`text` as a code span that may stand in a table."""
    line = _line(text) or " "
    # A backslash before a pipe would be taken for what escapes it.
    piped = re.sub(r"\\+(?=\|)", r"\g<0> ", line).replace("|", r"\|")
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    return f"{fence} {piped} {fence}" if "`" in line else f"`{piped}`"


def escaped(text: str) -> str:
    """`text` on one line, with nothing in it that is markup, or that calls somebody."""
    return _MARKUP.sub(r"\\\1", _line(text)).replace("@", "@\u200b")


def _line(text: str) -> str:
    return " ".join(wording.shown(text).split())


def _marked(report: Report) -> Report:
    """The report with its names as code spans and its other text escaped."""
    return replace(
        report,
        workloads=tuple(replace(item, name=code(item.name)) for item in report.workloads),
        routes=tuple(map(_marked_route, report.routes)),
        comparisons=tuple(
            replace(item, route=code(item.route), base=code(item.base))
            for item in report.comparisons
        ),
    )


def _marked_route(route: RouteReport) -> RouteReport:
    error = route.error
    if error is not None:
        error = replace(error, during=escaped(error.during), problem=escaped(error.problem))
    return replace(route, name=code(route.name), effective=escaped(route.effective), error=error)


def _where(report: Report) -> str:
    where, bundle, settings = report.environment, report.bundle, report.settings
    versions = ", ".join(
        escaped(f"{name} {version}")
        for name, version in {"turnout": where.turnout, **where.runtimes, **where.plugins}.items()
    )
    cores = "" if where.usable_cores is None else f", {wording.counted(where.usable_cores, 'core')}"
    return (
        f"Bundle {code(bundle.name)} ({escaped(bundle.content_sha256[:12])})"
        f" on {escaped(where.cpu)}{cores}, {escaped(where.os)}; {versions}."
        f" {wording.counted(settings.iterations, 'timed request')} of a route and workload,"
        f" {settings.warmup} for warm-up. {escaped(report.created)}"
    )
