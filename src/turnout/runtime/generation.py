"""One request: a prompt of token ids in, pieces of text and a timed result out.

Every span is taken at the boundary of one onnxruntime-genai call. The native generator is
released when the text ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from turnout.errors import GenerationError
from turnout.runtime import failures
from turnout.runtime.timing import RequestSpans

if TYPE_CHECKING:
    from turnout.memory import Memory
    from turnout.runtime.loading import Clock, Loaded
    from turnout.runtime.prompt import Length

# Tokens of a prompt that are computed by one call of the runtime, which hears nobody meanwhile.
# No slower than a whole prompt at once (measured, docs/runtime.md).
PROMPT_STEP = 128

FinishReason = Literal["eos", "length", "interrupted"]


@dataclass(frozen=True)
class GenerationResult:
    """What came out of one request.

    `token_ids` are the new tokens without the one that ended the text. `finish_reason` is
    "eos" (the model ended it), "length" (as many tokens as asked for, or as the context
    takes) or "interrupted" (asked to stop). `notes` are lines a user should see.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    timing: RequestSpans
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in seconds."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": len(self.token_ids),
            "timing": self.timing.to_json(),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Request:
    """What to compute: token ids, lengths, the options to set, and how the ids were made.

    `seeded`: tokens are drawn at random from a seed, so the same request gives the same text.
    `templated`: the answer is a text of its own, and not the rest of the prompt's.
    """

    token_ids: Sequence[int]
    length: Length
    search: dict[str, Any]
    seeded: bool = False
    templated: bool = False
    template_s: float = 0.0
    tokenization_s: float = 0.0
    notes: tuple[str, ...] = ()


class GeneratorSource(Protocol):
    """Where a generator comes from and goes to: a fresh one each time, or one that is kept."""

    def take(self, request: Request) -> tuple[Any, int]:
        """A generator, and how many of the request's first tokens it has computed already."""

    def give_back(self, generator: Any, token_ids: Sequence[int]) -> None:
        """Called once after a text that ended well, with all tokens the generator holds."""


