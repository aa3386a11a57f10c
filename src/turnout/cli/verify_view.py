"""What is seen while routes are verified: which question it is, and the time that is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from turnout.cli.live import Live
from turnout.perf.wording import failure as failure_words
from turnout.verify.lane import Watcher

if TYPE_CHECKING:
    from turnout.perf.report import Failure


class View(Watcher):
    """A bar on a terminal; elsewhere a line where a route is loaded. All on stderr.

    Nothing with `quiet`. `verbose` says of every question how long it took.
    """

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self.live = Live(quiet=quiet)
        self._verbose = verbose
        self._since = 0.0
        # Rows that are done with, and those of the question that is being answered.
        self._done = self._now = 0

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.live.end()

    def begun(self, rows: int) -> None:
        """Start the bar."""
        if self.live.is_shown:
            self.live.begin(_columns(), rows)

    def loading(self, route: str) -> None:
        """Say so."""
        self.live.loading(route)

    def said(self, route: str, said: dict[str, Any]) -> None:
        """How far it is; what is compiled; notes."""
        if "rows" not in said:
            self.live.heard(route, said)
            return
        self._now += said["rows"]
        self._show()

    def asking(self, route: str, question: int, of: int) -> None:
        """Say which question it is."""
        self._since, self._now = time.monotonic(), 0
        self.live.doing = f"{route}  question {question + 1} of {of}"
        self._show()

    def answered(self, rows: int) -> None:
        """One more."""
        self._done, self._now = self._done + rows, 0
        self._show()
        if self._verbose:
            self.live.say(f"{self.live.doing}: {time.monotonic() - self._since:.1f} s")

    def failed(self, route: str, failure: Failure, rows: int) -> None:
        """Say so at once; the reason in full comes with the results."""
        self._done, self._now = self._done + rows, 0
        self.live.doing = ""
        self._show()
        if self.live.is_shown:
            self.live.say(f"{route}: {failure_words(failure)}")

    def _show(self) -> None:
        self.live.show(completed=self._done + self._now)


def _columns() -> list[Any]:
    from rich.progress import (
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return [
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
