"""Measuring routes: what a report holds, requests that take turns, and routes that go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perf_faults
from session_fixtures import Bundles, reference
from turnout.bundle import Bundle
from turnout.compiling.options import CompileOptions
from turnout.errors import ProcessError, UsageError
from turnout.machine import Inventory
from turnout.perf import lane, report
from turnout.perf.lane import Limits, Watcher
from turnout.perf.measuring import Plan, measure
from turnout.perf.report import Report, Request
from turnout.perf.routeset import parse
from turnout.perf.workloads import Ask, made_up, sweep, texts
from turnout.runtime import Session

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")

TWO = parse("config; ep=cpu")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


class Heard(Watcher):
    """Keeps the order of what happened."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def loading(self, route: str) -> None:
        self.events.append(("loading", route))

    def asking(self, route: str, kind: str, workload: str) -> None:
        self.events.append((kind, route, workload))

    def failed(self, route: str, failure: report.Failure) -> None:
        self.events.append(("failed", route, failure.kind))


def plan(bundle: Bundle, **changes: Any) -> Plan:
    """One prompt of 5 tokens and 4 new ones, twice and once before; nowhere placed."""
    defaults = {"iterations": 2, "warmup": 1, "placement": False}
    asks = changes.pop("asks", None) or sweep(bundle.config, [5], [4])
    return Plan(asks, **{"ignore_eos": True, **defaults, **changes})


@pytest.fixture
def bundle(bundles: Bundles) -> Bundle:
    return Bundle.open(bundles("pipeline"))


def served_by(fault: type) -> dict[str, str]:
    """The route ep=cpu goes wrong in that way."""
    return {"ep=cpu": f"{fault.__module__}:{fault.__name__}"}


def test_every_request_is_kept_and_warm_up_is_apart(bundle: Bundle) -> None:
    found = measure(bundle, TWO, plan(bundle))
    assert found.complete
    assert (found.requests_planned, found.requests_held) == (6, 6)
    assert [route.name for route in found.routes] == ["config", "ep=cpu"]
    for route in found.routes:
        assert [(r.kind, r.workload, r.round) for r in route.requests] == [
            ("warmup", 0, 0),
            ("timed", 0, 0),
            ("timed", 0, 1),
        ]
        assert all((r.prompt_tokens, r.generated_tokens) == (5, 4) for r in route.requests)
        assert route.aggregate is not None
        assert route.aggregate.request_s is not None
        assert route.aggregate.request_s.samples == 2
        assert route.aggregate.token_s is not None
        assert route.aggregate.token_s.samples == 6
        assert route.cold_start_s is not None
        assert route.load is not None
        assert route.cold_start_s == route.load.total_s + route.requests[0].request_s


def test_figures_of_a_request_follow_from_its_spans(bundle: Bundle) -> None:
    found = measure(bundle, TWO[:1], plan(bundle))
    for request in found.routes[0].requests:
        assert request.first_token_s is not None
        assert len(request.decode_s) == 3
        assert request.model_ttft_s == request.prefill_s + request.first_token_s
        before = request.template_s + request.tokenization_s + request.creation_s
        assert request.request_ttft_s == pytest.approx(before + request.model_ttft_s)
        assert request.tpot_s == pytest.approx(sum(request.decode_s) / 3)
        assert request.decode_tokens_per_second == pytest.approx(3 / sum(request.decode_s))
        assert request.prefill_tokens_per_second == pytest.approx(5 / request.prefill_s)


def test_requests_take_turns_backwards_every_second_time(bundle: Bundle) -> None:
    heard = Heard()
    measure(bundle, TWO, plan(bundle, iterations=3), watcher=heard)
    assert heard.events[:2] == [("loading", "config"), ("loading", "ep=cpu")]
    assert [(kind, route) for kind, route, *_ in heard.events[2:]] == [
        ("warmup", "config"),
        ("warmup", "ep=cpu"),
        ("timed", "config"),
        ("timed", "ep=cpu"),
        ("timed", "ep=cpu"),
        ("timed", "config"),
        ("timed", "config"),
        ("timed", "ep=cpu"),
    ]


