"""What was found in words, which the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from turnout.perf import wording

if TYPE_CHECKING:
    from turnout.verify.report import (
        Answer,
        Figures,
        FirstDifference,
        Perplexity,
        Report,
        RouteReport,
    )

HEAD = (
    "Route",
    "Verdict",
    "Took effect",
    "Agreement",
    "Mean KL",
    "p99 KL",
    "Perplexity",
    "First difference",
)
FIGURES_HEAD = ("Where", "Positions", "Agreement", "Mean KL", "p99 KL", "Largest KL")
PARTS = {
    "overall": "everywhere",
    "prompts": "inside prompts",
    "continuations": "in what follows prompts",
    "text": "in the text",
}
FAILED = "failed"
_SHOWN = 40


def cells(route: RouteReport) -> tuple[str, ...]:
    """A route in words, a cell a column of `HEAD`, "-" for what there is not."""
    overall, text = route.overall, route.perplexity
    return (
        route.name,
        route.verdict or FAILED,
        route.effective,
        share(overall.agreement if overall is not None else None),
        nats(overall.kl_mean if overall is not None else None),
        nats(overall.kl_p99 if overall is not None else None),
        ratio(text),
        first(route),
    )


def result(report: Report) -> str:
    """How many routes are the same, and which are not, as a sentence."""
    whose: dict[str, list[str]] = {verdict: [] for verdict in ("same", "differs", FAILED)}
    for route in report.routes:
        whose[route.verdict or FAILED].append(route.name)
    same = f"{len(whose['same'])} of {wording.counted(len(report.routes), 'route')}"
    parts = [f"{same} {'is' if len(report.routes) == 1 else 'are'} the same as the reference"]
    for verdict in ("differs", FAILED):
        if whose[verdict]:
            parts.append(f"{verdict}: {', '.join(wording.first_few(whose[verdict]))}")
    end = ". It was interrupted." if report.interrupted else "."
    return "; ".join(parts) + end


def figures(route: RouteReport) -> list[tuple[str, ...]]:
    """Figures of a route by kinds of positions, a row each, cells of `FIGURES_HEAD`."""
    rows: list[tuple[str, ...]] = []
    for name, where in PARTS.items():
        found: Figures | None = getattr(route, name)
        if found is not None:
            rows.append(
                (
                    where,
                    str(found.positions),
                    share(found.agreement),
                    nats(found.kl_mean),
                    nats(found.kl_p99),
                    nats(found.kl_max),
                )
            )
    return rows


def share(value: float | None) -> str:
    """A share as a percentage, which is 100% only where it is all."""
    if value is None:
        return wording.MISSING
    if 0.99995 <= value < 1:
        return "99.99%"
    return f"{value:.2%}" if value < 1 else "100%"


def nats(value: float | None) -> str:
    """A divergence in two significant digits."""
    return wording.MISSING if value is None else f"{value:.2g}"


def ratio(text: Perplexity | None) -> str:
    """`1.0012 (0.9981 to 1.0043)`, of the perplexities of the text."""
    if text is None:
        return wording.MISSING
    middle = wording.fixed(text.ratio, 4)
    if text.interval is None:
        return middle
    low, high = (wording.fixed(end, 4) for end in text.interval)
    return f"{middle} ({low} to {high})"


def first(route: RouteReport) -> str:
    """The earliest difference of all continuations, and how many prompts have one."""
    found = [a.first_difference for a in route.answers if a.first_difference is not None]
    if route.continuations is None:
        return wording.MISSING
    if not found:
        # Where logits are no numbers there may be one that nobody can tell.
        return wording.MISSING if route.continuations.not_finite else "none"
    prompts = sum(not answer.nll for answer in route.answers)
    earliest = min(found, key=lambda difference: difference.after)
    return f"{len(found)} of {prompts} prompts, after {count(earliest.after)}"


def difference(report: Report, answer: Answer) -> str:
    """Where a continuation leaves the reference's, as a sentence; "" where it does not.

    `after 7 tokens " on" for " in", where the reference's margin is 0.021: What is the ...`
    """
    found = answer.first_difference
    if found is None:
        return ""
    ours, theirs = token(found, ours=True), token(found, ours=False)
    return (
        f"after {count(found.after)} {ours} for {theirs}, where the reference's margin is "
        f"{found.margin:.2g}: {asked(report, answer)}"
    )


def asked(report: Report, answer: Answer) -> str:
    """The prompt of an answer, shortened, or its number where it has no text."""
    known = 0 <= answer.question < len(report.questions)
    said = report.questions[answer.question].text if known else None
    return f"prompt {answer.question + 1}" if said is None else shortened(said)


def token(found: FirstDifference, *, ours: bool) -> str:
    """A token by its text, in quotes, or its number where it has none that can be shown."""
    text, number = (
        (found.text, found.token) if ours else (found.reference_text, found.reference_token)
    )
    if not text or "\ufffd" in text:
        return f"token {number}"
    return '"' + text.replace("\n", "\\n") + '"'


def shortened(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."


def notes(report: Report) -> Iterator[str]:
    """What has to be known to read the results right."""
    if report.interrupted:
        yield "It was interrupted; routes that it did not come to the end of have failed."
    reference = report.reference
    of = "" if reference.bundle is None else f" of {reference.bundle.path}"
    yield f"Reference: {reference.requested}{of}, which took effect as {reference.effective}."
    limits = report.settings.thresholds
    asked = [f"mean KL {limits.max_kl:g}", f"perplexity ratio {limits.max_perplexity_ratio:g}"]
    if limits.min_agreement is not None:
        asked.append(f"agreement {limits.min_agreement:.2%} at least")
    yield f"The same is what keeps within: {', '.join(asked)}."
    yield from read(report)
    if report.questions:
        yield f"Nothing beyond {count(longest(report))} was asked."
    yield from report.notes


def longest(report: Report) -> int:
    """The most tokens after which logits were asked for."""
    # Nothing follows the last token of all, which is not read.
    return max(asked.tokens + len(asked.continuation) - 1 for asked in report.questions)


def read(report: Report) -> Iterator[str]:
    """How logits were read, which may be in several ways."""
    ways: dict[tuple[int, int, int, int], list[str]] = {}
    for route in report.routes:
        if not route.answers:
            continue
        counts = (
            sum(answer.read.prompt for answer in route.answers),
            sum(answer.read.forced for answer in route.answers),
            sum(answer.reference_read.prompt for answer in route.answers),
            sum(answer.reference_read.forced for answer in route.answers),
        )
        ways.setdefault(counts, []).append(route.name)
    for (prompt, forced, *theirs), names in ways.items():
        whose = "" if len(ways) == 1 else f" ({', '.join(names)})"
        line = f"Compared at {prompt + forced} positions{whose}: {prompt} read out of prompts"
        line += f", {forced} after forced tokens"
        if theirs != [prompt, forced]:
            line += f"; by the reference {theirs[0]} and {theirs[1]}"
        yield f"{line}."


def count(tokens: int) -> str:
    """`1 token`, `7 tokens`."""
    return "1 token" if tokens == 1 else f"{tokens} tokens"
