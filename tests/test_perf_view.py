"""What is seen on a terminal while routes are measured."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from turnout.cli import live, perf_view
from turnout.perf import report

EXAMPLE = Path(__file__).parent / "data" / "report-v1.json"


@pytest.fixture
def request_of_example() -> report.Request:
    document = json.loads(EXAMPLE.read_text("utf-8"))
    return msgspec.convert(document["routes"][0]["requests"][0], report.Request)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120, highlight=False)
    monkeypatch.setattr(live, "stderr_console", lambda **_: console)
    return shown


def test_it_shows_how_far_it_is_tokens_a_second_and_the_time_that_is_left(
    screen: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    request_of_example: report.Request,
) -> None:
    now = iter(float(second) for second in range(100, 200))
    monkeypatch.setattr(perf_view.time, "monotonic", lambda: next(now))
    with perf_view.View(quiet=False, verbose=False) as view:
        assert view.tell_every_s is not None
        view.begun(1, 4)
        view.loading("ep=cpu")
        view.said("ep=cpu", {"compiling": "context"})
        view.asking("ep=cpu", "warmup", "pp5+tg9")  # at 100
        view.said("ep=cpu", {"tokens": 10})  # at 101: how long the prompt took is not known
        view.said("ep=cpu", {"tokens": 30})  # at 102
        task = view.live.task
        assert task.description == "ep=cpu  pp5+tg9  warm-up"
        assert task.fields["rate"] == "20.0 tokens/s"
        view.answered("ep=cpu", request_of_example)  # at 103: one of four took 3 s
        assert task.completed == 1
        assert task.fields["left"] == "about 9 s left"
        view.placing("ep=cpu")
        assert task.description == "where nodes run: ep=cpu"
    assert "where nodes run: ep=cpu" in screen.getvalue()


def test_nothing_is_shown_and_no_word_is_wanted_where_nobody_looks(
    capfd: pytest.CaptureFixture[str], request_of_example: report.Request
) -> None:
    with perf_view.View(quiet=True, verbose=False) as view:
        assert view.tell_every_s is None
        view.begun(1, 4)
        view.loading("ep=cpu")
        view.said("ep=cpu", {"note": "worth knowing"})
        view.asking("ep=cpu", "timed", "pp5+tg9")
        view.answered("ep=cpu", request_of_example)
    assert capfd.readouterr() == ("", "")


def test_a_note_is_said_once_and_drives_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with perf_view.View(quiet=False, verbose=False) as view:
        view.begun(1, 1)
        for _ in range(2):
            view.said("ep=cpu", {"note": "a \x1b[31mcolour"})
    err = capfd.readouterr().err
    assert err.count("colour") == 1
    assert "\x1b" not in err
