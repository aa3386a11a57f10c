"""Measuring several routes in one run: each in a process of its own, requests taking turns.

measure(Bundle.open("smollm2"), parse("config; ep=openvino"), Plan(texts("Hello", [64])))
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.errors import MachineError, TurnoutError, UsageError
from turnout.perf.child import SERVING
from turnout.perf.comparing import MARGIN
from turnout.perf.deciding import decide
from turnout.perf.environment import environment, identity
from turnout.perf.lane import Asked, Lane, Limits, Turn, Watcher
from turnout.perf.report import BundleReport, Environment, Report
from turnout.perf.tables import NOT_PLACED

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.machine import Inventory
    from turnout.perf.routeset import Candidate
    from turnout.perf.workloads import Ask

ITERATIONS = 10
WARMUP = 1


@dataclass(frozen=True)
class Plan:
    """What is measured, and how. Raises `UsageError`.

    Every one of `asks` is asked of every route, first `warmup` times and then `iterations` times.
    `ignore_eos`: texts go on until they have all their tokens. `memory`: it is measured as well.
    `placement`: where nodes really run is measured at the end, which loads every route once more.
    """

    asks: tuple[Ask, ...]
    iterations: int = ITERATIONS
    warmup: int = WARMUP
    ignore_eos: bool = False
    memory: bool = True
    placement: bool = True
    allow_native_code: bool = False
    margin: float = MARGIN
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("timed requests", self.iterations, 1),
            ("warm-up requests", self.warmup, 0),
        ):
            if value < least:
                raise UsageError(
                    f"The number of {name} is out of range.",
                    found=value,
                    expected=f"{least} or more",
                )
        for option, seconds in (
            ("--load-timeout", self.limits.load_s),
            ("--request-timeout", self.limits.request_s),
        ):
            if not seconds > 0:
                raise UsageError(
                    "The time limit is out of range.",
                    found=f"{option} {seconds}",
                    expected="more than 0 seconds",
                )
        if not self.asks:
            raise UsageError("There is nothing to measure.", expected="a prompt")

    def turns(self) -> Iterator[Turn]:
        """Every request of one route, in order."""
        for workload in range(len(self.asks)):
            for index in range(self.warmup):
                yield Turn("warmup", workload, index)
            for index in range(self.iterations):
                yield Turn("timed", workload, index)

    @property
    def requests(self) -> int:
        """How many there are of one route."""
        return (self.warmup + self.iterations) * len(self.asks)


@dataclass
class Run:
    """What is known of one run: the lanes, and what their prompts became by workload."""

    bundle: Bundle
    plan: Plan
    command: tuple[str, ...]
    created: str
    environment: Environment
    identity: BundleReport
    lanes: list[Lane]
    asked: dict[int, Asked] = field(default_factory=dict)
    interrupted: bool = False


def measure(
    bundle: Bundle,
    candidates: Sequence[Candidate],
    plan: Plan,
    *,
    watcher: Watcher | None = None,
    command: Sequence[str] = (),
    inventory: Inventory | None = None,
    clock: Callable[[], float] = time.perf_counter,
    serving: Mapping[str, str] | None = None,
) -> Report:
    """The report on every candidate.

    A route that cannot be loaded, or fails, is a row with its reason, and the others go on. Ctrl-C
    ends it early: the report holds what there is by then, and says so. `inventory` None looks at
    this machine. `serving` says by the name of a candidate what answers in its process, where that
    is not Turnout's own but something to measure beside it. Raises `UsageError` for a route that
    the bundle cannot have, and `BundleError`.
    """
    from turnout.compiling import scratch
    from turnout.machine import Inventory
    from turnout.perf.results import report

    inventory = inventory or Inventory.discover()
    watcher = watcher or Watcher()
    start = clock()
    run = Run(
        bundle=bundle,
        plan=plan,
        command=tuple(command),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=environment(inventory),
        identity=identity(bundle),
        lanes=[
            Lane(
                candidate,
                plan.limits,
                watcher,
                memory=plan.memory,
                start=start,
                clock=clock,
                serving=(serving or {}).get(candidate.name, SERVING),
            )
            for candidate in candidates
        ],
    )
    for lane in run.lanes:
        _decide(lane, bundle, inventory)
    with scratch(bundle) as folder:
        try:
            _go(run, folder, watcher)
        except KeyboardInterrupt:
            run.interrupted = True
    return report(run)


def _decide(lane: Lane, bundle: Bundle, inventory: Inventory) -> None:
    """What the machine lacks is the failure of that route, and not of the call."""

    def warn(line: str) -> None:
        lane.watcher.said(lane.candidate.name, {"note": line})

    try:
        lane.route = decide(lane.candidate, bundle, inventory, warn)
        lane.decided = True
    except MachineError as error:
        lane.fail(error, "the decision")


def _go(run: Run, folder: Path, watcher: Watcher) -> None:
    """Load every route, ask them in turn, and see where their nodes run."""
    alive = [lane for lane in run.lanes if lane.is_alive]
    watcher.begun(len(alive), run.plan.requests)
    with contextlib.ExitStack() as held:
        for lane in run.lanes:
            if lane.is_alive:
                lane.begin(run.bundle, folder, held, native_code=run.plan.allow_native_code)
        for turn in run.plan.turns():
            _take(run, turn)
        for lane in run.lanes:
            lane.end()
    if run.plan.placement:
        for lane in run.lanes:
            if lane.is_alive:
                watcher.placing(lane.candidate.name)
                _place(run, lane)


def _take(run: Run, turn: Turn) -> None:
    """Ask every route once. Every second time backwards, so that drift hits all alike."""
    plan = run.plan
    of = plan.iterations if turn.kind == "timed" else plan.warmup
    during = f"{turn.kind} request {turn.round + 1} of {of}"
    for lane in run.lanes if turn.round % 2 == 0 else reversed(run.lanes):
        if not lane.is_alive:
            continue
        ask = plan.asks[turn.workload]
        asked = lane.request(ask, turn, ignore_eos=plan.ignore_eos, during=during)
        if asked is not None:
            run.asked.setdefault(turn.workload, asked)


def _place(run: Run, lane: Lane) -> None:
    from turnout.runtime import placement
    from turnout.runtime.loading import How

    how = How(lane.candidate.preparing, allow_native_code=run.plan.allow_native_code)
    limit = run.plan.limits.load_s
    try:
        lane.placed = placement.measure(run.bundle, lane.route, timeout=limit, how=how).to_json()
    except TurnoutError as error:
        lane.placed_note = f"{NOT_PLACED}: {error.problem}"