def test_the_answer_is_the_references_and_is_hashed(bundle: Bundle) -> None:
    ids, greedy = reference("llama-f32", 0)
    found = measure(bundle, TWO[:1], plan(bundle, asks=(Ask(tuple(ids), 8),)))
    packed = struct.pack(f"<{len(greedy)}i", *greedy)
    (result,) = found.routes[0].workloads
    assert result.token_ids_sha256 == (hashlib.sha256(packed).hexdigest(),)
    with Session(bundle) as session:
        assert {r.text for r in found.routes[0].requests} == {session.decode(greedy)}
    prompt = struct.pack(f"<{len(ids)}i", *ids)
    assert found.workloads[0].prompt_ids_sha256 == hashlib.sha256(prompt).hexdigest()


def test_what_was_asked_and_what_took_effect_is_said_a_stage(bundle: Bundle) -> None:
    """A12"""
    found = measure(bundle, parse("config; stage lm_head=cpu"), plan(bundle, iterations=1))
    config, routed = found.routes
    assert (config.requested, config.effective) == ("config", "config")
    assert [(s.stage, s.requested, s.effective) for s in config.stages] == [
        ("embeddings", "the bundle's config", "cpu"),
        ("transformer", "the bundle's config", "cpu"),
        ("lm_head", "the bundle's config", "cpu"),
    ]
    assert (routed.requested, routed.effective) == ("--stage lm_head=cpu", "cpu")
    assert [s.requested for s in routed.stages] == [
        "the bundle's config",
        "the bundle's config",
        "--stage lm_head=cpu",
    ]


def test_where_nodes_really_ran_is_in_the_report(bundle: Bundle) -> None:
    """A15: measured, not assumed."""
    found = measure(bundle, TWO[:1], plan(bundle, placement=True))
    placed = found.routes[0].placed
    assert placed is not None
    assert [stage["stage"] for stage in placed["stages"]] == [
        "embeddings",
        "transformer",
        "lm_head",
    ]
    assert {ep["ep"] for stage in placed["stages"] for ep in stage["eps"]} == {"cpu"}


def test_memory_is_measured_before_and_after_loading_and_at_its_most(bundle: Bundle) -> None:
    found = measure(bundle, TWO[:1], plan(bundle))
    memory = found.routes[0].memory
    assert memory is not None
    figures = [memory.baseline, memory.loaded, memory.peak]
    rss = [figure.rss_bytes for figure in figures if figure is not None]
    assert len(rss) == 3
    assert None not in rss
    assert rss[0] < rss[1] <= rss[2]  # type: ignore[operator]
    assert len(memory.samples) >= 8  # at the begin and the end of the load and of each request
    assert [s.at_s for s in memory.samples] == sorted(s.at_s for s in memory.samples)
    assert all(request.memory is not None for request in found.routes[0].requests)


def test_memory_is_left_alone_where_that_is_asked(bundle: Bundle) -> None:
    found = measure(bundle, TWO[:1], plan(bundle, memory=False))
    assert found.routes[0].memory is None
    assert all(request.memory is None for request in found.routes[0].requests)


def test_lengths_are_swept_and_have_statistics_of_their_own(bundle: Bundle) -> None:
    asks = sweep(bundle.config, [3, 20], [2, 5])
    found = measure(bundle, TWO[:1], plan(bundle, asks=asks))
    assert [workload.name for workload in found.workloads] == [
        "pp3+tg2",
        "pp3+tg5",
        "pp20+tg2",
        "pp20+tg5",
    ]
    route = found.routes[0]
    assert route.aggregate is None
    for index, result in enumerate(route.workloads):
        own = [r for r in route.requests if r.workload == index and r.kind == "timed"]
        assert len(own) == 2
        assert result.aggregate.request_s is not None
        assert result.aggregate.request_s.mean == pytest.approx(sum(r.request_s for r in own) / 2)


def test_a_text_is_asked_as_a_user_would_be_and_its_own_end_counts(bundles: Bundles) -> None:
    path = bundles("pipeline")
    with Session(path) as session:
        ids = session.encode("the cat")
        first = session.generate("the cat", raw=True, greedy=True, max_new_tokens=3).token_ids
    edited = json.loads((path / "genai_config.json").read_text("utf-8"))
    edited["model"]["eos_token_id"] = first[2]
    (path / "genai_config.json").write_text(json.dumps(edited), "utf-8")
    opened = Bundle.open(path)
    asks = texts("the cat", [8], raw=True)
    ended = measure(opened, TWO[:1], plan(opened, asks=asks, ignore_eos=False)).routes[0]
    whole = measure(opened, TWO[:1], plan(opened, asks=asks)).routes[0]
    assert {(r.generated_tokens, r.finish_reason) for r in ended.requests} == {(2, "eos")}
    assert {(r.generated_tokens, r.finish_reason) for r in whole.requests} == {(8, "length")}
    assert {r.prompt_tokens for r in ended.requests} == {len(ids)}


