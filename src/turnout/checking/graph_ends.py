"""Checks of inputs and outputs of a decoder's graphs against what the runtime gives and takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from turnout.bundle import Bundle, GraphFile
from turnout.bundle.graph import ValueInfo
from turnout.checking.findings import Finding
from turnout.checking.graph_rules import BATCH, GROWN, TYPES, UNEVEN
from turnout.checking.locating import relative_name
from turnout.checking.sizes_caches import (
    HEADS,
    LENGTH,
    SIZE,
    Cache,
    caches,
    decoder_graphs,
    fixed,
    grows_by_concat,
    max_length,
    reads_tokens,
)
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import WINDOW, number, role

_EXPORT = "export the graph again"
_TOKENS = ("input_ids", "attention_mask", "position_ids")
_LENGTHS = ("past_sequence_length", "current_sequence_length", "total_sequence_length")
_INTEGERS = ("int32", "int64")
_LOGITS = ("float32", "float16", "bfloat16")
_AXES = ((HEADS, "heads"), (SIZE, "sizes of a head"))


def check(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    """Findings about inputs and outputs that the runtime itself gives or takes."""
    if not reads_tokens(subject):
        return
    every, passed = caches(subject), _passed(subject)
    for stage, graph in decoder_graphs(subject):
        name = relative_name(bundle, graph.path)
        found = [cache for cache in every if cache.stage.name == stage.name]
        yield from _batch(subject, name, graph, found, passed)
        yield from _types(subject, name, graph)
        yield from _caches(name, found)
    yield from _lengths(subject, bundle, every)


def _batch(
    subject: Subject, name: str, graph: GraphFile, found: list[Cache], passed: set[str]
) -> Iterator[Finding]:
    asked = max(1, number(subject.config, "search", "batch_size") or 1)
    asked *= max(1, number(subject.config, "search", "num_beams") or 1)
    roles = {role(subject.config, "inputs", key) for key in _TOKENS}
    values = [value for value in graph.inputs if value.name in roles and _rank(value) == 2]
    values += [value for value in graph.inputs if value.name in passed]
    values += [cache.read for cache in found if _rank(cache.read) == 4]
    if not any(fixed(value, 0) for value in graph.inputs):
        # Where inputs fix it the runtime goes by them: outputs may say another number.
        logits = role(subject.config, "outputs", "logits")
        values += [v for v in graph.outputs if v.name == logits and _rank(v) == 3]
        values += [cache.written for cache in found if cache.written and _rank(cache.written) == 4]
    other = [value for value in values if fixed(value, 0) not in {None, asked}]
    if other:
        yield BATCH.at(
            name,
            f"{name} fixes the number of sequences of {len(other)} inputs and outputs.",
            found=f"{other[0].name[:100]} {_shown(other[0])}",
            expected=f"{asked} or any number",
            fix="export the graph with a batch of any size",
        )


def _passed(subject: Subject) -> set[str]:
    """What stages hand on with one row for each sequence, by what they call that number."""
    ids = role(subject.config, "inputs", "input_ids")
    found: set[str] = set()
    for _, graph in decoder_graphs(subject):
        names = {
            v.shape[0]
            for v in graph.inputs
            if v.shape and ((v.name == ids and _rank(v) == 2) or v.name in found)
        }
        found |= {
            v.name
            for v in graph.outputs
            if v.shape and _rank(v) == 3 and isinstance(v.shape[0], str) and v.shape[0] in names
        }
    return found


def _rank(value: ValueInfo | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _shown(value: ValueInfo) -> str:
    sizes = ", ".join(str(size)[:40] for size in (value.shape or ())[:8])
    return f"[{sizes}] of {value.dtype}"


def _types(subject: Subject, name: str, graph: GraphFile) -> Iterator[Finding]:
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    for key in _LENGTHS:
        value = inputs.get(role(subject.config, "inputs", key))
        if value is not None and any(fixed(value, at) not in {None, 1} for at in range(2)):
            yield _of_type(name, value, "int32, one number")
    expected: list[tuple[dict[str, ValueInfo], str, str, tuple[str, ...]]]
    expected = [(inputs, "inputs", key, _INTEGERS) for key in _TOKENS]
    expected += [(inputs, "inputs", key, ("int32",)) for key in _LENGTHS]
    expected += [(outputs, "outputs", "logits", _LOGITS)]
    given = {}
    for values, side, key, types in expected:
        value = values.get(role(subject.config, side, key))
        if value is None:
            continue
        given[key] = value.dtype
        if value.dtype not in types:
            yield _of_type(name, value, " or ".join(types))
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    if mask != positions and mask in _INTEGERS and positions in _INTEGERS:
        yield _of_type(name, inputs[role(subject.config, "inputs", "position_ids")],
                       f"{mask}, as attention_mask is")  # fmt: skip


def _of_type(name: str, value: ValueInfo, expected: str) -> Finding:
    return TYPES.at(
        name,
        f"The runtime has no {value.name[:100]!r} of the type that {name} wants.",
        found=_shown(value),
        expected=expected,
        fix=_EXPORT,
    )


def _caches(name: str, found: list[Cache]) -> Iterator[Finding]:
    types = {cache.read.dtype for cache in found}
    types |= {cache.written.dtype for cache in found if cache.written is not None}
    if len(types) > 1:
        yield _uneven(name, "types", " and ".join(sorted(types)[:8]))
    plain = [cache for cache in found if cache.plain]
    for _, layer in groupby(sorted(plain, key=_order), key=lambda cache: cache.layer):
        parts = list(layer)
        for axis, what in _AXES:
            sizes = {cache.size(axis) for cache in parts} - {None}
            if len(sizes) > 1:
                yield _uneven(name, what, f"{sorted(map(str, sizes))} in layer {parts[0].layer}")


def _order(cache: Cache) -> tuple[int, bool]:
    return cache.layer, not cache.is_key


def _uneven(name: str, what: str, found: str) -> Finding:
    return UNEVEN.at(
        name,
        f"The caches of {name} have different {what}.",
        found=found,
        expected="the same for all",
        fix=_EXPORT,
    )


def _lengths(subject: Subject, bundle: Bundle, every: list[Cache]) -> Iterator[Finding]:
    """Lengths other than the one that the runtime makes all caches of.

    It is the one that all keys fix, each as the first graph that reads it declares it. Else
    caches grow, or are of `max_length` where past and present share a buffer.
    """
    if not all(cache.plain or cache.read.shape is None for cache in every):
        return
    if subject.config.get((*WINDOW, "layers")):
        return
    keys: dict[int, int | None] = {}
    for cache in every:
        if cache.is_key:
            keys.setdefault(cache.layer, cache.size(LENGTH))
    made = set(keys.values())
    length = made.pop() if len(made) == 1 else None
    is_fixed = length is not None
    if length is None and subject.config.search.get("past_present_share_buffer") is True:
        length = max_length(subject)
    for name, found in _by_graph(bundle, subject, every):
        values = [value for cache in found for value in (cache.read, cache.written) if value]
        other = [value for value in values if fixed(value, LENGTH) not in {None, length}]
        if other:
            yield UNEVEN.at(
                name,
                f"{name} fixes a length of caches that the runtime does not make.",
                found=f"{other[0].name[:100]} {_shown(other[0])}",
                expected=f"a length of {length or 'any size'}",
                fix=_EXPORT,
            )
        elif is_fixed and subject.config.get(WINDOW) is None:
            yield from _grown(subject, name, found)


def _by_graph(
    bundle: Bundle, subject: Subject, every: list[Cache]
) -> Iterator[tuple[str, list[Cache]]]:
    for _, group in groupby(every, key=lambda cache: cache.stage.name):
        found = list(group)
        yield relative_name(bundle, subject.graphs[found[0].stage.name].path), found


def _grown(subject: Subject, name: str, found: list[Cache]) -> Iterator[Finding]:
    graph = subject.graphs[found[0].stage.name]
    grown = [c for c in found if c.size(LENGTH) is not None and fixed(c.written, LENGTH) is None]
    if len(grown) == len(found) and grows_by_concat(graph):
        yield GROWN.at(
            name,
            f"{name} grows caches of fixed length by Concat.",
            found=f"{grown[0].read.name[:100]} {_shown(grown[0].read)}",
            expected="a length of any size",
            fix=_EXPORT,
        )
