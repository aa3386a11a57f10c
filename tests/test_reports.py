"""What users of this field reported, and the tests that keep it from happening here.

G microsoft/onnxruntime-genai, O microsoft/onnxruntime, V microsoft/Olive, W microsoft/winml-cli,
L EleutherAI/lm-evaluation-harness, M microsoft/mobius. Tests name a report in their docstrings.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

import bundle_fixtures
from session_fixtures import Terminal
from turnout import catalog
from turnout.bundle import COMPILED, Bundle, GenaiConfig
from turnout.checking import check_config
from turnout.compiling import loadable
from turnout.errors import MachineError, UsageError
from turnout.machine import Inventory
from turnout.routing import RouteRequest, apply, resolve

pytest_plugins = ("session_plugin",)

TESTS = Path(__file__).parent
INTEL = TESTS / "data" / "inventories" / "intel-laptop.json"
SNAPDRAGON = TESTS / "data" / "inventories" / "snapdragon-laptop.json"
HAS_OPENVINO = importlib.util.find_spec("onnxruntime_ep_openvino") is not None

# Those about reading, routing, loading and prompts. Compiling has its own, later.
KEPT = [
    "W#1025",
    "L#3560",
    "L#3960",
    "G#1454",
    "G#1464",
    "G#1744",
    "W#452",
    "W#429",
    "W#1138",
    "W#569",
    "W#860",
    "G#384",
    "G#525",
    "V#1810",
    "G#1825",
    "M#247",
    "G#2006",
    "O#27832",
    "G#1993",
    "V#1962",
    "W#1051",
    "O#22131",
    "O#27353",
    "G#1425",
    "G#1558",
    "W#1053",
    "G#1349",
    "W#1042",
    "G#2344",
]

QNN = {"QNN": {"backend_type": "htp", "soc_model": "60"}}
NPU = {"OpenVINO": {"device_type": "NPU", "enable_causallm": "True"}}


def inventory(path: Path = INTEL) -> Inventory:
    return Inventory.from_json(path.read_text("utf-8"))


def flat(*entries: dict[str, Any], **options: Any) -> GenaiConfig:
    session = {**options, "provider_options": list(entries)}
    decoder = {"filename": "model.onnx", "session_options": session}
    return GenaiConfig.parse(json.dumps({"model": {"type": "llama", "decoder": decoder}}, indent=2))


def routed(config: GenaiConfig, **asked: Any) -> GenaiConfig:
    return apply(config, resolve(config, inventory(), RouteRequest(**asked)))


def test_every_report_is_named_by_a_test() -> None:
    named: set[str] = set()
    for path in TESTS.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                named |= set(re.findall(r"\b[A-Z]#\d+\b", ast.get_docstring(node) or ""))
    assert set(KEPT) - named == set()


# What was asked, and what was not


def test_not_asking_for_a_device_is_not_asking_for_the_cpu(
    turnout: Terminal, tmp_path: Path
) -> None:
    """L#3560, L#3960: an unused argument; later, its default "cpu" cleared the bundle's EP."""
    folder = bundle_fixtures.build_pipeline(tmp_path / "b", providers={"transformer": [QNN]})
    before = (folder / "genai_config.json").read_bytes()
    asked: list[list[str]] = [[], ["--device", "config"], ["--device", "cpu"], ["--ep", "cpu"]]
    found = [turnout("explain", folder, *options, "--json").json for options in asked]
    assert [route["effective"] for route in found] == ["config", "config", "cpu", "cpu"]
    eps = [next(s["ep"] for s in r["stages"] if s["stage"] == "transformer") for r in found]
    assert eps == ["QNNExecutionProvider"] * 2 + ["CPUExecutionProvider"] * 2
    assert [route["changes"] for route in found] == [False, False, True, True]
    assert (folder / "genai_config.json").read_bytes() == before


def test_options_of_an_ep_that_was_cleared_do_not_come_back() -> None:
    """G#1464: cleared EPs were back after another one was appended."""
    cleared = routed(flat(QNN, {"cuda": {"device_id": "1"}}, log_id="x"), ep="cpu")
    appended = routed(cleared, ep="openvino", device="gpu")
    options = appended.get(("model", "decoder", "session_options"))
    assert options == {"log_id": "x", "provider_options": [{"OpenVINO": {"device_type": "GPU"}}]}


def test_options_are_lost_only_with_their_ep_and_it_is_said() -> None:
    """G#1454: options were lost on the way to the same EP."""
    config = flat(NPU)
    kept = routed(config, ep="openvino", device="gpu")
    assert kept.stages()[0].providers[0].options == {
        "device_type": "GPU",
        "enable_causallm": "True",
    }
    (decision,) = resolve(config, inventory(), RouteRequest(ep="cpu")).stages
    assert decision.dropped == ("openvino: device_type=NPU", "openvino: enable_causallm=True")


def test_a_flat_bundle_that_is_forced_to_the_cpu_keeps_no_accelerator(tmp_path: Path) -> None:
    """Seen in the nearest tool: "cpu" was reported while the DML provider stayed.

    The runtime is the judge: it cannot load DML here.
    """
    dml = {"session_options": {"provider_options": [{"dml": {}}]}}
    folder = bundle_fixtures.build_flat(tmp_path / "b", decoder=dml)
    with pytest.raises(Exception, match="DML"):
        bundle_fixtures.generate(folder)
    config = routed(Bundle.open(folder).config, ep="cpu")
    (folder / "genai_config.json").write_text(config.text, "utf-8")
    assert len(bundle_fixtures.generate(folder)) == 6


