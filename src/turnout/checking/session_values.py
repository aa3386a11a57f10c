"""Values of session and run options that onnxruntime refuses, each tried (onnxruntime 1.32)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from turnout.bundle.jsontext import Path
from turnout.checking import provider_rules as rules
from turnout.checking.drafts import Draft
from turnout.checking.holders import Holder
from turnout.checking.subject import Subject

_MOST_KEY, _MOST_VALUE = 1024, 8192
_RUN_OPTIONS = "run_options"
_INT32 = 1 << 31


def _severity(value: object) -> bool:
    return not isinstance(value, int | float) or -1 <= value <= 4


def _block_base(value: object) -> bool:
    """As C++'s `stoi` reads it: digits, whatever follows them."""
    found = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]{1,20})", str(value))
    return found is not None and -_INT32 <= int(found[1]) < _INT32


def _partitioning(value: object) -> bool:
    parts = str(value).split(",")
    return parts == [""] or (len(parts) == 2 and (not parts[0] or parts[0].isdecimal()))


def _arenas(value: object) -> bool:
    parts = str(value).split(";") if value else []
    return all(re.fullmatch(r"(cpu|gpu)(:[0-9]{1,4})?", part) for part in parts)


# What is taken, in a test and in words.
_Known = tuple[Callable[[object], bool], str]
_SESSION: Mapping[str, _Known] = {
    "log_severity_level": (_severity, "-1 to 4"),
    "optimization.minimal_build_optimizations": (
        lambda value: value in {"", "apply"},
        'apply, or ""',
    ),
    "session.dynamic_block_base": (_block_base, "a number"),
    "session.resource_cuda_partitioning_settings": (_partitioning, "KILOBYTES,FILE"),
}
_RUN: Mapping[str, _Known] = {
    "memory.enable_memory_arena_shrinkage": (_arenas, "such as cpu:0, or cpu:0;gpu:0"),
    "terminate_session": (lambda value: value == "0", "0; 1 ends every run before it starts"),
    "gpu_graph_id": (_block_base, "a number"),
}


def check(subject: Subject, found: tuple[Holder, ...]) -> Iterator[Draft]:
    """Drafts about values that keep a stage from loading or running."""
    for holder in found:
        if holder.stages:
            yield from _refused(holder.path, holder.options, _SESSION)
            yield from _format(subject, holder)
    for stage in subject.stages:
        path = (*stage.path, _RUN_OPTIONS)
        options = subject.config.get(path)
        if stage.in_decoder and isinstance(options, dict):
            yield from _refused(path, options, _RUN)


def _refused(
    path: Path, options: Mapping[str, Any], known: Mapping[str, _Known]
) -> Iterator[Draft]:
    for key, value in options.items():
        takes, expected = known.get(key, (None, None))
        length = len(key.encode())
        if not 0 < length <= _MOST_KEY:
            yield _draft((*path, key), f"a name of {length} bytes", f"1 to {_MOST_KEY} bytes")
        elif isinstance(value, str) and len(value.encode()) > _MOST_VALUE:
            found = f"a value of {len(value.encode())} bytes"
            yield _draft((*path, key), found, f"at most {_MOST_VALUE} bytes")
        elif takes is not None and not takes(value):
            yield _draft((*path, key), f"{key}={str(value)[:80]}", expected)


def _format(subject: Subject, holder: Holder) -> Iterator[Draft]:
    """An ONNX file that is to be read as another format."""
    key = "session.load_model_format"
    if holder.options.get(key) == "ORT" and any(
        stage.name in subject.graphs for stage in holder.stages
    ):
        yield _draft((*holder.path, key), f"{key}=ORT, and an ONNX file", "ONNX, or nothing")


def _draft(path: Path, found: str, expected: str | None) -> Draft:
    return Draft(
        rules.VALUE,
        path,
        f"onnxruntime refuses this {path[-2]} entry.".replace("_options", " options"),
        found=found,
        expected=expected,
        fix="correct the value, or remove the option",
    )
