"""How tokens are chosen and how many: what a caller asks for, over what the bundle says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnout.errors import UsageError

DEFAULT_NEW_TOKENS = 256
# onnxruntime-genai keeps both in an int32.
MAX_INT32 = 2**31 - 1

# One sequence at a time: a beam's text is only known at its end, so it cannot be streamed.
_ONE_SEQUENCE = {"num_beams": 1, "num_return_sequences": 1}


@dataclass(frozen=True)
class SearchOptions:
    """What the caller asks for; None leaves a value to the bundle's `search` section.

    `temperature` is at least 0, and 0 is greedy; `top_k` is a number of tokens, 0 for all;
    `top_p` is above 0 and at most 1; `repetition_penalty` is above 0, and 1 is none; `seed` is
    an integer from 0 to 2**31 - 1. Asking for a temperature above 0, a `top_k`, a `top_p` or a
    `seed` asks for sampling, and so conflicts with `greedy`. `ignore_eos` goes on after the text's
    end until there are `max_new_tokens`. Raises `UsageError`.
    """

    max_new_tokens: int = DEFAULT_NEW_TOKENS
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    greedy: bool = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require_integer("max_new_tokens", self.max_new_tokens, 1)
        _require_integer("top_k", self.top_k, 0)
        _require_integer("seed", self.seed, 0)
        _require_number("temperature", self.temperature, at_least=0.0)
        _require_number("top_p", self.top_p, above=0.0, at_most=1.0)
        _require_number("repetition_penalty", self.repetition_penalty, above=0.0)
        if self.greedy and self._asks_for_sampling:
            names = ("temperature", "top_k", "top_p", "seed")
            given = [_both_names(name) for name in names if self._given(name)]
            raise UsageError(
                "Greedy search takes the likeliest token, so it has no use for sampling options.",
                found=f"greedy (--greedy) with {', '.join(given)}",
                fix="leave out greedy, or the others",
            )

    def _given(self, name: str) -> bool:
        value = getattr(self, name)
        return bool(value) if name == "temperature" else value is not None

    @property
    def _asks_for_sampling(self) -> bool:
        return any(self._given(name) for name in ("temperature", "top_k", "top_p", "seed"))

    @property
    def samples(self) -> bool | None:
        """Whether tokens are drawn at random; None leaves it to the bundle."""
        if self.greedy or self.temperature == 0:
            return False
        return True if self._asks_for_sampling else None

    def is_seeded(self, search: Mapping[str, Any]) -> bool:
        """Whether tokens are drawn at random from a seed, the caller's or the bundle's."""
        samples = search.get("do_sample", False) if self.samples is None else self.samples
        seed = search.get("random_seed", -1) if self.seed is None else self.seed
        return bool(samples) and isinstance(seed, int) and seed >= 0

    def effective(self, search: Mapping[str, Any], vocab_size: int | None) -> dict[str, Any]:
        """The options to set on the runtime's own, which start from the bundle's `search`.

        `search` is that section. A `top_k` above the vocabulary, which the runtime refuses,
        is the whole vocabulary.
        """
        options: dict[str, Any] = dict(_ONE_SEQUENCE)
        for name in ("temperature", "top_p", "repetition_penalty"):
            if getattr(self, name) is not None:
                options[name] = float(getattr(self, name))
        if self.seed is not None:
            options["random_seed"] = self.seed
        if self.samples is not None:
            options["do_sample"] = self.samples
        top_k = search.get("top_k", 50) if self.top_k is None else self.top_k
        if vocab_size is not None and isinstance(top_k, int) and top_k > vocab_size:
            top_k = vocab_size
        if top_k != search.get("top_k", 50):
            options["top_k"] = top_k
        return options


def _require_integer(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_INT32:
        raise UsageError(
            f"{_both_names(name)} is out of range.",
            found=value,
            expected=f"an integer from {least} to {MAX_INT32}",
        )


def _require_number(
    name: str,
    value: object,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> None:
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and math.isfinite(value) and at_least <= value <= at_most and value > above:  # type: ignore[arg-type, operator]
        return
    low = f"above {above:g}" if above > at_least else f"at least {at_least:g}"
    high = "" if at_most == math.inf else f" and at most {at_most:g}"
    raise UsageError(
        f"{_both_names(name)} is out of range.", found=value, expected=f"a number {low}{high}"
    )


def _both_names(name: str) -> str:
    """An option's name, and how the command line spells it."""
    return f"{name} (--{name.replace('_', '-')})"
