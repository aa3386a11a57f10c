"""Verifying routes of real bundles: what agrees, what differs, what is asked, what goes wrong."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import psutil
import pytest

import perf_faults
import real_model
import verify_fixtures as fixtures
from bundle_fixtures import build_flat, build_pipeline, write_tokenizer
from session_fixtures import KINDS, TINY, Bundles, edit_json, long_bundle
from staged import Staged, mean_nll
from turnout.building import build
from turnout.bundle import Bundle
from turnout.errors import LoadError, ProcessError, UsageError
from turnout.machine import Inventory
from turnout.perf.report import Failure
from turnout.perf.routeset import Candidate, parse
from turnout.runtime import Session
from turnout.verify import Asking, Plan, Random, tables, thresholds, verifying
from turnout.verify import report as doc
from turnout.verify.lane import Watcher
from turnout.verify.passages import PROMPTS, TEXT
from turnout.verify.questions import CHUNK, MAX_INSIDE, Made, Room, prompts

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")

ONE = parse("config")
TWO = parse("config; ep=cpu")
FEW = ("the cat and the hat", "Hello world", "the cat sat on a mat")
# The others are as one of these, as far as is known.
SOME_KINDS = [
    pytest.param(kind, marks=() if kind in {"flat", "static"} else pytest.mark.slow)
    for kind in KINDS
]
EXACT = thresholds(1e-9, 1.000001, 1.0)


class Heard(Watcher):
    """Keeps the order of what happened."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.rows = self.done = 0

    def begun(self, rows: int) -> None:
        self.rows = rows

    def loading(self, route: str) -> None:
        self.events.append(("loading", route))

    def said(self, route: str, said: dict[str, Any]) -> None:
        if "note" in said:
            self.events.append(("note", route, said["note"]))

    def asking(self, route: str, question: int, of: int) -> None:
        self.events.append((route, question))

    def answered(self, rows: int) -> None:
        self.done += rows

    def failed(self, route: str, failure: Failure, rows: int) -> None:
        self.done += rows
        self.events.append(("failed", route, failure.kind))


@functools.cache
def this_machine() -> Inventory:
    return Inventory.discover()


def verify(bundle: Bundle, routes: Sequence[Candidate], plan: Plan, **how: Any) -> doc.Report:
    """The machine is looked at once for all tests."""
    return verifying.verify(bundle, routes, plan, inventory=this_machine(), **how)


def plan(**changes: Any) -> Plan:
    """Three prompts and no text."""
    asked = {"prompts": FEW, "text": None, "new_tokens": 6, **changes.pop("asked", {})}
    return Plan(Asking(**asked), **changes)


def original(bundles: Bundles, kind: str = "flat", **how: Any) -> Bundle:
    return Bundle.open(bundles(kind, **how))


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_routes_of_one_arithmetic_give_the_very_same_answers(kind: str, bundles: Bundles) -> None:
    routes = parse("config; ep=cpu; name=shared ep=cpu share=auto")
    asked = {"text": TEXT[:600]}
    found = verify(original(bundles, kind), routes, plan(asked=asked, thresholds=EXACT))
    assert found.holds
    for route in found.routes:
        assert (route.verdict, route.reasons, route.error) == ("same", (), None)
        overall, text = route.overall, route.perplexity
        assert overall is not None
        assert text is not None
        assert overall.positions == overall.agreeing > 100
        assert (overall.kl_mean, overall.kl_max) == (0.0, 0.0)
        assert (text.ratio, text.interval) == (1.0, (1.0, 1.0))
        assert all(answer.first_difference is None for answer in route.answers)
        assert all(answer.unread == () for answer in route.answers)


@pytest.mark.slow
def test_what_is_configured_is_verified_against_exact_arithmetic_on_the_cpu(
    bundles: Bundles,
) -> None:
    found = verify(original(bundles, "pipeline"), ONE, plan())
    assert found.reference.requested == "--ep cpu --reproducible"
    assert found.reference.effective == "cpu"
    assert {stage.effective for stage in found.reference.stages} == {"cpu"}
    assert [route.requested for route in found.routes] == ["config"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "static"])
