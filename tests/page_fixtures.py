"""Reports that a page has to show well: usual ones, large ones, hostile ones, and hardly any."""

from __future__ import annotations

import random
from typing import Any

from report_fixtures import (
    change,
    failed_route,
    make_environment,
    make_memory,
    make_report,
    make_request,
    make_requests,
    make_route,
    make_workload,
)
from turnout.perf.report import (
    DeviceReport,
    Failure,
    MemorySample,
    Report,
    RouteReport,
    StageReport,
)

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202eevil\x1b[31m\0"
    ' <b>bold</b><a href="javascript:alert(3)">a</a> {{ 7*7 }} {% endblock %} %{x} $x^2$'
    " \u2028 \ud800"
)
LONG = "a-route-whose-name-is-long-and-never-breaks-" * 4
ANSWER = "The capital of France is Paris. It lies on the Seine."


def placed_ep(ep: str, nodes: int, time_s: float) -> dict[str, Any]:
    share = {"nodes": nodes, "time_s": time_s / 2}
    return {
        "ep": ep,
        "nodes": nodes,
        "time_s": time_s,
        "operators": {"Cast": nodes},
        "prompt": share,
        "tokens": share,
    }


PLACED = {
    "prompt_tokens": 8,
    "new_tokens": 4,
    "stages": [
        {"stage": "embeddings", "ran": True, "eps": [placed_ep("openvino", 1, 0.001)]},
        {
            "stage": "transformer",
            "ran": True,
            "eps": [placed_ep("openvino", 1, 0.19), placed_ep("cpu", 1200, 0.01)],
        },
        {"stage": "lm_head", "ran": False},
    ],
}
PREPARED = {
    "folder": "/tmp/derived",
    "compiled": {"transformer": "compiled", "lm_head": "reused"},
    "uncompiled": {"embeddings": "the CPU EP compiles nothing"},
    "skipped": {},
    "missed": {},
    "bytes": 123_456_789,
    "shared": {"merged": {"a": "b"}, "ep": [["prefill", "decode"]], "prepacked": ["x", "y"]},
}


def usual() -> Report:
    """Four routes, of which one was compiled and answers differently."""
    workload = make_workload(512, 64, prompt="What is the capital of France?", templated=True)
    speeds = {"config": 1.0, "ep=cpu": 1.01, "ep=openvino": 1.5, "stage lm_head=openvino": 0.8}
    routes = [
        with_text(
            make_route(name, make_requests(10, speed=speed, workloads=[workload], seed=index)),
            ANSWER,
            "a1" * 32,
        )
        for index, (name, speed) in enumerate(speeds.items())
    ]
    compiled = change(routes[2], placed=PLACED, placed_note="", prepared=PREPARED)
    routes[2] = with_text(compiled, ANSWER[:32] + "Its river is the Seine.", "b2" * 32)
    return make_report(routes, workloads=[workload])


def with_text(route: RouteReport, text: str, sha256: str) -> RouteReport:
    """The route with another answer."""
    return change(
        route,
        requests=tuple(change(r, text=text, token_ids_sha256=sha256) for r in route.requests),
        workloads=tuple(change(w, token_ids_sha256=(sha256,)) for w in route.workloads),
    )


def sweep() -> Report:
    """Six workloads; one route that is not there, and one that crashed early. Incomplete."""
    workloads = [make_workload(p, t) for p in (32, 128, 512) for t in (16, 64)]
    routes = [
        make_route(name, make_requests(7, speed=speed, workloads=workloads, seed=index))
        for index, (name, speed) in enumerate({"config": 1.0, "ep=openvino": 1.2}.items())
    ]
    crash = Failure(
        kind="crashed",
        during="request 4 of 48",
        problem="The process of the route ended by signal 11.",
        facts={"found": "signal 11", "fix": "run it alone"},
    )
    crashed = make_route(
        "ep=openvino compile", make_requests(3, workloads=workloads[:1]), error=crash
    )
    return make_report(
        [*routes, failed_route(), crashed], workloads=workloads, requests_planned=192
    )


def hostile() -> Report:
    """Everything that a report says in words, by somebody who means harm."""
    workload = make_workload(32, 16, name=HOSTILE, prompt=HOSTILE)
    stage = StageReport(stage=HOSTILE, requested=HOSTILE, effective=HOSTILE, device=HOSTILE)
    routes = [
        change(
            with_text(
                make_route(name, make_requests(7, workloads=[workload], seed=index)),
                f"{HOSTILE * 100}{index}",
                str(index),
            ),
            requested=HOSTILE,
            effective=HOSTILE,
            stages=(stage,),
            placed={HOSTILE: HOSTILE},
            prepared={"compiled": {HOSTILE: HOSTILE}, "uncompiled": {HOSTILE: HOSTILE}},
        )
        for index, name in enumerate((f"{HOSTILE}0", f"{HOSTILE}1", f"{LONG}2", f"{LONG}3"))
    ]
    routes.append(failed_route(HOSTILE, during=HOSTILE, problem=HOSTILE, facts={HOSTILE: HOSTILE}))
    report = make_report(routes, workloads=[workload], created=HOSTILE, command=(HOSTILE,))
    return change(
        report,
        bundle=change(
            report.bundle, name=HOSTILE, path=HOSTILE, model_type=HOSTILE, content_sha256=HOSTILE
        ),
        environment=make_environment(
            turnout=HOSTILE,
            runtimes={HOSTILE: HOSTILE},
            plugins={HOSTILE: HOSTILE},
            cpu=HOSTILE,
            os=HOSTILE,
            devices=(DeviceReport(ep=HOSTILE, kind=HOSTILE, hardware=HOSTILE),),
        ),
    )


def hardly_any() -> Report:
    """One request of one token on one route, its prompt not counted, and no memory."""
    workload = change(make_workload(32, 1), prompt_tokens=None)
    route = make_route("config", [make_request(decode_s=())], memory=None, prepared=None)
    return make_report([route], workloads=[workload])


def nothing() -> Report:
    """No route was measured."""
    return make_report([failed_route("config")], requests_planned=11)


def large(requests: int = 40, tokens: int = 500) -> Report:
    """20,000 tokens a route, of which one took 5 seconds, and as many samples of memory."""
    scatter = random.Random(1)
    routes = []
    for name in ("config", "ep=cpu"):
        made = [
            make_request(
                decode_s=[0.02 * scatter.lognormvariate(0, 0.05) for _ in range(tokens)],
                round=index,
                started_s=index * 25.0,
            )
            for index in range(requests)
        ]
        samples = tuple(
            MemorySample(at_s=0.05 * index, rss_bytes=10**8 + index, private_bytes=None)
            for index in range(requests * tokens)
        )
        routes.append(make_route(name, made, memory=change(make_memory(), samples=samples)))
    first = routes[0].requests[3]
    slow = change(first, decode_s=(*first.decode_s[:7], 5.0, *first.decode_s[8:]))
    requests_of_first = (*routes[0].requests[:3], slow, *routes[0].requests[4:])
    routes[0] = change(routes[0], requests=requests_of_first)
    return make_report(routes, workloads=[make_workload(32, tokens + 1)])
