"""Where nodes really ran, and for how long: measured in a child process, never assumed.

A session's EP is asked which nodes it takes; the CPU EP runs the others, without a word. Only the
runtime's own profile of the very sessions that generate tells. So a bundle is derived whose
stages each write a profile to a name of their own, a few tokens go through it in a child, and
the profiles are read once everything native is released: before that, they are not complete.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from turnout import catalog
from turnout.errors import GenerationError
from turnout.runtime import failures, layout, loading, prompt
from turnout.runtime.generation import create_generator
from turnout.runtime.options import SearchOptions
from turnout.runtime.profiles import Profile, Tally

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig, Stage
    from turnout.compiling.prepare import Prepared
    from turnout.routing import Route

PROMPT_TOKENS = 8
NEW_TOKENS = 4
TIME_LIMIT_S = 600.0
OPTION = "enable_profiling"


class Share(msgspec.Struct, frozen=True):
    """What one EP did in one phase: its nodes, each once, and the seconds of all their runs."""

    nodes: int
    time_s: float


class EpPlacement(msgspec.Struct, frozen=True):
    """What one EP did for a stage; a subgraph that it took counts as one node.

    `operators` counts the nodes by operator, `"subgraph"` for such subgraphs.
    """

    ep: str
    nodes: int
    time_s: float
    operators: dict[str, int]
    prompt: Share
    tokens: Share


class StagePlacement(msgspec.Struct, frozen=True):
    """Where the nodes of a stage ran. `ran` is None where that cannot be told: see `note`."""

    stage: str
    ran: bool | None
    prompt_runs: int = 0
    token_runs: int = 0
    eps: tuple[EpPlacement, ...] = ()
    note: str = ""


class Placement(msgspec.Struct, frozen=True):
    """Where every stage ran while `new_tokens` tokens were generated after `prompt_tokens`.

    Times are those of a first, cold, profiled run: they compare EPs within a stage, and no more.
    """

    prompt_tokens: int
    new_tokens: int
    stages: tuple[StagePlacement, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in seconds."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


def measure(
    bundle: Bundle,
    route: Route | None = None,
    *,
    timeout: float = TIME_LIMIT_S,
    how: loading.How | None = None,
) -> Placement:
    """Generate a few tokens by `route` (None: as the bundle says), and see where nodes ran.

    In a child process, within `timeout` seconds; nothing is left on disk but what `how` asks to
    be compiled and stored, and the bundle need not be writable. Raises what loading and
    generating do (`LoadError`, `GenerationError`, `BundleError`), `CompileError`, and
    `ProcessError` for a child that crashed or took too long.
    """
    from turnout.compiling import scratch
    from turnout.processes import call

    how = how or loading.How()
    effective = loading.effective_config(bundle, route)
    if not how.allow_native_code:
        loading.refuse_native_code(effective, bundle)
    with _prepared(bundle, effective, how) as prepared, scratch(bundle) as folder:
        merged = replace(bundle, config=prepared.config)
        answer = call(
            f"{__name__}:measure_here",
            {
                "bundle": str(bundle.path.absolute()),
                "config": profiled(merged, folder).text,
                "folder": str(folder),
                "artifacts": {
                    stage: {
                        "folder": str(artifact.folder),
                        "graph": artifact.graph,
                        "files": list(artifact.files),
                        "options": dict(artifact.options),
                        "binds_source": artifact.binds_source,
                    }
                    for stage, artifact in prepared.artifacts.items()
                },
            },
            timeout=timeout,
            doing="measuring the placement",
        )
    return msgspec.convert(answer, Placement)


def _prepared(bundle: Bundle, effective: GenaiConfig, how: loading.How) -> Prepared:
    from turnout.compiling.prepare import Prepared

    if how.preparing is None or not how.preparing.prepares:
        # What is loaded is derived by the child, with the profiles' names in it.
        return Prepared(bundle.path, effective)
    return loading.prepare_for(bundle, effective, how)


def profiled(bundle: Bundle, folder: Path) -> GenaiConfig:
    """The bundle's config with a profile of its own for every stage that takes options."""
    from turnout.machine import Inventory
    from turnout.routing import RouteRequest, apply, resolve

    route = resolve(bundle.config, Inventory.minimal(), RouteRequest())
    takes = {stage.name: stage.takes_options for stage in bundle.stages}
    stages = tuple(
        replace(decision, set_options={**decision.set_options, OPTION: str(_prefix(folder, index))})
        if takes.get(decision.stage)
        else decision
        for index, decision in enumerate(route.stages)
    )
    return apply(bundle.config, replace(route, stages=stages))


