"""Stages whose weights are stored as the CPU EP's kernels want them, judged before they are used.

What a child packed (`turnout.compiling.worker_prepack`) is judged by its headers here, and then by
another child that runs each graph and its source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.bundle import GraphFile
from turnout.compiling.naming import prepacked_name
from turnout.compiling.verify_interface import require_same_interface
from turnout.errors import CompileError, GraphError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnout.building.rewrite import ExternalData, Place
    from turnout.bundle import Bundle
    from turnout.compiling.jobs import Job, Member

DATA_FILE = "prepacked.data"
DISABLED = "session.disable_prepacking"
# Both graphs run the same kernels on the same weights, packed alike: no difference was ever seen.
# This is room for kernels that add in another order.
RELATIVE_DIFFERENCE = 1e-5
RUN_LIMIT_S = 600.0


@dataclass(frozen=True)
class Prepacked:
    """Sound graphs by stage. `packed_bytes` are those of weights laid out anew, each once;
    `bytes_saved` what would be stored besides if every graph had a file of its own.
    """

    graphs: Mapping[str, str]
    stored_bytes: int
    packed_bytes: int
    bytes_saved: int


def verify_prepacked(folder: Path, job: Job, bundle: Bundle) -> Prepacked:
    """The artifacts of a job of kind "prepacked" in `folder`, in which nothing else is.

    Raises `CompileError` for what is not sound, `ProcessError` where running it crashes.
    """
    found = verify_structure(folder, job)
    _require_same_outputs(folder, job, bundle)
    return found


def verify_structure(folder: Path, job: Job, *, besides: frozenset[str] = frozenset()) -> Prepacked:
    """What the headers say of the artifacts in `folder`, where nothing else is but `besides`.

    Raises `CompileError`.
    """
    names = {member.stage: prepacked_name(member.stage) for member in job.members}
    _require_files(folder, {*names.values(), DATA_FILE, *besides})
    check = _Ranges(folder / DATA_FILE)
    for member in job.members:
        try:
            check.add(folder / names[member.stage], member)
        except GraphError as error:
            raise CompileError(
                f"The packed graph of {member.stage!r} is not sound: {error.problem}",
                **error.facts,
            ) from error
    if not check.packed:
        raise CompileError("Nothing was packed.", where=folder)
    stored = {*check.plain, *check.packed}
    once = sum(place.length for place in stored)
    return Prepacked(
        graphs=names,
        stored_bytes=check.size,
        packed_bytes=sum(place.length for place in check.packed),
        bytes_saved=check.named - once,
    )


def _require_files(folder: Path, expected: set[str]) -> None:
    found = {path.name for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
    everything = {path.name for path in folder.iterdir()}
    if found != expected or everything != expected:
        raise CompileError(
            "What was packed is not complete, or more than that.",
            found=", ".join(sorted(everything)[:8]) or "nothing",
            expected=", ".join(sorted(expected)),
            where=folder,
        )


@dataclass
class _Ranges:
    """The ranges of the data file that graphs name, `named` bytes in all."""

    data: Path
    size: int = 0
    plain: set[Place] = field(default_factory=set)
    packed: set[Place] = field(default_factory=set)
    named: int = 0

    def __post_init__(self) -> None:
        self.size = self.data.stat().st_size

    def add(self, path: Path, member: Member) -> None:
        """Judge one graph. Raises `CompileError` or `GraphError`."""
        from turnout.building.rewrite import read_external

        graph, source = GraphFile.read(path), GraphFile.read(member.graph)
        if graph.ep_contexts:
            raise CompileError(
                f"{path.name} holds what an EP compiled, where only weights were to be packed.",
                found=f"{len(graph.ep_contexts)} EPContext nodes",
                where=path,
            )
        require_same_interface(source, graph)
        needed = {item.name: item.nbytes for item in graph.initializers}
        for item in read_external(path):
            self._add(path, item, needed.get(item.tensor, 0))

    def _add(self, path: Path, item: ExternalData, needed: int) -> None:
        if item.location != DATA_FILE:
            raise CompileError(
                f"{path.name} names a data file that was not made for it.",
                found=repr(item.location[:200]),
                expected=DATA_FILE,
                where=path,
            )
        blobs = [blob for weight in item.packed for blob in weight.blobs]
        for place in (item.place, *blobs):
            if place.offset + place.length > self.size:
                raise CompileError(
                    f"A tensor of {path.name} is not wholly in its data file.",
                    found=f"bytes {place.offset} to {place.offset + place.length} of {self.size}",
                    where=f"{path}, {item.tensor[:200]!r}",
                )
            self.named += place.length
        if item.place.length < needed:
            raise CompileError(
                f"A tensor of {path.name} is shorter than it must be.",
                found=f"{item.place.length} bytes",
                expected=f"{needed} bytes",
                where=f"{path}, {item.tensor[:200]!r}",
            )
        self.plain.add(item.place)
        self.packed.update(blobs)


def _require_same_outputs(folder: Path, job: Job, bundle: Bundle) -> None:
    from turnout.processes import call

    roles = bundle.config.get(("model", "decoder", "inputs"), {})
    vocab_size = bundle.config.get(("model", "vocab_size"))
    argument = {
        **job.argument(folder, {}),
        "roles": {key: name for key, name in roles.items() if isinstance(name, str)},
        "vocab_size": vocab_size if isinstance(vocab_size, int) and vocab_size > 0 else 1,
    }
    for member in argument["members"]:
        member["packed"] = str(folder / prepacked_name(member["stage"]))
    answer = call(
        "turnout.compiling.worker_prepack:first_outputs_here",
        argument,
        timeout=RUN_LIMIT_S,
        doing=f"comparing what was packed of {job.name}",
    )
    for stage, found in answer.items():
        if not found["difference"] <= RELATIVE_DIFFERENCE * found["largest"]:
            raise CompileError(
                f"The packed stage {stage!r} does not give what its source gives.",
                found=f"a difference of {found['difference']:g}",
                expected=f"at most {RELATIVE_DIFFERENCE:g} of {found['largest']:g}",
                where=folder,
            )
