"""One route while it is measured: its process, what it has answered, and what went wrong."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from turnout.errors import MachineError, ProcessError, ProcessTimeoutError, TurnoutError
from turnout.memory import Memory, Sampler, oom_kills
from turnout.perf import child
from turnout.perf.deciding import saved_in
from turnout.perf.report import Failure, Load, MemorySample, Request
from turnout.processes import Child, worker

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.perf.routeset import Candidate
    from turnout.perf.workloads import Ask
    from turnout.routing import Route

# What libraries say where there is no memory left.
_NO_MEMORY = ("bad_alloc", "Failed to allocate memory", "MemoryError", "out of memory")
CLOSING_S = 60.0


class Watcher:
    """Told how far a measurement is; this one takes no notice.

    `tell_every_s`: how often it wants to hear of a request that runs, in seconds; None for never.
    """

    tell_every_s: float | None = None

    def begun(self, routes: int, requests: int) -> None:
        """So many routes, and so many requests of each."""

    def loading(self, route: str) -> None:
        """A route is being loaded."""

    def said(self, route: str, said: dict[str, Any]) -> None:
        """What its process says meanwhile: "compiling", "compiled", "note" or "tokens"."""

    def asking(self, route: str, kind: str, workload: str) -> None:
        """A request begins."""

    def answered(self, route: str, request: Request) -> None:
        """It ended."""

    def failed(self, route: str, failure: Failure) -> None:
        """The route is given up."""

    def placing(self, route: str) -> None:
        """Where its nodes run is being measured."""


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    load_s: float = 1800.0
    request_s: float = 600.0


class Turn(NamedTuple):
    """Which request it is: of which workload, which time it is asked, and whether it counts."""

    kind: Literal["warmup", "timed"]
    workload: int
    round: int


class Asked(NamedTuple):
    """What a prompt became: its length in tokens, a hash of them, and lines a user should see."""

    prompt_tokens: int
    prompt_ids_sha256: str
    templated: bool
    notes: tuple[str, ...]


@dataclass
class Lane:
    """A route: decided, then loaded, then asked, until it fails.

    `start` is the time of `clock` that the report counts from; `serving` is what answers in the
    process, in the words of `turnout.processes.worker`. Errors of the route end up in
    `failure`; what is left of this process's own, such as Ctrl-C, is passed on.
    """

    candidate: Candidate
    limits: Limits
    watcher: Watcher
    memory: bool
    start: float
    clock: Callable[[], float] = time.perf_counter
    serving: str = child.SERVING
    decided: bool = False
    route: Route | None = None
    failure: Failure | None = None
    load: Load | None = None
    prepared: dict[str, Any] | None = None
    baseline: Memory | None = None
    loaded: Memory | None = None
    requests: list[Request] = field(default_factory=list)
    sampler: Sampler | None = None
    kills_before: int | None = field(default_factory=oom_kills)
    placed: dict[str, Any] | None = None
    placed_note: str = "not measured"
    _child: Child | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self.failure is None

    def begin(
        self, bundle: Bundle, scratch: Path, held: contextlib.ExitStack, *, native_code: bool
    ) -> None:
        """Start its process and load; `held` ends the process."""
        self.watcher.loading(self.candidate.name)
        try:
            self._begin(bundle, scratch, held, native_code=native_code)
        except TurnoutError as error:
            self.fail(error, "loading")

    def _begin(
        self, bundle: Bundle, scratch: Path, held: contextlib.ExitStack, *, native_code: bool
    ) -> None:
        name = self.candidate.name
        saved = saved_in(scratch, self.route)
        self._child = held.enter_context(worker(self.serving, doing=f"the route {name}"))
        self.sampler = Sampler(self._child.pid, clock=self.clock) if self.memory else None
        question = child.load_question(
            bundle.path,
            saved,
            self.candidate.preparing,
            allow_native_code=native_code,
            memory=self.memory,
        )
        with self._watched(children=True):
            answer = self._ask(question, self.limits.load_s, "--load-timeout")
        self.load = msgspec.convert(answer["load"], Load)
        self.prepared = answer["prepared"]
        self.baseline = self._seen(answer["baseline"])
        self.loaded = self._seen(answer["loaded"])

    def request(self, ask: Ask, turn: Turn, *, ignore_eos: bool, during: str) -> Asked | None:
        """One request, kept in `requests`; what its prompt was, None where it failed."""
        self.watcher.asking(self.candidate.name, turn.kind, ask.name(self._tokens_of(turn)))
        try:
            return self._request(ask, turn, ignore_eos=ignore_eos)
        except TurnoutError as error:
            self.fail(error, during)
            return None

    def _request(self, ask: Ask, turn: Turn, *, ignore_eos: bool) -> Asked:
        question = child.request_question(
            ask.said,
            raw=ask.raw,
            max_new_tokens=ask.max_new_tokens,
            ignore_eos=ignore_eos,
            memory=self.memory,
            tell_every_s=self.watcher.tell_every_s,
        )
        started = self.clock() - self.start
        with self._watched():
            answer = self._ask(question, self.limits.request_s, "--request-timeout")
        asked = Asked(
            answer["prompt_tokens"],
            answer.pop("prompt_ids_sha256"),
            answer.pop("templated"),
            tuple(answer.pop("notes")),
        )
        for line in asked.notes:
            self.watcher.said(self.candidate.name, {"note": line})
        self._seen(answer["memory"])
        facts = {"kind": turn.kind, "workload": turn.workload, "round": turn.round}
        found = msgspec.convert({**answer, **facts, "started_s": started}, Request)
        self.requests.append(found)
        self.watcher.answered(self.candidate.name, found)
        return asked

    def end(self) -> None:
        """Unload, and let what was made for this use go; its process ends with what held it."""
        if self._child is not None and self.is_alive:
            with contextlib.suppress(TurnoutError):
                self._child.ask(child.CLOSE_QUESTION, timeout=CLOSING_S)
            self._child.end()

    def samples(self, most: int) -> tuple[MemorySample, ...]:
        """What was seen of its memory over time, thinned out to at most `most`."""
        found = self.sampler.samples if self.sampler is not None else []
        step = -(-len(found) // most) if found else 1
        return tuple(
            MemorySample(
                at_s=sample.at_s - self.start,
                rss_bytes=sample.rss,
                private_bytes=sample.private,
            )
            for sample in found[::step]
        )

    def _tokens_of(self, turn: Turn) -> int | None:
        same = (r.prompt_tokens for r in self.requests if r.workload == turn.workload)
        return next(same, None)

    def _ask(self, question: dict[str, Any], timeout: float, option: str) -> dict[str, Any]:
        assert self._child is not None  # it was begun
        name = self.candidate.name
        answer: dict[str, Any] = self._child.ask(
            question,
            timeout=timeout,
            heard=lambda said: self.watcher.said(name, said),
            option=option,
        )
        return answer

    @contextlib.contextmanager
    def _watched(self, *, children: bool = False) -> Iterator[None]:
        if self.sampler is None:
            yield
            return
        with self.sampler.watching(children=children):
            yield

    def _seen(self, figures: dict[str, int | None] | None) -> Memory | None:
        if figures is None:
            return None
        found = Memory(figures["rss_bytes"], figures["pss_bytes"], figures["private_bytes"])
        if self.sampler is not None:
            self.sampler.seen(found)
        return found

    def fail(self, error: TurnoutError, during: str) -> None:
        """Give the route up, and its process."""
        kills = oom_kills()
        starved = kills is not None and self.kills_before is not None and kills > self.kills_before
        self.failure = failure(error, during, starved=starved)
        self.watcher.failed(self.candidate.name, self.failure)
        if self._child is not None:
            self._child.end()


def failure(error: TurnoutError, during: str, *, starved: bool = False) -> Failure:
    """What the report says of an error that ended a route.

    `starved`: meanwhile, the system has ended a process for lack of memory.
    """
    return Failure(
        kind=_kind(error, starved=starved),
        during=during,
        problem=error.problem,
        facts=dict(error.facts),
    )


def _kind(error: TurnoutError, *, starved: bool) -> Any:
    if isinstance(error, ProcessTimeoutError):
        return "hung"
    words = f"{error.problem}\n{error.facts.get('found', '')}"
    if any(sign in words for sign in _NO_MEMORY):
        return "out of memory"
    if isinstance(error, ProcessError):
        if "(SIGKILL)" in error.problem:
            return "out of memory" if starved else "killed"
        return "crashed"
    return "unavailable" if isinstance(error, MachineError) else "failed"