def measure_here(argument: dict[str, Any]) -> dict[str, Any]:
    """What the child does: derive, load, generate, release, and read the profiles."""
    from turnout.bundle import Bundle, GenaiConfig
    from turnout.compiling import derive_into
    from turnout.compiling.contents import Artifact

    bundle = Bundle.open(argument["bundle"])
    config = GenaiConfig.parse(argument["config"], bundle.config.where)
    folder = Path(argument["folder"])
    layout.check_type(config, bundle.path)
    loading.register(config, bundle)
    artifacts = {
        stage: Artifact(
            folder=Path(facts["folder"]),
            graph=facts["graph"],
            files=tuple(facts["files"]),
            options=facts["options"],
            binds_source=facts["binds_source"],
        )
        for stage, facts in argument["artifacts"].items()
    }
    derived = derive_into(folder / "bundle", bundle, config, artifacts=artifacts)
    length, tokens = _generate(derived, bundle, config)
    placed = Placement(length, tokens, _stages(config, folder, tokens - 1))
    if not any(stage.ran for stage in placed.stages):
        raise GenerationError(
            "The runtime wrote no profile, so that nothing is known of where nodes ran.",
            where=folder,
            fix="check that the temporary folder can be written and has room",
        )
    return placed.to_json()


def _prefix(folder: Path, index: int) -> Path:
    # Files are named <prefix>_<time>.json; the dash keeps 1 from being the beginning of 10.
    return folder / f"profile-{index}-"


def _generate(folder: Path, bundle: Bundle, config: GenaiConfig) -> tuple[int, int]:
    """Generate from token ids; lengths of prompt and answer. Everything native is released."""
    ids = prompt_ids(config)
    limits = prompt.limits(config)
    length = prompt.plan_length(len(ids), NEW_TOKENS, limits)
    search = SearchOptions(greedy=True).effective(
        config.search, config.get(("model", "vocab_size"))
    )
    # Else a text could end before the stages for tokens have run.
    search["min_length"] = prompt.whole_length(len(ids), length, limits)
    doing = "computing the prompt"
    model = _load(folder, bundle, config)
    generator = None
    try:
        generator = create_generator(model, length.max_length, search)
        generator.append_tokens(ids)
        doing = "computing tokens"
        for _ in range(length.new_tokens):
            generator.generate_next_token()
    except RuntimeError as error:
        raise failures.failed_run(str(error), doing, config) from None
    finally:
        # An exception keeps this frame alive, and with it the sessions and their profiles.
        generator = model = None
    return len(ids), length.new_tokens


def _load(folder: Path, bundle: Bundle, config: GenaiConfig) -> Any:
    import onnxruntime_genai as og

    step = "config"
    try:
        settings = og.Config(str(folder))
        step = "model"
        return og.Model(settings)
    except Exception as error:
        message = str(error).replace(str(folder), str(bundle.path))
        raise failures.explain(message, step, config, bundle) from None


def prompt_ids(config: GenaiConfig) -> list[int]:
    """A short prompt of small token ids of the vocabulary, none of them special if possible."""
    vocab_size = config.get(("model", "vocab_size"))
    size = vocab_size if isinstance(vocab_size, int) and vocab_size > 0 else 1 << 30
    special = prompt.special_ids(config)
    plain = [token for token in range(min(size, 4 * PROMPT_TOKENS)) if token not in special]
    # Room for the answer; the last tokens, since the first of a vocabulary are often special.
    room = max(prompt.limits(config).tokens - NEW_TOKENS, 1)
    return (plain or [0])[-min(PROMPT_TOKENS, room) :]


def _stages(config: GenaiConfig, folder: Path, token_runs: int) -> tuple[StagePlacement, ...]:
    stages = config.stages()
    at = collections.Counter(stage.path for stage in stages)
    placed = []
    for index, stage in enumerate(stages):
        if not stage.takes_options:
            note = "not measured: the runtime takes no options for this stage"
            placed.append(StagePlacement(stage.name, None, note=note))
        elif at[stage.path] > 1:
            note = "not measured: other graphs share its session options"
            placed.append(StagePlacement(stage.name, None, note=note))
        else:
            placed.append(_stage(stage, _prefix(folder, index), token_runs))
    return tuple(placed)


def _stage(stage: Stage, prefix: Path, token_runs: int) -> StagePlacement:
    profile = Profile()
    for path in sorted(prefix.parent.glob(f"{prefix.name}*.json")):
        with _named(stage):
            profile.read(path, token_runs if stage.run_on_token_gen else 0)
    if not profile.ran:
        return StagePlacement(stage.name, False)
    eps = dict.fromkeys([*profile.prompt, *profile.tokens])
    placed = [
        _ep(ep, profile.prompt.get(ep, Tally()), profile.tokens.get(ep, Tally())) for ep in eps
    ]
    placed.sort(key=lambda item: (item.ep != catalog.alias_of(stage.ep), -item.time_s))
    return StagePlacement(stage.name, True, profile.prompt_runs, profile.token_runs, tuple(placed))


@contextlib.contextmanager
def _named(stage: Stage) -> Iterator[None]:
    try:
        yield
    except GenerationError as error:
        raise GenerationError(f"Stage {stage.name}: {error.problem}", **error.facts) from error


def _ep(ep: str, before: Tally, after: Tally) -> EpPlacement:
    nodes = before.nodes | after.nodes
    return EpPlacement(
        ep=catalog.alias_of(ep),
        nodes=len(nodes),
        time_s=before.time_s + after.time_s,
        operators=dict(collections.Counter(nodes.values()).most_common()),
        prompt=Share(len(before.nodes), before.time_s),
        tokens=Share(len(after.nodes), after.time_s),
    )
