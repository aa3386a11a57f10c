"""Checks of numbers of the config against its graphs and against each other (codes T22x)."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject

RULES: tuple[Rule, ...] = ()


def check(subject: Subject) -> Iterator[Finding]:  # noqa: ARG001
    """Findings about numbers of the config against its graphs and against each other."""
    yield from ()
