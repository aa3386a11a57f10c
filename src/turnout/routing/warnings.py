"""What is worth saying about a config that runs here as it is, and about where a route leads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.errors import BundleError, ConfigError, MachineError
from turnout.machine import Inventory
from turnout.routing.options import device_of, entry_of

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig, ProviderEntry, Stage
    from turnout.bundle.jsontext import Path
    from turnout.routing.resolve import StageRoute

NO_FALLBACK = "session.disable_cpu_ep_fallback"
_DECODER = ("model", "decoder")
_OPTIONS = "session_options"


def warnings_for(config: GenaiConfig, inventory: Inventory | None = None) -> tuple[str, ...]:
    """A line for every EP to which `config` sends stages though it can only compile here.

    `config` is the effective one. This machine is looked at (about 0.4 s) only where the config
    names an EP that may have such devices and no `inventory` is given; one that cannot be looked
    at gives no warning. Raises `ConfigError`.
    """
    doubtful: dict[str, list[Stage]] = {}
    for stage in config.stages():
        known = catalog.find(stage.ep)
        if known is not None and known.compile_only_on:
            doubtful.setdefault(known.name, []).append(stage)
    if not doubtful:
        return ()
    if inventory is None:
        with contextlib.suppress(MachineError):
            inventory = Inventory.discover()
    if inventory is None:
        return ()
    lines = []
    for name, stages in doubtful.items():
        names = [stage.name for stage in stages if only_compiles(stage, inventory)]
        if names:
            lines.append(
                f"{catalog.alias_of(name)} can compile on this machine but not run: the runtime"
                f" may run most of its stages' work on the CPU EP ({', '.join(names)})"
            )
    return tuple(lines)


def only_compiles(stage: Stage, inventory: Inventory) -> bool:
    """Whether a machine's EP can prepare a stage for other machines, but not run it."""
    installed = inventory.ep(stage.ep)
    if installed is None or installed.problem is not None:
        return False
    device = device_of(entry_of(stage.providers, stage.ep), stage.ep)
    listed = {found.kind for found in installed.devices}
    return installed.compile_only or (device in listed and device not in installed.kinds)


def load_warnings(
    config: GenaiConfig, routes: Iterable[StageRoute], *, reroutes: bool
) -> tuple[str, ...]:
    """Lines for what will not load or run by these decisions, as far as the config tells.

    `reroutes`: whether the route takes EPs off the decoder of a pipeline.
    """
    stages = {stage.name: stage for stage in config.stages()}
    lines = []
    forbidden = [r.stage for r in routes if _forbids_itself(stages[r.stage], r)]
    if forbidden:
        lines.append(
            f"{_named(forbidden)}: {NO_FALLBACK}=1 forbids the CPU EP, on which"
            f" {'they run' if len(forbidden) > 1 else 'it runs'}, so it will not load"
        )
    for entry in () if reroutes else unreadable_eps(config):
        lines.append(
            f"{entry.name} is set for the decoder of a pipeline, whose stages cannot read its"
            " memory: generating will fail; route the stages, which takes it off the decoder"
        )
    return tuple(lines)


def unreadable_eps(config: GenaiConfig) -> tuple[ProviderEntry, ...]:
    """The EPs of a pipeline's decoder itself that keep inputs where a stage cannot read them."""
    piped = [s for s in config.stages() if s.in_decoder and s.path != _DECODER]
    if not piped:
        return ()
    found = []
    for entry in _entries(config, _DECODER):
        known = catalog.find(entry.name)
        if known is None or known.memory == "host":
            continue
        reads = (
            not stage.has_session_options
            or entry_of(_entries(config, stage.path), entry.ep) is not None
            for stage in piped
        )
        if known.memory != "stages" or not all(reads):
            found.append(entry)
    return tuple(found)


def _entries(config: GenaiConfig, section: Path) -> tuple[ProviderEntry, ...]:
    try:
        return config.providers((*section, _OPTIONS))
    except ConfigError:
        return ()  # no stage may use them, and who loads the config says what is wrong


def compiled_warnings(bundle: Bundle, routes: Iterable[StageRoute]) -> tuple[str, ...]:
    """Lines for stages whose graph another EP compiled than those that the route gives them.

    Graphs that cannot be read are passed over: whoever loads them says why.
    """
    stages = {stage.name: stage for stage in bundle.stages}
    return tuple(
        line
        for decision in routes
        if stages[decision.stage].takes_options
        for line in _compiled(bundle, stages[decision.stage], decision)
    )


def _compiled(bundle: Bundle, stage: Stage, decision: StageRoute) -> Iterator[str]:
    try:
        contexts = bundle.graph(stage).ep_contexts
    except BundleError:
        return
    given = {entry.ep for entry in decision.providers}
    for source in sorted({context.source for context in contexts}):
        if not any(catalog.takes_compiled(ep, source) for ep in given):
            by = f"compiled by {catalog.alias_of(source)[:100]}" if source else "a compiled one"
            yield (
                f"stage {stage.name}: its graph is {by} and will not load on {decision.alias};"
                " route the bundle from before compiling"
            )


def _forbids_itself(stage: Stage, decision: StageRoute) -> bool:
    options = {**stage.effective_options, **decision.set_options}
    kept = NO_FALLBACK not in decision.drop_options or NO_FALLBACK in decision.set_options
    return kept and options.get(NO_FALLBACK) == "1" and decision.ep == catalog.CPU.name


def _named(stages: list[str]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"
