"""Checks of external data and its ranges, and of compiled binaries (codes T31x, T32x).

What onnxruntime does with each was measured by tests/test_checking_data.py. Offsets need no
alignment: results and memory were the same at any (CPU EP and OpenVINO).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnout.bundle import Bundle, GraphFile, Stage
from turnout.bundle.graph import ELEMENT_TYPES, ExternalRange, Initializer
from turnout.bundle.session_keys import INITIALIZER_FOLDER
from turnout.checking import contexts, ranges
from turnout.checking.context_rules import CONTEXT_RULES
from turnout.checking.file_rules import (
    DATA_MISSING,
    DATA_OUTSIDE,
    DATA_RULES,
    LENGTH,
    LINKED,
    OUTSIDE,
    POINTER,
    RANGE,
    SHARED_DATA,
    TENSOR,
)
from turnout.checking.files import problem_with
from turnout.checking.findings import Finding
from turnout.checking.locating import is_pointer, locate, option_place, relative_name
from turnout.checking.subject import Subject
from turnout.errors import BundleError

RULES = (*DATA_RULES, *CONTEXT_RULES)
_FETCH = "fetch or build the bundle again"
_TYPES = frozenset(name for name, _ in ELEMENT_TYPES.values()) - {"undefined"}
_Tensor = tuple[Initializer, ExternalRange]


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about external data, its ranges, and compiled binaries."""
    if subject.bundle is not None:
        yield from _check(subject, subject.bundle)


@dataclass(frozen=True)
class _Data:
    """One data file of one graph: the location that the graph gives it, and what is in it."""

    bundle: Bundle
    graph: GraphFile
    location: str
    tensors: tuple[_Tensor, ...]

    @property
    def graph_name(self) -> str:
        """The graph, relative to the bundle."""
        return relative_name(self.bundle, self.graph.path)


