"""The page of a report: one file that asks for nothing, and says everything that was measured."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import page_fixtures
from page_fixtures import ANSWER, HOSTILE, PLACED, usual, with_text
from report_fixtures import (
    change,
    make_report,
    make_request,
    make_requests,
    make_route,
    make_workload,
)
from turnout.errors import MachineError
from turnout.perf import report, summary, tables, wording
from turnout.perf.markdown import markdown
from turnout.perf.page import Chart, Section, render, render_sections, require, table
from turnout.perf.page.series import labels, sampled, spread, thinned
from turnout.perf.report import Report

REPORTS = ("usual", "sweep", "hostile", "hardly_any", "nothing", "large")
VOID = {"meta", "link", "br", "img", "wbr", "input"}
STYLE = Path(render.__code__.co_filename).parent / "templates" / "style.css"


class Element:
    def __init__(self, tag: str, attributes: dict[str, str | None], parent: Element | None) -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    def all(self, tag: str, **attributes: str) -> list[Element]:
        found = []
        for child in self.children:
            if isinstance(child, str):
                continue
            wanted = {name.rstrip("_"): value for name, value in attributes.items()}
            if tag in ("*", child.tag) and wanted.items() <= child.attributes.items():
                found.append(child)
            found += child.all(tag, **attributes)
        return found

    def one(self, tag: str, **attributes: str) -> Element:
        (found,) = self.all(tag, **attributes)
        return found


class Document(HTMLParser):
    """A tree, in which every element that was opened is closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.root = self.at = Element("", {}, None)
        self.feed(page)
        self.close()
        assert self.at is self.root, f"{self.at.tag} was not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        made = Element(tag, dict(attrs), self.at)
        self.at.children.append(made)
        if tag not in VOID:
            self.at = made

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.at.tag, f"{tag} ends {self.at.tag}"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.children.append(data)


def parsed(report: Report, sections: Sequence[Section] = ()) -> Element:
    return Document(render(report, sections)).root


@pytest.fixture(scope="module")
def page() -> Element:
    return parsed(usual())


def charts(root: Element) -> list[dict[str, Any]]:
    return [json.loads(found.text) for found in root.all("script", type="application/json")]


def shown(text: str) -> str:
    """Text of a report as a page has it, with single spaces."""
    return " ".join(wording.shown(text).split())


# One file, and nothing from elsewhere.


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_asks_for_nothing(name: str) -> None:
    root = parsed(getattr(page_fixtures, name)())
    for element in root.all("*"):
        for attribute, value in element.attributes.items():
            assert not attribute.startswith("on"), element.tag
            if attribute in ("src", "srcset", "action", "data", "poster", "xlink:href"):
                pytest.fail(f"{element.tag} has {attribute}={value}")
            if attribute == "href":
                assert value is not None
                assert value.startswith("#") or (element.tag, value) == ("link", "data:,")
            if attribute == "style":
                assert re.fullmatch(r"(?:(?:height|width|background):[\w%().-]+;?)+", value or "")
    (style,) = root.all("style")
    assert not re.search(r"url\(|@import|@font-face", style.text)
    tags = {element.tag for element in root.all("*")}
    assert not tags & {"img", "iframe", "object", "embed", "form", "base", "video", "audio"}


@pytest.mark.parametrize("name", REPORTS)
def test_the_policy_lets_only_the_pages_own_two_scripts_run(name: str) -> None:
    root = parsed(getattr(page_fixtures, name)())
    policy = root.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    scripts = [script for script in root.all("script") if "type" not in script.attributes]
    digests = [hashlib.sha256(script.text.encode()).digest() for script in scripts]
    assert rules["script-src"].split() == [
        f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests
    ]
    assert len(scripts) == 2
    assert rules["default-src"] == "'none'"
    assert set(rules) == {
        "default-src", "script-src", "style-src", "img-src", "base-uri", "form-action",
    }  # fmt: skip
    assert rules["img-src"] == "data: blob:"


