"""Spans of a load and of a request, and what follows from them. Seconds everywhere.

A span is taken at the boundary of one onnxruntime-genai call. Nothing here reads a
clock: the values come from `runtime.generation`, whose clock can be injected.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class LoadSpans:
    """What loading a session took, step by step."""

    registration_s: float
    preparation_s: float
    config_s: float
    model_s: float
    tokenizer_s: float

    @property
    def total_s(self) -> float:
        """The whole load."""
        loading = self.config_s + self.model_s + self.tokenizer_s
        return self.registration_s + self.preparation_s + loading

    def to_json(self) -> dict[str, float]:
        """Every span and the total."""
        spans = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**spans, "total_s": self.total_s}


@dataclass(frozen=True)
class RequestSpans:
    """What one request took, step by step.

    `creation_s` makes the generator (or rewinds one that is kept). `prefill_s` computes
    `prefilled_tokens`, which is the whole prompt but for `continued_tokens`, kept from an
    earlier turn, and for what was not computed any more when a stop was asked for.
    `first_token_s` is None when no token came out; `decode_s` has one entry for every
    later token. `end_s` is the step that found the end of the text, which yields no
    token and so takes no part in a rate. `detokenization_s` covers all pieces of a stream.
    """

    template_s: float
    tokenization_s: float
    creation_s: float
    prefill_s: float
    first_token_s: float | None
    decode_s: tuple[float, ...]
    end_s: float | None
    sequence_s: float
    detokenization_s: float
    prefilled_tokens: int
    continued_tokens: int = 0

    @property
    def generated_tokens(self) -> int:
        """Tokens that came out, the end of text not counted."""
        return (self.first_token_s is not None) + len(self.decode_s)

    @property
    def model_ttft_s(self) -> float | None:
        """Prefill and first token: what the model makes a user wait."""
        return None if self.first_token_s is None else self.prefill_s + self.first_token_s

    @property
    def request_ttft_s(self) -> float | None:
        """Everything up to the first token."""
        if self.model_ttft_s is None:
            return None
        return self.template_s + self.tokenization_s + self.creation_s + self.model_ttft_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first."""
        return _divide(sum(self.decode_s), len(self.decode_s))

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first, by the time they took."""
        return _divide(len(self.decode_s), sum(self.decode_s))

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens that were computed, by the time of the prefill."""
        return _divide(self.prefilled_tokens, self.prefill_s)

    @property
    def model_compute_s(self) -> float:
        """Time inside the model: prefill, every token, and the step that found the end."""
        return self.prefill_s + (self.first_token_s or 0.0) + sum(self.decode_s) + (self.end_s or 0)

    @property
    def request_s(self) -> float:
        """The whole request."""
        around = self.template_s + self.tokenization_s + self.creation_s
        return around + self.model_compute_s + self.sequence_s + self.detokenization_s

    def to_json(self) -> dict[str, object]:
        """Every span, then every figure that follows from them."""
        spans = {field.name: getattr(self, field.name) for field in fields(self)}
        spans["decode_s"] = list(self.decode_s)
        return {**spans, **{name: getattr(self, name) for name in _DERIVED}}


_DERIVED = (
    "generated_tokens",
    "model_ttft_s",
    "request_ttft_s",
    "tpot_s",
    "decode_tokens_per_second",
    "prefill_tokens_per_second",
    "model_compute_s",
    "request_s",
)


def _divide(amount: float, by: float) -> float | None:
    """None where nothing was measured, rather than zero or infinity."""
    return amount / by if by else None
