"""Turnout's routes and llama.cpp on one model file, in turns in one run.

    pip install llama-cpp-python
    python benchmarks/peers.py MODEL.gguf BUNDLE [--route-set ROUTES]
        [--prompt-tokens 32,128,512] [--max-new-tokens 64] [--iterations 10] [-o FILE]

BUNDLE is what `turnout build MODEL.gguf` made. Every peer has a process of its own and gets the
same token ids, and as many threads as there are physical cores: {threads} in the routes stands for
their number, since onnxruntime-genai takes half of it where nothing is said. Prints a table in
Markdown for docs/benchmarks.md; -o writes the report, for `turnout compare`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

import turnout
from turnout.memory import measure as memory_of
from turnout.perf.child import ids_sha256
from turnout.perf.markdown import markdown
from turnout.perf.measuring import Plan, measure
from turnout.perf.report import RouteReport, encode
from turnout.perf.routeset import Candidate, parse
from turnout.perf.workloads import sweep
from turnout.processes import Heard

MODEL, THREADS, CONTEXT = "PEERS_MODEL", "PEERS_THREADS", "PEERS_CONTEXT"
PEER = "llama.cpp"
ROUTES = (
    "name=cpu session-option intra_op_num_threads={threads};"
    "name=openvino ep=openvino provider-option num_of_threads={threads};"
    "name=as-built config"
)


class LlamaCpp:
    """Answers the questions of `turnout.perf.child` with llama.cpp, greedily."""

    def __init__(self) -> None:
        self._llama: Any = None

    def __call__(self, question: Mapping[str, Any], _tell: Heard) -> dict[str, Any]:
        answers = {"load": self._load, "request": self._request, "close": lambda _: {}}
        return answers[question["do"]](question)

    def _load(self, question: Mapping[str, Any]) -> dict[str, Any]:
        import llama_cpp

        baseline = memory_of().to_json()
        threads = int(os.environ[THREADS])
        start = time.perf_counter()
        self._llama = llama_cpp.Llama(
            model_path=os.environ[MODEL],
            n_ctx=int(os.environ[CONTEXT]),
            n_batch=512,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        taken = time.perf_counter() - start
        spans = dict.fromkeys(("registration_s", "preparation_s", "config_s", "tokenizer_s"), 0.0)
        return {
            "load": {**spans, "model_s": taken, "total_s": taken},
            "prepared": None,
            "baseline": baseline if question["memory"] else None,
            "loaded": memory_of().to_json() if question["memory"] else None,
        }

    def _request(self, question: Mapping[str, Any]) -> dict[str, Any]:
        ids, wanted = question["said"], question["max_new_tokens"]
        llama = self._llama
        start = time.perf_counter()
        llama.reset()
        created = time.perf_counter()
        llama.eval(ids)
        prefilled = time.perf_counter()
        tokens = [self._likeliest()]
        spans = [time.perf_counter() - prefilled]
        while len(tokens) < wanted:
            before = time.perf_counter()
            llama.eval(tokens[-1:])
            tokens.append(self._likeliest())
            spans.append(time.perf_counter() - before)
        return {
            "template_s": 0.0,
            "tokenization_s": 0.0,
            **figures(created - start, prefilled - created, spans, len(ids)),
            "prompt_tokens": len(ids),
            "text": llama.detokenize(tokens).decode("utf-8", "replace"),
            "token_ids_sha256": ids_sha256(tokens),
            "prompt_ids_sha256": ids_sha256(ids),
            "templated": False,
            "notes": [],
            "memory": memory_of().to_json() if question["memory"] else None,
        }

    def _likeliest(self) -> int:
        import llama_cpp
        import numpy as np

        logits = llama_cpp.llama_get_logits_ith(self._llama.ctx, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (self._llama.n_vocab(),))))


def figures(creation_s: float, prefill_s: float, spans: list[float], prompt: int) -> dict[str, Any]:
    """The spans of a request, and what follows from them, as in `turnout.runtime.timing`."""
    from turnout.runtime.timing import RequestSpans

    timing = RequestSpans(
        template_s=0.0,
        tokenization_s=0.0,
        creation_s=creation_s,
        prefill_s=prefill_s,
        first_token_s=spans[0],
        decode_s=tuple(spans[1:]),
        end_s=None,
        sequence_s=0.0,
        detokenization_s=0.0,
        prefilled_tokens=prompt,
    ).to_json()
    for name in ("prefilled_tokens", "continued_tokens"):
        timing.pop(name)
    return {**timing, "finish_reason": "length"}


def main() -> None:
    options = parse_arguments()
    try:
        peer_version = version("llama-cpp-python")
    except PackageNotFoundError:
        sys.exit("llama-cpp-python is not installed: pip install llama-cpp-python")
    bundle = turnout.Bundle.open(options.bundle)
    lengths = [int(part) for part in options.prompt_tokens.split(",")]
    asks = sweep(bundle.config, lengths, [options.max_new_tokens])
    threads = str(options.threads or physical_cores())
    os.environ |= {
        MODEL: str(options.model.resolve()),
        THREADS: threads,
        CONTEXT: str(max(lengths) + options.max_new_tokens),
    }
    name = f"{PEER} ({peer_version})"
    candidates = (
        *parse(options.route_set.replace("{threads}", threads)),
        Candidate(name),
    )
    plan = Plan(asks, iterations=options.iterations, ignore_eos=True, placement=False)
    report = measure(bundle, candidates, plan, serving={name: "peers:LlamaCpp"}, command=sys.argv)
    report = msgspec.structs.replace(report, routes=tuple(map(as_it_is, report.routes)))
    print(markdown(report))
    if options.output is not None:
        options.output.write_bytes(encode(report))


def as_it_is(route: RouteReport) -> RouteReport:
    """The peer has no route of the bundle."""
    if not route.name.startswith(PEER):
        return route
    return msgspec.structs.replace(route, requested=PEER, effective=PEER, stages=())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--route-set", default=ROUTES)
    parser.add_argument("--prompt-tokens", default="32,128,512")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def physical_cores() -> int:
    import psutil

    return psutil.cpu_count(logical=False) or 1


if __name__ == "__main__":
    main()
