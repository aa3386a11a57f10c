"""What is known of one verification while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnout.verify.questions import Made

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.perf.report import BundleReport, Environment, Failure
    from turnout.verify.distributions import Compared
    from turnout.verify.lane import Lane, Rows
    from turnout.verify.plan import Plan


@dataclass(frozen=True)
class Answered:
    """One question as a route answers it beside the reference."""

    question: int
    reference: Rows
    rows: Rows
    positions: tuple[int, ...]
    compared: Compared


@dataclass
class Outcome:
    """What a route came to."""

    lane: Lane
    answers: list[Answered] = field(default_factory=list)
    failure: Failure | None = None


@dataclass(frozen=True)
class Encoded:
    """Texts, and the tokens that the reference makes of each."""

    said: tuple[str, ...]
    raw: bool
    ids: list[list[int]]


@dataclass
class Run:
    """What is known of one verification."""

    bundle: Bundle
    plan: Plan
    command: tuple[str, ...]
    created: str
    environment: Environment
    identity: BundleReport
    reference_identity: BundleReport | None
    reference: Lane
    outcomes: list[Outcome]
    known: int
    interrupted: bool = False
    made: Made = field(default_factory=Made)
    encoded: list[Encoded] = field(default_factory=list)
    continuations: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # What tokens read as: those of differences, and continuations.
    texts: dict[tuple[int, ...], str] = field(default_factory=dict)
