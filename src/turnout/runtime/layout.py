"""What a bundle's layout means to the runtime: which types take it, and how prompts go in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.bundle.modeltypes import COMPOSED_TYPES, DECODER_TYPES, PIPELINE, PIPELINE_TYPES
from turnout.errors import LoadError, TurnoutError

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig

_UNKNOWN_TYPE = "Unsupported model_type"
_NO_PIPELINE = "Pipelined decoder is not supported"
# State beside keys and values.
_RECURRENT = re.compile(r"conv|lstm|recurrent|rnn|ssm")


def check_type(config: GenaiConfig, bundle: Path) -> None:
    """Raises `LoadError` for what the runtime loads and then cannot run: a pipeline of nothing."""
    if _type(config) == PIPELINE and not _pipeline(config):
        raise wrong_type(config, bundle)


def misfit(message: str, config: GenaiConfig) -> bool:
    """Whether a load failed, saying `message`, because `model.type` does not fit the layout.

    The runtime then misses a file that the type has and the layout has not, or reads the
    folder as a graph. Types that are not known here are judged by the message alone.
    """
    if _UNKNOWN_TYPE in message or _NO_PIPELINE in message:
        return True
    kind = _type(config)
    if _pipeline(config):
        return kind in (DECODER_TYPES | COMPOSED_TYPES) - PIPELINE_TYPES
    return kind in COMPOSED_TYPES and _decoder_alone(config)


def wrong_type(config: GenaiConfig, bundle: Path, message: str | None = None) -> LoadError:
    """The error for a `model.type` that is unknown, or that does not fit the layout."""
    kind = _type(config)
    found = f'"{kind}"'
    if message is not None:
        found += f"; the runtime says: {message}"
    if _pipeline(config):
        layout, fits = "a decoder.pipeline", f'"{PIPELINE}", or {_listed(PIPELINE_TYPES)}'
        fix = f'set model.type to "{PIPELINE}"'
    else:
        layout, fits = "a decoder of one graph", _listed(DECODER_TYPES)
        fix = 'set model.type to the model\'s family, or to "decoder"'
    if not _decoder_alone(config):
        layout += " and other sections"
        fits += f"; with other sections {_listed(COMPOSED_TYPES)}"
        fix = "set model.type to the model's family"
    if message is not None and _UNKNOWN_TYPE in message:
        problem = "The runtime does not know the bundle's model type."
        fix += ", or use a version of onnxruntime-genai that knows it"
    else:
        problem = "The bundle's model type does not fit its layout."
    return LoadError(
        problem,
        found=found,
        expected=f"for {layout}: {fits}",
        where=f"{bundle / 'genai_config.json'}: model.type",
        fix=fix,
    )


def takes_steps(config: GenaiConfig, bundle: Bundle) -> bool:
    """Whether a prompt may be appended in parts.

    Not where the runtime pads each part to whole windows, nor where a prefill stage fills the
    cache without reading it, as some are exported: it would take the second part for a prompt
    of its own, and say nothing. Nor, as nobody has tried, where there is more than a decoder, or
    a decoder with more state than keys and values.
    """
    window = config.get(("model", "decoder", "sliding_window"))
    if isinstance(window, dict) and window.get("slide_inputs") is not False:
        return False
    stages = config.stages()
    try:
        names = [value.name for stage in stages if stage.filename for value in bundle.inputs(stage)]
    except TurnoutError:
        return False
    if not _decoder_alone(config) or not _reads_the_cache(config):
        return False
    return not any(_RECURRENT.search(name) for name in names)


def _reads_the_cache(config: GenaiConfig) -> bool:
    """Whether every prefill stage that gives keys and values takes those of before as well."""
    present, past = (
        str(config.get(("model", "decoder", *path), default)).partition("%d")[0]
        for path, default in (
            (("outputs", "present_key_names"), "present.%d.key"),
            (("inputs", "past_key_names"), "past_key_values.%d.key"),
        )
    )
    return all(
        any(name.startswith(past) for name in stage.inputs)
        for stage in config.stages()
        if stage.run_on_prompt and any(name.startswith(present) for name in stage.outputs)
    )


def _type(config: GenaiConfig) -> object:
    return config.get(("model", "type"))


def _pipeline(config: GenaiConfig) -> bool:
    return bool(config.get(("model", "decoder", "pipeline")))


def _decoder_alone(config: GenaiConfig) -> bool:
    return all(stage.in_decoder for stage in config.stages())


def _listed(types: frozenset[str]) -> str:
    return ", ".join(sorted(types - {PIPELINE}))
