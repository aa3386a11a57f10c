"""Which keys onnxruntime-genai reads, and which values it takes for each: a table, `keys.json`.

A section is an object of the config. A kind is `string`, `int` (32 bits), `int64`, `number` or
`bool`, `{section}`, `{*kind-or-section}` (an object with any keys), or `[kind]`. Measured key by
key against onnxruntime-genai 0.18.0; `since` marks the keys that its source of August 2026
(0.16.0-dev) does not have. `tests/test_checking_keys.py` measures all of it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

ROOT = "document"
ANY = "*"


@dataclass(frozen=True)
class Key:
    """What may stand under one key.

    `kinds` are the ways to write it. Numbers lie between `least` and `most`, and above `above`;
    `words` are the only values, in any case where `any_case`. `is_path`: relative, without
    `..`. `since` is the version that first reads it, "" for one that all read. `removed` says
    what to do instead, where the key is read only to be refused.
    """

    kinds: tuple[str, ...]
    least: float | None = None
    most: float | None = None
    above: float | None = None
    words: tuple[str | int, ...] = ()
    any_case: bool = False
    is_path: bool = False
    since: str = ""
    removed: str = ""


@cache
def sections() -> Mapping[str, Mapping[str, Key]]:
    """The keys of every section; the key `*` stands for any other."""
    table = json.loads((files(__package__) / "keys.json").read_text("utf-8"))
    return {
        section: {name: _key(entry) for name, entry in keys.items()}
        for section, keys in table.items()
    }


def places_of(name: str) -> tuple[str, ...]:
    """The sections that have a key of that name."""
    return tuple(section for section, keys in sections().items() if name in keys)


def _key(entry: str | Mapping[str, Any]) -> Key:
    if isinstance(entry, str):
        return Key((entry,))
    kinds = entry["is"]
    return Key(
        kinds=(kinds,) if isinstance(kinds, str) else tuple(kinds),
        least=entry.get("min"),
        most=entry.get("max"),
        above=entry.get("above"),
        words=tuple(entry.get("words", ())),
        any_case=entry.get("any_case", False),
        is_path=entry.get("path", False),
        since=entry.get("since", ""),
        removed=entry.get("removed", ""),
    )


def shown(section: str) -> str:
    """Where a section of the table stands in a config, for a person."""
    within = {
        ROOT: "the top level",
        "model": "model",
        "search": "search",
        "speculative": "speculative",
        "engine": "engine",
        "session_options": "session_options",
        "run_options": "run_options",
        "provider": "an entry of provider_options",
        "device_filtering_options": "device_filtering_options",
        "decoder.pipeline": "a stage of model.decoder.pipeline",
        "vision.pipeline": "a stage of model.vision.pipeline",
        "shared_initializers": "an entry of shared_initializers",
        "state_groups": "an entry of model.decoder.state_groups",
        "state_update": "state_update of model.decoder.state_groups",
    }
    if section.startswith("engine."):
        return section
    return within.get(section, f"model.{section}")


def is_older(version: str, other: str) -> bool:
    """Whether a version such as `0.17.1` comes before another one; False for what is none."""
    return _numbers(version) < _numbers(other) if _numbers(version) else False


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, release.group().split("."))) if release else ()
