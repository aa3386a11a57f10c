"""What is seen on a terminal while routes are verified."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from turnout.cli import live, verify_view
from turnout.perf.report import Failure

FAILURE = Failure(kind="crashed", during="question 2 of 3", problem="It crashed.", facts={})


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120, highlight=False)
    monkeypatch.setattr(live, "stderr_console", lambda **_: console)
    return shown


def test_it_shows_which_question_it_is_and_how_many_rows_are_done(screen: io.StringIO) -> None:
    with verify_view.View(quiet=False, verbose=True) as view:
        view.loading("reference")
        view.begun(30)
        task = view.live.task
        view.loading("ep=cpu")
        assert task.description == "loading ep=cpu"
        view.asking("ep=cpu", 0, 3)
        assert task.description == "ep=cpu  question 1 of 3"
        for rows in (2, 3):
            view.said("ep=cpu", {"rows": rows})
        assert task.completed == 5
        # Of ten, some were not to be had, or the text ended before.
        view.answered(10)
        assert task.completed == 10
        view.said("ep=cpu", {"compiling": "context"})
        assert task.description == "compiling context for ep=cpu"
        view.failed("ep=cpu", FAILURE, 20)
        assert task.completed == 30
    shown = screen.getvalue()
    assert "ep=cpu  question 1 of 3: 0." in shown
    assert "ep=cpu: crashed during question 2 of 3: It crashed." in shown


def test_nothing_is_shown_where_nobody_wants_to_see_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with verify_view.View(quiet=True, verbose=False) as view:
        view.begun(4)
        view.loading("ep=cpu")
        view.said("ep=cpu", {"note": "worth knowing"})
        view.asking("ep=cpu", 0, 1)
        view.answered(4)
        view.failed("ep=cpu", FAILURE, 0)
    assert capfd.readouterr() == ("", "")


def test_a_note_is_said_once_and_drives_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with verify_view.View(quiet=False, verbose=False) as view:
        view.begun(1)
        for _ in range(2):
            view.said("ep=cpu", {"note": "a \x1b[31mcolour"})
        view.asking("x" * 60, 0, 1)
    err = capfd.readouterr().err
    assert err.count("colour") == 1
    assert "\x1b" not in err
