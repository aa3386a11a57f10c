"""`turnout check` as a person and as a program would call it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import (
    DATA_FILE,
    as_hub_cache,
    build_flat,
    build_pipeline,
    read_config,
    write_config,
)
from session_fixtures import Done, Terminal
from turnout.bundle import Bundle
from turnout.checking import check, check_config
from turnout.checking.findings import MOST_OF_A_CODE
from turnout.errors import UsageError
from turnout.routing import route

pytest_plugins = ("session_plugin",)

INVENTORIES = Path(__file__).parent / "data" / "inventories"
FIELDS = {
    "code", "severity", "kind", "path", "found", "expected", "message", "fix", "line", "column",
}  # fmt: skip


def codes(done: Done) -> list[str]:
    return [found["code"] for found in done.json["findings"]]


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return build_pipeline(tmp_path / "bundle", two_sessions=True)


def with_qnn(folder: Path) -> Path:
    """The pipeline, with its prefill stage on a QNN device."""
    config = read_config(folder)
    (stages,) = config["model"]["decoder"]["pipeline"]
    stages["context"]["session_options"] = {
        "provider_options": [{"qnn": {"backend_type": "htp"}}],
    }
    write_config(folder, config)
    return folder


@pytest.mark.parametrize("layout", ["flat", "pipeline", "two sessions", "hub cache"])
def test_a_sound_bundle_has_no_findings(layout: str, tmp_path: Path, turnout: Terminal) -> None:
    folder = tmp_path / "bundle"
    if layout == "flat":
        build_flat(folder)
    else:
        build_pipeline(folder, two_sessions=layout != "pipeline")
    if layout == "hub cache":
        folder = as_hub_cache(folder, tmp_path / "cache")
    done = turnout("check", folder)
    assert (done.code, done.out, done.err) == (0, f"{folder}: nothing found\n", "")


def test_a_lone_config_is_told_line_by_line(tmp_path: Path, turnout: Terminal) -> None:
    path = tmp_path / "genai_config.json"
    path.write_text('{"model": {"type": "llama",\n "context_length": "8"}}', "utf-8")
    done = turnout("check", path)
    assert done.code == 1
    assert done.out.startswith(
        "error T106: model.context_length (line 2, column 20)\n"
        "  model.context_length has a value of the wrong kind.\n"
        '  found: the string "8"\n'
        "  expected: a whole number\n"
        "  fix: write the value without quotes\n"
    )
    assert "onnxruntime-genai refuses the configuration" in done.out.splitlines()[-1]


def test_json_is_one_document_with_the_fields_of_a_finding(
    pipeline: Path, turnout: Terminal
) -> None:
    (pipeline / DATA_FILE).unlink()
    done = turnout("check", pipeline, "--json")
    document = done.json
    assert done.code == 1
    assert done.err == ""
    assert document["schema_version"] == 1
    assert document["path"] == str(pipeline)
    assert document["accepted_by_parser"] is True
    assert document["errors"] == sum(f["severity"] == "error" for f in document["findings"]) > 0
    assert all(set(found) == FIELDS for found in document["findings"])
    assert {found["kind"] for found in document["findings"]} == {"files"}
    assert all(DATA_FILE in found["message"] for found in document["findings"])


def test_errors_come_first_and_exit_with_1(tmp_path: Path, turnout: Terminal) -> None:
    path = tmp_path / "genai_config.json"
    path.write_text('{"note": "mine", "model": {"type": "llama", "typo": 1}}', "utf-8")
    done = turnout("check", path, "--json")
    severities = [found["severity"] for found in done.json["findings"]]
    order = ["error", "warning", "info"]
    assert severities == sorted(severities, key=order.index)
    assert severities[0] == "error"
    assert done.code == 1


def test_warnings_exit_with_1_where_that_is_asked(pipeline: Path, turnout: Terminal) -> None:
    config = read_config(pipeline)
    text = json.dumps(config).replace('"model": {', '"model": {"pad_token_id": 0, ', 1)
    (pipeline / "genai_config.json").write_text(text, "utf-8")
    done = turnout("check", pipeline, "--json")
    assert "T110" in codes(done)
    assert done.code == 0
    assert turnout("check", pipeline, "--strict").code == 1


def test_quiet_leaves_out_what_is_merely_worth_knowing(tmp_path: Path, turnout: Terminal) -> None:
    path = tmp_path / "genai_config.json"
    path.write_text('{"note": "mine", "model": {"type": "llama", "x": 1}}', "utf-8")
    assert "info T112" in turnout("check", path).out
    assert "info T112" not in turnout("check", path, "-q").out
    assert "error T105" in turnout("check", path, "-q").out


def test_verbose_explains_every_finding(tmp_path: Path, turnout: Terminal) -> None:
    path = tmp_path / "genai_config.json"
    path.write_text('{"model": {"type": "llama"}}', "utf-8")
    assert "why:" not in turnout("check", path).out
    assert "  why: The runtime refuses a config without" in turnout("check", path, "-v").out


def test_a_path_that_is_neither_bundle_nor_config_is_wrong_usage(
    tmp_path: Path, turnout: Terminal
) -> None:
    """A14"""
    (tmp_path / "model.onnx").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "model.onnx", tmp_path / "none", tmp_path / "none.json"):
        done = turnout("check", path)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: ")


def config_text(**model: Any) -> str:
    return json.dumps({"model": {"type": "llama", **model}})


@pytest.mark.parametrize("name", ["genai_config.json", "old.json.bak", "config", "a.JSON"])
@pytest.mark.parametrize("before", [b"", b" \n\t"])
def test_a_config_is_known_by_how_it_begins(
    tmp_path: Path, turnout: Terminal, name: str, before: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(before + config_text().encode())
    assert codes(turnout("check", path, "--json"))[0] == "T108"
    assert turnout("check", path, "--ep", "cpu").code == 2
    for given in (path, str(path)):
        assert check(given).findings[0].code == "T108"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_config_in_another_encoding_is_known_too(
    tmp_path: Path, turnout: Terminal, encoding: str
) -> None:
    path = tmp_path / "config"
    path.write_text(config_text(), encoding)
    assert codes(turnout("check", path, "--json")) == ["T103"]


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_config_is_read_from_standard_input(turnout: Terminal, name: str) -> None:
    done = turnout("check", name, stdin=config_text(context_length="8"))
    assert done.code == 1
    assert "error T106: model.context_length (line 1, column 47)" in done.out
    assert done.out.splitlines()[-1].startswith("standard input: ")


def test_an_empty_path_is_not_the_folder_that_one_stands_in(
    pipeline: Path, turnout: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pipeline)
    assert turnout("check", ".").code == 0
    done = turnout("check", "")
    assert (done.code, done.out) == (2, "")
    assert "the path is empty" in done.err
    for path in ("", None, 3):
        with pytest.raises(UsageError):
            check(path)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such pipes")
def test_a_config_that_is_none_fails_as_it_does_elsewhere(
    pipeline: Path, turnout: Terminal
) -> None:
    """A14: the bundle is wrong, not the call: 1, as every other command ends with."""
    config = pipeline / "genai_config.json"
    config.unlink()
    os.mkfifo(config)
    done = turnout("check", pipeline)
    assert (done.code, done.out) == (1, "")
    assert "found: a pipe" in done.err


def test_a_path_that_no_file_system_takes_is_wrong_usage(turnout: Terminal) -> None:
    assert turnout("check", "a" * 300).code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="names need not be UTF-8 there alone")
def test_json_stays_utf8_for_a_path_that_is_not(pipeline: Path, turnout: Terminal) -> None:
    path = pipeline.rename(pipeline.with_name(os.fsdecode(b"caf\xe9")))
    done = turnout("check", path, "--json")
    assert codes(done) == ["T117"]
    assert json.loads(done.out.encode("utf-8"))["path"] == str(path)
    assert "caf\\udce9: 1 error" in turnout("check", path).out


def test_a_bundle_whose_config_cannot_be_read_gets_findings(
    pipeline: Path, turnout: Terminal
) -> None:
    path = pipeline / "genai_config.json"
    path.write_text(path.read_text("utf-8").replace("{", "{ // mine\n", 1), "utf-8")
    done = turnout("check", pipeline, "--json")
    assert done.code == 1
    assert codes(done)[0] == "T101"
    assert done.json["accepted_by_parser"] is False


def test_a_bundle_for_another_machine_fails_here_and_passes_there(
    pipeline: Path, turnout: Terminal
) -> None:
    """W#452, W#429: a bundle for an accelerator that this machine lacks is no success."""
    with_qnn(pipeline)
    intel = turnout("check", pipeline, "--json", "--inventory", INVENTORIES / "intel-laptop.json")
    assert intel.code == 1
    assert "T420" in codes(intel)
    snapdragon = INVENTORIES / "snapdragon-laptop.json"
    assert turnout("check", pipeline, "--inventory", snapdragon).code == 0


