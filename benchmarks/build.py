"""How long a build takes and holds, and how fast the built bundle decodes beside a peer's.

    python benchmarks/build.py MODEL.gguf
    python benchmarks/build.py MODEL.gguf --peer BUNDLE      an onnxruntime-genai export to race
    python benchmarks/build.py MODEL.gguf --exporter PYTHON  make that export first, with an
        interpreter that has torch, transformers and onnxruntime-genai (`export_peer.py`)

Decode: both bundles are loaded in this process, and tokens alternate between them (A B, B A), so
that whatever the machine does hits both alike; every round loads both anew, in the other order.
What is printed is the median ratio of pairs and its 95% bootstrap interval over rounds. Machines
are noisy: quote ratios, not milliseconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import turnout
from turnout import memory

PROMPT_TOKENS = 39
NEW_TOKENS = 96
SETTLING_TOKENS = 4


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print_build(options.source, folder / "pipeline", options.rounds)
        peer = options.peer or export(options, folder)
        if peer is None:
            print("decode: no peer (--peer or --exporter), nothing to compare with")
            return
        turnout.build(options.source, folder / "flat", layout="flat")
        print(f"peer: onnxruntime-genai model builder, int4, {peer}")
        for ep in options.eps:
            for layout in ("flat", "pipeline"):
                print_decode(peer, folder / layout, ep, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--exporter", type=Path)
    parser.add_argument("--eps", nargs="*", default=["cpu", "openvino"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, help="intra_op_num_threads of every stage")
    return parser.parse_args()


def print_build(source: Path, output: Path, rounds: int) -> None:
    """Whole builds in child processes: seconds, and the peak of private memory seen."""
    seconds, peaks = [], []
    for _ in range(rounds):
        command = [sys.executable, "-m", "turnout", "build", source, "-o", output, "--overwrite"]
        started = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = 0
        while child.poll() is None:
            peak = max(peak, memory.measure(child.pid).private or 0)
            time.sleep(0.002)
        if child.returncode:
            sys.exit(f"the build failed: {command}")
        seconds.append(time.perf_counter() - started)
        peaks.append(peak)
    print(
        f"build: {np.median(seconds):.2f} s (of {rounds}: {min(seconds):.2f}-{max(seconds):.2f}), "
        f"peak private memory {max(peaks) / 1e6:.0f} MB"
    )


def export(options: argparse.Namespace, folder: Path) -> Path | None:
    """The same model by the model builder, in the exporter's own process."""
    if options.exporter is None:
        return None
    script = Path(__file__).with_name("export_peer.py")
    source = Path(turnout.__file__).parents[1]
    command = [options.exporter, script, options.source, folder / "pipeline", folder / "peer"]
    environment = os.environ | {"PYTHONPATH": str(source)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"the export failed:\n{result.stderr[-2000:]}")
    return folder / "peer"


def print_decode(peer: Path, bundle: Path, ep: str, options: argparse.Namespace) -> None:
    pairs, prefills = [], []
    # Where a model lands in memory moves its speed by several percent, and the one that is loaded
    # first tends to land worse: each is loaded first as often as the other.
    for turn in range(options.rounds):
        sessions = load_both(peer, bundle, ep, options.threads, peer_first=turn % 2 == 0)
        try:
            pair, prefill = alternate(sessions, prompt_of(sessions[1]))
        finally:
            for session in sessions:
                session.unload()
        pairs.append(pair)
        prefills.append(prefill)
    ratios = [np.log(pair[:, 1] / pair[:, 0]) for pair in pairs]
    low, high = interval(ratios)
    decode, first = np.concatenate(pairs), np.median(np.array(prefills), axis=0)
    print(
        f"{ep:9} {bundle.name:9} decode {np.exp(np.median(np.concatenate(ratios))):.3f} times the "
        f"peer's (95% {low:.3f}-{high:.3f}; {np.median(decode[:, 1]) * 1e3:.2f} ms against "
        f"{np.median(decode[:, 0]) * 1e3:.2f}), prefill of {PROMPT_TOKENS} "
        f"{first[1] / first[0]:.2f} times"
    )


def load_both(
    peer: Path, bundle: Path, ep: str, threads: int | None, *, peer_first: bool
) -> list[turnout.Session]:
    """The peer's session and ours, loaded in one order or the other."""
    if peer_first:
        return [load(peer, ep, threads), load(bundle, ep, threads)]
    ours = load(bundle, ep, threads)
    return [load(peer, ep, threads), ours]


def load(path: Path, ep: str, threads: int | None) -> turnout.Session:
    bundle = turnout.Bundle.open(path)
    session_options = [f"intra_op_num_threads={threads}"] if threads else []
    session = turnout.Session(bundle, route_of(bundle, ep, session_options))
    session.load()
    return session


def route_of(bundle: turnout.Bundle, ep: str, session_options: list[str]) -> turnout.Route:
    from turnout.cli.route_options import request_from

    return turnout.route(bundle, request_from(ep=ep, session_option=session_options))


def prompt_of(session: turnout.Session) -> list[int]:
    text = "The bridge was built of stone, and it stood for three hundred years. " * 8
    return list(session.encode(text))[:PROMPT_TOKENS]


def alternate(sessions: list[turnout.Session], prompt: list[int]) -> tuple[np.ndarray, list[float]]:
    """Seconds of each token, [tokens, 2], and of each prefill."""
    import onnxruntime_genai as og

    generators, prefills = [], []
    for session in sessions:
        params = og.GeneratorParams(session.loaded.model)
        length = len(prompt) + NEW_TOKENS
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generators.append(og.Generator(session.loaded.model, params))
        started = time.perf_counter()
        generators[-1].append_tokens(np.array([prompt], np.int32))
        prefills.append(time.perf_counter() - started)
    seconds = np.empty((NEW_TOKENS, 2))
    for token in range(NEW_TOKENS):
        for index in (0, 1) if token % 2 else (1, 0):
            started = time.perf_counter()
            generators[index].generate_next_token()
            seconds[token, index] = time.perf_counter() - started
    return seconds[SETTLING_TOKENS:], prefills


def interval(rounds: list[np.ndarray], resamples: int = 2000) -> tuple[float, float]:
    """95% of the median ratio, by resampling whole rounds with a fixed seed: tokens of one round
    share a place in memory, and are no independent samples. `rounds` are logarithms of ratios.
    """
    generator = np.random.default_rng(0)
    medians = [
        np.median(np.concatenate([rounds[index] for index in picked]))
        for picked in generator.integers(0, len(rounds), (resamples, len(rounds)))
    ]
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(np.exp(low)), float(np.exp(high))


if __name__ == "__main__":
    main()
