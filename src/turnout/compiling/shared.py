"""How the stages of a prepared bundle keep one copy of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shared:
    """How stages keep one copy of their weights.

    `merged` maps a stage to the one whose session it became a part of; `ep` are groups that
    share in their EP's way; `prepacked` are stages whose packed weights are mapped from one file.
    `bytes_saved` is what is not stored twice.
    """

    merged: Mapping[str, str] = field(default_factory=dict)
    ep: tuple[tuple[str, ...], ...] = ()
    prepacked: tuple[str, ...] = ()
    bytes_saved: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether anything is shared."""
        return bool(self.merged or self.ep or self.prepacked)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "merged": dict(self.merged),
            "ep": [list(group) for group in self.ep],
            "prepacked": list(self.prepacked),
            "bytes_saved": self.bytes_saved,
            "reasons": list(self.reasons),
        }
