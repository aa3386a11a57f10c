"""What two routes make of the same positions: their distributions of the next token, compared.

A row is the logits of one position, of the whole vocabulary of the graph. Probabilities are those
of the tokens that the tokenizer knows: graphs may have more columns than that, for the sake of
round numbers. Which token is the likeliest is asked of all columns, as the runtime's search does.
Everything is computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Compared:
    """A figure a position, in arrays of one length.

    `kl` is the Kullback-Leibler divergence of the route's distribution from the reference's, in
    nats; `margin` the difference of the reference's two largest logits; `nll` the negative
    logarithm of the probability of the token that does follow, in nats. `finite` is false where
    either has logits that are no numbers, or infinite: all figures but tokens are NaN there.
    """

    reference_token: NDArray[np.int64]
    token: NDArray[np.int64]
    margin: Floats
    kl: Floats
    reference_nll: Floats
    nll: Floats
    reference_finite: NDArray[np.bool_]
    finite: NDArray[np.bool_]

    @property
    def agrees(self) -> NDArray[np.bool_]:
        """Whether both take the same token for the likeliest; never where one is not finite."""
        agrees: NDArray[np.bool_] = (self.reference_token == self.token) & self.finite
        return agrees

    def chosen(self, where: NDArray[np.bool_]) -> Compared:
        """The positions of which `where` is true."""
        return Compared(**{item.name: getattr(self, item.name)[where] for item in fields(self)})


Chunk = tuple["NDArray[np.float32]", "NDArray[np.float32]", "NDArray[np.int64]"]


def compare(chunks: Iterable[Chunk], known: int) -> Compared:
    """Compare rows of the reference with the same rows of a route.

    A chunk is rows of both, [positions, vocabulary], and the token that follows each position.
    `known` is how many tokens the tokenizer has.
    """
    return joined(_compare(*chunk, known) for chunk in chunks)


def joined(parts: Iterable[Compared]) -> Compared:
    """The figures of several, one after the other."""
    import numpy as np

    found = list(parts) or [_nothing()]
    return Compared(
        **{
            item.name: np.concatenate([getattr(part, item.name) for part in found])
            for item in fields(Compared)
        }
    )


def _compare(
    reference: NDArray[np.float32],
    rows: NDArray[np.float32],
    follows: NDArray[np.int64],
    known: int,
) -> Compared:
    import numpy as np

    reference_finite, finite = _finite(reference, known), _finite(rows, known)
    both = reference_finite & finite
    logs, route_logs = _log_softmax(reference[:, :known]), _log_softmax(rows[:, :known])
    with np.errstate(invalid="ignore", over="ignore"):
        # Rounding may leave less than nothing of two that are equal.
        kl = np.maximum((np.exp(logs) * (logs - route_logs)).sum(axis=1), 0.0)
    place = np.arange(len(reference))
    # A token that the tokenizer does not know has no probability; it is never asked for.
    inside = np.minimum(follows, known - 1)
    return Compared(
        reference_token=reference.argmax(axis=1),
        token=rows.argmax(axis=1),
        margin=np.where(both, _margin(reference), np.nan),
        kl=np.where(both, kl, np.nan),
        reference_nll=np.where(both, -logs[place, inside], np.nan),
        nll=np.where(both, -route_logs[place, inside], np.nan),
        reference_finite=reference_finite,
        finite=both,
    )


def _finite(rows: NDArray[np.float32], known: int) -> NDArray[np.bool_]:
    """Where a row has a finite logit for every token, and nothing worse than -inf beyond them."""
    import numpy as np

    beyond = rows[:, known:]
    wrong = np.isnan(beyond) | np.isposinf(beyond)
    return np.asarray(np.isfinite(rows[:, :known]).all(axis=1) & ~wrong.any(axis=1))


def _log_softmax(rows: NDArray[np.float32]) -> Floats:
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        wide: Floats = rows.astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def _margin(rows: NDArray[np.float32]) -> Floats:
    """The largest logit less the second largest, of each row."""
    import numpy as np

    if rows.shape[1] < 2:
        return np.zeros(len(rows))
    largest = np.partition(rows, -2, axis=1)[:, -2:].astype(np.float64)
    with np.errstate(invalid="ignore"):
        margin: Floats = largest[:, 1] - largest[:, 0]
    return margin


def _nothing() -> Compared:
    import numpy as np

    kinds: dict[str, Any] = {
        "reference_token": np.int64,
        "token": np.int64,
        "reference_finite": np.bool_,
        "finite": np.bool_,
    }
    return Compared(
        **{item.name: np.empty(0, kinds.get(item.name, np.float64)) for item in fields(Compared)}
    )


def chunks_of(length: int, size: int) -> Iterator[slice]:
    """Slices that cut `length` rows into chunks of at most `size`."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
