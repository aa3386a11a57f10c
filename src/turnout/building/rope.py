"""The tables of cosines and sines that a rotary embedding looks positions up in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from turnout.building.spec import RopeSpec
from turnout.errors import GgufError

# Rows computed at once: float64 work space of a few megabytes at the usual head sizes.
_CHUNK_POSITIONS = 4096


def frequencies(
    rope: RopeSpec, head_size: int, factors: npt.NDArray[np.float32] | None
) -> npt.NDArray[np.float64]:
    """Angle a position for each pair of values, float64 [head_size/2].

    `factors` are those of `rope_freqs.weight`, which divide the frequencies. Raises `GgufError`
    for factors that are not positive.
    """
    if factors is not None and not (factors > 0).all():
        raise GgufError(
            "The rotary factors make no sense.",
            found=f"{factors.min()}",
            expected="positive numbers",
            where="tensor rope_freqs.weight",
        )
    exponents = np.arange(0, head_size, 2, dtype=np.float64) / head_size
    result = 1.0 / (rope.base**exponents) / rope.linear_factor
    return result if factors is None else result / factors.astype(np.float64)


def tables(
    angles: npt.NDArray[np.float64], positions: int, function: np.ufunc
) -> Iterator[npt.NDArray[np.float32]]:
    """`function` (numpy's cos or sin) of position times angle, in chunks of [rows, head_size/2].

    Angles are computed in float64: at position 100,000 float32 is off by 1e-2 radians.
    """
    for start in range(0, positions, _CHUNK_POSITIONS):
        rows = np.arange(start, min(start + _CHUNK_POSITIONS, positions), dtype=np.float64)
        yield function(np.outer(rows, angles)).astype(np.float32)