def test_made_up_prompts_are_the_same_every_time_and_hold_no_special_token(bundle: Bundle) -> None:
    special = {
        token
        for name in ("eos_token_id", "bos_token_id", "pad_token_id")
        for token in [bundle.config.get(("model", name))]
    }
    ids = made_up(bundle.config, 500)
    assert made_up(bundle.config, 20) == ids[:20]
    assert not special & set(ids)
    size = bundle.config.get(("model", "vocab_size"))
    assert all(0 <= token < size for token in ids)
    assert len(set(ids)) > size / 2


def test_lengths_beyond_the_context_are_refused_at_once(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="too long for this bundle") as caught:
        sweep(bundle.config, [200], [57])
    assert caught.value.facts["found"] == "200 prompt tokens and 57 new ones"
    assert caught.value.facts["expected"].startswith("at most 256 tokens")
    assert sweep(bundle.config, [200], [56])


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"iterations": 0}, "0"),
        ({"warmup": -1}, "-1"),
        ({"limits": Limits(load_s=0)}, "--load-timeout 0"),
        ({"limits": Limits(request_s=float("nan"))}, "--request-timeout nan"),
    ],
)
def test_a_plan_that_cannot_be_is_wrong_usage(
    bundle: Bundle, changes: dict[str, Any], found: str
) -> None:
    with pytest.raises(UsageError) as caught:
        plan(bundle, **changes)
    assert caught.value.facts["found"] == found


def test_a_route_that_the_machine_lacks_is_a_row_and_the_others_are_measured(
    bundle: Bundle,
) -> None:
    found = measure(bundle, parse("ep=qnn; config"), plan(bundle), inventory=Inventory.minimal())
    lacking, config = found.routes
    assert lacking.error is not None
    assert (lacking.error.kind, lacking.error.during) == ("unavailable", "the decision")
    assert (lacking.requested, lacking.effective, lacking.load) == ("--ep qnn", "nothing", None)
    assert config.error is None
    assert len(config.requests) == 3
    assert not found.complete
    assert (found.requests_planned, found.requests_held) == (6, 3)


def test_an_ep_that_nobody_knows_is_wrong_usage_before_anything_is_measured(
    bundle: Bundle,
) -> None:
    heard = Heard()
    with pytest.raises(UsageError, match="unknown"):
        measure(bundle, parse("config; ep=nonsense"), plan(bundle), watcher=heard)
    assert heard.events == []


@posix
@pytest.mark.parametrize(
    ("fault", "kind", "during", "problem"),
    [
        (perf_faults.Crashing, "crashed", "timed request 2 of 3", "crashed (SIGSEGV)"),
        (perf_faults.Starved, "killed", "timed request 2 of 3", "crashed (SIGKILL)"),
        (perf_faults.Exhausted, "out of memory", "timed request 2 of 3", "could not compute"),
        (perf_faults.Hanging, "hung", "timed request 2 of 3", "did not answer within 2 s"),
        (perf_faults.Refusing, "failed", "loading", "It does not load."),
    ],
)
def test_a_route_that_fails_is_a_row_with_its_reason_and_the_others_finish(
    bundle: Bundle,
    fault: type,
    kind: str,
    during: str,
    problem: str,
) -> None:
    heard = Heard()
    asked = plan(bundle, iterations=3, limits=Limits(request_s=2 if kind == "hung" else 60))
    found = measure(bundle, TWO, asked, watcher=heard, serving=served_by(fault))
    config, routed = found.routes
    assert config.error is None
    assert len(config.requests) == 4
    assert routed.error is not None
    assert (routed.error.kind, routed.error.during) == (kind, during)
    assert problem in routed.error.problem
    # What it answered before is kept.
    assert len(routed.requests) == (0 if during == "loading" else 2)
    assert ("failed", "ep=cpu", kind) in heard.events
    assert not found.complete
    if kind == "crashed":
        assert routed.error.facts["found"].endswith("the native library says why")
    if kind == "hung":
        assert "--request-timeout" in routed.error.facts["fix"]


