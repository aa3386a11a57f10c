"""The page in a real browser: what it draws, what it asks for, and whether it fits a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import page_fixtures
from browser import Browser, Page, browser, find
from turnout.perf.page import Section, render, render_sections, table

PROGRAM = find()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="the browser is driven through POSIX pipes"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH, nor $TURNOUT_BROWSER"),
]

REPORTS = ("usual", "sweep", "hostile", "hardly_any", "nothing", "large")
PHONE, DESKTOP = 390, 1280
NARROWEST = 360


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser(PROGRAM) as started:
        yield started


@pytest.fixture
def tab(running: Browser) -> Iterator[Page]:
    opened = running.page()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of all reports."""
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name in REPORTS:
        written[name] = folder / f"{name}.html"
        written[name].write_text(render(getattr(page_fixtures, name)()), "utf-8")
    return written


def too_wide(tab: Page) -> Any:
    """What makes the page wider than the window."""
    return tab.run(
        """
        document.documentElement.scrollWidth <= innerWidth ? [] :
          [...document.querySelectorAll('body *')]
            .filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1)
            .map(e => e.outerHTML.slice(0, 100))
        """
    )


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [NARROWEST, PHONE, DESKTOP])
def test_the_page_is_drawn_complains_of_nothing_and_asks_for_nothing(
    tab: Page, files: dict[str, Path], name: str, width: int
) -> None:
    tab.open(files[name], width=width, dark=width == PHONE)
    assert tab.complaints() == []
    assert tab.requested() == [files[name].absolute().as_uri()]
    shown = "[...document.querySelectorAll('figure')].filter(f => !f.hidden)"
    counts = tab.run(f"{shown}.map(f => f.querySelectorAll('.cartesianlayer .trace path').length)")
    assert all(count > 0 for count in counts)
    assert len(counts) == {"hardly_any": 2, "nothing": 0}.get(name, 6)
    assert tab.run("document.documentElement.scrollWidth - innerWidth") <= 0, too_wide(tab)
    widths = f"{shown}.map(f => f.querySelector('svg').getBoundingClientRect().right <= innerWidth)"
    assert all(tab.run(widths))


def test_hostile_names_are_drawn_as_text_and_do_nothing(tab: Page, files: dict[str, Path]) -> None:
    tab.open(files["hostile"], width=DESKTOP)
    notes = tab.run("[...document.querySelectorAll('.annotation-text')].map(e => e.textContent)")
    assert len(notes) == 4
    assert notes[0].startswith("1. </script><script>alert(1)")
    assert tab.run("document.querySelectorAll('svg a, main a[href^=javascript]').length") == 0
    assert not tab.dialogs()


def test_a_script_that_got_in_would_not_run(tab: Page, tmp_path: Path) -> None:
    """What a section of the caller's own holds by mistake is stopped by the page's policy."""
    mistake = (
        '<img src="https://example.invalid/x.png" onerror="alert(1)"><script>alert(2)</script>'
    )
    page = tmp_path / "mistake.html"
    page.write_text(render_sections("t", "s", [Section("mistake", mistake)]), "utf-8")
    tab.open(page, width=DESKTOP)
    assert not tab.dialogs()
    assert sum("Content Security Policy" in complaint for complaint in tab.complaints()) >= 2


def test_the_harness_hears_of_errors_dialogs_and_requests(tab: Page, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><img src='https://example.invalid/x.png'>"
        "<script>console.error('heard'); alert('heard'); nothing.there</script>"
        "<p style='width: 3000px'>wide</p>",
        "utf-8",
    )
    tab.open(page, width=DESKTOP)
    assert any("heard" in complaint for complaint in tab.complaints())
    assert any("nothing is not defined" in complaint for complaint in tab.complaints())
    assert tab.dialogs() == ["heard"]
    assert "https://example.invalid/x.png" in tab.requested()
    assert too_wide(tab)


BACKGROUND = "getComputedStyle(document.body).backgroundColor"
TICK = "getComputedStyle(document.querySelector('.xtick text')).fill"
LINE = "getComputedStyle(document.querySelector('.scatterlayer .lines path, .js-line')).stroke"