def test_a_route_is_checked_as_it_would_take_effect(pipeline: Path, turnout: Terminal) -> None:
    with_qnn(pipeline)
    intel = INVENTORIES / "intel-laptop.json"
    done = turnout("check", pipeline, "--ep", "cpu", "--json", "--inventory", intel)
    assert (done.code, codes(done)) == (0, [])


def test_a_saved_route_is_checked_as_it_would_take_effect(
    pipeline: Path, turnout: Terminal, tmp_path: Path
) -> None:
    saved = tmp_path / "route.json"
    with_qnn(pipeline)
    bundle = Bundle.open(pipeline)
    route(bundle, ep="cpu").save(saved)
    intel = INVENTORIES / "intel-laptop.json"
    done = turnout("check", pipeline, "--route", saved, "--json", "--inventory", intel)
    assert (done.code, codes(done)) == (0, [])
    assert turnout("check", pipeline, "--route", saved, "--ep", "cpu").code == 2


def test_a_route_of_a_lone_config_is_wrong_usage(pipeline: Path, turnout: Terminal) -> None:
    done = turnout("check", pipeline / "genai_config.json", "--ep", "cpu")
    assert done.code == 2
    assert "the directory of a bundle" in done.err


def test_names_from_a_config_do_not_drive_the_terminal(tmp_path: Path, turnout: Terminal) -> None:
    path = tmp_path / "genai_config.json"
    path.write_text('{"model": {"type": "llama", "\x9b31m\u202e": "\x07"}}', "utf-8")
    done = turnout("check", path)
    assert not set(done.out) & {"\x9b", "\u202e", "\x07", "\x1b"}


