"""Logits out of the runtime's own generator, beside plain onnxruntime and a float32 reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import verify_fixtures as fixtures
from bundle_fixtures import build_flat
from session_fixtures import KINDS, TINY, Bundles, set_eos
from staged import Staged
from turnout.errors import WriteError
from turnout.runtime import Session
from turnout.runtime.generation import create_generator
from turnout.verify.rows import Reader, RowFile

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")

MODELS = {m["file"]: m for m in json.loads((TINY / "tiny.json").read_text("utf-8"))["models"]}
# What rounding leaves of products in another order.
NEAR = 2e-4


@pytest.fixture(scope="module")
def peer(bundles: Bundles) -> Staged:
    """The flat bundle through plain onnxruntime: every prefix computed for itself."""
    return Staged(bundles("flat"))


def tokens(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(10, 300, count).tolist()


class Reading:
    """A reader of a loaded bundle, each time into a file of its own."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.told: list[int] = []
        self.reader = Reader(session.loaded, self.told.append)
        self._path = folder / "rows"

    def text(self, ids: list[int], first: int = 0) -> tuple[np.ndarray[Any, Any], str]:
        file = RowFile(self._path, first)
        self.reader.text(ids, file)
        return self._ended(file)

    def prompt(
        self, ids: list[int], *, first: int = 0, follows: list[int] | None = None, most: int = 4
    ) -> tuple[np.ndarray[Any, Any], str, list[int]]:
        file = RowFile(self._path, first)
        said = self.reader.prompt(ids, file, follows=follows, most=most)
        return *self._ended(file), said

    def _ended(self, file: RowFile) -> tuple[np.ndarray[Any, Any], str]:
        file.close()
        return np.fromfile(self._path, np.float32).reshape(-1, file.width), file.ways_in_order()


@contextmanager
def reading(bundle: Path, folder: Path) -> Iterator[Reading]:
    with Session(bundle) as session:
        yield Reading(session, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_plain_onnxruntime(
    kind: str, bundles: Bundles, peer: Staged, tmp_path: Path
) -> None:
    prompt, follows = tokens(37), tokens(5, seed=2)
    expected = peer.logits([*prompt, *follows[:-1]])
    with reading(bundles(kind), tmp_path) as read:
        rows, ways, said = read.prompt(prompt, follows=follows)
    assert rows == pytest.approx(expected, abs=NEAR)
    assert said == follows
    # What is padded to whole windows gives out all of them, and the others the last position.
    inside = "p" * 37 if kind == "static" else "p" + "f" * 35 + "p"
    assert ways == inside + "ffff"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["llama-f32", "qwen3-qknorm"])
def test_the_likeliest_tokens_are_those_of_the_float32_reference(
    file: str, kind: str, bundles: Bundles, tmp_path: Path
) -> None:
    with reading(bundles(kind, model=file), tmp_path) as read:
        for case in MODELS[f"{file}.gguf"]["reference"]:
            ids = case["token_ids"]
            rows, _, said = read.prompt(ids, most=8)
            assert said == case["greedy_8"]
            top = rows.argmax(axis=1).tolist()
            assert top == [*case["argmax_every_position"], *case["greedy_8"][1:]]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33])
def test_a_prompt_of_any_number_of_windows_gives_all_its_rows(
    count: int, bundles: Bundles, peer: Staged, tmp_path: Path
) -> None:
    prompt = tokens(count)
    with reading(bundles("static"), tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7, 8])
    assert rows == pytest.approx(peer.logits([*prompt, 7]), abs=NEAR)
    assert ways == "p" * count + "f"


def test_windows_that_are_padded_in_front_give_no_wrong_rows(
    bundles: Bundles, tmp_path: Path
) -> None:
    """Such a bundle answers wrongly, and as such it is read: as its own prompts are."""
    prompt = tokens(20)
    bundle = bundles(
        "static",
        change=lambda config: config["model"]["decoder"]["sliding_window"].pop("alignment"),
    )
    with reading(bundle, tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7])
    assert ways == "p" * 20
    with Session(bundle) as session:
        for end in (20, 4):
            generator = create_generator(session.loaded.model, 256, {"do_sample": False})
            generator.append_tokens(prompt[:end])
            assert generator.get_logits()[0, 0].tolist() == rows[end - 1].tolist()
            del generator


