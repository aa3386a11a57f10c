"""How figures and verdicts of a report read: on the terminal, in Markdown, on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnout.perf.report import Comparison, Failure, Report

MISSING = "-"
MOST_NAMED = 8
# Controls but tab and newline, halves of surrogate pairs, and marks that reorder what follows.
_UNSHOWN = (
    *(code for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"),
    *range(0xD800, 0xE000),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
_SHOWN = dict.fromkeys(_UNSHOWN, "\ufffd")
_LARGEST = 1e15  # above it, figures of a report that somebody made up are written with an exponent

# What a route does with a figure, and what it is asked to do better.
_VERBS = {
    "decode_tokens_per_second": "decodes",
    "prefill_tokens_per_second": "computes the prompt",
}
_SPANS = {
    "model_ttft_s": "from the prefill to the first token",
    "request_ttft_s": "from the request to the first token",
    "tpot_s": "for a token after the first",
    "model_compute_s": "inside the model",
    "request_s": "for a whole request",
}


def seconds(value: float | None) -> str:
    """Seconds for people: `1.26 s`, `311.2 ms`, `0.85 ms`; "-" for None."""
    if value is None:
        return MISSING
    if abs(value) < 5e-6:
        return "0 ms"
    if abs(value) >= 0.99995:
        return f"{fixed(value, 2)} s"
    return f"{value * 1e3:.{1 if abs(value) >= 0.00995 else 2}f} ms"


def size(nbytes: int | None) -> str:
    """Bytes for people, in decimal units: `275 MB`, `1.26 GB`; "-" for None."""
    if nbytes is None:
        return MISSING
    amount = float(min(nbytes, int(_LARGEST)))
    if amount >= 999.5e6:
        return f"{amount / 1e9:.2f} GB"
    return f"{amount / 1e6:.0f} MB" if amount >= 999.5e3 else f"{amount / 1e3:.1f} kB"


def rate(mean: float | None, stdev: float | None) -> str:
    """Tokens/s as llama-bench has them: `76.42 ± 0.31`; the mean alone where there is one value."""
    if mean is None:
        return MISSING
    return fixed(mean, 2) if stdev is None else f"{fixed(mean, 2)} ± {fixed(stdev, 2)}"


def fixed(value: float, digits: int) -> str:
    """`value` with that many digits after the point."""
    return f"{value:.{digits}f}" if abs(value) < _LARGEST else f"{value:.{digits + 1}e}"


def verdict(comparison: Comparison) -> str:
    """A comparison as a sentence without its full stop.

    `ep=openvino decodes 1.52 times as fast as config (1.49 to 1.56)`. What is not decided says so.
    """
    ratio, spread = fixed(comparison.ratio, 2), _spread(comparison)
    if comparison.verdict == "cannot tell":
        return f"cannot tell whether {_question(comparison)} ({ratio} times, {spread})"
    return f"{_claim(comparison, ratio)} ({spread})"


def verdict_of_several(comparisons: Sequence[Comparison]) -> str:
    """What comparisons of one route, figure and verdict say of several workloads, as `verdict`."""
    first, count = comparisons[0], len(comparisons)
    low, high = (fixed(end(c.ratio for c in comparisons), 2) for end in (min, max))
    ratios = low if low == high else f"{low} to {high}"
    if first.verdict == "cannot tell":
        return f"cannot tell of any of {count} workloads whether {_question(first)}"
    return f"{_claim(first, ratios)} in {'both' if count == 2 else f'all {count}'} workloads"


def _claim(comparison: Comparison, ratio: str) -> str:
    figure, route, base = comparison.figure, comparison.route, comparison.base
    if figure in _VERBS:
        return f"{route} {_VERBS[figure]} {ratio} times as fast as {base}"
    return f"{route} takes {ratio} times as long as {base} {_span(figure)}"


def _question(comparison: Comparison) -> str:
    figure, route, base = comparison.figure, comparison.route, comparison.base
    if figure in _VERBS:
        return f"{route} {_VERBS[figure]} faster or slower than {base}"
    return f"{route} is faster or slower than {base} {_span(figure)}"


def _span(figure: str) -> str:
    return _SPANS.get(figure, f"by {figure}")


def _spread(comparison: Comparison) -> str:
    if comparison.interval is None:
        return f"too few pairs: {comparison.pairs}"
    low, high = (fixed(end, 2) for end in comparison.interval)
    return f"{low} to {high}"


def failure(error: Failure) -> str:
    """Why a route was not measured to its end, on one line."""
    return f"{error.kind} during {error.during}: {error.problem}"


def counted(count: float, what: str) -> str:
    """`1 request`, `7 requests`, of what has an s in the plural."""
    shown = count if isinstance(count, int) else f"{count:g}"
    return f"{shown} {what}" if count == 1 else f"{shown} {what}s"


def first_few(texts: Sequence[str]) -> list[str]:
    """The first few of many, and how many more there are."""
    more = len(texts) - MOST_NAMED
    return [*texts[:MOST_NAMED], f"{more:,} more"] if more > 0 else list(texts)


def state(report: Report) -> str:
    """What a report lacks, as a sentence; "" for a complete one."""
    if report.complete:
        return ""
    held = f"{report.requests_held} of {counted(report.requests_planned, 'request')}"
    failed = sum(route.error is not None for route in report.routes)
    why = [f"{failed} of {counted(len(report.routes), 'route')} failed"] if failed else []
    if report.interrupted or not failed:
        why.append("it was interrupted")
    return f"Incomplete: {' and '.join(why)}. The report holds {held}."


def shown(text: str) -> str:
    """Text of a report, with U+FFFD for what would not be seen, or would mislead."""
    return text.translate(_SHOWN)
