"""The report: one JSON document that holds every request, so that all else can be worked out again.

Seconds, bytes and tokens, as names say; times are those of one monotonic clock. A later version
reads the reports of earlier ones: see `FORM`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from turnout import documents
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
    mean: Annotated[float, _says("in the unit of the figure, as all below")]
    stdev: Annotated[
        float | None, _says("standard deviation of the sample (n - 1); null for one value")
    ]
    min: Annotated[float, _says("the least value")]
    max: Annotated[float, _says("the largest value")]
    p50: Annotated[float | None, _says("the median; null for one value")]
    p90: Annotated[float | None, _says("null below 10 values")]
    p95: Annotated[float | None, _says("null below 20 values")]
    p99: Annotated[float | None, _says("null below 100 values")]
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

    rss_bytes: Annotated[
        int | None, _says("resident set size: what lies in memory, shared pages in full")
    ]
    pss_bytes: Annotated[
        int | None,
        _says("proportional set size: shared pages divided by the number of their users"),
    ]
    private_bytes: Annotated[
        int | None, _says("private anonymous memory on Linux, the unique set size elsewhere")
    ]


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """What the sampler saw."""

    at_s: Annotated[float, _says("seconds since the start of the run")]
    rss_bytes: Annotated[int, _says("resident set size of the route's process")]
    private_bytes: Annotated[
        int | None, _says("as in `Bytes`; null where the platform does not tell")
    ]


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
    config_s: Annotated[float, _says("reading the config")]
    model_s: Annotated[float, _says("the runtime's load of all graphs")]
    tokenizer_s: Annotated[float, _says("making the tokenizer")]
    total_s: Annotated[float, _says("all of these together")]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its spans, and what follows from them."""

    kind: Annotated[Literal["warmup", "timed"], _says("warm-up requests are in no statistics")]
    workload: Annotated[int, _says("index into `workloads`")]
    round: Annotated[int, _says("which time, from 0; of one round, routes are compared in pairs")]
    started_s: Annotated[float, _says("seconds since the start of the run")]
    prompt_tokens: Annotated[int, _says("with those of the chat template")]
    generated_tokens: Annotated[int, _says("without the one that ended the text")]
    finish_reason: Annotated[
        Literal["eos", "length", "interrupted"],
        _says(
            "the end of the text; as many tokens as were asked for, or as the context leaves; or "
            "Ctrl-C"
        ),
    ]
    template_s: Annotated[float, _says("filling in the chat template")]
    tokenization_s: Annotated[float, _says("from text to token ids")]
    creation_s: Annotated[float, _says("making the generator")]
    prefill_s: Annotated[float, _says("computing the prompt")]
    first_token_s: Annotated[float | None, _says("null where no token came out")]
    decode_s: Annotated[tuple[float, ...], _says("each token after the first")]
    end_s: Annotated[float | None, _says("the step that found the end of the text")]
    sequence_s: Annotated[float, _says("fetching the sequence")]
    detokenization_s: Annotated[float, _says("from token ids to text")]
    model_ttft_s: Annotated[float | None, _says("prefill and first token")]
    request_ttft_s: Annotated[float | None, _says("everything up to the first token")]
    tpot_s: Annotated[
        float | None, _says("mean time of a token after the first; null where there is none")
    ]
    decode_tokens_per_second: Annotated[
        float | None, _says("tokens after the first, by the time they took")
    ]
    prefill_tokens_per_second: Annotated[float | None, _says("prompt tokens, by `prefill_s`")]
    model_compute_s: Annotated[float, _says("prefill, all tokens and `end_s`")]
    request_s: Annotated[float, _says("all spans together")]
    text: Annotated[str, _says("what was generated")]
    token_ids_sha256: Annotated[
        str, _says("of the generated token ids, as little-endian 32-bit integers one by one")
    ]
    memory: Annotated[Bytes | None, _says("after the request, buffers of its cache included")]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and a length, asked of every route alike."""

    name: Annotated[str, _says("pp512+tg128: prompt tokens, and tokens at most")]
    prompt_tokens: Annotated[int | None, _says("null where no route got as far as to count them")]
    max_new_tokens: Annotated[int, _says("after which an answer is ended")]
    prompt: Annotated[str | None, _says("the text; null for made-up tokens")]
    templated: Annotated[bool, _says("whether the text goes through the chat template")]
    prompt_ids_sha256: Annotated[str | None, _says("of the token ids, as of a request's")]


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a route did with one workload."""

    workload: Annotated[int, _says("index into the report's `workloads`")]
    aggregate: Annotated[Aggregate, _says("over its timed requests")]
    token_ids_sha256: Annotated[
        tuple[str, ...], _says("the different answers among timed requests; one, if all agree")
    ]


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for one stage, and what took effect in the config."""

    stage: Annotated[str, _says("its name in the config")]
    requested: Annotated[str, _says('why: "the bundle\'s config", or words such as "--ep cpu"')]
    effective: Annotated[str, _says("the alias of the EP")]
    device: Annotated[
        str | None, _says("what the EP runs on: cpu, gpu or npu; null where it is not said")
    ]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a route could not be measured, or not to the end."""

    kind: Annotated[
        Literal[
            "unavailable", "failed", "crashed", "hung", "out of memory", "killed", "interrupted"
        ],
        _says(
            "what became of it; `unavailable` is what this machine does not have, `killed` that "
            "somebody ended its process, which may have been the system for lack of memory"
        ),
    ]
    during: Annotated[str, _says('such as "loading" or "request 3 of 10"')]
    problem: Annotated[str, _says("what is wrong")]
    facts: Annotated[dict[str, str], _says("found, expected, where, fix")]


