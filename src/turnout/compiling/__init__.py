"""Ahead of time: derived bundles, and what runs of a route need on disk."""

from turnout.compiling.derive import derive, derive_into, loadable
from turnout.compiling.places import cache_folder, scratch

__all__ = ["cache_folder", "derive", "derive_into", "loadable", "scratch"]
