"""What is compared with what, and how far apart it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnout.compiling.options import CompileOptions
from turnout.errors import UsageError
from turnout.perf.routeset import Candidate
from turnout.routing.request import RouteRequest
from turnout.verify.lane import TIME_LIMIT_S
from turnout.verify.questions import Asking
from turnout.verify.report import Thresholds

if TYPE_CHECKING:
    from turnout.bundle import Bundle

# Chosen by what routes of one bundle were measured to differ by (docs/verifying.md).
MAX_KL = 0.01
MAX_PERPLEXITY_RATIO = 1.03


def reference_route() -> Candidate:
    """What routes are compared with, unless said otherwise: exact arithmetic on the CPU EP."""
    return Candidate("reference", RouteRequest(ep="cpu", reproducible=True), CompileOptions())


def thresholds(
    max_kl: float = MAX_KL,
    max_perplexity_ratio: float = MAX_PERPLEXITY_RATIO,
    min_agreement: float | None = None,
) -> Thresholds:
    """What a route must not exceed. Raises `UsageError` for what is none."""
    for name, value, most in (
        ("--max-kl", max_kl, math.inf),
        ("--max-perplexity-ratio", max_perplexity_ratio, math.inf),
        ("--min-agreement", min_agreement, 1.0),
    ):
        # JSON has no infinity.
        if value is not None and not (0 <= value <= most and math.isfinite(value)):
            raise UsageError(
                "A threshold is out of range.",
                found=f"{name} {value}",
                expected="from 0 to 1" if most == 1 else "a number, 0 or more",
            )
    return Thresholds(
        max_kl=max_kl, max_perplexity_ratio=max_perplexity_ratio, min_agreement=min_agreement
    )


@dataclass(frozen=True)
class Plan:
    """What is compared, and how.

    `reference_bundle` None: the bundle that is verified. `judge_text`: a route differs whose text
    is too short to judge its perplexity. `time_limit_s` is for one question, or one load. Raises
    `UsageError`.
    """

    asked: Asking = field(default_factory=Asking)
    reference: Candidate = field(default_factory=reference_route)
    reference_bundle: Bundle | None = None
    thresholds: Thresholds = field(default_factory=thresholds)
    judge_text: bool = False
    time_limit_s: float = TIME_LIMIT_S
    allow_native_code: bool = False

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise UsageError(
                "The time limit is out of range.",
                found=f"--time-limit {self.time_limit_s}",
                expected="more than 0 seconds",
            )
        if self.judge_text and self.asked.text is None:
            raise UsageError(
                "The perplexity of a text is to be judged, and there is no text.",
                found="--max-perplexity-ratio and --no-text",
            )
