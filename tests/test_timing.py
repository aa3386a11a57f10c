"""Spans and the figures that follow from them, with numbers computed by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from session_fixtures import Bundles, set_eos
from turnout.runtime import LoadSpans, RequestSpans, Session

pytest_plugins = ("session_plugin",)


def spans(**changes: Any) -> RequestSpans:
    values: dict[str, Any] = {
        "template_s": 0.001,
        "tokenization_s": 0.002,
        "creation_s": 0.004,
        "prefill_s": 0.5,
        "first_token_s": 0.25,
        "decode_s": (0.1, 0.3),
        "end_s": None,
        "sequence_s": 0.008,
        "detokenization_s": 0.016,
        "prefilled_tokens": 64,
        **changes,
    }
    return RequestSpans(**values)


def test_the_figures_of_a_request_follow_from_its_spans() -> None:
    """A1: timing. Every number is worked out by hand from the spans above."""
    timing = spans()
    assert timing.generated_tokens == 3
    assert timing.model_ttft_s == pytest.approx(0.75)
    assert timing.request_ttft_s == pytest.approx(0.757)
    assert timing.tpot_s == pytest.approx(0.2)
    assert timing.decode_tokens_per_second == pytest.approx(5.0)
    assert timing.prefill_tokens_per_second == pytest.approx(128.0)
    assert timing.model_compute_s == pytest.approx(1.15)
    assert timing.request_s == pytest.approx(1.181)


def test_the_step_that_finds_the_end_of_the_text_is_in_no_rate() -> None:
    """G#2344: throughput is divided by what was produced."""
    timing = spans(end_s=10.0)
    assert timing.generated_tokens == 3
    assert timing.decode_tokens_per_second == pytest.approx(5.0)
    assert timing.tpot_s == pytest.approx(0.2)
    assert timing.model_compute_s == pytest.approx(11.15)
    assert timing.request_s == pytest.approx(11.181)


def test_a_single_token_has_a_ttft_and_no_decode_rate() -> None:
    timing = spans(decode_s=())
    assert timing.generated_tokens == 1
    assert timing.model_ttft_s == pytest.approx(0.75)
    assert timing.tpot_s is None
    assert timing.decode_tokens_per_second is None


def test_no_token_at_all_has_no_ttft() -> None:
    timing = spans(first_token_s=None, decode_s=(), end_s=0.25)
    assert timing.generated_tokens == 0
    assert timing.model_ttft_s is None
    assert timing.request_ttft_s is None
    assert timing.model_compute_s == pytest.approx(0.75)


def test_a_request_as_data_has_its_spans_and_its_figures_in_seconds() -> None:
    document = spans().to_json()
    assert document["decode_s"] == [0.1, 0.3]
    assert document["prefilled_tokens"] == 64
    assert document["generated_tokens"] == 3
    assert document["end_s"] is None
    assert {name for name in document if name.endswith("_s")} >= {
        "template_s",
        "tokenization_s",
        "creation_s",
        "prefill_s",
        "first_token_s",
        "sequence_s",
        "detokenization_s",
        "model_ttft_s",
        "request_ttft_s",
        "tpot_s",
        "model_compute_s",
        "request_s",
    }


def test_a_load_is_the_sum_of_its_steps() -> None:
    load = LoadSpans(0.5, 0.25, 0.125, 2.0, 0.0625)
    assert load.total_s == 2.9375
    assert load.to_json()["registration_s"] == 0.5
    assert load.to_json()["total_s"] == 2.9375


def squares() -> Any:
    """A clock whose k-th reading is k squared, so that its k-th tick takes 2k + 1 seconds."""
    return (index * index for index in itertools.count()).__next__


def test_spans_are_taken_at_the_boundaries_of_runtime_calls(bundles: Bundles) -> None:
    """A1: with an injected clock every span is known before it is measured.

    Readings: 0 1 2 around template and tokenization, then two a call: creation 3 4, prefill
    5 6, tokens 7 8, 9 10, 11 12, sequence 13 14, detokenization 15 16 and its rest 17 18.
    """
    with Session(bundles()) as session:
        result = session.generate_timed("the cat", max_new_tokens=3, clock=squares())
    timing = result.timing
    assert timing.template_s == 1
    assert timing.tokenization_s == 3
    assert timing.creation_s == 7
    assert timing.prefill_s == 11
    assert timing.first_token_s == 15
    assert timing.decode_s == (19, 23)
    assert timing.end_s is None
    assert timing.sequence_s == 27
    assert timing.detokenization_s == 31 + 35
    assert timing.prefilled_tokens == result.prompt_tokens
    assert timing.model_ttft_s == 26
    assert timing.tpot_s == 21


def test_a_load_is_timed_step_by_step(bundles: Bundles) -> None:
    """Readings 0 1 registration, 2 3 preparation, 4 5 config, 6 7 model, 8 9 tokenizer."""
    session = Session(bundles(), clock=squares())
    assert session.load() == LoadSpans(1, 5, 9, 13, 17)
    session.unload()


def test_an_early_end_of_text_is_timed_apart(bundles: Bundles) -> None:
    """G#2344: 8 tokens asked for, 2 produced, the third step found the end."""
    path = bundles(change=set_eos(291))
    with Session(path) as session:
        prompt = [280, 181, 242, 260, 72, 20, 95, 91, 272]
        result = session.generate_timed(prompt, max_new_tokens=8, clock=squares())
    assert result.finish_reason == "eos"
    assert result.timing.generated_tokens == 2
    assert result.timing.first_token_s == 15
    assert result.timing.decode_s == (19,)
    assert result.timing.end_s == 23
