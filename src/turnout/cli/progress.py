"""A bar for every job that is compiled, on a terminal, and a record of what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnout.cli.output import stderr_console

if TYPE_CHECKING:
    from rich.progress import Progress

# A bar that is full says that it is done.
_ALMOST = 0.99
_LONGEST = 40


class JobProgress:
    """Told of jobs as they are compiled. `outcomes` has what came of each, by its name.

    A bar shows the stages, the time that has passed and what the like took before, while a job is
    compiled; none where `shown` is false, or nobody is there to see it.
    """

    def __init__(self, *, shown: bool) -> None:
        self._console = stderr_console()
        self._shown = shown and self._console.is_terminal
        self._bar: Progress | None = None
        self.outcomes: dict[str, str] = {}

    def started(self, name: str, expected_s: float | None) -> None:
        """A job begins; the like took `expected_s` seconds, None where that is not known."""
        if not self._shown:
            return
        self._bar = _bar(self._console)
        usual = f"of about {max(expected_s, 1):.0f} s" if expected_s else ""
        self._bar.add_task(f"compiling {_short(name)}", total=expected_s, usual=usual)
        self._bar.start()

    def ended(self, name: str, outcome: str) -> None:
        """It ended: "compiled", "stored" or "failed"."""
        self.outcomes[name] = outcome
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar(console: Any) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress_bar import ProgressBar

    class ElapsedBar(BarColumn):
        """Time that has passed: a compiler does not say how far it is."""

        def render(self, task: Any) -> ProgressBar:
            """The bar; one that moves to and fro where no time is expected."""
            if task.total:
                task.completed = min(task.elapsed or 0.0, _ALMOST * task.total)
            return super().render(task)

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        ElapsedBar(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[usual]}", markup=False),
        console=console,
        transient=True,
    )


def _short(name: str) -> str:
    from turnout.cli.folding import printable

    text = printable(name)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
