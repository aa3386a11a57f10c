"""How stages are to keep one copy of their weights: the choice among three ways, with reasons.

The rules of "auto" and what was measured for them stand in docs/sharing.md. Nothing is done here,
and nothing is chosen that is not proven by content first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.bundle.contents import HashRange, equal_graphs, sha256_range, stored_tensors
from turnout.bundle.weights import external_ranges
from turnout.compiling import sessions
from turnout.compiling.jobs import Job
from turnout.compiling.options import SHARE_WORDS
from turnout.compiling.plan import member_of, why_not
from turnout.compiling.prepacked import DISABLED
from turnout.errors import CompileError, UsageError

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig, Stage
    from turnout.bundle.contents import StoredTensor
    from turnout.compiling.hashes import ContentHashes
    from turnout.machine import Inventory

_ALL = frozenset({"auto", "require"})
# Where an EP's own sharing costs no speed (docs/sharing.md). Elsewhere it is on request.
_EP_DEVICES = frozenset({"npu", "gpu"})
# Operators whose weights the CPU EP lays out anew at load.
_PACKING = frozenset(
    {
        "MatMul",
        "FusedMatMul",
        "Gemm",
        "FusedGemm",
        "MatMulNBits",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "QGemm",
        "Attention",
        "QAttention",
        "Conv",
        "FusedConv",
        "LSTM",
        "GRU",
        "DynamicQuantizeLSTM",
    }
)
# Packing once pays from about here; below, every file more costs as much as it saves.
_WORTH_BYTES = 1 << 20


@dataclass(frozen=True)
class Choice:
    """How the weights of an effective config are to be shared.

    `config` is the effective one with merged sessions; `merged` maps a stage that is gone to the
    one that runs in its place. `ep_groups` are stages whose EP keeps one copy, `prepack` those
    whose weights are packed into one file. `reasons` say, in words, what was and what was not.
    """

    config: GenaiConfig
    merged: Mapping[str, str] = field(default_factory=dict)
    ep_groups: tuple[tuple[str, ...], ...] = ()
    prepack: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether anything is to be shared."""
        return bool(self.merged or self.ep_groups or self.prepack)


def choose(
    bundle: Bundle,
    effective: GenaiConfig,
    share: str,
    *,
    compiling: bool = False,
    hashes: ContentHashes | None = None,
    inventory: Inventory | None = None,  # noqa: ARG001 - a choice by device may need it
) -> Choice:
    """What to share in `bundle` as `effective` routes it, by the word `share`.

    `compiling`: "auto" was not asked for, but comes with compiling: weights are then not packed,
    which takes disk and compiles nothing. `hashes` remembers what was read. Raises `UsageError`
    for an unknown word, `CompileError` where "require" finds nothing, and `GraphError`.
    """
    if share not in SHARE_WORDS:
        raise UsageError(
            "The way to share weights is unknown.",
            found=repr(share),
            expected=", ".join(SHARE_WORDS),
        )
    if share == "off":
        return Choice(effective)
    hash_range = hashes.range if hashes is not None else sha256_range
    choosing = _Choosing(bundle, effective, share, hash_range)
    if share in {"session", *_ALL}:
        choosing.merge()
    if share in {"ep", *_ALL}:
        choosing.group()
    if share == "prepacked" or (share in _ALL and not compiling):
        choosing.pack()
    choice = choosing.choice()
    if share == "require" and not choice.is_any:
        raise CompileError(
            "Nothing of this bundle can be shared between its stages.",
            found="; ".join(choice.reasons) or "no two stages with weights",
            where=bundle.path,
            fix="leave out --share require, or look at: turnout inspect --sharing",
        )
    return choice


def equal_stages(
    bundle: Bundle, one: str, other: str, hash_range: HashRange = sha256_range
) -> bool:
    """Whether two stages' graphs compute the same from the same weights. Raises `GraphError`."""
    return equal_graphs(bundle, bundle.stage(one), bundle.stage(other), hash_range)


def prepack_job(bundle: Bundle, effective: GenaiConfig, stages: tuple[str, ...]) -> Job:
    """The job that packs the weights of these stages into one file. Raises `GraphError`."""
    routed = replace(bundle, config=effective)
    members = [routed.stage(name) for name in stages]
    return Job(
        kind="prepacked",
        ep=catalog.CPU.name,
        members=tuple(member_of(routed, stage) for stage in members),
        data_folder=routed.data_folder(members[0]).resolve(),
    )


