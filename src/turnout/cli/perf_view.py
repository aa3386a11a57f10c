"""What is seen while routes are measured: how far it is, tokens/s, and the time that is left."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any

from turnout.cli.output import stderr_console
from turnout.perf.lane import Watcher
from turnout.perf.wording import failure as failure_words

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from turnout.perf.report import Failure, Request

TELL_EVERY_S = 0.25
_LONGEST = 40


class View(Watcher):
    """A bar on a terminal; elsewhere a line where a route is loaded or fails. All on stderr.

    Nothing with `quiet`. `verbose` says of every request what it took.
    """

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._console = stderr_console(quiet=quiet)
        self._quiet, self._verbose = quiet, verbose
        self._live = self._console.is_terminal and not quiet
        self.tell_every_s = TELL_EVERY_S if self._live else None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._notes: set[str] = set()
        self._doing = ""
        self._tokens: tuple[int, float] = (0, 0.0)
        self._first_asked: float | None = None
        self._of_each = 0
        self._answered: collections.Counter[str] = collections.Counter()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begun(self, routes: int, requests: int) -> None:
        """Start the bar."""
        self._of_each = requests
        if self._live:
            self._progress = _bar(self._console)
            self._task = self._progress.add_task("", total=routes * requests, rate="", left="")
            self._progress.start()

    def loading(self, route: str) -> None:
        """Say so."""
        self._show(f"loading {route}")
        if not self._live:
            self._say(f"Loading {route}.")

    def said(self, route: str, said: dict[str, Any]) -> None:
        """Tokens/s of what has come since the last word; what is compiled; notes, once each."""
        if "tokens" in said:
            count, before = self._tokens
            now = time.monotonic()
            if said["tokens"] > count and now > before:
                rate = (said["tokens"] - count) / (now - before)
                self._show(self._doing, rate=f"{rate:.1f} tokens/s" if count else "")
            self._tokens = (said["tokens"], now)
        elif "compiling" in said:
            self._show(f"compiling {said['compiling']} for {route}")
        elif "note" in said and said["note"] not in self._notes:
            self._notes.add(said["note"])
            self._say(f"{route}: {said['note']}")

    def asking(self, route: str, kind: str, workload: str) -> None:
        """Say which request it is."""
        now = time.monotonic()
        self._tokens = (0, now)
        self._first_asked = self._first_asked or now
        self._doing = f"{route}  {workload}" + ("  warm-up" if kind == "warmup" else "")
        self._show(self._doing)

    def answered(self, route: str, request: Request) -> None:
        """One more."""
        self._answered[route] += 1
        rate = request.decode_tokens_per_second
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)
            shown = f"{rate:.1f} tokens/s" if rate is not None else ""
            self._show(self._doing, rate=shown, left=f"about {_clock(self._left_s())} left")
        if self._verbose:
            self._say(
                f"{route}: {request.kind}, prompt of {request.prompt_tokens} tokens in "
                f"{request.prefill_s * 1e3:.1f} ms, {request.generated_tokens} tokens"
                + (f" at {rate:.1f} tokens/s" if rate is not None else "")
            )

    def failed(self, route: str, failure: Failure) -> None:
        """Say so at once; the reason in full comes with the results."""
        if self._progress is not None and self._task is not None:
            left = self._of_each - self._answered[route]
            self._progress.update(self._task, total=(self._progress.tasks[0].total or 0) - left)
            self._say(f"{route}: {failure_words(failure)}")

    def placing(self, route: str) -> None:
        """Say so."""
        self._show(f"where nodes run: {route}", rate="", left="")

    def _left_s(self) -> float:
        """What is left, if it goes on as it did since the first request."""
        assert self._progress is not None
        task = self._progress.tasks[0]
        passed = time.monotonic() - (self._first_asked or 0.0)
        return passed / max(task.completed, 1) * ((task.total or 0) - task.completed)

    def _show(self, doing: str, **fields: Any) -> None:
        from turnout.cli.folding import printable

        if self._progress is not None and self._task is not None:
            text = printable(doing)
            shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
            self._progress.update(self._task, description=shown, **fields)

    def _say(self, line: str) -> None:
        from turnout.cli.folding import printable

        self._console.print(printable(line), markup=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _bar(console: Any) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TextColumn("{task.fields[left]}", markup=False),
        console=console,
        transient=True,
    )
