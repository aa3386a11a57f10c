"""Saved routes: what is read back is what was decided, or it is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import build_flat, build_pipeline
from turnout.building import build
from turnout.bundle import Bundle
from turnout.errors import (
    OutputExistsError,
    TurnoutError,
    UnknownEpError,
    UnknownStageError,
    UsageError,
)
from turnout.machine import Device, InstalledEp, Inventory
from turnout.machine.inventory import Platform
from turnout.machine.plugins import platform_word
from turnout.routing import Route, apply, resolve, route, routefile
from turnout.routing.request import RouteRequest, parse_option, parse_stage

INVENTORIES = Path(__file__).parent / "data" / "inventories"
INTEL = Inventory.from_json((INVENTORIES / "intel-laptop.json").read_text("utf-8"))
CORPUS = Path(os.environ.get("TURNOUT_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
OPENVINO = {"OpenVINO": {"device_type": "NPU", "num_streams": "2"}}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """Three stages; the bundle runs the middle one on OpenVINO's npu."""
    folder = build_pipeline(tmp_path / "bundle", providers={"transformer": [OPENVINO]})
    return Bundle.open(folder)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "r.json"


def edited(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(file.read_text("utf-8"))
    change(document)
    file.write_text(json.dumps(document), "utf-8")


REQUESTS = {
    "nothing": RouteRequest(),
    "cpu": RouteRequest(ep="cpu"),
    "an EP": RouteRequest(ep="openvino"),
    "a device": RouteRequest(device="gpu"),
    "the best device": RouteRequest(device="auto"),
    "scope": RouteRequest(ep="openvino", device="gpu", scope="accelerated"),
    "stages": RouteRequest(
        ep="openvino", stages=(parse_stage("lm_head=cpu"), parse_stage("transformer=config"))
    ),
    "options": RouteRequest(
        ep="openvino",
        provider_options=(parse_option("transformer:cache_dir=a:b=c"),),
        session_options=(
            parse_option("intra_op_num_threads=2"),
            parse_option("lm_head:enable_mem_pattern=false"),
            parse_option("session.x=\u00e9\n\"'"),
        ),
    ),
    "exact": RouteRequest(ep="openvino", device="cpu", reproducible=True),
}


@pytest.mark.parametrize("asked", REQUESTS)
def test_what_is_read_back_is_the_same_route_and_gives_the_same_config(
    bundle: Bundle, file: Path, asked: str
) -> None:
    decided = resolve(bundle.config, INTEL, REQUESTS[asked])
    decided.save(file)
    loaded = Route.load(file, bundle, INTEL)
    assert replace(loaded, stages=(), warnings=()) == replace(decided, stages=(), warnings=())
    assert loaded.stages == decided.stages
    assert apply(bundle.config, loaded).text == apply(bundle.config, decided).text
    assert loaded.to_json() == decided.to_json()


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")
@pytest.mark.parametrize("asked", ["nothing", "cpu", "an EP", "a device"])
def test_routes_of_other_peoples_configs_survive_saving(
    tmp_path: Path, file: Path, asked: str
) -> None:
    tried = 0
    for number, config in enumerate(sorted((CORPUS / "genai_configs").glob("*.json"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "genai_config.json").write_bytes(config.read_bytes())
        try:
            bundle = Bundle.open(folder)
            decided = resolve(bundle.config, INTEL, REQUESTS[asked])
        except TurnoutError:
            continue
        decided.save(file)
        loaded = Route.load(file, bundle, INTEL)
        assert loaded.stages == decided.stages, config.name
        assert apply(bundle.config, loaded).text == apply(bundle.config, decided).text
        tried += 1
    assert tried > 40


def test_the_decision_is_saved_and_not_just_the_request(bundle: Bundle, file: Path) -> None:
    """A device that was the best one there stays the decided one, wherever the route goes."""
    decided = resolve(bundle.config, INTEL, RouteRequest(device="auto"))
    assert decided.stages[0].device == "npu"
    decided.save(file)
    loaded = Route.load(file, bundle)  # this machine has none
    assert [stage.device for stage in loaded.stages] == ["npu", "npu", "npu"]
    assert (loaded.requested, loaded.effective) == ("--device auto", "openvino")


def test_the_document_says_what_was_decided_and_for_what(bundle: Bundle, file: Path) -> None:
    resolve(bundle.config, INTEL, RouteRequest(ep="openvino")).save(file)
    document = json.loads(file.read_text("utf-8"))
    assert (document["document"], document["schema_version"]) == ("turnout route", 1)
    assert document["platform"] == "windows-x86_64"
    assert document["request"]["ep"] == "openvino"
    assert [(s["stage"], s["file"], s["before"]) for s in document["stages"]] == [
        ("embeddings", "embeddings.onnx", "CPUExecutionProvider"),
        ("transformer", "transformer.onnx", "OpenVINOExecutionProvider"),
        ("lm_head", "lm_head.onnx", "CPUExecutionProvider"),
    ]
    assert document["stages"][0]["how"] == "borrowed"
    assert document["stages"][0]["providers"] == [
        {"name": "OpenVINO", "options": OPENVINO["OpenVINO"]}
    ]


def test_no_path_of_a_library_is_saved(bundle: Bundle, file: Path) -> None:
    there = InstalledEp(
        name="OpenVINOExecutionProvider",
        source="TURNOUT_EP_PATH",
        library="/somewhere/libplugin.so",
        devices=(Device(kind="cpu"), Device(kind="npu")),
    )
    inventory = Inventory(platform=Platform("linux-x86_64"), runtimes={}, eps=(there,))
    resolve(bundle.config, inventory, RouteRequest(ep="openvino")).save(file)
    assert "/somewhere" not in file.read_text("utf-8")


def test_a_route_for_no_machine_in_particular_fits_everywhere(bundle: Bundle, file: Path) -> None:
    route(bundle, ep="cpu").save(file)
    assert json.loads(file.read_text("utf-8"))["platform"] is None
    assert Route.load(file, bundle).warnings == ()


def test_a_route_for_another_platform_says_so(bundle: Bundle, file: Path) -> None:
    resolve(bundle.config, INTEL, RouteRequest(ep="openvino")).save(file)
    edited(file, lambda d: d.update(platform="windows-arm64"))
    line = f"the route was decided for windows-arm64, and this is {platform_word()}"
    assert line in Route.load(file, bundle).warnings
    # Once, however often it is saved again.
    Route.load(file, bundle).save(file)
    assert Route.load(file, bundle).warnings.count(line) == 1


def test_a_plugin_that_nobody_knows_is_taken_where_the_machine_has_it(
    bundle: Bundle, file: Path
) -> None:
    ggml = InstalledEp(name="GgmlExecutionProvider", source="x", devices=(Device(kind="cpu"),))
    inventory = Inventory(platform=Platform(platform_word()), runtimes={}, eps=(ggml,))
    decided = resolve(bundle.config, inventory, RouteRequest(ep="GgmlExecutionProvider"))
    decided.save(file)
    assert Route.load(file, bundle, inventory).stages == decided.stages
    with pytest.raises(UnknownEpError) as caught:
        Route.load(file, bundle, INTEL)
    assert caught.value.facts["where"] == f"{file}: $.stages[0].providers[0].name"
    assert "openvino" in caught.value.facts["expected"]


def drop_stage(document: dict[str, Any]) -> None:
    document["stages"].pop(1)


def set_stage(index: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["stages"][index].update(values)


def set_option(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["stages"][0]["set_options"].update({key: value})


def set_provider(index: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["stages"][index]["providers"][0].update(values)


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "newer": (lambda d: d.update(schema_version=2), "$.schema_version", "schema_version 2"),
    "version is no number": (lambda d: d.update(schema_version="1"), "$.schema_version", "str"),
    "another document": (lambda d: d.update(document="turnout report"), "$.document", "report"),
    "unknown key": (lambda d: d.update(extra=1), "$", "extra"),
    "unknown key of a stage": (set_stage(0, extra=1), "$.stages[0]", "extra"),
    "missing key": (lambda d: d["stages"][1].pop("how"), "$.stages[1]", "how"),
    "stages of another kind": (lambda d: d.update(stages="x"), "$.stages", "str"),
    "no such stage": (set_stage(2, stage="head"), "$.stages[2].stage", "'head'"),
    "a stage twice": (set_stage(2, stage="transformer"), "$.stages[2].stage", "twice"),
    "a stage too few": (drop_stage, "$.stages", "transformer"),
    "another file": (set_stage(1, file="other.onnx"), "$.stages[1].file", "'other.onnx'"),
    "another section": (set_stage(1, section="vision"), "$.stages[1].section", "'vision'"),
    "another config": (set_stage(1, before="qnn"), "$.stages[1].before", "QNN"),
    "an EP that is not there": (set_stage(1, ep="cuda"), "$.stages[1].ep", "cuda"),
    "an EP of a wrong kind": (set_stage(1, ep=None), "$.stages[1].ep", "null"),
    "a device of no kind": (set_stage(1, device="tpu"), "$.stages[1].device", "'tpu'"),
    "another device": (set_stage(1, device="gpu"), "$.stages[1].device", "'gpu'"),
    "a reason of no kind": (set_stage(1, how="guessed"), "$.stages[1].how", "'guessed'"),
    "options of a wrong kind": (
        set_provider(1, options={"num_streams": 2}),
        "$.stages[1].providers[0].options[...]",
        "int",
    ),
    "a nested option": (
        set_provider(1, options={"a": {"b": "c"}}),
        "$.stages[1].providers[0].options[...]",
        "object",
    ),
    "the filter as an option": (
        set_provider(0, options={"device_filtering_options": "x", "device_type": "NPU"}),
        "$.stages[0].providers[0].options.device_filtering_options",
        "",
    ),
    "options for the CPU EP": (
        set_stage(0, ep="cpu", device="cpu", providers=[{"name": "cpu", "options": {"x": "1"}}]),
        "$.stages[0].providers[0].options",
        "x",
    ),
    "an EP twice": (
        set_stage(0, providers=[{"name": "OpenVINO", "options": {"device_type": "NPU"}}] * 2),
        "$.stages[0].providers[1].name",
        "'OpenVINO'",
    ),
    "an EP without a name": (
        set_stage(0, providers=[{"name": " ", "options": {}}], ep=" "),
        "$.stages[0].providers[0].name",
        "' '",
    ),
    "an unknown EP": (
        set_stage(0, ep="Foo", providers=[{"name": "Foo", "options": {}}], device=None),
        "$.stages[0].providers[0].name",
        "'Foo'",
    ),
    "a number as text": (
        set_option("intra_op_num_threads", "2"),
        "$.stages[0].set_options.intra_op_num_threads",
        "'2'",
    ),
    "a switch as a number": (
        set_option("enable_mem_pattern", 1),
        "$.stages[0].set_options.enable_mem_pattern",
        "1",
    ),
    "a free option as a number": (set_option("x.y", 1), "$.stages[0].set_options.x.y", "1"),
    "an option of a wrong kind": (set_option("x", None), "$.stages[0].set_options[...]", "null"),
    "providers as an option": (set_option("provider_options", "x"), "$.stages[0]", "provider"),
    "providers dropped": (
        set_stage(0, drop_options=["provider_options"]),
        "$.stages[0]",
        "provider_options",
    ),
    "a control character": (set_option("x", "a\0b"), "$.stages[0].set_options.x", "'a\\x00b'"),
    "a control character in a key": (set_option("x\x1b", "a"), "$.stages[0].set_options", "x1b"),
    "native code": (
        set_option("custom_ops_library", "./x.so"),
        "$.stages[0].set_options.custom_ops_library",
        "native code",
    ),
    "threads without end": (
        set_option("intra_op_num_threads", 100_000),
        "$.stages[0].set_options.intra_op_num_threads",
        "100000",
    ),
    "options that were kept, and are borrowed": (
        set_stage(0, how="kept"),
        "$.stages[0].how",
        "'borrowed'",
    ),
    "options that are the bundle's, and were kept": (
        set_stage(1, how="config"),
        "$.stages[1].how",
        "'kept'",
    ),
    "another EP than was asked": (
        lambda d: d["request"].update(ep="cpu"),
        "$.stages[0].ep",
        "CPUExecutionProvider, by what the request says",
    ),
    "a stage that nothing was asked for": (
        lambda d: d["request"].update(ep=None),
        "$.stages[0].ep",
        "CPUExecutionProvider, by what the request says",
    ),
    "a device that was never asked": (
        lambda d: d["request"].update(device="tpu"),
        "$.request",
        "'tpu'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_route_that_is_wrong_is_refused_naming_the_file_and_the_place(
    bundle: Bundle, file: Path, case: str
) -> None:
    change, place, found = BAD[case]
    resolve(bundle.config, INTEL, RouteRequest(ep="openvino")).save(file)
    edited(file, change)
    with pytest.raises(UsageError) as caught:
        Route.load(file, bundle, INTEL)
    error = caught.value
    assert error.facts["where"] == f"{file}: {place}"
    assert found in str(error)


def test_a_stage_that_takes_no_options_cannot_be_given_any(tmp_path: Path, file: Path) -> None:
    vision = {"pipeline": [{"patch_embed": {"filename": "a.onnx"}}]}
    folder = build_flat(tmp_path / "bundle", model={"vision": vision})
    bundle = Bundle.open(folder)
    route(bundle, ep="cpu").save(file)
    assert Route.load(file, bundle).stages[0].stage == "patch_embed"
    edited(file, set_option("x", "1"))
    with pytest.raises(UsageError, match="the runtime takes no options") as caught:
        Route.load(file, bundle)
    assert caught.value.facts["where"] == f"{file}: $.stages[0]"


def test_a_route_is_refused_for_a_bundle_with_other_stages(
    bundle: Bundle, file: Path, tmp_path: Path
) -> None:
    route(bundle, ep="cpu").save(file)
    with pytest.raises(UnknownStageError) as caught:
        Route.load(file, Bundle.open(build_flat(tmp_path / "flat")))
    assert caught.value.facts["expected"] == "decoder"


def test_a_route_is_refused_after_the_bundle_names_another_ep(bundle: Bundle, file: Path) -> None:
    route(bundle).save(file)
    config = bundle.path / "genai_config.json"
    config.write_text(config.read_text("utf-8").replace('"OpenVINO"', '"QNN"'), "utf-8")
    with pytest.raises(UsageError) as caught:
        Route.load(file, Bundle.open(bundle.path))
    assert "QNNExecutionProvider" in caught.value.facts["expected"]
    assert "--save-route" in caught.value.facts["fix"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"document": "turnout route"}',
        b'{"document": "turnout route", "schema_version": 1}',
        b'{"document": "turnout route", "schema_version": 1e99}',
        b'{"document": "turnout route", "schema_version": 1, "platform": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_route_is_refused(bundle: Bundle, file: Path, data: bytes) -> None:
    file.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        Route.load(file, bundle)
    assert caught.value.facts["where"].startswith(f"{file}: $")


def test_a_file_that_cannot_be_read_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json", Path(os.devnull), tmp_path / "a\0b"):
        with pytest.raises(UsageError, match="Cannot read the route"):
            Route.load(path, bundle)


def test_a_file_of_any_size_is_read_up_to_a_limit(bundle: Bundle, file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(UsageError, match="too large"):
        Route.load(file, bundle)


def test_saving_replaces_a_saved_route_and_nothing_else(bundle: Bundle, file: Path) -> None:
    route(bundle, ep="cpu").save(file)
    route(bundle).save(file)
    assert Route.load(file, bundle).requested == "config"
    file.write_text("{}")
    with pytest.raises(OutputExistsError):
        route(bundle).save(file)
    assert file.read_text() == "{}"
    assert [path.name for path in file.parent.iterdir()] == ["bundle", "r.json"]


def test_saving_replaces_no_link(bundle: Bundle, file: Path) -> None:
    route(bundle).save(file.with_name("real.json"))
    for target in ("nowhere.json", "real.json"):
        file.unlink(missing_ok=True)
        file.symlink_to(target)
        with pytest.raises(OutputExistsError) as caught:
            route(bundle, ep="cpu").save(file)
        assert caught.value.facts["found"] == f"a link to {target}"
        assert file.is_symlink()
    assert not file.with_name("nowhere.json").exists()


def test_a_bundle_may_be_given_by_its_path(bundle: Bundle, file: Path) -> None:
    decided = route(str(bundle.path), ep="cpu")
    assert decided.stages == route(bundle, ep="cpu").stages
    decided.save(str(file))
    assert Route.load(str(file), str(bundle.path)).stages == decided.stages
    assert Route.load(file, bundle.path).stages == decided.stages


@pytest.mark.parametrize("path", [None, "", 3])
def test_a_path_that_is_none_is_a_usage_error(bundle: Bundle, file: Path, path: Any) -> None:
    with pytest.raises(UsageError):
        route(path)
    route(bundle).save(file)
    with pytest.raises(UsageError):
        Route.load(path, bundle)
    with pytest.raises(UsageError):
        Route.load(file, path)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    """One model twice: with products that are exact only from unpacked weights, and in float."""
    folder = tmp_path_factory.mktemp("qwen")
    model = Path(__file__).parent / "data" / "tiny" / "qwen3-qknorm.gguf"
    quantized = build(model, folder / "quantized")
    floats = build(model, folder / "floats", precision="fp32")
    return Bundle.open(quantized), Bundle.open(floats)


def test_a_reproducible_route_is_refused_where_it_would_not_be_exact(
    qwen: tuple[Bundle, Bundle], file: Path
) -> None:
    """Both bundles have the same stages and files; what is exact for each was measured in
    tests/test_routing_real.py."""
    quantized, floats = qwen
    route(floats, reproducible=True).save(file)
    assert Route.load(file, floats).request.reproducible
    with pytest.raises(UsageError, match="not reproducible for the stage 'transformer'") as caught:
        Route.load(file, quantized)
    error = caught.value
    assert error.facts["where"] == f"{file}: $.stages[1]"
    assert "session.disable_prepacking=1" in error.facts["expected"]
    assert "--save-route" in error.facts["fix"]
    # What is exact where more is needed is exact where less is.
    route(quantized, reproducible=True).save(file)
    assert Route.load(file, floats).request.reproducible


def test_a_route_that_lost_what_makes_it_exact_is_refused(
    qwen: tuple[Bundle, Bundle], file: Path
) -> None:
    quantized, _ = qwen
    resolve(quantized.config, INTEL, REQUESTS["exact"], unpacked=frozenset({"transformer"})).save(
        file
    )
    edited(file, lambda d: d["stages"][1]["providers"][0]["options"].pop("load_config"))
    with pytest.raises(UsageError, match="not reproducible") as caught:
        Route.load(file, quantized, INTEL)
    assert "load_config=" in caught.value.facts["expected"]


def test_saving_where_nothing_can_be_written_is_an_error(bundle: Bundle, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "r.json", tmp_path / "a\0b"):
        with pytest.raises(TurnoutError):
            route(bundle).save(path)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_route_that_could_not_be_read_back_is_not_saved(
    bundle: Bundle, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routefile, "MAX_BYTES", 1000)
    with pytest.raises(UsageError, match="too large"):
        route(bundle, ep="cpu").save(file)
    assert not file.exists()
