"""Routes: which EP and device every stage gets, and why. Expected answers are written by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from turnout.bundle import Bundle, GenaiConfig
from turnout.cli.route_options import (
    DeviceOption,
    EpOption,
    RouteOptions,
    StageOption,
    inventory_from,
)
from turnout.errors import (
    DeviceUnavailableError,
    EpUnavailableError,
    MachineError,
    TurnoutError,
    UnknownDeviceError,
    UnknownEpError,
    UnknownStageError,
    UsageError,
)
from turnout.machine import Device, InstalledEp, Inventory
from turnout.machine.inventory import Platform
from turnout.routing import (
    OptionRequest,
    Route,
    RouteRequest,
    StageRequest,
    resolve,
    route,
    warnings_for,
)

INVENTORIES = Path(__file__).parent / "data" / "inventories"
Entries = list[dict[str, Any]]

NPU = {"device_type": "NPU", "enable_causallm": "True"}
QNN = {"backend_path": "QnnHtp.dll", "soc_model": "60"}


def asked_for(**options: Any) -> RouteRequest:
    """What the options of a command line ask for."""
    return RouteOptions(**options).request()


def machine(name: str) -> Inventory:
    if name == "bare":
        return Inventory.minimal()
    return Inventory.from_json((INVENTORIES / f"{name}.json").read_text("utf-8"))


def flat(providers: Entries | None = None, **options: Any) -> GenaiConfig:
    session: dict[str, Any] = {"log_id": "x", **options}
    if providers is not None:
        session["provider_options"] = providers
    document = {
        "model": {
            "type": "llama",
            "decoder": {"session_options": session, "filename": "model.onnx"},
        }
    }
    return GenaiConfig.parse(json.dumps(document, indent=2))


def pipeline(decoder: Entries | None = None, **stages: Entries | None) -> GenaiConfig:
    """Stages by name; None for one without session options."""
    names = stages or {"embeddings": None, "context": None, "iterator": None, "lm_head": None}
    laid_out = {}
    for name, providers in names.items():
        laid_out[name] = {"filename": f"{name}.onnx"}
        if providers is not None:
            laid_out[name]["session_options"] = {"provider_options": providers}
    document = {
        "model": {
            "type": "decoder-pipeline",
            "decoder": {
                "session_options": {"log_id": "x", "provider_options": decoder or []},
                "pipeline": [laid_out],
            },
        }
    }
    return GenaiConfig.parse(json.dumps(document, indent=2))


def mixed() -> GenaiConfig:
    """As such bundles are shipped: the transformer on the NPU, the rest on the CPU."""
    return pipeline(
        embeddings=None, context=[{"qnn": QNN}], iterator=[{"qnn": QNN}], lm_head=[{"cpu": {}}]
    )


def ask(config: GenaiConfig, where: str = "intel-laptop", **request: Any) -> Route:
    return resolve(config, machine(where), asked_for(**request))


def eps(found: Route) -> dict[str, str]:
    return {stage.stage: stage.alias for stage in found.stages}


# Precedence, and what an EP and a device mean on a machine

DECISIONS: list[tuple[str, str | None, str, str | type[TurnoutError]]] = [
    # machine, --ep, --device -> EP@device, or the error
    ("intel-laptop", None, "auto", "openvino@npu"),
    ("intel-laptop", None, "npu", "openvino@npu"),
    ("intel-laptop", None, "gpu", "openvino@gpu"),
    ("intel-laptop", None, "cpu", "cpu@cpu"),
    ("intel-laptop", "openvino", "config", "openvino@npu"),
    ("intel-laptop", "openvino", "auto", "openvino@npu"),
    ("intel-laptop", "openvino", "npu", "openvino@npu"),
    ("intel-laptop", "openvino", "gpu", "openvino@gpu"),
    ("intel-laptop", "openvino", "cpu", "openvino@cpu"),
    ("intel-laptop", "OpenVINOExecutionProvider", "cpu", "openvino@cpu"),
    ("intel-laptop", "OPENVINO", "gpu", "openvino@gpu"),
    ("intel-laptop", "cpu", "config", "cpu@cpu"),
    ("intel-laptop", "cpu", "cpu", "cpu@cpu"),
    ("intel-laptop", "cpu", "npu", UsageError),
    ("intel-laptop", "cpu", "gpu", UsageError),
    ("intel-laptop", "cuda", "config", EpUnavailableError),
    ("intel-laptop", "cuda", "gpu", EpUnavailableError),
    ("intel-laptop", "qnn", "npu", EpUnavailableError),
    ("intel-laptop", "nonsense", "config", UnknownEpError),
    ("intel-laptop", "nonsense", "cpu", UnknownEpError),
    ("snapdragon-laptop", None, "auto", "qnn@npu"),
    ("snapdragon-laptop", None, "npu", "qnn@npu"),
    ("snapdragon-laptop", None, "gpu", "dml@gpu"),
    ("snapdragon-laptop", "dml", "config", "dml@gpu"),
    ("snapdragon-laptop", "dml", "npu", UsageError),
    ("snapdragon-laptop", None, "cpu", "cpu@cpu"),
    ("snapdragon-laptop", "qnn", "config", "qnn@npu"),
    ("snapdragon-laptop", "qnn", "gpu", "qnn@gpu"),
    ("snapdragon-laptop", "qnn", "cpu", DeviceUnavailableError),
    ("snapdragon-laptop", "webgpu", "gpu", "webgpu@gpu"),
    ("snapdragon-laptop", "webgpu", "npu", UsageError),
    ("snapdragon-laptop", "openvino", "npu", EpUnavailableError),
    ("nvidia-workstation", None, "auto", "cuda@gpu"),
    ("nvidia-workstation", None, "gpu", "cuda@gpu"),
    ("nvidia-workstation", None, "cpu", "cpu@cpu"),
    ("nvidia-workstation", None, "npu", DeviceUnavailableError),
    ("nvidia-workstation", "cuda", "config", "cuda@gpu"),
    ("nvidia-workstation", "trt-rtx", "gpu", "nvtensorrtrtx@gpu"),
    ("nvidia-workstation", "tensorrt", "gpu", EpUnavailableError),
    ("bare", None, "auto", "cpu@cpu"),
    ("bare", None, "cpu", "cpu@cpu"),
    ("bare", None, "gpu", DeviceUnavailableError),
    ("bare", "cpu", "config", "cpu@cpu"),
    ("bare", "openvino", "config", EpUnavailableError),
]


@pytest.mark.parametrize(
    "there",
    [flat(), flat([]), flat([{"cpu": {}}]), flat([{"cuda": {"device_id": "0"}}]), pipeline()],
    ids=["nothing", "empty", "cpu", "cuda", "pipeline"],
)
@pytest.mark.parametrize(
    ("where", "ep", "device", "expected"),
    DECISIONS,
    ids=[f"{m}-{e}-{d}" for m, e, d, _ in DECISIONS],
)
def test_an_override_means_one_ep_and_device_or_an_error(
    where: str,
    ep: str | None,
    device: str,
    expected: str | type[TurnoutError],
    there: GenaiConfig,
) -> None:
    """A3, A9, A10, A11: precedence, and what `--ep` and `--device` mean on real kinds of machine.

    W#569 and W#452: exactly what was asked, or an error; never another device.
    """
    if isinstance(expected, str):
        found = ask(there, where, ep=ep, device=device)
        assert {f"{stage.alias}@{stage.device}" for stage in found.stages} == {expected}
        assert found.effective == expected.partition("@")[0]
    else:
        with pytest.raises(expected) as caught:
            ask(there, where, ep=ep, device=device)
        assert type(caught.value) is expected
        assert caught.value.facts


def test_nothing_asked_respects_the_bundle_and_looks_at_no_machine() -> None:
    """A2, A11: the default is the bundle's own word."""
    config = mixed()
    found = ask(config, "bare")
    assert eps(found) == {
        "embeddings": "cpu",
        "context": "qnn",
        "iterator": "qnn",
        "lm_head": "cpu",
    }
    assert {stage.how for stage in found.stages} == {"config"}
    assert not found.changes
    assert found.requested == "config"
    assert found.effective == "config"
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("asked", "needs"),
    [
        ({}, False),
        ({"device": "config"}, False),
        ({"ep": "cpu"}, False),
        ({"ep": "CPUExecutionProvider", "device": "cpu"}, False),
        ({"device": "cpu"}, False),
        ({"stage": ["context=cpu"]}, False),
        ({"stage": ["context=config"]}, False),
        ({"session_option": ["a=b"]}, False),
        ({"device": "auto"}, True),
        ({"device": "npu"}, True),
        ({"ep": "openvino"}, True),
        ({"ep": "nonsense"}, True),
        ({"stage": ["context=openvino"]}, True),
    ],
)
def test_the_machine_is_looked_at_only_when_the_answer_depends_on_it(
    asked: dict[str, Any], needs: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A2, A4: no discovery, nothing registered, for `config` and for the CPU EP."""
    (tmp_path / "genai_config.json").write_text(pipeline().text)
    looks = []

    def look() -> Inventory:
        looks.append(1)
        return machine("intel-laptop")

    monkeypatch.setattr(Inventory, "discover", staticmethod(look))
    if asked.get("ep") == "nonsense":
        with pytest.raises(UnknownEpError):
            route(Bundle.open(tmp_path), asked_for(**asked))
    else:
        route(Bundle.open(tmp_path), asked_for(**asked))
    assert bool(looks) is needs


def test_making_a_route_loads_no_runtime() -> None:
    code = (
        "import sys, turnout.routing as r; from turnout.machine import Inventory\n"
        "from turnout.bundle import GenaiConfig\n"
        'c = GenaiConfig.parse(\'{"model": {"decoder": {"filename": "m.onnx"}}}\')\n'
        "r.resolve(c, Inventory.minimal(), r.RouteRequest(ep='cpu'))\n"
        "print([m for m in ('onnxruntime', 'onnxruntime_genai', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert out.stdout.strip() == "[]"


def test_a_stage_outranks_the_ep_which_outranks_the_config() -> None:
    """A3, A10, G#1744: per stage EP and device."""
    found = ask(
        mixed(), ep="openvino", device="gpu", stage=["lm_head=cpu", "iterator=openvino@npu"]
    )
    rows = [(s.stage, s.alias, s.device, s.reason) for s in found.stages]
    assert rows == [
        ("embeddings", "openvino", "gpu", "--ep openvino --device gpu"),
        ("context", "openvino", "gpu", "--ep openvino --device gpu"),
        ("iterator", "openvino", "npu", "--stage iterator=openvino@npu"),
        ("lm_head", "cpu", "cpu", "--stage lm_head=cpu"),
    ]
    assert found.effective == "mixed"


def test_a_stage_may_keep_the_word_of_the_bundle_against_an_override() -> None:
    found = ask(mixed(), ep="cpu", stage=["context=config"])
    assert eps(found) == {
        "embeddings": "cpu",
        "context": "qnn",
        "iterator": "cpu",
        "lm_head": "cpu",
    }


def test_stages_outside_the_decoder_follow_the_override() -> None:
    document = {
        "model": {
            "type": "phi3v",
            "decoder": {"filename": "text.onnx"},
            "vision": {"filename": "vision.onnx"},
            "embedding": {"filename": "embedding.onnx"},
        }
    }
    config = GenaiConfig.parse(json.dumps(document))
    found = ask(config, ep="openvino", device="gpu")
    assert eps(found) == {"vision": "openvino", "embedding": "openvino", "decoder": "openvino"}
    only = ask(config, stage=["decoder=openvino@gpu"])
    assert eps(only) == {"vision": "cpu", "embedding": "cpu", "decoder": "openvino"}


def test_a_stage_that_takes_no_options_is_left_alone_and_cannot_be_asked_for() -> None:
    document = {
        "model": {
            "type": "qwen2_5_vl",
            "decoder": {"filename": "text.onnx"},
            "vision": {"pipeline": [{"vision_embed": {"filename": "a.onnx", "run_on_cpu": True}}]},
        }
    }
    config = GenaiConfig.parse(json.dumps(document))
    found = ask(config, ep="openvino")
    assert eps(found) == {"vision_embed": "cpu", "decoder": "openvino"}
    assert "takes no options" in found.stages[0].reason
    with pytest.raises(UsageError, match="cannot be routed"):
        ask(config, stage=["vision_embed=openvino"])


# Scope


def test_the_accelerated_scope_leaves_stages_that_the_bundle_keeps_on_the_cpu() -> None:
    found = ask(mixed(), ep="openvino", device="npu", scope="accelerated")
    assert eps(found) == {
        "embeddings": "cpu",
        "context": "openvino",
        "iterator": "openvino",
        "lm_head": "cpu",
    }
    assert found.warnings == ()


def test_the_pipeline_scope_says_in_one_line_which_stages_leave_the_cpu() -> None:
    found = ask(mixed(), ep="openvino", device="npu")
    assert found.effective == "openvino"
    (line,) = found.warnings
    assert "embeddings, lm_head" in line
    assert "--scope accelerated" in line


def test_the_accelerated_scope_of_a_bundle_on_the_cpu_is_an_error() -> None:
    with pytest.raises(MachineError, match="no stage that runs on an EP other than the CPU"):
        ask(pipeline(), ep="openvino", scope="accelerated")


def test_a_scope_without_an_override_is_an_error() -> None:
    with pytest.raises(UsageError, match="scope"):
        ask(pipeline(), scope="accelerated")


# Errors say what would have worked


def test_an_unknown_ep_lists_what_the_catalog_and_the_machine_know() -> None:
    """A9: an override never silently does nothing."""
    acme = InstalledEp(name="AcmeEP", source="acme-ep", devices=(Device(kind="npu"),))
    here = Inventory(platform=machine("bare").platform, runtimes={}, eps=(acme,))
    with pytest.raises(ValueError, match="unknown") as caught:
        resolve(flat(), here, RouteRequest(ep="opnvino"))
    assert isinstance(caught.value, UnknownEpError)
    assert caught.value.facts["found"] == "'opnvino'"
    assert {"cpu", "openvino", "qnn", "AcmeEP"} <= set(caught.value.facts["expected"].split(", "))


def test_an_ep_that_is_not_installed_says_what_to_install_on_that_machine() -> None:
    with pytest.raises(EpUnavailableError) as caught:
        ask(flat(), "snapdragon-laptop", ep="trt-rtx")
    assert caught.value.facts["fix"] == "pip install onnxruntime-ep-nv-tensorrt-rtx"


def test_an_ep_that_is_installed_but_broken_says_why() -> None:
    """V#1962: say how to install and register."""
    broken = InstalledEp(
        name="QNNExecutionProvider", source="onnxruntime-qnn", problem="missing libQ", fix="do x"
    )
    here = Inventory(platform=machine("bare").platform, runtimes={}, eps=(broken,))
    with pytest.raises(EpUnavailableError, match="broken") as caught:
        resolve(flat(), here, RouteRequest(ep="qnn"))
    assert caught.value.facts["found"] == "missing libQ"
    assert caught.value.facts["fix"] == "do x"


def test_a_device_that_is_not_there_says_which_are_and_what_to_install() -> None:
    """W#452: name what the machine has."""
    with pytest.raises(DeviceUnavailableError) as caught:
        ask(flat(), "nvidia-workstation", device="npu")
    assert caught.value.facts["found"] == "the machine has gpu (cuda, nvtensorrtrtx), cpu (cpu)"
    assert "pip install onnxruntime-ep-openvino" in caught.value.facts["fix"]


def test_a_device_that_can_only_be_compiled_for_is_refused_saying_so() -> None:
    """W#860."""
    with pytest.raises(DeviceUnavailableError, match="can compile on this machine but not run"):
        ask(flat(), "snapdragon-laptop", ep="qnn", device="cpu")


def test_an_unknown_stage_lists_the_stages() -> None:
    with pytest.raises(UnknownStageError) as caught:
        ask(mixed(), stage=["contxt=cpu"])
    assert caught.value.facts["expected"] == "embeddings, context, iterator, lm_head"
    with pytest.raises(UnknownStageError):
        ask(mixed(), ep="cpu", provider_option=["contxt:a=b"])


@pytest.mark.parametrize("word", ["tpu", "CPU ", ""])
def test_a_device_word_that_means_nothing_lists_those_that_do(word: str) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        RouteRequest(device=word)
    assert caught.value.facts["expected"] == "config, auto, cpu, gpu, npu"


def test_a_stage_that_is_set_to_a_device_which_the_machine_lacks_is_an_error() -> None:
    """B14: the options of a bundle for another machine are kept, and would fail at load."""
    config = flat([{"OpenVINO": {"device_type": "NPU"}}])
    openvino = InstalledEp(
        name="OpenVINOExecutionProvider", source="x", devices=(Device(kind="cpu"),)
    )
    here = Inventory(
        platform=machine("bare").platform, runtimes={}, eps=(*machine("bare").eps, openvino)
    )
    with pytest.raises(DeviceUnavailableError, match="npu of openvino") as caught:
        resolve(config, here, RouteRequest(ep="openvino"))
    assert caught.value.facts["fix"] == "add --device cpu"
    assert resolve(config, here, RouteRequest(ep="openvino", device="cpu")).changes


def test_an_ep_alone_goes_to_the_first_of_its_devices_that_is_there() -> None:
    """B14: the default device follows what is installed."""
    openvino = InstalledEp(
        name="OpenVINOExecutionProvider", source="x", devices=(Device(kind="cpu"),)
    )
    here = Inventory(platform=machine("bare").platform, runtimes={}, eps=(openvino,))
    (stage,) = resolve(flat(), here, RouteRequest(ep="openvino")).stages
    assert stage.options == {"device_type": "CPU"}


# EPs that no table knows


def test_an_ep_that_no_table_knows_is_routed_by_what_the_machine_says() -> None:
    """A7: no map from names to behaviour decides."""
    acme = InstalledEp(name="ggml", source="onnxruntime-ggml", devices=(Device(kind="cpu"),))
    here = Inventory(platform=machine("bare").platform, runtimes={}, eps=(acme,))
    (stage,) = resolve(flat(), here, RouteRequest(ep="GGML")).stages
    assert (stage.ep, stage.device, dict(stage.options)) == ("ggml", None, {})
    with pytest.raises(DeviceUnavailableError):
        resolve(flat(), here, RouteRequest(ep="ggml", device="npu"))


def test_an_unknown_ep_with_several_devices_is_narrowed_by_the_runtimes_own_filter() -> None:
    acme = InstalledEp(
        name="AcmeEP", source="acme", devices=(Device(kind="gpu"), Device(kind="npu"))
    )
    here = Inventory(platform=machine("bare").platform, runtimes={}, eps=(acme,))
    found = resolve(flat(), here, RouteRequest(ep="AcmeEP", device="gpu"))
    (entry,) = found.stages[0].providers
    assert dict(entry.device_filter) == {"hardware_device_type": "gpu"}
    assert found.stages[0].device == "gpu"


# What is reported


@pytest.mark.parametrize(
    ("asked", "requested", "effective"),
    [
        ({}, "config", "config"),
        ({"ep": "cpu"}, "--ep cpu", "cpu"),
        ({"device": "npu"}, "--device npu", "openvino"),
        ({"ep": "openvino", "device": "gpu"}, "--ep openvino --device gpu", "openvino"),
        ({"stage": ["context=cpu"]}, "--stage context=cpu", "mixed"),
        ({"stage": ["context=openvino@npu"]}, "--stage context=openvino@npu", "mixed"),
        ({"session_option": ["a=b"]}, "--session-option a=b", "config"),
        ({"reproducible": True}, "--reproducible", "config"),
        (
            {"ep": "openvino", "provider_option": ["lm_head:num_streams=1"]},
            "--ep openvino --provider-option lm_head:num_streams=1",
            "openvino",
        ),
    ],
)
def test_a_route_reports_what_was_asked_and_what_takes_effect(
    asked: dict[str, Any], requested: str, effective: str
) -> None:
    """A12: the EP that took effect, or `config`."""
    found = ask(mixed(), **asked)
    assert found.requested == requested
    assert found.effective == effective
    document = json.loads(json.dumps(found.to_json()))
    assert document["requested"] == requested
    assert document["effective"] == effective
    assert [s["stage"] for s in document["stages"]] == [s.stage for s in found.stages]


def test_a_route_says_which_eps_have_to_be_registered() -> None:
    """A7: registration follows from what takes effect, not from what was asked."""
    assert set(ask(mixed()).eps) == {"QNNExecutionProvider", "CPUExecutionProvider"}
    assert set(ask(mixed(), ep="cpu").eps) <= {"CPUExecutionProvider"}
    assert ask(mixed(), ep="openvino").eps == ("OpenVINOExecutionProvider",)


def test_what_goes_with_a_replaced_ep_is_told() -> None:
    """A6: options belong to the EP that they were written for."""
    found = ask(flat([{"qnn": QNN}], **{"ep.context_file_path": "a"}), ep="openvino", device="npu")
    assert found.stages[0].dropped == (
        "qnn: backend_path=QnnHtp.dll",
        "qnn: soc_model=60",
        "ep.context_file_path=a",
    )
    assert found.stages[0].how == "defaulted"
    assert dict(found.stages[0].options) == {"device_type": "NPU"}


# Options on top


def test_an_option_without_a_stage_goes_to_the_stages_that_the_override_reaches() -> None:
    config = pipeline(
        embeddings=None, context=[{"OpenVINO": NPU}], iterator=None, lm_head=[{"cpu": {}}]
    )
    found = ask(config, ep="openvino", stage=["lm_head=cpu"], provider_option=["num_streams=2"])
    streams = {s.stage: s.options.get("num_streams") for s in found.stages}
    assert streams == {"embeddings": "2", "context": "2", "iterator": "2", "lm_head": None}
    alone = ask(config, provider_option=["num_streams=2"])
    streams = {s.stage: s.options.get("num_streams") for s in alone.stages}
    assert streams == {"embeddings": None, "context": "2", "iterator": None, "lm_head": None}
    assert alone.effective == "config"
    assert alone.changes


@pytest.mark.parametrize(
    "asked",
    [
        {"provider_option": ["a=b"]},
        {"ep": "cpu", "provider_option": ["a=b"]},
        {"provider_option": ["lm_head:a=b"]},
    ],
)
def test_an_option_that_would_reach_no_ep_is_an_error(asked: dict[str, Any]) -> None:
    """A9: an override never silently does nothing."""
    with pytest.raises(UsageError, match="no stage to go to"):
        ask(pipeline(), **asked)


def test_an_option_for_several_eps_at_once_is_an_error() -> None:
    with pytest.raises(UsageError, match="several EPs") as caught:
        resolve(
            pipeline(a=[{"qnn": QNN}], b=[{"OpenVINO": NPU}]),
            machine("bare"),
            asked_for(provider_option=["x=y"]),
        )
    assert "STAGE:x=VALUE" in caught.value.facts["expected"]


def test_an_option_that_contradicts_the_device_that_was_asked_is_an_error() -> None:
    with pytest.raises(UsageError, match="asked to run on npu"):
        ask(flat(), ep="openvino", device="npu", provider_option=["device_type=GPU"])


def test_an_option_for_a_device_that_is_not_there_is_to_be_left_out() -> None:
    """To add --device cpu, as for a bundle's own options, would contradict it."""
    openvino = InstalledEp(
        name="OpenVINOExecutionProvider", source="x", devices=(Device(kind="cpu"),)
    )
    here = Inventory(platform=machine("bare").platform, runtimes={}, eps=(openvino,))
    asked = asked_for(ep="openvino", provider_option=["device_type=NPU"])
    with pytest.raises(DeviceUnavailableError) as caught:
        resolve(flat(), here, asked)
    assert caught.value.facts["fix"] == "leave out device_type=NPU: openvino has cpu there"


@pytest.mark.parametrize("option", ["custom_ops_library=./x.so", "decoder:custom_ops_library=x"])
def test_no_route_has_the_runtime_load_native_code(option: str) -> None:
    with pytest.raises(UsageError, match="native code"):
        ask(flat(), session_option=[option])


@pytest.mark.parametrize("key", ["intra_op_num_threads", "inter_op_num_threads"])
def test_threads_have_a_bound(key: str) -> None:
    """To start 100000 of them does not end."""
    with pytest.raises(UsageError) as caught:
        ask(flat(), session_option=[f"{key}=1025"])
    assert (caught.value.facts["found"], key in caught.value.problem) == ("1025", True)
    assert ask(flat(), session_option=[f"{key}=1024"]).stages[0].set_options == {key: 1024}


def test_what_an_inventory_lacks_is_not_to_be_mended_by_another_inventory() -> None:
    with pytest.raises(DeviceUnavailableError) as caught:
        ask(flat(), "snapdragon-laptop", ep="qnn", device="cpu")
    assert caught.value.facts["fix"].startswith("give the inventory of a machine that has one")


def test_an_option_may_choose_a_device_that_the_machine_has() -> None:
    """B13, B14: `GPU.1` is a GPU; `AUTO:...` is left to the EP."""
    (stage,) = ask(flat(), ep="openvino", provider_option=["device_type=GPU.1"]).stages
    assert (stage.device, stage.options["device_type"]) == ("gpu", "GPU.1")
    with pytest.raises(DeviceUnavailableError):
        ask(flat(), "snapdragon-laptop", ep="qnn", provider_option=["backend_type=cpu"])


def test_an_ep_that_needs_an_option_which_nothing_gives_is_warned_about() -> None:
    found = ask(flat([{"qnn": {"soc_model": "60"}}]), "snapdragon-laptop", ep="qnn")
    assert found.warnings == ("stage decoder: qnn needs the option backend_type or backend_path",)


# Exact arithmetic


def test_reproducible_makes_every_stage_exact_that_can_be() -> None:
    config = pipeline(embeddings=None, context=[{"OpenVINO": {"device_type": "GPU"}}])
    embeddings, context = ask(config, reproducible=True).stages
    assert embeddings.set_options["mlas.qnbit.force_fp32"] == "1"
    assert json.loads(context.options["load_config"]) == {
        "GPU": {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    }


def test_reproducible_adds_to_the_properties_that_are_there() -> None:
    there = {"device_type": "CPU", "load_config": '{"CPU": {"A": "b"}, "NPU": {"C": "d"}}'}
    (stage,) = ask(flat([{"OpenVINO": there}]), reproducible=True).stages
    assert json.loads(stage.options["load_config"]) == {
        "CPU": {
            "A": "b",
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        },
        "NPU": {"C": "d"},
    }


@pytest.mark.parametrize("text", ["config.json", "[]", '{"CPU": 1}'])
def test_reproducible_refuses_properties_that_it_cannot_add_to(text: str) -> None:
    config = flat([{"OpenVINO": {"device_type": "CPU", "load_config": text}}])
    with pytest.raises(TurnoutError, match="cannot be added to"):
        ask(config, reproducible=True)


def test_reproducible_says_which_stage_cannot_be_exact() -> None:
    found = ask(mixed(), reproducible=True)
    assert found.warnings == (
        "stage context: qnn cannot be made exact",
        "stage iterator: qnn cannot be made exact",
    )
    npu = ask(flat([{"OpenVINO": {"device_type": "NPU"}}]), reproducible=True)
    assert npu.warnings == ("stage decoder: openvino cannot be made exact",)


# The words of the command line


@pytest.mark.parametrize(
    "text", ["context", "=cpu", "context=", "context=openvino@", "context=@npu", ""]
)
def test_a_malformed_stage_is_refused_saying_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="malformed") as caught:
        asked_for(stage=[text])
    assert caught.value.facts["found"] == repr(text)
    assert caught.value.facts["expected"] == "NAME=EP[@DEVICE] or NAME=config"


@pytest.mark.parametrize("text", ["key", "=value", ":key=value", "stage:=value", ""])
def test_a_malformed_option_is_refused_saying_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="malformed") as caught:
        asked_for(provider_option=[text])
    assert caught.value.facts["found"] == repr(text)
    assert caught.value.facts["expected"] == "[STAGE:]KEY=VALUE"


