"""Names of tensors: what the config calls them, and which of them the runtime itself gives.

How onnxruntime-genai 0.18 feeds a decoder was read in its source (`DecoderOnlyPipelineState`,
`DefaultKeyValueCache`, `WindowedInputIDs`, `DefaultInputIDs`) and tried, change by change, on
small bundles that run (tests/test_checking_wiring.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from turnout.bundle import GenaiConfig
from turnout.bundle.jsontext import Path

# Findings of one kind of check. Who reports shows fewer; this bounds what a config can cost.
MAX_FINDINGS = 500
MAX_PATTERNS = 24
DECODER: Path = ("model", "decoder")
WINDOW: Path = (*DECODER, "sliding_window")

# Roles of a decoder's inputs and outputs, and their names where the config gives none.
_DEFAULTS = {
    "inputs": {
        "input_ids": "input_ids",
        "inputs_embeds": "inputs_embeds",
        "position_ids": "position_ids",
        "attention_mask": "attention_mask",
        "past_sequence_length": "past_sequence_length",
        "current_sequence_length": "current_sequence_length",
        "total_sequence_length": "total_sequence_length",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
        "past_conv_names": "past_conv.%d",
    },
    "outputs": {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
        "present_conv_names": "present_conv.%d",
    },
}
# Inputs that are fed only when the graphs have both of a pair.
_LENGTHS = ("past_sequence_length", "current_sequence_length", "total_sequence_length")
_CACHED = re.compile(r"^(past|present|cache|kv)|past_key|past_value", re.IGNORECASE)
# How a pattern writes a layer's number, and the same in Python.
_LETTERS = {"d": "d", "i": "d", "u": "d", "x": "x", "X": "X", "o": "o"}
_CONVERSION = re.compile(f"%(0?[1-9]?)([{''.join(_LETTERS)}])")
# Roles whose tensors are given by their name alone; a role without a name is not given at all.
_PLAIN = frozenset({"input_ids", "position_ids", "attention_mask"})
# States of other layers, under the key names' prefix.
_STATES = ("conv_state", "recurrent_state")


@dataclass(frozen=True)
class Pattern:
    """Names with a layer's number in them: what stands before and behind `%d`.

    The runtime finds layers by their decimal number in the place of `%` and a letter, and writes
    names as C's `printf` does, so that `%x` is as good as `%d` for the first ten.
    """

    text: str

    @cached_property
    def _parts(self) -> tuple[str, str, str]:
        found = _CONVERSION.search(self.text)
        if found is None:
            return self.text, "", ""
        return self.text[: found.start()], found[1] + _LETTERS[found[2]], self.text[found.end() :]

    @property
    def numbered(self) -> bool:
        """Whether there is a place for the number."""
        return bool(self._parts[1])

    @property
    def found(self) -> bool:
        """Whether the runtime finds the layers of a graph by it: it takes the number as it is."""
        return len(self._parts[1]) == 1

    def name(self, layer: int) -> str:
        """The name of that layer's tensor."""
        before, form, behind = self._parts
        return f"{before}{format(layer, form)}{behind}" if form else self.text

    def layer(self, name: str) -> int | None:
        """The layer whose tensor has that name, None for another name."""
        before, form, behind = self._parts
        if not form or not name.startswith(before) or not name.endswith(behind):
            return None
        number = name[len(before) : len(name) - len(behind)]
        return int(number) if number.isdecimal() and len(number) < 6 else None


@dataclass(frozen=True)
class CacheNames:
    """The patterns of keys and values: `past` that are read, and `present` that are written."""

    past: tuple[Pattern, Pattern]
    present: tuple[Pattern, Pattern]

    def layers(self, names: Iterable[str]) -> list[int]:
        """The layers whose past keys are among the names: those that the runtime keeps."""
        found = {self.past[0].layer(name) for name in names}
        return sorted(layer for layer in found if layer is not None)


def cache_names(config: GenaiConfig) -> CacheNames:
    """The key-value patterns of a config, its own or the defaults."""
    return CacheNames(
        past=(
            Pattern(role(config, "inputs", "past_key_names")),
            Pattern(role(config, "inputs", "past_value_names")),
        ),
        present=(
            Pattern(role(config, "outputs", "present_key_names")),
            Pattern(role(config, "outputs", "present_value_names")),
        ),
    )


