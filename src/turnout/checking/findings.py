"""What a check says: a `Rule` is one thing that can be wrong, a `Finding` is where it is.

A rule carries everything that `docs/findings.md` says of it, so that no code is without an
explanation. Codes are never used again for something else: people silence and search for them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Kind = Literal["parser", "graph", "files", "route"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
# Findings of one code that are listed one by one.
MOST_OF_A_CODE = 20
KINDS: tuple[Kind, ...] = ("parser", "graph", "files", "route")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    `kind`: "parser" (onnxruntime-genai refuses the config), "graph" (stages and graphs do not
    fit), "files" (what is on disk), "route" (EPs, their options, and the machine). `path` is a
    JSON path of the config, or a file relative to the bundle. `line` and `column` count from 1,
    None where it is no place of the config.
    """

    code: str
    severity: Severity
    kind: Kind
    path: str
    message: str
    found: str | None = None
    expected: str | None = None
    fix: str | None = None
    line: int | None = None
    column: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Place:
    """A JSON path or a file as it is shown, and where in the config it stands."""

    path: str
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong: its code, and what the documentation says of it.

    `title` is a line without a full stop; `why` says what happens at run time, and when. `bad`
    and `good` are examples: a fragment of a config (JSON) or of what is on disk.
    """

    code: str
    severity: Severity
    kind: Kind
    title: str
    why: str
    bad: str
    good: str

    def at(
        self,
        place: Place | str,
        message: str,
        *,
        found: object = None,
        expected: object = None,
        fix: str | None = None,
    ) -> Finding:
        """The finding of this rule at a place of the config, or at a file (text)."""
        place = Place(place) if isinstance(place, str) else place
        return Finding(
            code=self.code,
            severity=self.severity,
            kind=self.kind,
            path=place.path,
            message=message,
            found=None if found is None else str(found),
            expected=None if expected is None else str(expected),
            fix=fix,
            line=place.line,
            column=place.column,
        )
