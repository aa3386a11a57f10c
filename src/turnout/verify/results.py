"""From what was compared to the report, and to a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from turnout.perf.results import in_effect
from turnout.perf.wording import counted, fixed
from turnout.verify import report as doc
from turnout.verify.distributions import Compared, joined
from turnout.verify.rows import FORCED, PROMPT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from turnout.perf.report import StageReport
    from turnout.verify.lane import Lane, Rows
    from turnout.verify.run import Answered, Outcome, Run

LEAST_FOR_P99 = 100
# Differences of neighbouring tokens hang together, so that stretches of a text are resampled.
STRETCH = 16
LEAST_STRETCHES = 6
RESAMPLES = 10_000
_AT_A_TIME = 100  # of them, so that a long text takes little memory
_LARGEST = 700.0  # of which exp is a number
LEVEL = 0.95
SEED = 20_260_822


def report(run: Run) -> doc.Report:
    """What was found."""
    plan = run.plan
    width = max((a.reference.width for o in run.outcomes for a in o.answers), default=0)
    routes = tuple(_route(run, outcome) for outcome in run.outcomes)
    return doc.Report(
        created=run.created,
        command=run.command,
        environment=run.environment,
        bundle=run.identity,
        settings=doc.Settings(
            thresholds=plan.thresholds,
            max_new_tokens=plan.asked.new_tokens,
            prompts_from=plan.asked.prompts_from,
            text_from=plan.asked.text_from if plan.asked.text is not None else None,
            vocabulary=width,
            known_tokens=run.known,
        ),
        notes=tuple(dict.fromkeys([*run.made.notes, *_unjudged(run, routes)])),
        questions=tuple(_question(run, index) for index in range(len(run.made.questions))),
        reference=_reference(run),
        routes=routes,
        interrupted=run.interrupted,
    )


def _unjudged(run: Run, routes: Sequence[doc.RouteReport]) -> Iterator[str]:
    """That a text was asked for and decides nothing, where it says so nowhere else."""
    for route in routes:
        if run.plan.asked.text is not None and route.error is None and too_short(route.perplexity):
            yield f"{short_text(route.perplexity).capitalize()}."


def figures(compared: Compared) -> doc.Figures | None:
    """What came of positions taken together; None where there is none.

    Positions of which the route's or the reference's logits are no numbers count as not agreeing,
    and have no divergence.
    """
    count = len(compared.kl)
    if not count:
        return None
    kl = compared.kl[compared.finite]
    return doc.Figures(
        positions=count,
        agreeing=int(compared.agrees.sum()),
        not_finite=int((~compared.finite).sum()),
        agreement=float(compared.agrees.mean()),
        kl_mean=float(kl.mean()) if len(kl) else None,
        kl_p99=_percentile(kl),
        kl_max=float(kl.max()) if len(kl) else None,
    )


def perplexity(parts: Sequence[Compared]) -> doc.Perplexity | None:
    """Of a text's parts, under both; None where no position is finite.

    The ratio is exp(mean of the differences of negative log probabilities). Its interval is that of
    a percentile bootstrap over stretches of `STRETCH` tokens.
    """

    whole = joined(parts)
    if not whole.finite.any():
        return None
    reference, route = whole.reference_nll[whole.finite], whole.nll[whole.finite]
    apart = [part.nll[part.finite] - part.reference_nll[part.finite] for part in parts]
    return doc.Perplexity(
        tokens=len(reference),
        reference=_exp(reference.mean()),
        route=_exp(route.mean()),
        ratio=_exp((route - reference).mean()),
        interval=ratio_interval(apart),
    )


def ratio_interval(apart: Sequence[NDArray[np.float64]]) -> tuple[float, float] | None:
    """The 95% interval of exp(mean) of differences, each array those of one part of a text.

    None below `LEAST_STRETCHES` stretches.
    """
    import numpy as np

    stretches = [
        part[start : start + STRETCH] for part in apart for start in range(0, len(part), STRETCH)
    ]
    if len(stretches) < LEAST_STRETCHES:
        return None
    sums = np.array([stretch.sum() for stretch in stretches])
    sizes = np.array([len(stretch) for stretch in stretches])
    random = np.random.default_rng(SEED)
    even = np.full(len(sums), 1 / len(sums))
    means = []
    for _ in range(RESAMPLES // _AT_A_TIME):
        # How often each stretch is drawn, a resample a row.
        drawn = random.multinomial(len(sums), even, _AT_A_TIME)
        means.append((drawn @ sums) / (drawn @ sizes))
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return _exp(low), _exp(high)


def _exp(value: float) -> float:
    """Of nonsense, too, which is more apart than a number can say."""
    return math.exp(min(float(value), _LARGEST))


def judge(
    overall: doc.Figures | None,
    text: doc.Perplexity | None,
    thresholds: doc.Thresholds,
    *,
    not_finite_reference: int = 0,
    judge_text: bool = False,
) -> tuple[str, ...]:
    """Why a route differs from the reference, a line each; empty for one that does not.

    A perplexity without an interval is of too few tokens to say anything, and is not judged: which
    is a reason of its own with `judge_text`.
    """
    if overall is None:
        return ("no position could be compared",)
    found = []
    if not_finite_reference:
        found.append(f"the reference's logits are no numbers at {not_finite_reference} positions")
    if overall.not_finite > not_finite_reference:
        found.append(f"its logits are no numbers at {overall.not_finite} positions")
    if overall.kl_mean is not None and overall.kl_mean > thresholds.max_kl:
        found.append(f"mean KL {overall.kl_mean:.3g} is above {thresholds.max_kl:g}")
    if judge_text and too_short(text) and not overall.not_finite:
        found.append(short_text(text))
    if text is not None and text.interval and text.ratio > thresholds.max_perplexity_ratio:
        found.append(_perplexity_above(text, thresholds.max_perplexity_ratio))
    least = thresholds.min_agreement
    if least is not None and overall.agreement is not None and overall.agreement < least:
        found.append(f"agreement {overall.agreement:.4f} is below {least:g}")
    return tuple(found)


def too_short(text: doc.Perplexity | None) -> bool:
    """Whether too few tokens were scored to judge a perplexity."""
    return text is None or text.interval is None


def short_text(text: doc.Perplexity | None) -> str:
    """That, in words."""
    scored = 0 if text is None else text.tokens
    return f"the text is too short to judge its perplexity: {counted(scored, 'token')} scored"


def _perplexity_above(text: doc.Perplexity, most: float) -> str:
    line = f"perplexity ratio {fixed(text.ratio, 4)} is above {most:g}"
    if text.interval is None or text.interval[0] > most:
        return line
    low, high = (fixed(end, 4) for end in text.interval)
    return f"{line} (of so short a text it is between {low} and {high})"


def first_difference(run: Run, answer: Answered) -> doc.FirstDifference | None:
    """Where the route's greedy continuation leaves the reference's.

    Up to there both have the same tokens before them, so that what the route takes for the
    likeliest is what it would generate. None where there is no such place, or a position before it
    was not read, or its logits are no numbers.
    """
    question, compared = run.made.questions[answer.question], answer.compared
    start = len(question.ids) - 1
    for after in range(len(run.continuations[answer.question])):
        if start + after not in answer.positions:
            return None
        index = answer.positions.index(start + after)
        if not compared.finite[index]:
            return None
        theirs, ours = int(compared.reference_token[index]), int(compared.token[index])
        if theirs != ours:
            return doc.FirstDifference(
                after=after,
                reference_token=theirs,
                reference_text=run.texts.get((theirs,), ""),
                token=ours,
                text=run.texts.get((ours,), ""),
                margin=float(compared.margin[index]),
            )
    return None


def _question(run: Run, index: int) -> doc.Question:
    from turnout.perf.child import ids_sha256

    question = run.made.questions[index]
    follows = run.continuations.get(index, ())
    return doc.Question(
        kind=question.kind,
        text=question.text,
        tokens=len(question.ids),
        token_ids_sha256=ids_sha256(question.ids),
        first=question.first,
        cut=question.cut,
        continuation=follows,
        continuation_text=run.texts.get(follows, ""),
    )


def _reference(run: Run) -> doc.ReferenceReport:
    lane = run.reference
    requested, effective, stages = _in_effect(lane)
    return doc.ReferenceReport(
        name=lane.name,
        requested=requested,
        effective=effective,
        stages=stages,
        bundle=run.reference_identity,
        not_finite=max((_not_finite_reference(o) for o in run.outcomes), default=0),
    )


def _not_finite_reference(outcome: Outcome) -> int:
    return sum(int((~answer.compared.reference_finite).sum()) for answer in outcome.answers)


def _route(run: Run, outcome: Outcome) -> doc.RouteReport:
    lane, answers = outcome.lane, outcome.answers
    requested, effective, stages = _in_effect(lane)
    overall = figures(joined(answer.compared for answer in answers))
    kinds = [run.made.questions[answer.question].kind for answer in answers]
    texts = [a.compared for a, kind in zip(answers, kinds, strict=True) if kind == "text"]
    scored = perplexity(texts) if texts else None
    reasons = judge(
        overall,
        scored,
        run.plan.thresholds,
        not_finite_reference=_not_finite_reference(outcome),
        judge_text=run.plan.judge_text,
    )
    verdict: doc.Verdict = "differs" if reasons else "same"
    failed = outcome.failure is not None
    return doc.RouteReport(
        name=lane.name,
        requested=requested,
        effective=effective,
        stages=stages,
        verdict=None if failed else verdict,
        reasons=() if failed else reasons,
        overall=overall,
        prompts=figures(_part(run, outcome, inside=True)),
        continuations=figures(_part(run, outcome, inside=False)),
        text=figures(joined(texts)),
        perplexity=scored,
        answers=tuple(_answer(run, answer) for answer in answers),
        error=outcome.failure,
    )


def _part(run: Run, outcome: Outcome, *, inside: bool) -> Compared:
    """Positions inside prompts, or those of their continuations."""
    import numpy as np

    found = []
    for answer in outcome.answers:
        question = run.made.questions[answer.question]
        if question.kind == "text":
            continue
        before = np.array(answer.positions, dtype=np.int64) < len(question.ids) - 1
        found.append(answer.compared.chosen(before if inside else ~before))
    return joined(found)


def _answer(run: Run, answer: Answered) -> doc.Answer:
    question, compared = run.made.questions[answer.question], answer.compared
    places = dict(zip(answer.positions, range(len(answer.positions)), strict=True))
    last = len(question.ids) + len(run.continuations.get(answer.question, ())) - 1
    every = range(question.first, last)
    scored = question.kind == "text"
    found = figures(compared)
    return doc.Answer(
        question=answer.question,
        figures=found if found is not None else _NOTHING,
        read=_read(answer.rows, answer.positions),
        reference_read=_read(answer.reference, answer.positions),
        first_difference=first_difference(run, answer),
        differing=tuple(p for p in answer.positions if not compared.agrees[places[p]]),
        unread=tuple(p for p in every if p not in places),
        kl=_listed(compared.kl, places, every),
        reference_nll=_listed(compared.reference_nll, places, every) if scored else (),
        nll=_listed(compared.nll, places, every) if scored else (),
    )


_NOTHING = doc.Figures(
    positions=0,
    agreeing=0,
    not_finite=0,
    agreement=None,
    kl_mean=None,
    kl_p99=None,
    kl_max=None,
)


def _listed(
    values: NDArray[np.float64], places: dict[int, int], every: Sequence[int]
) -> tuple[float | None, ...]:
    found = (float(values[places[p]]) if p in places else math.nan for p in every)
    return tuple(value if math.isfinite(value) else None for value in found)


def _read(rows: Rows, positions: Sequence[int]) -> doc.Read:
    ways = [rows.ways[position - rows.first] for position in positions]
    return doc.Read(prompt=ways.count(PROMPT), forced=ways.count(FORCED))


def _in_effect(lane: Lane) -> tuple[str, str, tuple[StageReport, ...]]:
    return in_effect(lane.candidate, lane.bundle, lane.route, decided=lane.decided)


def _percentile(values: NDArray[np.float64]) -> float | None:
    import numpy as np

    return float(np.percentile(values, 99)) if len(values) >= LEAST_FOR_P99 else None
