"""Logits of the positions of a token sequence, out of the runtime's own generator.

A row is the logits after one position of the sequence: what the model expects to come next. How
onnxruntime-genai gives them out was measured (docs/verifying.md):

- `append_tokens` computes a prompt. `get_output("logits")` has the rows of all its positions, or of
  its last window, or of its last position alone, as the graph has them.
- A token of a continuation is forced by logits of its own making, in which it is the largest:
  `generate_next_token` then takes it, and `get_logits` computes the row that follows.

Positions that do not come out of a prompt are read in one of two ways that are exact for a causal
model: from shorter prompts, where a prompt gives more than one row; else by appending a prompt up
to the first of them, and forcing the rest.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from turnout.errors import WriteError
from turnout.files import explain_os_error
from turnout.runtime.generation import PROMPT_STEP, create_generator
from turnout.runtime.options import SearchOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from turnout.bundle import GenaiConfig
    from turnout.runtime.loading import Loaded

    Rows = NDArray[np.float32]

# How a row was read: out of a prompt, by forcing the tokens before it, or not at all.
Way = Literal["p", "f", "-"]
PROMPT: Way = "p"
FORCED: Way = "f"
UNREAD: Way = "-"


class RowFile:
    """A file of float32 rows, those of positions `first` and up, written in any order."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.first = first
        self.width = 0
        self.ways: dict[int, Way] = {}
        self._file: BinaryIO = path.open("wb")

    def put(self, position: int, rows: Rows, way: Way) -> int:
        """Keep rows of positions `position` and up, but for those that are there, or not wanted.

        How many were kept. Raises `WriteError`.
        """
        self.width = rows.shape[1]
        before = len(self.ways)
        for index, row in enumerate(rows, start=position):
            if index < self.first or index in self.ways:
                continue
            try:
                self._file.seek((index - self.first) * row.nbytes)
                self._file.write(row.tobytes())
            except OSError as error:
                raise _unwritten(error, self.path) from error
            self.ways[index] = way
        return len(self.ways) - before

    def leave(self, position: int) -> None:
        """The row of that position cannot be had."""
        if position >= self.first:
            self.ways.setdefault(position, UNREAD)

    def missing(self, last: int) -> list[int]:
        """Positions up to `last` that are not there, and not left out."""
        return [index for index in range(self.first, last + 1) if index not in self.ways]

    def ways_in_order(self) -> str:
        """The way of each position, a letter each."""
        last = max(self.ways, default=self.first - 1)
        return "".join(self.ways.get(index, UNREAD) for index in range(self.first, last + 1))

    def close(self) -> None:
        """End it; what is written stays."""
        try:
            self._file.close()
        except OSError as error:
            raise _unwritten(error, self.path) from error


def _unwritten(error: OSError, path: Path) -> WriteError:
    """Why logits could not be written, and what helps: nobody named the folder."""
    found = explain_os_error(error, path)
    if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
        return found
    return WriteError(
        f"No space left for logits in {path.parent}.",
        expected="room for those of one question, and the reference's beside several routes",
        where=path.parent,
        fix="set TMPDIR to a folder with more room; or verify fewer routes at a time, or ask less "
        "(--text-tokens, --max-new-tokens)",
    )


