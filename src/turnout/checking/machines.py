"""Checks of EPs and devices of a config on one machine (codes T42x)."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject

RULES: tuple[Rule, ...] = ()


def check(subject: Subject) -> Iterator[Finding]:  # noqa: ARG001
    """Findings about EPs and devices of a config on one machine."""
    yield from ()