def _check(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    placed = ranges.Placed()
    for graph in {graph.path: graph for graph in subject.graphs.values()}.values():
        yield from _tensors(bundle, graph)
    for stage, graph, folder in _graphs(subject, bundle):
        if isinstance(folder, BundleError):
            yield OUTSIDE.at(
                option_place(subject, stage, INITIALIZER_FOLDER),
                folder.problem,
                found=folder.facts.get("found"),
                expected=folder.facts.get("expected"),
            )
            continue
        for location, tensors in _by_location(graph).items():
            data = _Data(bundle, graph, location, tuple(tensors))
            found = _file(data, folder)
            if isinstance(found, Finding):
                yield found
            else:
                yield from _in_file(data, found, placed)
    yield from placed.overlaps(bundle)
    yield from _shared(subject, bundle)
    yield from contexts.check(subject, bundle)


def _tensors(bundle: Bundle, graph: GraphFile) -> Iterator[Finding]:
    """Tensors that onnxruntime refuses, whatever data file they are in."""
    wrong = [
        (item, found)
        for item in graph.initializers
        if (found := _no_type(item) or (item.flaw if graph.is_read(item) else ""))
    ]
    if wrong:
        tensor, found = wrong[0]
        yield TENSOR.at(
            relative_name(bundle, graph.path),
            f"onnxruntime refuses {len(wrong)} of {len(graph.initializers)} tensors of "
            f"{relative_name(bundle, graph.path)}, the first of them {tensor.name[:200]!r}.",
            found=found,
            expected=f"a whole tensor of shape {list(tensor.shape)[:8]}",
            fix="export the graph again",
        )


def _no_type(tensor: Initializer) -> str:
    return "" if tensor.dtype in _TYPES else f"an element type that is {tensor.dtype}"


def _graphs(
    subject: Subject, bundle: Bundle
) -> Iterator[tuple[Stage, GraphFile, Path | BundleError]]:
    """Each readable graph with the folder of its data, once."""
    seen = set()
    for stage in subject.stages:
        graph = subject.graphs.get(stage.name)
        if graph is None or not graph.external_files:
            continue
        folder: Path | BundleError
        try:
            folder = bundle.data_folder(stage)
        except BundleError as error:
            folder = error
        if (graph.path, str(folder)) not in seen:
            seen.add((graph.path, str(folder)))
            yield stage, graph, folder


def _by_location(graph: GraphFile) -> Mapping[str, list[_Tensor]]:
    """Tensors that something reads; onnxruntime leaves the data of others alone."""
    found: dict[str, list[_Tensor]] = {}
    for item in graph.initializers:
        if item.external is not None and graph.is_read(item):
            found.setdefault(item.external.location, []).append((item, item.external))
    return found


def _file(data: _Data, folder: Path) -> Path | Finding:
    """Where the file is, or what is wrong with it."""
    what = f"The data file {data.location[:200]} of {data.graph_name}"
    located = locate(data.bundle, data.location, folder)
    if located.problem == "link":
        return LINKED.at(
            data.graph_name,
            f"{what} is behind a link that leads out of the graph's folder.",
            found=located.found,
            expected="the data in the graph's folder",
            fix="put the file itself in the place of the link",
        )
    if located.path is None:
        return problem_with(located, f"{what},", data.graph_name, DATA_MISSING, DATA_OUTSIDE)
    if is_pointer(located.path):
        return POINTER.at(
            relative_name(data.bundle, located.path),
            f"{what} is a Git LFS pointer.",
            expected="the data itself",
            fix="run `git lfs pull`",
        )
    return located.path


def _in_file(data: _Data, path: Path, placed: ranges.Placed) -> Iterator[Finding]:
    try:
        status = path.stat()
    except OSError:
        return
    beyond = [t for t in data.tensors if t[1].offset + t[0].nbytes > status.st_size]
    if beyond:
        tensor, place = beyond[0]
        end = place.offset + tensor.nbytes
        yield RANGE.at(
            relative_name(data.bundle, path),
            f"{_count(beyond, data)} not wholly in {data.location[:200]}, the first of them "
            f"{tensor.name[:200]!r}.",
            found=f"a file of {status.st_size} bytes",
            expected=f"bytes {place.offset} to {end}",
            fix="the file is cut short, or of another export: fetch or build the bundle again",
        )
    other = [t for t in data.tensors if t[1].length != t[0].nbytes]
    if other:
        tensor, place = other[0]
        yield LENGTH.at(
            data.graph_name,
            f"{_count(other, data)} of another length in {data.location[:200]} than shape and "
            f"type need, the first of them {tensor.name[:200]!r}.",
            found=f"{place.length} bytes",
            expected=f"{tensor.nbytes} bytes for {tensor.dtype}{list(tensor.shape)[:8]}",
            fix="export the graph again",
        )
    for tensor, place in data.tensors:
        placed.add((status.st_dev, status.st_ino), path, data.graph_name, tensor, place)


def _count(tensors: Sequence[_Tensor], data: _Data) -> str:
    return f"{len(tensors)} of {len(data.tensors)} tensors of {data.graph_name} are"


def _shared(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    section = ("model", "decoder", "shared_initializers")
    entries = subject.config.get(section)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        name = entry.get("data_file") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            continue
        place = subject.place((*section, index, "data_file"))
        located = locate(bundle, name)
        if located.path is None:
            what = f"The data file of a shared initializer, {name[:200]},"
            yield problem_with(located, what, place, SHARED_DATA, OUTSIDE)
            continue
        offset, length = _number(entry.get("offset")), _number(entry.get("length"))
        size = _size(located.path)
        if offset + length > size:
            yield SHARED_DATA.at(
                place,
                f"A shared initializer is not wholly in {name[:200]}.",
                found=f"a file of {size} bytes",
                expected=f"bytes {offset} to {offset + length}",
                fix=_FETCH,
            )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _number(value: object) -> int:
    text = value if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
