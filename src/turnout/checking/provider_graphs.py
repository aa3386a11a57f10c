"""Options by which an EP compiles, or takes a whole decoder, against graphs and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.bundle.session_keys import CONTEXT_ENABLE, CONTEXT_PATH
from turnout.checking import provider_rules as rules
from turnout.checking.drafts import Draft
from turnout.checking.holders import Holder, entry_of
from turnout.checking.locating import locate
from turnout.checking.subject import Subject

if TYPE_CHECKING:
    from turnout.bundle import Stage


def check(subject: Subject, found: tuple[Holder, ...]) -> Iterator[Draft]:
    """Drafts about options whose effect depends on the graph that they are for."""
    for holder in found:
        yield from _compiling(subject, holder)
    yield from _whole(subject, found)


def _compiling(subject: Subject, holder: Holder) -> Iterator[Draft]:
    """What a load would compile, and whether its file is there already."""
    if holder.options.get(CONTEXT_ENABLE) != "1":
        return
    for stage in holder.stages:
        if stage.ep == catalog.CPU.name:
            continue
        target = _compiled_name(subject, stage)
        if subject.bundle is not None and locate(subject.bundle, target).path is not None:
            yield Draft(
                rules.IN_THE_WAY,
                (*holder.path, CONTEXT_ENABLE),
                f"{stage.name} would be compiled to {target[:120]}, which is there already.",
                found=target[:120],
                expected="no such file",
                fix="remove the option",
            )
        else:
            yield Draft(
                rules.COMPILES,
                (*holder.path, CONTEXT_ENABLE),
                f"{stage.name} would be compiled to {target[:120]} by the first load, and every"
                " load after it would fail.",
                found=f"{CONTEXT_ENABLE}=1",
                fix="remove the option",
            )


def _compiled_name(subject: Subject, stage: Stage) -> str:
    """Where onnxruntime writes what an EP compiles of a stage, relative to the bundle."""
    graph = subject.graphs.get(stage.name)
    binaries = [c.cache for c in graph.ep_contexts if c.cache] if graph is not None else []
    if binaries:  # compiled already: its own binary is what is in the way
        return str(PurePosixPath(stage.filename or "").parent / binaries[0])
    named = stage.effective_options.get(CONTEXT_PATH)
    if isinstance(named, str) and named:
        return named
    path = PurePosixPath(stage.filename or "")
    return str(path.with_name(f"{path.stem}_ctx.onnx")) if path.name else ""


def _whole(subject: Subject, found: tuple[Holder, ...]) -> Iterator[Draft]:
    """An option that hands a whole decoder to an EP, where there is none, or it will not fit."""
    for stage in subject.stages:
        known, place = catalog.find(stage.ep), entry_of(found, stage, stage.ep)
        option = known.whole_option if known is not None else None
        entry = next((e for e in stage.providers if e.ep == stage.ep), None)
        if option is None or entry is None or place is None or entry.options.get(option) != "True":
            continue
        graph = subject.graphs.get(stage.name)
        fused = graph is not None and any(op == "GroupQueryAttention" for _, op in graph.ops)
        piped = stage.in_decoder and stage.path != ("model", "decoder")
        if piped or fused:
            yield Draft(
                rules.WHOLE if piped else rules.NOT_WHOLE,
                (*place.path, option) if option in place.options else place.path,
                f"{option} is for a whole decoder, and {stage.name} is a stage of a pipeline."
                if piped
                else f"{option} was not taken with GroupQueryAttention, which {stage.name} has.",
                found=f"{option}=True",
                fix=f"remove {option}",
            )
