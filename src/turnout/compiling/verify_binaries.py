"""The binaries of a job: there, whole, of the right EP, and bound to the right weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.bundle import GraphFile
from turnout.bundle.epcontext import (
    BoundWeight,
    read_context_binary,
    require_layout,
    require_parts,
)
from turnout.errors import CompileError
from turnout.files import contained

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.bundle.onnxnodes import EpContext
    from turnout.compiling.jobs import Job

_SHOWN = 200
# Location without `./`, offset, length.
_Range = tuple[str, int, int]
# A file, and for what is embedded in a graph, where it begins and ends in it.
_Place = tuple[str, tuple[int, int] | None]


@dataclass
class Binaries:
    """What the nodes of a job's graphs hold and name. `sources` are the graphs it was made of."""

    folder: Path
    job: Job
    bundle: Bundle
    sources: tuple[GraphFile, ...]
    parts: dict[_Place, set[str]] = field(default_factory=dict)
    _main: dict[str, _Place] = field(default_factory=dict)
    _left: dict[str, set[str]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The files, without the graphs."""
        return {name for name, span in self.parts if span is None}

    def add(self, graph: GraphFile, context: EpContext) -> None:
        """A node. Raises `CompileError` where it holds nothing, or names what is not there."""
        place = self._place(graph, context)
        if place is not None:
            self.parts.setdefault(place, set()).add(context.partition_name)
            if context.main_context == 1:
                self._main.setdefault(graph.path.name, place)
        elif context.main_context == 1:
            raise CompileError(
                f"A node of {graph.path.name} holds nothing that was compiled.",
                where=f"{graph.path}, node {context.name[:_SHOWN]!r}",
            )
        else:
            self._left.setdefault(graph.path.name, set()).add(context.partition_name)

    def require_mains(self, graph: GraphFile) -> None:
        """Nodes that leave it to the graph's main one have one. Raises `CompileError`."""
        left = self._left.pop(graph.path.name, set())
        if not left:
            return
        main = self._main.get(graph.path.name)
        if main is None:
            raise CompileError(
                f"Nodes of {graph.path.name} leave what was compiled to a main one that it lacks.",
                where=graph.path,
            )
        self.parts[main] |= left

    def check(self) -> int:
        """Read them all; the bytes of weights that sharing saves. Raises `CompileError`."""
        if self.job.shared and len(self.names) != 1:
            raise CompileError(
                f"The weights of {self.job.name} are not shared.",
                found=", ".join(sorted(self.names)) or "no binary",
                expected="one binary for all graphs",
                where=self.folder,
            )
        bound: set[_Range] = set()
        inside = 0
        for (name, span), parts in self.parts.items():
            path = self.folder / name
            self._require_format(path, span)
            binary = read_context_binary(path, span)
            if binary is None:
                continue
            require_layout(binary, path)
            require_parts(binary, path, parts)
            inside += sum(size for _, size in binary.blobs.values())
            for weight in binary.weights:
                bound.add(self._require_weight(path, weight))
        return self._saved(bound, inside) if self.job.shared else 0

    def _place(self, graph: GraphFile, context: EpContext) -> _Place | None:
        if context.embed_mode == 1:
            if not context.embedded_bytes:
                return None
            begin = context.embedded_at
            return graph.path.name, (begin, begin + context.embedded_bytes)
        if not context.cache:
            return None
        path = contained(self.folder, context.cache, what=f"binary of {graph.path.name}")
        name = path.relative_to(self.folder).as_posix()
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            raise CompileError(
                f"{graph.path.name} names a binary that is not there, or empty.",
                found=repr(context.cache[:_SHOWN]),
                expected="a file beside it",
                where=graph.path,
            )
        return name, None

    def _require_format(self, path: Path, span: tuple[int, int] | None) -> None:
        """Begins as those of its EP do, where that is known, and not as another's."""
        begin, end = span or (0, path.stat().st_size)
        with path.open("rb") as file:
            file.seek(begin)
            start = file.read(min(64, end - begin))
        magics = {ep.name: ep.context_magic for ep in catalog.EPS if ep.context_magic}
        writer = next((n for n, magic in magics.items() if start.startswith(magic)), None)
        if writer == self.job.ep or (writer is None and self.job.ep not in magics):
            return
        raise CompileError(
            f"{path.name} is no binary of {catalog.alias_of(self.job.ep)}.",
            found=f"one of {catalog.alias_of(writer)}" if writer else repr(start[:8]),
            expected=repr(magics.get(self.job.ep, b"another format")),
            where=path,
        )

    def _require_weight(self, path: Path, weight: BoundWeight) -> _Range:
        """What is bound at load is a weight of the source graphs, in a file of the bundle."""
        if not self.job.shared:
            raise CompileError(
                f"{path.name} leaves weights outside, though none were to be shared.",
                found=repr(weight.name[:_SHOWN]),
                where=path,
            )
        file = contained(
            self.job.data_folder, weight.location, what=f"weight file of {path.name}",
            also=self.bundle.blobs,
        )  # fmt: skip
        key = _range(weight.location, weight.offset, weight.size)
        size = file.stat().st_size if file.is_file() else -1
        if size < 0 or not weight.size or weight.offset + weight.size > size:
            raise CompileError(
                f"The weight {weight.name[:_SHOWN]!r} of {path.name} is not in its file.",
                found=f"{weight.size} bytes at byte {weight.offset} of {weight.location[:_SHOWN]!r}"
                + (f", which has {size}" if size >= 0 else ", which is missing"),
                expected="a range of the bundle's own data",
                where=path,
            )
        if key not in self._ranges.get(weight.name, self._all_ranges):
            raise CompileError(
                f"The weight {weight.name[:_SHOWN]!r} of {path.name} is none of its source.",
                found=f"{weight.size} bytes at byte {weight.offset} of "
                f"{weight.location[:_SHOWN]!r}",
                expected="a range that the source graphs name",
                where=path,
            )
        return key

    @cached_property
    def _ranges(self) -> dict[str, set[_Range]]:
        """The external ranges of the source graphs by the tensor's name."""
        found: dict[str, set[_Range]] = {}
        for source in self.sources:
            for name, key in _external(source):
                found.setdefault(name, set()).add(key)
        return found

    @cached_property
    def _all_ranges(self) -> set[_Range]:
        return {key for source in self.sources for _, key in _external(source)}

    def _saved(self, bound: set[_Range], inside: int) -> int:
        """Bytes that are not stored: what each graph would hold of what is bound, less what the
        parts hold still; where nothing is bound, every copy of a range but one.

        An EP may keep some weights in a form of its own as well, so the first is the least that
        it can be (SmolLM2, int4: 128 MB where 134 MB were measured; fp32: 846 of 849).
        """
        uses = [{key for _, key in _external(source)} for source in self.sources]
        if bound:
            return max(sum(key[2] for use in uses for key in use & bound) - inside, 0)
        every = set().union(*uses)
        return sum(key[2] for use in uses for key in use) - sum(key[2] for key in every)


def _external(graph: GraphFile) -> list[tuple[str, _Range]]:
    return [
        (item.name, _range(item.external.location, item.external.offset, item.external.length))
        for item in graph.initializers
        if item.external is not None
    ]


def _range(location: str, offset: int, length: int) -> _Range:
    return PurePosixPath(location).as_posix(), offset, length
