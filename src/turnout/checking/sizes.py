"""Checks of a config's numbers against its graphs and each other (codes T22x to T24x)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from turnout.checking import sizes_cache, sizes_search, sizes_tokens, sizes_window
from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import MAX_FINDINGS

_PARTS = (sizes_cache, sizes_tokens, sizes_search, sizes_window)
RULES: tuple[Rule, ...] = tuple(
    sorted((rule for part in _PARTS for rule in part.RULES), key=lambda rule: rule.code)
)


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about numbers of the config against its graphs and against each other."""
    for part in _PARTS:
        yield from islice(part.check(subject), MAX_FINDINGS)
