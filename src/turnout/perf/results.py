"""From what was measured to the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from turnout.perf import report as doc
from turnout.perf.comparing import compared
from turnout.perf.statistics import aggregate

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.memory import Memory
    from turnout.perf.lane import Lane
    from turnout.perf.measuring import Run
    from turnout.perf.routeset import Candidate
    from turnout.routing import Route

MAX_SAMPLES = 2000  # of the memory of one route over time


def report(run: Run) -> doc.Report:
    """What there is by now."""
    plan = run.plan
    routes = tuple(_route(run, lane) for lane in run.lanes)
    planned = len(run.lanes) * plan.requests
    held = sum(len(lane.requests) for lane in run.lanes)
    return doc.Report(
        created=run.created,
        command=run.command,
        environment=run.environment,
        bundle=run.identity,
        settings=doc.Settings(
            iterations=plan.iterations,
            warmup=plan.warmup,
            ignore_eos=plan.ignore_eos,
            memory=plan.memory,
            margin=plan.margin,
        ),
        workloads=tuple(_workload(run, index) for index in range(len(plan.asks))),
        routes=routes,
        comparisons=compared(routes, plan.margin),
        complete=held == planned,
        interrupted=run.interrupted,
        requests_planned=planned,
        requests_held=held,
    )


def _workload(run: Run, index: int) -> doc.Workload:
    ask, asked = run.plan.asks[index], run.asked.get(index)
    tokens = asked.prompt_tokens if asked is not None else None
    return doc.Workload(
        name=ask.name(tokens),
        prompt_tokens=tokens,
        max_new_tokens=ask.max_new_tokens,
        prompt=ask.prompt,
        templated=asked is not None and asked.templated,
        prompt_ids_sha256=asked.prompt_ids_sha256 if asked is not None else None,
    )


def _route(run: Run, lane: Lane) -> doc.RouteReport:
    requests, load = tuple(lane.requests), lane.load
    requested, effective, stages = in_effect(
        lane.candidate, run.bundle, lane.route, decided=lane.decided
    )
    workloads = range(len(run.plan.asks))
    return doc.RouteReport(
        name=lane.candidate.name,
        requested=requested,
        effective=effective,
        stages=stages,
        placed=lane.placed,
        placed_note="" if lane.placed is not None else lane.placed_note,
        prepared=lane.prepared,
        load=load,
        cold_start_s=load.total_s + requests[0].request_s if load and requests else None,
        requests=requests,
        aggregate=aggregate(requests) if len(workloads) == 1 else None,
        workloads=tuple(_result(index, requests) for index in workloads),
        memory=_memory(lane) if run.plan.memory else None,
        error=lane.failure,
    )


def _result(index: int, requests: Sequence[doc.Request]) -> doc.WorkloadResult:
    own = [request for request in requests if request.workload == index]
    hashes = (request.token_ids_sha256 for request in own if request.kind == "timed")
    return doc.WorkloadResult(
        workload=index, aggregate=aggregate(own), token_ids_sha256=tuple(dict.fromkeys(hashes))
    )


def in_effect(
    candidate: Candidate, bundle: Bundle, route: Route | None, *, decided: bool
) -> tuple[str, str, tuple[doc.StageReport, ...]]:
    """What was asked, what took effect, and both of each stage.

    That is nothing where no route could be `decided`. `route` is None for the bundle as it is.
    """
    from turnout.runtime import Session

    if not decided:
        return str(candidate.request), "nothing", ()
    found = Session(bundle, route).in_effect
    return found.requested, found.effective, _stages(bundle, route)


def _stages(bundle: Bundle, route: Route | None) -> tuple[doc.StageReport, ...]:
    from turnout.machine import Inventory
    from turnout.routing import RouteRequest, resolve

    if route is None:
        route = resolve(bundle.config, Inventory.minimal(), RouteRequest())
    return tuple(
        doc.StageReport(
            stage=stage.stage, requested=stage.reason, effective=stage.alias, device=stage.device
        )
        for stage in route.stages
    )


def _memory(lane: Lane) -> doc.RouteMemory:
    sampler = lane.sampler
    return doc.RouteMemory(
        baseline=_bytes(lane.baseline),
        loaded=_bytes(lane.loaded),
        peak=_bytes(sampler.peak if sampler is not None else None),
        children_peak=_bytes(sampler.children_peak if sampler is not None else None),
        samples=lane.samples(MAX_SAMPLES),
    )


def _bytes(memory: Memory | None) -> doc.Bytes | None:
    if memory is None or memory.rss is None:
        return None
    return msgspec.convert(memory.to_json(), doc.Bytes)
