"""What holds for every route: any config, any EP, any device, any scope, on any machine.

The configs are those of the corpus and small ones of every layout; `make check` tries every
seventh combination for each, the slow tests try them all.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout import catalog
from turnout.bundle import GenaiConfig, Stage
from turnout.errors import BundleError, TurnoutError
from turnout.machine import Device, InstalledEp, Inventory
from turnout.routing import (
    OptionRequest,
    Route,
    RouteRequest,
    StageRequest,
    apply,
    resolve,
)

HERE = Path(__file__).parent
CORPUS = Path(os.environ.get("TURNOUT_CORPUS", HERE.parents[1] / "shared" / "corpus"))
CPU = "CPUExecutionProvider"

# A plugin that no table knows, on every machine but the bare one.
ACME = InstalledEp("AcmeEP", "acme", devices=(Device("gpu"), Device("npu")))


def _machine(path: Path) -> Inventory:
    inventory = Inventory.from_json(path.read_text("utf-8"))
    return msgspec.structs.replace(inventory, eps=(*inventory.eps, ACME))


MACHINES = {
    **{path.stem: _machine(path) for path in sorted((HERE / "data/inventories").glob("*.json"))},
    "bare": Inventory.minimal(),
}
EPS = (None, "cpu", "openvino", "QNN", "dml", "CUDAExecutionProvider", "acmeep", "nonsense")
DEVICES = ("config", "auto", "cpu", "gpu", "npu")
SCOPES = ("pipeline", "accelerated")


class Case(NamedTuple):
    """One square of the grid."""

    ep: str | None
    device: str
    scope: str
    machine: str


GRID = [Case(*square) for square in itertools.product(EPS, DEVICES, SCOPES, MACHINES)]
# Prime to the number of values of each axis, so that every value meets every other.
STEP = 7


# Configs of our own: every layout, spelling, and way to say what a stage runs on

QNN = {"qnn": {"backend_path": "QnnHtp.dll", "soc_model": "60"}}
NPU = {"OpenVINO": {"device_type": "NPU", "enable_causallm": "True"}}
FILTERED = {"OpenVINO": {"device_filtering_options": {"hardware_device_type": "gpu"}}}
ROLES = {"inputs": {"input_ids": "input_ids"}, "outputs": {"logits": "logits"}}


def options(*entries: dict[str, Any], **free: Any) -> dict[str, Any]:
    return {"session_options": {**free, "provider_options": list(entries)}}


def flat(*entries: dict[str, Any], **free: Any) -> dict[str, Any]:
    return {"filename": "model.onnx", **options(*entries, **free), **ROLES}


def staged(**own: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Stages of a pipeline, with what each has of its own."""
    return {
        name: {"filename": f"{name}.onnx", "inputs": ["a"], "outputs": ["b"], **body}
        for name, body in own.items()
    }


def document(decoder: dict[str, Any], kind: str = "llama", **sections: Any) -> dict[str, Any]:
    model = {"type": kind, "vocab_size": 8, "context_length": 64, "decoder": decoder, **sections}
    return {"model": model, "search": {"max_length": 64}}


def pipeline(stages: Any, decoder: dict[str, Any] | None = None) -> dict[str, Any]:
    return document({**(decoder or {}), "pipeline": stages}, "decoder-pipeline")


MIXED = staged(
    embeddings={},
    context=options(QNN, **{"ep.share_ep_contexts": "1"}),
    iterator=options(QNN),
    lm_head=options({"CPUExecutionProvider": {}}),
)
OWN: dict[str, Any] = {
    "flat, nothing": document({"filename": "model.onnx"}),
    "flat, cpu": document(flat({"CPU": {}}, intra_op_num_threads=2)),
    "flat, openvino": document(flat(NPU, **{"session.x": "ü"})),
    "flat, two EPs": document(flat({"cuda": {"device_id": "0"}}, NPU, {"cpu": {}})),
    "flat, filter": document(flat(FILTERED)),
    "flat, unknown EP": document(flat({"AcmeEP": {"a": "b"}})),
    "flat, one object": document(flat({**QNN, "cpu": {}})),
    "one object": pipeline([MIXED]),
    "many objects": pipeline([{name: stage} for name, stage in MIXED.items()]),
    "plain object": pipeline(MIXED),
    "inherits": pipeline(
        [
            staged(
                own={**options({"dml": {}}, x="1"), "inherit_session_options": True},
                none={},
                empty={"session_options": {}},
                told={"inherit_session_options": True},
            )
        ],
        options({"cuda": {"device_id": "1"}}, {"cpu": {}}, log_id="top", intra_op_num_threads=1),
    ),
    "decoder's EP": pipeline([staged(a={}, b=options(), c=options(NPU))], options(NPU)),
    "sections": document(
        flat(NPU),
        "phi4mm",
        vision={"filename": "v.onnx"},
        speech={"filename": "s.onnx", **options({"cpu": {}})},
        embedding={"filename": "e.onnx", "session_options": {}},
        encoder={"filename": "n.onnx", **options(QNN)},
        joiner={"filename": "j.onnx"},
        draft={"filename": "d.onnx"},
        mtp={"filename": "m.onnx"},
    ),
    "vision pipeline": document(
        flat({"cuda": {}}),
        "qwen2_5_vl",
        vision={
            "pipeline": [
                staged(patch_embed=options(NPU), vision_attn={}, patch_merger={"run_on_cpu": True})
            ]
        },
        embedding={"filename": "e.onnx"},
    ),
    "parts": document(
        flat(),
        moonshine={"encoder_filename": "e.onnx", "adapter": {"filename": "a.onnx"}},
        audio_output={"depthformer": {"filename": "d.onnx"}},
    ),
}


