"""Verifying routes: each is asked what the reference is asked, and their logits are compared.

verify(Bundle.open("smollm2"), parse("config; ep=openvino"), Plan())

The reference and one route are loaded at a time, each in a process of its own. Logits go through
files, question by question.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.errors import BundleError, TurnoutError, UsageError
from turnout.perf.environment import environment, identity
from turnout.perf.lane import failure
from turnout.perf.report import Failure
from turnout.verify import questions as asking
from turnout.verify.distributions import chunks_of, compare
from turnout.verify.lane import Lane, Rows, Watcher
from turnout.verify.passages import PROMPTS, TEXT
from turnout.verify.questions import Made
from turnout.verify.run import Answered, Encoded, Outcome, Run

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.machine import Inventory
    from turnout.perf.routeset import Candidate
    from turnout.verify.distributions import Chunk
    from turnout.verify.plan import Plan
    from turnout.verify.report import Report

# Rows of both routes that are compared at a time.
CHUNK_ROWS = 64
# Rows of the reference that are kept for the next route, rather than computed again.
KEPT_BYTES = 2 << 30


def verify(
    bundle: Bundle,
    candidates: Sequence[Candidate],
    plan: Plan,
    *,
    watcher: Watcher | None = None,
    command: Sequence[str] = (),
    inventory: Inventory | None = None,
    serving: Mapping[str, str] | None = None,
) -> Report:
    """The report on every candidate beside the reference.

    A route that cannot be loaded, or fails, is a row with its reason, and the others go on. An
    error of the reference, or `KeyboardInterrupt`, ends it: the report has the routes that were
    verified, and the others as rows that failed; where there is none, it is raised. There is at
    least one candidate. `inventory` None looks at
    this machine. `serving` says what serves in the process of a route, by its name, if not
    `child.SERVING`: a test's own. Raises `UsageError` for a route that the bundle cannot have, or
    a reference of other tokens, `BundleError`, `LoadError` and `GenerationError`.
    """
    from turnout.compiling import scratch
    from turnout.machine import Inventory
    from turnout.verify.results import report

    inventory = inventory or Inventory.discover()
    lanes = _lanes_of(bundle, candidates, plan, watcher or Watcher())
    for lane in lanes:
        lane.serving = (serving or {}).get(lane.name, lane.serving)
    run = _prepared(lanes, plan, inventory, tuple(command))
    with scratch(bundle, links=False) as folder, contextlib.ExitStack() as held:
        held.enter_context(run.reference.loaded(folder))
        run.made = _questions(run)
        rows = sum(question.most_rows for question in run.made.questions)
        run.reference.watcher.begun(rows * (1 + sum(o.failure is None for o in run.outcomes)))
        _go(run, folder)
    return report(run)


def _go(run: Run, folder: Path) -> None:
    """Ask every route; those that were asked stay, whatever ends it then."""
    left = [outcome for outcome in run.outcomes if outcome.failure is None]
    kept, whole = _Kept(run, folder), len(left)
    try:
        while left:
            _take(run, left[0], kept, folder, last=len(left) == 1)
            del left[0]
            _name_tokens(run)
    except UsageError:
        raise
    except (KeyboardInterrupt, TurnoutError) as error:
        if len(left) == whole:
            raise
        run.interrupted = isinstance(error, KeyboardInterrupt)
        _leave(run, left, error)


def _leave(run: Run, left: Sequence[Outcome], error: KeyboardInterrupt | TurnoutError) -> None:
    """Say of routes that were not asked, or not everything, why."""
    for outcome in left:
        asked = f"question {len(outcome.answers) + 1} of {len(run.made.questions)}"
        during = asked if outcome is left[0] else "an earlier route"
        if isinstance(error, TurnoutError):
            outcome.failure = failure(error, f"the reference's part in {during}")
        else:
            outcome.failure = Failure(
                kind="interrupted", during=during, problem="The run was ended early.", facts={}
            )


def _lanes_of(
    bundle: Bundle, candidates: Sequence[Candidate], plan: Plan, watcher: Watcher
) -> list[Lane]:
    """The reference's, and one a candidate."""
    others = [(candidate, bundle) for candidate in candidates]
    return [
        Lane(candidate, of, watcher, plan.time_limit_s, plan.allow_native_code)
        for candidate, of in [(plan.reference, plan.reference_bundle or bundle), *others]
    ]