class Reader:
    """Reads rows of one loaded bundle. `tell` is told of how many there are more."""

    def __init__(self, loaded: Loaded, tell: Callable[[int], None]) -> None:
        self._loaded = loaded
        self._tell = tell
        # Plain greedy search: nothing of what the bundle does to logits on the way to a token.
        asked = SearchOptions(greedy=True, repetition_penalty=1.0)
        self._search = asked.effective(loaded.config.search, loaded.vocab_size) | {"min_length": 0}
        self._pads_behind = pads_behind(loaded.config)
        self._output = loaded.config.get(("model", "decoder", "outputs", "logits"), "logits")
        # Whether more than the last position comes out of a prompt; None: not seen yet.
        self._many: bool | None = None
        self._max_length = self._width = 0

    def text(self, ids: Sequence[int], file: RowFile) -> None:
        """Rows of all positions of `ids` but the last, after which nothing follows."""
        self._max_length = self._room(len(ids))
        self._fill(ids, len(ids) - 2, file)

    def prompt(
        self, ids: Sequence[int], file: RowFile, *, follows: Sequence[int] | None, most: int
    ) -> list[int]:
        """Rows of the prompt `ids` and of its continuation, and that continuation.

        It is `follows`, or None for what the model itself takes for the likeliest: up to the end
        of the text, and at most `most` tokens. Its last token has no row: nothing follows it.
        """
        most = most if follows is None else len(follows)
        self._max_length = self._room(len(ids) + most)
        generator = self._append(ids, file)
        said = self._continue(generator, len(ids), file, follows, most)
        # Its buffers go before those of the next one are made.
        del generator
        self._fill(ids, len(ids) - 1, file)
        return said

    def _room(self, tokens: int) -> int:
        limits = self._loaded.limits
        return limits.tokens if limits.fixed else min(tokens, limits.tokens)

    def _fill(self, ids: Sequence[int], last: int, file: RowFile) -> None:
        """Read what is missing of the rows up to `last`, in whatever way it can be had.

        Every turn reads one of them at least.
        """
        while missing := file.missing(last):
            if self._many is False:
                self._force(ids, missing[0], missing[-1], file)
            else:
                self._append(ids[: missing[-1] + 1], file)

    def _append(self, ids: Sequence[int], file: RowFile) -> Any:
        """A generator that has computed `ids` as a session does; what came out is kept."""
        step = PROMPT_STEP if self._loaded.takes_steps else len(ids)
        try:
            return self._in_steps(ids, step, file)
        except RuntimeError:
            if step >= len(ids):
                raise
        # Some pipelines take no second step.
        self._loaded.takes_steps = False
        return self._in_steps(ids, len(ids), file)

    def _in_steps(self, ids: Sequence[int], step: int, file: RowFile) -> Any:
        generator = create_generator(self._loaded.model, self._max_length, self._search)
        for start in range(0, len(ids), step):
            part = ids[start : start + step]
            generator.append_tokens(list(part))
            rows = self._come_out(generator, part)
            end = start + len(part)
            self._tell(file.put(end - len(rows), rows, PROMPT))
            if not len(rows):
                file.leave(end - 1)
        return generator

    def _come_out(self, generator: Any, part: Sequence[int]) -> Rows:
        """The rows of the last positions of what was appended, as many as there are.

        `get_logits` has the row of the last token that is no padding, where there are several. It
        shows which is which; what is not understood is not trusted.
        """
        import numpy as np

        last = self._row(generator)
        rows = self._given(generator)
        if len(part) > 1:
            self._many = rows is not None and len(rows) > 1
        if rows is not None and len(rows) == 1:
            return last
        pads = self._pads_at_end(part)
        if rows is not None:
            behind = (len(part) - 1) % len(rows) if self._pads_behind else len(rows) - 1
            if np.array_equal(rows[behind - pads], last[0], equal_nan=True):
                count = min(behind + 1, len(part))
                return rows[behind + 1 - count : behind + 1]
            self._many = False
        return last[:0] if pads else last

    def _pads_at_end(self, part: Sequence[int]) -> int:
        """How many of the last tokens are the padding token, as an end of text may be."""
        pad = self._loaded.pad_id
        return next((i for i, token in enumerate(reversed(part)) if token != pad), len(part))

    def _given(self, generator: Any) -> Rows | None:
        """The rows that came out of what was computed last, those of padding included.

        None where they cannot be had: in a type that numpy lacks, such as bfloat16.
        """
        import numpy as np

        try:
            found = generator.get_output(self._output)
        except (RuntimeError, TypeError, ValueError):
            return None
        if found.ndim != 3 or found.shape[0] != 1:
            return None
        rows: Rows = found[0].astype(np.float32)
        return rows

    def _force(self, ids: Sequence[int], start: int, last: int, file: RowFile) -> None:
        """Rows `start` to `last`, or as many of them as can be forced in one go."""
        generator = self._append(ids[: start + 1], file)
        for position in range(start + 1, last + 1):
            if not self._take(generator, ids[position]):
                return
            self._tell(file.put(position, self._row(generator), FORCED))

    def _continue(
        self,
        generator: Any,
        position: int,
        file: RowFile,
        follows: Sequence[int] | None,
        most: int,
    ) -> list[int]:
        said: list[int] = []
        while len(said) < most:
            token = -1 if follows is None else follows[len(said)]
            if follows is None:
                generator.generate_next_token()
                token = int(generator.get_next_tokens()[0])
            said.append(token)
            if token in self._loaded.eos_ids or len(said) == most:
                break
            if follows is not None and not self._take(generator, token):
                break
            self._tell(file.put(position + len(said) - 1, self._row(generator), FORCED))
        return said

    def _take(self, generator: Any, token: int) -> bool:
        """Have the generator take a token; false for the end of a text, which it does not pass,
        and where there is no room.
        """
        import numpy as np

        if token in self._loaded.eos_ids or generator.token_count() >= self._max_length:
            return False
        only = np.zeros((1, 1, self._width), dtype=np.float32)
        only[..., token] = 1.0
        generator.set_logits(only)
        generator.generate_next_token()
        return True

    def _row(self, generator: Any) -> Rows:
        import numpy as np

        row: Rows = generator.get_logits()[0].astype(np.float32)
        self._width = row.shape[1]
        return row


def pads_behind(config: GenaiConfig) -> bool:
    """Whether prompts are padded behind to whole windows, and not in front."""
    window = config.get(("model", "decoder", "sliding_window"))
    if not isinstance(window, dict) or window.get("slide_inputs") is False:
        return False
    return window.get("alignment") == "left"