def test_many_findings_of_one_kind_are_counted_and_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "genai_config.json"
    keys = ", ".join(f'"k{i}": 1' for i in range(1000))
    path.write_text(f'{{"model": {{"type": "llama", "context_length": 8, {keys}}}}}', "utf-8")
    report = check_config(path)
    unknown = [finding for finding in report.findings if finding.code == "T105"]
    assert len(unknown) == MOST_OF_A_CODE + 1
    (more,) = [f for f in report.findings if "more like it" in f.message]
    assert f"({1000 - MOST_OF_A_CODE - 1} more like it.)" in more.message


def test_many_findings_that_were_counted_already_are_not_counted_again(tmp_path: Path) -> None:
    path = tmp_path / "genai_config.json"
    options = {f"option{i}": "1" for i in range(50)}
    session = {"provider_options": [{"OpenVINO": options}]}
    decoder = {"filename": "m.onnx", "session_options": session}
    model = {"type": "llama", "context_length": 8, "decoder": decoder}
    path.write_text(json.dumps({"model": model}), "utf-8")
    unknown = [found for found in check_config(path).findings if found.code == "T413"]
    assert len(unknown) == MOST_OF_A_CODE + 1
    assert unknown[-1].message == (
        f"There are {50 - MOST_OF_A_CODE} more findings of this kind, the last one here."
    )


def test_nothing_is_written(pipeline: Path, turnout: Terminal) -> None:
    before = {path: path.stat().st_mtime_ns for path in pipeline.rglob("*")}
    turnout("check", pipeline)
    assert {path: path.stat().st_mtime_ns for path in pipeline.rglob("*")} == before


def test_a_bundle_is_checked_from_python_by_its_path(pipeline: Path) -> None:
    assert check(pipeline).findings == ()
    assert check(str(pipeline)).accepted