def test_hostile_text_is_text() -> None:
    """The page has the elements of one whose names are harmless, and says the names as they are."""
    tame = page_fixtures.hostile()
    harmless = json.loads(
        json.dumps(msgspec.to_builtins(tame)).replace(json.dumps(HOSTILE)[1:-1], "harmless ")
    )
    found = parsed(tame)
    expected = parsed(msgspec.convert(harmless, Report))
    ignored = {"wbr", "mark"}  # where names break, and where texts part
    assert [e.tag for e in found.all("*") if e.tag not in ignored] == [
        e.tag for e in expected.all("*") if e.tag not in ignored
    ]
    assert found.one("h1").words == shown(HOSTILE)
    assert shown(HOSTILE) in found.one("section", id="failures").words
    assert shown(HOSTILE) in found.one("section", id="answers").words
    assert shown(HOSTILE) in found.one("section", id="environment").words
    assert found.one("title").words == f"{shown(HOSTILE)}: Turnout perf report"


def test_nothing_that_cannot_be_seen_or_reorders_text_is_let_through() -> None:
    page = render(page_fixtures.hostile())
    page.encode("utf-8")
    # But for scripts, which are plotly's, and ours.
    rest = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", rest)


@pytest.mark.parametrize("name", REPORTS)
def test_data_in_scripts_has_nothing_that_ends_them(name: str) -> None:
    for found in parsed(getattr(page_fixtures, name)()).all("script", type="application/json"):
        assert "<" not in found.text
        assert set(json.loads(found.text)) == {"data", "layout"}


def test_names_in_charts_are_escaped_since_plotly_reads_markup() -> None:
    for chart in charts(parsed(page_fixtures.hostile())):
        for trace in chart["data"]:
            assert "<" not in trace["name"]
        for note in chart["layout"].get("annotations", []):
            assert "<" not in note["text"]


# What it says.


def test_the_head_says_what_was_measured_where_and_when(page: Element) -> None:
    assert page.one("h1").words == "smollm2"
    lead = page.one("p", class_="lead").words
    assert lead == "Example CPU 3000 Linux 6.1 2026-12-01 12:00 UTC"
    assert parsed(make_report(created="whenever")).one("time").words == "whenever"
    east = parsed(make_report(created="2026-12-01T12:00:00+02:00")).one("time").words
    assert east == "2026-12-01 10:00 UTC"


def test_the_summary_is_first(page: Element) -> None:
    said = [item.all("span")[1].words for item in page.one("ul", class_="verdicts").all("li")]
    assert said == [sentence.text for sentence in summary.sentences(usual())]
    assert said[1].startswith("ep=openvino decodes 1.")
    assert said[-1].startswith("Answers differ: config, ep=cpu, stage lm_head=openvino; otherwise")
    kinds = [item.attributes["class"] for item in page.one("ul", class_="verdicts").all("li")]
    assert kinds[:3] == ["cannot-tell", "faster", "slower"]


def test_a_partial_report_says_so_at_the_top(page: Element) -> None:
    assert not page.all("p", class_="banner", role="status")
    banner = parsed(page_fixtures.sweep()).one("p", class_="banner", role="status")
    assert banner.words == wording.state(page_fixtures.sweep())
    assert banner.words.startswith("Incomplete: 2 of 4 routes failed.")