def test_arithmetic_in_eight_bits_differs_from_the_exact_one_by_a_little(
    kind: str, bundles: Bundles, tmp_path: Path
) -> None:
    folder = tmp_path / "level 4"
    build(TINY / "llama-mixed.gguf", folder, accuracy_level=4, **KINDS[kind])
    found = verify(Bundle.open(folder), parse("config; ep=cpu reproducible"), plan())
    rounded, exact = (route.overall for route in found.routes)
    assert rounded is not None
    assert exact is not None
    assert exact.kl_max == 0.0
    assert rounded.kl_mean is not None
    assert 1e-7 < rounded.kl_mean < 0.01


@pytest.fixture
def altered(bundles: Bundles) -> tuple[Bundle, Bundle]:
    """A bundle whose weights are off by 5%, and the one that it was made of."""
    return Bundle.open(fixtures.with_noise(bundles("flat"), 0.05)), original(bundles)


@pytest.mark.slow
def test_a_bundle_that_was_quantized_anew_differs_from_its_original(
    altered: tuple[Bundle, Bundle],
) -> None:
    bundle, before = altered
    asked = {"prompts": PROMPTS, "text": TEXT[:800]}
    (route,) = verify(bundle, ONE, plan(asked=asked, reference_bundle=before)).routes
    assert route.verdict == "differs"
    assert any("mean KL" in reason for reason in route.reasons)
    assert route.overall is not None
    assert route.overall.kl_mean is not None
    assert route.overall.kl_mean > 0.01
    allowed = plan(asked=asked, reference_bundle=before, thresholds=thresholds(9, 9))
    (route,) = verify(bundle, ONE, allowed).routes
    assert (route.verdict, route.reasons) == ("same", ())


def test_the_first_difference_is_where_texts_that_are_generated_freely_part(
    altered: tuple[Bundle, Bundle],
) -> None:
    bundle, before = altered
    asked = {"prompts": PROMPTS, "new_tokens": 16}
    (route,) = verify(bundle, ONE, plan(asked=asked, reference_bundle=before)).routes
    said: list[list[tuple[int, ...]]] = []
    for one in (before, bundle):
        with Session(one) as session:
            options = {"max_new_tokens": 16, "greedy": True, "repetition_penalty": 1.0}
            said.append([session.generate(text, **options).token_ids for text in PROMPTS])
    expected = []
    for theirs, ours in zip(*said, strict=True):
        pairs = enumerate(zip(theirs, ours, strict=False))
        expected.append(next(((i, *pair) for i, pair in pairs if pair[0] != pair[1]), None))
    found = [
        None if d is None else (d.after, d.reference_token, d.token)
        for d in (answer.first_difference for answer in route.answers)
    ]
    assert found == expected
    assert sum(difference is not None for difference in found) >= 4


@pytest.mark.slow
def test_the_margin_is_how_far_the_references_two_best_tokens_are_apart(
    altered: tuple[Bundle, Bundle],
) -> None:
    bundle, before = altered
    report = verify(
        bundle,
        ONE,
        plan(asked={"prompts": PROMPTS, "raw": True, "new_tokens": 16}, reference_bundle=before),
    )
    peer = Staged(before.path)
    with Session(before) as session:
        prompts = [session.encode(text) for text in PROMPTS]
    seen = 0
    for answer in report.routes[0].answers:
        difference = answer.first_difference
        if difference is not None:
            question = report.questions[answer.question]
            common = question.continuation[: difference.after]
            row = peer.logits([*prompts[answer.question], *common])[-1]
            second, best = sorted(row)[-2:]
            assert difference.margin == pytest.approx(best - second, abs=1e-3)
            assert int(row.argmax()) == difference.reference_token
            seen += 1
    assert seen


