"""Checks of how stages, their names and their graphs fit together (codes T20x)."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject

RULES: tuple[Rule, ...] = ()


def check(subject: Subject) -> Iterator[Finding]:  # noqa: ARG001
    """Findings about how stages, their names and their graphs fit together."""
    yield from ()