def test_light_and_dark_follow_the_system_and_the_button(tab: Page, files: dict[str, Path]) -> None:
    tab.open(files["usual"], width=DESKTOP)
    light = [tab.run(what) for what in (BACKGROUND, TICK, LINE)]
    assert light[0] == "rgb(255, 255, 255)"
    tab.open(files["usual"], width=DESKTOP, dark=True)
    dark = [tab.run(what) for what in (BACKGROUND, TICK, LINE)]
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert tab.run("document.getElementById('theme').textContent") == "Light"
    tab.run("document.getElementById('theme').click()")
    assert [tab.run(what) for what in (BACKGROUND, TICK, LINE)] == light
    assert tab.run("document.getElementById('theme').textContent") == "Dark"
    assert tab.complaints() == []


def test_a_workload_is_chosen(tab: Page, files: dict[str, Path]) -> None:
    tab.open(files["sweep"], width=DESKTOP)
    shown = (
        "[...document.querySelectorAll('figure[data-workload]')].filter(f => !f.hidden)"
        ".map(f => f.dataset.workload)"
    )
    assert tab.run(shown) == ["0"] * 4
    tab.run(
        "(s => { s.value = '5'; s.dispatchEvent(new Event('change')); })"
        "(document.getElementById('workload'))"
    )
    assert tab.run(shown) == ["5"] * 4
    assert tab.run("document.querySelectorAll('figure[data-workload=\"5\"] svg').length") > 0
    assert tab.complaints() == []


def test_a_route_is_hidden_and_shown_again(tab: Page, files: dict[str, Path]) -> None:
    tab.open(files["usual"], width=DESKTOP)
    lines = "document.querySelector('figure').querySelectorAll('.scatterlayer .trace').length"
    assert tab.run(lines) == 4
    tab.run("document.querySelector('button[data-route=\"1\"]').click()")
    assert tab.run(lines) == 3
    pressed = "document.querySelector('button[data-route=\"1\"]').getAttribute('aria-pressed')"
    assert tab.run(pressed) == "false"
    tab.run("document.querySelector('button[data-route=\"1\"]').click()")
    assert (tab.run(lines), tab.run(pressed)) == (4, "true")


def test_a_link_to_what_is_folded_unfolds_it(tab: Page, files: dict[str, Path]) -> None:
    tab.open(files["usual"], width=DESKTOP)
    assert tab.run("document.getElementById('comparisons').open") is False
    tab.run("document.querySelector('a[href=\"#comparisons\"]').click()")
    opened = (
        "new Promise(done => setTimeout(() => done(document.getElementById('comparisons').open)))"
    )
    assert tab.run(opened) is True


def test_printed_it_is_light_unfolded_and_within_the_paper(
    tab: Page, files: dict[str, Path]
) -> None:
    tab.open(files["usual"], width=DESKTOP, dark=True)
    tab.run("dispatchEvent(new Event('beforeprint'))")
    assert tab.run(BACKGROUND) == "rgb(255, 255, 255)"
    assert tab.run("[...document.querySelectorAll('details')].every(d => d.open)")
    widths = "[...document.querySelectorAll('svg.main-svg')].map(s => s.clientWidth)"
    assert max(tab.run(widths)) <= 640
    tab.run("dispatchEvent(new Event('afterprint'))")
    assert tab.run(BACKGROUND) != "rgb(255, 255, 255)"


def test_sections_alone_are_drawn(tab: Page, tmp_path: Path) -> None:
    rows = [("ep=openvino", "0.0021"), ("ep=cpu", "0.0")]
    page = tmp_path / "sections.html"
    made = Section("Same answers?", str(table(["Route", "KL"], rows, "Likeness")))
    page.write_text(render_sections("smollm2", "two routes", [made]), "utf-8")
    tab.open(page, width=PHONE)
    assert tab.complaints() == []
    assert tab.run("document.querySelectorAll('tbody tr').length") == 2
    assert tab.run("document.documentElement.scrollWidth - innerWidth") <= 0
