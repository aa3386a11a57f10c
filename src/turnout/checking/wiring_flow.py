"""Checks of what flows from stage to stage of a pipeline, when, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from turnout.bundle.jsontext import Path
from turnout.bundle.modeltypes import PIPELINE
from turnout.checking.findings import Finding, Place, Rule
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import (
    DECODER,
    MAX_PATTERNS,
    Pattern,
    listed,
    looks_cached,
    matches,
    number,
    role,
    roles,
    slides_inputs,
    unfed_lengths,
)
from turnout.checking.wiring_stages import PHASES, RUN_KEYS, WHEN, Phase, Wire, Wiring

NOTHING_ASKED = Rule(
    "T200",
    "error",
    "graph",
    "A stage that is asked for nothing",
    why="The runtime asks a stage of a pipeline for its `outputs`, and for nothing else; without"
    " any the first prompt fails: 'At least one output should be requested'.",
    bad='{"model": {"decoder": {"pipeline": [{"lm_head": {"inputs": ["hidden"]}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"lm_head": {"inputs": ["hidden"],'
    ' "outputs": ["logits"]}}]}}}',
)
UNPROVIDED = Rule(
    "T201",
    "error",
    "graph",
    "An input that nothing provides",
    why="The runtime gives token ids, positions, masks, lengths and caches, under the names of"
    " `decoder.inputs`; all else must be an output of an earlier stage. Otherwise the first"
    " prompt fails: 'Missing Input'.",
    bad='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden"]}},'
    ' {"transformer": {"inputs": ["inputs_embeds"]}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden"]}},'
    ' {"transformer": {"inputs": ["hidden"]}}]}}}',
)
ORDER = Rule(
    "T202",
    "error",
    "graph",
    "An input that only a later stage provides",
    why="Stages run in the order in which the pipeline names them. What a later stage gives is"
    " not there yet: the first prompt fails: 'Missing Input'.",
    bad='{"model": {"decoder": {"pipeline": [{"lm_head": {"inputs": ["normed"]}},'
    ' {"transformer": {"outputs": ["normed"]}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"transformer": {"outputs": ["normed"]}},'
    ' {"lm_head": {"inputs": ["normed"]}}]}}}',
)
OTHER_PHASE = Rule(
    "T203",
    "error",
    "graph",
    "An input from a stage that does not run then",
    why="Prompts of more than one token run the stages with `run_on_prompt`; generated tokens, and"
    " prompts of one token, those with `run_on_token_gen`. An input from a stage that is left out"
    " is missing, or is what that stage gave for the prompt, which fails or gives nonsense.",
    bad='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden"],'
    ' "run_on_token_gen": false}}, {"transformer": {"inputs": ["hidden"]}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden"]}},'
    ' {"transformer": {"inputs": ["hidden"]}}]}}}',
)
NO_LOGITS = Rule(
    "T204",
    "error",
    "graph",
    "No stage gives the logits",
    why="Some stage must give `decoder.outputs.logits` for prompts, and some stage for tokens. A"
    " phase without one does not fail: the runtime then samples from what its buffer last held,"
    " and the answer is nonsense.",
    bad='{"model": {"decoder": {"pipeline": [{"lm_head": {"outputs": ["logits"],'
    ' "run_on_token_gen": false}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"lm_head": {"outputs": ["logits"]}}]}}}',
)
NEVER_RUNS = Rule(
    "T205",
    "warning",
    "graph",
    "A stage that never runs",
    why="With both `run_on_prompt` and `run_on_token_gen` false a stage is loaded, takes its"
    " memory, and never runs.",
    bad='{"model": {"decoder": {"pipeline": [{"context": {"run_on_prompt": false,'
    ' "run_on_token_gen": false}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"context": {"run_on_token_gen": false}}]}}}',
)
UNUSED_OUTPUT = Rule(
    "T206",
    "info",
    "graph",
    "An output that nobody takes",
    why="The stage computes it for every prompt and token, and no other stage has it as an input."
    " Leaving it out of `outputs` alone makes it worse (T250): the graph must not have it, either.",
    bad='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden", "extra"]}},'
    ' {"transformer": {"inputs": ["hidden"]}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden"]}},'
    ' {"transformer": {"inputs": ["hidden"]}}]}}}',
)
HEAD_SKIPPED = Rule(
    "T207",
    "error",
    "graph",
    "`is_lm_head` on a stage that every window needs",
    why="With `sliding_window` the runtime leaves out stages marked `is_lm_head` for all windows of"
    " a prompt but the last. Where they also fill the cache or feed other stages, prompts of more"
    " than one window fail or are answered with nonsense.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 64}, "pipeline": [{"context":'
    ' {"inputs": ["past_key_values.0.key"], "outputs": ["logits", "present.0.key"],'
    ' "is_lm_head": true}}]}}}',
    good='{"model": {"decoder": {"sliding_window": {"window_size": 64}, "pipeline": [{"lm_head":'
    ' {"outputs": ["logits"], "is_lm_head": true}}]}}}',
)
HEAD_MARK = Rule(
    "T208",
    "info",
    "graph",
    "`is_lm_head` is missing or elsewhere than on the head",
    why="The mark only matters with `sliding_window`: the marked stage then runs for the last"
    " window of a prompt alone. Without it the head, a product with the whole vocabulary, runs"
    " for every window.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 64}, "pipeline": [{"lm_head":'
    ' {"outputs": ["logits"]}}]}}}',
    good='{"model": {"decoder": {"sliding_window": {"window_size": 64}, "pipeline": [{"lm_head":'
    ' {"outputs": ["logits"], "is_lm_head": true}}]}}}',
)
RESET = Rule(
    "T209",
    "error",
    "graph",
    "`reset_session_idx` beyond the stages",
    why="It is the number, from 0, of the stage whose session is closed before this one runs. The"
    " first run fails where there is no such stage: 'Invalid reset_session_idx'.",
    bad='{"model": {"decoder": {"pipeline": [{"context": {"reset_session_idx": 7}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"context": {"reset_session_idx": -1}}]}}}',
)
FORWARDER = Rule(
    "T210",
    "warning",
    "graph",
    "`output_names_forwarder` has no effect",
    why="It renames outputs of its stage for later ones. A key that is not among the stage's"
    " `outputs`, or an output that the runtime keeps for itself, such as logits and cache, is"
    " silently ignored.",
    bad='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden"],'
    ' "output_names_forwarder": {"hiden": "inputs_embeds"}}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden"],'
    ' "output_names_forwarder": {"hidden": "inputs_embeds"}}}]}}}',
)
RULES = (
    NOTHING_ASKED,
    UNPROVIDED,
    ORDER,
    OTHER_PHASE,
    NO_LOGITS,
    NEVER_RUNS,
    UNUSED_OUTPUT,
    HEAD_SKIPPED,
    HEAD_MARK,
    RESET,
    FORWARDER,
)
# Keys of other sections that name outputs of the decoder.
_TAKERS: tuple[Path, ...] = (
    ("model", "mtp", "main_hidden_states"),
    ("model", "dflash2", "main_aux_hidden_states"),
    ("model", "dspark", "main_aux_hidden_states"),
)


def check(subject: Subject, wiring: Wiring | None) -> Iterator[Finding]:
    """Findings about the flow in a pipeline; none for a flat bundle."""
    if wiring is None:
        return
    # Other types put images and sound between the stages; what they need is not all known.
    if subject.config.model_type == PIPELINE:
        yield from _inputs(subject, wiring)
        yield from _unused(subject, wiring)
    yield from _logits(subject, wiring)
    yield from _heads(subject, wiring)
    for wire in wiring.wires:
        yield from _stage(subject, wiring, wire)


def _inputs(subject: Subject, wiring: Wiring) -> Iterator[Finding]:
    missing: dict[tuple[int, str], list[Phase]] = {}
    for phase in PHASES:
        for wire, name in wiring.missing(phase):
            missing.setdefault((wire.index, name), []).append(phase)
    names = {name for _, name in missing}
    # Caches of another name are said once for all layers, by the checks of caches; state groups
    # have bindings that are not read here.
    groups = bool(subject.config.get((*DECODER, "state_groups")))
    ignored = {name for name in names if groups or looks_cached(name)}
    odd_lengths = unfed_lengths(subject.config, names)
    for (index, name), phases in missing.items():
        wire = wiring.wires[index]
        if name in odd_lengths:
            yield _length(subject, wire, name)
        elif wiring.givers(name) or name not in ignored:
            yield _missing(subject, wiring, wire, name, phases)


def _length(subject: Subject, wire: Wire, name: str) -> Finding:
    slides = slides_inputs(subject.config)
    pair = "total_sequence_length" if slides else "current_sequence_length"
    fix = "name both under decoder.inputs as the graphs do"
    return UNPROVIDED.at(
        _place_of(subject, wire, "inputs", name),
        f"The runtime does not give {name!r} to the stage {wire.name!r}.",
        expected=f"past_sequence_length and {pair}, both inputs of some stage",
        fix=fix if slides else f"{fix}, or add the sliding_window that they were made for",
    )


def _missing(
    subject: Subject, wiring: Wiring, wire: Wire, name: str, phases: list[Phase]
) -> Finding:
    place = _place_of(subject, wire, "inputs", name)
    givers = [] if name in wiring.kept else wiring.givers(name)
    if any(giver.index < wire.index for giver in givers):
        keys = " and ".join(RUN_KEYS[phase] for phase in phases)
        return OTHER_PHASE.at(
            place,
            f"The stage {wire.name!r} needs {name!r} {WHEN[phases[0]]};"
            " no stage before it that gives it runs then.",
            found=f"given by {listed(giver.name for giver in givers)}",
            expected=f"a stage that gives it, with {keys}",
            fix=f"set {keys} for a stage that gives it",
        )
    if givers:
        names = listed(giver.name for giver in givers)
        return ORDER.at(
            place,
            f"The stage {wire.name!r} needs {name!r} before any stage gives it.",
            found=f"given by {names}",
            expected=f"given by a stage before {wire.name!r}",
            fix="put the stages into the order in which they feed each other",
        )
    away = [other for other in wiring.wires if name in other.stage.outputs]
    return UNPROVIDED.at(
        place,
        f"Nothing provides the input {name!r} of the stage {wire.name!r}.",
        found=f"{away[0].name!r} forwards it as {away[0].forwarded.get(name)!r}" if away else None,
        expected="an input that the runtime gives, or an output of an earlier stage",
        fix="correct the name here, or where it is given: a stage's outputs, or decoder.inputs",
    )


def _unused(subject: Subject, wiring: Wiring) -> Iterator[Finding]:
    taken = {name for wire in wiring.wires for name in wire.stage.inputs} | wiring.kept
    taken |= set(roles(subject.config, "outputs").values())
    taken |= {str(subject.config.get(path)) for path in _TAKERS}
    patterns = [Pattern(text) for text in taken if "%d" in text][:MAX_PATTERNS]
    for wire in wiring.wires:
        for name in dict.fromkeys(wire.stage.outputs):
            known_as = wire.forwarded.get(name, name)
            # Caches under a wrong name are said by the checks of caches.
            used = looks_cached(name) or {name, known_as} & taken
            if not used and not matches(name, patterns):
                yield UNUSED_OUTPUT.at(
                    _place_of(subject, wire, "outputs", name),
                    f"Nobody takes the output {known_as!r} of the stage {wire.name!r}.",
                    fix="export the graph without it, unless your program asks for it",
                )


def _logits(subject: Subject, wiring: Wiring) -> Iterator[Finding]:
    name = role(subject.config, "outputs", "logits")
    givers = [wire for wire in wiring.wires if name in wire.stage.outputs]
    if not givers:
        yield NO_LOGITS.at(
            subject.place((*DECODER, "pipeline")),
            f"No stage gives the logits, {name!r}.",
            found=f"the last stage gives {listed(wiring.wires[-1].stage.outputs) or 'nothing'}",
            expected=f"{name!r} among the outputs of a stage",
            fix="name the output that holds the logits in decoder.outputs.logits",
        )
        return
    for phase in PHASES:
        if not any(wire.runs(phase) for wire in givers):
            yield NO_LOGITS.at(
                subject.place((*givers[-1].stage.path, RUN_KEYS[phase])),
                f"No stage gives the logits {WHEN[phase]}.",
                found=f"{RUN_KEYS[phase]}: false for {listed(wire.name for wire in givers)}",
                fix=f"set {RUN_KEYS[phase]} to true for {givers[-1].name!r}",
            )


def _heads(subject: Subject, wiring: Wiring) -> Iterator[Finding]:
    logits = role(subject.config, "outputs", "logits")
    marked = [wire for wire in wiring.wires if wire.stage.is_lm_head]
    windows = slides_inputs(subject.config)
    if windows and not marked:
        heads = [w for w in wiring.wires if logits in w.stage.outputs and w.stage.run_on_prompt]
        for wire in heads[-1:]:
            yield HEAD_MARK.at(
                subject.place(wire.stage.path),
                f"The head {wire.name!r} is not marked and runs for every window of a prompt.",
                fix="set is_lm_head to true",
            )
    for wire in marked:
        others = [name for name in wire.stage.outputs if name != logits]
        needed = [name for name in others if _is_needed(wiring, wire, name)]
        place = subject.place((*wire.stage.path, "is_lm_head"))
        if windows and needed and wire.stage.run_on_prompt:
            yield HEAD_SKIPPED.at(
                place,
                f"The stage {wire.name!r} is left out for all windows but the last,"
                " and its outputs are needed.",
                found=listed(needed),
                expected="is_lm_head only on the stage that gives the logits",
                fix="remove is_lm_head here",
            )
        elif logits not in wire.stage.outputs and wiring.givers(logits):
            yield HEAD_MARK.at(
                place,
                f"The stage {wire.name!r} is marked as the head and does not give the logits.",
                found=listed(wire.stage.outputs),
                expected=logits,
                fix="mark the stage that gives the logits",
            )


def _is_needed(wiring: Wiring, wire: Wire, name: str) -> bool:
    known_as = wire.forwarded.get(name, name)
    return name in wiring.kept or any(
        {name, known_as} & set(other.stage.inputs) for other in wiring.wires
    )


def _stage(subject: Subject, wiring: Wiring, wire: Wire) -> Iterator[Finding]:
    path = wire.stage.path
    if not wire.stage.outputs:
        yield NOTHING_ASKED.at(
            subject.place((*path, "outputs")),
            f"The stage {wire.name!r} lists no outputs, so it is asked for none.",
            fix="list the outputs of its graph that later stages or the runtime need",
        )
    if not (wire.stage.run_on_prompt or wire.stage.run_on_token_gen):
        yield NEVER_RUNS.at(
            subject.place(path),
            f"The stage {wire.name!r} never runs.",
            found="run_on_prompt: false, run_on_token_gen: false",
            fix="set one of them to true, or remove the stage",
        )
    index = number(subject.config, *path, "reset_session_idx")
    if index is not None and index >= len(wiring.wires) and wire.runs_ever:
        yield RESET.at(
            subject.place((*path, "reset_session_idx")),
            f"The stage {wire.name!r} closes the session of a stage that does not exist.",
            found=index,
            expected=f"-1 for none, or 0 to {len(wiring.wires) - 1}",
        )
    for name, target in wire.forwarded.items():
        if name not in wire.stage.outputs or (name in wiring.kept and name != target):
            kept = name in wire.stage.outputs
            yield FORWARDER.at(
                subject.place((*path, "output_names_forwarder", name)),
                f"The stage {wire.name!r} forwards {name!r} as {target!r}, which has no effect.",
                found="an output that the runtime keeps" if kept else "no output of this stage",
                expected=f"one of {listed(wire.stage.outputs) or 'its outputs'}",
            )


def _place_of(subject: Subject, wire: Wire, key: Literal["inputs", "outputs"], name: str) -> Place:
    """Where a stage lists that name."""
    path = (*wire.stage.path, key)
    node = subject.config.root.find(path)
    index = wire.positions[key].get(name)
    return subject.place(
        path if index is None or node is None or not node.items else (*path, index)
    )
