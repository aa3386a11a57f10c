"""Checks of the names and types of a config's stages against those of their graphs."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.bundle import GraphFile, Stage
from turnout.bundle.modeltypes import DECODER_TYPES, PIPELINE
from turnout.bundle.onnxheader import ValueInfo
from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject
from turnout.checking.wiring_flow import UNPROVIDED
from turnout.checking.wiring_names import (
    DECODER,
    WINDOW,
    elsewhere,
    given_inputs,
    listed,
    looks_cached,
    number,
    role,
    slides_inputs,
    unfed_lengths,
)
from turnout.checking.wiring_stages import (
    PHASES,
    Wire,
    Wiring,
    decoder_inputs,
    flat_of,
    pipeline_of,
    required_inputs,
)

NO_SUCH_OUTPUT = Rule(
    "T211",
    "error",
    "graph",
    "An output that the graph does not have",
    why="The runtime asks a graph for the outputs that the config names. One that it does not have"
    " fails the load ('Model output was not found') or the first prompt ('Invalid output name').",
    bad='{"model": {"decoder": {"outputs": {"logits": "lgts"}}}}, where the graph gives logits',
    good='{"model": {"decoder": {"outputs": {"logits": "logits"}}}}',
)
NO_SUCH_INPUT = Rule(
    "T212",
    "error",
    "graph",
    "An input that the graph does not have, and is given",
    why="The runtime gives a stage what it has under the names in its `inputs`, and a flat decoder"
    " what `decoder.inputs` names. A graph that does not have them fails: 'Invalid input name' or"
    " 'Model input was not found', at the first prompt, or, where a later stage gives the name, at"
    " the second token, when it is still there.",
    bad='{"model": {"decoder": {"pipeline": [{"lm_head": {"inputs": ["normed", "input_ids"]}}]}}},'
    " where the graph takes normed alone",
    good='{"model": {"decoder": {"pipeline": [{"lm_head": {"inputs": ["normed"]}}]}}}',
)
IGNORED_INPUT = Rule(
    "T213",
    "warning",
    "graph",
    "An input that the graph does not have, and nothing gives",
    why="The runtime passes over a name that no other stage gives, and that it does not give"
    " itself. It is a wrong name, or left over.",
    bad='{"model": {"decoder": {"pipeline": [{"lm_head": {"inputs": ["normed", "scale"]}}]}}},'
    " where the graph takes normed alone",
    good='{"model": {"decoder": {"pipeline": [{"lm_head": {"inputs": ["normed"]}}]}}}',
)
NOT_LISTED = Rule(
    "T214",
    "error",
    "graph",
    "An input of the graph that the stage does not list",
    why="A pipeline's stage gets the inputs that it lists and no others. The node that reads the"
    " missing one fails at the first prompt: 'Missing Input'. Inputs that no node reads need not be"
    " listed.",
    bad='{"model": {"decoder": {"pipeline": [{"context": {"inputs": ["hidden"]}}]}}}, where the'
    " graph takes hidden and attention_mask",
    good='{"model": {"decoder": {"pipeline": [{"context": {"inputs": ["hidden",'
    ' "attention_mask"]}}]}}}',
)
MISMATCH = Rule(
    "T217",
    "error",
    "graph",
    "Tensors of one name that do not fit each other",
    why="An output goes into the next stage's input as it is: another element type or fixed"
    " dimension fails at the first prompt ('Unexpected input data type', 'Got invalid"
    " dimensions'). Inputs of one name in several graphs must have one type, or the load fails:"
    " 'Model input type mismatch'.",
    bad="embeddings.onnx gives hidden as float32, context.onnx takes it as float16",
    good="both are float16",
)
DECLARED = Rule(
    "T254",
    "warning",
    "graph",
    "An output declared in another size than the next stage takes",
    why="What counts is what the graph computes. The next stage takes the size that such tensors"
    " have, so the declaration may be what is wrong: then all is well, and only a log says so;"
    " otherwise the first prompt fails: 'Got invalid dimensions'.",
    bad="embeddings.onnx declares hidden as [1, sequence, 577], with a hidden_size of 576",
    good="it declares [1, sequence, 576]",
)
RULES = (NO_SUCH_OUTPUT, NO_SUCH_INPUT, IGNORED_INPUT, NOT_LISTED, MISMATCH, DECLARED)


def check(subject: Subject, wiring: Wiring | None) -> Iterator[Finding]:
    """Findings about names and types of the decoder's graphs; none for a lone config."""
    if not subject.graphs:
        return
    kind = subject.config.model_type
    flat = flat_of(subject)
    if kind == PIPELINE and wiring is not None:
        fed = set(wiring.given)
        for wire in wiring.wires:
            if wire.graph is not None:
                yield from _stage(subject, fed | _left(wiring, wire), wire, wire.graph)
            fed |= wire.gives - wiring.kept
        yield from _links(subject, wiring)
        yield from _same_names(subject)
        yield from _no_token_ids(subject)
    elif kind in DECODER_TYPES and flat is not None:
        graph = subject.graphs.get(flat.name)
        if graph is not None:
            yield from _flat(subject, flat, graph)
            yield from _no_token_ids(subject)


