"""What a route writes: only what it changes, where the runtime reads it."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

import bundle_fixtures
from turnout.bundle import GenaiConfig, GraphFile
from turnout.cli.route_options import RouteOptions
from turnout.errors import BundleError, ConfigError, MachineError, TurnoutError, UsageError
from turnout.machine import Inventory
from turnout.routing import OptionRequest, RouteRequest, apply, resolve
from turnout.routing.products import needs_unpacked

INVENTORIES = Path(__file__).parent / "data" / "inventories"
INTEL = Inventory.from_json((INVENTORIES / "intel-laptop.json").read_text("utf-8"))
DEFAULT_CORPUS = Path(__file__).parents[2] / "shared" / "corpus" / "genai_configs"
CORPUS = Path(os.environ.get("TURNOUT_CORPUS", DEFAULT_CORPUS))
HAS_OPENVINO = importlib.util.find_spec("onnxruntime_ep_openvino") is not None
Entries = list[dict[str, Any]]

NPU = {"device_type": "NPU", "enable_causallm": "True"}
QNN = {"backend_path": "QnnHtp.dll", "soc_model": "60"}
FILTER = {"device_filtering_options": {"hardware_device_type": "gpu"}}


def parsed(decoder: dict[str, Any], **sections: Any) -> GenaiConfig:
    document = {"model": {"type": "x", "decoder": decoder, **sections}}
    return GenaiConfig.parse(json.dumps(document, indent=4) + "\n")


def flat(providers: Entries | None = None, **options: Any) -> GenaiConfig:
    session: dict[str, Any] = {"log_id": "x", **options}
    if providers is not None:
        session["provider_options"] = providers
    return parsed({"session_options": session, "filename": "model.onnx"})


def pipeline(decoder_options: dict[str, Any] | None = None, **stages: Any) -> GenaiConfig:
    laid_out = {name: {"filename": f"{name}.onnx", **body} for name, body in stages.items()}
    return parsed({"session_options": decoder_options or {}, "pipeline": [laid_out]})


def routed(config: GenaiConfig, inventory: Inventory = INTEL, **asked: Any) -> GenaiConfig:
    """The effective config, with what must hold for every route."""
    route = resolve(config, inventory, RouteOptions(**asked).request())
    effective = apply(config, route)
    assert route.changes == (effective.text != config.text)
    assert route.changes or effective is config
    assert apply(effective, route).text == effective.text, "applying twice is applying once"
    again = resolve(effective, inventory, RouteOptions(**asked).request())
    assert not again.changes, "routing to what is already there changes nothing"
    for stage, decision in zip(effective.stages(), route.stages, strict=True):
        assert (stage.name, stage.ep) == (decision.stage, decision.ep)
        assert dict(decision.options) in [dict(e.options) for e in stage.providers] or (
            not decision.options
        )
    return effective


def options_of(config: GenaiConfig, stage: str = "decoder") -> Any:
    found = next(s for s in config.stages() if s.name == stage)
    return config.get((*found.path, "session_options"))


def providers_of(config: GenaiConfig, stage: str = "decoder") -> Any:
    return (options_of(config, stage) or {}).get("provider_options")


SAME = "the same bytes"

WRITTEN: list[tuple[str, Entries | None, dict[str, str], Any]] = [
    # what is there, what is asked, what is written
    ("nothing", None, {}, SAME),
    ("nothing", None, {"ep": "cpu"}, SAME),
    ("nothing", None, {"device": "cpu"}, SAME),
    ("nothing", None, {"ep": "openvino"}, [{"OpenVINO": {"device_type": "NPU"}}]),
    ("nothing", None, {"ep": "ov", "device": "gpu"}, [{"OpenVINO": {"device_type": "GPU"}}]),
    ("nothing", None, {"device": "auto"}, [{"OpenVINO": {"device_type": "NPU"}}]),
    ("empty", [], {"ep": "cpu"}, SAME),
    ("empty", [], {"device": "npu"}, [{"OpenVINO": {"device_type": "NPU"}}]),
    ("cpu", [{"cpu": {}}], {"ep": "cpu"}, SAME),
    ("cpu", [{"CPUExecutionProvider": {}}], {"ep": "cpu"}, SAME),
    ("cpu", [{"CPU": {}}], {"device": "cpu"}, SAME),
    ("cpu", [{"cpu": {}}], {"ep": "openvino"}, [{"OpenVINO": {"device_type": "NPU"}}]),
    ("ov npu", [{"OpenVINO": NPU}], {}, SAME),
    ("ov npu", [{"OpenVINO": NPU}], {"ep": "openvino"}, SAME),
    ("ov npu", [{"OpenVINO": NPU}], {"ep": "openvino", "device": "npu"}, SAME),
    ("ov npu", [{"OpenVINO": NPU}], {"device": "npu"}, SAME),
    ("ov npu", [{"OpenVINO": NPU}], {"device": "auto"}, SAME),
    (
        "ov npu",
        [{"OpenVINO": NPU}],
        {"ep": "openvino", "device": "gpu"},
        [{"OpenVINO": {"device_type": "GPU", "enable_causallm": "True"}}],
    ),
    ("ov npu", [{"OpenVINO": NPU}], {"ep": "cpu"}, []),
    ("ov npu", [{"OpenVINO": NPU}], {"device": "cpu"}, []),
    ("ov gpu", [{"openvino": {"device_type": "GPU.1"}}], {"device": "gpu"}, SAME),
    ("full name", [{"OpenVINOExecutionProvider": {}}], {"ep": "openvino"}, SAME),
    (
        "ov auto",
        [{"OpenVINO": {"device_type": "AUTO:GPU,CPU"}}],
        {"device": "gpu"},
        [{"OpenVINO": {"device_type": "GPU"}}],
    ),
    ("filter", [{"OpenVINO": FILTER}], {"device": "gpu"}, SAME),
    ("filter", [{"OpenVINO": FILTER}], {"device": "npu"}, [{"OpenVINO": {"device_type": "NPU"}}]),
    ("qnn", [{"qnn": QNN}], {}, SAME),
    ("qnn", [{"qnn": QNN}], {"ep": "cpu"}, []),
    ("qnn", [{"qnn": QNN}], {"device": "npu"}, [{"OpenVINO": {"device_type": "NPU"}}]),
    ("qnn, cpu", [{"qnn": QNN}, {"cpu": {}}], {"ep": "cpu"}, [{"cpu": {}}]),
    ("cpu, qnn", [{"cpu": {}}, {"qnn": QNN}], {"ep": "cpu"}, [{"cpu": {}}]),
    ("one object", [{"qnn": QNN, "cpu": {}}], {"ep": "cpu"}, [{"cpu": {}}]),
    (
        "second",
        [{"cuda": {}}, {"OpenVINO": NPU}],
        {"ep": "openvino"},
        [{"OpenVINO": NPU}],
    ),
    ("first", [{"OpenVINO": NPU}, {"cuda": {}}], {"ep": "openvino"}, SAME),
    ("unknown", [{"AcmeEP": {"a": "b"}}], {}, SAME),
    ("unknown", [{"AcmeEP": {"a": "b"}}], {"ep": "cpu"}, []),
]


@pytest.mark.parametrize(
    ("there", "asked", "written"),
    [row[1:] for row in WRITTEN],
    ids=[f"{r[0]}, {' '.join(map(str, r[2].values())) or 'config'}" for r in WRITTEN],
)
def test_what_is_asked_and_what_is_there_decide_what_is_written(
    there: Entries | None, asked: dict[str, str], written: Any
) -> None:
    """A2, A3, A4, A6: the table of design; flat and as a stage of a pipeline alike."""
    config = flat(there)
    effective = routed(config, **asked)
    if written is SAME:
        assert effective.text == config.text
    else:
        assert providers_of(effective) == written
    body = {} if there is None else {"session_options": {"provider_options": there}}
    staged = pipeline({"log_id": "x"}, only=body)
    effective = routed(staged, **asked)
    if written is SAME:
        assert effective.text == staged.text
    else:
        assert providers_of(effective, "only") == written


def test_every_byte_that_the_route_does_not_change_stays() -> None:
    """The document is kept losslessly: order, unknown keys, number formats, spacing."""
    text = """{ "model" : {"type": "llama",   "future": [1.50, 1e3],
    "decoder": {"filename":"m.onnx", "session_options": {"log_id":"ü", "provider_options":
        [ { "OpenVINO": {"device_type" : "NPU", "num_streams":"1"} } ]}, "z": 01e0 }},
  "search": {"top_p": 0.90}}""".replace("01e0", "1E0")
    config = GenaiConfig.parse(text)
    effective = routed(config, device="gpu", ep="openvino")
    assert effective.text == text.replace('"NPU"', '"GPU"')
    gone = routed(config, ep="cpu")
    assert gone.text.startswith(text[: text.index('[ { "OpenVINO') + 1])
    assert gone.text.endswith(text[text.index(']}, "z"') :])


def test_new_text_follows_the_layout_of_the_document() -> None:
    config = flat()
    effective = routed(config, ep="openvino", device="cpu")
    added = [
        line[1:]
        for line in difflib.ndiff(config.text.splitlines(), effective.text.splitlines())
        if line.startswith("+ ")
    ]
    assert [line.rstrip() for line in added] == [
        '                 "log_id": "x",',
        '                 "provider_options": [',
        "                     {",
        '                         "OpenVINO": {',
        '                             "device_type": "CPU"',
        "                         }",
        "                     }",
        "                 ]",
    ]


def test_session_options_of_a_stage_stay_and_those_of_the_compiled_form_go() -> None:
    config = flat(
        [{"qnn": QNN}],
        intra_op_num_threads=2,
        **{"ep.context_file_path": "a", "ep.share_ep_contexts": "1", "session.x": "y"},
    )
    assert options_of(routed(config, ep="cpu")) == {
        "log_id": "x",
        "intra_op_num_threads": 2,
        "session.x": "y",
        "provider_options": [],
    }
    kept = routed(flat([{"OpenVINO": NPU}], **{"ep.share_ep_contexts": "1"}), device="gpu")
    assert options_of(kept)["ep.share_ep_contexts"] == "1"


# Borrowing


def test_options_are_borrowed_from_a_stage_that_names_the_ep() -> None:
    """A6: only from the same canonical EP."""
    config = pipeline(
        context={"session_options": {"provider_options": [{"openvino": NPU}]}},
        iterator={"session_options": {"provider_options": [{"qnn": QNN}]}},
        lm_head={},
    )
    effective = routed(config, stage=["iterator=openvino", "lm_head=openvino@gpu"])
    assert providers_of(effective, "context") == [{"openvino": NPU}]
    assert providers_of(effective, "iterator") == [{"openvino": NPU}]
    assert providers_of(effective, "lm_head") == [
        {"openvino": {"device_type": "GPU", "enable_causallm": "True"}}
    ]


# Inheritance: what the decoder's own options mean to others


def test_a_stage_that_uses_the_decoders_options_gets_its_own_copy_when_rerouted() -> None:
    config = pipeline({"intra_op_num_threads": 2, "session.x": "y"}, a={}, b={})
    effective = routed(config, stage=["a=openvino@cpu"])
    assert options_of(effective, "a") == {
        "intra_op_num_threads": 2,
        "session.x": "y",
        "provider_options": [{"OpenVINO": {"device_type": "CPU"}}],
    }
    assert options_of(effective, "b") is None
    assert effective.get(("model", "decoder", "session_options")) == {
        "intra_op_num_threads": 2,
        "session.x": "y",
    }


def test_a_stage_that_adds_to_the_decoders_options_stops_inheriting_when_rerouted() -> None:
    config = pipeline(
        {"intra_op_num_threads": 2, "session.x": "y", "provider_options": [{"qnn": QNN}]},
        a={"inherit_session_options": True, "session_options": {"session.x": "z"}},
    )
    effective = routed(config, ep="cpu")
    assert effective.get(("model", "decoder", "session_options", "provider_options")) == []
    (stage,) = effective.stages()
    assert stage.ep == "CPUExecutionProvider"
    assert stage.effective_options == {"intra_op_num_threads": 2, "session.x": "z"}
    moved = routed(config, device="gpu")
    assert options_of(moved, "a") == {
        "session.x": "z",
        "intra_op_num_threads": 2,
        "provider_options": [{"OpenVINO": {"device_type": "GPU"}}],
    }
    assert moved.get((*moved.stages()[0].path, "inherit_session_options")) is False


def test_an_ep_on_the_decoder_of_a_pipeline_moves_to_its_stages() -> None:
    """Such a bundle fails at run time: "Managed input input_ids resides on ..."."""
    config = pipeline({"log_id": "x", "provider_options": [{"OpenVINO": NPU}]}, a={}, b={}, c={})
    assert routed(config).text == config.text
    effective = routed(config, stage=["b=cpu"])
    assert effective.get(("model", "decoder", "session_options", "provider_options")) == []
    assert options_of(effective, "a") == {"log_id": "x", "provider_options": [{"OpenVINO": NPU}]}
    assert options_of(effective, "b") is None
    assert options_of(effective, "c") == {"log_id": "x", "provider_options": [{"OpenVINO": NPU}]}
    same = routed(config, ep="openvino")
    assert {providers_of(same, name)[0]["OpenVINO"]["device_type"] for name in "abc"} == {"NPU"}


def test_a_section_that_uses_the_decoders_options_keeps_them_when_the_decoder_is_rerouted() -> None:
    decoder = {"filename": "m.onnx", "session_options": {"provider_options": [{"OpenVINO": NPU}]}}
    config = parsed(decoder, embedding={"filename": "e.onnx"})
    effective = routed(config, stage=["decoder=cpu"])
    assert providers_of(effective) == []
    assert providers_of(effective, "embedding") == [{"OpenVINO": NPU}]
    both = routed(config, ep="cpu")
    assert options_of(both, "embedding") is None
    alone = routed(config, stage=["embedding=cpu"])
    assert providers_of(alone) == [{"OpenVINO": NPU}]
    assert options_of(alone, "embedding") == {}


@pytest.mark.parametrize("layout", ["one object", "many objects", "plain object"])
def test_every_layout_of_a_pipeline_is_routed(layout: str, tmp_path: Path) -> None:
    bundle_fixtures.build_pipeline(tmp_path, two_sessions=True, layout=layout)
    config = GenaiConfig.load(tmp_path / "genai_config.json")
    effective = routed(config, ep="openvino", device="cpu", stage=["lm_head=cpu"])
    assert [s.ep for s in effective.stages()] == ["OpenVINOExecutionProvider"] * 3 + [
        "CPUExecutionProvider"
    ]


# Options on top


def test_session_options_are_written_as_the_runtime_reads_them() -> None:
    """onnxruntime-genai takes numbers and switches for a few, strings for all others."""
    effective = routed(
        pipeline({}, a={}, b={}),
        session_option=[
            "intra_op_num_threads=2",
            "enable_mem_pattern=False",
            "session.intra_op.allow_spinning=0",
            "b:graph_optimization_level=ORT_ENABLE_BASIC",
        ],
    )
    every = {
        "intra_op_num_threads": 2,
        "enable_mem_pattern": False,
        "session.intra_op.allow_spinning": "0",
    }
    assert options_of(effective, "a") == every
    assert options_of(effective, "b") == {**every, "graph_optimization_level": "ORT_ENABLE_BASIC"}


@pytest.mark.parametrize(
    "text", ["intra_op_num_threads=two", "enable_mem_pattern=1", "provider_options=[]"]
)
def test_a_session_option_of_the_wrong_kind_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        routed(flat(), session_option=[text])


def test_provider_options_are_merged_on_top_as_strings() -> None:
    effective = routed(
        flat([{"OpenVINO": NPU}]), provider_option=["num_streams=2", "enable_causallm=False"]
    )
    assert providers_of(effective) == [
        {"OpenVINO": {"device_type": "NPU", "enable_causallm": "False", "num_streams": "2"}}
    ]


def own_options() -> dict[str, Any]:
    """A pipeline whose stages all have options of their own, so that none uses the decoder's."""
    own = {"session_options": {"provider_options": [{"qnn": {"backend_type": "htp"}}]}}
    decoder = {"session_options": {"provider_options": [{"qnn": {}}]}}
    return {"model": {"decoder": {**decoder, "pipeline": [{"a": {"filename": "a.onnx", **own}}]}}}


