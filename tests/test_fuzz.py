"""Configs and ONNX files that are broken at random, or made to be expensive: an answer or an error.

A longer run of the same, with its counts, is `benchmarks/fuzz.py`.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import bundle_fixtures
import fuzzing

resource = pytest.importorskip("resource")
CORPUS = Path(os.environ.get("TURNOUT_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
GIGABYTE = 1 << 30
# Far more than any takes; a machine that runs other tests beside these is slow.
SECONDS = 20


@pytest.fixture(autouse=True)
def bounded() -> object:
    """Memory of this process, and time of its test."""
    before, started = peak_bytes(), time.monotonic()
    yield
    assert peak_bytes() - before < GIGABYTE
    assert time.monotonic() - started < 4 * SECONDS


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def every(count: int, seed: int) -> random.Random:
    return random.Random(seed * 1_000_003 + count)


def test_mutated_configs_are_routed_or_refused() -> None:
    texts, machines = fuzzing.seeds(CORPUS / "genai_configs"), fuzzing.machines()
    found: Counter[str] = Counter()
    for count in range(700):
        rng = every(count, 1)
        data = fuzzing.mutate_config(rng, texts[count % len(texts)])
        found[fuzzing.read_config(data, rng.choice(machines), rng.choice(fuzzing.REQUESTS))] += 1
    assert found["routed"] > 80
    assert found["ConfigError"] > 150
    assert found["UsageError"] + found["EpUnavailableError"] > 30


def test_mutated_configs_are_checked(tmp_path: Path) -> None:
    texts = fuzzing.seeds(CORPUS / "genai_configs")
    found: Counter[str] = Counter()
    for count in range(400):
        data = fuzzing.mutate_config(every(count, 2), texts[count % len(texts)])
        found[fuzzing.check_config(data, tmp_path)] += 1
    assert found["error"] > 150


def test_the_runtimes_parser_takes_and_refuses_the_same_mutated_configs(tmp_path: Path) -> None:
    texts = fuzzing.seeds(CORPUS / "genai_configs")
    found: Counter[str] = Counter()
    for count in range(400):
        data = fuzzing.mutate_config(every(count, 5), texts[count % len(texts)])
        found[fuzzing.agrees(data, tmp_path)] += 1
    assert min(found["both take it"], found["both refuse it"]) > 20


def test_bundles_with_mutated_configs_and_graphs_are_checked(tmp_path: Path) -> None:
    bundle = bundle_fixtures.build_pipeline(tmp_path / "b", two_sessions=True)
    config, graph = bundle / "genai_config.json", bundle / "context.onnx"
    text, data = config.read_text("utf-8"), graph.read_bytes()
    machines = fuzzing.machines()
    found: Counter[str] = Counter()
    for count in range(90):
        rng = every(count, 3)
        config.write_bytes(fuzzing.mutate_config(rng, text) if count % 3 else text.encode())
        graph.write_bytes(fuzzing.mutate_header(rng, data) if count % 3 != 1 else data)
        found[fuzzing.check_bundle(bundle, rng.choice(machines))] += 1
    assert found["error"] > 30


def test_mutated_headers_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    graphs = fuzzing.small_graphs()
    found: Counter[str] = Counter()
    for count in range(1200):
        path.write_bytes(fuzzing.mutate_header(every(count, 4), graphs[count % len(graphs)]))
        found[fuzzing.read_header(path)] += 1
    assert set(found) == {"read", "GraphError"}
    assert min(found.values()) > 100


def timed(read: Callable[[], str]) -> str:
    started = time.monotonic()
    answer = read()
    assert time.monotonic() - started < SECONDS
    return answer


# Small ones show what takes hours, and the whole ones what is quadratic.
PARTS = [16, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", fuzzing.large_configs(1000))
def test_a_config_that_is_made_to_be_expensive_costs_no_more_than_its_size(
    name: str, part: int, tmp_path: Path
) -> None:
    """Each of them took minutes, or gigabytes, or would have, where a bound was missing."""
    data = fuzzing.large_configs(part)[name]
    machine = fuzzing.machines()[0]
    for request in fuzzing.REQUESTS[:3]:
        timed(functools.partial(fuzzing.read_config, data, machine, request))
    timed(lambda: fuzzing.check_config(data, tmp_path))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", fuzzing.large_headers(1000))
def test_an_onnx_file_that_is_made_to_be_expensive_costs_no_more_than_its_size(
    name: str, part: int, tmp_path: Path
) -> None:
    bundle = bundle_fixtures.build_flat(tmp_path / "b")
    (bundle / "model.onnx").write_bytes(fuzzing.large_headers(part)[name])
    timed(lambda: fuzzing.read_header(bundle / "model.onnx"))
    timed(lambda: fuzzing.check_bundle(bundle))
