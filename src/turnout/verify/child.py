"""The process of one route: loads a session once, and writes the logits that it is asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.perf import child
from turnout.runtime import failures
from turnout.verify.rows import Reader, RowFile

if TYPE_CHECKING:
    from turnout.processes import Heard

SERVING = f"{__name__}:Serving"
TELL_EVERY_S = 0.25


class Serving(child.Serving):
    """Loads as a route that is measured does, and answers questions of these kinds as well.

    - "encode": texts ("said"), "raw" or not -> token "ids" of each, "notes", and what every text
      of the bundle begins with ("begin": one token, or none).
    - "decode": lists of token ids ("ids") -> the "text" of each, as it is in the middle of a text.
    - "read": token "ids", the "first" position, a "file" to write rows to; "follows" is a
      continuation, null for the model's own of at most "most" tokens (0 for none) -> that
      continuation, the rows' "width", and their "ways", a letter a row (`rows.Way`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._reader: Reader | None = None
        self._told = _Counter()

    def __call__(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        """The answer, as plain data."""
        answers = {"encode": self._encode, "decode": self._decode, "read": self._read}
        answer = answers.get(question["do"])
        return answer(question, tell) if answer is not None else super().__call__(question, tell)

    def _encode(self, question: Mapping[str, Any], _tell: Heard) -> dict[str, Any]:
        from turnout.runtime.prompt import check_padding

        loaded = self._loaded().loaded
        ids: list[list[int]] = []
        notes: list[str] = []
        for said in question["said"]:
            worded = loaded.codec.word(said, system=None, raw=question["raw"])
            found = loaded.codec.encode(worded.text or "")
            check_padding(found, loaded.pad_id, loaded.limits)
            ids.append(found)
            notes += worded.notes
        begin = loaded.codec.encode("")
        return {"ids": ids, "notes": list(dict.fromkeys(notes)), "begin": begin}

    def _decode(self, question: Mapping[str, Any], _tell: Heard) -> dict[str, Any]:
        return {"text": [self._text(ids) for ids in question["ids"]]}

    def _text(self, ids: Sequence[int]) -> str:
        decoder = self._loaded().loaded.codec.decoder(whole_text=False)
        return "".join([*(decoder.push(token) for token in ids), decoder.flush()])

    def _read(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        loaded = self._loaded().loaded
        if self._reader is None:
            self._reader = Reader(loaded, self._told)
        self._told.tell = tell
        file = RowFile(Path(question["file"]), question["first"])
        ids, most = question["ids"], question["most"]
        said: list[int] = []
        try:
            if most:
                said = self._reader.prompt(ids, file, follows=question["follows"], most=most)
            else:
                self._reader.text(ids, file)
        except RuntimeError as error:
            raise failures.failed_run(str(error), "computing logits", loaded.config) from None
        finally:
            file.close()
        return {"follows": said, "width": file.width, "ways": file.ways_in_order()}

    def _close(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        self._reader = None
        return super()._close(question, tell)


class _Counter:
    """Says now and then how many rows there are."""

    def __init__(self) -> None:
        self.tell: Heard | None = None
        self._rows = 0
        self._at = time.perf_counter()

    def __call__(self, rows: int) -> None:
        self._rows += rows
        now = time.perf_counter()
        if self.tell is not None and now - self._at >= TELL_EVERY_S:
            self.tell({"rows": self._rows})
            self._rows, self._at = 0, now
