"""Judges what a child left of a job, before anything of it is published.

Only headers are read, and every length is bounded by its file, since a child may have been killed
at any moment, and an EP may write anything. Nothing here needs a runtime.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.bundle import GraphFile
from turnout.compiling.coverage import require_coverage
from turnout.compiling.naming import context_name
from turnout.compiling.targets import took_effect
from turnout.compiling.verify_binaries import Binaries
from turnout.compiling.verify_interface import require_same_interface
from turnout.errors import BundleError, CompileError
from turnout.files import contained

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.bundle.onnxnodes import EpContext
    from turnout.compiling.jobs import Job, Member

_MOST_FILES = 10_000
_SHOWN = 200
_EMBED_MODES = (0, 1)


@dataclass(frozen=True)
class Verified:
    """What is sound. `graphs` are file names by stage, `binaries` those of the binaries beside
    them, and `bytes_saved` the bytes that sharing keeps from being stored, at least.
    """

    graphs: Mapping[str, str]
    binaries: tuple[str, ...] = ()
    bytes_saved: int = 0


def verify_artifacts(
    folder: Path, job: Job, bundle: Bundle, *, besides: frozenset[str] = frozenset()
) -> Verified:
    """The artifacts of `job` in `folder`, in which nothing else is, but for the files `besides`.

    Raises `CompileError`.
    """
    try:
        return _Verification(folder, job, bundle, besides).run()
    except (BundleError, OSError) as error:
        problem = error.problem if isinstance(error, BundleError) else str(error)
        facts = error.facts if isinstance(error, BundleError) else {}
        raise CompileError(
            f"What was compiled of {job.name} is not sound: {problem}", **facts
        ) from error


@dataclass
class _Verification:
    folder: Path
    job: Job
    bundle: Bundle
    besides: frozenset[str] = frozenset()
    found: set[str] = field(default_factory=set)
    graphs: dict[str, str] = field(default_factory=dict)

    def run(self) -> Verified:
        """Look at every file."""
        self.found = _regular_files(self.folder) - self.besides
        sources = {member.stage: GraphFile.read(member.graph) for member in self.job.members}
        binaries = Binaries(self.folder, self.job, self.bundle, tuple(sources.values()))
        for member in self.job.members:
            graph = self._graph(member)
            self.graphs[member.stage] = graph.path.name
            require_same_interface(sources[member.stage], graph)
            took_effect(graph, self.job.ep, self.job.target)
            require_coverage(member.stage, sources[member.stage], graph)
            self._require_inside(graph, sources[member.stage])
            for context in graph.ep_contexts:
                self._require_context(graph, context)
                binaries.add(graph, context)
            binaries.require_mains(graph)
        saved = binaries.check()
        names = tuple(sorted(binaries.names))
        self._require_nothing_else({*self.graphs.values(), *names})
        return Verified(dict(self.graphs), names, saved)

    def _graph(self, member: Member) -> GraphFile:
        name = context_name(member.stage, self.job.ep)
        if name not in self.found:
            raise CompileError(
                f"Of the stage {member.stage!r} no compiled graph was left.",
                found=", ".join(sorted(self.found)[:6]) or "nothing",
                expected=name,
                where=self.folder,
            )
        graph = GraphFile.read(self.folder / name)
        if not graph.ep_contexts:
            raise CompileError(
                f"Nothing was compiled of the stage {member.stage!r}.",
                found=f"{graph.node_count} nodes, none of them an EPContext",
                where=graph.path,
            )
        return graph

    def _require_context(self, graph: GraphFile, context: EpContext) -> None:
        """A node is of the EP that was asked for, and holds or names what that compiled."""
        if catalog.canonical(context.source) != self.job.ep:
            raise CompileError(
                f"A node of {graph.path.name} was compiled by another EP.",
                found=context.source[:_SHOWN] or "no source",
                expected=self.job.ep,
                where=f"{graph.path}, node {context.name[:_SHOWN]!r}",
            )
        if context.embed_mode not in _EMBED_MODES:
            raise CompileError(
                f"A node of {graph.path.name} neither holds nor names what was compiled.",
                found=f"embed_mode {context.embed_mode}",
                expected="0 or 1",
                where=graph.path,
            )
        if context.embed_mode and self.job.shared:
            raise CompileError(
                f"{graph.path.name} holds what was compiled itself, and can share nothing.",
                expected="embed_mode 0",
                where=graph.path,
            )

    def _require_inside(self, graph: GraphFile, source: GraphFile) -> None:
        """External data of the nodes that stay uncompiled is the source's own, and there."""
        for item in graph.initializers:
            if item.external is None:
                continue
            name, end = item.external.location, item.external.offset + item.external.length
            path = contained(
                self.job.data_folder, name, what=f"data file of {graph.path.name}",
                also=self.bundle.blobs,
            )  # fmt: skip
            if name not in source.external_files or not path.is_file():
                raise CompileError(
                    f"{graph.path.name} names a data file that its source does not have.",
                    found=repr(name[:_SHOWN]),
                    expected=", ".join(source.external_files[:6]) or "no data file",
                    where=graph.path,
                )
            if end > path.stat().st_size or item.external.length < item.nbytes:
                raise CompileError(
                    f"A tensor of {graph.path.name} is not wholly in its data file.",
                    found=f"bytes {item.external.offset} to {end} of {path.stat().st_size}",
                    expected=f"{item.nbytes} bytes",
                    where=f"{graph.path}, {item.name[:_SHOWN]!r}",
                )

    def _require_nothing_else(self, named: set[str]) -> None:
        others = sorted(self.found - named)
        if others:
            raise CompileError(
                f"Compiling {self.job.name} left files that no graph names.",
                found=", ".join(others[:6]),
                expected=", ".join(sorted(named)),
                where=self.folder,
            )


def _regular_files(folder: Path) -> set[str]:
    """The names in a folder, all of which are regular files: no link, no device, no folder."""
    names: set[str] = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode) or len(names) >= _MOST_FILES:
                raise CompileError(
                    "Compiling left something that is no plain file.",
                    found=entry.name,
                    expected=f"at most {_MOST_FILES} files, no links and no folders",
                    where=folder,
                )
            names.add(entry.name)
    return names