@pytest.mark.slow
def test_figures_can_be_worked_out_again_from_what_is_kept_of_positions(
    altered: tuple[Bundle, Bundle],
) -> None:
    bundle, before = altered
    asked = {"prompts": PROMPTS, "text": TEXT[:800]}
    report = verify(bundle, ONE, plan(asked=asked, reference_bundle=before))
    (route,) = report.routes
    kl = [value for answer in route.answers for value in answer.kl if value is not None]
    assert route.overall is not None
    assert len(kl) == route.overall.positions
    assert np.mean(kl) == pytest.approx(route.overall.kl_mean)
    assert np.quantile(kl, 0.99) == pytest.approx(route.overall.kl_p99)
    differing = sum(len(answer.differing) for answer in route.answers)
    assert route.overall.positions - differing == route.overall.agreeing
    ours = [value for answer in route.answers for value in answer.nll]
    theirs = [value for answer in route.answers for value in answer.reference_nll]
    assert route.perplexity is not None
    assert np.exp(np.mean(ours)) == pytest.approx(route.perplexity.route)
    assert np.exp(np.mean(theirs)) == pytest.approx(route.perplexity.reference)
    parts = (route.prompts, route.continuations, route.text)
    assert sum(part.positions for part in parts if part is not None) == route.overall.positions


def test_perplexity_is_that_of_plain_onnxruntime(bundles: Bundles) -> None:
    bundle = original(bundles)
    asked = {"prompts": (), "text": TEXT[:150]}
    report = verify(bundle, ONE, plan(asked=asked))
    with Session(bundle) as session:
        ids = session.encode(TEXT[:150])
    (question,) = report.questions
    assert question.tokens == len(ids) < CHUNK
    # The second half is scored.
    assert question.first == len(ids) // 2 - 1
    logits = Staged(bundle.path).logits(ids)
    expected = mean_nll(logits[question.first :], ids[question.first :])
    perplexity = report.routes[0].perplexity
    assert perplexity is not None
    assert perplexity.tokens == len(ids) - 1 - question.first
    assert perplexity.reference == pytest.approx(np.exp(expected), rel=1e-4)


@pytest.mark.parametrize(
    "number", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.slow)]
)
def test_logits_that_are_no_numbers_never_pass(number: float, bundles: Bundles) -> None:
    broken = Bundle.open(fixtures.with_a_wrong_number(bundles("flat"), 9, number))
    lenient = plan(reference_bundle=original(bundles), thresholds=thresholds(9, 9))
    report = verify(broken, ONE, lenient)
    (route,) = report.routes
    assert route.verdict == "differs"
    assert route.overall is not None
    assert route.overall.not_finite == route.overall.positions > 0
    assert route.reasons == (f"its logits are no numbers at {route.overall.positions} positions",)
    assert route.overall.kl_mean is None
    assert all(value is None for answer in route.answers for value in answer.kl)
    assert b"NaN" not in doc.encode(report)
    # Nor does anything beside a reference of that kind.
    other = plan(reference_bundle=broken, thresholds=thresholds(9, 9))
    report = verify(original(bundles), ONE, other)
    assert report.routes[0].verdict == "differs"
    assert report.reference.not_finite > 0
    assert "the reference's logits" in report.routes[0].reasons[0]


@pytest.mark.parametrize("kind", [pytest.param("flat", marks=pytest.mark.slow), "pipeline"])
def test_a_short_context_is_kept_to_and_that_is_said(kind: str, tmp_path: Path) -> None:
    """Of 64 tokens, a byte each: neither prompts nor continuations fit."""
    made = build_flat if kind == "flat" else build_pipeline
    report = verify(Bundle.open(made(tmp_path / "short")), ONE, Plan())
    assert report.holds
    assert report.notes == (
        "Continuations are 16 tokens long at most, to fit the context.",
        "8 of 8 prompts were cut to 48 tokens, to fit the context.",
    )
    assert all(question.cut == (question.kind == "prompt") for question in report.questions)
    assert max(question.tokens for question in report.questions) == 48


def test_a_static_context_takes_whole_windows(bundles: Bundles) -> None:
    long = "the cat and the hat " * 40
    report = verify(original(bundles, "static"), ONE, plan(asked={"prompts": (long,)}))
    assert report.holds
    # 256 tokens less 6 new ones, in windows of 16.
    assert [question.tokens for question in report.questions] == [240]