def test_a_head_for_every_position_gives_them_all_in_steps_of_a_session(
    bundles: Bundles, peer: Staged, tmp_path: Path
) -> None:
    prompt = tokens(150)
    bundle = fixtures.with_every_position(bundles("flat"))
    with reading(bundle, tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7, 8])
        text, text_ways = read.text(prompt, first=100)
    expected = peer.logits([*prompt, 7])
    assert ways == "p" * 150 + "f"
    assert rows == pytest.approx(expected, abs=NEAR)
    assert text_ways == "p" * 49
    assert text == pytest.approx(expected[100:149], abs=NEAR)


def test_a_prompt_that_the_runtime_itself_cuts_into_chunks_is_read_backwards(
    bundles: Bundles, peer: Staged, tmp_path: Path
) -> None:
    prompt = tokens(30)
    bundle = bundles("flat", change=lambda config: config["search"].update(chunk_size=8))
    with reading(fixtures.with_every_position(bundle), tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7])
    assert ways == "p" * 30
    assert rows == pytest.approx(peer.logits(prompt), abs=NEAR)


def test_logits_in_half_precision_are_read_as_they_are(
    bundles: Bundles, peer: Staged, tmp_path: Path
) -> None:
    prompt = tokens(12)
    bundle = fixtures.with_logits_of(fixtures.with_every_position(bundles("flat")), fixtures.HALF)
    with reading(bundle, tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7, 8])
    assert ways == "p" * 12 + "f"
    expected = peer.logits([*prompt, 7])
    assert rows == pytest.approx(expected, abs=2e-3 * float(np.abs(expected).max()))
    assert np.array_equal(rows, rows.astype(np.float16).astype(np.float32))


def test_logits_in_a_type_that_numpy_lacks_are_read_one_by_one(
    bundles: Bundles, peer: Staged, tmp_path: Path
) -> None:
    prompt = tokens(12)
    bundle = fixtures.with_logits_of(fixtures.with_every_position(bundles("flat")), fixtures.BRAIN)
    with reading(bundle, tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7, 8])
    assert ways == "p" + "f" * 10 + "pf"
    expected = peer.logits([*prompt, 7])
    assert rows == pytest.approx(expected, abs=1e-2 * float(np.abs(expected).max()))


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_of_text_inside_a_prompt_does_not_end_the_reading(
    kind: str, bundles: Bundles, peer: Staged, tmp_path: Path
) -> None:
    prompt = tokens(20)
    with reading(bundles(kind, change=set_eos(prompt[11])), tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7])
    assert rows == pytest.approx(peer.logits(prompt), abs=NEAR)
    if kind != "static":
        assert ways == "p" + "f" * 10 + "p" + "f" * 7 + "p"


def test_a_step_that_ends_with_the_padding_token_gives_the_rows_of_its_own_positions(
    bundles: Bundles, peer: Staged, tmp_path: Path
) -> None:
    """The runtime takes what is before it for the last token: an end of text is often padding."""
    prompt = tokens(140)
    prompt[126] = prompt[127] = 301
    assert prompt.count(301) == 2

    def change(config: dict[str, Any]) -> None:
        config["model"].update(eos_token_id=301, pad_token_id=301)

    bundle = fixtures.with_every_position(bundles("flat", change=change))
    with reading(bundle, tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7, 8])
    assert ways == "p" * 140 + "f"
    assert rows == pytest.approx(peer.logits([*prompt, 7]), abs=NEAR)


def test_a_row_that_cannot_be_had_is_left_out(bundles: Bundles, tmp_path: Path) -> None:
    prompt = tokens(12)
    prompt[6] = 301

    def change(config: dict[str, Any]) -> None:
        config["model"].update(eos_token_id=301, pad_token_id=301)

    bundle = fixtures.with_every_position(bundles("flat", change=change))
    with reading(fixtures.with_logits_of(bundle, fixtures.BRAIN), tmp_path) as read:
        _, ways, _ = read.prompt(prompt, follows=[7, 8])
    assert ways == "p" + "f" * 5 + "-" + "f" * 4 + "pf"


