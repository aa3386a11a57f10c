"""The report of a verification: one JSON document, with figures of every position compared.

Divergences and negative log probabilities are in nats. What is not a number in JSON is null.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from turnout import documents
from turnout.documents import Form
from turnout.perf.report import BundleReport, Environment, Failure, StageReport

SCHEMA_VERSION = 1
DOCUMENT: Literal["turnout verify report"] = "turnout verify report"
MAX_BYTES = 256 << 20

Verdict = Literal["same", "differs"]


def _says(text: str) -> Any:
    return msgspec.Meta(description=text)


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """What a route must not exceed to be the same."""

    max_kl: Annotated[float, _says("mean divergence from the reference, in nats")]
    max_perplexity_ratio: Annotated[float, _says("perplexity of the text, by the reference's")]
    min_agreement: Annotated[
        float | None, _says("share of positions of one likeliest token; null: not asked")
    ]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How it was compared."""

    thresholds: Thresholds
    max_new_tokens: Annotated[int, _says("of the continuation of a prompt, as asked")]
    prompts_from: Annotated[str, _says('"built in", or the name of a file')]
    text_from: Annotated[str | None, _says("null where no text was read")]
    vocabulary: Annotated[int, _says("columns of the logits")]
    known_tokens: Annotated[int, _says("tokens of the tokenizer: those that have a probability")]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt, or a part of a text, as the reference took it."""

    kind: Literal["prompt", "random", "text"]
    text: Annotated[str | None, _says("of a prompt, before the chat template")]
    tokens: int
    token_ids_sha256: Annotated[
        str, _says("of the token ids, as little-endian 32-bit integers one by one")
    ]
    first: Annotated[
        int,
        _says(
            "positions before it are not compared: another prompt has them, or they only lead in"
        ),
    ]
    cut: Annotated[bool, _says("whether it was shortened to fit the context")]
    continuation: Annotated[tuple[int, ...], _says("what the reference continues a prompt with")]
    continuation_text: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of positions taken together."""

    positions: Annotated[int, _says("that were compared")]
    agreeing: Annotated[int, _says("where both take the same token for the likeliest")]
    not_finite: Annotated[
        int, _says("where the route has logits that are no numbers; in no other figure but these")
    ]
    agreement: Annotated[float | None, _says("agreeing, by positions")]
    kl_mean: float | None
    kl_p99: Annotated[float | None, _says("null below 100 positions, which are too few")]
    kl_max: float | None


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    """Of the text, under both."""

    tokens: Annotated[int, _says("that were scored")]
    reference: float
    route: float
    ratio: float
    interval: Annotated[
        tuple[float, float] | None,
        _says("bootstrap 95% interval of the ratio, over stretches of the text; null for too few"),
    ]


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Where a greedy continuation leaves the reference's."""

    after: Annotated[int, _says("how many tokens they have in common")]
    reference_token: int
    reference_text: str
    token: int
    text: str
    margin: Annotated[
        float, _says("the reference's largest logit less its second: small is a near tie")
    ]


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """How logits were read: of so many positions in each way."""

    prompt: Annotated[int, _says("out of a prompt that was computed")]
    forced: Annotated[int, _says("after a token that was forced, or generated")]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One question, as a route answers it beside the reference."""

    question: Annotated[int, _says("index into `questions`")]
    figures: Figures
    read: Read
    reference_read: Read
    first_difference: Annotated[FirstDifference | None, _says("null: none, or a text")]
    differing: Annotated[tuple[int, ...], _says("positions whose likeliest tokens differ")]
    unread: Annotated[tuple[int, ...], _says("positions that one of them could not be asked for")]
    kl: Annotated[tuple[float | None, ...], _says("of each position from `first` on")]
    reference_nll: Annotated[
        tuple[float | None, ...], _says("of the tokens that follow, in a text; empty for a prompt")
    ]
    nll: tuple[float | None, ...]


class RouteReport(msgspec.Struct, frozen=True, kw_only=True):
    """One route beside the reference."""

    name: str
    requested: Annotated[str, _says('in the words of the command line; "config" for nothing')]
    effective: Annotated[str, _says('"config", an EP\'s alias, or "mixed"')]
    stages: tuple[StageReport, ...]
    verdict: Annotated[Verdict | None, _says("null where the route failed")]
    reasons: Annotated[tuple[str, ...], _says("why it differs")]
    overall: Annotated[Figures | None, _says("over all positions; null where there is none")]
    prompts: Annotated[Figures | None, _says("positions inside prompts")]
    continuations: Annotated[Figures | None, _says("what follows prompts")]
    text: Annotated[Figures | None, _says("positions of the text")]
    perplexity: Perplexity | None
    answers: tuple[Answer, ...]
    error: Failure | None


class ReferenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What routes were compared with."""

    name: str
    requested: str
    effective: str
    stages: tuple[StageReport, ...]
    bundle: Annotated[BundleReport | None, _says("null: the bundle that is verified")]
    not_finite: Annotated[int, _says("positions of which it has logits that are no numbers")]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `turnout verify` found."""

    document: Literal["turnout verify report"] = DOCUMENT
    schema_version: int = SCHEMA_VERSION
    created: Annotated[str, _says("when it began: ISO 8601, UTC")]
    command: tuple[str, ...]
    environment: Environment
    bundle: BundleReport
    settings: Settings
    notes: Annotated[tuple[str, ...], _says("what a reader should know of how it was done")]
    questions: tuple[Question, ...]
    reference: ReferenceReport
    routes: tuple[RouteReport, ...]
    interrupted: Annotated[
        bool, _says("whether it was ended early, as by Ctrl-C; routes that it lacks have an error")
    ] = False

    @property
    def holds(self) -> bool:
        """Whether every route is the same, and none failed."""
        return not self.interrupted and all(route.verdict == "same" for route in self.routes)


class _Header(msgspec.Struct):
    document: Literal["turnout verify report"]
    schema_version: int


FORM = Form(
    name="report of a verification",
    header=_Header,
    document=Report,
    version=SCHEMA_VERSION,
    fix="give a file that turnout verify -o wrote",
    fix_older="verify again with: turnout verify BUNDLE -o FILE",
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
    return msgspec.json.schema(Report)