def test_a_context_without_room_is_refused(tmp_path: Path) -> None:
    folder = build_flat(tmp_path / "none", model={"context_length": 2})
    edit_json(folder / "genai_config.json", lambda c: c["search"].update(max_length=2))
    with pytest.raises(UsageError, match="too short to compare anything"):
        verify(Bundle.open(folder), ONE, Plan())


def test_positions_that_prompts_begin_with_alike_are_compared_once(bundles: Bundles) -> None:
    asked = {"prompts": ("the cat sat", "the cat ran", "the cat sat"), "raw": True}
    bundle = original(bundles)
    report = verify(bundle, ONE, plan(asked=asked))
    with Session(bundle) as session:
        one, other = session.encode("the cat sat"), session.encode("the cat ran")
    alike = next(i for i in range(len(one)) if one[i] != other[i])
    assert [question.first for question in report.questions] == [0, alike, len(one) - 1]


@pytest.mark.slow
def test_of_a_long_prompt_the_last_positions_are_compared(tmp_path: Path) -> None:
    folder = long_bundle(tmp_path, "flat")
    fixtures.with_every_position(folder)
    text = "the cat " * 500
    report = verify(Bundle.open(folder), ONE, plan(asked={"prompts": (text,)}))
    (question,) = report.questions
    assert question.tokens - question.first == MAX_INSIDE
    assert report.notes == ("Of 1 of 1 prompts the last 512 positions are compared.",)
    assert report.holds


def test_nonsense_beyond_a_few_hundred_tokens_is_found(tmp_path: Path) -> None:
    before = long_bundle(tmp_path, "flat")
    broken = shutil.copytree(before, tmp_path / "broken")
    fixtures.with_nonsense_beyond(broken, 512)
    asked = {"prompts": PROMPTS, "new_tokens": 2}
    allowed = plan(asked=asked, reference_bundle=Bundle.open(before))
    report = verify(Bundle.open(broken), ONE, allowed)
    (route,) = report.routes
    assert route.verdict == "differs"
    assert [bool(answer.differing) for answer in route.answers] == [False] * 8 + [True]
    last = report.questions[-1]
    assert (last.kind, last.tokens, last.first) == ("prompt", 1024, 1023)
    assert "Nothing beyond 1025 tokens was asked." in tables.notes(report)
    # Without it, nobody would know.
    report = verify(
        Bundle.open(broken),
        ONE,
        replace(allowed, asked=replace(allowed.asked, prompts=PROMPTS[:2])),
    )
    assert report.holds


def test_positions_of_a_prompt_that_are_compared_nowhere_are_not_left_out() -> None:
    """The first of these compares its last 512 positions, so that nobody has the others."""
    made, fits = Made(), Room(prompt=1000, new=4, chunk=256)
    long = list(range(600))
    prompts(made, [(None, long), (None, [*long[:300], 7]), (None, long[:200])], "prompt", fits)
    # Positions 0 to 87 are the second's own; the third has nothing that is not in it.
    assert [question.first for question in made.questions] == [88, 0, 199]


@pytest.mark.slow
def test_random_prompts_are_the_same_each_time_and_hold_no_special_token(
    bundles: Bundles,
) -> None:
    asked = {"prompts": (), "random": Random(3, 9)}
    reports = [verify(original(bundles), ONE, plan(asked=asked)) for _ in range(2)]
    one, other = (tuple(q.token_ids_sha256 for q in report.questions) for report in reports)
    assert one == other
    assert len(set(one)) == 3
    assert [question.kind for question in reports[0].questions] == ["random"] * 3
    assert {question.tokens for question in reports[0].questions} == {9}


@pytest.mark.slow
def test_a_text_is_read_in_chunks_and_only_so_far(bundles: Bundles) -> None:
    asked = {"prompts": (), "text": TEXT, "text_tokens": 300}
    report = verify(original(bundles), ONE, plan(asked=asked))
    # A context of 256 leaves 250 beside 6 new tokens, whether or not there are any.
    assert [question.tokens for question in report.questions] == [250, 50]
    assert report.notes[0].startswith("The first 300 of the text's ")
    assert "--text-tokens" in report.notes[0]


