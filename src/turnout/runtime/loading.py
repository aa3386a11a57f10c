"""Loading a bundle into onnxruntime-genai, timed, and leaving nothing when it fails."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.errors import LoadError, MachineError
from turnout.runtime import failures, layout, prompt
from turnout.runtime.codec import Codec
from turnout.runtime.timing import LoadSpans

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig
    from turnout.compiling.obtain import Progress
    from turnout.compiling.options import CompileOptions
    from turnout.compiling.prepare import Prepared
    from turnout.routing import Route

Clock = Callable[[], float]
Say = Callable[[str], None]
NATIVE_CODE = "custom_ops_library"
_SHOWN = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class How:
    """How a bundle is to be loaded, beside its route.

    `preparing` says what is compiled and shared ahead of time, None for nothing. `progress` is
    told of jobs. `say` gets a line about a preparation that a user should know of.
    `allow_native_code`: load the native libraries that the config names, too.
    """

    preparing: CompileOptions | None = None
    progress: Progress | None = None
    say: Say | None = None
    allow_native_code: bool = False


@dataclass
class Loaded:
    """The runtime's objects for one bundle, and what is known about it.

    `takes_steps`: whether a prompt can be appended piece by piece. `prepared` is what it was
    loaded from, to be closed once the objects are gone.
    """

    model: Any
    codec: Codec
    config: GenaiConfig
    prepared: Prepared
    limits: prompt.Limits
    vocab_size: int | None
    eos_ids: frozenset[int]
    pad_id: int | None
    spans: LoadSpans
    takes_steps: bool

    @property
    def folder(self) -> Path:
        """The folder that it was loaded from."""
        return self.prepared.folder


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


def load(bundle: Bundle, route: Route | None, clock: Clock, how: How | None = None) -> Loaded:
    """Register, prepare and load. Raises `LoadError`, after which nothing is loaded.

    What the runtime says is attributed to a stage and its EP (`runtime.failures`). Errors
    about the bundle itself, about compiling, or about writing what was prepared, are passed
    through.
    """
    how = how or How()
    config = effective_config(bundle, route)
    layout.check_type(config, bundle.path)
    if not how.allow_native_code:
        refuse_native_code(config, bundle)
    timer = _Timer(clock)
    with timer.span("registration"):
        register(config, bundle)
    with contextlib.ExitStack() as held:
        with timer.span("preparation"):
            prepared = prepare_for(bundle, config, how)
        held.callback(prepared.close)
        loaded = _loaded(bundle, route, prepared, timer)
        held.pop_all()
        return loaded


def _loaded(bundle: Bundle, route: Route | None, prepared: Prepared, timer: _Timer) -> Loaded:
    config = prepared.config
    parts: list[Any] = []
    try:
        with timer.span("config"):
            import onnxruntime_genai as og

            parts.append(og.Config(str(prepared.folder)))
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
        prepared=prepared,
        limits=prompt.limits(config),
        vocab_size=vocab_size,
        eos_ids=frozenset(int(token) for token in tokenizer.eos_token_ids),
        pad_id=config.get(("model", "pad_token_id")),
        spans=timer.load_spans(),
        takes_steps=layout.takes_steps(config, bundle),
    )


def refuse_native_code(config: GenaiConfig, bundle: Bundle) -> None:
    """Raise `LoadError` where loading would run native code that the config chooses.

    The keys are looked for everywhere, not only where a stage is known to have its options: what
    is overlooked would run with all of the user's rights. The bare name of a library means one
    of the EP's own.
    """
    options = {o.name for ep in catalog.EPS for o in ep.options if o.is_native}
    for key in (NATIVE_CODE, *sorted(options)):
        for path, value in _named(config.document, key):
            if key in options and _is_bare(value):
                continue
            raise LoadError(
                "The bundle's config has the runtime load native code, which is not done unasked.",
                found=f"{key} {str(value)[:_SHOWN]!r}",
                where=f"{bundle.path / 'genai_config.json'}: {path}",
                fix="remove it; or, if you trust who made it, --allow-native-code "
                "(in Python Session(allow_native_code=True))",
            )


def _is_bare(value: Any) -> bool:
    """Whether it is a name without a folder, drive or list."""
    return isinstance(value, str) and not any(mark in value for mark in "/\\:")


def _named(value: Any, key: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Where in a document a key stands with a value, and the value."""
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            inner = value.items()
        elif isinstance(value, list):
            inner = enumerate(value)
        for name, item in inner:
            place = f"{path}.{name}" if path else str(name)
            if name == key and item is not None:
                yield place, item
            waiting.append((place, item))


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


def prepare_for(bundle: Bundle, config: GenaiConfig, how: How) -> Prepared:
    """What is loaded for the effective config `config`. Raises what `compiling.prepare` does."""
    from turnout.compiling.prepare import prepare

    say = how.say or _log.info
    return prepare(bundle, config, how.preparing, progress=how.progress, say=say)


class _Timer:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spans: dict[str, float] = {}

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = self._clock()
        yield
        self._spans[name] = self._clock() - start

    def load_spans(self) -> LoadSpans:
        return LoadSpans(**{f"{name}_s": seconds for name, seconds in self._spans.items()})