@pytest.mark.parametrize(
    ("entries", "place", "found"),
    [
        ("[1]", "model.decoder.session_options.provider_options[0]", "the number '1'"),
        ("[[[]]]", "model.decoder.session_options.provider_options[0]", "an array"),
        ('[{"qnn": 1}]', "model.decoder.session_options.provider_options[0].qnn", "'1'"),
    ],
)
def test_malformed_provider_options_that_no_stage_uses_are_refused_when_a_route_needs_them(
    entries: str, place: str, found: str
) -> None:
    document = own_options()
    document["model"]["decoder"]["session_options"]["provider_options"] = json.loads(entries)
    config = GenaiConfig.parse(json.dumps(document))
    assert resolve(config, INTEL, RouteRequest()).stages[0].alias == "qnn"
    with pytest.raises(ConfigError) as caught:
        resolve(config, INTEL, RouteRequest(ep="openvino"))
    assert place in caught.value.facts["where"]
    assert found in caught.value.facts["found"]
    assert caught.value.facts["expected"] == "an object"


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(inner, (*path, key))


def fuzzed() -> Iterator[str]:
    """Every value of three small configs, replaced by values of every other type."""
    entry = {"OpenVINO": {"device_type": "NPU", **FILTER}}
    own = {"session_options": {"ep.x": "1", "provider_options": [entry]}}
    shared = {"session_options": {"provider_options": [{"qnn": {"backend_type": "htp"}}]}}
    stages = {"a": {**own, "inherit_session_options": True}, "b": {"filename": "b.onnx"}}
    documents: list[Any] = [
        own_options(),
        {"model": {"decoder": {"filename": "a.onnx", **own}}},
        {"model": {"decoder": {"pipeline": [stages], **shared}, "vision": {"filename": "v.onnx"}}},
    ]
    others = [
        None,
        1,
        1.5,
        True,
        "",
        "x",
        [],
        [1],
        [[[]]],
        {},
        {"a": 1},
        [{"a": []}],
        {"a": {"b": []}},
    ]
    for document in documents:
        for path in places_in(document):
            for other in others:
                changed = {"root": json.loads(json.dumps(document))}
                holder: Any = changed
                for key in ("root", *path)[:-1]:
                    holder = holder[key]
                holder[("root", *path)[-1]] = other
                yield json.dumps(changed["root"])