def own_config(name: str) -> GenaiConfig:
    """Each in another style of writing, since edits follow it."""
    style = list(OWN).index(name) % 3
    layout: dict[str, Any] = [{"indent": 4}, {"indent": 2}, {"separators": (",", ":")}][style]
    text = json.dumps(OWN[name], ensure_ascii=False, **layout)
    return GenaiConfig.parse(text.replace("\n", "\r\n") if style == 1 else text)


# What must hold


_ARMED: list[list[str]] = []


def _note_writes(event: str, arguments: tuple[Any, ...]) -> None:
    if not _ARMED:
        return
    flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if writes or event in {"os.mkdir", "os.remove", "os.rename", "os.link", "os.symlink"}:
        _ARMED[-1].append(f"{event} {arguments[0]}")


sys.addaudithook(_note_writes)


@contextlib.contextmanager
def nothing_is_written() -> Iterator[None]:
    seen: list[str] = []
    _ARMED.append(seen)
    try:
        yield
    finally:
        _ARMED.remove(seen)
    assert seen == []


@cache
def _accepts(text: str) -> bool:
    import onnxruntime_genai as og

    with contextlib.suppress(FileExistsError):
        _FOLDER.mkdir()
    (_FOLDER / "genai_config.json").write_text(text, "utf-8", newline="")
    try:
        og.Config(str(_FOLDER))
    except Exception:  # the binding's own exceptions
        return False
    return True


_FOLDER = Path()


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where the runtime's parser finds the configs that it is asked about."""
    global _FOLDER  # noqa: PLW0603 - generated tests cannot take fixtures of their own
    _FOLDER = tmp_path_factory.mktemp("parsed")


def eps_by_hand(config: GenaiConfig, stage: Stage) -> str:
    """The EP that takes effect for a stage, from the document alone."""
    if not stage.takes_options:
        return CPU
    model = json.loads(config.text)["model"]
    place: Any = {"model": model}
    for key in stage.path:
        place = place[key]
    own = place.get("session_options")
    in_pipeline = "pipeline" in stage.path
    entries = list((own or {}).get("provider_options", []))
    section = stage.path[1]
    shares = in_pipeline if section == "decoder" else section != "draft"
    if shares and (own is None or (in_pipeline and place.get("inherit_session_options"))):
        entries += model["decoder"].get("session_options", {}).get("provider_options", [])
    names = [catalog.canonical(name) for entry in entries for name in entry]
    return next((name for name in names if name != CPU), CPU)


