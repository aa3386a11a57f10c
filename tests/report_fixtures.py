"""Valid reports of measurements, small ones, in which what a test is about can be changed.

    report = make_report()                                     # "config" and "ep=openvino"
    report = make_report({"config": 1.0, "ep=cpu": 0.8})       # names, and how many times as fast
    report = make_report([make_route("config", requests=[make_request(round=0), ...])])
    report = make_report(bundle=change(report.bundle, content_sha256="f" * 64))
    path = write_report(report, tmp_path / "A.json")

Everything is a frozen struct of `turnout.perf.report`: `change(value, field=...)` gives a copy
with other fields. Times scatter as on a quiet machine (2%), with a seed, so they are the same at
every call; `noise=0` makes them exact. Statistics and comparisons are worked out from the requests.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from turnout.perf import comparing, report, statistics
from turnout.perf.report import (
    Aggregate,
    Bytes,
    Failure,
    Load,
    MemorySample,
    Report,
    Request,
    RouteMemory,
    RouteReport,
    Workload,
    WorkloadResult,
)
from turnout.runtime.timing import RequestSpans

S = TypeVar("S", bound=msgspec.Struct)

TOKEN_S = 0.02
PREFILL_TOKENS_PER_SECOND = 400.0
ANSWER_SHA256 = "a1" * 32


def change(value: S, **fields: Any) -> S:
    """A copy with other fields."""
    return msgspec.structs.replace(value, **fields)


def make_request(
    *,
    prefill_s: float = 0.08,
    first_token_s: float | None = 0.02,
    decode_s: Sequence[float] = (TOKEN_S,) * 15,
    prompt_tokens: int = 32,
    **fields: Any,
) -> Request:
    """A timed request of round 0; its figures follow from the spans. `fields` replaces any."""
    spans = RequestSpans(
        template_s=0.0004,
        tokenization_s=0.0003,
        creation_s=0.001,
        prefill_s=prefill_s,
        first_token_s=first_token_s,
        decode_s=tuple(decode_s),
        end_s=None,
        sequence_s=0.0001,
        detokenization_s=0.0002,
        prefilled_tokens=prompt_tokens,
    )
    known = {**spans.to_json(), "decode_s": spans.decode_s}
    taken = {name: known[name] for name in Request.__struct_fields__ if name in known}
    return change(
        Request(
            kind="timed",
            workload=0,
            round=0,
            started_s=0.0,
            prompt_tokens=prompt_tokens,
            finish_reason="length",
            text="The capital of France is Paris.",
            token_ids_sha256=ANSWER_SHA256,
            memory=make_bytes(400),
            **taken,
        ),
        **fields,
    )


def make_requests(
    rounds: int = 10,
    *,
    speed: float = 1.0,
    workloads: Sequence[Workload] | None = None,
    warmup: int = 1,
    noise: float = 0.02,
    seed: int = 0,
) -> tuple[Request, ...]:
    """Warm-ups, then timed requests of every workload in turn, `speed` times as fast as usual.

    Their times scatter by `noise` (the deviation of their logarithms); a warm-up takes twice as
    long. They begin one second after the other.
    """
    scatter = random.Random(seed)
    workloads = workloads or (make_workload(),)
    found = []
    for turn in range(-warmup, rounds):
        for index, workload in enumerate(workloads):
            slow = (2.0 if turn < 0 else 1.0) / speed
            tokens = workload.prompt_tokens or 32
            prefill = slow * tokens / PREFILL_TOKENS_PER_SECOND
            request = slow * TOKEN_S * scatter.lognormvariate(0, noise)
            found.append(
                make_request(
                    prefill_s=prefill * scatter.lognormvariate(0, noise),
                    first_token_s=request,
                    decode_s=[
                        request * scatter.lognormvariate(0, noise)
                        for _ in range(workload.max_new_tokens - 1)
                    ],
                    prompt_tokens=tokens,
                    kind="warmup" if turn < 0 else "timed",
                    workload=index,
                    round=turn + warmup if turn < 0 else turn,
                    started_s=float(len(found)),
                )
            )
    return tuple(found)


def make_route(
    name: str = "config", requests: Sequence[Request] | None = None, **fields: Any
) -> RouteReport:
    """A route that was measured with `requests` (those of `make_requests`); statistics follow.

    `fields` replaces any field of the route.
    """
    requests = make_requests() if requests is None else tuple(requests)
    workloads = sorted({request.workload for request in requests})
    by_workload = {index: [r for r in requests if r.workload == index] for index in workloads}
    effective = name.removeprefix("ep=")
    return change(
        RouteReport(
            name=name,
            requested=name if name == "config" else "--" + name.replace("=", " "),
            effective=effective,
            stages=tuple(
                report.StageReport(stage=stage, requested=name, effective="cpu", device="cpu")
                for stage in ("embeddings", "transformer", "lm_head")
            ),
            placed=None,
            placed_note="not asked for",
            prepared=None,
            load=Load(
                registration_s=0.1,
                preparation_s=0.0,
                config_s=0.001,
                model_s=0.3,
                tokenizer_s=0.07,
                total_s=0.471,
            ),
            cold_start_s=0.471 + requests[0].request_s if requests else None,
            requests=requests,
            aggregate=statistics.aggregate(requests) if len(workloads) == 1 else None,
            workloads=tuple(
                WorkloadResult(
                    workload=index,
                    aggregate=statistics.aggregate(of_it),
                    token_ids_sha256=tuple(
                        dict.fromkeys(r.token_ids_sha256 for r in of_it if r.kind == "timed")
                    ),
                )
                for index, of_it in by_workload.items()
            ),
            memory=make_memory(),
            error=None,
        ),
        **fields,
    )


def failed_route(name: str = "ep=qnn", **fields: Any) -> RouteReport:
    """A route that could not be measured at all. `fields` replaces any of the error's."""
    error = Failure(
        kind="unavailable",
        during="loading",
        problem="QNNExecutionProvider is not installed here.",
        facts={"fix": 'pip install "turnout[qnn]"'},
    )
    return make_route(
        name, (), load=None, memory=None, error=change(error, **fields), cold_start_s=None
    )


