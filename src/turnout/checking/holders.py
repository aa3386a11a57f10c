"""The session options of a config that the runtime uses, with the place of every provider entry."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.bundle.jsontext import Path

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig, Stage
    from turnout.checking.subject import Subject

OPTIONS, PROVIDERS = "session_options", "provider_options"
# No EP has as many; what is beyond is not looked at, so that no config takes for ever.
MOST_OPTIONS = 256
_MOST_HOLDERS = 1024
_MOST_ENTRIES = 64
_DECODER: Path = ("model", "decoder", OPTIONS)


@dataclass(frozen=True)
class Entry:
    """One EP of a `provider_options` array: `path` is its place, `options` those that are text."""

    path: Path
    name: str
    options: Mapping[str, str]

    @property
    def ep(self) -> str:
        """The canonical EP."""
        return catalog.canonical(self.name)

    @property
    def known(self) -> catalog.Ep | None:
        """What the catalog knows of it."""
        return catalog.find(self.name)


@dataclass(frozen=True)
class Holder:
    """One `session_options` object and the stages that run with it.

    `options` are its own, `providers` the value of its `provider_options` as it is.
    """

    path: Path
    options: Mapping[str, Any]
    providers: Any
    stages: tuple[Stage, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its provider entries in order; one that is not an object is passed over."""
        return tuple(_entries(self.path, self.providers))

    @property
    def names(self) -> str:
        """The stages in words."""
        return ", ".join(stage.name for stage in self.stages)


def holders(subject: Subject) -> tuple[Holder, ...]:
    """Every `session_options` that the runtime reads, the decoder's included.

    The decoder's are read even where every stage of its pipeline has its own.
    """
    stages: dict[Path, list[Stage]] = {}
    for stage in subject.stages:
        if not stage.takes_options:
            continue
        if stage.has_session_options:
            stages.setdefault((*stage.path, OPTIONS), []).append(stage)
        if stage.inherits:
            stages.setdefault(("model", stage.options_section, OPTIONS), []).append(stage)
    stages.setdefault(_DECODER, [])
    some = itertools.islice(stages.items(), _MOST_HOLDERS)
    found = (_holder(subject.config, path, users) for path, users in some)
    return tuple(holder for holder in found if holder is not None)


def entry_of(found: tuple[Holder, ...], stage: Stage, ep: str) -> Entry | None:
    """The entry that names `ep` (canonical) for a stage; its own before an inherited one."""
    own = (*stage.path, OPTIONS)
    parent: Path = ("model", stage.options_section, OPTIONS)
    for path in (own, parent):
        holder = next((h for h in found if h.path == path), None)
        for entry in holder.entries if holder is not None else ():
            if entry.ep == ep:
                return entry
    return None


def _holder(config: GenaiConfig, path: Path, stages: list[Stage]) -> Holder | None:
    value = config.get(path)
    if not isinstance(value, dict):
        return None
    options = {key: item for key, item in value.items() if key != PROVIDERS}
    return Holder(path, options, value.get(PROVIDERS), tuple(stages))


def _entries(path: Path, providers: Any) -> Iterator[Entry]:
    elements = providers[:_MOST_ENTRIES] if isinstance(providers, list) else ()
    for index, element in enumerate(elements):
        for name, body in element.items() if isinstance(element, dict) else ():
            if isinstance(body, dict):
                some = itertools.islice(body.items(), MOST_OPTIONS)
                options = {key: value for key, value in some if isinstance(value, str)}
                yield Entry((*path, PROVIDERS, index, name), name, options)
