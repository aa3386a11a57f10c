"""Configs along the table of keys: values of every kind, at and beyond every bound."""

from __future__ import annotations

import json
import random
from typing import Any

from turnout.checking import keys

_NUMBERS = (
    "0", "1", "-1", "8", "9", "16", "17", "1.5", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "9223372036854775807", "9223372036854775808", "1e30", "1e308", "-0", "0.5",
    "1.0", "08", "-inf", "-nan", "1e", "3.4e38", "3.5e38", "1e-50",
)  # fmt: skip
_STRINGS = (
    '"x"', '""', '"/a"', '"../b"', '"a\\\\..\\\\b"', '"ORT_ENABLE_ALL"', '"CPU"', '"gpu"', '"none"',
    '"lattice"', '"paged_kv"', '"fixed"', '"nemotron_speech"', '"a\\q"', '"..."', '"a/.."',
)  # fmt: skip
_OTHERS = (
    "true", "false", "null", "t", "f", "n", "{}", "[]", "[1]", '["x"]', "[{}]", "[[]]", '{"a":1}',
    '{"a":"b"}', '{"a":{}}', "[null]", "[t]",
)  # fmt: skip
_MOST_DEEP = 6


def random_config(rng: random.Random) -> str:
    """A config that the runtime takes about every second time."""
    if rng.random() < 0.3:
        return _with_groups(rng)
    body = _object(rng, keys.ROOT, 0)[1:-1]
    parts = ['"model":{"type":"llama","context_length":8}'] if rng.random() < 0.95 else []
    parts += [body] if body else []
    return "{" + ",".join(parts) + "}" + (rng.choice("x \0{") if rng.random() < 0.02 else "")


def _value(rng: random.Random, kind: str, depth: int) -> str:
    if rng.random() < 0.25 or depth > _MOST_DEEP:
        return rng.choice(_NUMBERS + _STRINGS + _OTHERS)
    if kind.startswith("{*"):
        inner = kind[2:-1] if kind[2:-1] in {"string", "int"} else f"{{{kind[2:-1]}}}"
        names = [
            rng.choice(["a", "b", "OpenVINO", "cpu", "QNN", ""]) for _ in range(rng.randrange(4))
        ]
        return "{" + ",".join(f'"{name}":{_value(rng, inner, depth + 1)}' for name in names) + "}"
    if kind.startswith("{"):
        return _object(rng, kind[1:-1], depth + 1)
    if kind.startswith("["):
        items = [_value(rng, kind[1:-1], depth + 1) for _ in range(rng.randrange(4))]
        return "[" + ",".join(items) + "]"
    if kind in {"int", "int64", "number"}:
        return rng.choice(_NUMBERS)
    return rng.choice(["true", "false"]) if kind == "bool" else rng.choice(_STRINGS)


def _object(rng: random.Random, section: str, depth: int) -> str:
    table = keys.sections()[section]
    members = []
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        name = rng.choice(list(table))
        key = table[name]
        value = _value(rng, rng.choice(key.kinds), depth)
        if key.words and rng.random() < 0.7:
            value = json.dumps(rng.choice(key.words))
        if name == keys.ANY or rng.random() < 0.03:
            name = rng.choice(["zzz", "Filename", "type", "filename"])
        members.append(f"{json.dumps(name)}:{value}")
    if members and rng.random() < 0.1:
        members.append(rng.choice(members))
    return "{" + ",".join(members) + "}"


def _with_groups(rng: random.Random) -> str:
    """State groups, which the runtime checks against one another."""
    groups = []
    for _ in range(rng.randrange(4)):
        group: dict[str, Any] = {}
        if rng.random() < 0.95:
            group["kind"] = rng.choice(["paged_kv", "fixed_conv", "fixed_recurrent"])
        if rng.random() < 0.95:
            group["layer_ids"] = [rng.randint(-1, 4) for _ in range(rng.randrange(4))]
        if rng.random() < 0.4:
            update = {
                "capacity": rng.randint(0, 9),
                "key_head_count": rng.randint(0, 2),
                "enabled": rng.random() < 0.5,
            }
            group["state_update"] = {k: v for k, v in update.items() if rng.random() < 0.7}
        groups.append(group)
    decoder: dict[str, Any] = {"num_hidden_layers": 4, "state_groups": groups}
    if rng.random() < 0.3:
        decoder["state_update_capacity"] = rng.randint(-1, 9)
    return json.dumps({"model": {"type": "llama", "context_length": 8, "decoder": decoder}})