def test_configs_with_values_of_other_types_only_ever_raise_turnouts_errors() -> None:
    requests = [
        RouteRequest(ep="cpu"),
        RouteRequest(device="gpu", provider_options=(OptionRequest(None, "k", "v"),)),
        RouteRequest(ep="openvino", device="cpu", reproducible=True),
    ]
    routed_ones = 0
    for text in fuzzed():
        with contextlib.suppress(TurnoutError):
            config = GenaiConfig.parse(text)
            config.stages()
            for request in requests:
                with contextlib.suppress(TurnoutError):
                    apply(config, resolve(config, INTEL, request))
                    routed_ones += 1
    assert routed_ones > 200


def test_a_route_of_another_bundle_is_refused() -> None:
    route = resolve(flat(), INTEL, RouteRequest(ep="cpu"))
    with pytest.raises(UsageError, match="another bundle"):
        apply(pipeline({}, a={}), route)


# Real configurations


def corpus() -> list[Path]:
    return sorted(CORPUS.glob("*.json")) if CORPUS.is_dir() else []


ASKED: list[dict[str, Any]] = [
    {},
    {"ep": "cpu"},
    {"device": "cpu"},
    {"device": "auto"},
    {"ep": "openvino"},
    {"ep": "openvino", "device": "gpu", "reproducible": True},
    {"ep": "openvino", "device": "npu", "scope": "accelerated"},
    {"session_option": ["session.intra_op.allow_spinning=0"]},
]