class _Choosing:
    """Chooses way by way; what one has taken, the next leaves alone."""

    def __init__(
        self, bundle: Bundle, effective: GenaiConfig, share: str, hash_range: HashRange
    ) -> None:
        self.bundle = replace(bundle, config=effective)
        self.share, self.hash_range = share, hash_range
        self.merged: dict[str, str] = {}
        self.groups: list[tuple[str, ...]] = []
        self.packed: tuple[str, ...] = ()
        self.reasons: list[str] = []
        self._tensors: dict[str, tuple[StoredTensor, ...]] = {}

    def choice(self) -> Choice:
        return Choice(
            self.bundle.config,
            dict(self.merged),
            tuple(self.groups),
            self.packed,
            tuple(self.reasons),
        )

    def merge(self) -> None:
        """One session for every two stages that are one graph, run on prompt and on tokens."""
        for one, other in sessions.candidates(self.bundle.config):
            if {one, other} & {*self.merged, *self.merged.values()}:
                continue
            reason = sessions.obstacle(self.bundle.config, one, other)
            if reason is None and not self._equal(one, other):
                reason = "their graphs or weights differ"
            if reason is not None:
                self.reasons.append(f"{one} and {other} stay two sessions: {reason}")
                continue
            kept = sessions.survivor(self.bundle.config, one, other)
            gone = other if kept == one else one
            self.bundle = replace(
                self.bundle, config=sessions.merge(self.bundle.config, one, other)
            )
            self.merged[gone] = kept
            self.reasons.append(f"{gone} is {kept}: one session runs on prompt and tokens")

    def group(self) -> None:
        """Groups of stages on an EP that can keep one copy of their weights itself."""
        for stages in self._on_one_ep():
            ep, device = catalog.alias_of(stages[0].ep), _device(stages[0])
            names = ", ".join(stage.name for stage in stages)
            if self.share in _ALL and device not in _EP_DEVICES:
                self.reasons.append(
                    f"{names}: {ep} on {device or 'a device of its choice'} shares weights at a"
                    " cost in speed, so only by --share ep"
                )
                continue
            for group in self._without_conflict(stages):
                self.groups.append(group)
                self.reasons.append(f"{', '.join(group)}: {ep} keeps their weights once")

    def pack(self) -> None:
        """The stages of the CPU EP whose weights are packed, where that is of use."""
        taken = {name for group in self.groups for name in group}
        able: list[Stage] = []
        for stage in self.bundle.stages:
            reason = self._why_not_packed(stage)
            if reason is None and stage.name not in taken:
                able.append(stage)
            elif reason:
                self.reasons.append(f"{stage.name} is not packed: {reason}")
        able = self._in_one_folder(able)
        if not able:
            return
        common = max(
            (self._common_bytes(a, b) for a, b in combinations(able, 2)),
            default=0,
        )
        names = ", ".join(stage.name for stage in able)
        if self.share in _ALL and common < _WORTH_BYTES:
            self.reasons.append(
                f"{names}: in one process no two sessions would pack the same weights;"
                " --share prepacked shares them among processes"
            )
            return
        self.packed = tuple(stage.name for stage in able)
        self.reasons.append(f"{names}: packed weights are kept once, in one file")

    def _equal(self, one: str, other: str) -> bool:
        return equal_stages(self.bundle, one, other, self.hash_range)

    def _on_one_ep(self) -> Iterator[list[Stage]]:
        """Stages on one EP that shares weights, with the same options and folder of weights."""
        alike: dict[tuple[object, ...], list[Stage]] = {}
        for stage in self.bundle.stages:
            known = catalog.find(stage.ep)
            if known is None or not known.shares_weights or why_not(self.bundle, stage):
                continue
            entries = tuple(
                (entry.ep, tuple(sorted(entry.options.items())), repr(entry.device_filter))
                for entry in stage.providers
            )
            options = repr(sorted(stage.effective_options.items()))
            key = (entries, options, self.bundle.data_folder(stage))
            alike.setdefault(key, []).append(stage)
        yield from (stages for stages in alike.values() if len(stages) > 1)

    def _without_conflict(self, stages: list[Stage]) -> Iterator[tuple[str, ...]]:
        """Groups that share weights and in which no name stands for two tensors."""
        left = list(stages)
        while left:
            group = [left.pop(0)]
            for stage in list(left):
                conflict = next((c for m in group if (c := self._conflict(m, stage))), None)
                if conflict is not None:
                    self.reasons.append(
                        f"{group[0].name} and {stage.name} cannot share: the name {conflict!r}"
                        " stands for different tensors"
                    )
                elif any(self._common_bytes(member, stage) for member in group):
                    group.append(stage)
                    left.remove(stage)
            if len(group) > 1:
                yield tuple(stage.name for stage in group)

    def _conflict(self, one: Stage, other: Stage) -> str | None:
        """A name of tensors outside both graphs that are not one range of one file."""
        known = {item.name: item for item in self._stored(one) if not item.inline}
        for item in self._stored(other):
            same = known.get(item.name)
            if same is None or item.inline:
                continue
            place = (item.path, item.offset, item.length, item.dtype, item.shape)
            if place != (same.path, same.offset, same.length, same.dtype, same.shape):
                return item.name
        return None

    def _stored(self, stage: Stage) -> tuple[StoredTensor, ...]:
        if stage.name not in self._tensors:
            self._tensors[stage.name] = stored_tensors(self.bundle, stage)
        return self._tensors[stage.name]

    def _common_bytes(self, one: Stage, other: Stage) -> int:
        first, second = external_ranges(self.bundle, one), external_ranges(self.bundle, other)
        return sum(place[3] for place in first.keys() & second.keys())

    def _why_not_packed(self, stage: Stage) -> str | None:
        """Why a stage's weights cannot be packed; "" where there is nothing to say of it."""
        if stage.ep != catalog.CPU.name or not stage.filename:
            return ""
        if not stage.takes_options:
            return "the runtime takes no options for it"
        if str(stage.effective_options.get(DISABLED, "0")) == "1":
            return f"{DISABLED} is set, so that it packs nothing"
        graph = self.bundle.graph(stage)
        if graph.ep_contexts:
            return "it is compiled already"
        return None if any(kind in _PACKING for _, kind in graph.ops) else ""

    def _in_one_folder(self, stages: list[Stage]) -> list[Stage]:
        """Those whose data is where the first one's is: one file takes its sources from there."""
        folders = {stage.name: self.bundle.data_folder(stage) for stage in stages}
        kept = [stage for stage in stages if folders[stage.name] == folders[stages[0].name]]
        for stage in stages:
            if stage not in kept:
                self.reasons.append(f"{stage.name} is not packed: its weights are elsewhere")
        return kept


def _device(stage: Stage) -> str | None:
    known = catalog.find(stage.ep)
    entry = next((entry for entry in stage.providers if entry.ep == stage.ep), None)
    if known is None:
        return None
    return known.device_of(entry.options if entry is not None else {})
