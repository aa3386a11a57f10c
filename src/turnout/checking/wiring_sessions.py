"""Checks of what keeps a pipeline's sessions usable: outputs that it owns, and closed sessions."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.bundle.modeltypes import PIPELINE
from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import listed, number
from turnout.checking.wiring_stages import PHASES, Wire, Wiring

UNLISTED = Rule(
    "T250",
    "error",
    "graph",
    "An output of the graph that the stage does not list",
    why="onnxruntime-genai 0.18 frees such an output twice: the answer is right, and the process is"
    " killed (SIGABRT, SIGBUS or SIGSEGV) when the generator, or a later one, is freed.",
    bad='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden"]}}]}}}, where the'
    " graph gives hidden and scale",
    good='{"model": {"decoder": {"pipeline": [{"embeddings": {"outputs": ["hidden", "scale"]}}]}}},'
    " or a graph that gives hidden alone",
)
CLOSED = Rule(
    "T251",
    "error",
    "graph",
    "`reset_session_idx` closes a stage that runs for every token",
    why="The session is closed and made again for each token, and left closed after the last one."
    " onnxruntime-genai 0.18 then kills the process (SIGSEGV) when the next generator is made: the"
    " second prompt, or the second turn of a conversation.",
    bad='{"model": {"decoder": {"pipeline": [{"embeddings": {}}, {"transformer":'
    ' {"reset_session_idx": 0}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"embeddings": {}}, {"transformer": {}}]}}}',
)
LEFT_CLOSED = Rule(
    "T252",
    "warning",
    "graph",
    "`reset_session_idx` leaves a session closed",
    why="Decode stages close the prefill stage so, to give its memory back. The first answer is"
    " right; onnxruntime-genai 0.18 kills the process (SIGSEGV) when a second generator is made"
    " while the model is loaded: the second prompt, or the second turn of a conversation.",
    bad='{"model": {"decoder": {"pipeline": [{"context": {"run_on_token_gen": false}}, {"iterator":'
    ' {"run_on_prompt": false, "reset_session_idx": 0}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"context": {"run_on_token_gen": false}},'
    ' {"iterator": {"run_on_prompt": false}}]}}}',
)
RULES = (UNLISTED, CLOSED, LEFT_CLOSED)


def check(subject: Subject, wiring: Wiring | None) -> Iterator[Finding]:
    """Findings about a pipeline that breaks after its first answer; none for a flat bundle."""
    if wiring is None or subject.config.model_type != PIPELINE:
        return
    for wire in wiring.wires:
        if wire.graph is not None and wire.runs_ever and wire.stage.outputs:
            yield from _unlisted(subject, wire)
    yield from _closed(subject, wiring)


def _unlisted(subject: Subject, wire: Wire) -> Iterator[Finding]:
    assert wire.graph is not None
    wanted = set(wire.stage.outputs)
    names = [value.name for value in wire.graph.outputs if value.name not in wanted]
    if names:
        yield UNLISTED.at(
            subject.place((*wire.stage.path, "outputs")),
            f"The stage {wire.name!r} does not list all outputs of its graph.",
            found=f"not listed: {listed(names)}",
            expected="every output of the graph",
            fix="add them to outputs, or export the graph without them",
        )


def _closed(subject: Subject, wiring: Wiring) -> Iterator[Finding]:
    """Sessions that are closed when an answer is complete, and by which stage."""
    open_again: dict[int, Wire | None] = {}
    for phase in PHASES:
        for wire in wiring.wires:
            if wire.runs(phase):
                target = _target(subject, wire)
                if target is not None and target < len(wiring.wires):
                    open_again[target] = wire
                open_again[wire.index] = None
    for index, closer in open_again.items():
        if closer is None:
            continue
        closed = wiring.wires[index]
        yield (CLOSED if closed.runs("tokens") else LEFT_CLOSED).at(
            subject.place((*closer.stage.path, "reset_session_idx")),
            f"The stage {closer.name!r} closes the session of {closed.name!r}, and nothing opens"
            " it again.",
            found=index,
            expected="-1 for none",
            fix="remove reset_session_idx, unless the program makes one generator alone",
        )


def _target(subject: Subject, wire: Wire) -> int | None:
    index = number(subject.config, *wire.stage.path, "reset_session_idx")
    return index if index is not None and index >= 0 else None
