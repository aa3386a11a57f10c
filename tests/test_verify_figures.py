"""What is made of two sets of logits, beside values worked out by hand, by numpy and by scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from turnout.verify import results
from turnout.verify.distributions import Compared, chunks_of, compare, joined
from turnout.verify.plan import thresholds
from turnout.verify.report import Figures, Perplexity


def rows(*logits: list[float]) -> np.ndarray[Any, Any]:
    return np.array(logits, dtype=np.float32)


def compared(
    reference: np.ndarray[Any, Any],
    route: np.ndarray[Any, Any],
    follows: list[int] | None = None,
    known: int | None = None,
) -> Compared:
    after = np.array(follows or [0] * len(reference), dtype=np.int64)
    return compare([(reference, route, after)], known or reference.shape[1])


def random_rows(count: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, 3, (count, width)).astype(np.float32)


def test_the_divergence_of_two_tokens_is_what_one_works_out_by_hand() -> None:
    # Probabilities 3/4, 1/4 and 1/2, 1/2: 3/4 ln(3/2) + 1/4 ln(1/2).
    found = compared(rows([math.log(3), 0]), rows([5, 5]))
    assert found.kl[0] == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-6)
    assert found.margin[0] == pytest.approx(math.log(3), rel=1e-6)


def test_divergences_are_those_of_scipy() -> None:
    one, other = random_rows(7, 50, 1), random_rows(7, 50, 2)
    found = compared(one, other)
    p = special.softmax(one.astype(np.float64), axis=1)
    q = special.softmax(other.astype(np.float64), axis=1)
    assert found.kl == pytest.approx(special.rel_entr(p, q).sum(axis=1), rel=1e-12)
    assert found.kl == pytest.approx(stats.entropy(p, q, axis=1), rel=1e-9)


def test_negative_log_probabilities_are_those_of_scipy() -> None:
    one, other, follows = random_rows(5, 20, 3), random_rows(5, 20, 4), [3, 0, 19, 7, 7]
    found = compared(one, other, follows)
    place = np.arange(5)
    for got, logits in ((found.reference_nll, one), (found.nll, other)):
        expected = -special.log_softmax(logits.astype(np.float64), axis=1)[place, follows]
        assert got == pytest.approx(expected, rel=1e-12)


def test_equal_logits_do_not_diverge_at_all() -> None:
    one = random_rows(4, 30, 5)
    found = compared(one, one.copy())
    assert found.kl.tolist() == [0.0] * 4
    assert found.agrees.all()


def test_logits_that_are_all_shifted_by_one_number_are_the_same_distribution() -> None:
    one = rows([1, 2, 3], [0, 0, 4])
    found = compared(one, one + np.float32(8))
    assert found.kl == pytest.approx([0, 0], abs=1e-12)


def test_logits_of_any_size_have_probabilities() -> None:
    found = compared(rows([3e38, -3e38]), rows([-3e38, 3e38]))
    assert found.finite.all()
    assert found.kl[0] == pytest.approx(6e38, rel=1e-6)


def test_the_likeliest_tokens_are_compared_and_the_first_of_equals_is_taken() -> None:
    found = compared(rows([1, 9, 2], [5, 5, 1], [0, 1, 2]), rows([0, 1, 0], [2, 2, 0], [3, 2, 1]))
    assert found.reference_token.tolist() == [1, 0, 2]
    assert found.token.tolist() == [1, 0, 0]
    assert found.agrees.tolist() == [True, True, False]


def test_columns_that_the_tokenizer_does_not_know_have_no_probability() -> None:
    one, other = random_rows(6, 40, 6), random_rows(6, 40, 7)
    padded = np.concatenate([one, np.full((6, 8), -np.inf, np.float32)], axis=1)
    garbage = np.concatenate([other, np.full((6, 8), -7, np.float32)], axis=1)
    alone, beside = compared(one, other), compared(padded, garbage, known=40)
    assert beside.finite.all()
    assert beside.kl.tolist() == alone.kl.tolist()


def test_a_likeliest_token_beyond_the_tokenizers_is_a_difference_as_in_a_search() -> None:
    found = compared(rows([1, 2, 0]), rows([1, 2, 9]), known=2)
    assert found.kl[0] == pytest.approx(0, abs=1e-12)
    assert found.token.tolist() == [2]
    assert not found.agrees[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_no_number_takes_its_position_out_of_all_figures(bad: float) -> None:
    found = compared(rows([1, 2], [1, 2]), rows([1, bad], [1, 2]))
    assert found.finite.tolist() == [False, True]
    assert found.reference_finite.tolist() == [True, True]
    assert math.isnan(found.kl[0])
    assert math.isnan(found.nll[0])
    assert found.agrees.tolist() == [False, True]
    figures = results.figures(found)
    assert figures is not None
    assert (figures.positions, figures.agreeing, figures.not_finite) == (2, 1, 1)
    assert figures.kl_mean == 0.0


@pytest.mark.parametrize(("bad", "fine"), [(math.nan, False), (math.inf, False), (-math.inf, True)])
def test_beyond_the_tokenizers_tokens_only_minus_infinity_is_fine(bad: float, fine: bool) -> None:
    found = compared(rows([1, 2, 0]), rows([1, 2, bad]), known=2)
    assert bool(found.finite[0]) is fine


def test_chunks_of_rows_are_compared_as_all_at_once() -> None:
    one, other = random_rows(11, 9, 8), random_rows(11, 9, 9)
    follows = np.arange(11, dtype=np.int64) % 9
    parts = [(one[p], other[p], follows[p]) for p in chunks_of(11, 4)]
    assert [len(part[0]) for part in parts] == [4, 4, 3]
    cut, whole = compare(parts, 9), compare([(one, other, follows)], 9)
    assert cut.kl.tolist() == whole.kl.tolist()
    assert cut.nll.tolist() == whole.nll.tolist()


def test_no_rows_make_no_figures() -> None:
    nothing = compare([], 5)
    assert len(nothing.kl) == 0
    assert results.figures(nothing) is None
    assert results.perplexity([nothing]) is None


def test_figures_are_means_and_percentiles_over_positions() -> None:
    one, other = random_rows(250, 30, 10), random_rows(250, 30, 11)
    found = compared(one, other)
    figures = results.figures(found)
    assert figures is not None
    p, q = special.softmax(one, axis=1), special.softmax(other, axis=1)
    kl = special.rel_entr(p.astype(np.float64), q.astype(np.float64)).sum(axis=1)
    assert figures.kl_mean == pytest.approx(kl.mean(), rel=1e-4)
    assert figures.kl_p99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-4)
    assert figures.kl_max == pytest.approx(kl.max(), rel=1e-4)
    assert figures.agreement == (one.argmax(axis=1) == other.argmax(axis=1)).mean()


def test_a_99th_percentile_needs_a_hundred_positions() -> None:
    one, other = random_rows(100, 5, 12), random_rows(100, 5, 13)
    few, enough = compared(one[:99], other[:99]), compared(one, other)
    assert results.figures(few).kl_p99 is None  # type: ignore[union-attr]
    assert results.figures(enough).kl_p99 is not None  # type: ignore[union-attr]


def test_perplexities_are_of_all_parts_of_a_text_together() -> None:
    one, other = random_rows(30, 12, 14), random_rows(30, 12, 15)
    follows = (np.arange(30) * 5 % 12).tolist()
    parts = [
        compared(one[:20], other[:20], follows[:20]),
        compared(one[20:], other[20:], follows[20:]),
    ]
    place = np.arange(30)
    nll = [-special.log_softmax(x.astype(np.float64), axis=1)[place, follows] for x in (one, other)]
    found = results.perplexity(parts)
    assert found is not None
    assert found.tokens == 30
    assert found.reference == pytest.approx(math.exp(nll[0].mean()))
    assert found.route == pytest.approx(math.exp(nll[1].mean()))
    assert found.ratio == pytest.approx(found.route / found.reference)


def test_the_interval_of_a_ratio_is_that_of_scipys_bootstrap() -> None:
    """Of stretches of one length, which makes the mean of their means the mean of all."""
    apart = np.random.default_rng(16).normal(0.01, 0.2, 40 * results.STRETCH)
    found = results.ratio_interval([apart])
    means = apart.reshape(40, results.STRETCH).mean(axis=1)
    peer = stats.bootstrap(
        (means,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert found is not None
    width = peer.high - peer.low
    assert math.log(found[0]) == pytest.approx(peer.low, abs=0.05 * width)
    assert math.log(found[1]) == pytest.approx(peer.high, abs=0.05 * width)


def test_an_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    """Differences of neighbours that hang together, as those of a text do: 95 of 100, or nearly."""
    random = np.random.default_rng(17)
    held = 0
    for _ in range(200):
        noise = random.normal(0, 0.1, 520)
        apart = 0.02 + noise[3:] + noise[2:-1] + noise[1:-2]
        low, high = results.ratio_interval([apart]) or (0.0, 0.0)
        held += low <= math.exp(0.02) <= high
    assert held >= 200 * 0.88


def test_a_text_of_few_stretches_has_no_interval() -> None:
    assert results.ratio_interval([np.zeros(5 * results.STRETCH)]) is None
    assert results.ratio_interval([np.zeros(6 * results.STRETCH)]) == (1.0, 1.0)


def test_nonsense_has_a_perplexity_that_is_a_number() -> None:
    found = results.perplexity([compared(rows(*[[0, 0]] * 99), rows(*[[1e6, 0]] * 99), [1] * 99)])
    assert found is not None
    assert found.interval is not None
    assert all(math.isfinite(value) for value in (found.route, found.ratio, *found.interval))


def test_equal_probabilities_have_the_ratio_one_and_no_doubt_of_it() -> None:
    one = random_rows(100, 6, 18)
    found = results.perplexity([compared(one, one.copy())])
    assert found is not None
    assert (found.ratio, found.interval) == (1.0, (1.0, 1.0))


def figures(**changes: Any) -> Figures:
    usual = {"positions": 100, "agreeing": 100, "not_finite": 0, "agreement": 1.0}
    return Figures(**{**usual, "kl_mean": 0.0, "kl_p99": 0.0, "kl_max": 0.0, **changes})


def text(ratio: float, interval: tuple[float, float] | None = (1.15, 1.25)) -> Perplexity:
    return Perplexity(tokens=99, reference=10, route=10 * ratio, ratio=ratio, interval=interval)


def test_what_keeps_within_the_thresholds_is_the_same() -> None:
    assert results.judge(figures(kl_mean=0.02), text(1.01), thresholds(0.02, 1.01)) == ()


@pytest.mark.parametrize(
    ("found", "scored", "asked", "reason"),
    [
        (figures(kl_mean=0.2), None, thresholds(0.1), "mean KL 0.2 is above 0.1"),
        (figures(), text(1.2), thresholds(9, 1.1), "perplexity ratio 1.2000 is above 1.1"),
        (
            figures(),
            text(1.2, (1.05, 1.4)),
            thresholds(9, 1.1),
            "(of so short a text it is between 1.0500 and 1.4000)",
        ),
        (
            figures(agreement=0.9),
            None,
            thresholds(9, 9, 0.95),
            "agreement 0.9000 is below 0.95",
        ),
        (figures(not_finite=3), None, thresholds(9, 9), "no numbers at 3 positions"),
        (None, None, thresholds(9, 9), "no position could be compared"),
    ],
)
def test_what_exceeds_a_threshold_differs_and_says_why(
    found: Figures | None, scored: Perplexity | None, asked: Any, reason: str
) -> None:
    (said,) = results.judge(found, scored, asked)
    assert reason in said


@pytest.mark.parametrize(
    ("scored", "says"), [(text(9.0, None), "99 tokens scored"), (None, "0 tokens scored")]
)
def test_a_text_of_too_few_tokens_is_not_judged_and_a_reason_where_it_was_to_be(
    scored: Perplexity | None, says: str
) -> None:
    assert results.judge(figures(), scored, thresholds()) == ()
    (said,) = results.judge(figures(), scored, thresholds(), judge_text=True)
    assert said == f"the text is too short to judge its perplexity: {says}"


def test_a_ratio_of_hundreds_of_digits_is_told_in_a_few() -> None:
    (said,) = results.judge(figures(), text(1e300, (1e299, 1e301)), thresholds())
    assert len(said) < 60


def test_a_reference_that_is_not_finite_makes_nothing_the_same() -> None:
    (said,) = results.judge(figures(not_finite=2), None, thresholds(), not_finite_reference=2)
    assert said == "the reference's logits are no numbers at 2 positions"


def test_agreement_is_only_judged_where_it_is_asked_for() -> None:
    assert results.judge(figures(agreement=0.0), None, thresholds()) == ()


def test_what_several_parts_came_to_is_put_together_in_order() -> None:
    one, other = random_rows(3, 4, 19), random_rows(3, 4, 20)
    part = compared(one, other)
    assert joined([part, part]).kl.tolist() == [*part.kl, *part.kl]
    assert part.chosen(np.array([False, True, False])).kl.tolist() == [part.kl[1]]