def test_a_malformed_option_is_answered_with_an_example_of_its_own() -> None:
    for option in ("provider-option", "session-option"):
        with pytest.raises(UsageError) as caught:
            asked_for(**{option.replace("-", "_"): ["x"]})
        assert f"--{option} " in caught.value.facts["fix"]


def test_the_words_of_the_command_line_make_a_request() -> None:
    request = asked_for(
        ep="OpenVINO",
        device="GPU",
        stage=["a=cpu", "b=openvino@NPU", "c=config"],
        provider_option=['a:load_config={"CPU":{"X":"a=b"}}', "num_streams=2"],
        session_option=["b:session.intra_op.allow_spinning=0"],
    )
    assert request.device == "gpu"
    assert [tuple(s) for s in request.stages] == [
        ("a", "cpu", None),
        ("b", "openvino", "npu"),
        ("c", "config", None),
    ]
    assert [tuple(o) for o in request.provider_options] == [
        ("a", "load_config", '{"CPU":{"X":"a=b"}}'),
        (None, "num_streams", "2"),
    ]
    assert [tuple(o) for o in request.session_options] == [
        ("b", "session.intra_op.allow_spinning", "0")
    ]


def test_a_stage_that_is_routed_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="routed twice"):
        asked_for(stage=["a=cpu", "a=openvino"])