class RouteReport(msgspec.Struct, frozen=True, kw_only=True):
    """One route: what was asked, what took effect, and everything that was measured."""

    name: Annotated[str, _says("unlike that of any other route")]
    requested: Annotated[str, _says('in the words of the command line; "config" for nothing')]
    effective: Annotated[
        str, _says('"config", an EP\'s alias, or "mixed"; "nothing" where no route was possible')
    ]
    stages: Annotated[tuple[StageReport, ...], _says("in the config's order")]
    placed: Annotated[
        dict[str, Any] | None,
        _says("where nodes really ran, as `explain --measure --json` has it; null if not measured"),
    ]
    placed_note: Annotated[str, _says("why `placed` is null")] = ""
    prepared: Annotated[
        dict[str, Any] | None,
        _says(
            "what was compiled and shared, as `generate --json` has it; `compiled_now` names what "
            "was not stored yet, so that the load has its compiling in it; null where nothing was "
            "asked to be prepared"
        ),
    ]
    load: Annotated[Load | None, _says("null where it could not be loaded")]
    cold_start_s: Annotated[float | None, _says("the load and the first request")]
    requests: Annotated[tuple[Request, ...], _says("in the order in which they were made")]
    aggregate: Annotated[
        Aggregate | None, _says("over all timed requests; null where there are several workloads")
    ]
    workloads: Annotated[tuple[WorkloadResult, ...], _says("one for each of the report's")]
    memory: Annotated[RouteMemory | None, _says("null where it was not measured")]
    error: Annotated[Failure | None, _says("null for a route that was measured to its end")]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One route against the first, by pairs of requests of one round."""

    route: Annotated[str, _says("the one that is judged")]
    base: Annotated[str, _says("the one that it is compared with")]
    workload: Annotated[int, _says("index into the report's `workloads`")]
    figure: Annotated[str, _says("a figure of `aggregate`")]
    ratio: Annotated[float, _says("of the figure, this route by the base")]
    interval: Annotated[
        tuple[float, float] | None,
        _says("bootstrap 95% interval of the ratio; null below 6 pairs, which are too few"),
    ]
    pairs: Annotated[int, _says("rounds that both have")]
    verdict: Annotated[
        Verdict, _says("of this route; what the interval does not decide by the margin is open")
    ]


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the machine."""

    ep: Annotated[str, _says("the alias of the EP that serves it")]
    kind: Annotated[str, _says("cpu, gpu or npu")]
    hardware: Annotated[str, _says("its name")]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the programs."""

    turnout: Annotated[str, _says("the version that measured")]
    runtimes: Annotated[dict[str, str], _says("onnxruntime and onnxruntime-genai")]
    plugins: Annotated[dict[str, str], _says("libraries of EPs, by alias")]
    python: Annotated[str, _says("its version")]
    os: Annotated[str, _says("name and version of the system")]
    machine: Annotated[str, _says("such as x86_64")]
    cpu: Annotated[str, _says("the processor's name")]
    physical_cores: Annotated[int | None, _says("null where it is not known")]
    logical_cores: Annotated[int | None, _says("null where it is not known")]
    usable_cores: Annotated[int | None, _says("those that this process may use")]
    memory_bytes: Annotated[int | None, _says("of the machine")]
    load_average: Annotated[float | None, _says("over one minute, at the start; null on Windows")]
    devices: Annotated[tuple[DeviceReport, ...], _says("those that the EPs of this machine serve")]


class BundleReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which bundle it was."""

    name: Annotated[str, _says("its directory's name")]
    path: Annotated[str, _says("as it was given")]
    model_type: Annotated[str | None, _says("`model.type` of the config")]
    total_bytes: Annotated[int, _says("of all its files")]
    content_sha256: Annotated[
        str, _says("of the contents of all its files and their names, what is compiled left out")
    ]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured."""

    iterations: Annotated[int, _says("timed requests of a route and workload")]
    warmup: Annotated[int, _says("warm-up requests of a route and workload")]
    ignore_eos: Annotated[bool, _says("whether the end of a text was ignored, for a fixed length")]
    memory: Annotated[bool, _says("whether memory was measured")]
    margin: Annotated[float, _says("a ratio nearer to 1 is neither faster nor slower")]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `turnout perf` measured."""

    document: Annotated[Literal["turnout perf report"], _says("what this is")] = DOCUMENT
    schema_version: Annotated[int, _says("of this form; a reader looks at it first")] = (
        SCHEMA_VERSION
    )
    created: Annotated[str, _says("when it began: ISO 8601, UTC")]
    command: Annotated[tuple[str, ...], _says("the words of the command line")]
    environment: Annotated[Environment, _says("where it was measured")]
    bundle: Annotated[BundleReport, _says("what was measured")]
    settings: Annotated[Settings, _says("how it was measured")]
    workloads: Annotated[tuple[Workload, ...], _says("what was asked")]
    routes: Annotated[
        tuple[RouteReport, ...],
        _says("in the order in which they were named; the first is the base"),
    ]
    comparisons: Annotated[tuple[Comparison, ...], _says("of every other route with the first")]
    complete: Annotated[
        bool, _says("whether it holds all requests: none of a route that failed is missing")
    ]
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
    return documents.encode(report)


def read(path: Path) -> Report:
    """The report in the file `path`. Raises `UsageError` naming the file and a JSON path."""
    return FORM.read(path)


def schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    described = msgspec.json.schema(Report)
    # Fields by which a reader tells whether it knows the document are never left out.
    document = described["$defs"]["Report"]
    for name in reversed(_Header.__struct_fields__):
        document["properties"][name].pop("default")
        document["required"].insert(0, name)
    return described