@posix
def test_a_process_that_the_system_ended_for_lack_of_memory_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "oom_kills", lambda: 4)
    route = lane.Lane(TWO[1], Limits(), Watcher(), memory=False, start=0.0, kills_before=3)
    route.fail(ProcessError("The child process for the route crashed (SIGKILL)."), "loading")
    assert route.failure is not None
    assert route.failure.kind == "out of memory"


def test_where_nodes_run_is_not_asked_of_a_route_that_failed(bundle: Bundle) -> None:
    serving = served_by(perf_faults.Refusing)
    found = measure(bundle, TWO, plan(bundle, placement=True), serving=serving)
    config, failed = found.routes
    assert config.placed is not None
    assert (failed.placed, failed.placed_note) == (None, "not measured")


@posix
def test_an_interrupt_leaves_a_report_of_what_there_is(bundle: Bundle) -> None:
    serving = served_by(perf_faults.Interrupting)
    found = measure(bundle, TWO, plan(bundle, iterations=5), serving=serving)
    assert found.interrupted
    assert not found.complete
    assert (found.requests_planned, found.requests_held) == (12, 4)
    assert [len(route.requests) for route in found.routes] == [2, 2]
    assert all(route.error is None for route in found.routes)


def test_nothing_is_left_on_disk_or_running(bundle: Bundle, tmp_path: Path) -> None:
    import psutil

    before = sorted(path for path in bundle.path.rglob("*"))
    measure(bundle, TWO, plan(bundle, placement=True))
    assert sorted(path for path in bundle.path.rglob("*")) == before
    assert psutil.Process().children(recursive=True) == []


def test_what_was_compiled_and_shared_is_in_the_report(bundles: Bundles) -> None:
    opened = Bundle.open(bundles("two sessions"))
    (candidate,) = parse("config", CompileOptions(share="session"))
    found = measure(opened, (candidate,), plan(opened))
    assert found.routes[0].name == "config share=session"
    prepared = found.routes[0].prepared
    assert prepared is not None
    assert prepared["shared"]["merged"] == {"iterator": "context"}


def test_a_report_is_read_again_as_it_was_written(bundle: Bundle, tmp_path: Path) -> None:
    found = measure(bundle, TWO, plan(bundle), command=("turnout", "perf"))
    path = tmp_path / "report.json"
    path.write_bytes(report.encode(found))
    assert report.read(path) == found
    assert found.command == ("turnout", "perf")


def test_the_hash_of_a_bundle_is_of_what_is_loaded(bundles: Bundles) -> None:
    from turnout.perf.environment import identity

    first = Bundle.open(bundles("pipeline"))
    second = Bundle.open(bundles("pipeline"))
    (second.path / "notes.txt").write_text("not loaded")
    assert identity(first).content_sha256 == identity(second).content_sha256
    weights = next(path for path in second.path.rglob("*.data"))
    with weights.open("r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))
    changed = identity(Bundle.open(second.path))
    assert changed.content_sha256 != identity(first).content_sha256
    assert changed.model_type == "decoder-pipeline"


def test_the_environment_names_versions_processor_and_devices(bundle: Bundle) -> None:
    from importlib.metadata import version

    found = measure(bundle, TWO[:1], plan(bundle)).environment
    assert found.runtimes["onnxruntime"] == version("onnxruntime")
    assert found.runtimes["onnxruntime-genai"] == version("onnxruntime-genai")
    assert found.cpu
    assert found.memory_bytes
    assert ("cpu", "cpu") in {(device.ep, device.kind) for device in found.devices}


def recomputed(found: Report) -> list[Any]:
    from turnout.perf.statistics import aggregate

    return [aggregate(route.requests) for route in found.routes]


def test_statistics_can_be_worked_out_again_from_the_document(bundle: Bundle) -> None:
    found = measure(bundle, TWO, plan(bundle))
    again = msgspec.json.decode(report.encode(found), type=Report)
    assert recomputed(again) == [route.aggregate for route in found.routes]
    assert all(isinstance(request, Request) for request in again.routes[0].requests)
