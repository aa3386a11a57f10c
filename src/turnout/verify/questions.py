"""What every route is asked: prompts with their continuations, and a text, as token ids."""

from __future__ import annotations

import contextlib
import json
import random
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from turnout.errors import UsageError
from turnout.runtime import prompt
from turnout.verify.passages import PROMPTS, TEXT

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig
    from turnout.runtime.prompt import Limits

BUILT_IN = "built in"
STDIN = Path("-")
NEW_TOKENS = 32
# Tokens of a text that are read at a time. The second half of them is scored, so that every token
# that counts has at least this many before it, less one half.
CHUNK = 256
# A remainder of a text that is shorter than that says little.
LEAST_CHUNK = 32
TEXT_TOKENS = 4096
RANDOM_LENGTH = 32
MAX_PROMPTS = 1000
MAX_PROMPTS_BYTES = 4 << 20
MAX_TEXT_BYTES = 8 << 20
_SEED = 20_260_822
# Positions inside a prompt that are compared, so that a long one does not fill a disk.
MAX_INSIDE = 512
# Tokens of the long question beside the built-in prompts, of which only what follows the last is
# compared: one prefill and a few tokens. A window or a position embedding that fails beyond what
# chunks and prompts reach shows there.
LONG = 1024
LONG_NEW_TOKENS = 16
# What a continuation may take of a short context.
_SHARE = 4

Kind = Literal["prompt", "random", "text"]


@dataclass(frozen=True)
class Random:
    """So many prompts of made-up tokens, each so long."""

    count: int
    length: int = RANDOM_LENGTH

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_PROMPTS or self.length < 1:
            raise UsageError(
                "Prompts of random tokens are out of range.",
                found=f"{self.count} of {self.length} tokens",
                expected=f"1 to {MAX_PROMPTS} of them, of at least 1 token",
            )


@dataclass(frozen=True)
class Asking:
    """What to ask. Raises `UsageError`.

    `prompts` go through the chat template, unless `raw`; each is continued by `new_tokens` tokens
    at most. `text` is read in chunks, as it is, and at most `text_tokens` tokens of it; None: none
    is read. `prompts_from` and `text_from` say where they come from.
    """

    prompts: tuple[str, ...] = PROMPTS
    random: Random | None = None
    text: str | None = TEXT
    raw: bool = False
    new_tokens: int = NEW_TOKENS
    text_tokens: int = TEXT_TOKENS
    prompts_from: str = BUILT_IN
    text_from: str = BUILT_IN

    @property
    def long(self) -> bool:
        """Whether a long question is asked beside the prompts: it is one of Turnout's own."""
        return self.prompts == PROMPTS

    def __post_init__(self) -> None:
        for name, value in (
            ("--max-new-tokens", self.new_tokens),
            ("--text-tokens", self.text_tokens),
        ):
            if value < 1:
                raise UsageError(
                    "A number of tokens is out of range.",
                    found=f"{name} {value}",
                    expected="1 or more",
                )
        if not self.prompts and self.random is None and self.text is None:
            raise UsageError("There is nothing to ask.", expected="prompts, or a text")
        for said in self.prompts:
            prompt.check_text(said)
        if self.text is not None:
            prompt.check_text(self.text, "text")


@dataclass(frozen=True)
class Question:
    """One sequence of tokens, whose rows from position `first` on are compared.

    `new_tokens`: how many tokens continue it, at most; 0 for a part of a text. `cut`: it was
    longer than the context takes.
    """

    kind: Kind
    ids: tuple[int, ...]
    first: int = 0
    new_tokens: int = 0
    text: str | None = None
    cut: bool = False

    @property
    def most_rows(self) -> int:
        """Rows that it has at most."""
        return len(self.ids) - 1 - self.first + self.new_tokens


@dataclass(frozen=True)
class Room:
    """How many tokens fit: of a prompt, of its continuation, and of a chunk of text."""

    prompt: int
    new: int
    chunk: int