def make_workload(prompt_tokens: int = 32, max_new_tokens: int = 16, **fields: Any) -> Workload:
    """A prompt of made-up tokens."""
    return change(
        Workload(
            name=f"pp{prompt_tokens}+tg{max_new_tokens}",
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            prompt=None,
            templated=False,
            prompt_ids_sha256=f"{prompt_tokens:064x}",
        ),
        **fields,
    )


def make_report(
    routes: Mapping[str, float] | Sequence[RouteReport] | None = None,
    *,
    rounds: int = 10,
    workloads: Sequence[Workload] | None = None,
    noise: float = 0.02,
    seed: int = 0,
    **fields: Any,
) -> Report:
    """A report of `routes`: names with speeds, or routes as `make_route` makes them.

    Without any: "config", and "ep=openvino" that is 1.3 times as fast. `fields` replaces any
    field of the report.
    """
    workloads = tuple(workloads or (make_workload(),))
    if routes is None:
        routes = {"config": 1.0, "ep=openvino": 1.3}
    if isinstance(routes, Mapping):
        made = [
            make_requests(
                rounds, speed=speed, workloads=workloads, noise=noise, seed=1000 * seed + index
            )
            for index, speed in enumerate(routes.values())
        ]
        routes = [make_route(name, own) for name, own in zip(routes, made, strict=True)]
    held = sum(len(route.requests) for route in routes)
    return change(
        Report(
            created="2026-12-01T12:00:00Z",
            command=("turnout", "perf", "smollm2"),
            environment=make_environment(),
            bundle=report.BundleReport(
                name="smollm2",
                path="/models/smollm2",
                model_type="decoder-pipeline",
                total_bytes=115_700_000,
                content_sha256="b0" * 32,
            ),
            settings=report.Settings(
                iterations=rounds, warmup=1, ignore_eos=False, memory=True, margin=0.03
            ),
            workloads=workloads,
            routes=tuple(routes),
            comparisons=comparing.compared(routes),
            complete=all(route.error is None for route in routes),
            requests_planned=held,
            requests_held=held,
        ),
        **fields,
    )


def make_environment(**fields: Any) -> report.Environment:
    """A server with two cores."""
    return change(
        report.Environment(
            turnout="0.1.0",
            runtimes={"onnxruntime": "1.32.0", "onnxruntime-genai": "0.18.0"},
            plugins={"openvino": "1.8.1"},
            python="3.11.9",
            os="Linux 6.1",
            machine="x86_64",
            cpu="Example CPU 3000",
            physical_cores=2,
            logical_cores=4,
            usable_cores=2,
            memory_bytes=8 << 30,
            load_average=0.3,
            devices=(
                report.DeviceReport(
                    ep="CPUExecutionProvider", kind="cpu", hardware="Example CPU 3000"
                ),
            ),
        ),
        **fields,
    )


def make_bytes(megabytes: float) -> Bytes:
    """Memory of a process that holds that much."""
    rss = int(megabytes * 1e6)
    return Bytes(rss_bytes=rss, pss_bytes=rss * 9 // 10, private_bytes=rss // 2)


def make_memory() -> RouteMemory:
    """A process that grows from 120 to 420 MB in six seconds."""
    samples = tuple(
        MemorySample(
            at_s=float(second),
            rss_bytes=int((120 + 50 * second) * 1e6),
            private_bytes=int((40 + 20 * second) * 1e6),
        )
        for second in range(7)
    )
    return RouteMemory(
        baseline=make_bytes(120),
        loaded=make_bytes(380),
        peak=make_bytes(420),
        children_peak=None,
        samples=samples,
    )


def no_statistics() -> Aggregate:
    """Statistics of no request."""
    return statistics.aggregate(())


def write_report(document: Report, path: Path) -> Path:
    """The report in a file, as `turnout perf -o` writes it."""
    path.write_bytes(report.encode(document))
    return path
