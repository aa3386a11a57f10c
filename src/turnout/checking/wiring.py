"""Checks of how stages, their names and their graphs fit together (codes T20x, T21x, T25x)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from turnout.checking import (
    wiring_cache,
    wiring_flow,
    wiring_graphs,
    wiring_sessions,
    wiring_types,
)
from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import MAX_FINDINGS
from turnout.checking.wiring_stages import wiring_of

_PARTS = (wiring_flow, wiring_graphs, wiring_cache, wiring_types, wiring_sessions)
RULES: tuple[Rule, ...] = tuple(
    sorted((rule for part in _PARTS for rule in part.RULES), key=lambda rule: rule.code)
)


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about how stages, their names and their graphs fit together."""
    wiring = wiring_of(subject)
    for part in _PARTS:
        yield from islice(part.check(subject, wiring), MAX_FINDINGS)
