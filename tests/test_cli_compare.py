"""`turnout compare` as a person, a pull request and a CI job would call it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from report_fixtures import (
    change,
    failed_route,
    make_environment,
    make_report,
    make_requests,
    make_route,
    make_workload,
    write_report,
)
from session_fixtures import Done, Terminal
from turnout.perf.report import Aggregate, Report

pytest_plugins = ("session_plugin",)

GATE = "decode_tokens_per_second < 0.95"


class Comparing:
    """Writes two reports and compares them."""

    def __init__(self, turnout: Terminal, folder: Path) -> None:
        self._turnout, self._folder = turnout, folder

    def __call__(self, base: Report, other: Report, *options: str) -> Done:
        paths = [
            write_report(report, self._folder / name)
            for report, name in ((base, "A.json"), (other, "B.json"))
        ]
        return self._turnout("compare", *paths, *options)


@pytest.fixture
def comparing(turnout: Terminal, tmp_path: Path) -> Comparing:
    return Comparing(turnout, tmp_path)


def table(text: str) -> list[list[str]]:
    """Cells of lines, between which are two spaces or more."""
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def exact(speeds: dict[str, float]) -> Report:
    return make_report(speeds, noise=0.0)


def test_every_route_has_a_table_with_medians_ratios_intervals_and_verdicts(
    comparing: Comparing, tmp_path: Path
) -> None:
    done = comparing(exact({"config": 1.0, "ep=cpu": 1.0}), exact({"config": 0.8, "ep=cpu": 1.0}))
    assert (done.code, done.err) == (0, "")
    files, config, cpu, note = done.out.split("\n\n")
    assert files.splitlines() == [
        f"{name}: {tmp_path / name}.json: smollm2, measured 2026-12-01T12:00:00Z" for name in "AB"
    ]
    head = ["Figure", "A", "B", "B / A", "95% interval", "B is"]
    slower, same = ["0.800", "0.800 to 0.800", "slower"], ["1.000", "1.000 to 1.000", "cannot tell"]
    assert table(config) == [
        ["config, pp32+tg16"],
        head,
        ["prefill_tokens_per_second", "400.00 tokens/s", "320.00 tokens/s", *slower],
        ["decode_tokens_per_second", "50.00 tokens/s", "40.00 tokens/s", *slower],
        ["model_ttft_s", "100.0 ms", "125.0 ms", "1.250", "1.250 to 1.250", "slower"],
        # 2 ms around the model are no slower.
        ["request_s", "402.0 ms", "502.0 ms", "1.249", "1.249 to 1.249", "slower"],
    ]
    assert table(cpu) == [
        ["ep=cpu, pp32+tg16"],
        head,
        ["prefill_tokens_per_second", "400.00 tokens/s", "400.00 tokens/s", *same],
        ["decode_tokens_per_second", "50.00 tokens/s", "50.00 tokens/s", *same],
        ["model_ttft_s", "100.0 ms", "100.0 ms", *same],
        ["request_s", "402.0 ms", "402.0 ms", *same],
    ]
    assert note.startswith("note: Intervals are unpaired.")


def test_quiet_leaves_out_files_and_notes(comparing: Comparing) -> None:
    other = make_report(environment=make_environment(cpu="Other CPU"))
    loud = comparing(make_report(), other)
    quiet = comparing(make_report(), other, "-q")
    assert "note: CPU: A Example CPU 3000, B Other CPU" in loud.out
    assert quiet.out.startswith("config, pp32+tg16\n")
    assert "note" not in quiet.out
    assert quiet.out.strip() in loud.out


def test_answers_that_changed_are_said_whatever_else_and_shown_with_verbose(
    comparing: Comparing,
) -> None:
    base = make_report({"config": 1.0})
    requests = [
        change(request, token_ids_sha256="c1" * 32, text="Lyon.\x1b[31m\n")
        for request in make_requests()
    ]
    other = make_report([make_route("config", requests)])
    says = "config, pp32+tg16: THE ANSWERS CHANGED: B gives other tokens than A\n"
    assert says in comparing(base, other, "-q").out
    shown = comparing(base, other, "-v").out
    assert says + "  A: 'The capital of France is Paris.'\n  B: 'Lyon." in shown
    assert "\x1b" not in shown
    assert (
        "**The answers changed**: `config`, `pp32+tg16`" in comparing(base, other, "--markdown").out
    )
    assert "ANSWERS" not in comparing(base, base).out


def test_routes_without_a_partner_and_routes_that_failed_are_listed(comparing: Comparing) -> None:
    base = make_report([make_route("config"), make_route("ep=qnn"), make_route("ep=cpu")])
    other = make_report([make_route("config"), failed_route("ep=qnn")])
    done = comparing(base, other)
    failed = "ep=qnn failed in B: unavailable during loading: QNNExecutionProvider is not installed"
    assert done.code == 0
    assert f"\n{failed} here.\nonly A has the route ep=cpu\n" in done.out
    # What only one of them measured is shown as such.
    assert ["request_s", "402.3 ms", "-", "-", "-", "cannot tell"] in table(done.out)


# ---- gates -------------------------------------------------------------------------------------


def test_a_gate_that_holds_fails_the_comparison(comparing: Comparing) -> None:
    done = comparing(exact({"config": 1.0}), exact({"config": 0.8}), "--fail-if", GATE)
    assert done.code == 1
    assert f"\ngate {GATE}: holds: this comparison fails\n" in done.out
    assert "  config, pp32+tg16: 0.800 (0.800 to 0.800)\n" in done.out


def test_a_gate_that_does_not_hold_lets_it_pass(comparing: Comparing) -> None:
    done = comparing(exact({"config": 1.0}), exact({"config": 0.96}), "--fail-if", GATE)
    assert done.code == 0
    assert f"\ngate {GATE}: does not hold\n" in done.out


def test_one_gate_of_several_is_enough(comparing: Comparing) -> None:
    reports = exact({"one": 1.0, "two": 1.0}), exact({"one": 0.5, "two": 1.0})
    gates = ["--fail-if", "two: tpot_s > 1.1", "--fail-if", "one: tpot_s > 1.1"]
    done = comparing(*reports, *gates)
    assert done.code == 1
    assert "gate two: tpot_s > 1.1: does not hold\n" in done.out
    assert "gate one: tpot_s > 1.1: holds" in done.out
    assert comparing(*reports, *gates[:2]).code == 0


@pytest.mark.parametrize("form", ["--json", "--markdown", "-q"])
def test_a_gate_fails_where_a_route_has_vanished(comparing: Comparing, form: str) -> None:
    both, one = exact({"config": 1.0, "ep=cpu": 1.0}), exact({"config": 1.0})
    done = comparing(both, one, "--fail-if", GATE, form)
    assert done.code == 1
    assert re.search(r'could not be judged|"holds": null', done.out)
    assert comparing(one, both, "--fail-if", GATE, form).code == 0
    assert comparing(both, one, "--fail-if", "config: " + GATE, form).code == 0


def test_a_gate_fails_where_a_workload_has_vanished(comparing: Comparing) -> None:
    one, two = (
        make_report({"config": 1.0}, workloads=[make_workload(size) for size in sizes])
        for sizes in ((32,), (32, 128))
    )
    done = comparing(two, one, "--fail-if", GATE, "--allow", "lengths", "-q")
    assert done.code == 1
    assert "\nonly A has the workload pp128+tg16\n" in done.out
    new = comparing(one, two, "--fail-if", GATE, "--allow", "lengths", "-q")
    assert new.code == 0
    assert "\nonly B has the workload pp128+tg16\n" in new.out


def test_a_gates_figure_is_shown(comparing: Comparing) -> None:
    done = comparing(make_report(), make_report(), "--fail-if", "token_s > 2")
    assert "\n  token_s " in done.out


def test_a_gate_that_could_not_be_judged_fails_and_says_why(comparing: Comparing) -> None:
    few = make_report({"config": 1.0}, rounds=3)
    done = comparing(few, few, "--fail-if", GATE)
    assert done.code == 1
    assert f"gate {GATE}: could not be judged: this comparison fails\n" in done.out
    assert "  config, pp32+tg16: 3 and 3 values, of which an interval needs 6 each\n" in done.out
    assert "too few values: 3 and 3  cannot tell" in done.out


@pytest.mark.parametrize("form", ["--json", "--markdown", "-q"])
def test_a_gate_fails_in_every_form(comparing: Comparing, form: str) -> None:
    done = comparing(exact({"config": 1.0}), exact({"config": 0.5}), "--fail-if", GATE, form)
    assert done.code == 1
    assert "holds" in done.out


# ---- other forms -------------------------------------------------------------------------------


def test_json_is_one_document_with_everything(comparing: Comparing, tmp_path: Path) -> None:
    done = comparing(
        exact({"config": 1.0, "two": 1.0}),
        make_report({"config": 0.8}, rounds=12, noise=0.0),
        "--json",
        "--figure",
        "tpot_s",
        "--fail-if",
        "tpot_s > 1.1",
    )
    assert (done.code, done.err) == (1, "")
    document = done.json
    (row,) = document.pop("comparisons")
    (gate,) = document.pop("gates")
    side = {
        "created": "2026-12-01T12:00:00Z",
        "bundle": "smollm2",
        "bundle_sha256": "b0" * 32,
    }
    assert document == {
        "schema_version": 1,
        "base": {"path": str(tmp_path / "A.json"), **side},
        "other": {"path": str(tmp_path / "B.json"), **side},
        "paired": False,
        "margin": 0.03,
        "changed_answers": [],
        "failed": [],
        "alone": ["only A has the route two"],
        "unmeasured": [],
        "notes": ["iterations: A 10, B 12"],
    }
    assert row == {
        "route": "config",
        "workload": "pp32+tg16",
        "figure": "tpot_s",
        "base_median": pytest.approx(0.02),
        "base_samples": 10,
        "other_median": pytest.approx(0.025),
        "other_samples": 12,
        "ratio": pytest.approx(1.25),
        "interval": pytest.approx([1.25, 1.25]),
        "verdict": "slower",
    }
    assert gate == {
        "gate": "tpot_s > 1.1",
        "holds": True,
        "because": ["config, pp32+tg16: 1.250 (1.250 to 1.250)"],
    }


def test_markdown_is_a_table_for_a_pull_request(comparing: Comparing) -> None:
    done = comparing(
        exact({"config": 1.0}), exact({"config": 0.8}), "--markdown", "--fail-if", GATE
    )
    lines = done.out.splitlines()
    assert lines[0] == "**B against A: 4 slower, 0 faster, 0 cannot tell**"
    assert lines[2].startswith("| Route | Workload | Figure | A | B | B / A | 95% interval |")
    assert lines[5] == (
        "| `config` | `pp32+tg16` | decode_tokens_per_second | 50.00 tokens/s | 40.00 tokens/s "
        "| 0.800 | 0.800 to 0.800 | slower |"
    )
    assert len({line.count("|") for line in lines[2:8]}) == 1
    assert any(line.startswith("- gate decode") for line in lines)
    assert any(line.startswith("Intervals are unpaired.") for line in lines)


def words_of(markdown: str) -> tuple[list[str], list[str]]:
    """Texts and code spans, as a peer reads them."""
    tokens = [
        child
        for token in MarkdownIt("commonmark").enable("table").parse(markdown)
        for child in token.children or ()
    ]
    texts, codes = (
        [token.content for token in tokens if token.type == kind]
        for kind in ("text", "code_inline")
    )
    return texts, codes


def test_markdown_of_routes_with_a_device_calls_nobody(comparing: Comparing) -> None:
    name = "stage lm_head=cpu@cpu"
    base = make_report([make_route("config"), make_route(name), failed_route("x@y")])
    other = make_report([make_route("config"), make_route("x@y"), make_route("b@c")])
    out = comparing(base, other, "--markdown", "--fail-if", f"{name}: tpot_s > 1.1").out
    assert "\\u" not in out
    texts, codes = words_of(out)
    assert {name, "b@c", "x@y"} <= set(codes)
    assert not [text for text in texts if re.search(r"@\w", text)]
    assert f"gate {name}: tpot_s > 1.1: could not" in "".join(texts).replace("\u200b", "")


NASTY = "a|b `c` <img src=x> @somebody \x1b[31m\n# x"


def test_names_of_a_report_are_no_markup_and_drive_no_terminal(comparing: Comparing) -> None:
    workload = make_workload(name=NASTY)
    requests = make_requests()
    hers = [change(request, text=NASTY, token_ids_sha256="c1" * 32) for request in requests]
    base = make_report([make_route(NASTY, requests)], workloads=[workload])
    other = make_report(
        [make_route(NASTY, hers), failed_route("other " + NASTY, problem=NASTY)],
        workloads=[workload],
        environment=make_environment(cpu=NASTY),
    )
    for form in ("-v", "--markdown"):
        out = comparing(base, other, form).out
        assert "\x1b" not in out
        assert "\n# x" not in out
    texts, codes = words_of(out)
    assert any("@somebody" in code for code in codes)
    assert not [text for text in texts if re.search(r"@\w", text)]
    assert any("@\u200bsomebody" in text for text in texts)
    row = out.splitlines()[4]
    assert row.replace("\\|", "").count("|") == 9
    assert "<img" not in out.replace("\\<", "").partition("<details>")[2].replace("</details>", "")
    assert "- CPU: A Example CPU 3000, B a\\|b \\`c\\` \\<img" in out


def test_the_figures_to_show_can_be_chosen(comparing: Comparing) -> None:
    options = [word for name in Aggregate.__struct_fields__ for word in ("--figure", name)]
    done = comparing(make_report({"config": 1.0}), make_report({"config": 1.0}), "-q", *options)
    shown = [line.split()[0] for line in done.out.splitlines()[2:]]
    assert shown == list(Aggregate.__struct_fields__)


def test_a_wider_margin_leaves_more_open(comparing: Comparing) -> None:
    reports = exact({"config": 1.0}), exact({"config": 0.8})
    assert "slower" in comparing(*reports, "-q").out
    assert "slower" not in comparing(*reports, "-q", "--margin", "0.25").out


# ---- what is refused ---------------------------------------------------------------------------


def test_unlike_reports_are_refused_and_what_is_allowed_is_a_note(comparing: Comparing) -> None:
    base = make_report()
    other = make_report(bundle=change(base.bundle, content_sha256="c1" * 32))
    done = comparing(base, other)
    assert (done.code, done.out) == (2, "")
    assert "bundle: A measured smollm2 (b0b0b0b0b0b0), B smollm2 (c1c1c1c1c1c1)" in done.err
    assert "--allow bundle" in done.err
    allowed = comparing(base, other, "--allow", "bundle")
    assert allowed.code == 0
    assert "note: allowed: bundle: A measured smollm2" in allowed.out
    assert comparing(base, other, "--allow", "prompt,lengths").code == 2
    assert comparing(base, other, "--allow", "all").code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--fail-if", "speed < 1"], "'speed' is no figure"),
        (["--fail-if", "tpot_s"], "--fail-if"),
        (["--allow", "everything"], "bundle, prompt, lengths, all"),
        (["--figure", "speed"], "model_ttft_s, request_ttft_s, tpot_s"),
        (["--margin", "1"], "0 to below 1"),
        (["--margin", "-0.1"], "0 to below 1"),
        (["--margin", "nan"], "0 to below 1"),
        (["--markdown", "--json"], "Only one document"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    comparing: Comparing, options: Sequence[str], says: str
) -> None:
    done = comparing(make_report(), make_report(), *options)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "nothing"),
        (b"", "not a valid document"),
        (b"[]", "not a valid document"),
        (b'{"document": "turnout inventory", "schema_version": 1}', "not a valid document"),
        (b'{"document": "turnout perf report", "schema_version": 99}', "newer"),
    ],
)
def test_what_is_no_report_is_refused_naming_the_file(
    turnout: Terminal, tmp_path: Path, data: bytes | None, says: str
) -> None:
    good, bad = write_report(make_report(), tmp_path / "A.json"), tmp_path / "B.json"
    if data is not None:
        bad.write_bytes(data)
    for paths in ((good, bad), (bad, good)):
        done = turnout("compare", *paths)
        assert (done.code, done.out) == (2, "")
        assert "B.json" in done.err
        assert says in done.err


LACKING = "config, pp32+tg16: {} has no request_s"


@pytest.mark.parametrize(
    ("edit", "of_both"),
    [
        ({"request_s": 0.0, "tpot_s": -1.0}, "there is no request_s"),
        ({"request_s": 1e308, "tpot_s": 1e-308}, "there is no request_s"),
        ({"workload": 7}, "config, pp32+tg16: measured in neither report"),
        ({"workload": -1}, "config, pp32+tg16: measured in neither report"),
    ],
)
def test_of_a_report_that_somebody_made_up_a_figure_that_cannot_be_is_none(
    comparing: Comparing, edit: dict[str, Any], of_both: str
) -> None:
    good = make_report({"config": 1.0})
    requests = tuple(change(request, **edit) for request in make_requests())
    made_up = make_report([change(make_route("config"), requests=requests)], comparisons=())
    for reports, because in (
        ((made_up, good), LACKING.format("A")),
        ((good, made_up), LACKING.format("B")),
        ((made_up, made_up), of_both),
    ):
        done = comparing(*reports, "--fail-if", "request_s > 2")
        assert (done.code, done.err) == (1, "")
        assert "could not be judged: this comparison fails\n  " + because in done.out


def test_requests_that_are_all_said_to_be_of_one_round_are_compared_all_the_same(
    comparing: Comparing,
) -> None:
    requests = tuple(change(request, round=0) for request in make_requests(noise=0.0))
    made_up = make_report([change(make_route("config"), requests=requests)], comparisons=())
    done = comparing(made_up, exact({"config": 0.4}), "--fail-if", "request_s > 2")
    assert done.code == 1
    assert "holds: this comparison fails\n  config, pp32+tg16: 2.493 (2.493 to 2.493)" in done.out
