"""What looking at a bundle costs when its weights take 10 GB, against the same one with few.

    python benchmarks/large_bundle.py [--rounds 15]

`inspect`, `check` and `explain` as whole processes. The data file is sparse, so that nothing of
10 GB is written. Every round runs all of them on both bundles, every second round backwards; the
first warms up and does not count. What is printed is the median in seconds, and the median of the
ratio of both bundles within a round. Nothing is asserted: that no weight is read is kept by
tests/test_large_bundle.py.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import turnout
from figures import quartiles
from startup import (
    PASS,
    SPARSE_BYTES,
    TINY_MODEL,
    Case,
    measure,
    ratios,
    start,
    with_tensor,
)

INVENTORY = TINY_MODEL.parents[1] / "inventories" / "intel-laptop.json"
COMMANDS: dict[str, tuple[object, ...]] = {
    "inspect": (),
    "check": (),
    "explain": (),
    "explain --ep openvino": ("--ep", "openvino", "--inventory", INVENTORY),
    "explain --reproducible": ("--reproducible",),
}
TARGET = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = turnout.build(TINY_MODEL, folder / "built")
        small = with_tensor(built, folder / "small", 16)
        large = with_tensor(built, folder / "large", SPARSE_BYTES)
        cases = [Case(PASS, lambda: start("-c", "pass"))]
        for command, given in COMMANDS.items():
            cases += [
                Case(f"{command}, small", run(command, small, given)),
                Case(f"{command}, 10 GB", run(command, large, given)),
            ]
        seconds = measure(cases, rounds)
    print(f"{'':24}  10 GB       small       10 GB / small (quartiles), {rounds} rounds")
    for command in COMMANDS:
        few, many = seconds[f"{command}, small"], seconds[f"{command}, 10 GB"]
        low, middle, high = quartiles(ratios(seconds, f"{command}, 10 GB", f"{command}, small"))
        met = "met" if median(many) < TARGET else "MISSED"
        print(
            f"{command:24}  {median(many) * 1e3:6.0f} ms   {median(few) * 1e3:6.0f} ms   "
            f"{middle:.2f} ({low:.2f}-{high:.2f}); target: under {TARGET:g} s, {met}"
        )
    print(f"{PASS:24}  {median(seconds[PASS]) * 1e3:6.0f} ms")


def run(command: str, bundle: Path, given: tuple[object, ...]) -> Callable[[], object]:
    return lambda: start("-m", "turnout", command.split(maxsplit=1)[0], bundle, *given)


if __name__ == "__main__":
    main()
