"""How often comparing two routes, or two reports, is right: shares of many made-up measurements.

    python benchmarks/comparing.py [--trials 1000]

A measurement is made up of requests whose durations scatter log-normally, drift slowly, and now
and then are much longer; two lanes take turns, forwards and backwards, as `turnout perf` has it.
Windows of tests/data/rounds.json, which were recorded, are counted as well.

"decided" is how often lanes that do the same are called faster or slower: at most 1 in 20 is asked
for. "found" is how often a lane that takes 20% longer is called slower: at least 19 in 20 is asked
for, of 10 pairs. "holds" is how often the 95% interval holds the true ratio.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnout.perf.comparing import MARGIN, Ratio, paired, unpaired

ROUNDS = Path(__file__).parents[1] / "tests" / "data" / "rounds.json"
FIGURE = "request_s"
SLOWED = 1.2
TRIALS = 1000
RESAMPLES = 1000
# Requests after which a drift has forgotten most of where it was.
MEMORY = 10

Values = NDArray[np.float64]
Lanes = tuple[Values, Values]


@dataclass(frozen=True)
class Noise:
    """Of logarithms of durations: how requests scatter, and how far the machine drifts slowly.

    `spikes` is the share of requests that take up to `longest` times as long.
    """

    name: str
    scatter: float
    drift: float
    spikes: float
    longest: float

    def durations(self, random: np.random.Generator, count: int) -> Values:
        """Of `count` requests, one after the other."""
        drift = np.empty(count)
        drift[0] = random.normal(0, self.drift)
        keeps = math.exp(-1 / MEMORY)
        steps = random.normal(0, self.drift * math.sqrt(1 - keeps**2), count)
        for index in range(1, count):
            drift[index] = keeps * drift[index - 1] + steps[index]
        trend = np.linspace(0, random.normal(0, self.drift), count)
        spikes = np.where(
            random.random(count) < self.spikes,
            random.uniform(math.log(1.1), math.log(self.longest), count),
            0,
        )
        return np.exp(random.normal(0, self.scatter, count) + drift + trend + spikes)


NOISES = (
    Noise("quiet", scatter=0.02, drift=0.03, spikes=0.03, longest=1.5),
    Noise("uneven", scatter=0.03, drift=0.04, spikes=0.05, longest=1.8),
    Noise("busy", scatter=0.06, drift=0.08, spikes=0.10, longest=2.0),
)


def taking_turns(noise: Noise, random: np.random.Generator, rounds: int) -> Lanes:
    """Two lanes that do the same: A B, B A, A B, ..."""
    turns = noise.durations(random, 2 * rounds).reshape(rounds, 2)
    turns[1::2] = turns[1::2, ::-1]
    return turns[:, 0], turns[:, 1]


def in_two_runs(
    noise: Noise, random: np.random.Generator, rounds: int, apart: float = 0.0
) -> Lanes:
    """The same in two runs, between which the machine changed by some `apart` (of logarithms)."""
    shift = math.exp(random.normal(0, apart)) if apart else 1.0
    return noise.durations(random, rounds), shift * noise.durations(random, rounds)


# ---- ways to compare -------------------------------------------------------------------------


def turnout_paired(lanes: Lanes) -> Ratio:
    return paired(list(zip(lanes[1].tolist(), lanes[0].tolist(), strict=True)))


def turnout_unpaired(lanes: Lanes) -> Ratio:
    return unpaired(lanes[1].tolist(), lanes[0].tolist())


def by_centre(
    centre: Callable[[Values], Values], random: np.random.Generator
) -> Callable[[Lanes], Ratio]:
    """Pairs compared with another centre: a percentile bootstrap, by brute force."""

    def compare(lanes: Lanes) -> Ratio:
        logs = np.log(lanes[1] / lanes[0])
        picked = logs[random.integers(0, len(logs), (RESAMPLES, len(logs)))]
        low, high = np.quantile(centre(picked), [0.025, 0.975])
        return Ratio(float(np.exp(centre(logs[None]))[0]), (math.exp(low), math.exp(high)))

    return compare


def as_independent(random: np.random.Generator) -> Callable[[Lanes], Ratio]:
    """Two runs, each taken for as many independent requests as it has."""

    def compare(lanes: Lanes) -> Ratio:
        base, other = (np.log(lane) for lane in lanes)
        picked = [
            lane[random.integers(0, len(lane), (RESAMPLES, len(lane)))] for lane in (base, other)
        ]
        centres = median(picked[1]) - median(picked[0])
        low, high = np.quantile(centres, [0.025, 0.975])
        ratio = math.exp(float(np.median(other) - np.median(base)))
        return Ratio(ratio, (math.exp(low), math.exp(high)))

    return compare


def mean(rows: Values) -> Values:
    return rows.mean(axis=-1)


def median(rows: Values) -> Values:
    return np.median(rows, axis=-1)


def trimmed_mean(rows: Values) -> Values:
    """Without the lowest and the highest fifth."""
    count = rows.shape[-1]
    cut = count // 5
    return np.sort(rows, axis=-1)[..., cut : count - cut].mean(axis=-1)


def hodges_lehmann(rows: Values) -> Values:
    one, other = np.triu_indices(rows.shape[-1])
    return np.median((rows[..., one] + rows[..., other]) / 2, axis=-1)


# ---- shares ----------------------------------------------------------------------------------


def shares(compare: Callable[[Lanes], Ratio], measured: Iterator[Lanes]) -> str:
    """Decided, found and holds, of lanes that do the same; a slowed one is made of them."""
    decided, found, holds, count = 0, 0, 0, 0
    for base, other in measured:
        count += 1
        same = compare((base, other))
        low, high = same.interval or (0.0, math.inf)
        decided += same.verdict(FIGURE, MARGIN) != "cannot tell"
        holds += low <= 1 <= high
        found += compare((base, SLOWED * other)).verdict(FIGURE, MARGIN) == "slower"
    return "  ".join(f"{100 * part / count:7.1f}%" for part in (decided, found, holds))


def recorded() -> tuple[Values, Values, Values]:
    """Seconds of two lanes that did the same, and of one that slept a fifth more."""
    data = json.loads(ROUNDS.read_text("utf-8"))
    same, again, slowed = (np.array(data[name]) for name in ("same", "again", "slowed"))
    return same, again, slowed


def in_turns(rounds: int) -> list[tuple[slice, slice]]:
    """Every window of that many recorded rounds, for both lanes."""
    windows = (slice(start, start + rounds) for start in range(len(recorded()[0]) - rounds + 1))
    return [(window, window) for window in windows]


def in_runs(rounds: int) -> list[tuple[slice, slice]]:
    """Two windows of that many recorded rounds that do not overlap, of every 17th and 23rd."""
    last = len(recorded()[0]) - rounds
    return [
        (slice(one, one + rounds), slice(other, other + rounds))
        for one in range(0, last, 17)
        for other in range(0, last, 23)
        if abs(one - other) >= rounds
    ]


def count(compare: Callable[[Lanes], Ratio], windows: Sequence[tuple[slice, slice]]) -> str:
    """Decided and found, of recorded lanes."""
    same, again, slowed = recorded()
    verdicts = [
        [compare((same[one], lane[other])).verdict(FIGURE, MARGIN) for one, other in windows]
        for lane in (again, slowed)
    ]
    decided = len(windows) - verdicts[0].count("cannot tell")
    found = verdicts[1].count("slower")
    return "  ".join(f"{100 * part / len(windows):7.1f}%" for part in (decided, found))


def head(title: str) -> None:
    print(f"\n{title}\n{'':34}  decided     found     holds")


def row(*words: object, shares: str) -> None:
    print(f"{'  '.join(f'{word!s:>10}' for word in words):34}  {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials: int = parser.parse_args().trials
    random = np.random.default_rng(1)
    made_up_pairs(random, trials)
    made_up_runs(random, trials)
    head("Recorded, routes of one report, by pairs")
    for rounds in (6, 8, 10, 15, 20):
        row(rounds, shares=count(turnout_paired, in_turns(rounds)))
    head("Recorded, two reports, by requests, and how many a run is taken for")
    for rounds in (10, 20, 30):
        row(rounds, "all", shares=count(as_independent(random), in_runs(rounds)))
        row(rounds, "three", shares=count(turnout_unpaired, in_runs(rounds)))


def made_up_pairs(random: np.random.Generator, trials: int) -> None:
    def turns(noise: Noise, rounds: int) -> Iterator[Lanes]:
        return (taking_turns(noise, random, rounds) for _ in range(trials))

    head("Centres of paired log-ratios, 10 pairs")
    centres: Sequence[Callable[[Values], Values]] = (mean, hodges_lehmann, trimmed_mean, median)
    for noise in NOISES:
        for centre in centres:
            name = centre.__name__.replace("_", " ")
            row(noise.name, name, shares=shares(by_centre(centre, random), turns(noise, 10)))
    head("Turnout, routes of one report, by pairs")
    for noise in NOISES:
        for rounds in (5, 6, 7, 8, 10, 15, 20, 30):
            row(noise.name, rounds, shares=shares(turnout_paired, turns(noise, rounds)))


def made_up_runs(random: np.random.Generator, trials: int) -> None:
    for title, compare in (
        ("as many as it has", as_independent(random)),
        ("three: Turnout", turnout_unpaired),
    ):
        head(f"Two reports, by requests and how far apart the runs are; a run taken for {title}")
        for noise in NOISES:
            for rounds in (6, 10, 30):
                for apart in (0.0, 0.02, 0.05):
                    runs = (in_two_runs(noise, random, rounds, apart) for _ in range(trials))
                    row(noise.name, rounds, f"{apart:.0%}", shares=shares(compare, runs))


if __name__ == "__main__":
    main()