def role(config: GenaiConfig, side: str, key: str) -> str:
    """The graph's name of what the config calls `key` in a decoder's `inputs` or `outputs`.

    "" where the config names none and there is no default.
    """
    value = config.get((*DECODER, side, key))
    return value if isinstance(value, str) else _DEFAULTS[side].get(key, "")


def roles(config: GenaiConfig, side: str) -> dict[str, str]:
    """Every role of a decoder's `inputs` or `outputs` that has a name."""
    written = config.get((*DECODER, side))
    own = written if isinstance(written, dict) else {}
    named = {key: value for key, value in own.items() if isinstance(value, str) and value}
    return {**_DEFAULTS[side], **named}


def slides_inputs(config: GenaiConfig) -> bool:
    """Whether the runtime cuts prompts into windows."""
    window = config.get(WINDOW)
    return isinstance(window, dict) and window.get("slide_inputs") is not False


def fed_lengths(config: GenaiConfig, names: Iterable[str]) -> set[str]:
    """Which of the names are lengths that the runtime feeds: in pairs, or not at all."""
    past, current, total = (role(config, "inputs", key) for key in _LENGTHS)
    pair = {past, total} if slides_inputs(config) else {past, current}
    return pair if pair <= set(names) else set()


def unfed_lengths(config: GenaiConfig, names: Iterable[str]) -> set[str]:
    """The lengths among the names that the runtime does not feed, for want of their pair."""
    known = {role(config, "inputs", key) for key in _LENGTHS}
    return (known & set(names)) - fed_lengths(config, names)


def given_inputs(config: GenaiConfig, names: Iterable[str]) -> set[str]:
    """Which of the names the runtime itself gives, where those are all inputs of a decoder."""
    names = set(names)
    cache = cache_names(config)
    plain = {role(config, "inputs", key) for key in _PLAIN}
    named = roles(config, "inputs")
    given = (names & plain) | fed_lengths(config, names)
    given |= {cache.past[part].name(n) for n in cache.layers(names) for part in (0, 1)} & names
    others = [Pattern(text) for text in (*named.values(), *_state_patterns(cache)) if "%d" in text]
    others = [pattern for pattern in others if pattern not in cache.past]
    return given | {name for name in names if matches(name, others[:MAX_PATTERNS])}


def matches(name: str, patterns: Iterable[Pattern]) -> bool:
    """Whether it is the tensor of some layer by one of the patterns."""
    return any(pattern.layer(name) is not None for pattern in patterns)


def elsewhere(config: GenaiConfig, names: Iterable[str]) -> set[str]:
    """Which of the names have a role that only other ways of running feed, such as the engine."""
    lengths = {role(config, "inputs", key) for key in _LENGTHS}
    named = {
        text
        for key, text in roles(config, "inputs").items()
        if "%d" not in text
        if key not in _PLAIN
    }
    groups = config.get((*DECODER, "state_groups"))
    if groups:  # bindings of a form that only the engine reads
        return set(names) - lengths
    engine = {
        "block_table",
        "block_table_windowed",
        "cumulative_sequence_lengths",
        "past_sequence_lengths",
        "attention_metadata",
        "logits_indices",
    }
    return set(names) & ((named | engine) - lengths)


def _state_patterns(cache: CacheNames) -> Iterator[str]:
    before, dot, _ = cache.past[0].text.rpartition(".")
    if dot:
        yield from (f"{before}.{state}" for state in _STATES)


def looks_cached(name: str) -> bool:
    """Whether a tensor is, by its name, the key-value cache of a layer."""
    return _CACHED.search(name) is not None and any(letter.isdigit() for letter in name)


def number(config: GenaiConfig, *path: str | int) -> int | None:
    """The whole number at a JSON path, None for anything else."""
    value: Any = config.get(path)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def listed(names: Iterable[str], most: int = 6) -> str:
    """Some names in a line, the others counted."""
    names = list(names)
    shown = ", ".join(text[:120] for text in itertools.islice(names, most))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
