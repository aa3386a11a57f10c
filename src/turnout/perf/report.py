"""The report: one JSON document that holds every request, so that all else can be worked out again.

Seconds, bytes and tokens, as names say; times are those of one monotonic clock. A later version
reads the reports of earlier ones: see `FORM`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from turnout.documents import Form

SCHEMA_VERSION = 1
DOCUMENT: Literal["turnout perf report"] = "turnout perf report"
MAX_BYTES = 512 << 20

# Figures of a request of which there are statistics, and whether more is better.
FIGURES = {
    "model_ttft_s": False,
    "request_ttft_s": False,
    "tpot_s": False,
    "decode_tokens_per_second": True,
    "prefill_tokens_per_second": True,
    "model_compute_s": False,
    "request_s": False,
}

Verdict = Literal["faster", "slower", "cannot tell"]


def _says(text: str) -> Any:
    """What a field means, for the schema and the documentation that is made of it."""
    return msgspec.Meta(description=text)


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one figure over the timed requests that have it.

    Percentiles are interpolated linearly. One that needs more samples than there are is null, and
    not the maximum: p50 needs 2, p90 10, p95 20, p99 100.
    """

    samples: Annotated[int, _says("how many values there were")]
    mean: float
    stdev: Annotated[
        float | None, _says("standard deviation of the sample (n - 1); null for one value")
    ]
    min: float
    max: float
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    median_interval: Annotated[
        tuple[float, float] | None,
        _says("bootstrap 95% interval of the median; null below 6 values, which are too few"),
    ]


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics a figure; null where no timed request has it."""

    model_ttft_s: Annotated[Statistics | None, _says("prefill and first token")]
    request_ttft_s: Annotated[Statistics | None, _says("everything up to the first token")]
    tpot_s: Annotated[Statistics | None, _says("a request's mean time of a token after the first")]
    decode_tokens_per_second: Annotated[
        Statistics | None, _says("a request's tokens after the first, by the time they took")
    ]
    prefill_tokens_per_second: Annotated[
        Statistics | None, _says("prompt tokens, by the time of the prefill")
    ]
    model_compute_s: Annotated[Statistics | None, _says("time inside the model")]
    request_s: Annotated[Statistics | None, _says("the whole request")]
    token_s: Annotated[
        Statistics | None, _says("every token after the first, of all timed requests together")
    ]


class Bytes(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a process; null where the platform does not tell."""

    rss_bytes: int | None
    pss_bytes: int | None
    private_bytes: Annotated[
        int | None, _says("private anonymous memory on Linux, the unique set size elsewhere")
    ]


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """What the sampler saw."""

    at_s: Annotated[float, _says("seconds since the start of the run")]
    rss_bytes: int
    private_bytes: int | None


class RouteMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the process of one route."""

    baseline: Annotated[Bytes | None, _says("after the imports, before anything was loaded")]
    loaded: Annotated[Bytes | None, _says("after the load")]
    peak: Annotated[
        Bytes | None,
        _says("the most that was seen; pss_bytes only between requests, since it takes long"),
    ]
    children_peak: Annotated[
        Bytes | None, _says("the most that its child processes held together, such as compilers")
    ]
    samples: Annotated[tuple[MemorySample, ...], _says("over time")] = ()


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What loading took, step by step."""

    registration_s: Annotated[float, _says("registering plugins of EPs")]
    preparation_s: Annotated[
        float, _says("deriving the bundle; compiling, or using what is stored")
    ]
    config_s: float
    model_s: Annotated[float, _says("the runtime's load of all graphs")]
    tokenizer_s: float
    total_s: float


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its spans, and what follows from them."""

    kind: Annotated[Literal["warmup", "timed"], _says("warm-up requests are in no statistics")]
    workload: Annotated[int, _says("index into `workloads`")]
    round: Annotated[int, _says("which time, from 0; of one round, routes are compared in pairs")]
    started_s: Annotated[float, _says("seconds since the start of the run")]
    prompt_tokens: int
    generated_tokens: Annotated[int, _says("without the one that ended the text")]
    finish_reason: Literal["eos", "length", "interrupted"]
    template_s: float
    tokenization_s: float
    creation_s: Annotated[float, _says("making the generator")]
    prefill_s: float
    first_token_s: float | None
    decode_s: Annotated[tuple[float, ...], _says("each token after the first")]
    end_s: Annotated[float | None, _says("the step that found the end of the text")]
    sequence_s: Annotated[float, _says("fetching the sequence")]
    detokenization_s: float
    model_ttft_s: float | None
    request_ttft_s: float | None
    tpot_s: float | None
    decode_tokens_per_second: float | None
    prefill_tokens_per_second: float | None
    model_compute_s: float
    request_s: float
    text: str
    token_ids_sha256: Annotated[
        str, _says("of the generated token ids, as little-endian 32-bit integers one by one")
    ]
    memory: Annotated[Bytes | None, _says("after the request, buffers of its cache included")]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and a length, asked of every route alike."""

    name: Annotated[str, _says("pp512+tg128: prompt tokens, and tokens at most")]
    prompt_tokens: Annotated[int | None, _says("null where no route got as far as to count them")]
    max_new_tokens: int
    prompt: Annotated[str | None, _says("the text; null for made-up tokens")]
    templated: Annotated[bool, _says("whether the text goes through the chat template")]
    prompt_ids_sha256: Annotated[str | None, _says("of the token ids, as of a request's")]


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a route did with one workload."""

    workload: Annotated[int, _says("index into the report's `workloads`")]
    aggregate: Aggregate
    token_ids_sha256: Annotated[
        tuple[str, ...], _says("the different answers among timed requests; one, if all agree")
    ]


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for one stage, and what took effect in the config."""

    stage: str
    requested: Annotated[str, _says('why: "the bundle\'s config", or words such as "--ep cpu"')]
    effective: Annotated[str, _says("the alias of the EP")]
    device: str | None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a route could not be measured, or not to the end."""

    kind: Literal["unavailable", "failed", "crashed", "hung", "out of memory"]
    during: Annotated[str, _says('such as "loading" or "request 3 of 10"')]
    problem: str
    facts: Annotated[dict[str, str], _says("found, expected, where, fix")]


class RouteReport(msgspec.Struct, frozen=True, kw_only=True):
    """One route: what was asked, what took effect, and everything that was measured."""

    name: str
    requested: Annotated[str, _says('in the words of the command line; "config" for nothing')]
    effective: Annotated[
        str, _says('"config", an EP\'s alias, or "mixed"; "nothing" where no route was possible')
    ]
    stages: tuple[StageReport, ...]
    placed: Annotated[
        dict[str, Any] | None,
        _says("where nodes really ran, as `explain --measure --json` has it; null if not measured"),
    ]
    placed_note: Annotated[str, _says("why `placed` is null")] = ""
    prepared: Annotated[
        dict[str, Any] | None, _says("what was compiled and shared; null where nothing was asked")
    ]
    load: Load | None
    cold_start_s: Annotated[float | None, _says("the load and the first request")]
    requests: tuple[Request, ...]
    aggregate: Annotated[
        Aggregate | None, _says("over all timed requests; null where there are several workloads")
    ]
    workloads: tuple[WorkloadResult, ...]
    memory: RouteMemory | None
    error: Failure | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One route against the first, by pairs of requests of one round."""

    route: str
    base: str
    workload: int
    figure: Annotated[str, _says("a figure of `aggregate`")]
    ratio: Annotated[float, _says("of the figure, this route by the base")]
    interval: Annotated[
        tuple[float, float] | None,
        _says("bootstrap 95% interval of the ratio; null below 6 pairs, which are too few"),
    ]
    pairs: int
    verdict: Annotated[
        Verdict, _says("of this route; what the interval does not decide by the margin is open")
    ]


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the machine."""

    ep: str
    kind: str
    hardware: str


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the programs."""

    turnout: str
    runtimes: Annotated[dict[str, str], _says("onnxruntime and onnxruntime-genai")]
    plugins: Annotated[dict[str, str], _says("libraries of EPs, by alias")]
    python: str
    os: str
    machine: Annotated[str, _says("such as x86_64")]
    cpu: str
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: Annotated[int | None, _says("those that this process may use")]
    memory_bytes: int | None
    load_average: Annotated[float | None, _says("over one minute, at the start; null on Windows")]
    devices: tuple[DeviceReport, ...]


class BundleReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which bundle it was."""

    name: Annotated[str, _says("its directory's name")]
    path: str
    model_type: str | None
    total_bytes: int
    content_sha256: Annotated[
        str, _says("of the contents of all its files and their names, what is compiled left out")
    ]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured."""

    iterations: int
    warmup: int
    ignore_eos: bool
    memory: bool
    margin: Annotated[float, _says("a ratio nearer to 1 is neither faster nor slower")]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `turnout perf` measured."""

    document: Literal["turnout perf report"] = DOCUMENT
    schema_version: int = SCHEMA_VERSION
    created: Annotated[str, _says("when it began: ISO 8601, UTC")]
    command: tuple[str, ...]
    environment: Environment
    bundle: BundleReport
    settings: Settings
    workloads: tuple[Workload, ...]
    routes: tuple[RouteReport, ...]
    comparisons: tuple[Comparison, ...]
    complete: Annotated[bool, _says("false if it was interrupted, or a route failed")]
    interrupted: Annotated[bool, _says("whether it was ended early, as by Ctrl-C")] = False
    requests_planned: Annotated[int, _says("of all routes, warm-up included")]
    requests_held: Annotated[int, _says("how many of them the report has")]


class _Header(msgspec.Struct):
    document: Literal["turnout perf report"]
    schema_version: int


FORM = Form(
    name="report",
    header=_Header,
    document=Report,
    version=SCHEMA_VERSION,
    fix="give a file that turnout perf -o wrote",
    fix_older="measure again with: turnout perf BUNDLE -o FILE",
    fix_newer="use the version of turnout that wrote it, or a newer one",
    limit=MAX_BYTES,
)


def encode(report: Report) -> bytes:
    """The document, indented, with a line's end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def read(path: Path) -> Report:
    """The report in the file `path`. Raises `UsageError` naming the file and a JSON path."""
    return FORM.read(path)


def schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return msgspec.json.schema(Report)