@pytest.mark.parametrize("name", ["CPUExecutionProvider", "cpuexecutionprovider", "CPU", "cpu"])
def test_a_stage_that_names_the_cpu_is_no_accelerator_stage(name: str) -> None:
    """Seen in the nearest tool: `CPUExecutionProvider` was taken for an accelerator."""
    config = flat({name: {}})
    with pytest.raises(MachineError, match="no stage that runs on an EP other than the CPU"):
        routed(config, ep="openvino", scope="accelerated")
    assert routed(config, device="cpu") is config


@pytest.mark.parametrize("ep", catalog.EPS, ids=lambda ep: ep.alias)
def test_an_ep_is_itself_under_each_of_its_names(ep: catalog.Ep) -> None:
    """M#247: full EP names were not recognised."""
    names = {ep.name, ep.alias, ep.written_name, *ep.aliases}
    for name in {*names, *(n.upper() for n in names), *(n.lower() for n in names)}:
        assert flat({name: {}}).stages()[0].ep == ep.name
        assert catalog.canonical(name) == ep.name


@pytest.mark.parametrize(("ep", "device"), [("cpu", "npu"), ("cuda", "npu"), ("dml", "cpu")])
def test_an_ep_is_not_sent_to_a_device_that_it_does_not_serve(ep: str, device: str) -> None:
    """Seen in the nearest tool: it was, without complaint."""
    with pytest.raises((UsageError, MachineError)) as caught:
        routed(flat(), ep=ep, device=device)
    assert ep in str(caught.value).lower()


def test_a_bundle_for_hardware_that_is_not_there_is_refused_naming_what_is(
    turnout: Terminal, tmp_path: Path
) -> None:
    """W#429, W#452: a QNN bundle was written on an Intel machine, with exit code 0."""
    folder = bundle_fixtures.build_flat(tmp_path / "b")
    done = turnout("explain", folder, "--ep", "qnn", "--inventory", INTEL, "--json")
    assert done.code == 1
    assert "qnn" in done.err
    done = turnout("explain", folder, "--device", "npu", "--inventory", INTEL, "--json")
    assert done.json["effective"] == "openvino"
    assert not (folder / COMPILED).exists()


# Configs


def test_a_list_where_a_number_is_due_is_named_with_its_file_place_and_fix(tmp_path: Path) -> None:
    """G#384: "Unknown value pad_token_id"."""
    folder = bundle_fixtures.build_flat(tmp_path / "b")
    config = bundle_fixtures.read_config(folder)
    config["model"]["pad_token_id"] = [257]
    bundle_fixtures.write_config(folder, config)
    report = check_config(folder / "genai_config.json")
    (finding,) = [f for f in report.findings if f.path == "model.pad_token_id"]
    assert (finding.kind, finding.severity) == ("parser", "error")
    assert "number" in str(finding.expected)
    assert finding.line is not None


# Both runtimes, moved folders, and linked data


@pytest.mark.openvino
@pytest.mark.skipif(not HAS_OPENVINO, reason="onnxruntime-ep-openvino is absent")
def test_a_plugin_serves_both_runtimes_of_a_process(tmp_path: Path) -> None:
    """O#27832, G#1993: it was visible in one of them only."""
    import onnxruntime

    from turnout.machine import plugins

    plugins.register(["OpenVINOExecutionProvider"])
    assert "OpenVINOExecutionProvider" in {d.ep_name for d in onnxruntime.get_ep_devices()}
    folder = bundle_fixtures.build_flat(tmp_path / "b")
    plain = bundle_fixtures.generate(folder)
    config = Bundle.open(folder).config.edit(
        ("model", "decoder", "session_options", "provider_options"), [{"OpenVINO": {}}]
    )
    (folder / "genai_config.json").write_text(config.text, "utf-8")
    assert bundle_fixtures.generate(folder) == plain


def overridden(bundle: Bundle) -> GenaiConfig:
    request = RouteRequest(ep="cpu", session_options=())
    config = apply(bundle.config, resolve(bundle.config, Inventory.minimal(), request))
    return config.edit(("model", "decoder", "session_options", "intra_op_num_threads"), 1)


def test_no_absolute_path_is_written_and_a_moved_bundle_loads(tmp_path: Path) -> None:
    """W#1051, O#22131: an absolute path was written into a config."""
    folder = bundle_fixtures.build_pipeline(tmp_path / "before")
    tokens = bundle_fixtures.generate(folder)
    derived = loadable(Bundle.open(folder), overridden(Bundle.open(folder)))
    assert derived != folder
    assert str(tmp_path) not in (derived / "genai_config.json").read_text("utf-8")
    moved = folder.rename(tmp_path / "after")
    again = loadable(Bundle.open(moved), overridden(Bundle.open(moved)))
    assert again.is_relative_to(moved)
    assert bundle_fixtures.generate(again) == tokens


def test_a_hub_caches_linked_weights_load_by_every_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O#27353: the runtime refuses external data behind a link that leaves the graph's folder."""
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    source = bundle_fixtures.build_pipeline(tmp_path / "source")
    tokens = bundle_fixtures.generate(source)
    hub = bundle_fixtures.as_hub_cache(source, tmp_path / "models--x--y")
    # A graph that is a file of its own beside links, as a tool that rewrites it leaves it.
    graph = hub / "transformer.onnx"
    data = graph.read_bytes()
    graph.unlink()
    graph.write_bytes(data)
    with pytest.raises(Exception, match="External data path"):
        bundle_fixtures.generate(hub)
    bundle = Bundle.open(hub)
    for config in (bundle.config, overridden(bundle)):
        assert bundle_fixtures.generate(loadable(bundle, config)) == tokens