def beside_options(config: GenaiConfig) -> Any:
    """The document without what a route may write, in its order."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {k: strip(v) for k, v in value.items() if k not in WRITTEN}
            return list(kept.items())
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(json.loads(config.text))


WRITTEN = {"session_options", "inherit_session_options"}


def holds(config: GenaiConfig, request: RouteRequest, inventory: Inventory) -> Route:
    """A route, with all that must hold for it. Raises `TurnoutError` where there is none."""
    before = copy.deepcopy((config.text, config.document, config.stages(), inventory, request))
    with nothing_is_written():
        route = resolve(config, inventory, request)
        effective = apply(config, route)
        stages = effective.stages()
        again = resolve(effective, inventory, request)
    assert before == (config.text, config.document, config.stages(), inventory, request)
    assert route.changes == (effective.text != config.text)
    assert route.changes or effective is config
    assert apply(effective, route) is effective, "applying twice is applying once"
    assert not again.changes, "what is there already is left alone"
    took_effect = {stage.name: eps_by_hand(effective, stage) for stage in stages}
    assert {decision.stage: decision.ep for decision in route.stages} == took_effect
    assert {stage.name: stage.ep for stage in stages} == took_effect
    for decision, stage in zip(route.stages, stages, strict=True):
        entry = next((e for e in stage.providers if e.ep == decision.ep), None)
        assert dict(decision.options) == (dict(entry.options) if entry else {})
        assert stage.providers == decision.providers or not stage.takes_options
    in_decoder = {catalog.alias_of(took_effect[s.name]) for s in stages if s.section == "decoder"}
    if request.reroutes:
        assert route.effective == (in_decoder.pop() if len(in_decoder) == 1 else "mixed")
    else:
        assert route.effective == "config"
    assert beside_options(effective) == beside_options(config)
    keeps_free_options(config, effective, route)
    assert _accepts(effective.text) or not _accepts(config.text)
    json.dumps(route.to_json())
    return route


def keeps_free_options(config: GenaiConfig, effective: GenaiConfig, route: Route) -> None:
    """Session options that the route does not name take effect as before, for every stage."""
    after = {stage.name: stage for stage in effective.stages()}
    for stage, decision in zip(config.stages(), route.stages, strict=True):
        expected = {
            key: value
            for key, value in stage.effective_options.items()
            if key not in decision.drop_options
        }
        assert all(key.startswith("ep.") for key in decision.drop_options)
        found = dict(after[stage.name].effective_options)
        assert found == {**expected, **decision.set_options}


def try_case(config: GenaiConfig, case: Case) -> str:
    """One square: "route", or the name of the error."""
    try:
        request = RouteRequest(ep=case.ep, device=case.device, scope=case.scope)
        route = holds(config, request, MACHINES[case.machine])
    except TurnoutError as error:
        assert error.problem.endswith(".")
        assert set(error.facts) & {"found", "expected", "fix"}, error
        return type(error).__name__
    if (case.ep, case.device) == (None, "config"):
        assert not route.changes
    if case.ep is not None:
        reached = [s for s in route.stages if s.how != "config"]
        assert {stage.ep for stage in reached} <= {catalog.canonical(case.ep), "AcmeEP"}
    return "route"


def try_grid(config: GenaiConfig, squares: list[Case]) -> Counter[str]:
    return Counter(try_case(config, case) for case in squares)


@pytest.mark.parametrize("name", OWN)
def test_every_kind_of_layout_is_routed_on_every_machine_or_refused(name: str) -> None:
    """A2, A3, A4, A6, A9, A11, A12: no crash, no write, no claim that did not take effect."""
    index = list(OWN).index(name)
    found = try_grid(own_config(name), GRID[index % STEP :: STEP])
    assert found["route"] >= 5
    assert found["UnknownEpError"] >= 1
    assert found["EpUnavailableError"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_every_square_holds_for_every_kind_of_layout(name: str) -> None:
    found = try_grid(own_config(name), GRID)
    assert sum(found.values()) == 320
    # Neither of these asks anything of the config: 4 machines without EP and device, and with
    # a scope for nothing; an EP that nobody knows, with 5 devices.
    assert found["UnknownEpError"] == 4 * 5 * 2 + 10


def corpus() -> list[Path]:
    """Real configs whose stages can be read."""
    found = []
    for path in sorted((CORPUS / "genai_configs").glob("*.json")):
        with contextlib.suppress(BundleError):
            if GenaiConfig.load(path).stages():
                found.append(path)
    return found


REAL = corpus()
needs_corpus = pytest.mark.skipif(not REAL, reason="the corpus is not here: set TURNOUT_CORPUS")


@needs_corpus
def test_real_configs_are_routed_on_every_machine_or_refused() -> None:
    """A2, A3, A4, A6, A9, A11, A12: as above, on files that people made."""
    found: Counter[str] = Counter()
    for index, path in enumerate(REAL):
        found += try_grid(GenaiConfig.load(path), GRID[index % STEP :: STEP][::3])
    assert len(REAL) > 50
    assert found["route"] > 100


@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.partition("_")[0])
def test_every_square_holds_for_every_real_config(path: Path) -> None:
    found = try_grid(GenaiConfig.load(path), GRID)
    assert sum(found.values()) == 320
    assert found["route"] >= 4


@pytest.mark.parametrize("name", OWN)
def test_unknown_keys_survive_every_route(name: str) -> None:
    """A key of a newer runtime is no business of a route."""
    new = {"since": "0.99", "list": [1.5, {"x": None}]}
    config = own_config(name).edit(("new_section",), new).edit(("model", "new"), new)
    for stage in config.stages():
        config = config.edit((*stage.path, "new_key"), new)
    effective = apply(
        config, resolve(config, MACHINES["intel-laptop"], RouteRequest(ep="openvino"))
    )
    assert effective.text.count("new_key") == config.text.count("new_key") >= 1
    assert effective.get(("new_section",)) == effective.get(("model", "new")) == new
    assert {str(effective.get((*s.path, "new_key"))) for s in effective.stages()} == {str(new)}


# Layouts that nobody thought of

ENTRY_NAMES = ["cpu", "CPUExecutionProvider", "OpenVINO", "ov", "qnn", "DML", "cuda", "AcmeEP"]
OPTION_VALUES = st.sampled_from(
    ["", "CPU", "NPU", "GPU.1", "AUTO:GPU,CPU", "htp", "ü", '{"CPU":{}}']
)
ENTRY = st.builds(
    lambda name, given: {name: {} if catalog.canonical(name) == CPU else given},
    st.sampled_from(ENTRY_NAMES),
    st.dictionaries(
        st.sampled_from(["device_type", "backend_type", "load_config", "x"]),
        OPTION_VALUES,
        max_size=2,
    ),
)
SESSION = st.fixed_dictionaries(
    {},
    optional={
        "log_id": st.just("x"),
        "intra_op_num_threads": st.integers(1, 4),
        "ep.share_ep_contexts": st.just("1"),
        "session.x": st.sampled_from(["", "1"]),
        "provider_options": st.lists(ENTRY, max_size=3),
    },
)
STAGE = st.fixed_dictionaries(
    {"filename": st.just("m.onnx")},
    optional={
        "session_options": SESSION,
        "inherit_session_options": st.booleans(),
        "run_on_prompt": st.booleans(),
    },
)
NAMES = st.sampled_from(["a", "b", "context", "lm_head", "vision_attn"])
STAGES = st.dictionaries(NAMES, STAGE, min_size=1, max_size=4)


def _laid_out(stages: dict[str, Any], shape: int) -> Any:
    shapes = ([stages], [{name: stage} for name, stage in stages.items()], stages)
    return shapes[shape]


PIPELINE = st.builds(_laid_out, STAGES, st.integers(0, 2))
PLAIN = st.fixed_dictionaries(
    {"filename": st.just("m.onnx")}, optional={"session_options": SESSION}
)
DECODER = st.one_of(
    PLAIN,
    st.fixed_dictionaries({"pipeline": PIPELINE}, optional={"session_options": SESSION}),
)
SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "vision": st.one_of(PLAIN, st.fixed_dictionaries({"pipeline": PIPELINE})),
        "embedding": PLAIN,
        "draft": PLAIN,
        "joiner": PLAIN,
    },
)


@st.composite
def asked(draw: st.DrawFn, stages: list[str]) -> RouteRequest:
    """A request in which any of the options of the command line may stand."""
    named = draw(st.lists(st.sampled_from(stages), unique=True, max_size=2))
    eps = st.sampled_from(["config", "cpu", "openvino", "qnn", "acmeep"])
    devices = st.sampled_from([None, "auto", "cpu", "npu"])
    places = st.sampled_from([None, *stages])
    return RouteRequest(
        ep=draw(st.sampled_from(EPS)),
        device=draw(st.sampled_from(DEVICES)),
        scope=draw(st.sampled_from(SCOPES)),
        stages=tuple(StageRequest(name, draw(eps), draw(devices)) for name in named),
        provider_options=tuple(
            OptionRequest(place, draw(st.sampled_from(["device_type", "y"])), draw(OPTION_VALUES))
            for place in draw(st.lists(places, max_size=1))
        ),
        session_options=tuple(
            OptionRequest(place, draw(st.sampled_from(["session.x", "log_id"])), "2")
            for place in draw(st.lists(places, max_size=1))
        ),
        reproducible=draw(st.booleans()),
    )


LAYOUT = (DECODER, SECTIONS, st.sampled_from(list(MACHINES)), st.sampled_from([None, 2]), st.data())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(*LAYOUT)
def test_any_layout_is_routed_by_any_request_or_refused(
    decoder: Any, sections: Any, machine: str, indent: int | None, data: st.DataObject
) -> None:
    try_any(decoder, sections, machine, indent, data)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(*LAYOUT)
def test_any_of_many_layouts_is_routed_or_refused(
    decoder: Any, sections: Any, machine: str, indent: int | None, data: st.DataObject
) -> None:
    try_any(decoder, sections, machine, indent, data)


def try_any(
    decoder: Any, sections: Any, machine: str, indent: int | None, data: st.DataObject
) -> None:
    config = GenaiConfig.parse(json.dumps(document(decoder, **sections), indent=indent))
    with contextlib.suppress(TurnoutError):
        request = data.draw(asked([stage.name for stage in config.stages()]))
        holds(config, request, MACHINES[machine])