def _left(wiring: Wiring, wire: Wire) -> set[str]:
    """What stages behind this one gave, which it finds when the next token is generated."""
    if not wire.runs("tokens"):
        return set()
    behind = [other for other in wiring.wires[wire.index + 1 :] if other.runs_ever]
    # Its own outputs of the last run are gone when it runs again.
    return {name for other in behind for name in other.gives - wiring.kept} - set(
        wire.stage.outputs
    )


def _stage(subject: Subject, fed: set[str], wire: Wire, graph: GraphFile) -> Iterator[Finding]:
    path = wire.stage.path
    outputs = {value.name for value in graph.outputs}
    wrong = [name for name in wire.stage.outputs if name not in outputs]
    if wrong:
        yield NO_SUCH_OUTPUT.at(
            subject.place((*path, "outputs")),
            f"The graph of the stage {wire.name!r} has no output {listed(wrong)}.",
            found=listed(wrong),
            expected=f"of {wire.stage.filename}: {listed(outputs_of(graph))}",
            fix="name outputs as the graph does",
        )
    inputs = {value.name for value in graph.inputs}
    extra = [name for name in wire.stage.inputs if name not in inputs]
    given = [name for name in extra if name in fed]
    for rule, names in ((NO_SUCH_INPUT, given), (IGNORED_INPUT, _without(extra, given))):
        if names:
            yield rule.at(
                subject.place((*path, "inputs")),
                f"The graph of the stage {wire.name!r} has no input {listed(names)}.",
                found=listed(names),
                expected=f"of {wire.stage.filename}: {listed(inputs_of(graph))}",
                fix="leave out what the graph does not take",
            )
    unlisted = _without(required_inputs(graph), list(wire.stage.inputs))
    if unlisted:
        yield NOT_LISTED.at(
            subject.place((*path, "inputs")),
            f"The stage {wire.name!r} does not list all inputs of its graph.",
            found=f"not listed: {listed(unlisted)}",
            expected="every input that a node of the graph reads",
            fix="add them to inputs",
        )


def _flat(subject: Subject, stage: Stage, graph: GraphFile) -> Iterator[Finding]:
    config = subject.config
    inputs = decoder_inputs(subject)
    needed = set(required_inputs(graph))
    missing = needed - given_inputs(config, inputs)
    odd = unfed_lengths(config, missing)
    ignored = elsewhere(config, missing) | {name for name in missing if looks_cached(name)}
    ids = _id_names(subject)
    for name in inputs_of(graph):
        if name in odd or (name in missing and name not in ignored | ids):
            yield UNPROVIDED.at(
                subject.place((*DECODER, "inputs")),
                f"The runtime does not give the input {name!r} of {stage.filename}.",
                found=f"{name!r}, without the length that goes with it" if name in odd else None,
                expected=f"an input that it gives: {listed(sorted(inputs - missing)) or 'none'}",
                fix="give the graph's name to the role that it has in decoder.inputs",
            )
    logits = role(config, "outputs", "logits")
    if logits not in {value.name for value in graph.outputs}:
        yield NO_SUCH_OUTPUT.at(
            subject.place((*DECODER, "outputs", "logits")),
            f"{stage.filename} has no output {logits!r} for the logits.",
            found=listed(outputs_of(graph)),
            expected=logits,
            fix="name the output that holds the logits in decoder.outputs.logits",
        )


def _no_token_ids(subject: Subject) -> Iterator[Finding]:
    """Where no graph of the decoder takes the token ids."""
    stages = [stage for stage in subject.stages if stage.in_decoder]
    if any(stage.name not in subject.graphs for stage in stages):
        return
    known = _id_names(subject)
    if not known & decoder_inputs(subject):
        yield NO_SUCH_INPUT.at(
            subject.place((*DECODER, "inputs", "input_ids")),
            "No graph of the decoder takes the token ids.",
            found=listed(sorted(decoder_inputs(subject))),
            expected=listed(sorted(known)),
            fix="name the input for token ids in decoder.inputs.input_ids",
        )


