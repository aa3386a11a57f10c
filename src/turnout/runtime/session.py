"""A session: a bundle loaded along a route, and what it can be asked.

with Session(bundle, route, compile=True) as session:      # route=None: what the bundle says
    for text in session.stream("Hello"):
        print(text, end="")
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from turnout import catalog
from turnout.errors import UsageError
from turnout.runtime import loading, prompt
from turnout.runtime.generation import (
    FreshGenerators,
    Generation,
    GenerationResult,
    GeneratorSource,
    Request,
)
from turnout.runtime.options import SearchOptions
from turnout.runtime.prompt import Message, Prompt

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.compiling.obtain import Progress
    from turnout.compiling.options import CompileOptions
    from turnout.compiling.prepare import Prepared
    from turnout.routing import Route
    from turnout.runtime.timing import LoadSpans

Stop = Callable[[], bool]


@dataclass(frozen=True)
class InEffect:
    """What was asked for and what took effect: "config", an EP's alias, or "mixed".

    `stages` maps every stage, in order, to the alias of the EP that took effect for it.
    """

    requested: str
    effective: str
    stages: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "requested": self.requested,
            "effective": self.effective,
            "stages": dict(self.stages),
        }


class Closable(Protocol):
    """Something that holds native objects until it is closed."""

    def close(self) -> None:
        """Release them. Safe at any time."""


class Session:
    """A bundle, loaded along a route; used by one thread at a time.

    `route` None loads the bundle as its config says. `compile` compiles what it sends to EPs
    that compile, ahead of time and once; `share` is how stages keep one copy of their weights,
    one of `compiling.options.SHARE_WORDS`: None is "auto" with `compile`, else "off". `preparing`
    says both in full, in their place. `progress` is told of what is compiled. `clock` gives
    seconds and is read at the boundaries of runtime calls. `say` gets a line about a preparation
    worth knowing of; None logs it. `allow_native_code` loads the native libraries that the
    config names, which is refused otherwise. Nothing is loaded before `load()` or the `with`
    block.
    """

    def __init__(
        self,
        bundle: Bundle | Path | str,
        route: Route | None = None,
        *,
        compile: bool = False,
        share: str | None = None,
        preparing: CompileOptions | None = None,
        progress: Progress | None = None,
        clock: loading.Clock = time.perf_counter,
        say: loading.Say | None = None,
        allow_native_code: bool = False,
    ) -> None:
        from turnout.bundle import Bundle

        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self.route = route
        self.clock = clock
        self._how = loading.How(
            preparing=_preparing(compile, share, preparing),
            progress=progress,
            say=say,
            allow_native_code=allow_native_code,
        )
        self._loaded: loading.Loaded | None = None
        # What holds native objects beside the session's own, to be closed with it.
        self.live: weakref.WeakSet[Closable] = weakref.WeakSet()

    def __enter__(self) -> Session:
        self.load()
        return self

    def __exit__(self, *_: object) -> None:
        self.unload()

    def load(self) -> LoadSpans:
        """Load, if it is not loaded yet; what it took. Raises `LoadError`, leaving nothing.

        Raises `UsageError` where the runtime refuses an option of the route.
        """
        if self._loaded is None:
            self._loaded = loading.load(self.bundle, self.route, self.clock, self._how)
        return self._loaded.spans

    def unload(self) -> None:
        """Release everything native; streams that still run are closed. Safe at any time."""
        for holder in list(self.live):
            holder.close()
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            prepared = loaded.prepared
            # The runtime lets go of the files first; some systems keep those that are in use.
            del loaded
            prepared.close()

    @property
    def is_loaded(self) -> bool:
        """Whether it is loaded now."""
        return self._loaded is not None

    @property
    def loaded(self) -> loading.Loaded:
        """The runtime's objects. Raises `UsageError` where nothing is loaded."""
        if self._loaded is None:
            raise UsageError(
                "The session is not loaded.", fix="call load(), or use it in a with block"
            )
        return self._loaded

    @property
    def prepared(self) -> Prepared | None:
        """What was compiled and shared; None where nothing was asked to be, or is loaded."""
        asked = self._how.preparing
        if asked is None or not asked.prepares or self._loaded is None:
            return None
        return self._loaded.prepared

    @property
    def in_effect(self) -> InEffect:
        """What was asked for and what took effect; known before anything is loaded."""
        stages = loading.effective_config(self.bundle, self.route).stages()
        eps = {stage.name: catalog.alias_of(stage.ep) for stage in stages}
        if self.route is None:
            return InEffect("config", "config", eps)
        return InEffect(self.route.requested, self.route.effective, eps)

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Token ids; special tokens written out in `text` become themselves.

        `add_bos` puts the begin token in front, unless it is there already; None does so for
        a bundle whose tokenizer does.
        """
        return self.loaded.codec.encode(text, add_bos=add_bos)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out, broken characters as U+FFFD."""
        return self.loaded.codec.decode(token_ids)

    def apply_chat_template(
        self,
        said: str | Sequence[Message],
        *,
        system: str | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text that the bundle's own chat template makes of a prompt or of messages.

        Raises `TokenizerError` for a bundle without a usable template, `GenerationError` for
        a template that refuses the messages.
        """
        text = self.loaded.codec.apply_template(
            said, system=system, add_generation_prompt=add_generation_prompt
        )
        if text is None:
            raise prompt.no_template()
        return text

    def stream(
        self,
        said: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        options: SearchOptions | None = None,
        stop: Stop | None = None,
        **search: Any,
    ) -> Generation:
        """Pieces of the answer as they come; its `result()` has the rest.

        `said` is text or messages, which go through the chat template once unless `raw`, or
        token ids. `search` are fields of `SearchOptions`, such as `max_new_tokens`, over
        `options`. `stop` is asked before every token; True ends the text ("interrupted").
        Raises `PromptTooLongError` and `UsageError`, and `GenerationError` while iterating.
        """
        request = self.request(said, system=system, raw=raw, options=options, **search)
        return self.run(request, stop=stop)

    def generate(self, said: Prompt, **asked: Any) -> GenerationResult:
        """The whole answer; arguments as `stream` has them."""
        return self.generate_timed(said, **asked)

    def generate_timed(
        self,
        said: Prompt,
        *,
        stop: Stop | None = None,
        clock: loading.Clock | None = None,
        **asked: Any,
    ) -> GenerationResult:
        """The whole answer, decoded after its last token; arguments as `stream` has them.

        `clock` takes the place of the session's own for this request.
        """
        request = self.request(said, clock=clock, **asked)
        return self.run(request, stop=stop, clock=clock, stream=False).result()

    def request(
        self,
        said: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        options: SearchOptions | None = None,
        clock: loading.Clock | None = None,
        **search: Any,
    ) -> Request:
        """A prompt as token ids, its length checked, with the search options to set."""
        asked = replace(options or SearchOptions(), **_known(search))
        loaded, clock = self.loaded, clock or self.clock
        start = clock()
        wording = loaded.codec.word(said, system=system, raw=raw)
        worded = clock()
        ids = list(wording.token_ids)
        if wording.text is not None:
            ids = loaded.codec.encode(wording.text)
        tokenized = clock()
        prompt.check_padding(ids, loaded.pad_id, loaded.limits)
        length = prompt.plan_length(len(ids), asked.max_new_tokens, loaded.limits)
        search = asked.effective(loaded.config.search, loaded.vocab_size)
        if asked.ignore_eos:
            search["min_length"] = prompt.whole_length(len(ids), length, loaded.limits)
        return Request(
            token_ids=ids,
            length=length,
            search=search,
            seeded=asked.is_seeded(loaded.config.search),
            templated=wording.templated,
            template_s=worded - start,
            tokenization_s=tokenized - worded,
            notes=wording.notes,
        )

    def run(
        self,
        request: Request,
        *,
        source: GeneratorSource | None = None,
        stop: Stop | None = None,
        clock: loading.Clock | None = None,
        stream: bool = True,
    ) -> Generation:
        """Run a request; `source` None makes a generator for it alone."""
        loaded = self.loaded
        generation = Generation(
            loaded,
            request,
            clock=clock or self.clock,
            source=source or FreshGenerators(loaded.model),
            stop=stop,
            stream=stream,
        )
        self.live.add(generation)
        return generation


def _preparing(
    compile: bool, share: str | None, preparing: CompileOptions | None
) -> CompileOptions | None:
    from turnout.compiling.options import CompileOptions

    if preparing is None:
        return CompileOptions(compile=compile, share=share) if compile or share else None
    if compile or share is not None:
        raise UsageError(
            "What to compile and to share is said twice.",
            found="preparing, and compile or share",
            expected="one of them",
        )
    return preparing


def _known(search: dict[str, Any]) -> dict[str, Any]:
    unknown = [name for name in search if name not in SearchOptions.__dataclass_fields__]
    if unknown:
        raise UsageError(
            "An option of a search is not known.",
            found=", ".join(unknown),
            expected=", ".join(SearchOptions.__dataclass_fields__),
        )
    return search