def test_a_stages_device_may_not_be_config() -> None:
    with pytest.raises(UnknownDeviceError):
        asked_for(stage=["a=openvino@config"])


def test_the_help_of_device_names_config() -> None:
    """A17."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    def probe(
        ep: EpOption = None, device: DeviceOption = "config", stage: StageOption = None
    ) -> None:
        typer.echo(f"{ep} {device} {stage}")

    text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "--device config|auto|cpu|gpu|npu" in text
    assert "config, the default, respects the bundle's own configuration" in text
    assert "NAME=EP[@DEVICE]" in text
    assert CliRunner().invoke(app, []).output == "None config None\n"


def without(word: str, *eps: InstalledEp) -> Inventory:
    """A machine of that platform with the CPU EP and these."""
    inventory = Inventory.minimal()
    return msgspec.structs.replace(
        inventory, platform=Platform(word=word), eps=(*inventory.eps, *eps)
    )


OPENVINO = InstalledEp("OpenVINOExecutionProvider", "x", devices=(Device("cpu"),))
BROKEN = InstalledEp("OpenVINOExecutionProvider", "x", problem="no libx", fix="install libx")
QNN_HOST = InstalledEp("QNNExecutionProvider", "x", devices=(Device("cpu", compile_only=True),))


@pytest.mark.parametrize(
    ("inventory", "fix"),
    [
        (without("linux-x86_64"), "pip install onnxruntime-ep-openvino"),
        (
            without("linux-x86_64", OPENVINO, QNN_HOST),
            "openvino is installed but finds no npu: check that the machine has one, and its"
            " driver",
        ),
        (without("linux-x86_64", BROKEN), "mend openvino: install libx"),
        (without("windows-arm64"), "pip install onnxruntime-qnn"),
        (without("linux-arm64"), "pip install onnxruntime-qnn"),
        (without("linux-riscv64"), "no package of an EP for npu is known for linux-riscv64"),
    ],
)
def test_the_advice_for_a_device_names_only_what_could_serve_it_there(
    inventory: Inventory, fix: str
) -> None:
    with pytest.raises(DeviceUnavailableError) as caught:
        resolve(flat(), inventory, asked_for(device="npu"))
    assert caught.value.facts["fix"] == fix


def test_stages_on_an_ep_that_can_only_compile_are_named() -> None:
    """A15: what the config asks for is not what it will get."""
    host = without("linux-x86_64", QNN_HOST)
    (line,) = warnings_for(mixed(), host)
    assert line.startswith("qnn can compile on this machine but not run")
    assert line.endswith("(context, iterator)")
    assert warnings_for(mixed(), machine("snapdragon-laptop")) == ()
    on_cpu = pipeline(a=[{"qnn": {"backend_type": "cpu"}}], b=[{"qnn": QNN}])
    (line,) = warnings_for(on_cpu, machine("snapdragon-laptop"))
    assert line.endswith("(a)")
    assert warnings_for(mixed(), Inventory.minimal()) == (), "loading says what is not installed"


def test_the_machine_is_looked_at_only_for_an_ep_that_may_only_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unable() -> Inventory:
        raise MachineError("no look")

    monkeypatch.setattr(Inventory, "discover", staticmethod(lambda: 1 / 0))
    assert warnings_for(flat([{"OpenVINO": {}}])) == ()
    monkeypatch.setattr(Inventory, "discover", staticmethod(unable))
    assert warnings_for(mixed()) == ()


def test_an_inventory_file_that_is_missing_is_wrong_usage(tmp_path: Path) -> None:
    assert inventory_from(None) is None
    with pytest.raises(UsageError, match="Cannot read the inventory"):
        inventory_from(tmp_path / "gone.json")
    found = inventory_from(INVENTORIES / "intel-laptop.json")
    assert found is not None
    assert found.ep("openvino") is not None


def test_python_callers_give_stages_and_options_as_mappings(tmp_path: Path) -> None:
    (tmp_path / "genai_config.json").write_text(mixed().text)
    found = route(
        Bundle.open(tmp_path),
        stages={"context": "openvino@npu", "iterator": "cpu"},
        provider_options={"context:num_streams": "1"},
        session_options={"intra_op_num_threads": "2"},
        inventory=machine("intel-laptop"),
    )
    assert eps(found)["context"] == "openvino"
    assert found.stages[1].options["num_streams"] == "1"
    assert found.stages[0].set_options == {"intra_op_num_threads": 2}


@pytest.mark.parametrize(
    "arguments",
    [
        {"ep": 3},
        {"ep": ["cpu"]},
        {"ep": 0},
        {"device": None},
        {"device": []},
        {"scope": 1},
        {"stages": 3},
        {"stages": "context"},
        {"stages": ["context=cpu"]},
        {"stages": [StageRequest("context", 3)]},  # type: ignore[arg-type]
        {"provider_options": 3},
        {"provider_options": [3]},
        {"session_options": "a=b"},
        {"session_options": [OptionRequest(None, "a", 3)]},  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_the_wrong_kind_is_a_usage_error(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    """A14: what is wrong with a call is a `UsageError`, not an accident inside."""
    (tmp_path / "genai_config.json").write_text(mixed().text)
    with pytest.raises(UsageError) as caught:
        route(Bundle.open(tmp_path), inventory=machine("intel-laptop"), **arguments)
    assert "found" in caught.value.facts
    assert "expected" in caught.value.facts
