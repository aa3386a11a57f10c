"""A bar on a terminal while long work runs, and lines beside it; all on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnout.cli.output import stderr_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import ProgressColumn

_LONGEST = 40


class Live:
    """What is being done, and how far it is. Nothing is shown with `quiet`.

    Elsewhere than on a terminal (`is_shown` false) there is no bar, and lines alone.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._console = stderr_console(quiet=quiet)
        self.is_shown = self._console.is_terminal and not quiet
        self._progress: Any = None
        self._task: Any = None
        self._notes: set[str] = set()
        self.doing = ""

    def begin(self, columns: Sequence[ProgressColumn], total: int, **fields: Any) -> None:
        """Show the bar, of so many parts; `columns` come after what is being done."""
        if not self.is_shown:
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *columns,
            console=self._console,
            transient=True,
            # Parts take very different times: an estimate from the last few misleads.
            speed_estimate_period=300.0,
        )
        self._task = self._progress.add_task("", total=total, **fields)
        self._progress.start()

    def end(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()

    @property
    def task(self) -> Any:
        """The bar's own state; None where none is shown."""
        return None if self._progress is None else self._progress.tasks[0]

    def show(self, doing: str | None = None, **state: Any) -> None:
        """What is being done (None: as before), and how far it is: `completed`, `total`, fields."""
        from turnout.cli.folding import printable

        if self._progress is not None:
            text = printable(self.doing if doing is None else doing)
            shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
            self._progress.update(self._task, description=shown, **state)

    def loading(self, route: str) -> None:
        """A route is being loaded."""
        self.show(f"loading {route}")
        if not self.is_shown:
            self.say(f"Loading {route}.")

    def heard(self, route: str, said: dict[str, Any]) -> None:
        """What the process of a route says: what is compiled, and notes, once each."""
        if "compiling" in said:
            self.show(f"compiling {said['compiling']} for {route}")
        elif "note" in said and said["note"] not in self._notes:
            self._notes.add(said["note"])
            self.say(f"{route}: {said['note']}")

    def say(self, line: str) -> None:
        """A line above the bar."""
        from turnout.cli.folding import printable

        self._console.print(printable(line), markup=False, soft_wrap=True)