@pytest.mark.skipif(not corpus(), reason=f"no corpus of configurations at {CORPUS}")
@pytest.mark.parametrize("asked", ASKED, ids=lambda a: " ".join(map(str, a.values())) or "config")
def test_every_real_configuration_can_be_routed(asked: dict[str, Any]) -> None:
    """A2, A3: `config` leaves every byte; any other route holds, or ends in a clear error."""
    done = 0
    for path in corpus():
        try:
            config = GenaiConfig.load(path)
            config.stages()
        except BundleError:
            continue
        try:
            effective = routed(config, **asked)
        except MachineError as error:
            assert asked.get("scope") == "accelerated"
            assert error.facts
            continue
        done += 1
        if not asked:
            assert effective.text == config.text
    assert done > (3 if "scope" in asked else 40)


# Does the runtime agree?


def generate(folder: Path, **asked: Any) -> str:
    """Apply a route to the bundle in a folder, in a fresh process, and generate with it."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import bundle_fixtures
from turnout.bundle import Bundle
from turnout.machine import plugins
from turnout.routing import apply, route
folder = Path({str(folder)!r})
bundle = Bundle.open(folder)
made = route(bundle, **{asked!r})
bundle_fixtures_text = apply(bundle.config, made).text
(folder / "genai_config.json").write_text(bundle_fixtures_text, "utf-8")
plugins.register(made.eps)
print(bundle_fixtures.generate(folder))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    # B19: an exit code other than 0 would be a crash on the way out.
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def unrouted_tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("unrouted")
    return generate(bundle_fixtures.build_pipeline(folder / "a", two_sessions=True))


@pytest.mark.openvino
@pytest.mark.skipif(not HAS_OPENVINO, reason="onnxruntime-ep-openvino is absent")
@pytest.mark.parametrize(
    "asked",
    [
        {"ep": "openvino", "device": "cpu"},
        {"stages": {"context": "openvino@cpu"}},
        {"ep": "openvino", "device": "cpu", "reproducible": True},
        {"ep": "cpu", "session_options": {"intra_op_num_threads": "1"}},
    ],
    ids=["openvino", "one stage", "reproducible", "cpu"],
)
def test_the_runtime_generates_the_same_tokens_by_every_route(
    asked: dict[str, Any], unrouted_tokens: str, tmp_path: Path
) -> None:
    """A3, A4, A5, B19: what is written loads and runs, and the process ends cleanly."""
    bundle_fixtures.build_pipeline(tmp_path / "b", two_sessions=True)
    assert generate(tmp_path / "b", **asked) == unrouted_tokens


@pytest.mark.openvino
@pytest.mark.skipif(not HAS_OPENVINO, reason="onnxruntime-ep-openvino is absent")
def test_a_pipeline_with_an_ep_on_its_decoder_runs_once_it_is_rerouted(tmp_path: Path) -> None:
    plain = bundle_fixtures.build_pipeline(tmp_path / "a")
    openvino = {"session_options": {"log_id": "x", "provider_options": [{"OpenVINO": {}}]}}
    broken = bundle_fixtures.build_pipeline(tmp_path / "b", decoder=openvino)
    with pytest.raises(AssertionError, match="Managed input input_ids"):
        generate(broken)
    assert generate(broken, stages={"lm_head": "cpu"}) == generate(plain)


# One process for each EP and all products: for each, the errors by default and exactly.
EXACTNESS = """
import sys
from pathlib import Path
import numpy as np, onnx, onnxruntime as ort
from onnx import TensorProto as T, helper as h, numpy_helper as nh
from turnout.bundle import Bundle
from turnout.machine import Inventory, plugins
from turnout.routing import route
K, N = 512, 256
INVENTORY = Inventory.discover()

