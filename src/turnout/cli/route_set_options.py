"""Several routes in one call, for the commands that set them side by side."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnout.cli.compile_options import PrepareOptions
    from turnout.cli.route_options import RouteOptions
    from turnout.perf.routeset import Candidate

RouteSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--route-set",
        metavar="TEXT|@FILE",
        help='Several routes, such as "config; ep=cpu; name=fast ep=openvino compile": the options '
        "of one route a part, without their dashes. @FILE reads them from a file, @- from standard "
        "input. Repeatable.",
    ),
]


@dataclass(frozen=True)
class RouteSetOptions:
    """The options that say several routes, for `turnout.cli.taking`."""

    route_set: RouteSetOption = None

    def candidates(self, asked: RouteOptions, prepare: PrepareOptions) -> tuple[Candidate, ...]:
        """The routes: those of the set, else the one that `asked` says.

        `prepare` holds for all of them. Raises `UsageError`, also where both are given.
        """
        from turnout.cli.route_options import RouteOptions
        from turnout.errors import UsageError
        from turnout.perf.routeset import Candidate, check, check_text, name_of, parse

        if not self.route_set:
            preparing = prepare.options()
            request = asked.request()
            name = name_of(request, preparing, asked.route)
            check_text(name)
            return (Candidate(name, request, preparing, asked.route),)
        if asked != RouteOptions():
            raise UsageError(
                "Routes are asked for in two ways.",
                found=f"--route-set, and {name_of(asked.request(), saved=asked.route)}",
                fix="say all of them in --route-set",
            )
        preparing = prepare.options(elsewhere=True)
        found = tuple(
            candidate
            for given in self.route_set
            for candidate in parse(_text(given), preparing, comments=given.startswith("@"))
        )
        check(found)
        if not any(candidate.preparing.prepares for candidate in found):
            prepare.options()  # raises for what would do nothing
        return found


def _text(given: str) -> str:
    from turnout.cli.text import STDIN
    from turnout.errors import UsageError
    from turnout.perf.routeset import MAX_TEXT

    if not given.startswith("@"):
        return given
    path = Path(given[1:])
    try:
        if str(path) == STDIN:
            data = sys.stdin.buffer.read(MAX_TEXT + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_TEXT + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"The set of routes {path} cannot be read.",
            found=error.strerror or error,
            where=path,
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError("The set of routes is no UTF-8 text.", found=error, where=path) from error
    if len(data) > MAX_TEXT:
        raise UsageError(
            "The set of routes is too large.", expected=f"at most {MAX_TEXT} bytes", where=path
        )
    return text
