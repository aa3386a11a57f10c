"""What is asked of every route: prompts, as text or as made-up tokens, and lengths."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from turnout.bundle import GenaiConfig
from turnout.errors import UsageError
from turnout.runtime import prompt
from turnout.runtime.options import MAX_INT32

DEFAULT_PROMPT = (
    "A train waits before a turnout. Explain in a few sentences how the switch sends it onto the"
    " other track, and what would go wrong if the points moved too late."
)
DEFAULT_NEW_TOKENS = 64
# A bundle with a shorter context is asked made-up tokens by default: any text may be too long.
_TEXT_CONTEXT = 512
MAX_WORKLOADS = 256
# Of every prompt of made-up tokens, so that two runs ask the same.
_SEED = 20_240_817


@dataclass(frozen=True)
class Ask:
    """One workload as it is asked: a text or token ids, and how many tokens at most.

    `raw`: a text is used as it is, without the bundle's chat template.
    """

    said: str | tuple[int, ...]
    max_new_tokens: int
    raw: bool = False

    @property
    def prompt(self) -> str | None:
        """The text; None for token ids."""
        return self.said if isinstance(self.said, str) else None

    def name(self, prompt_tokens: int | None) -> str:
        """pp512+tg128."""
        length = "?" if prompt_tokens is None else prompt_tokens
        return f"pp{length}+tg{self.max_new_tokens}"


def texts(text: str, lengths: Iterable[int], *, raw: bool = False) -> tuple[Ask, ...]:
    """One text, and every number of new tokens."""
    prompt.check_text(text)
    return _checked(Ask(text, length, raw) for length in lengths)


def by_default(config: GenaiConfig, lengths: Iterable[int] = ()) -> tuple[Ask, ...]:
    """What is asked where nothing is said about a prompt; no `lengths`: one that fits."""
    lengths = tuple(lengths)
    limits = prompt.limits(config)
    if limits.tokens >= _TEXT_CONTEXT:
        return texts(DEFAULT_PROMPT, lengths or (DEFAULT_NEW_TOKENS,))
    count = max(limits.tokens // 4 // limits.window * limits.window, 1)
    room = limits.tokens - limits.taken_by(count)
    return sweep(config, [count], lengths or [max(min(DEFAULT_NEW_TOKENS, room), 1)])


def sweep(
    config: GenaiConfig, prompt_tokens: Iterable[int], lengths: Iterable[int]
) -> tuple[Ask, ...]:
    """Made-up prompts of every length, with every number of new tokens, for that config.

    Raises `UsageError` for a length that the bundle's context does not take.
    """
    lengths = tuple(lengths)
    limits = prompt.limits(config)
    asks = []
    for count in prompt_tokens:
        for new in lengths:
            taken = limits.taken_by(max(count, 1)) + new
            if taken > limits.tokens:
                raise UsageError(
                    "A workload is too long for this bundle.",
                    found=f"{count} prompt tokens and {new} new ones",
                    expected=f"at most {limits.tokens} tokens, the context of this bundle",
                    fix="measure shorter ones, or a bundle with a longer context",
                )
            asks.append(Ask(made_up(config, count), new))
    return _checked(asks)


def made_up(config: GenaiConfig, count: int) -> tuple[int, ...]:
    """`count` token ids drawn from the vocabulary, special ones left out; always the same."""
    size = config.get(("model", "vocab_size"))
    size = size if isinstance(size, int) and size > 0 else 1
    special = prompt.special_ids(config)
    drawn = random.Random(_SEED)
    ids: list[int] = []
    while len(ids) < count:
        token = drawn.randrange(size)
        # A vocabulary of special tokens alone has to do with them.
        if token not in special or len(special) >= size:
            ids.append(token)
    return tuple(ids)


def _checked(asks: Iterable[Ask]) -> tuple[Ask, ...]:
    found = tuple(asks)
    for ask in found:
        if not 1 <= ask.max_new_tokens <= MAX_INT32:
            raise UsageError(
                "The number of new tokens is out of range.",
                found=ask.max_new_tokens,
                expected="1 or more",
            )
        if ask.prompt is None and not ask.said:
            raise UsageError("A prompt needs at least one token.", found=0, expected="1 or more")
    if len(found) > MAX_WORKLOADS:
        raise UsageError(
            "There are too many workloads.",
            found=len(found),
            expected=f"at most {MAX_WORKLOADS}",
            fix="sweep fewer lengths",
        )
    if len(set(found)) < len(found):
        raise UsageError("A workload is asked for twice.", fix="give each length once")
    return found
