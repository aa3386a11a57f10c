"""A long run of mutated configs, bundles and ONNX files through everything that reads them.

    python benchmarks/fuzz.py [--configs 100000] [--headers 10000] [--bundles 2000] [--seed 0]

Every config is read, routed for one machine by one request, and checked alone; on whether it can
be taken at all, the check and onnxruntime-genai's parser must agree. Every ONNX file is read;
every bundle, of which one file is mutated, is checked for one machine. What is printed is how
often each answer was given, the slowest case, and the most memory that the process took. A case
that raises anything but a `TurnoutError`, or takes longer than half a minute, is written to a
file and reported; the exit code is then 1. Real configs come from `$TURNOUT_CORPUS`.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import bundle_fixtures  # noqa: E402
import fuzzing  # noqa: E402

CORPUS = Path(os.environ.get("TURNOUT_CORPUS", ROOT.parent / "shared" / "corpus"))
PATIENCE = 30.0
MOST_BYTES = 1 << 30


class HangError(Exception):
    """A case took longer than PATIENCE seconds."""


@dataclass
class Run:
    """What became of the cases of one kind."""

    name: str
    answers: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "none")
    failures: list[str] = field(default_factory=list)

    def case(self, label: str, data: bytes, read: Callable[[], str]) -> None:
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            self.answers[read()] += 1
        except Exception as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.answers[f"FAILED {type(error).__name__}"] += 1
            self.keep(label, data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.slowest = max(self.slowest, (time.perf_counter() - started, label))

    def keep(self, label: str, data: bytes) -> None:
        kept = Path(tempfile.gettempdir()) / f"turnout-fuzz-{label.replace(' ', '-')}"
        kept.write_bytes(data)
        self.failures.append(f"{label}, kept in {kept}:\n{traceback.format_exc()}")

    def tell(self, seconds: float) -> None:
        count = sum(self.answers.values())
        print(f"{self.name}: {count:,} cases in {seconds:.0f} s")
        for answer, times in self.answers.most_common():
            print(f"  {times:8,}  {answer}")
        print(f"  slowest  {self.slowest[0]:.3f} s, {self.slowest[1]}")
        print(f"  memory   {peak_bytes() / 1e6:.0f} MB at most so far")
        for failure in self.failures[:20]:
            print(f"FAILED {failure}")


def main() -> None:
    options = parse()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGALRM, hang)
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in (configs, headers, bundles):
            started = time.perf_counter()
            for run in kind(folder, options):
                run.tell(time.perf_counter() - started)
                runs.append(run)
    bad = sum(len(run.failures) for run in runs)
    large = peak_bytes() > MOST_BYTES
    print(f"{bad} failures; {peak_bytes() / 1e6:.0f} MB at most" + (", TOO MUCH" if large else ""))
    sys.exit(1 if bad or large else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=int, default=100_000)
    parser.add_argument("--headers", type=int, default=10_000)
    parser.add_argument("--bundles", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def hang(*_: object) -> None:
    raise HangError(f"more than {PATIENCE:.0f} s")


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def configs(folder: Path, options: argparse.Namespace) -> Iterator[Run]:
    texts, machines = fuzzing.seeds(CORPUS / "genai_configs"), fuzzing.machines()
    routed, checked = Run("configs, read and routed"), Run("configs, checked")
    agreed = Run("configs, against the runtime's parser")
    for count in range(options.configs):
        rng = random.Random(f"config {options.seed} {count}")
        data = fuzzing.mutate_config(rng, texts[count % len(texts)])
        machine, request = rng.choice(machines), rng.choice(fuzzing.REQUESTS)

        def route() -> str:
            return fuzzing.read_config(data, machine, request)  # noqa: B023

        label = f"config {options.seed} {count}"
        routed.case(label, data, route)
        checked.case(label, data, lambda: fuzzing.check_config(data, folder))  # noqa: B023
        agreed.case(label, data, lambda: fuzzing.agrees(data, folder))  # noqa: B023
    yield from (routed, checked, agreed)


def headers(folder: Path, options: argparse.Namespace) -> Iterator[Run]:
    graphs, path, run = fuzzing.small_graphs(), folder / "m.onnx", Run("ONNX files, read")
    for count in range(options.headers):
        rng = random.Random(f"header {options.seed} {count}")
        data = fuzzing.mutate_header(rng, graphs[count % len(graphs)])
        path.write_bytes(data)
        run.case(f"header {options.seed} {count}", data, lambda: fuzzing.read_header(path))
    yield run


def bundles(folder: Path, options: argparse.Namespace) -> Iterator[Run]:
    bundle = bundle_fixtures.build_pipeline(folder / "bundle", two_sessions=True)
    files = {path: path.read_bytes() for path in bundle.iterdir() if path.suffix != ".data"}
    machines, run = fuzzing.machines(), Run("bundles, checked")
    for count in range(options.bundles):
        rng = random.Random(f"bundle {options.seed} {count}")
        path = rng.choice(sorted(files))
        mutate = fuzzing.mutate_header if path.suffix == ".onnx" else mutate_text
        data = mutate(rng, files[path])
        path.write_bytes(data)
        machine = rng.choice([None, *machines])
        label = f"bundle {options.seed} {count} {path.name}"
        run.case(label, data, lambda: fuzzing.check_bundle(bundle, machine))  # noqa: B023
        path.write_bytes(files[path])
    yield run


def mutate_text(rng: random.Random, data: bytes) -> bytes:
    return fuzzing.mutate_config(rng, data.decode("utf-8"))


if __name__ == "__main__":
    main()
