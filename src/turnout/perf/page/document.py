"""The file itself: templates filled in, scripts and styles inlined, and nothing let out.

Whatever a report says is untrusted. Templates escape it, JSON in scripts has no `<`, and a policy
in the head lets only the page's own two scripts run, which it names by their hashes, and lets
nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any

from turnout.errors import MachineError
from turnout.perf import wording
from turnout.perf.page.parts import Section

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from turnout.perf.report import Report

PACKAGES = ("jinja2", "plotly")


def require() -> None:
    """Raise `MachineError` where the packages that a page needs are not installed."""
    from importlib.util import find_spec

    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MachineError(
            "A page cannot be written: packages that it needs are not installed.",
            found=f"no {' and no '.join(missing)}",
            fix="pip install turnout[report]",
        )


def render(report: Report, sections: Sequence[Section] = ()) -> str:
    """The page of a report: a whole HTML document, which holds all that it shows.

    `sections` stand behind what is measured. Raises `MachineError` where the extra `report` is not
    installed.
    """
    require()
    from turnout.perf.page import views

    return _filled("report.html.jinja", views.view(report), sections)


def render_sections(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """A page of sections alone, in the same dress. Raises `MachineError`, as `render` does."""
    require()
    return _filled("sections.html.jinja", {"title": title, "subtitle": subtitle}, sections)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Markup:
    """An HTML table that scrolls in its own box, everything in it escaped.

    A row's first cell is its heading, one for neighbours that have it in common. `caption` says
    what the table is, to those who hear it.
    """
    require()
    parts: Any = _environment().get_template("parts.html.jinja").module
    made: Markup = parts.table(head, rows, caption)
    return made


def _filled(template: str, view: dict[str, Any], sections: Sequence[Section]) -> str:
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    own = [
        {"id": f"section-{number}", "title": section.title, "html": Markup(section.html)}
        for number, section in enumerate(sections, start=1)
    ]
    charts = {**view.get("charts", {})}
    for described, section in zip(own, sections, strict=True):
        charts[described["id"]] = section.charts
    scripts = {"plotly": _script(get_plotlyjs()), "page": _script(_text("page.js"))}
    return (
        _environment()
        .get_template(template)
        .render(
            **{**view, "charts": charts},
            sections=own,
            style=Markup(_text("style.css")),
            scripts={name: Markup(source) for name, source in scripts.items()},
            policy=_policy(scripts.values()),
        )
    )


def _policy(scripts: Any) -> str:
    """What the page may do: run these scripts, style itself, and make images of its own charts."""
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline';"
        " img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(name: str) -> str:
    return (files(__package__) / "templates" / name).read_text("utf-8")


def _script(source: str) -> str:
    """A script as it stands in a page: with the lines' ends that a parser would give it, so that
    its hash is right, and without what would end it.
    """
    lines = source.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"</(?=script)", r"<\\/", lines, flags=re.IGNORECASE)


def _runs(rows: Sequence[Sequence[str]]) -> list[tuple[str, list[Sequence[str]]]]:
    """First cells of rows, and the other cells of neighbours that have that one in common."""
    return [
        (first, [row[1:] for row in run]) for first, run in groupby(rows, key=lambda row: row[0])
    ]


def _breakable(name: str) -> Markup:
    """A route's name, escaped, with places where a line may break."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<=[=/])(?=\w)", "<wbr>", str(escape(wording.shown(name)))))


def _shown(value: Any) -> Any:
    from markupsafe import Markup

    plain = isinstance(value, str) and not isinstance(value, Markup)
    return wording.shown(value) if plain else value


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("turnout.perf.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["runs"] = _runs
    environment.filters["breakable"] = _breakable
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.policies["json.dumps_function"] = json.dumps
    return environment
