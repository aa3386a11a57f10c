"""No load and no route writes a compiled model, whatever a bundle asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle_fixtures import build_pipeline, read_config, write_config
from turnout import Session
from turnout.bundle import Bundle, GenaiConfig
from turnout.compiling.unwritten import without_compiling
from turnout.errors import UsageError
from turnout.machine import Inventory
from turnout.routing import RouteRequest, resolve, route
from turnout.routing.request import option_requests
from turnout.runtime.placement import measure

OPENVINO = [{"OpenVINO": {"device_type": "CPU"}}]
ENABLE = "ep.context_enable"


def asking(folder: Path) -> Path:
    """A bundle on OpenVINO whose own config asks for compiling."""
    build_pipeline(folder, providers={"transformer": OPENVINO})
    config = read_config(folder)
    (stages,) = config["model"]["decoder"]["pipeline"]
    stages["transformer"]["session_options"][ENABLE] = "1"
    write_config(folder, config)
    return folder


def files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if path.parts[0] != "_compiled"}


@pytest.mark.openvino
@pytest.mark.parametrize("options", [None, {"intra_op_num_threads": "1"}])
def test_a_bundle_that_asks_for_compiling_is_loaded_twice_and_written_to_never(
    options: dict[str, str] | None, tmp_path: Path
) -> None:
    bundle = Bundle.open(asking(tmp_path / "b"))
    before = files(bundle.path)
    chosen = route(bundle, session_options=options) if options else None
    said: list[str] = []
    for _ in range(2):
        with Session(bundle, chosen, say=said.append) as session:
            assert session.loaded.folder != bundle.path
    assert files(bundle.path) == before
    assert not list(tmp_path.rglob("*_ctx*"))
    assert [line for line in said if ENABLE in line] == said
    assert len(said) == 2


@pytest.mark.slow
@pytest.mark.openvino
def test_a_measurement_of_such_a_bundle_writes_nothing(tmp_path: Path) -> None:
    bundle = Bundle.open(asking(tmp_path / "b"))
    before = files(bundle.path)
    placement = measure(bundle)
    ran = {stage.stage: [placed.ep for placed in stage.eps] for stage in placement.stages}
    assert "openvino" in ran["transformer"]
    assert files(bundle.path) == before


@pytest.mark.parametrize(
    "key", [ENABLE, "ep.context_file_path", "ep.context_embed_mode", "ep.context_node_name_prefix"]
)
@pytest.mark.parametrize("stage", ["", "transformer:"])
def test_a_route_does_not_compile(key: str, stage: str, tmp_path: Path) -> None:
    config = Bundle.open(build_pipeline(tmp_path / "b")).config
    options = option_requests({f"{stage}{key}": "1"})
    with pytest.raises(UsageError, match="compiles a model ahead of time"):
        resolve(config, Inventory.minimal(), RouteRequest(session_options=options))


def test_only_what_compiles_is_taken_out_of_a_config() -> None:
    options = f'{{"{ENABLE}": "1", "ep.share_ep_contexts": "1"}}'
    text = (
        '{"model": {"decoder": {"session_options": ' + options + ', "pipeline": '
        '[{"a": {}, "b": {"session_options": ' + options + "}}]}}}"
    )
    config = without_compiling(GenaiConfig.parse(text))
    assert config.text == text.replace(f'"{ENABLE}": "1", ', "")
    assert without_compiling(config) is config
    off = GenaiConfig.parse(text.replace('": "1"', '": "0"'))
    assert without_compiling(off) is off
