"""Checks of compiled graphs: their EP, their binaries, and the weights bound to them (T32x)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnout import catalog
from turnout.bundle import Bundle, GraphFile, Stage
from turnout.bundle.epcontext import BoundWeight, ContextBinary, read_context_binary
from turnout.bundle.onnxnodes import EpContext
from turnout.bundle.session_keys import CONTEXT_PATH, INITIALIZER_FOLDER, SHARE_CONTEXTS
from turnout.checking.context_rules import (
    BINARY_BROKEN,
    BINARY_MISSING,
    BINARY_OUTSIDE,
    BOUND_WEIGHTS,
    EMPTY,
    HIDDEN,
    NOT_SHARED,
    OTHER_EP,
)
from turnout.checking.file_rules import POINTER
from turnout.checking.files import problem_with
from turnout.checking.findings import Finding
from turnout.checking.locating import file_place, is_pointer, locate, relative_name
from turnout.checking.subject import Subject
from turnout.errors import BundleError

_COMPILE = "compile the stage again, or fetch the file again"


def check(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    """Findings about every stage whose graph an EP compiled."""
    for stage in subject.stages:
        graph = subject.graphs.get(stage.name)
        if graph is not None and graph.ep_contexts:
            yield from _Compiled(subject, bundle, stage, graph).findings()


@dataclass(frozen=True)
class _Compiled:
    subject: Subject
    bundle: Bundle
    stage: Stage
    graph: GraphFile

    @property
    def name(self) -> str:
        """The graph, relative to the bundle."""
        return relative_name(self.bundle, self.graph.path)

    def findings(self) -> Iterator[Finding]:
        """What is wrong with its nodes, each kind of thing once."""
        yield from self.providers()
        nothing = [c for c in self.graph.ep_contexts if _is_empty(c)]
        if nothing:
            yield EMPTY.at(
                self.name,
                f"The compiled node {nothing[0].name[:200]!r} of {self.name} holds nothing.",
                found=f"{len(nothing)} such nodes of {len(self.graph.ep_contexts)}",
                expected="what was compiled, or the name of its binary",
                fix=_COMPILE,
            )
        for cache in dict.fromkeys(c.cache for c in self.graph.ep_contexts if c.cache):
            yield from self.binary(cache)
        for context in self.graph.ep_contexts:
            if context.embedded_bytes and (found := list(self.embedded(context))):
                yield from found
                return

    def embedded(self, context: EpContext) -> Iterator[Finding]:
        """What is wrong with what a node holds itself."""
        name = context.embedded_name
        if name and locate(self.bundle, name, self.graph.path.parent).path is not None:
            yield BINARY_BROKEN.at(
                self.name,
                f"The compiled node {context.name[:200]!r} of {self.name} names a file, and says "
                "that what was compiled is in the node itself.",
                found=f"embed_mode {context.embed_mode} with {name[:200]!r}",
                expected="embed_mode 0",
                fix=_COMPILE,
            )
        elif self.is_known(context):
            try:
                start = context.embedded_at
                span = (start, start + context.embedded_bytes)
                binary = read_context_binary(self.graph.path, span)
            except BundleError as error:
                yield self.broken(self.name, error.facts.get("found"), error.facts.get("expected"))
                return
            if binary is None:
                yield self.broken(self.name, "another format", f"what {context.source} compiled")
            elif not any(other.main_context for other in self.graph.ep_contexts):
                yield self.broken(self.name, "no node with main_context 1", "one of them")
            else:
                yield from self.parts(binary, self.name, [context])

    def is_known(self, context: EpContext) -> bool:
        """Whether an EP of the stage takes the node, and the format of its binaries is known."""
        ep = catalog.find(context.source)
        given = {entry.ep for entry in self.stage.providers}
        return ep is not None and ep.known_contexts and context.source == ep.name in given

    def broken(self, shown: str, found: str | None, expected: str | None) -> Finding:
        """The finding for a binary that is not what it should be."""
        return BINARY_BROKEN.at(
            shown,
            f"What was compiled into {shown} cannot be read.",
            found=found,
            expected=expected,
            fix=_COMPILE,
        )

    def providers(self) -> Iterator[Finding]:
        """Nodes of an EP that the stage does not name."""
        given = {entry.ep for entry in self.stage.providers}
        for source in sorted({context.source for context in self.graph.ep_contexts}):
            if any(catalog.takes_compiled(ep, source) for ep in given):
                continue
            names = ", ".join(sorted(given)) or catalog.CPU.name
            by = f"was compiled by {source[:100]}" if source else "does not say what compiled it"
            yield OTHER_EP.at(
                file_place(self.subject, self.stage),
                f"The graph of the stage {self.stage.name!r} {by}, and no EP of the stage takes "
                "it.",
                found=names,
                expected=source[:100] or "a graph that names its EP",
                fix="name that EP for the stage, or give the stage the graph before compiling",
            )

    def binary(self, cache: str) -> Iterator[Finding]:
        """What is wrong with the binary of that name."""
        what = f"The binary {cache[:200]} of {self.name},"
        located = locate(self.bundle, cache, self.graph.path.parent)
        hidden = self.hidden(cache)
        if hidden is not None:
            yield hidden
        elif located.path is None and not self.is_elsewhere(cache):
            yield problem_with(located, what, self.name, BINARY_MISSING, BINARY_OUTSIDE)
        elif located.path is not None:
            yield from self.content(located.path, cache)

    def folder(self) -> str | None:
        """The folder for external data, where binaries are looked for in it as well."""
        options = self.stage.effective_options
        named = options.get(INITIALIZER_FOLDER)
        if options.get(CONTEXT_PATH) or not isinstance(named, str):
            return None
        return named or None

    def is_elsewhere(self, cache: str) -> bool:
        """Whether the binary is in the folder for external data, and found there."""
        folder = self.folder()
        return folder is not None and locate(self.bundle, f"{folder}/{cache}").path is not None

    def hidden(self, cache: str) -> Finding | None:
        """A finding where the folder for external data keeps the binary from being found."""
        folder = self.folder()
        beside = locate(self.bundle, cache, self.graph.path.parent).path
        if folder is None or beside is None or self.is_elsewhere(cache):
            return None
        return HIDDEN.at(
            file_place(self.subject, self.stage),
            f"The binary {cache[:200]} of {self.name} is looked for in {folder[:200]}.",
            found=f"{INITIALIZER_FOLDER} without {CONTEXT_PATH}",
            expected=f"{CONTEXT_PATH}: the name of the graph",
            fix=f'add "{CONTEXT_PATH}": "{self.stage.filename}" to the session options',
        )

    def content(self, path: Path, cache: str) -> Iterator[Finding]:
        """What is wrong inside the binary."""
        shown = relative_name(self.bundle, path)
        if is_pointer(path):
            yield POINTER.at(
                shown, f"The binary {shown} is a Git LFS pointer.", fix="run `git lfs pull`"
            )
            return
        try:
            size = path.stat().st_size
            binary = read_context_binary(path)
        except (OSError, BundleError) as error:
            facts = error.facts if isinstance(error, BundleError) else {}
            yield self.broken(shown, facts.get("found", str(error)[:200]), facts.get("expected"))
            return
        users = [context for context in self.graph.ep_contexts if context.cache == cache]
        if not size:
            yield BINARY_BROKEN.at(
                shown,
                f"The binary {shown} is empty.",
                found="0 bytes",
                expected="what was compiled",
                fix=_COMPILE,
            )
        elif binary is not None:
            yield from self.parts(binary, shown, users)
            yield from self.weights(binary)
        elif known := next((context for context in users if self.is_known(context)), None):
            yield self.broken(shown, "a file of another format", f"what {known.source} compiled")

    def parts(self, binary: ContextBinary, shown: str, users: list[EpContext]) -> Iterator[Finding]:
        """Compiled parts that these nodes need and the binary does not hold."""
        for context in users:
            blob = binary.blobs.get(context.partition_name)
            if blob is not None and sum(blob) <= binary.file_bytes:
                continue
            yield BINARY_BROKEN.at(
                shown,
                f"The binary in {shown} does not hold what {self.name} needs.",
                found=f"a file of {binary.file_bytes} bytes with "
                + (f"a part that ends at byte {sum(blob)}" if blob else "other parts"),
                expected=f"the part {context.partition_name[:200]!r}",
                fix=_COMPILE,
            )
            return

    def weights(self, binary: ContextBinary) -> Iterator[Finding]:
        """The weights that are bound when it is loaded."""
        if not binary.weights:
            return
        if self.stage.effective_options.get(SHARE_CONTEXTS) != "1":
            yield NOT_SHARED.at(
                file_place(self.subject, self.stage),
                f"The stage {self.stage.name!r} was compiled with shared weights, and its "
                f"session options do not say {SHARE_CONTEXTS}.",
                found=repr(self.stage.effective_options.get(SHARE_CONTEXTS))[:100]
                if SHARE_CONTEXTS in self.stage.effective_options
                else "no such option",
                expected=f'"{SHARE_CONTEXTS}": "1"',
                fix="add it to the session options of the stage",
            )
        by_location: dict[str, list[BoundWeight]] = {}
        for weight in binary.weights:
            by_location.setdefault(weight.location, []).append(weight)
        for location, weights in by_location.items():
            yield from self.weight_file(location, weights)

    def weight_file(self, location: str, weights: list[BoundWeight]) -> Iterator[Finding]:
        """What is wrong with one file of them."""
        try:
            folder = self.bundle.data_folder(self.stage)
        except BundleError:
            return  # said of the option
        what = f"The weights {location[:200]} of the compiled graph {self.name},"
        located = locate(self.bundle, location, folder)
        if located.path is None:
            yield problem_with(located, what, self.name, BOUND_WEIGHTS, BINARY_OUTSIDE)
            return
        try:
            size = located.path.stat().st_size
        except OSError:
            return
        end = max(weight.offset + weight.size for weight in weights)
        if end > size:
            yield BOUND_WEIGHTS.at(
                relative_name(self.bundle, located.path),
                f"{what} are cut short.",
                found=f"a file of {size} bytes",
                expected=f"{end} bytes or more",
                fix="fetch or build the bundle again",
            )


def _is_empty(context: EpContext) -> bool:
    # Other nodes than the main one may leave it to that.
    if context.main_context != 1:
        return False
    return not context.cache if context.embed_mode == 0 else not context.embedded_bytes