def write_product(folder, bits, size):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**bits, (N, K)).astype(np.uint8)
    packed = codes if bits == 8 else codes[:, 0::2] | (codes[:, 1::2] << 4)
    scales = rng.random((N, K // size), dtype=np.float32) + 0.5
    x = rng.standard_normal((16, K)).astype(np.float32)
    weights = ((codes.astype(float) - 2 ** (bits - 1)).reshape(N, -1, size) * scales[..., None])
    node = h.make_node("MatMulNBits", ["x", "B", "S"], ["y"], domain="com.microsoft", K=K, N=N,
                       bits=bits, block_size=size, accuracy_level=4)
    graph = h.make_graph([node], "g", [h.make_tensor_value_info("x", T.FLOAT, ["b", K])],
                         [h.make_tensor_value_info("y", T.FLOAT, ["b", N])],
                         [nh.from_array(packed.reshape(N, K // size, -1), "B"),
                          nh.from_array(scales, "S")])
    opsets = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1)]
    onnx.save(h.make_model(graph, ir_version=9, opset_imports=opsets), folder / "m.onnx")
    config = '{"model": {"type": "llama", "decoder": {"filename": "m.onnx"}}}'
    (folder / "genai_config.json").write_text(config)
    return x, x.astype(float) @ weights.reshape(N, K).T

def error(folder, ep, exact, x, expected):
    bundle = Bundle.open(folder)
    made = route(bundle, ep=ep, device="cpu", reproducible=exact, inventory=INVENTORY)
    plugins.register(made.eps)
    (stage,) = made.stages
    options = ort.SessionOptions()
    for key, value in stage.set_options.items():
        options.add_session_config_entry(key, value)
    if ep != "cpu":
        devices = [d for d in ort.get_ep_devices() if d.ep_name == stage.ep]
        given = {k: v for k, v in stage.options.items() if k != "device_type"}
        options.add_provider_for_devices(devices[:1], given)
    session = ort.InferenceSession(str(folder / "m.onnx"), options)
    got = session.run(None, {"x": x})[0]
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)

ep, parent = sys.argv[1], Path(sys.argv[2])
for product in sys.argv[3:]:
    folder = parent / product
    folder.mkdir()
    case = write_product(folder, *map(int, product.split("-")))
    print(product, *(error(folder, ep, exact, *case) for exact in (False, True)))
"""


@pytest.mark.openvino
@pytest.mark.parametrize("ep", ["cpu", "openvino"])
def test_reproducible_arithmetic_is_exact_to_float32(ep: str, tmp_path: Path) -> None:
    """Measured on products of quantized weights (bits-block) at accuracy level 4, on each EP."""
    if ep == "openvino" and not HAS_OPENVINO:
        pytest.skip("onnxruntime-ep-openvino is absent")
    products = ["4-32", "4-16", "4-64", "8-32", "8-16"]
    done = subprocess.run(
        [sys.executable, "-c", EXACTNESS, ep, str(tmp_path), *products],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [product for product, _, _ in rows] == products
    for product, default, exact in rows:
        assert float(exact) < 2e-6, product
        assert float(exact) <= float(default), product


@pytest.mark.parametrize(
    ("bits", "block", "level", "platform", "needs"),
    [
        (4, 32, 4, "linux-x86_64", False),
        (4, 32, 4, "macos-arm64", True),
        (4, 64, 4, "linux-x86_64", True),
        (8, 32, 4, "linux-x86_64", True),
        (8, 32, 0, "linux-x86_64", False),
        (8, 32, None, "macos-arm64", False),
    ],
)
def test_only_products_that_cannot_be_forced_need_unpacked_weights(
    bits: int, block: int, level: int | None, platform: str, needs: bool, tmp_path: Path
) -> None:
    given = {"bits": bits, "block_size": block, "K": 64, "N": 2}
    if level is not None:
        given["accuracy_level"] = level
    product = onnx.helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", **given
    )
    other = onnx.helper.make_node("Other", [], ["z"], accuracy_level=4, bits=8)
    graph = onnx.helper.make_graph([other, product], "g", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    assert needs_unpacked(GraphFile.read(tmp_path / "m.onnx"), platform) is needs


def test_errors_of_routing_are_of_the_projects_own_tree() -> None:
    with pytest.raises(TurnoutError):
        routed(flat(), ep="nonsense")
