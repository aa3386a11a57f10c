"""Keys that stand twice: what the runtime makes of them is what is read, routed and reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bundle_fixtures
from turnout.bundle import Bundle, GenaiConfig
from turnout.checking import check
from turnout.errors import BundleError
from turnout.machine import Inventory
from turnout.routing import RouteRequest, apply, resolve

CPU, QNN = "CPUExecutionProvider", "QNNExecutionProvider"
HAS_QNN = '"provider_options": [{"qnn": {}}]'
OPTIONS = '"session_options": '

# How a decoder's options stand in the text; the EP that onnxruntime-genai 0.18 then loads.
DOUBLED = {
    "options, EP first": (f"{OPTIONS}{{{HAS_QNN}}}, {OPTIONS}{{}}", QNN),
    "options, EP last": (f"{OPTIONS}{{}}, {OPTIONS}{{{HAS_QNN}}}", QNN),
    "providers, EP first": (f'{OPTIONS}{{{HAS_QNN}, "provider_options": []}}', QNN),
    "providers and text": (f'{OPTIONS}{{{HAS_QNN}, "provider_options": "x"}}', QNN),
    "text and providers": (f'{OPTIONS}{{"provider_options": "x", {HAS_QNN}}}', QNN),
    "an option": (f'{OPTIONS}{{"session.x": "1", "session.x": "2"}}', CPU),
}


def with_decoder(folder: Path, options: str) -> Path:
    """A flat bundle whose decoder starts with that text."""
    bundle_fixtures.build_flat(folder, decoder={})
    path = folder / "genai_config.json"
    text = path.read_text("utf-8")
    start = text.index(OPTIONS)
    end = text.index('"filename"', start)
    path.write_text(f"{text[:start]}{options}, {text[end:]}", "utf-8")
    return folder


@pytest.mark.parametrize("name", DOUBLED)
def test_what_stands_twice_is_read_as_the_runtime_reads_it(name: str, tmp_path: Path) -> None:
    """The runtime says which EP takes effect: it fails to load QNN, which is not here."""
    options, ep = DOUBLED[name]
    bundle = Bundle.open(with_decoder(tmp_path / "b", options))
    assert [stage.ep for stage in bundle.stages] == [ep]
    if ep == QNN:
        with pytest.raises(Exception, match="QNN execution provider is not supported"):
            bundle_fixtures.generate(bundle.path)
    else:
        assert len(bundle_fixtures.generate(bundle.path)) == 6


@pytest.mark.parametrize("name", DOUBLED)
def test_a_route_leaves_nothing_that_stands_twice_behind(name: str, tmp_path: Path) -> None:
    """W#1025: an override takes effect, also where the last of two objects names no EP."""
    options, _ = DOUBLED[name]
    config = Bundle.open(with_decoder(tmp_path / "b", options)).config
    route = resolve(config, Inventory.minimal(), RouteRequest(ep="cpu"))
    effective = apply(config, route)
    (tmp_path / "b" / "genai_config.json").write_text(effective.text, "utf-8")
    assert len(bundle_fixtures.generate(tmp_path / "b")) == 6
    assert apply(effective, route).text == effective.text


def test_a_whole_section_that_stands_twice_hides_neither_files_nor_stages(tmp_path: Path) -> None:
    bundle = bundle_fixtures.build_flat(tmp_path / "b")
    path = bundle / "genai_config.json"
    text = path.read_text("utf-8")
    (tmp_path / "secret.onnx").write_bytes(b"x")
    (bundle / "out.onnx").symlink_to(tmp_path / "secret.onnx")
    doubled = text.replace('"search"', '"model": {"decoder": {}}, "search"')
    path.write_text(doubled.replace("model.onnx", "out.onnx"), "utf-8")
    found = Bundle.open(bundle)
    assert [stage.filename for stage in found.stages] == ["out.onnx"]
    with pytest.raises(BundleError, match="outside the folder"):
        found.graph(found.stages[0])


def test_a_provider_that_is_named_twice_has_the_last_word_on_each_option() -> None:
    """Measured: OpenVINO on its NPU and then on its CPU loads where there is only a CPU."""
    entries = (
        '[{"OpenVINO": {"device_type": "NPU", "a": "1"}}, {"OpenVINO": {"device_type": "CPU"}}]'
    )
    config = GenaiConfig.parse(
        f'{{"model": {{"decoder": {{"session_options": {{"provider_options": {entries}}}}}}}}}'
    )
    (stage,) = config.stages()
    (entry,) = stage.providers
    assert entry.options == {"device_type": "CPU", "a": "1"}


Entries = list[dict[str, Any]]
FORBID_CPU = {"session.disable_cpu_ep_fallback": "1"}