@pytest.mark.slow
def test_what_the_reference_answered_is_kept_for_the_next_route(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = parse("config; ep=cpu; name=again config")
    reports, asked = [], []
    for kept in (verifying.KEPT_BYTES, 0):
        monkeypatch.setattr(verifying, "KEPT_BYTES", kept)
        heard = Heard()
        reports.append(verify(original(bundles), three, plan(), watcher=heard))
        asked.append(Counter(event[0] for event in heard.events if event[0] == "reference"))
        assert heard.done >= heard.rows
    assert asked == [{"reference": 3}, {"reference": 9}]
    assert reports[0].routes == reports[1].routes


def test_the_tokenizers_own_tokens_have_a_probability_and_padding_has_none(
    bundles: Bundles,
) -> None:
    folder = bundles("flat")
    known = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    ids = [*known["model"]["vocab"].values(), *(item["id"] for item in known["added_tokens"])]
    report = verify(Bundle.open(folder), ONE, plan())
    assert report.settings.vocabulary == 320
    assert report.settings.known_tokens == max(ids) + 1


def test_a_reference_of_another_vocabulary_is_refused(bundles: Bundles, tmp_path: Path) -> None:
    other = Bundle.open(build_flat(tmp_path / "other"))
    with pytest.raises(UsageError, match="different vocabularies"):
        verify(original(bundles), ONE, plan(reference_bundle=other))


def test_a_reference_that_makes_other_tokens_is_refused(tmp_path: Path) -> None:
    bundle = Bundle.open(build_flat(tmp_path / "one"))
    shutil.copytree(bundle.path, tmp_path / "other")
    write_tokenizer(tmp_path / "other", chat_template="{{ messages[0]['content'] }}")
    other = Bundle.open(tmp_path / "other")
    with pytest.raises(UsageError, match="different tokens of the same text"):
        verify(bundle, ONE, plan(reference_bundle=other))


def test_tokenizers_are_compared_where_no_text_is_asked_too(tmp_path: Path) -> None:
    bundle = Bundle.open(build_flat(tmp_path / "one"))
    other = Bundle.open(shutil.copytree(bundle.path, tmp_path / "other"))
    asked = {"prompts": (), "random": Random(1, 4), "new_tokens": 2}
    verify(bundle, ONE, plan(asked=asked, reference_bundle=other))

    def swap(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    edit_json(other.path / "tokenizer.json", swap)
    with pytest.raises(UsageError, match="different tokens of the same text"):
        verify(bundle, ONE, plan(asked=asked, reference_bundle=Bundle.open(other.path)))


def test_a_text_of_one_token_decides_nothing_and_that_is_said(bundles: Bundles) -> None:
    asked = {"prompts": FEW[:1], "text": "a"}
    report = verify(original(bundles), ONE, plan(asked=asked))
    assert report.holds
    (note,) = (note for note in report.notes if "too short" in note)
    assert "scored" in note
    (route,) = verify(original(bundles), ONE, plan(asked=asked, judge_text=True)).routes
    assert route.verdict == "differs"
    assert "too short to judge" in route.reasons[0]


def served_by(fault: type) -> dict[str, str]:
    """The route ep=cpu goes wrong in that way."""
    return {"ep=cpu": f"{fault.__module__}:{fault.__name__}"}


@posix
@pytest.mark.parametrize(
    ("fault", "kind", "during", "problem"),
    [
        (fixtures.Crashing, "crashed", "question 3 of 3", "crashed (SIGSEGV)"),
        pytest.param(
            fixtures.Hanging,
            "hung",
            "question 3 of 3",
            "did not answer within 10 s",
            marks=pytest.mark.slow,
        ),
        (fixtures.Failing, "crashed", "question 1 of 3", "a defect of Turnout"),
    ],
)
def test_a_route_that_goes_wrong_is_a_row_and_the_others_are_verified(
    fault: type, kind: str, during: str, problem: str, bundles: Bundles
) -> None:
    heard = Heard()
    report = verify(
        original(bundles),
        parse("ep=cpu; config"),
        plan(time_limit_s=10),
        watcher=heard,
        serving=served_by(fault),
    )
    failed, other = report.routes
    assert not report.holds
    assert failed.verdict is None
    assert failed.error is not None
    assert (failed.error.kind, failed.error.during) == (kind, during)
    assert problem in failed.error.problem
    assert len(failed.answers) == (0 if kind == "crashed" and "1 of" in during else 2)
    assert (other.verdict, len(other.answers)) == ("same", 3)
    assert ("failed", "ep=cpu", kind) in heard.events
    assert heard.done == heard.rows


def test_a_route_that_does_not_load_is_a_row(bundles: Bundles) -> None:
    serving = served_by(perf_faults.Refusing)
    report = verify(original(bundles), parse("ep=cpu; config"), plan(), serving=serving)
    failed, other = report.routes
    assert failed.error is not None
    assert (failed.error.kind, failed.error.during) == ("failed", "loading")
    assert failed.error.facts == {"found": "no weights", "fix": "bring some"}
    assert failed.overall is None
    assert other.verdict == "same"


def test_a_route_that_this_machine_lacks_is_a_row(bundles: Bundles) -> None:
    routes = parse("device=npu; config")
    report = verify(original(bundles), routes, plan())
    failed, other = report.routes
    assert failed.error is not None
    assert (failed.error.kind, failed.error.during) == ("unavailable", "the decision")
    assert failed.effective == "nothing"
    assert other.verdict == "same"


@pytest.mark.slow
def test_an_error_of_the_reference_is_that_of_the_call(bundles: Bundles) -> None:
    broken = bundles("flat")
    (broken / "model.data").write_bytes(b"")
    with pytest.raises(LoadError):
        verify(Bundle.open(broken), ONE, plan())
    with pytest.raises(ProcessError, match="crashed"):
        verify(
            original(bundles),
            ONE,
            plan(),
            serving={"reference": f"{fixtures.__name__}:Crashing"},
        )


@posix
def test_routes_that_were_verified_stay_where_the_reference_fails_later(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is asked its three questions again for the second route, and crashes at the fifth.
    monkeypatch.setattr(verifying, "KEPT_BYTES", 0)
    serving = {"reference": f"{fixtures.__name__}:CrashingLate"}
    routes = parse("config; ep=cpu; name=third config")
    report = verify(original(bundles), routes, plan(), serving=serving)
    assert [route.verdict for route in report.routes] == ["same", None, None]
    errors = [route.error for route in report.routes[1:]]
    assert [(error.kind, error.during) for error in errors if error is not None] == [
        ("crashed", "the reference's part in question 2 of 3"),
        ("crashed", "the reference's part in an earlier route"),
    ]
    assert not report.interrupted
    assert not report.holds


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@posix
def test_after_an_interrupt_neither_processes_nor_files_are_left(
    bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    bundle, before = original(bundles), children()
    beside = fixtures.files_near(bundle.path)
    faulty = served_by(fixtures.Interrupting)
    with pytest.raises(KeyboardInterrupt):
        verify(bundle, parse("ep=cpu; config"), plan(), serving=faulty)
    assert children() == before
    # A route that was verified before is kept.
    report = verify(bundle, parse("config; ep=cpu; name=third ep=cpu"), plan(), serving=faulty)
    assert report.interrupted
    assert not report.holds
    one, two, three = report.routes
    assert (one.verdict, one.error, len(one.answers)) == ("same", None, 3)
    assert all(q.continuation_text for q in report.questions)
    assert two.error is not None
    assert (two.error.during, two.error.problem) == ("question 3 of 3", "The run was ended early.")
    assert three.error is not None
    assert three.error.during == "an earlier route"
    assert children() == before
    assert list(temporary.iterdir()) == []
    assert fixtures.files_near(bundle.path) == beside


def test_nothing_is_left_on_disk_and_the_bundle_is_as_it_was(
    bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    bundle = original(bundles, "pipeline")
    before = {path: path.read_bytes() for path in bundle.path.iterdir()}
    beside = fixtures.files_near(bundle.path)
    verify(bundle, ONE, plan())
    assert list(temporary.iterdir()) == []
    assert fixtures.files_near(bundle.path) == beside
    assert {path: path.read_bytes() for path in before} == before


def test_a_report_is_read_back_as_it_was_written_and_fits_its_schema(
    bundles: Bundles, tmp_path: Path
) -> None:
    report = verify(original(bundles), ONE, plan(asked={"text": TEXT[:400]}))
    path = tmp_path / "verify.json"
    path.write_bytes(doc.encode(report))
    assert doc.read(path) == report
    jsonschema.Draft202012Validator(doc.schema()).validate(json.loads(path.read_bytes()))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"document": "turnout perf report", "schema_version": 1}', "not a valid document"),
        ('{"document": "turnout verify report", "schema_version": 99}', "a version that"),
        ("{", "not a valid document"),
    ],
)
def test_what_is_no_report_is_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "verify.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        doc.read(path)


@pytest.mark.openvino
@pytest.mark.parametrize("kind", KINDS)
def test_openvino_in_exact_arithmetic_gives_the_same_answers(kind: str, bundles: Bundles) -> None:
    routes = parse("ep=openvino reproducible; name=compiled ep=openvino reproducible compile")
    tight = plan(thresholds=thresholds(1e-6, 1.0001, 0.99))
    report = verify(original(bundles, kind, model="llama-mixed"), routes, tight)
    assert [route.reasons for route in report.routes] == [(), ()]
    assert [route.effective for route in report.routes] == ["openvino"] * 2
    overall = report.routes[0].overall
    assert overall is not None
    assert overall.kl_max is not None
    assert overall.kl_max < 1e-6


@pytest.mark.openvino
def test_openvinos_dynamic_quantization_is_seen(bundles: Bundles) -> None:
    how = '{"CPU":{"INFERENCE_PRECISION_HINT":"f32","DYNAMIC_QUANTIZATION_GROUP_SIZE":"%s"}}'
    routes = parse(
        "; ".join(
            f"name=groups-{size} ep=openvino provider-option 'load_config={how % size}'"
            for size in (0, 32)
        )
    )
    tight = plan(thresholds=thresholds(1e-6, 9))
    report = verify(original(bundles, "pipeline", model="llama-mixed"), routes, tight)
    assert [route.verdict for route in report.routes] == ["same", "differs"]
    assert "mean KL" in report.routes[1].reasons[0]


@pytest.mark.slow
@pytest.mark.openvino
@pytest.mark.xdist_group("smollm2")
def test_on_a_real_model_exact_routes_and_rounding_ones_are_told_apart(tmp_path: Path) -> None:
    """Static windows give out whole prompts, which makes exact arithmetic bearable."""
    folder = tmp_path / "static"
    build(real_model.smollm2(), folder, static_prefill=64, context_length=512)
    routes = parse("config; ep=openvino; ep=openvino reproducible; ep=cpu reproducible")
    asked = {"prompts": PROMPTS[:3], "new_tokens": 8, "text": TEXT}
    bundle = Bundle.open(folder)
    report = verify(bundle, routes, Plan(Asking(**asked)))
    rounded, dynamic, exact, same = report.routes
    assert report.holds
    for route in (rounded, dynamic):
        assert route.overall is not None
        assert route.overall.kl_mean is not None
        assert 1e-4 < route.overall.kl_mean < 0.01
        assert route.perplexity is not None
        assert route.perplexity.interval is not None
        assert route.perplexity.interval[0] < 1.02
        assert route.perplexity.interval[1] > 0.99
    assert exact.overall is not None
    assert exact.overall.kl_max is not None
    assert exact.overall.kl_max < 1e-8
    assert same.overall is not None
    assert same.overall.kl_max == 0.0
    reads = [answer.read for answer in report.routes[0].answers]
    assert sum(read.prompt for read in reads) > 10 * sum(read.forced for read in reads)