def _id_names(subject: Subject) -> set[str]:
    name = role(subject.config, "inputs", "input_ids")
    # Graphs that start from embeddings run by the engine or with another model's embeddings.
    embeds = role(subject.config, "inputs", "inputs_embeds")
    return {name, embeds} if pipeline_of(subject) == () else {name}


def _links(subject: Subject, wiring: Wiring) -> Iterator[Finding]:
    """Outputs that do not fit the inputs that they go into."""
    for phase in PHASES:
        there: dict[str, tuple[Wire, ValueInfo]] = {}
        for wire in wiring.wires:
            if wire.graph is None or not wire.runs(phase):
                continue
            for value in wire.graph.inputs:
                if value.name in there and value.name in wire.stage.inputs:
                    giver, given = there[value.name]
                    if (phase == "prompt" or not _linked(giver, wire)) and not _fits(given, value):
                        yield _mismatch(subject, giver, given, wire, value)
            for value in wire.graph.outputs:
                if value.name in wire.stage.outputs and value.name not in wiring.kept:
                    there[wire.forwarded.get(value.name, value.name)] = (wire, value)


def _linked(giver: Wire, taker: Wire) -> bool:
    """Whether a link was looked at for prompts already."""
    return giver.runs("prompt") and taker.runs("prompt")


def _mismatch(
    subject: Subject, giver: Wire, given: ValueInfo, taker: Wire, taken: ValueInfo
) -> Finding:
    same_kind = given.dtype == taken.dtype and len(given.shape or ()) == len(taken.shape or ())
    rule = DECLARED if same_kind and _expected(subject, taker, taken) else MISMATCH
    return rule.at(
        subject.place((*taker.stage.path, "inputs")),
        f"{giver.name!r} gives {given.name!r} in a form that {taker.name!r} does not take.",
        found=shown(given),
        expected=shown(taken),
        fix="export both graphs with one type and shape",
    )


def _expected(subject: Subject, taker: Wire, taken: ValueInfo) -> bool:
    """Whether an input has the sizes that a stage is fed: one sequence, its tokens, its states."""
    window = (
        number(subject.config, *WINDOW, "window_size") if slides_inputs(subject.config) else None
    )
    tokens = {1} if not taker.runs("prompt") else {window}
    wanted = ({1}, tokens, {number(subject.config, *DECODER, "hidden_size")})
    shape = taken.shape or ()
    return len(shape) == len(wanted) and all(
        not isinstance(size, int) or size in sizes
        for size, sizes in zip(shape, wanted, strict=True)
    )


def _same_names(subject: Subject) -> Iterator[Finding]:
    """Inputs of one name that have several element types: the load fails."""
    first: dict[str, tuple[Stage, ValueInfo]] = {}
    for stage in pipeline_of(subject):
        graph = subject.graphs.get(stage.name)
        for value in graph.inputs if graph else ():
            other, known = first.setdefault(value.name, (stage, value))
            if known.dtype != value.dtype:
                yield MISMATCH.at(
                    subject.place((*stage.path, "inputs")),
                    f"{stage.name!r} takes {value.name!r} in another type than {other.name!r}.",
                    found=shown(value),
                    expected=shown(known),
                    fix="export both graphs with one type",
                )


def _fits(given: ValueInfo, taken: ValueInfo) -> bool:
    if given.dtype != taken.dtype:
        return False
    if given.shape is None or taken.shape is None:
        return True
    if len(given.shape) != len(taken.shape):
        return False
    pairs = zip(given.shape, taken.shape, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def shown(value: ValueInfo) -> str:
    """A tensor's type and shape for people: `float32[1,64]`."""
    if value.shape is None:
        return value.dtype
    return f"{value.dtype}[{','.join('?' if d is None else str(d) for d in value.shape)}]"


def inputs_of(graph: GraphFile) -> list[str]:
    """The names of a graph's inputs."""
    return [value.name for value in graph.inputs]


def outputs_of(graph: GraphFile) -> list[str]:
    """The names of a graph's outputs."""
    return [value.name for value in graph.outputs]


def _without(names: list[str], others: list[str]) -> list[str]:
    gone = set(others)
    return [name for name in names if name not in gone]
