"""Ahead of time: derived bundles, and what runs of a route need on disk."""

from turnout.compiling.derive import derive, loadable
from turnout.compiling.places import cache_folder

__all__ = ["cache_folder", "derive", "loadable"]
