"""Whether a config's stages can be read, and whether each has a name of its own (T115, T116)."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.bundle import merging
from turnout.bundle.jsontext import Path
from turnout.checking.drafts import Draft, placed
from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject
from turnout.errors import ConfigError

UNREADABLE = Rule(
    "T115",
    "error",
    "graph",
    "Stages that cannot be read",
    why="A section of the wrong kind, or two that come by one name: what the stages are cannot be "
    "told, so nothing that follows from them is checked.",
    bad='{"model": {"type": "llama", "context_length": 8, "decoder": {"filename": 5}}}',
    good='{"model": {"type": "llama", "context_length": 8, "decoder": {"filename": "m.onnx"}}}',
)
REPEATED = Rule(
    "T116",
    "warning",
    "graph",
    "A stage that is named twice",
    why="The runtime reads entries of one name into one stage, which runs where the first of them "
    "stands: of plain values the last one counts, lists and options add up. A stage that was "
    "meant to run twice runs once, and other tools may see only one of the entries.",
    bad='{"model": {"type": "decoder-pipeline", "context_length": 8, "decoder": {"pipeline": '
    '[{"context": {"filename": "a.onnx"}}, {"context": {"filename": "b.onnx"}}]}}}',
    good='{"model": {"type": "decoder-pipeline", "context_length": 8, "decoder": {"pipeline": '
    '[{"context": {"filename": "a.onnx"}}, {"iterator": {"filename": "b.onnx"}}]}}}',
)
RULES: tuple[Rule, ...] = (UNREADABLE, REPEATED)


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about entries; where they cannot be read, the other checks then say nothing."""
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
            fix="name it in model.decoder.filename, or its stages in model.decoder.pipeline",
        )
    yield from placed(subject, _repeated(subject))


def _repeated(subject: Subject) -> Iterator[Draft]:
    """Names that another element of the list has; within one element it is a key like others."""
    pipelines = dict.fromkeys(stage.path[:3] for stage in subject.stages if len(stage.path) > 3)
    for pipeline in pipelines:
        node = subject.config.root.find(pipeline)
        for below in merging.repeated(node) if node is not None else ():
            path: Path = (*pipeline, *below)
            yield Draft(
                REPEATED,
                path,
                f"The stage {str(path[-1])[:80]!r} is named before.",
                found="the same name again",
                expected="one entry for each stage",
                fix="write what both say into one entry, or give the second a name of its own",
            )
