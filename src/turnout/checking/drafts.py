"""Findings that are not placed yet: looking up a line is left out for those nobody will see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from turnout.bundle.jsontext import Path
from turnout.checking.findings import MOST_OF_A_CODE, Finding, Rule

if TYPE_CHECKING:
    from turnout.checking.subject import Subject


@dataclass(frozen=True)
class Draft:
    """What a rule says of the place `path` of a config."""

    rule: Rule
    path: Path
    message: str
    found: str | None = None
    expected: str | None = None
    fix: str | None = None

    def place(self, subject: Subject) -> Finding:
        """The finding."""
        return self.rule.at(
            subject.place(self.path),
            self.message,
            found=self.found,
            expected=self.expected,
            fix=self.fix,
        )


def placed(subject: Subject, drafts: Iterable[Draft]) -> Iterator[Finding]:
    """At most `MOST_OF_A_CODE` findings of each rule, and one that tells how many more."""
    seen: Counter[str] = Counter()
    last: dict[str, Draft] = {}
    for draft in drafts:
        seen[draft.rule.code] += 1
        if seen[draft.rule.code] <= MOST_OF_A_CODE:
            yield draft.place(subject)
        else:
            last[draft.rule.code] = draft
    for code, draft in last.items():
        more = seen[code] - MOST_OF_A_CODE
        message = f"There are {more} more findings of this kind, the last one here."
        yield replace(draft, message=message, found=None, expected=None, fix=None).place(subject)
