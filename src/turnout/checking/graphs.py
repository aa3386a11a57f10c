"""Checks of what graphs say of themselves: names, versions, operators, ends (codes T26x).

What onnxruntime 1.32 and onnxruntime-genai 0.18 do with each was measured by
tests/test_checking_graphs.py. Nodes are not looked into beyond their names and operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from turnout.bundle import Bundle, GraphFile, Stage
from turnout.checking import graph_ends
from turnout.checking.findings import Finding
from turnout.checking.graph_rules import (
    GRAPH_RULES,
    NEWER,
    NO_VERSION,
    TWICE,
    UNDEFINED,
    UNKNOWN_DOMAIN,
)
from turnout.checking.locating import relative_name
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import MAX_FINDINGS, listed

RULES = GRAPH_RULES
_EXPORT = "export the graph again"
_SHOWN = 100
# What onnxruntime 1.32 takes: each version was tried.
_RUNTIME = "onnxruntime 1.32"
_IR_VERSION = 14
_ONNX = 28
_OPSETS = {
    "": _ONNX,
    "ai.onnx": _ONNX,
    "ai.onnx.ml": 5,
    "ai.onnx.preview": 1,
    "ai.onnx.preview.training": 1,
    "ai.onnx.training": 1,
    "com.microsoft": 1,
    "com.microsoft.experimental": 1,
    "com.microsoft.nchwc": 1,
    "com.ms.internal.nhwc": _ONNX,
    "org.pytorch.aten": 1,
}


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about the graphs themselves, each graph once."""
    if subject.bundle is None:
        return
    seen = set()
    for stage in subject.stages:
        graph = subject.graphs.get(stage.name)
        if graph is not None and graph.path not in seen:
            seen.add(graph.path)
            yield from _graph(subject.bundle, stage, graph)
    yield from islice(graph_ends.check(subject, subject.bundle), MAX_FINDINGS)


def _graph(bundle: Bundle, stage: Stage, graph: GraphFile) -> Iterator[Finding]:
    name = relative_name(bundle, graph.path)
    yield from _names(name, graph)
    yield from _versions(name, graph)
    yield from _domains(name, stage, graph)


def _names(name: str, graph: GraphFile) -> Iterator[Finding]:
    kinds = (
        (UNDEFINED, "reads what nothing in it defines", graph.names.undefined),
        (TWICE, "defines a name twice", graph.names.repeated),
        (TWICE, "has two nodes of one name", graph.names.twins),
    )
    for rule, what, names in kinds:
        if names:
            yield rule.at(
                name,
                f"{name} {what}.",
                found=listed(repr(item[:_SHOWN]) for item in names),
                expected="each name defined, and once",
                fix=_EXPORT,
            )


def _versions(name: str, graph: GraphFile) -> Iterator[Finding]:
    if graph.ir_version is None or not graph.opsets:
        yield NO_VERSION.at(
            name,
            f"{name} does not say by which versions it goes.",
            found="no ir_version" if graph.ir_version is None else "no opset_import",
            expected="an ir_version and opset_imports",
            fix=_EXPORT,
        )
    known = [("IR version", graph.ir_version or 0, _IR_VERSION)]
    known += [
        (f"opset of {domain or 'ONNX'}", version, _OPSETS[domain])
        for domain, version in graph.opsets.items()
        if domain in _OPSETS
    ]
    for what, version, most in known:
        if version > most:
            yield NEWER.at(
                name,
                f"{name} is newer than {_RUNTIME}, which refuses it.",
                found=f"{what} {version}",
                expected=f"at most {most}",
                fix="export the graph for an older opset, or take a newer onnxruntime",
            )


def _domains(name: str, stage: Stage, graph: GraphFile) -> Iterator[Finding]:
    used: dict[str, str] = {}
    for domain, kind in graph.ops:
        if domain not in _OPSETS:
            used.setdefault(domain, kind)
    has_library = bool(stage.effective_options.get("custom_ops_library"))
    for domain, kind in islice(used.items(), MAX_FINDINGS):
        shown = f"{domain[:_SHOWN]}:{kind[:_SHOWN]}"
        if domain not in graph.opsets:
            yield NO_VERSION.at(
                name,
                f"{name} has operators of a domain that it does not import.",
                found=shown,
                expected="an opset_import of that domain",
                fix=_EXPORT,
            )
        elif domain not in graph.functions and not has_library:
            yield UNKNOWN_DOMAIN.at(
                name,
                f"{name} has operators that {_RUNTIME} alone does not have.",
                found=shown,
                expected="operators of ONNX or onnxruntime, or a custom_ops_library",
                fix="name the library that has them, or export the graph without them",
            )