@pytest.mark.parametrize("name", REPORTS)
def test_links_lead_to_parts_of_the_page_and_ids_are_used_once(name: str) -> None:
    root = parsed(getattr(page_fixtures, name)())
    ids = [element.attributes["id"] for element in root.all("*") if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    links = {link.attributes["href"] for link in root.all("a")}
    assert links <= {f"#{name}" for name in ids}
    for section in root.one("main").all("section"):
        assert f"#{section.attributes['id']}" in links
        assert section.all("h2")


@pytest.mark.parametrize("name", REPORTS)
def test_tables_have_headings_and_names_and_scroll_in_a_box_that_keys_reach(name: str) -> None:
    for found in parsed(getattr(page_fixtures, name)()).all("table"):
        assert found.one("caption").words
        assert all(head.attributes["scope"] == "col" for head in found.one("thead").all("th"))
        for body in found.all("tbody"):
            assert body.all("th")[0].attributes["scope"] in ("row", "rowgroup")
        box = found.parent
        assert box is not None
        assert box.attributes["class"] == "scroll"
        assert box.attributes["tabindex"] == "0"
        assert box.attributes["aria-label"]


def results(root: Element) -> list[list[str]]:
    rows = root.one("table", class_="results").all("tr")[1:]
    return [[cell.words for cell in row.children if isinstance(cell, Element)] for row in rows]


def test_the_results_are_those_of_the_table(page: Element) -> None:
    found = results(page)
    rows = [tables.cells(row) for row in tables.rows(usual())]
    assert [row[-5:] if index % 2 == 0 else row for index, row in enumerate(found)] == [
        list(row[2:]) if index % 2 == 0 else list(row[2:5]) for index, row in enumerate(rows)
    ]
    heads = [row[0] for row in found[::2]]
    assert heads == [f"{row[0]}took effect: {row[1]}" for row in rows[::2]]
    assert found[0][2] == "pp512"
    assert found[1][0] == "tg64 @ d512"


def test_bars_compare_routes_in_one_test(page: Element) -> None:
    bars = [bar.all("span")[0].attributes["style"] for bar in page.all("span", class_="bar")]
    widths = [int(re.match(r"width:(\d+)%", style or "")[1]) for style in bars]  # type: ignore[index]
    assert widths[4:6] == [100, 100]  # ep=openvino is the fastest
    assert all(0 < width < 100 for width in widths[:4] + widths[6:])
    assert not parsed(make_report([make_route()])).all("span", class_="bar")


def facts_of(part: Element) -> dict[str, str]:
    names, values = part.all("dt"), part.all("dd")
    assert len({name.words for name in names}) == len(names)
    return {name.words: value.words for name, value in zip(names, values, strict=True)}


def test_failures_stand_in_the_table_and_with_everything_that_is_known_of_them() -> None:
    root = parsed(page_fixtures.sweep())
    reasons = [row.all("td") for row in root.all("tr", class_="failed")]
    assert [cells[-3].words if len(cells) > 1 else cells[0].words for cells in reasons] == [
        "unavailable during loading: QNNExecutionProvider is not installed here.",
        "crashed during request 4 of 48: The process of the route ended by signal 11.",
    ]
    crashed = root.one("section", id="failures").all("div", class_="failure")[1]
    assert crashed.one("h3").words == "ep=openvino compile crashed"
    assert facts_of(crashed) == {"found": "signal 11", "fix": "run it alone"}


def test_stages_have_the_ep_asked_in_effect_and_where_nodes_ran(page: Element) -> None:
    bodies = page.one("section", id="stages").all("tbody")
    says = bodies[2].one("p").words
    assert says == (
        "Asked: --ep openvino. In effect: openvino. Compiled: transformer, lm_head, 123 MB on disk."
        " Left as it is: embeddings (the CPU EP compiles nothing). Shared: a in the session of b,"
        " prefill+decode by their EP, x+y packed in one file. Where nodes ran was measured with"
        " 8 prompt tokens and 4 new ones, in a run of its own."
    )
    assert [row.all("td")[-1].words for row in bodies[2].all("tr")[1:]] == [
        "openvino: 1 node",
        "openvino: 1 node, 95.0% of the time; cpu: 1,200 nodes, 5.0% of the time",
        "did not run",
    ]
    assert bodies[0].one("p").words.endswith("Where nodes ran was not measured: not asked for.")
    assert {row.all("td")[-1].words for row in bodies[0].all("tr")[1:]} == {"not measured"}


def test_a_placement_that_cannot_be_understood_is_said_to_be_there() -> None:
    for placed in ({}, {**PLACED, "stages": [{"stage": 1}]}):
        root = parsed(make_report([make_route(placed=placed)]))
        note = root.one("section", id="stages").all("p")[-1].words
        assert note == "Where nodes ran is in the report, but not as this version knows it."


def test_answers_are_beside_each_other_and_marked_where_they_part(page: Element) -> None:
    section = page.one("section", id="answers")
    prompt, *texts = section.all("pre")
    assert prompt.text == "What is the capital of France?"
    other = f"{ANSWER[:32]}Its river is the Seine."
    assert [text.text for text in texts] == [ANSWER, ANSWER, other, ANSWER]
    assert section.one("mark").text == "s river is the Seine."  # both go on with "It"
    assert "a1a1a1a1a1a1" in section.words
    assert "64 tokens, ended by length" in section.words


def test_a_long_text_is_cut_and_what_is_left_off_counted() -> None:
    route = with_text(make_route(), "x" * 10_000, "a1" * 32)
    workload = make_workload(prompt="y" * 4_100)
    section = parsed(make_report([route], workloads=[workload])).one("section", id="answers")
    assert [len(text.text) for text in section.all("pre")] == [4000, 4000]
    assert "100 more characters are in the report." in section.words
    assert "6000 more characters are in the report" in section.words


def test_the_environment_the_settings_and_the_command_are_there(page: Element) -> None:
    section = page.one("section", id="environment")
    facts = facts_of(section)
    assert facts["Bundle"] == "smollm2 (/models/smollm2)"
    assert facts["Content (SHA-256)"] == "b0" * 32
    assert facts["onnxruntime-genai"] == "0.18.0"
    assert facts["Cores"] == "2 physical, 4 logical, 2 usable here"
    assert facts["Memory of the machine"] == "8.59 GB"
    assert facts["Memory of processes"] == "measured"
    assert facts["Device of CPUExecutionProvider"] == "cpu: Example CPU 3000"
    assert facts["Margin"] == "ratios within 3% of 1 are neither faster nor slower"
    assert section.one("pre").text == "turnout perf smollm2"
    spaced = parsed(make_report(command=("turnout", "--prompt", "it's here"))).all("pre")[-1].text
    assert spaced == """turnout --prompt 'it'"'"'s here'"""


def test_load_and_memory_are_in_tables_too(page: Element) -> None:
    row = page.one("section", id="load").all("tbody")[0].one("tr")
    assert [cell.words for cell in row.all("td")][:6] == [
        "100.0 ms", "0 ms", "1.00 ms", "300.0 ms", "70.0 ms", "471.0 ms",
    ]  # fmt: skip
    memory = page.one("section", id="memory").all("tbody")[0]
    assert [[cell.words for cell in row.all("td")] for row in memory.all("tr")] == [
        ["before loading", "120 MB", "108 MB", "60 MB"],
        ["after loading", "380 MB", "342 MB", "190 MB"],
        ["at most", "420 MB", "378 MB", "210 MB"],
    ]


def test_the_table_of_memory_says_that_pss_depends_on_the_other_routes(page: Element) -> None:
    said = page.one("section", id="memory").words
    assert "Processes of the other routes are users, too" in said
    assert "Compare routes by private memory and RSS." in said


def test_every_figure_has_its_statistics(page: Element) -> None:
    section = page.one("section", id="statistics")
    comparisons, figures = section.all("table")
    assert len(comparisons.all("tr")) == 1 + len(usual().comparisons)
    # Four routes, eight figures each.
    assert len(figures.all("tr")) == 1 + 4 * 8
    assert figures.all("tr")[1].all("td")[1].words == "model_ttft_s"


# Charts.


def titles(root: Element) -> list[str]:
    return [figure.one("h3").words for figure in root.all("figure")]


def test_latency_memory_and_load_are_drawn(page: Element) -> None:
    assert titles(page) == [
        "Time to first token, request by request",
        "Time to first token, spread",
        "Time of each token after the first",
        "Time of each token after the first, spread",
        "Memory over time",
        "Load, step by step",
    ]
    for figure in page.all("figure"):
        plot = figure.one("div", class_="plot")
        assert plot.attributes["role"] == "img"
        assert "ep=openvino" in (plot.attributes["aria-label"] or "")


def test_charts_have_the_values_of_the_report(page: Element) -> None:
    ttft, _, tokens, _, memory, load = charts(page)
    openvino = usual().routes[2]
    timed = [request for request in openvino.requests if request.kind == "timed"]
    assert ttft["data"][2]["x"] == [float(request.round + 1) for request in timed]
    in_seconds = [request.request_ttft_s for request in timed]
    assert ttft["data"][2]["y"] == pytest.approx(in_seconds, rel=1e-3)
    assert tokens["data"][2]["y"] == pytest.approx(
        [1e3 * seconds for request in timed for seconds in request.decode_s], rel=1e-3
    )
    # A token is drawn where it ended: after the first token, and its own time.
    first = timed[0]
    assert first.request_ttft_s is not None
    assert tokens["data"][2]["x"][0] == pytest.approx(
        first.started_s + first.request_ttft_s + first.decode_s[0], rel=1e-4
    )
    assert memory["data"][0]["y"] == [120, 170, 220, 270, 320, 370, 420]
    assert [trace["x"][0] for trace in load["data"]] == [100, 0, 1, 300, 70]


def test_routes_have_a_colour_of_their_own_and_the_same_in_every_chart(page: Element) -> None:
    colours: dict[str, set[str]] = {}
    for chart in charts(page)[:-1]:
        for trace in chart["data"]:
            colours.setdefault(trace["name"], set()).add(trace["line"]["color"])
    assert list(colours.values()) == [{"@c0"}, {"@c1"}, {"@c2"}, {"@c3"}]


def test_an_axis_that_is_logarithmic_says_so_and_another_does_not() -> None:
    def axis(*token_s: float) -> dict[str, Any]:
        requests = [make_request(decode_s=[seconds] * 20) for seconds in token_s]
        found: dict[str, Any] = charts(parsed(make_report([make_route("config", requests)])))[3][
            "layout"
        ]["xaxis"]
        return found

    wide = axis(0.008, 0.070)
    assert (wide["type"], wide["title"]) == ("log", "ms, logarithmic")
    assert wide["tickvals"] == [1, 2, 5, 10, 20, 50]
    assert wide["ticktext"] == ["1", "2", "5", "10", "20", "50"]
    assert wide["minor"]["tickvals"] == [*range(1, 10), *range(10, 100, 10)]
    assert axis(0.008, 0.010) == {"title": "ms"}


def test_routes_of_one_colour_differ_in_line_and_symbol() -> None:
    routes = [make_route(f"r{index}", make_requests(2)) for index in range(10)]
    traces = charts(parsed(make_report(routes)))[0]["data"]
    looks = [(t["line"]["color"], t["line"]["dash"], t["marker"]["symbol"]) for t in traces]
    assert looks[0] == ("@c0", "solid", "circle")
    assert looks[8] == ("@c0", "dash", "square")
    assert len(set(looks)) == 10


def test_charts_of_a_sweep_are_chosen_by_workload() -> None:
    root = parsed(page_fixtures.sweep())
    options = root.one("select", id="workload").all("option")
    assert [option.words for option in options] == [w.name for w in page_fixtures.sweep().workloads]
    belongs = [figure.attributes.get("data-workload") for figure in root.all("figure")]
    assert belongs == [str(index) for index in range(6) for _ in range(4)] + [None, None]
    # Of the route that crashed in the first workload, only that one has anything.
    assert len(charts(root)[0]["data"]) == 3
    assert len(charts(root)[4]["data"]) == 2


def test_a_large_report_is_thinned_and_says_how() -> None:
    page = render(page_fixtures.large())
    assert len(page) < 6_000_000
    root = Document(page).root
    figures = {figure.one("h3").words: figure for figure in root.all("figure")}
    tokens = figures["Time of each token after the first"]
    assert tokens.one("figcaption").words == (
        "At most 3,000 points of a route are drawn, of up to 20,000: one of each run of neighbours,"
        " and the slowest. Statistics are of all. 1 above the upper edge, the slowest 5.00 s;"
        " a double click shows all."
    )
    (drawn, _) = charts(tokens)[0]["data"]
    assert len(drawn["y"]) <= 3000
    assert max(drawn["y"]) == 5  # none of the slow ones is lost
    memory = figures["Memory over time"]
    assert "At most 1,500 points of a route are drawn, of up to 20,000" in memory.words


def test_one_request_of_one_token_is_shown_as_far_as_it_goes() -> None:
    root = parsed(page_fixtures.hardly_any())
    assert titles(root) == ["Time to first token, request by request", "Load, step by step"]
    assert [row[2] for row in results(root)] == ["pp?"]
    assert "Memory was not measured." in root.one("section", id="memory").words
    assert "of unknown length" in root.one("section", id="answers").words


def test_where_no_route_was_measured_the_page_says_why() -> None:
    root = parsed(page_fixtures.nothing())
    assert titles(root) == []
    assert not root.all("ul", class_="verdicts")
    assert "No route was loaded." in root.words
    assert "No route answered." in root.words
    assert "unavailable during loading" in root.one("section", id="results").words


def test_a_report_of_no_routes_and_no_workloads_is_a_page() -> None:
    empty = change(make_report(), routes=(), workloads=(), comparisons=())
    root = parsed(empty)
    assert "No route was measured." in root.words
    assert "There is no workload." in root.words


@pytest.mark.parametrize("figure", [0, -1, 1e308, -1e308, 1e-320, 10**30])
def test_figures_that_somebody_made_up_are_no_reason_to_fail(figure: float) -> None:
    document = json.loads(report.encode(make_report(rounds=6)))
    for every in (1, 2, 3):
        made_up = report.FORM.decode(json.dumps(with_figures(document, figure, every)))
        assert parsed(made_up).one("section", id="results")
        assert markdown(made_up)


def with_figures(document: Any, figure: float, every: int) -> Any:
    """The document with each number but its version replaced, or of them one in `every`."""
    seen = 0

    def changed(value: Any, name: str) -> Any:
        nonlocal seen
        if isinstance(value, dict):
            return {key: changed(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [changed(inner, name) for inner in value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        seen += 1
        whole = isinstance(value, int) and isinstance(figure, float)
        return value if name == "schema_version" or seen % every or whole else figure

    return changed(document, "")


# What charts are made of.


def test_few_points_are_drawn_as_they_are() -> None:
    points = [(float(index), 1.0) for index in range(10)]
    assert list(thinned(points, 10)) == points
    assert list(sampled(points, 10)) == points


def test_a_thinned_line_keeps_the_lowest_and_highest_of_each_run_in_order() -> None:
    points = [(float(x), y) for x, y in enumerate([5, 1, 9, 4, 3, 3, 7, 2.0])]
    assert list(thinned(points, 4)) == [(1, 1), (2, 9), (6, 7), (7, 2)]


def test_a_thinned_cloud_is_as_dense_everywhere_and_keeps_the_highest() -> None:
    points = [(float(index), float(index * 7919 % 10007)) for index in range(10_000)]
    drawn = sampled(points, 1000)
    assert 900 <= len(drawn) <= 1000
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)
    counts, _ = np.histogram([x for x, _ in drawn], bins=10, range=(0, 10_000))
    assert counts.min() >= 95
    assert counts.max() <= 105
    heights, _ = np.histogram([y for _, y in drawn], bins=5)
    assert heights.min() > 150
    assert set(sorted(y for _, y in points)[-10:]) <= {y for _, y in drawn}


def test_a_spread_counts_as_numpy_does() -> None:
    random = np.random.default_rng(5)
    series = [random.normal(10, 1, 5000).tolist(), random.normal(12, 1, 200).tolist(), []]
    found = spread(series)
    assert found is not None
    assert not found.logarithmic
    for values, shares, beyond in zip(series, found.shares, found.beyond, strict=True):
        counts, _ = np.histogram(values, bins=found.edges)
        assert shares == pytest.approx(100 * counts / max(len(values), 1))
        assert beyond == sum(value > found.edges[-1] for value in values)
    assert found.beyond[1] <= 2


def test_a_spread_over_decades_has_bins_that_grow() -> None:
    found = spread([[0.01] * 50, [0.01, 0.1, 1.0] * 30])
    assert found is not None
    assert found.logarithmic
    factors = np.array(found.edges[1:]) / np.array(found.edges[:-1])
    assert factors == pytest.approx(np.full(60, 100 ** (1 / 60)))
    assert found.beyond == (0, 0)


@pytest.mark.parametrize("value", [0.0, 0.02, -1.0])
def test_equal_values_are_all_in_one_bin(value: float) -> None:
    found = spread([[value] * 7])
    assert found is not None
    assert sorted(found.shares[0])[-2:] == [0, 100]
    assert spread([[], []]) is None


def test_labels_are_short_and_all_different() -> None:
    names = ["config", "x" * 50 + "1", "x" * 50 + "2", "a<b>&c"]
    report = make_report([make_route(name) for name in names])
    assert labels(report) == ["config", f"2. {'x' * 31}…", f"3. {'x' * 31}…", "a&lt;b&gt;&amp;c"]


# Sections of others, and pages without a report.


def test_a_section_of_the_callers_own_is_put_in_as_it_is() -> None:
    chart = Chart("A chart", "in words", [{"x": [1], "y": [2]}], {}, note="below")
    made = Section("Same answers?", '<p class="x">as it is</p>', [chart])
    root = parsed(make_report(), [made])
    section = root.one("section", id="section-1")
    assert section.one("h2").words == "Same answers?"
    assert section.one("p", class_="x").words == "as it is"
    assert section.one("figure").one("h3").words == "A chart"
    assert "Same answers?" in root.one("nav").words


def test_sections_alone_make_a_page() -> None:
    root = Document(render_sections("A & B", "what <it> is", [Section("One", "<p>1</p>")])).root
    assert root.one("h1").words == "A & B"
    assert root.one("p", class_="lead").words == "what <it> is"
    assert root.one("section", id="section-1").words == "One 1"
    assert root.one("title").words == "A & B"


def test_a_table_escapes_its_cells_and_joins_equal_headings() -> None:
    rows = [("a<b", "1"), ("a<b", "2"), ("c", "<script>")]
    root = Document(str(table(["Route", "KL"], rows, 'A "table"'))).root
    first, second = root.all("tbody")
    assert first.one("th").attributes == {"scope": "rowgroup", "rowspan": "2"}
    assert first.one("th").words == "a<b"
    assert [cell.words for cell in root.all("td")] == ["1", "2", "<script>"]
    assert second.one("th").attributes["scope"] == "row"
    assert root.one("caption").words == 'A "table"'


@pytest.mark.parametrize(
    ("missing", "found"),
    [(["plotly"], "no plotly"), (["jinja2", "plotly"], "no jinja2 and no plotly")],
)
def test_without_its_packages_a_page_is_refused_with_the_extra_that_brings_them(
    missing: list[str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    for write in (require, lambda: render(make_report()), lambda: render_sections("", "", [])):
        with pytest.raises(MachineError, match="packages that it needs are not installed") as error:
            write()
        assert error.value.facts == {"found": found, "fix": "pip install turnout[report]"}


# Colours that can be told from what is behind them (WCAG 2.2, 1.4.3 and 1.4.11).


def colours() -> dict[str, tuple[str, str]]:
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE.read_text("utf-8"))
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_reckoned_as_the_standard_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("front", "backs", "least"),
    [
        (["ink", "quiet", "link", "good", "bad"], ["page", "raised"], 4.5),
        (["ink"], ["mark", "warn"], 4.5),
        ([f"c{index}" for index in range(8)], ["page"], 3.0),
    ],
)
def test_text_and_lines_stand_out(
    front: list[str], backs: list[str], least: float, theme: int
) -> None:
    known = colours()
    for name in front:
        for back in backs:
            assert contrast(known[name][theme], known[back][theme]) >= least, (name, back)
