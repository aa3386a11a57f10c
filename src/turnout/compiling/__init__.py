"""Ahead of time: derived bundles, and what runs of a route need on disk."""

from turnout.compiling.derive import cache_folder, derive, loadable

__all__ = ["cache_folder", "derive", "loadable"]
