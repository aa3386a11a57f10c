"""What is asked of preparing a bundle ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnout.errors import UsageError

SHARE_WORDS = ("off", "auto", "require", "session", "ep", "prepacked")
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class CompileOptions:
    """What to prepare, and how.

    `compile`: compile what the route sends to EPs that compile. `share`: how stages are to keep
    one copy of their weights, one of `SHARE_WORDS`; None is "auto" with `compile`, else "off".
    `require_compiled`: a stage that could be compiled and is not is an error. `rebuild` makes
    anew what is stored, `no_cache` stores nothing, `paranoid` hashes weights and stored files
    anew, whatever is remembered. `timeout_s` is for one stage, in seconds. `target` describes a
    device that is not here. Raises `UsageError` for words that mean nothing.
    """

    compile: bool = False
    share: str | None = None
    require_compiled: bool = False
    rebuild: bool = False
    no_cache: bool = False
    paranoid: bool = False
    timeout_s: float = TIMEOUT_S
    target: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.share is not None and self.share not in SHARE_WORDS:
            raise UsageError(
                "The way to share weights is unknown.",
                found=repr(self.share),
                expected=", ".join(SHARE_WORDS),
            )
        if not self.timeout_s > 0:
            raise UsageError(
                "The time limit is out of range.",
                found=self.timeout_s,
                expected="more than 0 seconds",
            )
        if self.require_compiled and not self.compile:
            raise UsageError(
                "What is not compiled cannot be required to be.",
                found="--require-compiled",
                expected="--compile with it",
            )
        if self.rebuild and self.no_cache:
            raise UsageError(
                "Nothing is stored that could be made anew.",
                found="--rebuild and --no-cache",
                expected="one of them",
            )

    @property
    def sharing(self) -> str:
        """The word for sharing that takes effect."""
        if self.share is not None:
            return self.share
        return "auto" if self.compile else "off"

    @property
    def prepares(self) -> bool:
        """Whether anything is to be prepared at all."""
        return self.compile or self.sharing != "off"
