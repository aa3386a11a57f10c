"""How often verdicts are right: a route against itself, and against one that is 20% slower.

    python benchmarks/repeatability.py BUNDLE [--runs 20] [--iterations 10] [--tokens 32]

Each run measures three times the same route with `turnout.perf`: twice as it is, and once with a
sleep after each token that takes 20% of what a token takes. Of the first two every figure is to be
"cannot tell"; of the third tokens/s are to be "slower". Exits with 1 where either is so in fewer
than 19 of 20 runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import turnout
from turnout.perf import child
from turnout.perf.measuring import Plan, measure
from turnout.perf.report import Comparison
from turnout.perf.routeset import parse
from turnout.perf.workloads import sweep
from turnout.processes import Heard

SLOWER_BY = 0.20
RIGHT = 19 / 20
FIGURE = "decode_tokens_per_second"


class Slowed(child.Serving):
    """Sleeps after each token, once a first request has shown what one takes."""

    def __init__(self) -> None:
        super().__init__()
        self._sleep_s = 0.0
        from turnout.runtime import generation

        create = generation.create_generator

        def slowed(*arguments: Any) -> Any:
            return SlowGenerator(create(*arguments), self._sleep_s)

        generation.create_generator = slowed

    def __call__(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        answer = super().__call__(question, tell)
        if question["do"] == "request" and not self._sleep_s:
            self._sleep_s = SLOWER_BY * median(answer["decode_s"])
        return answer


class SlowGenerator:
    """A generator whose tokens take longer."""

    def __init__(self, generator: Any, sleep_s: float) -> None:
        self._generator, self._sleep_s = generator, sleep_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def generate_next_token(self) -> None:
        self._generator.generate_next_token()
        # A sleep would be as coarse as the system's timer.
        end = time.perf_counter() + self._sleep_s
        while time.perf_counter() < end:
            pass


def main() -> None:
    options = parse_arguments()
    bundle = turnout.Bundle.open(options.bundle)
    asks = sweep(bundle.config, [32], [options.tokens])
    plan = Plan(asks, iterations=options.iterations, ignore_eos=True, placement=False)
    candidates = parse("name=first config; name=same config; name=slowed config")
    same: list[Counter[str]] = []
    slowed: list[str] = []
    for run in range(options.runs):
        report = measure(bundle, candidates, plan, serving={"slowed": "repeatability:Slowed"})
        if not report.complete:
            sys.exit(f"A run is incomplete: {[route.error for route in report.routes]}")
        verdicts = {(c.route, c.figure): c for c in report.comparisons}
        same.append(Counter(c.verdict for (name, _), c in verdicts.items() if name == "same"))
        slow = verdicts["slowed", FIGURE]
        slowed.append(slow.verdict)
        itself = verdicts["same", FIGURE]
        print(
            f"run {run + 1:2}: same {dict(same[-1])}, {shown(itself)}; slowed {shown(slow)}",
            flush=True,
        )
    sys.exit(summary(same, slowed))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=32)
    return parser.parse_args()


def shown(comparison: Comparison) -> str:
    low, high = comparison.interval or (float("nan"), float("nan"))
    return f"{comparison.verdict}, tokens/s {comparison.ratio:.3f} ({low:.3f} to {high:.3f})"


def summary(same: list[Counter[str]], slowed: list[str]) -> int:
    undecided = sum(set(counts) == {"cannot tell"} for counts in same)
    found = sum(verdict == "slower" for verdict in slowed)
    print(f"\nthe same route, every figure: cannot tell in {undecided} of {len(same)} runs")
    print(f"the route that is slowed by {SLOWER_BY:.0%}: slower in {found} of {len(slowed)} runs")
    return int(min(undecided / len(same), found / len(slowed)) < RIGHT)


if __name__ == "__main__":
    main()
