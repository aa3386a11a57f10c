"""Kills a process that compiles and loads at random moments, and looks at what is left.

    python benchmarks/faults.py [--runs 200] [--seed 0] [--points]

Each run compiles one stage of a tiny bundle with OpenVINO on the CPU, in a process that is killed
(SIGKILL) at a moment drawn evenly from the time that it takes; every other run compiles anew what
was compiled before. Then nothing that the process started may be there, every entry of the store
must be whole by its hashes, and the next process must give the reference's tokens, after which the
folders hold what they hold without a kill, and nothing besides.

`--points` kills at every single operation on files instead, with a compiler that forges: see
tests/fault_fixtures.py. What is printed is how often each phase was hit. A run that fails ends it
with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from compile_fixtures import make_toy
from fault_fixtures import finish, start
from kill_fixtures import Killed
from session_fixtures import Bundles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.points:
            points(Path(name))
        else:
            random_kills(Path(name), options.runs, options.seed)


def random_kills(work: Path, runs: int, seed: int) -> None:
    begin = time.monotonic()
    killed = Killed(Bundles(work)("pipeline"), work, seed)
    lasts = ", ".join(f"{seconds:.2f} s" for seconds in killed.lasts.values())
    print(f"one process takes {lasts} (fresh, and anew); seed {seed}", flush=True)
    for number in range(runs):
        try:
            killed.run(number)
        except AssertionError as error:
            sys.exit(f"run {number} of seed {seed} FAILED: {error}")
    print(f"{runs} kills, {time.monotonic() - begin:.0f} s, none failed")
    print("killed while", ", ".join(f"{name} {n}" for name, n in killed.phases.most_common()))
    print("next process", ", ".join(f"{name} {n}" for name, n in killed.outcomes.most_common()))
    print(f"staging folders were left {killed.swept} times, and gone after the next process")


def points(work: Path) -> None:
    toy = make_toy(work / "toy")
    for act in ("kill", "interrupt"):
        for old in (False, True):
            argument = {
                "bundle": str(toy.folder),
                "work": str(work / f"{act} {old}"),
                "act": act,
                "old": old,
            }
            found = finish(start("kill_fixtures:every_point", argument), timeout=3600)
            print(act, "anew" if old else "fresh", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
