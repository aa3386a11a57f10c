"""Commands that look at a bundle read none of its weights, however many there are."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from session_fixtures import Bundles, Terminal
from turnout import checking
from turnout.bundle import Bundle, weigh
from turnout.machine import Inventory
from turnout.routing import route

pytest_plugins = ("session_plugin",)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files and /proc")

NBYTES = 10 << 30
DATA = "model.data"
INVENTORY = Path(__file__).parent / "data" / "inventories" / "intel-laptop.json"

_opened: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_note)


@pytest.fixture(scope="module")
def large(bundles: Bundles) -> Path:
    """A pipeline with 10 GB of weights more in its data file, which is sparse: no room is taken."""
    bundle = bundles("pipeline")
    path, data = bundle / "transformer.onnx", bundle / DATA
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer.add(name="more", data_type=2, dims=[NBYTES])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    offset = data.stat().st_size
    for key, value in (("location", DATA), ("offset", offset), ("length", NBYTES)):
        tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())
    os.truncate(data, offset + NBYTES)
    assert data.stat().st_blocks * 512 < 100 << 20
    return bundle


@pytest.fixture
def reads(large: Path) -> Iterator[None]:
    """Fails where the data file is opened, or more is read than headers and a vocabulary."""
    _opened.clear()
    before = read_bytes()
    yield
    assert [name for name in _opened if name.endswith(DATA)] == []
    assert any(name.endswith("genai_config.json") for name in _opened), "the hook sees files"
    # Modules that a command imports on its first run are read, too.
    assert read_bytes() - before < 64 << 20


def read_bytes() -> int:
    """What this process asked the system to read."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("inventory", [None, INVENTORY], ids=["no machine", "a machine"])
def test_checking_reads_no_weights(large: Path, inventory: Path | None) -> None:
    machine = None if inventory is None else Inventory.from_json(inventory.read_text("utf-8"))
    report = checking.check(large, inventory=machine)
    assert report.count("error") == 0


@pytest.mark.usefixtures("reads")
def test_weighing_and_routing_read_no_weights(large: Path) -> None:
    bundle = Bundle.open(large)
    assert weigh(bundle).stored > NBYTES
    made = route(bundle, ep="cpu", reproducible=True)
    assert made.effective == "cpu"


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["check"],
        ["explain", "--ep", "cpu"],
        ["explain", "--ep", "openvino", "--inventory", str(INVENTORY), "--reproducible"],
    ],
    ids=lambda arguments: " ".join(arguments[:3:2]),
)
def test_no_command_that_looks_at_a_bundle_reads_its_weights(
    turnout: Terminal, large: Path, arguments: list[str]
) -> None:
    name, *options = arguments
    done = turnout(name, large, *options, "--json")
    assert done.code == 0, done.err
    assert done.json
