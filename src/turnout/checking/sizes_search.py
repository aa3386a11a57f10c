"""Checks of the `search` section: settings that the runtime refuses when it makes a generator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from turnout.checking.findings import Finding, Rule
from turnout.checking.sizes_caches import reads_tokens
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import number, slides_inputs

TOO_LONG = Rule(
    "T234",
    "warning",
    "graph",
    "`max_length` beyond `context_length`",
    why="The runtime refuses to make a generator: 'max_length cannot be greater than model"
    " context_length'. Only programs that set a shorter one themselves can use the bundle; Turnout"
    " does.",
    bad='{"model": {"context_length": 2048}, "search": {"max_length": 4096}}',
    good='{"model": {"context_length": 2048}, "search": {"max_length": 2048}}',
)
REFUSED = Rule(
    "T235",
    "error",
    "graph",
    "A search setting that the runtime refuses",
    why="The bundle's `search` values are the defaults of every program. The runtime tests them"
    " when it makes a generator, not when it reads the config, and fails there.",
    bad='{"model": {"vocab_size": 32}, "search": {"do_sample": true, "top_k": 50}}',
    good='{"model": {"vocab_size": 32}, "search": {"do_sample": true, "top_k": 32}}',
)
BEAMS = Rule(
    "T242",
    "error",
    "graph",
    "Several sequences at once, with windows",
    why="Windows slide over one sequence alone. The runtime fails when it makes a generator: 'Batch"
    " beam size must be 1 for sliding a window over input_ids'.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 64}}}, "search": {"num_beams":'
    " 4}}",
    good='{"model": {"decoder": {"sliding_window": {"window_size": 64}}}, "search": {"num_beams":'
    " 1}}",
)
DEFAULTS = Rule(
    "T270",
    "warning",
    "graph",
    "A search setting that spoils what programs get by default",
    why="Nothing refuses it. With `batch_size` above 1 the runtime takes one prompt for several,"
    " and the answer is nonsense; a `repetition_penalty` of 0 or less likes what was said before;"
    " and a `max_length` of a few tokens has no room for a prompt and an answer. Programs that set"
    " their own values do not notice.",
    bad='{"search": {"batch_size": 2}}',
    good='{"search": {"batch_size": 1}}',
)
RULES = (TOO_LONG, REFUSED, BEAMS, DEFAULTS)
# With a chat template around it the shortest prompt has more.
_FEW_TOKENS = 16
_MOST = 32  # of a batch, and of beams


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about the bundle's own settings for generation."""
    if not reads_tokens(subject):
        return
    context = subject.config.context_length
    length = number(subject.config, "search", "max_length")
    if context is not None and length is not None and length > context:
        yield TOO_LONG.at(
            subject.place(("search", "max_length")),
            "max_length is greater than the model's context.",
            found=length,
            expected=f"at most {context}, the context_length",
            fix=f"set max_length to {context}",
        )
    for key, spoilt, wanted in _spoiling(subject):
        yield DEFAULTS.at(
            subject.place(("search", key)),
            f"With this {key} programs that set none get no good answer.",
            found=spoilt,
            expected=wanted,
        )
    for key, found, expected in _refused(subject):
        yield REFUSED.at(
            subject.place(("search", key)),
            f"The runtime refuses this {key}.",
            found=found,
            expected=expected,
        )
    for key in ("num_beams", "batch_size"):
        count = number(subject.config, "search", key)
        if slides_inputs(subject.config) and count is not None and 1 < count <= _MOST:
            yield BEAMS.at(
                subject.place(("search", key)),
                f"A decoder with a sliding window takes one sequence, and {key} asks for more.",
                found=count,
                expected=1,
                fix=f"set {key} to 1",
            )


def _spoiling(subject: Subject) -> Iterator[tuple[str, object, str]]:
    """Keys of `search`, their values, and what is of use."""
    batch = number(subject.config, "search", "batch_size")
    if batch is not None and 1 < batch <= _MOST and not slides_inputs(subject.config):
        yield "batch_size", batch, "1, or nothing"
    penalty = subject.config.search.get("repetition_penalty")
    if isinstance(penalty, int | float) and not isinstance(penalty, bool) and penalty <= 0:
        yield "repetition_penalty", penalty, "more than 0; 1 is none"
    length = number(subject.config, "search", "max_length")
    if length is not None and 0 < length < _FEW_TOKENS:
        yield "max_length", length, "as many tokens as prompt and answer have"


def _refused(subject: Subject) -> Iterator[tuple[str, object, str]]:
    """Keys of `search`, their values, and what the runtime takes."""
    config = subject.config
    beams = number(config, "search", "num_beams")
    for key in ("batch_size", "num_beams"):
        count = number(config, "search", key)
        if count is not None and not 1 <= count <= _MOST:
            yield key, count, f"1 to {_MOST}"
    most = 1 if beams is None else beams
    wanted = number(config, "search", "num_return_sequences")
    if wanted is not None and not 1 <= wanted <= max(most, 1):
        yield "num_return_sequences", wanted, f"1 to num_beams, which is {most}"
    length = number(config, "search", "max_length")
    if length is not None and length < 0:
        yield "max_length", length, "0, for the context_length, or more"
    if _samples(config.search):
        yield from _sampling(subject, most)


def _samples(search: Any) -> bool:
    """Whether a token is drawn; else the likeliest is taken, and nothing else is looked at."""
    return (
        search.get("do_sample") is True
        and search.get("top_k") != 1
        and bool(search.get("temperature", 1.0) != 0)
    )


def _sampling(subject: Subject, beams: int) -> Iterator[tuple[str, object, str]]:
    search = subject.config.search
    if beams != 1 and 1 <= beams <= _MOST:
        yield "do_sample", "true", f"false with {beams} beams"
    share = search.get("top_p")
    if isinstance(share, int | float) and not (math.isfinite(share) and 0 <= share <= 1):
        yield "top_p", share, "0 to 1"
    size = number(subject.config, "model", "vocab_size")
    count = number(subject.config, "search", "top_k")
    top = 50 if count is None and "top_k" not in search else count  # the runtime's default
    if top is not None and (top < 0 or (size is not None and 0 < size < top)):
        yield "top_k", top, f"0 to {size}, the vocab_size" if size else "0 or more"
