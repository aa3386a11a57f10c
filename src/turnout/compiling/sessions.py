"""Two stages of a pipeline that become one session, where that cannot change an answer.

A prefill and a decode stage that are one graph hold its weights twice for nothing. How
onnxruntime-genai 0.18 walks a pipeline was read in its source (`DecoderOnlyPipelineState`) and is
run by tests/test_sharing.py: before each run a stage's outputs of the last run go away; a stage
reads whatever the stages before it have left; `reset_session_idx` counts the sessions.
"""

from __future__ import annotations

from turnout.bundle import GenaiConfig, ProviderEntry, Stage
from turnout.errors import UsageError

# A pipeline of another type may treat its first stage in a way of its own, as Qwen2.5-VL does,
# which puts a picture's embeddings into the outputs of stage 0.
_PLAIN = "decoder-pipeline"
_RESET = "reset_session_idx"


def pipeline(config: GenaiConfig) -> tuple[Stage, ...]:
    """The stages of the decoder's pipeline, in the order in which the runtime numbers them."""
    return tuple(
        stage
        for stage in config.stages()
        if stage.in_decoder and len(stage.path) > 2 and stage.path[2] == "pipeline"
    )


def candidates(config: GenaiConfig) -> tuple[tuple[str, str], ...]:
    """Pairs of stages, each once, of which one runs on the prompt only and one on tokens only."""
    stages = pipeline(config)
    return tuple(
        (one.name, other.name)
        for index, one in enumerate(stages)
        for other in stages[index + 1 :]
        if _phases(one, other)
    )


def obstacle(config: GenaiConfig, one: str, other: str) -> str | None:
    """Why the config keeps two stages of a pipeline apart, None where nothing does.

    What their graphs are is another question (`turnout.bundle.contents.equal_graphs`).
    """
    stages = pipeline(config)
    places = {stage.name: index for index, stage in enumerate(stages)}
    if one not in places or other not in places or one == other:
        return "they are not two stages of one pipeline"
    first, second = sorted((places[one], places[other]))
    a, b = stages[first], stages[second]
    if not _phases(a, b):
        return "they do not run one on the prompt, and the other on tokens"
    if first == 0 and config.model_type != _PLAIN:
        return f"models of type {config.model_type!r} treat their first stage in a way of their own"
    different = _different(config, a, b)
    return f"their {different} differ" if different else _disorder(config, stages, first, second)


def merge(config: GenaiConfig, one: str, other: str) -> GenaiConfig:
    """A config in which two stages are one session that runs on the prompt and on tokens.

    The stage that stays has the name and the file of one of them; all other text stays as it
    is, but for numbers of sessions. That the graphs are equal is for the caller to have proven.
    Raises `UsageError` where `obstacle` finds one.
    """
    reason = obstacle(config, one, other)
    if reason is not None:
        raise UsageError(f"The stages {one!r} and {other!r} cannot be one session: {reason}.")
    stages = pipeline(config)
    first, second = sorted(i for i, stage in enumerate(stages) if stage.name in {one, other})
    kept = _place(stages, first, second)
    gone = first + second - kept if kept is not None else second
    merged = config
    for index, stage in enumerate(stages):
        if index == gone:
            continue
        reset = config.get((*stage.path, _RESET))
        # Sessions are freed once they have had their turn; this one has its turn always.
        if reset in (first, second):
            merged = merged.remove((*stage.path, _RESET))
        elif isinstance(reset, int) and reset > gone:
            merged = merged.edit((*stage.path, _RESET), reset - 1)
        if index == kept:
            missing = "run_on_token_gen" if stage.run_on_prompt else "run_on_prompt"
            merged = merged.edit((*stage.path, missing), True)
    path = stages[gone].path
    alone = isinstance(path[-2], int) and len(config.get(path[:-1])) == 1
    return merged.remove(path[:-1] if alone else path)


def survivor(config: GenaiConfig, one: str, other: str) -> str:
    """The name of the one of two stages that `merge` keeps."""
    names = {stage.name for stage in pipeline(merge(config, one, other))}
    return one if one in names else other


def _disorder(
    config: GenaiConfig, stages: tuple[Stage, ...], first: int, second: int
) -> str | None:
    """What would run, or be read, at another time than before."""
    between = stages[first + 1 : second]
    if _place(stages, first, second) is None:
        names = ", ".join(stage.name for stage in between)
        return f"what runs between them ({names}) may need the one before, or feed the other"
    made = {*stages[first].outputs, *_forwarded(config, stages[first])}
    early = (*stages[: first + 1], stages[second])
    if any(made.intersection(stage.inputs) for stage in early):
        return "what they make is read, from the run before, by a stage that is not behind them"
    return None


def _phases(a: Stage, b: Stage) -> bool:
    """Whether one runs on the prompt only, and the other on tokens only."""
    phases = {(stage.run_on_prompt, stage.run_on_token_gen) for stage in (a, b)}
    return phases == {(True, False), (False, True)}


def _different(config: GenaiConfig, a: Stage, b: Stage) -> str | None:
    """What of two stages is not the same, in words."""
    pairs = {
        "execution providers": ([_entry(p) for p in a.providers], [_entry(p) for p in b.providers]),
        "session options": (a.effective_options, b.effective_options),
        "roles as the output head": (a.is_lm_head, b.is_lm_head),
        "inputs": (set(a.inputs), set(b.inputs)),
        "outputs": (set(a.outputs), set(b.outputs)),
        "forwarded outputs": (_forwarding(config, a), _forwarding(config, b)),
        "run options": (config.get((*a.path, "run_options")), config.get((*b.path, "run_options"))),
    }
    return next((name for name, (one, other) in pairs.items() if one != other), None)


def _entry(entry: ProviderEntry) -> tuple[object, ...]:
    return entry.ep, entry.options, entry.device_filter


def _forwarding(config: GenaiConfig, stage: Stage) -> dict[str, object]:
    found = config.get((*stage.path, "output_names_forwarder"))
    return found if isinstance(found, dict) else {}


def _forwarded(config: GenaiConfig, stage: Stage) -> list[str]:
    return [name for name in _forwarding(config, stage).values() if isinstance(name, str)]


def _place(stages: tuple[Stage, ...], first: int, second: int) -> int | None:
    """Which of two places keeps the order of every run, None if neither does.

    In the place of the first, the second comes to run before what is between them; and the
    other way round.
    """
    between = stages[first + 1 : second]
    moved_forward, moved_back = stages[second], stages[first]
    for place, moved in ((first, moved_forward), (second, moved_back)):
        if not any(
            (stage.run_on_prompt and moved.run_on_prompt)
            or (stage.run_on_token_gen and moved.run_on_token_gen)
            for stage in between
        ):
            return place
    return None
