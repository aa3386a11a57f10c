"""Checks of files that are missing, outside, of the wrong kind, or unused (codes T30x)."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject

RULES: tuple[Rule, ...] = ()


def check(subject: Subject) -> Iterator[Finding]:  # noqa: ARG001
    """Findings about files that are missing, outside, of the wrong kind, or unused."""
    yield from ()
