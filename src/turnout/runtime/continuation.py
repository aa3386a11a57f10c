"""A generator kept from turn to turn, so that a conversation computes only what is new.

How onnxruntime-genai 0.18 behaves (measured, docs/runtime.md): the last token of a sequence
has not been computed yet, and `append_tokens` after a text leaves it out for good, silently.
So the generator is rewound first. It is rewound to the end of the last prompt: an answer's
tokens were computed one at a time, which rounds otherwise than computing them together, and
keeping them made later answers differ from those of a conversation that is computed anew.
A pipeline cannot rewind: it says so, and is then computed anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from turnout.runtime.generation import Request, create_generator
from turnout.runtime.prompt import Limits

# Key-value buffers follow the length a generator is made for: room for a few turns, not for
# the whole context.
LEAST_ROOM = 1024


class KeptGenerator:
    """A source of generators that rewinds the last one to what a prompt has in common with it.

    Seeded sampling is always computed anew, since a kept generator's random numbers go on
    where they were. So are bundles whose caches have a fixed length.
    """

    def __init__(self, model: Any, limits: Limits, *, can_rewind: bool) -> None:
        self._model = model
        self._limits = limits
        self._can_rewind = can_rewind and not limits.fixed
        self._generator: Any = None
        self._computed: Sequence[int] = ()
        self._prompt: Sequence[int] = ()
        self._search: dict[str, Any] = {}
        self._capacity = 0
        self._keep = False

    def take(self, request: Request) -> tuple[Any, int]:
        """A generator, and how many of the request's first tokens it has computed already."""
        generator, self._generator = self._generator, None
        if generator is not None and self._fits(request):
            common = self._common(request.token_ids)
            if common and self._rewind(generator, common):
                self._prompt = request.token_ids
                return generator, common
        # The old buffers go before the new ones are made.
        del generator
        self._search = dict(request.search)
        self._prompt = request.token_ids
        self._keep = self._can_rewind and not request.seeded
        self._capacity = self._room(request.length.max_length)
        return create_generator(self._model, self._capacity, request.search), 0

    def give_back(self, generator: Any, token_ids: Sequence[int]) -> None:
        """Keep the generator for the next turn."""
        if self._keep:
            # The runtime refuses to rewind to all that is computed where buffers grow with the
            # sequence, and the last token is not computed.
            self._generator = generator
            self._computed = self._prompt[: len(token_ids) - 2]

    def _fits(self, request: Request) -> bool:
        return request.search == self._search and request.length.max_length <= self._capacity

    def _common(self, token_ids: Sequence[int]) -> int:
        """How many first tokens to keep: those in common, with one left to append."""
        pairs = zip(self._computed, token_ids[:-1], strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _rewind(self, generator: Any, length: int) -> bool:
        try:
            generator.rewind_to(length)
        except RuntimeError:
            self._can_rewind = False
            return False
        return True

    def _room(self, max_length: int) -> int:
        if not self._keep:
            return max_length
        return min(max(LEAST_ROOM, 2 * max_length), self._limits.tokens)
