"""What is seen while routes are measured: how far it is, tokens/s, and the time that is left."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any

from turnout.cli.live import Live
from turnout.perf.lane import Watcher
from turnout.perf.wording import failure as failure_words

if TYPE_CHECKING:
    from turnout.perf.report import Failure, Request

TELL_EVERY_S = 0.25


class View(Watcher):
    """A bar on a terminal; elsewhere a line where a route is loaded. All on stderr.

    Nothing with `quiet`. `verbose` says of every request what it took.
    """

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self.live = Live(quiet=quiet)
        self.tell_every_s = TELL_EVERY_S if self.live.is_shown else None
        self._verbose = verbose
        self._tokens: tuple[int, float] = (0, 0.0)
        self._first_asked: float | None = None
        self._of_each = 0
        self._answered: collections.Counter[str] = collections.Counter()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.live.end()

    def begun(self, routes: int, requests: int) -> None:
        """Start the bar."""
        self._of_each = requests
        if self.live.is_shown:
            self.live.begin(_columns(), routes * requests, rate="", left="")

    def loading(self, route: str) -> None:
        """Say so."""
        self.live.loading(route)

    def said(self, route: str, said: dict[str, Any]) -> None:
        """Tokens/s of what has come since the last word; what is compiled; notes."""
        if "tokens" not in said:
            self.live.heard(route, said)
            return
        count, before = self._tokens
        now = time.monotonic()
        if said["tokens"] > count and now > before:
            rate = (said["tokens"] - count) / (now - before)
            self.live.show(rate=f"{rate:.1f} tokens/s" if count else "")
        self._tokens = (said["tokens"], now)

    def asking(self, route: str, kind: str, workload: str) -> None:
        """Say which request it is."""
        now = time.monotonic()
        self._tokens = (0, now)
        self._first_asked = self._first_asked or now
        self.live.doing = f"{route}  {workload}" + ("  warm-up" if kind == "warmup" else "")
        self.live.show()

    def answered(self, route: str, request: Request) -> None:
        """One more."""
        self._answered[route] += 1
        rate = request.decode_tokens_per_second
        done = self._answered.total()
        shown = f"{rate:.1f} tokens/s" if rate is not None else ""
        self.live.show(completed=done, rate=shown, left=f"about {_clock(self._left_s(done))} left")
        if self._verbose:
            self.live.say(
                f"{route}: {request.kind}, prompt of {request.prompt_tokens} tokens in "
                f"{request.prefill_s * 1e3:.1f} ms, {request.generated_tokens} tokens"
                + (f" at {rate:.1f} tokens/s" if rate is not None else "")
            )

    def failed(self, route: str, failure: Failure) -> None:
        """Say so at once; the reason in full comes with the results."""
        if self.live.task is not None:
            gone = self._of_each - self._answered[route]
            self.live.show(total=(self.live.task.total or 0) - gone)
            self.live.say(f"{route}: {failure_words(failure)}")

    def placing(self, route: str) -> None:
        """Say so."""
        self.live.show(f"where nodes run: {route}", rate="", left="")

    def _left_s(self, done: int) -> float:
        """What is left, if it goes on as it did since the first request."""
        if self.live.task is None:
            return 0.0
        passed = time.monotonic() - (self._first_asked or 0.0)
        left: float = passed / max(done, 1) * ((self.live.task.total or 0) - done)
        return left


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _columns() -> list[Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    return [
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TextColumn("{task.fields[left]}", markup=False),
    ]