class FreshGenerators:
    """A new generator for every request."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def take(self, request: Request) -> tuple[Any, int]:
        """A generator that holds nothing."""
        return create_generator(self._model, request.length.max_length, request.search), 0

    def give_back(self, generator: Any, token_ids: Sequence[int]) -> None:
        """Let go of it."""


class Measuring:
    """A source of generators that measures memory while the key-value buffers are still there."""

    def __init__(self, source: GeneratorSource) -> None:
        self._source = source
        self.memory: Memory | None = None

    def take(self, request: Request) -> tuple[Any, int]:
        """A generator of the source below."""
        return self._source.take(request)

    def give_back(self, generator: Any, token_ids: Sequence[int]) -> None:
        """Measure, then pass the generator on."""
        from turnout.memory import measure

        self.memory = measure()
        self._source.give_back(generator, token_ids)


def create_generator(model: Any, max_length: int, search: dict[str, Any]) -> Any:
    """A native generator; key-value buffers are as long as `max_length`."""
    import onnxruntime_genai as og

    params = og.GeneratorParams(model)
    params.set_search_options(max_length=max_length, **search)
    return og.Generator(model, params)


class Generation(Iterator[str]):
    """Pieces of text as they come; `result()` runs to the end.

    Iterating gives non-empty pieces whose concatenation is the result's text. `close()`, or
    the end of a `with` block, releases the generator early; going on raises `GenerationError`.
    """

    def __init__(
        self,
        loaded: Loaded,
        request: Request,
        *,
        clock: Clock,
        source: GeneratorSource,
        stop: Callable[[], bool] | None = None,
        stream: bool = True,
    ) -> None:
        self._loaded = loaded
        self._request = request
        self._clock = clock
        self._source = source
        self._stop = stop or (lambda: False)
        self._stream = stream
        self._spans: dict[str, float] = {}
        self._token_s: list[float] = []
        self._end_s: float | None = None
        self._prefilled = self._continued = 0
        self._doing = "creating the generator"
        self._finish: FinishReason = "length"
        self._result: GenerationResult | None = None
        self._pieces = self._run()

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except StopIteration:
            # A text that was closed, as unloading does, must not look like one that ended.
            if self._result is None:
                raise _closed() from None
            raise

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and release the generator. Safe at any time."""
        self._pieces.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines a user should see, known before the first piece."""
        return self._request.notes

    def result(self) -> GenerationResult:
        """The result, after running whatever is left. Raises `GenerationError`."""
        for _ in self._pieces:
            pass
        if self._result is None:
            raise _closed()
        return self._result

    def _run(self) -> Generator[str, None, None]:
        generator: Any = None
        try:
            generator = self._take()
            if not self._prefill(generator):
                generator = None
                generator = self._take()
                self._prefill(generator)
            decoder = self._loaded.codec.decoder(whole_text=self._request.templated)
            pieces: list[str] = []
            for token in self._tokens(generator):
                piece = self._decode(decoder.push, token) if self._stream else ""
                if piece:
                    pieces.append(piece)
                    yield piece
            sequence = self._timed("sequence_s", generator.get_sequence, 0).tolist()
            # Counted from the end: the runtime may have padded the prompt.
            new = sequence[len(sequence) - len(self._token_s) :]
            if not self._stream:
                pieces = self._decode(lambda: [decoder.push(token) for token in new])
            rest = self._decode(decoder.flush)
            self._source.give_back(generator, sequence)
            self._result = self._sum_up("".join(pieces) + rest, new)
            if rest:
                yield rest
        except RuntimeError as error:
            raise failures.failed_run(str(error), self._doing, self._loaded.config) from None
        finally:
            # An exception that is looked at keeps this frame alive, and with it the generator.
            generator = None

    def _take(self) -> Any:
        generator, self._continued = self._timed("creation_s", self._source.take, self._request)
        return generator

    def _prefill(self, generator: Any) -> bool:
        """Compute the prompt, or as much of it until asked to stop.

        False for a generator that does not go on after its first step: then the prompt has to
        be computed anew, and from now on at once.
        """
        self._doing = "computing the prompt"
        self._prefilled = 0
        fresh = list(self._request.token_ids[self._continued :])
        step = PROMPT_STEP if self._loaded.takes_steps else len(fresh)
        while self._prefilled < len(fresh):
            if self._prefilled and self._stop():
                self._finish = "interrupted"
                break
            part = fresh[self._prefilled : self._prefilled + step]
            try:
                self._timed("prefill_s", generator.append_tokens, part)
            except RuntimeError:
                if not self._prefilled:
                    raise
                self._loaded.takes_steps = False
                return False
            self._prefilled += len(part)
        return True

    def _tokens(self, generator: Any) -> Generator[int, None, None]:
        while (
            self._finish != "interrupted" and len(self._token_s) < self._request.length.new_tokens
        ):
            if self._stop():
                self._finish = "interrupted"
                return
            self._doing = f"computing token {len(self._token_s) + 1} of the answer"
            start = self._clock()
            generator.generate_next_token()
            took = self._clock() - start
            token = int(generator.get_next_tokens()[0])
            if token in self._loaded.eos_ids and generator.is_done():
                self._finish, self._end_s = "eos", took
                return
            self._token_s.append(took)
            yield token

    def _sum_up(self, text: str, token_ids: Sequence[int]) -> GenerationResult:
        spans = RequestSpans(
            template_s=self._request.template_s,
            tokenization_s=self._request.tokenization_s,
            first_token_s=self._token_s[0] if self._token_s else None,
            decode_s=tuple(self._token_s[1:]),
            end_s=self._end_s,
            prefilled_tokens=self._prefilled,
            continued_tokens=self._continued,
            **self._spans,
        )
        return GenerationResult(
            text=text,
            token_ids=tuple(token_ids),
            finish_reason=self._finish,
            prompt_tokens=len(self._request.token_ids),
            timing=spans,
            notes=self._request.notes,
        )

    def _decode(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return self._timed("detokenization_s", call, *arguments)

    def _timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        start = self._clock()
        result = call(*arguments)
        self._spans[name] = self._spans.get(name, 0.0) + self._clock() - start
        return result


def _closed() -> GenerationError:
    return GenerationError("This text was closed before its end.")
