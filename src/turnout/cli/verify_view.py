"""What is seen while routes are verified: which question it is, and the time that is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from turnout.cli.output import stderr_console
from turnout.perf.wording import failure as failure_words
from turnout.verify.lane import Watcher

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from turnout.perf.report import Failure

_LONGEST = 40


class View(Watcher):
    """A bar on a terminal; elsewhere a line where a route is loaded. All on stderr.

    Nothing with `quiet`. `verbose` says of every question how long it took.
    """

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._console = stderr_console(quiet=quiet)
        self._verbose = verbose
        self._live = self._console.is_terminal and not quiet
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._notes: set[str] = set()
        self._doing = ""
        self._since = 0.0
        # Rows that are done with, and those of the question that is being answered.
        self._done = self._now = 0

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begun(self, rows: int) -> None:
        """Start the bar."""
        if self._live:
            self._progress = _bar(self._console)
            self._task = self._progress.add_task("", total=rows)
            self._progress.start()

    def loading(self, route: str) -> None:
        """Say so."""
        self._show(f"loading {route}")
        if not self._live:
            self._say(f"Loading {route}.")

    def said(self, route: str, said: dict[str, Any]) -> None:
        """How far it is; what is compiled; notes, once each."""
        if "rows" in said:
            self._now += said["rows"]
            self._show(self._doing)
        elif "compiling" in said:
            self._show(f"compiling {said['compiling']} for {route}")
        elif "note" in said and said["note"] not in self._notes:
            self._notes.add(said["note"])
            self._say(f"{route}: {said['note']}")

    def asking(self, route: str, question: int, of: int) -> None:
        """Say which question it is."""
        self._since, self._now = time.monotonic(), 0
        self._doing = f"{route}  question {question + 1} of {of}"
        self._show(self._doing)

    def answered(self, rows: int) -> None:
        """One more."""
        self._done, self._now = self._done + rows, 0
        self._show(self._doing)
        if self._verbose:
            self._say(f"{self._doing}: {time.monotonic() - self._since:.1f} s")

    def failed(self, route: str, failure: Failure, rows: int) -> None:
        """Say so at once; the reason in full comes with the results."""
        self._done, self._now = self._done + rows, 0
        self._show("")
        if self._progress is not None:
            self._say(f"{route}: {failure_words(failure)}")

    def _show(self, doing: str) -> None:
        from turnout.cli.folding import printable

        if self._progress is not None and self._task is not None:
            text = printable(doing)
            shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
            done = self._done + self._now
            self._progress.update(self._task, description=shown, completed=done)

    def _say(self, line: str) -> None:
        from turnout.cli.folding import printable

        self._console.print(printable(line), markup=False, soft_wrap=True)


def _bar(console: Any) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        # Rows of the reference take longer than others: an estimate from the last few misleads.
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=300.0,
    )
