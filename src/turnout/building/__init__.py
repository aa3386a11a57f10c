"""Making bundles from source models."""

from __future__ import annotations

from turnout.building.assemble import BuildProgress, build

__all__ = ["BuildProgress", "build"]