def _entries(stages: dict[str, Any], more: dict[str, Any], **first: Any) -> Entries:
    """The stages, of which the transformer starts as `first` says, and one more entry for it."""
    start = {**stages, "transformer": {**stages["transformer"], **first}}
    return [*({name: stage} for name, stage in start.items()), {"transformer": more}]


# What the pipeline becomes, and what onnxruntime-genai 0.18 then says, "" where it answers.
REPEATED: dict[str, tuple[Callable[[dict[str, Any]], Entries], str]] = {
    "nothing more": (lambda s: _entries(s, {}), ""),
    "a file, last": (lambda s: _entries(s, {"filename": "no.onnx"}), "no.onnx"),
    "a file, first": (
        lambda s: _entries(s, {"filename": "transformer.onnx"}, filename="no.onnx"),
        "",
    ),
    "inputs add up": (
        lambda s: _entries(
            s, {"inputs": s["transformer"]["inputs"][2:]}, inputs=s["transformer"]["inputs"][:2]
        ),
        "",
    ),
    "options, first": (
        lambda s: _entries(s, {"session_options": {}}, session_options=FORBID_CPU),
        "fallback to CPU EP has been explicitly disabled",
    ),
    "providers, first": (
        lambda s: _entries(
            s,
            {"session_options": {"provider_options": []}},
            session_options={"provider_options": [{"QNN": {}}]},
        ),
        "QNN execution provider is not supported",
    ),
    "the place of the first": (
        lambda s: [{"embeddings": s["embeddings"], "lm_head": {}}, *_entries(s, {})],
        "Missing Input: normed",
    ),
    "places alone, first": (
        lambda s: [{name: {} for name in s}, *({name: stage} for name, stage in s.items())],
        "",
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_entries_of_one_stage_are_one_stage_as_in_the_runtime(name: str, tmp_path: Path) -> None:
    make, error = REPEATED[name]
    folder = bundle_fixtures.build_pipeline(tmp_path / "b")
    answer = bundle_fixtures.generate(folder)
    config = bundle_fixtures.read_config(folder)
    (stages,) = config["model"]["decoder"]["pipeline"]
    config["model"]["decoder"]["pipeline"] = make(stages)
    bundle_fixtures.write_config(folder, config)
    report = check(folder)
    assert "T116" in {f.code for f in report.findings}
    # Whether the machine has the EP that is named is not asked here.
    assert bool(report.count("error")) == (bool(error) and "QNN" not in error)
    if error:
        with pytest.raises(Exception, match=error):
            bundle_fixtures.generate(folder)
    else:
        assert bundle_fixtures.generate(folder) == answer


def test_a_stage_that_is_named_twice_is_routed_as_one(tmp_path: Path) -> None:
    """The route to the CPU EP, of a stage whose first entry names an EP that is not here."""
    folder = bundle_fixtures.build_pipeline(tmp_path / "b")
    answer = bundle_fixtures.generate(folder)
    config = bundle_fixtures.read_config(folder)
    (stages,) = config["model"]["decoder"]["pipeline"]
    qnn: dict[str, Any] = {"provider_options": [{"QNN": {}}]}
    config["model"]["decoder"]["pipeline"] = _entries(
        stages, {"is_lm_head": False}, session_options=qnn
    )
    bundle_fixtures.write_config(folder, config)
    bundle = Bundle.open(folder)
    assert [stage.ep for stage in bundle.stages] == [CPU, QNN, CPU]
    assert bundle.stages[1].path == ("model", "decoder", "pipeline", 1, "transformer")
    route = resolve(bundle.config, Inventory.minimal(), RouteRequest(ep="cpu"))
    effective = apply(bundle.config, route)
    assert "QNN" not in effective.text
    (folder / "genai_config.json").write_text(effective.text, "utf-8")
    assert bundle_fixtures.generate(folder) == answer
    assert not any(f.severity == "error" for f in check(folder).findings)


def test_an_edit_makes_one_of_what_stands_twice_and_keeps_every_other_byte() -> None:
    text = '{ "a": {"x": [1]}, "a" : {"x": [2], "y": 1},\n  "b" :  [1.50, 1e3] }'
    config = GenaiConfig.parse(text)
    assert config.document == {"a": {"x": [1, 2], "y": 1}, "b": [1.5, 1000.0]}
    assert config.text == text
    assert config.edit(("a", "y"), 1) is config
    assert config.remove(("a", "z")) is config
    edited = config.edit(("a", "y"), 2)
    assert edited.document == {"a": {"x": [1, 2], "y": 2}, "b": [1.5, 1000.0]}
    inner = GenaiConfig.parse(f'{{"model": {text}, "z": 1.50}}').remove(("model", "a", "y"))
    assert inner.get(("model", "a")) == {"x": [1, 2]}
    assert inner.text.endswith('"z": 1.50}')