def room(limits: Sequence[Limits], new_tokens: int) -> Room:
    """What fits every one of `limits`. Raises `UsageError` where nothing does."""
    tokens = min(limit.tokens for limit in limits)
    new = min(new_tokens, max(tokens // _SHARE, 1))
    most = min((tokens - new) // limit.window * limit.window for limit in limits)
    if most < 2:
        raise UsageError(
            "The context of this bundle is too short to compare anything.",
            found=f"{tokens} tokens",
            expected="room for a prompt of 2 tokens and one more",
        )
    return Room(most, new, min(CHUNK, most))


@dataclass
class Made:
    """The questions, and lines about how they were made."""

    questions: list[Question] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def prompts(
    made: Made, said: Sequence[tuple[str | None, Sequence[int]]], kind: Kind, fits: Room
) -> None:
    """Add prompts: their text, if they have one, and their tokens.

    What is longer than fits is cut behind. Positions that follow the very tokens that an earlier
    prompt begins with would be compared twice, and are left out where that prompt compares them.
    """
    cut = long = 0
    for text, ids in said:
        kept = tuple(ids[: fits.prompt])
        cut += len(kept) < len(ids)
        shared = _compared_before(kept, made.questions)
        first = max(min(shared, len(kept) - 1), len(kept) - MAX_INSIDE)
        long += first > shared
        made.questions.append(Question(kind, kept, first, fits.new, text, cut=len(kept) < len(ids)))
    if cut:
        made.notes.append(
            f"{cut} of {len(said)} prompts were cut to {fits.prompt} tokens, to fit the context."
        )
    if long:
        made.notes.append(
            f"Of {long} of {len(said)} prompts the last {MAX_INSIDE} positions are compared."
        )


def chunks(made: Made, ids: Sequence[int], begin: Sequence[int], most: int, fits: Room) -> None:
    """Add a text, cut into chunks that each start with `begin`, of at most `most` tokens."""
    if len(ids) > most:
        made.notes.append(
            f"The first {most} of the text's {len(ids)} tokens are read; --text-tokens takes more."
        )
    ids = ids[:most]
    size = max(fits.chunk - len(begin), 2)
    parts = [tuple(ids[at : at + size]) for at in range(0, len(ids), size)]
    if len(parts) > 1 and len(parts[-1]) < min(LEAST_CHUNK, size):
        del parts[-1]
    for part in parts:
        whole = (*begin, *part)
        if len(whole) > 1:
            made.questions.append(Question("text", whole, first=max(len(whole) // 2 - 1, 0)))


def long_prompt(made: Made, ids: Sequence[int], begin: Sequence[int], fits: Room) -> None:
    """Add a long prompt, the text `ids` over and over, if that is longer than a chunk."""
    size = min(fits.prompt, LONG)
    if size <= CHUNK or not ids:
        return
    copies = -(-size // len(ids))
    whole = (*begin, *(list(ids) * copies))[:size]
    new = min(fits.new, LONG_NEW_TOKENS)
    made.questions.append(Question("prompt", whole, first=size - 1, new_tokens=new))


def random_ids(config: GenaiConfig, asked: Random, known: int) -> list[list[int]]:
    """Token ids drawn from the `known` first of the vocabulary, special ones left out.

    The same for the same bundle.
    """
    special = {token for token in prompt.special_ids(config) if isinstance(token, int)}
    plain = [token for token in range(known) if token not in special] or list(range(known))
    drawn = random.Random(_SEED)
    return [drawn.choices(plain, k=asked.length) for _ in range(asked.count)]


def source(path: Path) -> str:
    """What a report calls the file."""
    return "standard input" if path == STDIN else path.name


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts in a file: a JSON list of texts, or one a line. Raises `UsageError`."""
    text = _read(path, MAX_PROMPTS_BYTES, "prompts")
    listed = text.lstrip().startswith("[")
    if listed:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                "The prompts are no JSON.",
                found=str(error)[:200],
                expected="a list of texts, or one prompt a line",
                where=path,
            ) from error
        if not all(isinstance(item, str) for item in found):
            raise UsageError("A prompt is no text.", expected="a list of texts", where=path)
    else:
        found = [line.strip() for line in text.splitlines()]
    kept = {place: item for place, item in enumerate(found, start=1) if item.strip()}
    if not 1 <= len(kept) <= MAX_PROMPTS:
        raise UsageError(
            "The number of prompts is out of range.",
            found=len(kept),
            expected=f"1 to {MAX_PROMPTS}",
            where=path,
        )
    for place, item in kept.items():
        _check(item, "prompt", f"{path}: {'prompt' if listed else 'line'} {place}")
    return tuple(kept.values())


def read_text(path: Path) -> str:
    """The text in a file. Raises `UsageError`."""
    text = _read(path, MAX_TEXT_BYTES, "text")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            _check(line, "text", f"{path}: line {number}")
    return text


def _check(text: str, what: str, where: str) -> None:
    try:
        prompt.check_text(text, what)
    except UsageError as error:
        raise UsageError(error.problem, found=error.facts.get("found"), where=where) from None


def _read(path: Path, limit: int, what: str) -> str:
    try:
        with _opened(path) as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"Cannot read the {what} in {path}.", found=reason, where=path) from error
    if len(data) > limit:
        raise UsageError(
            f"The {what} in {path} are too large.", expected=f"at most {limit} bytes", where=path
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"Cannot read the {what} in {path}.",
            found=str(error),
            expected="UTF-8",
            where=f"{path}: line {line}",
        ) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file, or standard input. What else there is may have no end, and is not opened."""
    if path == STDIN:
        yield sys.stdin.buffer
        return
    if not stat.S_ISREG(path.stat().st_mode):
        raise UsageError(
            f"{path} is no regular file.",
            expected="a file, or - for standard input",
            where=path,
        )
    with path.open("rb") as file:
        yield file


def _compared_before(ids: Sequence[int], others: Sequence[Question]) -> int:
    """Up to which position every one is compared in one of the others, after the same tokens."""
    end = 0
    for first, shared in sorted((other.first, _common(ids, other.ids)) for other in others):
        if first > end:
            break
        end = max(end, shared)
    return end


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