def _prepared(
    lanes: Sequence[Lane], plan: Plan, inventory: Inventory, command: tuple[str, ...]
) -> Run:
    reference, *routes = lanes
    bundle = routes[0].bundle
    reference.decide(inventory)
    return Run(
        bundle=bundle,
        plan=plan,
        command=command,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=environment(inventory),
        identity=identity(bundle),
        reference_identity=identity(reference.bundle) if plan.reference_bundle else None,
        reference=reference,
        outcomes=[_decided(lane, inventory) for lane in routes],
        known=_known_tokens(bundle, reference.bundle),
    )


def _decided(lane: Lane, inventory: Inventory) -> Outcome:
    """What the machine lacks is the failure of that route, and not of the call."""
    from turnout.errors import MachineError

    try:
        lane.decide(inventory)
    except MachineError as error:
        return Outcome(lane, failure=failure(error, "the decision"))
    return Outcome(lane)


def _known_tokens(bundle: Bundle, other: Bundle) -> int:
    """How many tokens the tokenizer has; the graph's where its files do not tell.

    Raises `UsageError` for two bundles whose vocabularies are not of one size.
    """
    from turnout.checking.vocabulary import read_vocabulary

    size, others = (one.config.get(("model", "vocab_size")) for one in (bundle, other))
    if size != others:
        raise UsageError(
            "The two bundles have different vocabularies.",
            found=f"{others} tokens in {other.path}",
            expected=f"{size}, as in {bundle.path}",
            fix="compare with a bundle of the same model",
        )
    if not isinstance(size, int) or size < 1:
        raise BundleError(
            "The config does not say how many tokens there are.",
            expected="a number",
            where=f"{bundle.path / 'genai_config.json'}: model.vocab_size",
        )
    try:
        found = read_vocabulary(bundle.tokenizer_folder / "tokenizer.json")
    except (OSError, ValueError):
        return size
    ids = [*found.pieces.values(), *found.added.values()]
    return min(max(ids, default=size - 1) + 1, size)


def _questions(run: Run) -> Made:
    """What is asked, as the reference's tokenizer has it."""
    from turnout.runtime import prompt

    asked, made = run.plan.asked, Made()
    limits = [prompt.limits(lane.bundle.config) for lane in _lanes(run)]
    fits = asking.room(limits, asked.new_tokens)
    if fits.new < asked.new_tokens:
        made.notes.append(f"Continuations are {fits.new} tokens long at most, to fit the context.")
    if asked.prompts:
        found = _encode(run, asked.prompts, raw=asked.raw)
        made.notes += found["notes"]
        asking.prompts(made, list(zip(asked.prompts, found["ids"], strict=True)), "prompt", fits)
    if asked.random is not None:
        drawn = asking.random_ids(run.bundle.config, asked.random, run.known)
        asking.prompts(made, [(None, ids) for ids in drawn], "random", fits)
    if asked.text is not None:
        found = _encode(run, (asked.text,), raw=True)
        begin = found["begin"]
        asking.chunks(made, found["ids"][0][len(begin) :], begin, asked.text_tokens, fits)
    if asked.long:
        found = _encode(run, (TEXT,), raw=True)
        begin = found["begin"]
        asking.long_prompt(made, found["ids"][0][len(begin) :], begin, fits)
    if run.reference_identity is not None:
        # Whatever is asked, tokenizers are compared: token ids alone show nothing of them.
        _encode(run, (TEXT, *PROMPTS), raw=True)
    return made


def _encode(run: Run, said: tuple[str, ...], *, raw: bool) -> dict[str, Any]:
    found = run.reference.encode(said, raw=raw)
    run.encoded.append(Encoded(said, raw, found["ids"]))
    return found


def _lanes(run: Run) -> list[Lane]:
    return [run.reference, *(outcome.lane for outcome in run.outcomes)]


