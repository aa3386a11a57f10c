"""What Turnout costs beside the runtime: `generate_timed` against a bare onnxruntime-genai loop.

    python benchmarks/overhead.py BUNDLE [--rounds 30] [--tokens 64] [--ep openvino]

Both run on one loaded model in one process, in turns, every second round backwards: from token ids
to text, so many tokens greedily. What is printed is the difference per generated token, the median
of the rounds with their quartiles, against what is allowed: 30 microseconds or 1%, whichever is
more. Exits with 1 where the median is beyond it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import turnout
from figures import quartiles
from turnout.perf.workloads import made_up

MOST_S, MOST_SHARE = 30e-6, 0.01


def main() -> None:
    options = parse()
    bundle = turnout.Bundle.open(options.bundle)
    route = turnout.route(bundle, ep=options.ep) if options.ep else None
    ids = list(made_up(bundle.config, options.prompt_tokens))
    with turnout.Session(bundle, route) as session:
        import onnxruntime_genai as og

        model = session.loaded.model
        tokenizer = og.Tokenizer(model)
        cases = {
            "bare": lambda: bare(model, tokenizer, ids, options.tokens),
            "timed": lambda: timed(session, ids, options.tokens),
        }
        answers = {name: run() for name, run in cases.items()}
        if answers["bare"] != answers["timed"]:
            sys.exit(f"The answers differ: {answers}")
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for index in range(options.rounds):
            for name in sorted(cases, reverse=index % 2 == 1):
                start = time.perf_counter()
                cases[name]()
                taken[name].append((time.perf_counter() - start) / options.tokens)
    sys.exit(report(taken))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--ep")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    return parser.parse_args()


def bare(model: Any, tokenizer: Any, ids: list[int], tokens: int) -> list[int]:
    """What one would write by hand, timing nothing; the tokens."""
    import onnxruntime_genai as og

    params = og.GeneratorParams(model)
    length = len(ids) + tokens
    params.set_search_options(
        max_length=length, min_length=length, do_sample=False, num_beams=1, num_return_sequences=1
    )
    generator = og.Generator(model, params)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
    found = generator.get_sequence(0)[len(ids) :]
    tokenizer.decode(found)
    return [int(token) for token in found]


def timed(session: turnout.Session, ids: list[int], tokens: int) -> list[int]:
    result = session.generate_timed(ids, max_new_tokens=tokens, greedy=True, ignore_eos=True)
    return list(result.token_ids)


def report(taken: dict[str, list[float]]) -> int:
    for name, values in taken.items():
        low, middle, high = quartiles(values)
        print(f"{name:6} {middle * 1e6:9.1f} us a token ({low * 1e6:.1f} to {high * 1e6:.1f})")
    over = [ours - theirs for ours, theirs in zip(taken["timed"], taken["bare"], strict=True)]
    low, middle, high = quartiles(over)
    allowed = max(MOST_S, MOST_SHARE * median(taken["bare"]))
    print(
        f"more   {middle * 1e6:9.1f} us a token ({low * 1e6:.1f} to {high * 1e6:.1f}), "
        f"{middle / median(taken['bare']):.2%}; allowed {allowed * 1e6:.1f} us"
    )
    return int(middle > allowed)


if __name__ == "__main__":
    main()
