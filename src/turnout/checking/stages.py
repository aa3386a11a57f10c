"""Whether a config's stages can be told apart at all (code T115)."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject
from turnout.errors import ConfigError

UNREADABLE = Rule(
    "T115",
    "error",
    "graph",
    "Stages that cannot be read",
    why="Two stages with one name, or a section of the wrong kind: the runtime takes the first "
    "and fails later, when a stage runs twice or never.",
    bad='{"model": {"type": "decoder-pipeline", "context_length": 8, "decoder": {"pipeline": '
    '[{"context": {"filename": "a.onnx"}}, {"context": {"filename": "b.onnx"}}]}}}',
    good='{"model": {"type": "decoder-pipeline", "context_length": 8, "decoder": {"pipeline": '
    '[{"context": {"filename": "a.onnx"}}, {"iterator": {"filename": "b.onnx"}}]}}}',
)
RULES: tuple[Rule, ...] = (UNREADABLE,)


def check(subject: Subject) -> Iterator[Finding]:
    """A finding where the stages cannot be read; the other checks then say nothing."""
    try:
        stages = subject.stages
    except ConfigError as error:
        yield UNREADABLE.at(
            error.facts.get("where", subject.config.where).rpartition(", ")[2],
            error.problem,
            found=error.facts.get("found"),
            expected=error.facts.get("expected"),
            fix=error.facts.get("fix"),
        )
        return
    if not stages:
        yield UNREADABLE.at(
            subject.place(("model",)),
            "The config names no graph.",
            expected="a model with a decoder",
        )
