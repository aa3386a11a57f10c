"""Checks of `model.type` against the sections and the pipeline that the config has."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.bundle.modeltypes import (
    COMPOSED_TYPES,
    DECODER_TYPES,
    KNOWN_TYPES,
    PIPELINE,
    PIPELINE_TYPES,
    unopened_sections,
)
from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject
from turnout.checking.wiring_stages import Wiring

UNKNOWN_TYPE = Rule(
    "T218",
    "error",
    "graph",
    "A model type that the runtime does not know",
    why="onnxruntime-genai 0.18 refuses to load it: 'Unsupported model_type'. It compares the whole"
    " word, in case too. A later version may know it.",
    bad='{"model": {"type": "Llama"}}',
    good='{"model": {"type": "llama"}}',
)
MISFIT = Rule(
    "T219",
    "error",
    "graph",
    "A model type that does not fit the sections",
    why="The type decides which graphs the runtime opens. It looks for files that the config does"
    " not name, leaves a pipeline aside, or refuses a section, and the load fails: 'The model path"
    " is a directory', 'Pipelined decoder is not supported', 'Model input was not found',"
    " 'Decoder-only CPU embedding requires the dynamic-batching Engine'.",
    bad='{"model": {"type": "llama", "decoder": {"pipeline": [{"embeddings": {}}]}}}',
    good='{"model": {"type": "decoder-pipeline", "decoder": {"pipeline": [{"embeddings": {}}]}}}',
)
UNOPENED = Rule(
    "T253",
    "info",
    "graph",
    "A section that is not opened for this model type",
    why="The runtime reads what the section says and does not open its graph: not for this type, or"
    " only where a program asks for what it is for, such as predicting several tokens at once. So"
    " nothing is said of its files.",
    bad='{"model": {"type": "llama", "vision": {"filename": "vision.onnx"}}}',
    good='{"model": {"type": "llama", "decoder": {"filename": "model.onnx"}}}',
)
RULES = (UNKNOWN_TYPE, MISFIT, UNOPENED)
# They take sound for granted unless the name of its settings is set to "".
_SPEAKING = frozenset({"gemma4", "gemma4_unified", "phi4mm"})


def check(subject: Subject, wiring: Wiring | None) -> Iterator[Finding]:
    """The finding about the model type, if there is one."""
    config = subject.config
    kind, place = config.model_type, subject.place(("model", "type"))
    pipeline = wiring is not None
    yield from _unopened(subject, kind)
    if config.get(("model", "draft")) is not None:
        # A pair of models, which the runtime loads in another way.
        if kind == PIPELINE:
            yield MISFIT.at(
                subject.place(("model", "draft")),
                "A pipeline takes no draft model.",
                found=f'"{kind}" and a draft',
                expected="a decoder of one graph, or no draft",
            )
        return
    if kind not in KNOWN_TYPES:
        yield UNKNOWN_TYPE.at(
            place,
            "The runtime does not know this model type.",
            found=f'"{kind[:120]}"' if kind else "no type",
            expected=", ".join(sorted(PIPELINE_TYPES if pipeline else KNOWN_TYPES - {PIPELINE})),
            fix=f'set model.type to "{PIPELINE}"'
            if pipeline
            else 'set it to the model\'s family, or to "decoder" for any decoder of one graph',
        )
    elif pipeline and kind not in PIPELINE_TYPES:
        yield MISFIT.at(
            place,
            "This model type takes no decoder.pipeline.",
            found=f'"{kind}"',
            expected=", ".join(sorted(PIPELINE_TYPES)),
            fix=f'set model.type to "{PIPELINE}"',
        )
    elif not pipeline and kind == PIPELINE:
        yield MISFIT.at(
            place,
            "This model type needs a decoder.pipeline, and there is none.",
            found=f'"{kind}" and a decoder of one graph',
            expected="a decoder.pipeline with stages",
            fix='set model.type to the model\'s family, or to "decoder"',
        )
    elif not pipeline:
        yield from _sections(subject, kind)


def _unopened(subject: Subject, kind: str) -> Iterator[Finding]:
    unopened = unopened_sections(kind)
    for section in dict.fromkeys(stage.section for stage in subject.stages):
        if section in unopened:
            yield UNOPENED.at(
                subject.place(("model", section)),
                f"The graph of model.{section} is not opened when a model of this type is loaded.",
                found=f'the type "{kind}"',
            )


def _sections(subject: Subject, kind: str) -> Iterator[Finding]:
    others = {stage.section for stage in subject.stages if not stage.in_decoder}
    if kind in COMPOSED_TYPES and not others:
        yield MISFIT.at(
            subject.place(("model", "type")),
            "This model type has graphs besides its decoder, and the config names none.",
            found=f'"{kind}" and a decoder alone',
            expected=", ".join(sorted(DECODER_TYPES)),
            fix='set model.type to the family\'s text model, or to "decoder"',
        )
        return
    batching = subject.config.get(("engine", "dynamic_batching"))
    if kind in DECODER_TYPES and "embedding" in others and batching is None:
        yield MISFIT.at(
            subject.place(("model", "embedding")),
            f'The type "{kind}" takes embeddings of another graph only with dynamic batching.',
            found="model.embedding, and no engine.dynamic_batching",
            expected="the embeddings inside the decoder's graph",
            fix="use the type of the whole model, or a decoder's graph that takes token ids",
        )
    settings = subject.config.get(("model", "speech", "config_filename"))
    if kind in _SPEAKING and "speech" not in others and settings != "":
        yield MISFIT.at(
            subject.place(("model", "speech")),
            f'The type "{kind}" looks for a graph that reads speech.',
            found="no model.speech.filename",
            expected="that file, or no settings for it",
            fix='write "speech": {"config_filename": ""} into model if it reads no speech',
        )