def test_a_bundle_that_takes_no_second_step_is_computed_at_once(
    bundles: Bundles, peer: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnout.verify import rows as module

    made = module.create_generator
    asked: list[int] = []

    class Stubborn:
        """As pipelines of other builders are: what is appended first is all."""

        def __init__(self, *how: Any) -> None:
            self._generator, self._appended = made(*how), False

        def append_tokens(self, ids: list[int]) -> None:
            if self._appended:
                raise RuntimeError("Non-zero status code returned while running Concat node.")
            self._appended = True
            asked.append(len(ids))
            self._generator.append_tokens(ids)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._generator, name)

    monkeypatch.setattr(module, "create_generator", Stubborn)
    prompt = tokens(140)
    with reading(fixtures.with_every_position(bundles("flat")), tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7, 8])
    assert asked == [128, 140]
    assert ways == "p" * 140 + "f"
    assert rows == pytest.approx(peer.logits([*prompt, 7]), abs=NEAR)


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_ends_with_the_text_and_its_last_token_has_no_row(
    kind: str, bundles: Bundles, tmp_path: Path
) -> None:
    case = MODELS["llama-f32.gguf"]["reference"][1]
    ids, greedy = case["token_ids"], case["greedy_8"]
    assert greedy[2] not in greedy[:2]
    with reading(bundles(kind, change=set_eos(greedy[2])), tmp_path) as read:
        rows, _, said = read.prompt(ids, most=8)
    assert said == greedy[:3]
    assert len(rows) == len(ids) + 2


def test_what_a_bundle_does_to_logits_on_the_way_to_a_token_is_left_out(
    bundles: Bundles, tmp_path: Path
) -> None:
    case = MODELS["llama-f32.gguf"]["reference"][1]
    bundle = bundles(
        change=lambda config: config["search"].update(
            repetition_penalty=5.0, min_length=200, do_sample=True, num_beams=1
        )
    )
    with reading(bundle, tmp_path) as read:
        _, _, said = read.prompt(case["token_ids"], most=8)
    assert said == case["greedy_8"]


def test_only_rows_from_the_first_one_on_are_computed(bundles: Bundles, tmp_path: Path) -> None:
    prompt = tokens(40)
    with reading(bundles("flat"), tmp_path) as read:
        whole, _, _ = read.prompt(prompt, follows=[7, 8])
        read.told.clear()
        rows, ways, _ = read.prompt(prompt, first=30, follows=[7, 8])
        assert sum(read.told) == len(rows) == 11
    assert ways == "p" + "f" * 8 + "pf"
    # The first thirty tokens were computed together, and not one by one.
    assert rows == pytest.approx(whole[30:], abs=NEAR)


def test_the_whole_context_can_be_read(bundles: Bundles, peer: Staged, tmp_path: Path) -> None:
    for kind in ("flat", "static"):
        prompt = tokens(240)
        with reading(bundles(kind), tmp_path) as read:
            rows, _, said = read.prompt(prompt, most=16)
        assert len(said) == 16
        assert rows[:240] == pytest.approx(peer.logits(prompt), abs=NEAR)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_read_as_they_are(
    number: float, bundles: Bundles, tmp_path: Path
) -> None:
    bundle = fixtures.with_a_wrong_number(fixtures.with_every_position(bundles("flat")), 9, number)
    with reading(bundle, tmp_path) as read:
        rows, ways, _ = read.prompt(tokens(12), follows=[7, 8])
    assert ways == "p" * 12 + "f"
    assert not np.isfinite(rows[:, 9]).any()
    assert np.isfinite(np.delete(rows, 9, axis=1)).all()


def test_rows_out_of_a_prompt_are_bit_for_bit_those_of_plain_onnxruntime(tmp_path: Path) -> None:
    """The same graph, the same tokens, one call each."""
    import onnxruntime as ort

    bundle = build_flat(tmp_path / "bundle")
    prompt = np.random.default_rng(3).integers(0, 250, 25).tolist()
    with reading(bundle, tmp_path) as read:
        rows, ways, _ = read.prompt(prompt, follows=[7])
    session = ort.InferenceSession(str(bundle / "model.onnx"))
    feeds = {
        value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    expected = session.run(["logits"], {"input_ids": np.array([prompt]), **feeds})[0][0]
    assert ways == "p" * 25
    assert rows.tolist() == expected.tolist()


def test_logits_are_found_by_the_name_that_the_config_gives_them(
    bundles: Bundles, tmp_path: Path
) -> None:
    bundle = bundles(
        "flat", change=lambda c: c["model"]["decoder"]["outputs"].update(logits="scores")
    )
    fixtures.rewritten(fixtures.with_every_position(bundle), fixtures.named_scores)
    with reading(bundle, tmp_path) as read:
        _, ways, _ = read.prompt(tokens(12), follows=[7])
    assert ways == "p" * 12


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_disk_without_room_is_named_with_what_helps() -> None:
    file = RowFile(Path("/dev/full"), 0)
    with pytest.raises(WriteError, match="No space left for logits in /dev") as caught:
        for position in range(100):
            file.put(position, np.zeros((1, 4096), np.float32), "p")
    assert "TMPDIR" in caught.value.facts["fix"]
    assert "--max-new-tokens" in caught.value.facts["fix"]
