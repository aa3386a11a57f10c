"""Stages of a decoder pipeline as they are wired: what each needs, gives, and when it runs.

The runtime walks the stages in order, once for a prompt and once for each token. It feeds a
stage those of the names in its `inputs` that it gives itself or that an earlier stage gave,
and asks it for its `outputs`; both are lists of the config, whatever the graph has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from turnout.bundle import GraphFile, Stage
from turnout.checking import wiring_names
from turnout.checking.subject import Subject

Phase = Literal["prompt", "tokens"]
PHASES: tuple[Phase, ...] = ("prompt", "tokens")
WHEN: Mapping[Phase, str] = {
    "prompt": "when a prompt is read",
    "tokens": "when tokens are generated, and for prompts of one token",
}
# The keys that say when a stage runs.
RUN_KEYS: Mapping[Phase, str] = {"prompt": "run_on_prompt", "tokens": "run_on_token_gen"}


@dataclass(frozen=True)
class Wire:
    """One stage, its graph where it is known, and what its outputs are called afterwards.

    The outputs named `kept` go to the runtime, which forwards none of them.
    """

    stage: Stage
    index: int
    graph: GraphFile | None
    forwarded: Mapping[str, str]
    kept: frozenset[str]

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The inputs of its graph that it lists: they must come from somewhere."""
        if self.graph is None:
            return tuple(dict.fromkeys(self.stage.inputs))
        required = set(required_inputs(self.graph))
        return tuple(name for name in dict.fromkeys(self.stage.inputs) if name in required)

    @cached_property
    def positions(self) -> Mapping[str, Mapping[str, int]]:
        """Where each name first stands among its `inputs` and `outputs`."""
        sides = {"inputs": self.stage.inputs, "outputs": self.stage.outputs}
        return {
            side: {name: len(names) - 1 - i for i, name in enumerate(reversed(names))}
            for side, names in sides.items()
        }

    def runs(self, phase: Phase) -> bool:
        """Whether it runs then."""
        return self.stage.run_on_prompt if phase == "prompt" else self.stage.run_on_token_gen

    @property
    def runs_ever(self) -> bool:
        """Whether it runs at all."""
        return self.stage.run_on_prompt or self.stage.run_on_token_gen

    @cached_property
    def gives(self) -> frozenset[str]:
        """The names under which later stages find its outputs."""
        named = self.stage.outputs
        return frozenset(n if n in self.kept else self.forwarded.get(n, n) for n in named)


@dataclass(frozen=True)
class Wiring:
    """A decoder pipeline: its stages in order, and what the runtime gives and takes itself."""

    wires: tuple[Wire, ...]
    given: frozenset[str]
    kept: frozenset[str]

    def givers(self, name: str) -> list[Wire]:
        """The stages that give that name, in order."""
        return self._givers.get(name, [])

    @cached_property
    def _givers(self) -> dict[str, list[Wire]]:
        found: dict[str, list[Wire]] = {}
        for wire in self.wires:
            for name in wire.gives:
                found.setdefault(name, []).append(wire)
        return found

    def missing(self, phase: Phase) -> list[tuple[Wire, str]]:
        """The stages, with the inputs that they need in that phase and do not get."""
        there = set(self.given)
        found = []
        for wire in self.wires:
            if wire.runs(phase):
                found += [(wire, name) for name in wire.needs if name not in there]
                # What the runtime keeps, it hands to no stage under that name.
                there |= wire.gives - self.kept
        return found


def required_inputs(graph: GraphFile) -> list[str]:
    """The inputs of a graph that must be fed: those that are read and have no value of their own.

    One that no node reads is declared and never missed (tried).
    """
    own = {item.name for item in graph.initializers if item.depth == 0}
    names = [value.name for value in graph.inputs]
    return [name for name in names if name in graph.reads and name not in own]


def pipeline_of(subject: Subject) -> tuple[Stage, ...]:
    """The stages of `model.decoder.pipeline`, in order; none for a flat bundle."""
    return tuple(s for s in subject.stages if s.in_decoder and "pipeline" in s.path[2:3])


def flat_of(subject: Subject) -> Stage | None:
    """The decoder of a flat bundle, None for a pipeline."""
    found = [s for s in subject.stages if s.in_decoder and s.path == wiring_names.DECODER]
    return found[0] if found and not pipeline_of(subject) else None


def decoder_inputs(subject: Subject) -> set[str]:
    """Every input of the decoder's graphs; those that stages list where a graph is not known."""
    names: set[str] = set()
    for stage in subject.stages:
        if stage.in_decoder:
            graph = subject.graphs.get(stage.name)
            flat = stage.path == wiring_names.DECODER
            # A flat decoder's `inputs` are roles, and say nothing about its graph.
            own = () if flat else stage.inputs
            names |= set(own) if graph is None else {value.name for value in graph.inputs}
    return names


def wiring_of(subject: Subject) -> Wiring | None:
    """How the pipeline of a config is wired; None where it has none."""
    stages = pipeline_of(subject)
    if not stages:
        return None
    config = subject.config
    given = wiring_names.given_inputs(config, decoder_inputs(subject))
    cache = wiring_names.cache_names(config)
    layers = cache.layers(given)
    kept = frozenset(
        {wiring_names.role(config, "outputs", "logits"), *given}
        | {pattern.name(layer) for pattern in cache.present for layer in layers}
    )
    wires = tuple(
        Wire(stage, index, subject.graphs.get(stage.name), _forwarded(subject, stage), kept)
        for index, stage in enumerate(stages)
    )
    return Wiring(wires, frozenset(given), kept)


def _forwarded(subject: Subject, stage: Stage) -> dict[str, str]:
    written = subject.config.get((*stage.path, "output_names_forwarder"))
    pairs = written.items() if isinstance(written, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}
