"""What sharing weights saves and costs, with and without, as ratios within one run.

    python benchmarks/sharing.py MODEL.gguf [--only session,static,processes,ep,openvino]

Memory is that of child processes, each of which loads one folder and generates; times are of one
child that holds both models and alternates them token by token. The bounds are those of
docs/sharing.md; the exit code is 1 where one is missed. Weights of fp32 and of the model's own
precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout import memory
from turnout.building import build
from turnout.bundle import Bundle, GenaiConfig
from turnout.compiling import derive
from turnout.compiling.options import CompileOptions
from turnout.compiling.prepare import Prepared, prepare
from turnout.processes import call
from turnout.routing import apply, route

CONTEXT = 1024
PROMPT_TOKENS, NEW_TOKENS = 61, 24
ROUNDS = 6
LIMIT_S = 900.0
PRECISIONS = ("fp32", "source")
MB = 1e6


@dataclass(frozen=True)
class Row:
    """One comparison: `value` should be at most `bound` (None: only reported)."""

    name: str
    value: float
    bound: float | None
    detail: str

    @property
    def holds(self) -> bool:
        return self.bound is None or self.value <= self.bound

    def line(self) -> str:
        bound = "" if self.bound is None else f" (at most {self.bound:g})"
        mark = "" if self.holds else "  MISSED"
        return f"{self.name:52} {self.value:6.3f}{bound:16} {self.detail}{mark}"


# In children.


def tokens_of(seed: int, length: int = PROMPT_TOKENS) -> list[int]:
    return [(index * 37 + seed * 11) % 40_000 + 100 for index in range(length)]


def opened(folder: str, eps: list[str]) -> Any:
    import onnxruntime_genai as og

    from turnout.machine import plugins

    plugins.register(eps)
    return og.Model(og.Config(folder))


def generator_of(model: Any, max_length: int) -> Any:
    import onnxruntime_genai as og

    params = og.GeneratorParams(model)
    params.set_search_options(max_length=max_length, do_sample=False)
    return og.Generator(model, params)


def wait_for(folder: Path, word: str, index: int, count: int) -> None:
    """Go on when `count` children have come here."""
    (folder / f"{word}.{index}").touch()
    while len(list(folder.glob(f"{word}.*"))) < count:
        time.sleep(0.02)


def memory_here(argument: dict[str, Any]) -> dict[str, Any]:
    """Load, generate, and measure while `count` such processes are at it."""
    import numpy as np

    model = opened(argument["folder"], argument["eps"])
    generator = generator_of(model, argument["max_length"])
    generator.append_tokens(np.array([tokens_of(0)], dtype=np.int32))
    tokens = []
    for _ in range(NEW_TOKENS):
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    meeting, index, count = Path(argument["meeting"]), argument["index"], argument["count"]
    wait_for(meeting, "ready", index, count)
    found = memory.measure().to_json()
    wait_for(meeting, "measured", index, count)
    return {"tokens": tokens, **found}


def speed_here(argument: dict[str, Any]) -> dict[str, Any]:
    """Seconds of prefill and of every decode step of two folders, in alternation."""
    import numpy as np

    models = [opened(folder, argument["eps"]) for folder in argument["folders"]]
    prefill: list[list[float]] = [[], []]
    decode: list[list[float]] = [[], []]
    same = True
    for turn in range(ROUNDS + 1):
        prompt = np.array([tokens_of(turn)], dtype=np.int32)
        pair = [(side, generator_of(models[side], argument["max_length"])) for side in (0, 1)]
        if turn % 2:
            pair.reverse()
        spent: dict[int, float] = {}
        for side, generator in pair:
            start = time.perf_counter()
            generator.append_tokens(prompt)
            spent[side] = time.perf_counter() - start
        for step in range(NEW_TOKENS):
            found = {}
            for side, generator in pair if step % 2 else reversed(pair):
                start = time.perf_counter()
                generator.generate_next_token()
                took = time.perf_counter() - start
                found[side] = int(generator.get_next_tokens()[0])
                if turn and step:
                    decode[side].append(took)
            same = same and found[0] == found[1]
        if turn:  # the first warms up
            for side in (0, 1):
                prefill[side].append(spent[side])
    return {"prefill": prefill, "decode": decode, "same": same}


# In the parent.


def used(folder: Path, *, max_length: int = CONTEXT, count: int = 1, eps: Any = ()) -> list[Any]:
    """What `count` processes that serve `folder` at once take."""
    with tempfile.TemporaryDirectory() as meeting, ThreadPoolExecutor(count) as pool:
        argument = {
            "folder": str(folder), "max_length": max_length, "meeting": meeting,
            "count": count, "eps": list(eps),
        }  # fmt: skip
        calls = [
            pool.submit(call, "sharing:memory_here", {**argument, "index": index}, timeout=LIMIT_S)
            for index in range(count)
        ]
        return [future.result() for future in calls]


def alternated(one: Path, other: Path, *, eps: Any = ()) -> tuple[float, float, str]:
    """Prefill and decode of `other` by those of `one`, medians, and whether tokens are equal."""
    argument = {"folders": [str(one), str(other)], "max_length": 256, "eps": list(eps)}
    found = call("sharing:speed_here", argument, timeout=LIMIT_S)
    ratios = [
        statistics.median(found[kind][1]) / statistics.median(found[kind][0])
        for kind in ("prefill", "decode")
    ]
    times = [f"{1e3 * statistics.median(found['decode'][side]):.1f}" for side in (0, 1)]
    words = "same tokens" if found["same"] else "OTHER TOKENS"
    return ratios[0], ratios[1], f"{times[1]} against {times[0]} ms a token, {words}"


def shared(bundle: Bundle, share: str, config: GenaiConfig | None = None) -> Prepared:
    return prepare(bundle, config or bundle.config, CompileOptions(share=share))


def ratio(name: str, one: Any, other: Any, bound: float | None) -> Row:
    """The memory of `one` (a list of processes) by that of `other`."""
    pss = [sum(item["pss_bytes"] for item in found) for found in (one, other)]
    private = [sum(item["private_bytes"] for item in found) for found in (one, other)]
    same = one[0]["tokens"] == other[0]["tokens"]
    detail = (
        f"PSS {pss[0] / MB:.0f} against {pss[1] / MB:.0f} MB,"
        f" private {private[0] / MB:.0f} against {private[1] / MB:.0f},"
        f" {'same tokens' if same else 'OTHER TOKENS'}"
    )
    return Row(name, pss[0] / pss[1], bound, detail)


class Benchmark:
    """Builds each bundle once; every method is one group of rows."""

    def __init__(self, model: Path, place: Path) -> None:
        self.model, self.place = model, place

    def bundle(self, kind: str, precision: str, **options: Any) -> Bundle:
        target = self.place / f"{kind} {precision}"
        if not target.exists():
            build(self.model, target, precision=precision, context_length=CONTEXT, **options)
        return Bundle.open(target)

    def flat(self, precision: str) -> Bundle:
        return self.bundle("flat", precision, layout="flat")

    def two(self, precision: str) -> Bundle:
        return self.bundle("two", precision, two_sessions=True)

    def static(self, precision: str) -> Bundle:
        return self.bundle("static", precision, static_prefill=64)

    def session(self) -> list[Row]:
        """Two sessions, shared, against the flat bundle."""
        rows = []
        for precision in PRECISIONS:
            flat, two = self.flat(precision), self.two(precision)
            with shared(two, "auto") as one:
                rows.append(
                    ratio(f"{precision}: two sessions, auto / flat", used(one.folder),
                          used(flat.path), 1.05)
                )  # fmt: skip
                rows.append(
                    ratio(f"{precision}: two sessions, off / flat", used(two.path),
                          used(flat.path), None)
                )  # fmt: skip
                prefill, decode, words = alternated(flat.path, one.folder)
                rows.append(Row(f"{precision}: decode, auto / flat", decode, 1.05, words))
                rows.append(Row(f"{precision}: prefill, auto / flat", prefill, None, ""))
        return rows

    def static_shapes(self) -> list[Row]:
        """Two graphs that differ, packed once, against one session with the same cache."""
        rows = []
        for precision in PRECISIONS:
            two, static = self.two(precision), self.static(precision)
            with shared(two, "auto") as one, shared(static, "auto") as packed:
                single = used(one.folder)
                rows.append(
                    ratio(f"{precision}: static, auto / one session", used(packed.folder),
                          single, 1.25)
                )  # fmt: skip
                rows.append(
                    ratio(f"{precision}: static, off / one session", used(static.path), single,
                          None)
                )  # fmt: skip
                _, decode, words = alternated(static.path, packed.folder)
                rows.append(Row(f"{precision}: static, decode, auto / off", decode, None, words))
                rows.append(disk(f"{precision}: static, disk with / without", static, packed))
        return rows

    def processes(self) -> list[Row]:
        """Four processes on one bundle against one process that shares nothing."""
        rows = []
        for precision in PRECISIONS:
            for kind, bundle in (("flat", self.flat(precision)), ("two", self.two(precision))):
                single = used(bundle.path, max_length=256)
                bound = 2.0 if precision == "fp32" else None
                with shared(bundle, "prepacked") as packed:
                    alone = used(packed.folder, max_length=256)
                    four = used(packed.folder, max_length=256, count=4)
                    name = f"{precision}, {kind}: four processes, prepacked / one"
                    rows.append(ratio(name, four, alone, bound))
                    rows.append(ratio(f"{name} that shares nothing", four, single, None))
                four = used(bundle.path, max_length=256, count=4)
                name = f"{precision}, {kind}: four processes, off / one"
                rows.append(ratio(name, four, single, None))
        return rows

    def openvino(self) -> list[Row]:
        """One session on OpenVINO's CPU against two: may auto use it there?"""
        rows = []
        for precision in PRECISIONS:
            two = self.two(precision)
            config = self.on_openvino(two)
            apart = derive(two, config)
            with shared(two, "session", config) as one:
                eps = ["OpenVINOExecutionProvider"]
                rows.append(
                    ratio(f"{precision}: OpenVINO, one session / two",
                          used(one.folder, eps=eps), used(apart, eps=eps), None)
                )  # fmt: skip
                prefill, decode, words = alternated(apart, one.folder, eps=eps)
                rows.append(Row(f"{precision}: OpenVINO, decode", decode, None, words))
                rows.append(Row(f"{precision}: OpenVINO, prefill", prefill, None, ""))
        return rows

    def ep(self) -> list[Row]:
        """OpenVINO's own sharing of two graphs that differ: disk, memory, speed."""
        static = self.static("fp32")
        config = self.on_openvino(static)
        apart = derive(static, config)
        eps = ["OpenVINOExecutionProvider"]
        with shared(static, "ep", config) as one:
            prefill, decode, words = alternated(apart, one.folder, eps=eps)
            return [
                disk("fp32: OpenVINO static, disk with / without", static, one, 1.05),
                ratio("fp32: OpenVINO static, ep / off", used(one.folder, eps=eps),
                      used(apart, eps=eps), None),
                Row("fp32: OpenVINO static, decode, ep / off", decode, None, words),
                Row("fp32: OpenVINO static, prefill, ep / off", prefill, None, ""),
            ]  # fmt: skip

    def on_openvino(self, bundle: Bundle) -> GenaiConfig:
        """Prefill and decode on OpenVINO's CPU, in exact arithmetic."""
        stages = dict.fromkeys(("context", "iterator"), "openvino@cpu")
        return apply(bundle.config, route(bundle, stages=stages, reproducible=True))


def disk(name: str, bundle: Bundle, prepared: Prepared, bound: float | None = None) -> Row:
    """The bundle and what was prepared of it, each file once, by the bundle."""
    own = bundle.total_bytes
    made = sum(file.size for entry in prepared.entries for file in entry.manifest.files)
    return Row(name, (own + made) / own, bound, f"{made / MB:.0f} MB beside {own / MB:.0f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", default="session,static,processes,openvino,ep")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        benchmark = Benchmark(options.model, Path(place))
        groups: dict[str, Callable[[], list[Row]]] = {
            "session": benchmark.session,
            "static": benchmark.static_shapes,
            "processes": benchmark.processes,
            "openvino": benchmark.openvino,
            "ep": benchmark.ep,
        }
        rows = []
        for name in options.only.split(","):
            for row in groups[name]():
                print(row.line(), flush=True)
                rows.append(row)
    if options.json is not None:
        options.json.write_text(
            json.dumps([{**vars(row), "holds": row.holds} for row in rows], indent=1) + "\n"
        )
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
