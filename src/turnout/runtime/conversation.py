"""A conversation: turns that are answered in the light of those before them.

History that no longer fits the context is left out from its oldest turn on, never the
system message. Every turn is the same request that a program without memory would make, so
continuing a generator and computing anew give the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnout.errors import PromptTooLongError
from turnout.runtime.continuation import KeptGenerator
from turnout.runtime.generation import FreshGenerators, GenerationResult, GeneratorSource, Request
from turnout.runtime.options import SearchOptions
from turnout.runtime.prompt import Message, as_messages, check_text

if TYPE_CHECKING:
    from turnout.runtime.session import Session

# Part of the context that is kept free for an answer, where as many tokens are asked for.
ANSWER_SHARE = 4


class Conversation:
    """The turns of one conversation over a loaded session.

    `messages` is everything that was said, `system` what stands before it in every request
    (None: nothing). With `continued` false every turn is computed anew.
    """

    def __init__(
        self,
        session: Session,
        *,
        system: str | None = None,
        options: SearchOptions | None = None,
        continued: bool = True,
    ) -> None:
        self.session = session
        self.system = system
        self.options = options or SearchOptions()
        self.messages: list[Message] = []
        self._first = 0
        self._continued = continued
        self._source: GeneratorSource | None = None
        session.live.add(self)

    def close(self) -> None:
        """Release the generator that is kept between turns; unloading the session does so."""
        self._source = None

    @property
    def left_out(self) -> int:
        """Messages at the start that the model no longer sees."""
        return self._first

    def reset(self) -> None:
        """Forget everything that was said; the system message stays."""
        self.messages.clear()
        self._first = 0

    def say(self, text: str, *, stop: Callable[[], bool] | None = None) -> Answer:
        """The answer to the next message, to be iterated.

        It joins the history when it ends, also when it was stopped halfway; a message that
        got no answer leaves none. Raises `PromptTooLongError` for a message that does not fit
        the context even alone.
        """
        check_text(text, "message")
        said: Message = {"role": "user", "content": text}
        request, first = self._fit([*self.messages, said])
        note = _left_out_note(first - self._first)
        if note is not None:
            request = replace(request, notes=(*request.notes, note))
        if self._source is None:
            self._source = _source(self.session, continued=self._continued)
        generation = self.session.run(request, source=self._source, stop=stop)

        def joined(result: GenerationResult) -> None:
            if result.text:
                self.messages += [said, {"role": "assistant", "content": result.text}]
            self._first = first

        return Answer(generation, joined)

    def _fit(self, messages: list[Message]) -> tuple[Request, int]:
        """The request for the most recent of `messages` that fit, and which is the first."""
        limits = self.session.loaded.limits
        reserve = min(self.options.max_new_tokens, limits.tokens // ANSWER_SHARE)
        first = self._first
        while True:
            last_chance = first >= len(messages) - 1
            try:
                request = self._request(messages[first:])
            except PromptTooLongError:
                if last_chance:
                    raise
            else:
                taken = limits.taken_by(len(request.token_ids))
                if last_chance or taken + reserve <= limits.tokens:
                    return request, first
            # A turn is a message and its answer: what is left begins with a user's message.
            first += 2

    def _request(self, messages: list[Message]) -> Request:
        said = as_messages(messages, self.system)
        return self.session.request(said, options=self.options)


class Answer(Iterator[str]):
    """Pieces of an answer as they come; `result()` has the whole of it."""

    def __init__(self, generation: Any, joined: Callable[[GenerationResult], None]) -> None:
        self._generation = generation
        self._joined = joined

    def __next__(self) -> str:
        try:
            return str(next(self._generation))
        except StopIteration:
            self.result()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines a user should see before the answer."""
        notes: tuple[str, ...] = self._generation.notes
        return notes

    def result(self) -> GenerationResult:
        """The result, after running whatever is left; the answer then is part of the history."""
        result: GenerationResult = self._generation.result()
        joined, self._joined = self._joined, _nothing
        joined(result)
        return result


def _nothing(result: GenerationResult) -> None:
    """An answer joins the history once."""


def _source(session: Session, *, continued: bool) -> GeneratorSource:
    loaded = session.loaded
    # Several stages are a pipeline, which can neither rewind nor append.
    stages = [stage for stage in loaded.config.stages() if stage.in_decoder]
    if not continued or len(stages) > 1:
        return FreshGenerators(loaded.model)
    return KeptGenerator(loaded.model, loaded.limits, can_rewind=True)


def _left_out_note(messages: int) -> str | None:
    if messages <= 0:
        return None
    turns = "oldest turn is" if messages == 2 else f"{messages // 2} oldest turns are"
    return f"The context is full: the {turns} left out from here on."
