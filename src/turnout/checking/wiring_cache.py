"""Checks of the key-value cache: its name patterns, and that what is read is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from turnout.bundle import GraphFile
from turnout.bundle.modeltypes import DECODER_TYPES, LAYER_TYPED, PIPELINE
from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject
from turnout.checking.wiring_graphs import NO_SUCH_INPUT, NO_SUCH_OUTPUT, inputs_of, outputs_of
from turnout.checking.wiring_names import (
    DECODER,
    CacheNames,
    Pattern,
    cache_names,
    elsewhere,
    given_inputs,
    listed,
    looks_cached,
    role,
)
from turnout.checking.wiring_stages import (
    PHASES,
    WHEN,
    Wiring,
    decoder_inputs,
    flat_of,
    required_inputs,
)

NOT_WRITTEN = Rule(
    "T215",
    "error",
    "graph",
    "A cache that is read and not written",
    why="The runtime gives `present` tensors to the stages that list them, and hands them back as"
    " `past`. Where no stage of a phase lists one, nothing fails: the next token reads memory that"
    " nobody wrote, and the answer is nonsense.",
    bad='{"model": {"decoder": {"pipeline": [{"transformer": {"inputs": ["past_key_values.0.key"],'
    ' "outputs": ["hidden"]}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"transformer": {"inputs":'
    ' ["past_key_values.0.key"], "outputs": ["hidden", "present.0.key"]}}]}}}',
)
PATTERN = Rule(
    "T216",
    "error",
    "graph",
    "Cache names that no pattern fits",
    why="The runtime finds the cache by `past_key_names`, `past_value_names`, `present_key_names`"
    " and `present_value_names`, in which `%d` is the layer's number. Tensors of other names are"
    " not given ('Missing Input'), and a pattern without `%d`, or one for keys and values alike, is"
    " one tensor for several; where only one side has the two exchanged, the answer is nonsense."
    " The type gpt2 keeps keys and values of a layer in one tensor, by `past_names` and"
    " `present_names`.",
    bad='{"model": {"decoder": {"inputs": {"past_key_names": "past_keys.%d"}}}}, where the graph'
    " takes past_key_values.0.key",
    good='{"model": {"decoder": {"inputs": {"past_key_names": "past_key_values.%d.key"}}}}',
)
RULES = (NOT_WRITTEN, PATTERN)
# The runtime composes a name in a buffer of 64 bytes, its end included.
_MAX_NAME = 63
# The one type that keeps keys and values of a layer in one tensor.
_JOINED = "gpt2"
_SIDES = (
    ("inputs", "past_key_names"),
    ("inputs", "past_value_names"),
    ("outputs", "present_key_names"),
    ("outputs", "present_value_names"),
)


def check(subject: Subject, wiring: Wiring | None) -> Iterator[Finding]:
    """Findings about the key-value cache of a decoder that reads tokens."""
    kind = subject.config.model_type
    cache = cache_names(subject.config)
    if kind == _JOINED:
        yield from _joined(subject)
        return
    yield from _patterns(subject, cache)
    if kind == PIPELINE or kind in DECODER_TYPES:
        yield from _nothing_named(subject, cache)
        yield from _crossed(subject, cache)
    if wiring is not None and kind == PIPELINE:
        yield from _unmatched(subject, cache, _needs(wiring))
        yield from _unwritten(subject, wiring, cache)
    elif wiring is None and kind in DECODER_TYPES:
        flat = flat_of(subject)
        graph = subject.graphs.get(flat.name) if flat else None
        if graph is not None:
            yield from _unmatched(subject, cache, required_inputs(graph))
            yield from _flat(subject, cache, graph)


def _patterns(subject: Subject, cache: CacheNames) -> Iterator[Finding]:
    for (side, key), pattern in zip(_SIDES, (*cache.past, *cache.present), strict=True):
        written = subject.config.get((*DECODER, side, key))
        if not isinstance(written, str) or not written:
            continue
        place = subject.place((*DECODER, side, key))
        fits = pattern.found if key == "past_key_names" else pattern.numbered
        if not fits or pattern.text.count("%") > 1:
            yield PATTERN.at(
                place,
                f"{key} has no single place for the layer's number.",
                found=written[:120],
                expected="one %d",
                fix="write %d where the graphs have the number of the layer",
            )
        elif len(pattern.name(0).encode()) > _MAX_NAME:
            yield PATTERN.at(
                place,
                f"{key} is too long for the runtime.",
                found=f"{len(pattern.name(0).encode())} bytes",
                expected=f"at most {_MAX_NAME}, the number included",
            )


def _nothing_named(subject: Subject, cache: CacheNames) -> Iterator[Finding]:
    """Patterns that name no tensor, or that of another one."""
    for side, key in _SIDES:
        if subject.config.get((*DECODER, side, key)) == "":
            yield PATTERN.at(
                subject.place((*DECODER, side, key)),
                f"{key} is empty.",
                found='""',
                expected="the graphs' name, with %d for the layer",
                fix="write the name, or leave the key out for the default",
            )
    keys, values = cache.present
    if keys.numbered and keys == values:
        yield PATTERN.at(
            subject.place((*DECODER, "outputs", "present_value_names")),
            "Keys and values are written to tensors of one name.",
            found=values.text[:120],
            expected="another name than present_key_names",
            fix="write the graphs' name for values",
        )


def _crossed(subject: Subject, cache: CacheNames) -> Iterator[Finding]:
    """Keys read as values, or written as such, but not both."""
    past, present = map(_is_crossed, (cache.past, cache.present))
    if past == present:
        return
    side, key = ("inputs", "past_key_names") if past else ("outputs", "present_key_names")
    keys, values = cache.past if past else cache.present
    yield PATTERN.at(
        subject.place((*DECODER, side, key)),
        "The names of keys and values are exchanged, on one side alone.",
        found=f"keys are {keys.text[:120]}, values {values.text[:120]}",
        expected="keys that are read where keys were written",
        fix="exchange the two names",
    )


def _is_crossed(names: tuple[Pattern, Pattern]) -> bool:
    """Whether the pattern of keys says value, and that of values key, where the two differ."""
    keys, values = names[0].text, names[1].text
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(keys, values, strict=False))
    same = len(list(alike))
    return keys[same:].startswith("value") and values[same:].startswith("key")


def _joined(subject: Subject) -> Iterator[Finding]:
    """Of the type that joins keys and values: names of the joined tensors that are missing."""
    flat = flat_of(subject)
    graph = subject.graphs.get(flat.name) if flat else None
    if graph is None or subject.config.get(("engine",)) is not None:
        return  # what runs by the engine has caches of another kind
    there = {"inputs": inputs_of(graph), "outputs": outputs_of(graph)}
    for side, key in (("inputs", "past_names"), ("outputs", "present_names")):
        name = Pattern(role(subject.config, side, key)).name(0)
        if name not in there[side]:
            yield PATTERN.at(
                subject.place((*DECODER, side, key)),
                f"The type {_JOINED} wants keys and values of a layer joined in one tensor.",
                found=f"{key}: {name[:120]}" if name else f"no {key}",
                expected=f"{key}, as the graph names such tensors",
                fix='set model.type to "decoder", if the graph has them apart',
            )
            return


def _needs(wiring: Wiring) -> list[str]:
    return [name for wire in wiring.wires for name in wire.needs if not wiring.givers(name)]


def _unmatched(subject: Subject, cache: CacheNames, names: list[str]) -> Iterator[Finding]:
    """Cache-like inputs that nothing gives, one finding for each pattern that they follow."""
    given = given_inputs(subject.config, decoder_inputs(subject) | set(names))
    taken = given | elsewhere(subject.config, names)
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if name not in taken and looks_cached(name):
            groups.setdefault(re.sub(r"\d+", "%d", name, count=1), []).append(name)
    for pattern, members in groups.items():
        # Both words stand in names such as past_key_values.0.key; the last one tells.
        last = pattern.lower().rfind("val") > pattern.lower().rfind("key")
        key = "past_value_names" if last else "past_key_names"
        part = cache.past[key == "past_value_names"]
        yield PATTERN.at(
            subject.place((*DECODER, "inputs", key)),
            f"The runtime does not give {listed(members, 3)}: no pattern fits.",
            found=part.text[:120],
            expected=pattern[:120],
            fix=f'write "{key}": "{pattern[:120]}" into decoder.inputs',
        )


def _unwritten(subject: Subject, wiring: Wiring, cache: CacheNames) -> Iterator[Finding]:
    read = {
        name
        for wire in wiring.wires
        if wire.stage.run_on_token_gen
        for name in wire.needs
        if name in wiring.given
    }
    said: set[str] = set()
    for phase in PHASES:
        running = [wire for wire in wiring.wires if wire.runs(phase)]
        written = {name for wire in running for name in wire.stage.outputs}
        for part, key in enumerate(("present_key_names", "present_value_names")):
            pattern, past = cache.present[part], cache.past[part]
            wanted = {pattern.name(n): past.name(n) for n in cache.layers(read)}
            wanted = {name: source for name, source in wanted.items() if source in read}
            gone = [name for name in wanted if name not in written and name not in said]
            sources = {wanted[name] for name in gone}
            readers = [w for w in running if sources & set(w.stage.inputs)]
            if not gone or not readers:
                continue  # what has nothing to do with the cache is said elsewhere
            said |= set(gone)
            # All of them: the pattern is to blame, else the stage.
            path = (
                (*DECODER, "outputs", key)
                if len(gone) == len(wanted)
                else (*readers[0].stage.path, "outputs")
            )
            yield NOT_WRITTEN.at(
                subject.place(path),
                f"No stage gives {listed(gone, 3)} {WHEN[phase]}.",
                found=f"{key}: {pattern.text[:120]}",
                expected="an output of a stage for each layer whose past is read",
                fix=f"write {key} as the stages name these outputs, or add them to outputs",
            )


def _flat(subject: Subject, cache: CacheNames, graph: GraphFile) -> Iterator[Finding]:
    """Names that the runtime composes for each layer, and that the graph does not have."""
    inputs, outputs = set(inputs_of(graph)), set(outputs_of(graph))
    layers = cache.layers(inputs)
    wanted = [(NO_SUCH_INPUT, "inputs", "past_value_names", cache.past[1], inputs)]
    # Types with layers of several kinds know their layers otherwise.
    if subject.config.model_type not in LAYER_TYPED:
        wanted += [
            (NO_SUCH_OUTPUT, "outputs", "present_key_names", cache.present[0], outputs),
            (NO_SUCH_OUTPUT, "outputs", "present_value_names", cache.present[1], outputs),
        ]
    for rule, side, key, pattern, there in wanted:
        if not pattern.numbered:
            continue  # said above
        gone = [pattern.name(layer) for layer in layers if pattern.name(layer) not in there]
        if gone:
            yield rule.at(
                subject.place((*DECODER, side, key)),
                f"{graph.path.name} has no {side[:-1]} {listed(gone, 3)}.",
                found=f"{key}: {pattern.text[:120]}",
                expected=listed(sorted(name for name in there if looks_cached(name)), 4) or None,
                fix=f"write {key} as the graph names its {side}, with %d for the layer",
            )