class _Kept:
    """Rows of the reference, computed when they are first asked for."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self._folder = run, folder
        self._rows: dict[int, Rows] = {}

    def rows(self, index: int) -> Rows:
        """The rows of that question."""
        if index in self._rows:
            return self._rows[index]
        run = self._run
        question, watcher = run.made.questions[index], run.reference.watcher
        watcher.asking(run.reference.name, index, len(run.made.questions))
        path = self._folder / f"reference-{index}.rows"
        follows = run.continuations.get(index)
        found = run.reference.read(question, path, follows)
        run.continuations[index] = found.follows
        self._rows[index] = found
        watcher.answered(question.most_rows)
        return found

    def let_go(self, index: int, *, last: bool) -> None:
        """They were compared; they stay for the next route, if there is one, and room."""
        if last or sum(rows.nbytes for rows in self._rows.values()) > KEPT_BYTES:
            self._rows.pop(index).remove()


def _take(run: Run, outcome: Outcome, kept: _Kept, folder: Path, *, last: bool) -> None:
    """Ask a route everything, and compare; `last`: no other route will be asked."""
    lane, questions = outcome.lane, run.made.questions
    left = sum(question.most_rows for question in questions)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lane.loaded(folder))
            other = [lane.encode(texts.said, raw=texts.raw)["ids"] for texts in _to_check(run)]
        except TurnoutError as error:
            _fail(outcome, error, "loading", left)
            return
        _check_tokens(run, other)
        for index, question in enumerate(questions):
            # Its errors are not those of the route.
            reference = kept.rows(index)
            lane.watcher.asking(lane.name, index, len(questions))
            try:
                outcome.answers.append(_answered(run, lane, index, reference, folder))
            except TurnoutError as error:
                _fail(outcome, error, f"question {index + 1} of {len(questions)}", left)
                return
            kept.let_go(index, last=last)
            left -= question.most_rows
            lane.watcher.answered(question.most_rows)


def _fail(outcome: Outcome, error: TurnoutError, during: str, rows: int) -> None:
    outcome.failure = failure(error, during)
    outcome.lane.watcher.failed(outcome.lane.name, outcome.failure, rows)


def _to_check(run: Run) -> Sequence[Encoded]:
    """What a route's own tokenizer has to take for the same tokens: another bundle's reference."""
    return run.encoded if run.reference_identity is not None else ()


def _check_tokens(run: Run, found: Sequence[list[list[int]]]) -> None:
    if found != [texts.ids for texts in _to_check(run)]:
        raise UsageError(
            "The two bundles make different tokens of the same text.",
            where=run.reference.bundle.path,
            fix="compare with a bundle of the same model, tokenizer and chat template",
        )


def _answered(run: Run, lane: Lane, index: int, reference: Rows, folder: Path) -> Answered:
    question, follows = run.made.questions[index], run.continuations[index]
    path = folder / "route.rows"
    try:
        rows = lane.read(question, path, follows if question.new_tokens else None)
        if rows.width != reference.width:
            raise UsageError(
                "The two bundles have different vocabularies.",
                found=f"logits of {rows.width} tokens",
                expected=f"{reference.width}, as the reference has",
            )
        sequence = (*question.ids, *follows)
        positions = tuple(
            position
            for position in range(question.first, len(sequence) - 1)
            if reference.has(position) and rows.has(position)
        )
        compared = compare(_chunks(reference, rows, positions, sequence), run.known)
    finally:
        path.unlink(missing_ok=True)
    return Answered(index, reference, rows, positions, compared)


def _chunks(
    reference: Rows, rows: Rows, positions: Sequence[int], sequence: Sequence[int]
) -> Iterator[Chunk]:
    import numpy as np

    for part in chunks_of(len(positions), CHUNK_ROWS):
        chosen = positions[part]
        follows = np.array([sequence[position + 1] for position in chosen], dtype=np.int64)
        yield reference.read(chosen), rows.read(chosen), follows


def _name_tokens(run: Run) -> None:
    """How continuations and the tokens of differences read."""
    from turnout.verify.results import first_difference

    wanted = {(*follows,) for follows in run.continuations.values() if follows}
    for outcome in run.outcomes:
        for answer in outcome.answers:
            found = first_difference(run, answer)
            if found is not None:
                wanted |= {(found.reference_token,), (found.token,)}
    ordered = sorted(wanted)
    run.texts = dict(zip(ordered, run.reference.decode(ordered), strict=True))
