"""(config, route) -> the effective config: only what the route changes is written.

Works by comparing, for every stage, what takes effect with what the route wants to take effect,
so a route to what is already there changes no byte, and applying a route twice is applying it
once. Entries are written on stages: a pipeline with an EP on the decoder itself fails at run time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.errors import ConfigError, UsageError
from turnout.routing.options import as_json

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig, ProviderEntry, Stage
    from turnout.routing.resolve import Route

_PATH = tuple[str | int, ...]
_OPTIONS = "session_options"
_PROVIDERS = "provider_options"
_INHERIT = "inherit_session_options"
# Characters to be read in all, since each edit reads the text anew: some fifteen seconds. Real
# configs take a few percent of it.
_MOST_READ = 32 << 20


@dataclass(frozen=True)
class _Wanted:
    """What shall take effect for a stage."""

    providers: tuple[ProviderEntry, ...]
    options: Mapping[str, Any]

    def holds(self, stage: Stage) -> bool:
        """Whether it does already."""
        return self.providers == stage.providers and dict(self.options) == dict(
            stage.effective_options
        )


def apply(config: GenaiConfig, route: Route) -> GenaiConfig:
    """The effective config: `config` itself when the route changes nothing.

    Raises `UsageError` for a route that was made for another bundle, and `ConfigError` where
    too much would have to be written.
    """
    stages = config.stages()
    decisions = {decision.stage: decision for decision in route.stages}
    if set(decisions) != {stage.name for stage in stages}:
        raise UsageError(
            "The route was made for another bundle.",
            found=", ".join(decisions),
            expected=f"the stages {', '.join(stage.name for stage in stages)}",
        )
    wanted = {}
    for stage in stages:
        decision = decisions[stage.name]
        kept = {k: v for k, v in stage.effective_options.items() if k not in decision.drop_options}
        wanted[stage.name] = _Wanted(decision.providers, {**kept, **decision.set_options})
    _bound(config, stages, wanted)
    if route.request.reroutes:
        config = _without_shared_providers(config)
    # Stages that feed on the decoder's options come after it, since it may change them.
    for name in sorted(wanted, key=lambda n: not decisions[n].in_decoder):
        # The stage as the edits so far have left it.
        now = next(stage for stage in config.stages() if stage.name == name)
        if now.takes_options and not wanted[name].holds(now):
            config = _write(config, now, wanted[name])
    return config


def _bound(config: GenaiConfig, stages: tuple[Stage, ...], wanted: Mapping[str, _Wanted]) -> None:
    """A text made to be expensive is refused, not edited for hours."""
    edits, length = 0, len(config.text)
    for stage in stages:
        want = wanted[stage.name]
        if not stage.takes_options or want.holds(stage):
            continue
        edits += 1
        if not stage.has_session_options:
            length += len(json.dumps(want.options))
            continue
        own = stage.session_options
        edits += sum(not _is(own, key, value) for key, value in want.options.items())
        edits += sum(key not in want.options for key in own)
        edits += sum(len(entry.options) for entry in want.providers)
    if edits * length > _MOST_READ:
        raise ConfigError(
            f"{config.where} is too large to be rerouted.",
            found=f"{edits} values to change in {length} characters",
            expected="the options of a few stages",
            where=config.where,
        )


def _without_shared_providers(config: GenaiConfig) -> GenaiConfig:
    """A pipeline's config without EPs on the decoder itself, where they fail at run time."""
    for stage in config.stages():
        parent = stage.path[:2]
        if not stage.in_decoder or stage.path == parent:
            continue
        path = (*parent, _OPTIONS, _PROVIDERS)
        entries = config.get(path)
        if isinstance(entries, list):
            # No stage may use these, and then nothing has looked at them yet.
            config.providers(path[:-1])
            config = _remove_entries(config, path, entries, keep=(catalog.CPU.name,))
    return config


def _write(config: GenaiConfig, stage: Stage, wanted: _Wanted) -> GenaiConfig:
    path = (*stage.path, _OPTIONS)
    if not stage.has_session_options:
        own: dict[str, Any] = dict(wanted.options)
        if wanted.providers:
            own[_PROVIDERS] = [as_json(entry) for entry in wanted.providers]
        return _without_parent(config.edit(path, own), stage)
    for key in [k for k in stage.session_options if k != _PROVIDERS and k not in wanted.options]:
        config = config.remove((*path, key))
    for key, value in wanted.options.items():
        if not _is(stage.session_options, key, value):
            config = config.edit((*path, key), value)
    return _without_parent(_write_providers(config, (*path, _PROVIDERS), wanted.providers), stage)


def _without_parent(config: GenaiConfig, stage: Stage) -> GenaiConfig:
    """What the decoder's options hold would else come back below the stage's own."""
    path = (*stage.path, _INHERIT)
    return config.edit(path, False) if config.get(path) is True else config


def _write_providers(
    config: GenaiConfig, path: _PATH, wanted: tuple[ProviderEntry, ...]
) -> GenaiConfig:
    entries = config.get(path)
    if not isinstance(entries, list):
        return config.edit(path, [as_json(entry) for entry in wanted]) if wanted else config
    keep = tuple(entry.ep for entry in wanted)
    there = tuple(catalog.canonical(name) for _, name in _places(entries))
    if tuple(ep for ep in there if ep in keep) != keep:
        return config.edit(path, [as_json(entry) for entry in wanted])
    config = _remove_entries(config, path, entries, keep=keep)
    for entry, (index, name) in zip(wanted, _places(config.get(path)), strict=True):
        body = as_json(entry)[entry.name]
        old = config.get((*path, index, name))
        for key in [key for key in old if key not in body]:
            config = config.remove((*path, index, name, key))
        for key, value in body.items():
            if not _is(old, key, value):
                config = config.edit((*path, index, name, key), value)
    return config


def _is(options: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether an option has that very value already; each edit costs a reading of the text."""
    return key in options and type(options[key]) is type(value) and options[key] == value


def _places(entries: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(index, name) for index, item in enumerate(entries) for name in item]


def _remove_entries(
    config: GenaiConfig, path: _PATH, entries: list[dict[str, Any]], keep: tuple[str, ...]
) -> GenaiConfig:
    """Remove the entries of EPs that are not to be kept, and what they leave empty."""
    for index in reversed(range(len(entries))):
        names = list(entries[index])
        gone = [name for name in names if catalog.canonical(name) not in keep]
        if gone and len(gone) == len(names):
            config = config.remove((*path, index))
            continue
        for name in gone:
            config = config.remove((*path, index, name))
    return config
