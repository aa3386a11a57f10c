"""One route while it is verified: its process, and the rows of logits that it has written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.errors import GenerationError, TurnoutError
from turnout.perf.child import CLOSE_QUESTION, load_question
from turnout.perf.deciding import decide, saved_in
from turnout.perf.lane import CLOSING_S
from turnout.processes import Child, worker
from turnout.verify.child import SERVING
from turnout.verify.rows import UNREAD

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from turnout.bundle import Bundle
    from turnout.machine import Inventory
    from turnout.perf.report import Failure
    from turnout.perf.routeset import Candidate
    from turnout.routing import Route
    from turnout.verify.questions import Question

TIME_LIMIT_S = 1800.0


class Watcher:
    """Told how far a verification is; this one takes no notice."""

    def begun(self, rows: int) -> None:
        """So many rows of logits are to be read at most, of all routes together."""

    def loading(self, route: str) -> None:
        """A route is being loaded."""

    def said(self, route: str, said: dict[str, Any]) -> None:
        """What its process says meanwhile: "compiling", "compiled", "note" or "rows"."""

    def asking(self, route: str, question: int, of: int) -> None:
        """A question begins."""

    def answered(self, rows: int) -> None:
        """It ended, and so many rows are done with, unread ones included."""

    def failed(self, route: str, failure: Failure, rows: int) -> None:
        """The route is given up, and so many rows with it."""


@dataclass(frozen=True)
class Rows:
    """Rows of logits in a file: float32, [positions, `width`], from position `first` on.

    `ways` says how each was read, a letter a row; `follows` is the continuation of the prompt.
    """

    path: Path
    first: int
    width: int
    ways: str
    follows: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How large the file is at most."""
        return len(self.ways) * self.width * 4

    def has(self, position: int) -> bool:
        """Whether the row of that position was read."""
        index = position - self.first
        return 0 <= index < len(self.ways) and self.ways[index] != UNREAD

    def read(self, positions: Sequence[int]) -> NDArray[np.float32]:
        """The rows of positions in order, [positions, width]."""
        import numpy as np

        rows = np.empty((len(positions), self.width), dtype=np.float32)
        with self.path.open("rb") as file:
            for index, position in enumerate(positions):
                file.seek((position - self.first) * self.width * 4)
                if file.readinto(rows[index].data) != self.width * 4:
                    raise GenerationError(
                        "Logits of a route are missing.", found=f"no row {position}"
                    )
        return rows

    def remove(self) -> None:
        """Let the file go."""
        self.path.unlink(missing_ok=True)


@dataclass
class Lane:
    """A route: decided, then loaded, then asked. Every error is raised; none is kept here."""

    candidate: Candidate
    bundle: Bundle
    watcher: Watcher
    time_limit_s: float = TIME_LIMIT_S
    allow_native_code: bool = False
    serving: str = SERVING
    decided: bool = False
    route: Route | None = None
    _child: Child | None = None

    @property
    def name(self) -> str:
        """The route's."""
        return self.candidate.name

    def decide(self, inventory: Inventory) -> None:
        """Decide the route, and say what it warns of. Raises `UsageError` and `MachineError`."""
        self.route = decide(
            self.candidate,
            self.bundle,
            inventory,
            lambda line: self.watcher.said(self.name, {"note": line}),
        )
        self.decided = True

    @contextlib.contextmanager
    def loaded(self, scratch: Path) -> Iterator[None]:
        """Its process, loaded, which is gone after the block. Raises `TurnoutError`."""
        self.watcher.loading(self.name)
        saved = saved_in(scratch, self.route)
        question = load_question(
            self.bundle.path,
            saved,
            self.candidate.preparing,
            allow_native_code=self.allow_native_code,
            memory=False,
        )
        with worker(self.serving, doing=f"the route {self.name}") as child:
            self._child = child
            try:
                self._ask(question)
                yield
                with contextlib.suppress(TurnoutError):
                    child.ask(CLOSE_QUESTION, timeout=CLOSING_S)
            finally:
                self._child = None

    def encode(self, said: Sequence[str], *, raw: bool) -> dict[str, Any]:
        """Token "ids" of texts, "notes", and what texts "begin" with."""
        return self._ask({"do": "encode", "said": list(said), "raw": raw})

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The texts of token ids, as they are in the middle of a text."""
        found: list[str] = self._ask({"do": "decode", "ids": [list(item) for item in ids]})["text"]
        return found

    def read(self, question: Question, path: Path, follows: Sequence[int] | None) -> Rows:
        """The rows of a question, in the file `path`.

        `follows` is the continuation of a prompt; None: the route's own, and none for a text.
        """
        answer = self._ask(
            {
                "do": "read",
                "ids": list(question.ids),
                "first": question.first,
                "file": str(path),
                "follows": None if follows is None else list(follows),
                "most": question.new_tokens,
            }
        )
        said = tuple(answer["follows"])
        return Rows(path, question.first, answer["width"], answer["ways"], said)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._child is not None  # it is asked within `loaded`
        answer: dict[str, Any] = self._child.ask(
            question,
            timeout=self.time_limit_s,
            heard=lambda said: self.watcher.said(self.name, said),
        )
        return answer
