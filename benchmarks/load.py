"""What a warm load through the store costs beside the runtime's own, and what compiling buys.

    python benchmarks/load.py BUNDLE [--ep openvino] [--rounds 9]

Every measurement is a process of its own, since libraries of EPs, the allocator and the cache of
pages make a second load in one process another thing. Each round runs all cases, every second
round backwards; the first warms up and does not count. Within a process everything is imported
and the plugin is registered before the clock starts, so that what is compared is:

    runtime     og.Config, og.Model and og.Tokenizer on the derived folder
    store       the same through Session(compile=True): look up, verify, derive, load
    plain       Session(), compiled in memory, as without the store

What is printed is the median of each, and the medians of what `store` takes beyond `runtime` in
the same round. The bundle is left as it is: a copy of hard links to its files is compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import turnout
from figures import quartiles
from turnout.compiling.options import CompileOptions
from turnout.compiling.prepare import prepare
from turnout.routing import apply

MOST_S, MOST_SHARE = 0.050, 0.03
CASES = ("runtime", "store", "plain")


def main() -> None:
    options = parse()
    if options.case is not None:
        print(json.dumps(measure(options.bundle, options.ep, options.case)))
        return
    with tempfile.TemporaryDirectory(dir=options.bundle.parent) as name:
        os.environ["TURNOUT_CACHE_DIR"] = str(Path(name) / "cache")
        bundle = Path(name) / "bundle"
        shutil.copytree(options.bundle, bundle, copy_function=os.link, ignore=ignored)
        first, compiled = compiled_first(bundle, options.ep)
        rows = rounds(bundle, options.ep, options.rounds)
    report(rows, first, compiled)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--ep", default="openvino")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    return parser.parse_args()


def ignored(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "_compiled"]


def decided(bundle: Path, ep: str) -> tuple[turnout.Bundle, turnout.Route]:
    opened = turnout.Bundle.open(bundle)
    return opened, turnout.route(opened, ep=ep)


def compiled_first(bundle: Path, ep: str) -> tuple[float, list[str]]:
    """Compile, in seconds, and the stages. Links are fresh, so that twice it is not remembered."""
    opened, route = decided(bundle, ep)
    effective = apply(opened.config, route)
    start = time.perf_counter()
    prepared = prepare(opened, effective, CompileOptions(compile=True))
    taken = time.perf_counter() - start
    time.sleep(4)  # the reserve for files that were written just now
    prepare(opened, effective, CompileOptions(compile=True))
    return taken, list(prepared.compiled)


def rounds(bundle: Path, ep: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index in range(count + 1):
        order = CASES if index % 2 else tuple(reversed(CASES))
        row = {case: in_a_process(bundle, ep, case) for case in order}
        if index:
            found.append(row)
    return found


def in_a_process(bundle: Path, ep: str, case: str) -> dict[str, Any]:
    command = [sys.executable, __file__, str(bundle), "--ep", ep, "--case", case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(path: Path, ep: str, case: str) -> dict[str, Any]:
    """Load in this process; seconds, and for a session their parts."""
    import onnxruntime_genai as og

    from turnout.compiling import receipts, sharing, tools  # noqa: F401 - imported by the clock
    from turnout.runtime import loading

    bundle, route = decided(path, ep)
    effective = apply(bundle.config, route)
    loading.register(effective, bundle)
    if case == "runtime":
        folder = str(prepare(bundle, effective, CompileOptions(compile=True)).folder)
        start = time.perf_counter()
        config = og.Config(folder)
        model = og.Model(config)
        og.Tokenizer(model)
        return {"load_s": time.perf_counter() - start}
    bundle = turnout.Bundle.open(path)
    start = time.perf_counter()
    with turnout.Session(bundle, route, compile=case == "store") as session:
        taken = time.perf_counter() - start
        return {"load_s": taken, **session.load().to_json()}


def report(rows: list[dict[str, Any]], first: float, compiled: list[str]) -> None:
    taken = {case: [row[case]["load_s"] for row in rows] for case in CASES}
    print(f"compiled {', '.join(compiled)} in {first:.2f} s\n")
    for case in CASES:
        print(f"{case:8} {median(taken[case]) * 1e3:8.1f} ms")
    over = [row["store"]["load_s"] - row["runtime"]["load_s"] for row in rows]
    parts = [row["store"]["preparation_s"] for row in rows]
    runtime = median(taken["runtime"])
    limit = max(MOST_S, MOST_SHARE * runtime)
    low, middle, high = quartiles(over)
    print(
        f"\nstore beyond runtime: {middle * 1e3:.1f} ms "
        f"(quartiles of {len(rows)} rounds: {low * 1e3:.1f} to {high * 1e3:.1f}), "
        f"of which preparation {median(parts) * 1e3:.1f} ms; "
        f"target: at most {limit * 1e3:.1f} ms, {'met' if middle <= limit else 'MISSED'}"
    )
    ratios = [row["store"]["load_s"] / row["plain"]["load_s"] for row in rows]
    low, middle, high = quartiles(ratios)
    print(f"store takes {middle:.2f} times what plain takes (quartiles {low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()
