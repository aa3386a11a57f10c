"""Loading a bundle into onnxruntime-genai, timed, and leaving nothing when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.errors import MachineError
from turnout.runtime import failures, layout, prompt
from turnout.runtime.codec import Codec
from turnout.runtime.timing import LoadSpans

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig
    from turnout.routing import Route

Clock = Callable[[], float]
Say = Callable[[str], None]


@dataclass
class Loaded:
    """The runtime's objects for one bundle, and what is known about it.

    `takes_steps`: whether a prompt can be appended piece by piece.
    """

    model: Any
    codec: Codec
    config: GenaiConfig
    folder: Path
    limits: prompt.Limits
    vocab_size: int | None
    eos_ids: frozenset[int]
    pad_id: int | None
    spans: LoadSpans
    takes_steps: bool


def effective_config(bundle: Bundle, route: Route | None) -> GenaiConfig:
    """The config that results from `route`; the bundle's own where there is none."""
    if route is None:
        return bundle.config
    from turnout.routing import apply

    return apply(bundle.config, route)


def plugin_eps(config: GenaiConfig) -> tuple[str, ...]:
    """The EPs that the effective config names, CPU left out, in order and once each."""
    names = [entry.ep for stage in config.stages() for entry in stage.providers]
    return tuple(dict.fromkeys(name for name in names if name != catalog.CPU.name))


def load(bundle: Bundle, route: Route | None, clock: Clock, say: Say | None = None) -> Loaded:
    """Register, prepare and load. Raises `LoadError`, after which nothing is loaded.

    What the runtime says is attributed to a stage and its EP (`runtime.failures`). Errors
    about the bundle itself, or about writing what was prepared, are passed through. `say` gets
    a line about a preparation that a user should know of.
    """
    config = effective_config(bundle, route)
    layout.check_type(config, bundle.path)
    timer = _Timer(clock)
    with timer.span("registration"):
        register(config, bundle)
    with timer.span("preparation"):
        folder = _prepare(bundle, config, say)
    parts: list[Any] = []
    try:
        with timer.span("config"):
            import onnxruntime_genai as og

            parts.append(og.Config(str(folder)))
        with timer.span("model"):
            parts.append(og.Model(parts[0]))
        with timer.span("tokenizer"):
            parts.append(og.Tokenizer(parts[1]))
    except Exception as error:
        step = ("config", "model", "tokenizer")[len(parts)]
        # An exception keeps this frame alive, and with it whatever was loaded so far.
        parts.clear()
        raise failures.explain(str(error), step, config, bundle, route) from None
    except BaseException:
        parts.clear()
        raise
    _, model, tokenizer = parts
    vocab_size = config.get(("model", "vocab_size"))
    return Loaded(
        model=model,
        codec=Codec(tokenizer, bundle.tokenizer_folder, vocab_size),
        config=config,
        folder=folder,
        limits=prompt.limits(config),
        vocab_size=vocab_size,
        eos_ids=frozenset(int(token) for token in tokenizer.eos_token_ids),
        pad_id=config.get(("model", "pad_token_id")),
        spans=timer.load_spans(),
        takes_steps=layout.takes_steps(config, bundle),
    )


def register(config: GenaiConfig, bundle: Bundle) -> None:
    """Make the EPs that the effective config names usable in this process. Raises `LoadError`."""
    eps = plugin_eps(config)
    if not eps:
        return
    from turnout.machine import plugins

    try:
        plugins.register(eps)
    except MachineError as error:
        raise failures.unavailable(error, eps, config, bundle.path) from error


def _prepare(bundle: Bundle, config: GenaiConfig, say: Say | None) -> Path:
    from turnout.compiling import loadable

    return loadable(bundle, config) if say is None else loadable(bundle, config, say=say)


class _Timer:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spans: dict[str, float] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = self._clock()
        yield
        self._spans[name] = self._clock() - start

    def load_spans(self) -> LoadSpans:
        return LoadSpans(**{f"{name}_s": seconds for name, seconds in self._spans.items()})
