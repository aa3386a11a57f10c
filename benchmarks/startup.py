"""How fast commands start, and how fast headers and vocabularies are read.

    python benchmarks/startup.py [MODEL.gguf] [--rounds 15]

MODEL is the real model (SmolLM2-135M-Instruct Q4_1, 98 MB), by default `$TURNOUT_SMOLLM2`; without
one its rows are left out. Commands are timed as whole processes, calls within this one. Every
round runs all of them, every second round backwards, so that whatever the machine does hits all
alike; the first round warms up and does not count. What is printed is the median of each, and the
median of its ratio to `python -c pass` in the same round. Machines are noisy: quote ratios.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import gguf
import onnx

import turnout
from figures import quartiles
from turnout.building.gguf import GgufFile
from turnout.building.tokenizer import write_tokenizer

TINY_MODEL = Path(__file__).parents[1] / "tests" / "data" / "tiny" / "llama-f32.gguf"
VOCABULARY = 150_000
SPARSE_BYTES = 10 << 30
PASS = "python -c pass"
SMALL, LARGE = "turnout inspect, tiny bundle", "turnout inspect, 10 GB bundle"


@dataclass(frozen=True)
class Case:
    """What is timed; `limit` is its target in seconds, of what it takes `above` another case."""

    name: str
    run: Callable[[], object]
    limit: float | None = None
    above: str | None = None

    def target(self, seconds: dict[str, list[float]]) -> str:
        """The target in words, and whether it is met."""
        if self.limit is None:
            return ""
        taken = median(seconds[self.name])
        words = f"{self.limit:g} s"
        if self.above is not None:
            taken -= median(seconds[self.above])
            words += f" above {self.above}"
        return f"{words}, {'met' if taken < self.limit else 'MISSED'}"


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as name:
        cases = [*commands(Path(name)), *calls(Path(name), options.model)]
        seconds = measure(cases, options.rounds)
    width = max(len(case.name) for case in cases)
    print(f"{'':{width}}     median  times {PASS}  target: at most")
    for case in cases:
        taken, ratio = median(seconds[case.name]), median(ratios(seconds, case.name, PASS))
        row = f"{case.name:{width}}  {taken * 1e3:6.1f} ms  {ratio:20.1f}  {case.target(seconds)}"
        print(row.rstrip())
    low, middle, high = quartiles(ratios(seconds, LARGE, SMALL))
    print(
        f"\n{LARGE} takes {middle:.2f} times the tiny one "
        f"(quartiles of {options.rounds} rounds: {low:.2f}-{high:.2f}); target: 1, for any size"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = os.environ.get("TURNOUT_SMOLLM2")
    parser.add_argument("model", type=Path, nargs="?", default=Path(known) if known else None)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def commands(folder: Path) -> list[Case]:
    """Whole processes."""
    built = turnout.build(TINY_MODEL, folder / "built")
    small = with_tensor(built, folder / "small", 16)
    large = with_tensor(built, folder / "large", SPARSE_BYTES)

    def command(*arguments: object) -> Callable[[], object]:
        return lambda: start("-m", "turnout", *arguments)

    return [
        Case(PASS, lambda: start("-c", "pass")),
        Case("turnout --help", command("--help"), 0.3, above=PASS),
        Case("turnout devices", command("devices"), 2),
        Case(SMALL, command("inspect", small), 0.5),
        Case(LARGE, command("inspect", large), 0.5),
    ]


def calls(folder: Path, model: Path | None) -> list[Case]:
    """Calls within this process, where everything is imported."""
    synthetic = write_vocabulary(folder / "vocabulary.gguf")
    cases = [
        Case("Bundle.open, tiny bundle", lambda: turnout.Bundle.open(folder / "small"), 0.05),
        Case(
            f"GgufFile.open, {VOCABULARY:,} tokens", lambda: GgufFile.open(synthetic).close(), 0.3
        ),
        Case(f"write_tokenizer, {VOCABULARY:,} tokens", lambda: tokenizer(synthetic, folder), 1),
    ]
    if model is None:
        print("no real model: name one, or set TURNOUT_SMOLLM2\n")
        return cases
    return [
        *cases,
        Case("GgufFile.open, real model", lambda: GgufFile.open(model).close(), 0.3),
        Case("write_tokenizer, real model", lambda: tokenizer(model, folder), 1),
    ]


def start(*arguments: object) -> None:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stderr.decode(errors='replace')}")


def tokenizer(model: Path, folder: Path) -> None:
    """Opening the file is a small part of it."""
    with GgufFile.open(model) as file:
        write_tokenizer(file, folder)


def with_tensor(bundle: Path, output: Path, nbytes: int) -> Path:
    """The bundle with one more tensor in its data file, which is sparse: it takes no room."""
    shutil.copytree(bundle, output)
    data, path = output / "model.data", output / "transformer.onnx"
    model = onnx.load(path, load_external_data=False)
    kind = onnx.TensorProto.UINT8
    tensor = model.graph.initializer.add(name="more", data_type=kind, dims=[nbytes])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    offset = data.stat().st_size
    for key, value in (("location", data.name), ("offset", offset), ("length", nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())
    os.truncate(data, offset + nbytes)
    return output


def write_vocabulary(path: Path) -> Path:
    """A model file that is all vocabulary: words of letters, each of a word and a letter."""
    letters = string.ascii_lowercase
    words = itertools.chain.from_iterable(
        itertools.product(letters, repeat=length) for length in (2, 3, 4)
    )
    texts = ["".join(word) for word in itertools.islice(words, VOCABULARY - len(letters) - 1)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["<|end|>", *letters, *texts])
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (VOCABULARY - 1))
    writer.add_token_merges([f"{text[:-1]} {text[-1]}" for text in texts])
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def measure(cases: list[Case], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case, round by round."""
    seconds: dict[str, list[float]] = {case.name: [] for case in cases}
    for index in range(rounds + 1):
        for case in cases if index % 2 else reversed(cases):
            started = time.perf_counter()
            case.run()
            taken = time.perf_counter() - started
            if index:
                seconds[case.name].append(taken)
    return seconds


def ratios(seconds: dict[str, list[float]], name: str, other: str) -> list[float]:
    return [mine / theirs for mine, theirs in zip(seconds[name], seconds[other], strict=True)]


if __name__ == "__main__":
    main()
