"""Figures that the benchmarks print."""

from __future__ import annotations

from statistics import median


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[round(last / 4)], median(ordered), ordered[round(3 * last / 4)]
