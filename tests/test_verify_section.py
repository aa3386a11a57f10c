"""How what was verified reads, on the terminal and on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from browser import browser, find
from page_fixtures import HOSTILE
from report_fixtures import change, make_environment, make_report
from test_page import Document, Element, shown
from turnout.perf.page import render
from turnout.perf.report import BundleReport, Failure, StageReport
from turnout.verify import report as doc
from turnout.verify import tables
from turnout.verify.plan import thresholds
from turnout.verify.section import LEAST_DRAWN, page, section

NOWHERE = doc.Read(prompt=0, forced=0)
STAGES = (StageReport(stage="decoder", requested="x", effective="cpu", device="cpu"),)


def make_figures(**fields: Any) -> doc.Figures:
    usual: dict[str, Any] = {
        "positions": 200,
        "agreeing": 190,
        "not_finite": 0,
        "agreement": 0.95,
        "kl_mean": 0.00342,
        "kl_p99": 0.0166,
        "kl_max": 0.034,
    }
    return doc.Figures(**{**usual, **fields})


def make_answer(question: int, **fields: Any) -> doc.Answer:
    usual: dict[str, Any] = {
        "figures": make_figures(),
        "read": doc.Read(prompt=1, forced=2),
        "reference_read": doc.Read(prompt=1, forced=2),
        "first_difference": None,
        "differing": (),
        "unread": (),
        "kl": (0.001, 0.002, 0.003),
        "reference_nll": (),
        "nll": (),
    }
    return doc.Answer(question=question, **{**usual, **fields})


def make_difference(**fields: Any) -> doc.FirstDifference:
    usual: dict[str, Any] = {
        "after": 7,
        "reference_token": 5,
        "reference_text": " in",
        "token": 6,
        "text": " on",
        "margin": 0.0214,
    }
    return doc.FirstDifference(**{**usual, **fields})


def make_verified_route(name: str = "config", **fields: Any) -> doc.RouteReport:
    usual: dict[str, Any] = {
        "requested": name,
        "effective": name,
        "stages": STAGES,
        "verdict": "same",
        "reasons": (),
        "overall": make_figures(),
        "prompts": make_figures(positions=90),
        "continuations": make_figures(positions=60),
        "text": make_figures(positions=50),
        "perplexity": doc.Perplexity(
            tokens=50, reference=43.9, route=44.3, ratio=1.0091, interval=(0.998, 1.0202)
        ),
        "answers": (
            make_answer(0, first_difference=make_difference()),
            make_answer(1),
            make_answer(2, reference_nll=(1.0,), nll=(1.1,)),
        ),
        "error": None,
    }
    return doc.RouteReport(name=name, **{**usual, **fields})


def make_question(**fields: Any) -> doc.Question:
    usual: dict[str, Any] = {
        "kind": "prompt",
        "text": "Which is heavier?",
        "tokens": 9,
        "token_ids_sha256": "0" * 64,
        "first": 0,
        "cut": False,
        "continuation": (5, 2),
        "continuation_text": " in",
    }
    return doc.Question(**{**usual, **fields})


def failed(name: str = "ep=qnn") -> doc.RouteReport:
    return make_verified_route(
        name,
        verdict=None,
        overall=None,
        prompts=None,
        continuations=None,
        text=None,
        perplexity=None,
        answers=(),
        error=Failure(
            kind="crashed",
            during="question 2 of 3",
            problem="The child process crashed (SIGSEGV).",
            facts={"found": "the library says why"},
        ),
    )


def make_verified(*routes: doc.RouteReport, **fields: Any) -> doc.Report:
    usual: dict[str, Any] = {
        "created": "2026-12-01T05:22:27+00:00",
        "command": ("turnout", "verify", "smollm2"),
        "environment": make_environment(),
        "bundle": make_report().bundle,
        "settings": doc.Settings(
            thresholds=thresholds(),
            max_new_tokens=32,
            prompts_from="built in",
            text_from="built in",
            vocabulary=320,
            known_tokens=300,
        ),
        "notes": ("3 of 8 prompts were cut to 48 tokens, to fit the context.",),
        "questions": (make_question(), make_question(text=None), make_question(kind="text")),
        "reference": doc.ReferenceReport(
            name="reference",
            requested="--ep cpu --reproducible",
            effective="cpu",
            stages=STAGES,
            bundle=None,
            not_finite=0,
        ),
        "routes": routes or (make_verified_route(), make_verified_route("ep=openvino")),
    }
    return doc.Report(**{**usual, **fields})


def other_bundle() -> BundleReport:
    return change(make_report().bundle, path="elsewhere/smollm2")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (1.0, "100%"), (0.966, "96.60%"), (0.99999, "99.99%"), (0.0, "0.00%")],
)
def test_a_share_is_100_percent_only_where_it_is_all(value: float | None, text: str) -> None:
    assert tables.share(value) == text


def test_a_route_reads_as_a_row_of_the_table() -> None:
    assert dict(zip(tables.HEAD, tables.cells(make_verified_route()), strict=True)) == {
        "Route": "config",
        "Verdict": "same",
        "Took effect": "config",
        "Agreement": "95.00%",
        "Mean KL": "0.0034",
        "p99 KL": "0.017",
        "Perplexity": "1.0091 (0.9980 to 1.0202)",
        "First difference": "1 of 2 prompts, after 7 tokens",
    }
    assert tables.HEAD[1] == "Verdict"
    assert tables.cells(failed())[1:] == ("failed", "ep=qnn", "-", "-", "-", "-", "-")


def test_no_first_difference_is_said_of_logits_that_are_no_numbers() -> None:
    none = make_verified_route(answers=(make_answer(0),))
    assert tables.first(none) == "none"
    nan = make_figures(not_finite=3, agreement=0.0, kl_mean=None)
    assert tables.first(change(none, continuations=nan)) == "-"


def test_the_result_is_a_sentence_that_the_section_begins_with() -> None:
    report = make_verified(make_verified_route(), make_verified_route("b", verdict="differs"))
    said = "1 of 2 routes are the same as the reference; differs: b."
    assert tables.result(report) == said
    assert section(report).html.startswith(f"<p>{said}</p>")
    report = make_verified(make_verified_route(), failed(), interrupted=True)
    assert tables.result(report).endswith("; failed: ep=qnn. It was interrupted.")


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        ({}, 'after 7 tokens " on" for " in", where the reference\'s margin is 0.021: '),
        ({"after": 1}, "after 1 token "),
        ({"text": ""}, 'after 7 tokens token 6 for " in"'),
        ({"text": "\ufffd"}, "after 7 tokens token 6 for "),
        ({"reference_text": "\n"}, '" on" for "\\n"'),
    ],
)
def test_a_difference_is_a_sentence(difference: dict[str, Any], text: str) -> None:
    answer = make_answer(0, first_difference=make_difference(**difference))
    said = tables.difference(make_verified(), answer)
    assert text in said
    assert said.endswith(": Which is heavier?")
    assert tables.difference(make_verified(), make_answer(0)) == ""


def test_a_prompt_without_a_text_and_one_that_is_none_have_numbers() -> None:
    report = make_verified()
    for index, said in ((1, "prompt 2"), (99, "prompt 100"), (-5, "prompt -4")):
        answer = make_answer(index, first_difference=make_difference())
        assert tables.difference(report, answer).endswith(said)


def test_the_notes_say_what_was_compared_with_what_and_how() -> None:
    said = list(tables.notes(make_verified()))
    assert said == [
        "Reference: --ep cpu --reproducible, which took effect as cpu.",
        "The same is what keeps within: mean KL 0.01, perplexity ratio 1.03.",
        "Compared at 9 positions: 3 read out of prompts, 6 after forced tokens.",
        # Nine, and two of the continuation, of which nothing follows the last.
        "Nothing beyond 10 tokens was asked.",
        "3 of 8 prompts were cut to 48 tokens, to fit the context.",
    ]


def test_routes_that_were_read_otherwise_than_the_reference_say_so() -> None:
    otherwise = make_answer(0, read=doc.Read(prompt=3, forced=0))
    report = make_verified(
        make_verified_route(answers=(make_answer(0),)),
        make_verified_route("static", answers=(otherwise,)),
        make_verified_route("too", answers=(otherwise,)),
        failed(),
    )
    assert list(tables.read(report)) == [
        "Compared at 3 positions (config): 1 read out of prompts, 2 after forced tokens.",
        "Compared at 3 positions (static, too): 3 read out of prompts, 0 after forced tokens; by"
        " the reference 1 and 2.",
    ]


def test_another_bundles_reference_is_named() -> None:
    reference = change(make_verified().reference, bundle=other_bundle())
    first = next(tables.notes(make_verified(reference=reference)))
    assert first.startswith("Reference: --ep cpu --reproducible of elsewhere/smollm2, ")


def rows(root: Element, caption: str) -> list[list[str]]:
    (found,) = [t for t in root.all("table") if t.one("caption").words == caption]
    return [[cell.words for cell in (*row.all("th"), *row.all("td"))] for row in found.all("tr")]


def test_the_section_holds_what_the_terminal_shows_and_more() -> None:
    report = make_verified(
        make_verified_route(), make_verified_route("ep=openvino", reasons=("mean KL 1",)), failed()
    )
    made = section(report)
    assert made.title == "Same answers?"
    root = Document(made.html).root
    head, *found = rows(root, "Routes beside the reference")
    assert tuple(head) == tables.HEAD
    assert [tuple(row) for row in found] == [tables.cells(route) for route in report.routes]
    assert rows(root, "Figures of config")[1][:2] == ["everywhere", "200"]
    assert rows(root, "Where config differs first")[1] == [
        "Which is heavier?",
        "7 tokens",
        '" in"',
        '" on"',
        "0.021",
    ]
    items = [item.words for item in root.all("li")]
    assert "mean KL 1" in items
    assert "crashed during question 2 of 3: The child process crashed (SIGSEGV)." in items
    assert "found: the library says why" in items
    for line in tables.notes(report):
        assert line in items


def test_the_chart_has_the_share_of_positions_by_their_divergence() -> None:
    answers = (make_answer(0, kl=(0.2, 0.0, None)), make_answer(1, kl=(0.05, 0.1)))
    (chart,) = section(make_verified(make_verified_route(answers=answers))).charts
    (curve,) = chart.data
    assert curve["x"] == [LEAST_DRAWN, LEAST_DRAWN, 0.05, 0.1, 0.2, 0.2]
    assert curve["y"] == [0, 25, 50, 75, 100, 100]
    assert list(chart.legend) == [("config", "@c0")]
    assert "config below 0.1 at half of them" in chart.says
    assert section(make_verified(failed())).charts == ()


def hostile() -> doc.Report:
    """Everything that somebody else may have written is."""
    route = make_verified_route(
        HOSTILE,
        effective=HOSTILE,
        reasons=(HOSTILE,),
        answers=(
            make_answer(0, first_difference=make_difference(text=HOSTILE, reference_text=HOSTILE)),
        ),
    )
    bad = change(failed(), error=change(failed().error, problem=HOSTILE, facts={"fix": HOSTILE}))
    return make_verified(
        route,
        bad,
        notes=(HOSTILE,),
        questions=(make_question(text=HOSTILE, continuation_text=HOSTILE),),
        bundle=change(make_report().bundle, name=HOSTILE),
    )


def test_hostile_text_is_text() -> None:
    for written in (page(hostile()), render(make_report(), [section(hostile())])):
        root = Document(written).root
        (found, *_) = root.all("section", id="section-1")
        assert not found.all("script") or all(
            script.attributes["type"] == "application/json" for script in found.all("script")
        )
        assert not found.all("img")
        assert not found.all("a")
        assert not found.all("b")
        assert "\u202e" not in written
        assert "\x1b" not in written
    root = Document(section(hostile()).html).root
    assert shown(HOSTILE) in [item.words for item in root.all("li")]


def test_the_section_stands_on_a_page_of_measurements() -> None:
    root = Document(render(make_report(), [section(make_verified())])).root
    assert "Same answers?" in root.one("nav").words
    found = root.one("section", id="section-1")
    assert found.one("h2").words == "Same answers?"
    assert found.all("figure")


def test_a_page_of_its_own_says_which_bundle_where_and_when() -> None:
    root = Document(page(make_verified())).root
    assert root.one("h1").words == "Do routes give the same answers?"
    report = make_verified()
    said = root.one("p", class_="lead").words
    assert said == f"{report.bundle.name} on Example CPU 3000, 2026-12-01T05:22:27+00:00"


def test_figures_that_somebody_made_up_are_no_reason_to_fail() -> None:
    text = json.loads(doc.encode(make_verified()))
    for figures in (text["routes"][0]["overall"], text["routes"][0]["perplexity"]):
        for name, value in figures.items():
            if isinstance(value, float):
                figures[name] = -1e308
    text["routes"][0]["answers"][0]["kl"] = [1e308, -5.0, None]
    report = doc.FORM.decode(json.dumps(text))
    Document(page(report))
    assert tables.cells(report.routes[0])


@pytest.mark.slow
@pytest.mark.skipif(find() is None, reason="no browser")
@pytest.mark.parametrize("width", [390, 1100])
def test_a_browser_shows_it_and_has_nothing_to_complain_of(width: int, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(hostile()), "utf-8")
    program = find()
    assert program is not None
    with browser(program) as running:
        shown_page = running.page()
        shown_page.open(path, width=width)
        assert shown_page.complaints() == []
        assert shown_page.dialogs() == []
        assert shown_page.requested() == [path.as_uri()]
        assert shown_page.run("document.documentElement.scrollWidth") <= width
        assert shown_page.run("document.querySelectorAll('.plot svg').length") > 0
