"""What a child may have left, one hostile thing after another: all of it is refused, by headers.

The artifacts are forged by hand from the format's description, so these tests need no plugin;
that what a plugin writes is taken is tested with the worker.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from compile_fixtures import (
    DATA,
    OPENVINO,
    ROWS,
    SIZE,
    change_contexts,
    compile_job,
    context_node,
    forge_binary,
    job_of,
    make_toy,
    save_context,
)
from turnout.bundle import Bundle
from turnout.compiling.jobs import Job
from turnout.compiling.naming import context_name
from turnout.compiling.verify import Verified, verify_artifacts
from turnout.errors import CompileError

BIN = "c.bin"
K64 = 65536
BYTES = SIZE * SIZE * 4
PARTS = {"p": (K64, 100), "q": (2 * K64, 900)}
WEIGHTS = {"W": (DATA, 0, BYTES), "V": (DATA, BYTES + 64, BYTES)}
GRAPHS = {stage: context_name(stage, OPENVINO) for stage in ROWS}
posix = pytest.mark.skipif(os.name == "nt", reason="links and devices of POSIX")


class Forged:
    """A toy bundle, a job of its two stages, and what a good child would have left of it."""

    _model: Path | None = None

    def __init__(self, folder: Path, *, shared: bool = True) -> None:
        self.root = folder
        self.folder, self.staging = folder / "bundle", folder / "staging"
        if Forged._model is None:
            # Authoring graphs takes longer than judging them.
            Forged._model = Path(tempfile.mkdtemp())
            atexit.register(shutil.rmtree, Forged._model, ignore_errors=True)
            make_toy(Forged._model / "bundle")
            self.staging = Forged._model / "staging"
            self.staging.mkdir()
            self.graph("context", "p")
            self.graph("iterator", "q")
            self.staging = folder / "staging"
        shutil.copytree(Forged._model, folder, dirs_exist_ok=True)
        self.job: Job = job_of(self.folder, shared=shared)
        self.binary()

    def graph(self, stage: str, part: str = "p", **changes: Any) -> None:
        attributes = {"ep_cache_context": BIN, "partition_name": part}
        node = context_node(stage, **attributes, **changes.pop("node", {}))
        save_context(self.staging / GRAPHS[stage], node, rows=ROWS[stage], **changes)

    def binary(self, parts: Any = PARTS, weights: Any = None, **changes: Any) -> None:
        bound = (WEIGHTS if self.job.shared else {}) if weights is None else weights
        (self.staging / BIN).write_bytes(forge_binary(parts, bound, **changes))

    def verify(self) -> Verified:
        return verify_artifacts(self.staging, self.job, Bundle.open(self.folder))

    def refuse(self, what: str) -> CompileError:
        with pytest.raises(CompileError) as raised:
            self.verify()
        assert what in str(raised.value)
        return raised.value


@pytest.fixture
def forged(tmp_path: Path) -> Forged:
    return Forged(tmp_path)


def test_what_a_good_child_leaves_is_taken(forged: Forged) -> None:
    """B5: what is recorded of shared weights is read back, and counted."""
    verified = forged.verify()
    assert dict(verified.graphs) == GRAPHS
    assert verified.binaries == (BIN,)
    # Two matrices for each of two graphs, less what the parts hold.
    assert verified.bytes_saved == 2 * 2 * BYTES - 1000


def test_unshared_graphs_save_nothing(tmp_path: Path) -> None:
    assert Forged(tmp_path, shared=False).verify().bytes_saved == 0


def test_a_file_that_ends_with_its_last_part_is_taken_too(forged: Forged) -> None:
    forged.binary({"p": (K64, 100), "q": (2 * K64, 5)}, size=2 * K64 + 5)
    forged.verify()


@pytest.mark.skipif(sys.platform != "linux", reason="a file with a hole")
def test_a_binary_of_a_terabyte_is_judged_by_its_header(forged: Forged) -> None:
    size = 1 << 40
    forged.binary({"p": (K64, 100), "q": (2 * K64, size - 2 * K64)}, size=4 * K64)
    os.truncate(forged.staging / BIN, size)
    forged.verify()


# -- names of binaries ----------------------------------------------------------------------

NAMES: dict[str, tuple[str, str]] = {
    "parent": ("../c.bin", "leaves the folder with '..'"),
    "inside and out": ("a/../../c.bin", "leaves the folder with '..'"),
    "backslashes": ("..\\c.bin", "leaves the folder with '..'"),
    "absolute": ("/etc/passwd", "is absolute"),
    "device": ("/dev/zero", "is absolute"),
    "drive": ("C:\\c.bin", "is absolute"),
    "drive without root": ("C:c.bin", "is absolute"),
    "share": ("\\\\server\\share\\c.bin", "is absolute"),
    "zero": ("c.bin\0x", "NUL"),
    "missing": ("d.bin", "not there, or empty"),
    "folder itself": (".", "not there, or empty"),
    "long": ("x" * 300, "sound"),
    "none": ("", "holds nothing"),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_name_of_a_binary_that_leads_elsewhere_is_refused(forged: Forged, case: str) -> None:
    """B6, B12: a binary is beside its graph."""
    name, problem = NAMES[case]
    change_contexts(forged.staging / GRAPHS["context"], ep_cache_context=name.encode())
    (forged.root / BIN).write_bytes(forge_binary(PARTS, WEIGHTS))
    forged.refuse(problem)


@posix
@pytest.mark.parametrize("inside", [True, False])
def test_a_link_is_refused_wherever_it_leads(forged: Forged, inside: bool) -> None:
    real = (forged.staging if inside else forged.root) / "real.bin"
    (forged.staging / BIN).rename(real)
    (forged.staging / BIN).symlink_to(real)
    forged.refuse("no plain file")


@posix
@pytest.mark.parametrize("what", ["pipe", "folder"])
@pytest.mark.parametrize("name", [BIN, GRAPHS["context"], "other"])
def test_what_is_no_file_is_refused_without_waiting(forged: Forged, what: str, name: str) -> None:
    path = forged.staging / name
    path.unlink(missing_ok=True)
    os.mkfifo(path) if what == "pipe" else path.mkdir()
    forged.refuse("no plain file")


def test_a_file_that_no_graph_names_is_refused(forged: Forged) -> None:
    (forged.staging / "other.bin").write_bytes(b"x")
    assert forged.refuse("left files that no graph names").facts["found"] == "other.bin"


# -- the binary -----------------------------------------------------------------------------

MANY = {f"{index}": 0 for index in range(1 << 20)}


def deep(document: dict[str, Any]) -> None:
    inner: dict[str, Any] = {}
    for _ in range(20):
        inner = {"x": inner}
    document["x"] = inner


def numbers(part: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["blob_metadata_map"][part].update(values)


def raw(data: bytes) -> Callable[[dict[str, Any]], None]:
    """One more element of the description, as bytes."""
    return lambda document: document.update({"raw": data})


BINARIES: dict[str, tuple[dict[str, Any], str]] = {
    "another version": ({"header": (2, 40, 40, 300)}, "version 2"),
    "another header": ({"header": (1, 48, 40, 300)}, "header of 48 bytes"),
    "no description": ({"header": (1, 40, 40, 0)}, "cannot be read"),
    "description in the header": ({"header": (1, 40, 0, 300)}, "a description of 300 bytes"),
    "description of 2^64": ({"header": (1, 40, 40, (1 << 64) - 1)}, "a description of 184467"),
    "description at 2^64": ({"header": (1, 40, (1 << 64) - 1, 300)}, "at byte 184467"),
    "description past the end": ({"header": (1, 40, 40, 3 * K64)}, "a description of 196608"),
    "description cut": ({"header": (1, 40, 40, 100)}, "cannot be read"),
    "another format of description": (
        {"change": lambda d: d.update(version="2.0.0")},
        "version '2.0.0'",
    ),
    "no version": ({"change": lambda d: d.pop("version")}, "version ''"),
    "part at a negative byte": ({"change": numbers("p", data_offset=-1)}, "data_offset -1"),
    "part of a negative size": ({"change": numbers("p", size=-1)}, "size -1"),
    "part of 2^62": ({"change": numbers("p", size=1 << 62)}, "size 4611686018427387904"),
    "part that is a text": ({"change": numbers("p", size="1")}, "size '1'"),
    "part without a size": ({"change": lambda d: d["blob_metadata_map"]["p"].pop("size")}, "size"),
    "parts that are a text": ({"change": lambda d: d.update(blob_metadata_map="x")}, "no document"),
    "text of 2 GB": ({"change": raw(b"\x02x\0\xff\xff\xff\x7f")}, "are left"),
    "text of a negative length": ({"change": raw(b"\x02x\0\xff\xff\xff\xff")}, "are left"),
    "text of no length": ({"change": raw(b"\x02x\0\0\0\0\0")}, "are left"),
    "text without an end": ({"change": raw(b"\x02x\0\x02\0\0\0ab")}, "without an end"),
    "document of 2 GB": ({"change": raw(b"\x03x\0\xff\xff\xff\x7f")}, "are left"),
    "binary of 2 GB": ({"change": raw(b"\x05x\0\xff\xff\xff\x7f\0")}, "are left"),
    "a name without an end": ({"change": raw(b"\x10xxxx")}, "cannot be read"),
    "a kind that is unknown": ({"change": raw(b"\x7fx\0")}, "kind 127"),
    "a name twice": ({"change": raw(b"\x02version\0\x02\0\0\x001\0")}, "'version' twice"),
    "deep": ({"change": deep}, "cannot be read"),
}


@pytest.mark.parametrize("case", BINARIES)
def test_a_description_that_cannot_be_is_refused(forged: Forged, case: str) -> None:
    """B5: every length is bounded by what holds it before anything is read by it."""
    changes, problem = BINARIES[case]
    forged.binary(**changes)
    error = forged.refuse(problem)
    assert "is no complete binary" in error.problem


@pytest.mark.slow
def test_a_description_of_a_million_things_is_refused(forged: Forged) -> None:
    forged.binary(
        {"p": (40 * K64 * 16, 1), "q": (50 * K64 * 16, 1)}, change=lambda d: d.update(MANY)
    )
    forged.refuse("more than 1048576 elements")


PLACES: dict[str, tuple[dict[str, tuple[int, int]], int | None, str]] = {
    "one is missing": ({"p": (K64, 100)}, None, "without 'q'"),
    "one too many": ({**PARTS, "r": (3 * K64, 1)}, None, "'r', which no graph names"),
    "none": ({}, None, "0 parts"),
    "outside": ({"p": (K64, 100), "q": (2 * K64, K64)}, 2 * K64 + 100, "inside the file"),
    "far outside": ({"p": (K64, 100), "q": (1 << 61, 1)}, 2 * K64, "inside the file"),
    "empty": ({"p": (K64, 100), "q": (2 * K64, 0)}, None, "of 0 bytes"),
    "in each other": ({"p": (K64, 2 * K64), "q": (2 * K64, K64)}, None, "inside the part 'p'"),
    "the same": ({"p": (K64, 100), "q": (K64, 100)}, None, "inside the part 'p'"),
    "in the description": ({"p": (50, 100), "q": (K64, 100)}, None, "inside the description"),
    "in the header": ({"p": (0, 8), "q": (K64, 100)}, None, "inside the description"),
}


@pytest.mark.parametrize("case", PLACES)
def test_parts_are_where_they_may_be(forged: Forged, case: str) -> None:
    """B4: every partition that a node names is there, once, and nothing else is."""
    parts, size, problem = PLACES[case]
    forged.binary(parts, size=size)
    forged.refuse(problem)


@pytest.mark.parametrize("left", [0, 1, 8, 39, 40, 41, 200, K64, K64 + 99, 2 * K64, 3 * K64 - 1])
def test_a_binary_that_was_cut_short_is_refused(forged: Forged, left: int) -> None:
    os.truncate(forged.staging / BIN, left)
    with pytest.raises(CompileError):
        forged.verify()


@pytest.mark.parametrize("junk", [b"x", bytes(16), bytes(K64), b"OVEP_BIN" * 10_000])
def test_bytes_after_the_last_part_are_refused(forged: Forged, junk: bytes) -> None:
    with (forged.staging / BIN).open("ab") as file:
        file.write(junk)
    forged.refuse("of which the last part ends at 131972")


@pytest.mark.parametrize(
    ("ep", "content", "problem"),
    [
        (OPENVINO, b"\x02\0\0\0 of another EP", "is no binary of openvino"),
        (OPENVINO, b"OVEP", "is no binary of openvino"),
        (OPENVINO, b"version https://git-lfs.github.com/spec/v1\n", "is no binary of openvino"),
        ("QNNExecutionProvider", None, "found: one of openvino"),
        ("QNNExecutionProvider", b"\x02\0\0\0 of an EP whose format is not known", ""),
        ("acme", b"anything", ""),
    ],
)
def test_a_binary_is_of_the_ep_that_was_asked_for(
    forged: Forged, ep: str, content: bytes | None, problem: str
) -> None:
    """A13: known formats are told apart; what another EP writes is not looked into."""
    forged.job = replace(forged.job, ep=ep)
    for stage, name in GRAPHS.items():
        path = forged.staging / context_name(stage, ep)
        (forged.staging / name).rename(path)
        change_contexts(path, source=ep.encode())
    if content is not None:
        (forged.staging / BIN).write_bytes(content)
    if problem:
        forged.refuse(problem)
    else:
        # Both matrices, which both graphs use, are in the one binary once.
        assert forged.verify().bytes_saved == 2 * BYTES


# -- weights that are bound when it is loaded ------------------------------------------------

BOUND: dict[str, tuple[dict[str, tuple[str, int, int]], str]] = {
    "parent": ({"W": ("../weights.data", 0, BYTES)}, "leaves the folder with '..'"),
    "absolute": ({"W": ("/etc/passwd", 0, 16)}, "is absolute"),
    "device": ({"W": ("/dev/zero", 0, BYTES)}, "is absolute"),
    "no name": ({"W": ("", 0, BYTES)}, "is empty"),
    "missing": ({"W": ("other.data", 0, BYTES)}, "is missing"),
    "a folder": ({"W": (".", 0, BYTES)}, "is missing"),
    "outside": ({"W": (DATA, 2 * BYTES + 128, 1)}, "which has 32896"),
    "over the end": ({"W": (DATA, 0, 1 << 40)}, "which has 32896"),
    "far outside": ({"W": (DATA, 1 << 61, BYTES)}, "which has 32896"),
    "nothing": ({"W": (DATA, 0, 0)}, "0 bytes at byte 0"),
    "another range": ({"W": (DATA, 4, BYTES)}, "is none of its source"),
    "a shorter range": ({"W": (DATA, 0, BYTES - 4)}, "is none of its source"),
    "another's range": ({"W": WEIGHTS["V"]}, "is none of its source"),
    "another file of the bundle": ({"W": ("tokenizer.json", 0, BYTES)}, "is none of its source"),
    "a new name, no range": ({"X": (DATA, 4, BYTES)}, "is none of its source"),
}


@pytest.mark.parametrize("case", BOUND)
def test_bound_weights_are_the_sources_own(forged: Forged, case: str) -> None:
    """B3, B10: an EP binds whatever a binary names, and answers wrongly with it."""
    weights, problem = BOUND[case]
    (forged.folder / "tokenizer.json").write_bytes(bytes(BYTES))
    forged.binary(weights=weights)
    forged.refuse(problem)


def test_a_bound_weight_may_have_a_new_name_and_an_old_range(forged: Forged) -> None:
    forged.binary(weights={"renamed": (f"./{DATA}", 0, BYTES)})
    assert forged.verify().bytes_saved == 2 * BYTES - 1000


@posix
def test_a_weight_file_that_is_a_link_out_of_the_bundle_is_refused(forged: Forged) -> None:
    (forged.folder / DATA).rename(forged.root / "moved.data")
    (forged.folder / DATA).symlink_to(forged.root / "moved.data")
    forged.refuse("outside the folder")


def test_weights_outside_are_refused_where_none_are_shared(tmp_path: Path) -> None:
    """Such a graph does not load without the option that its stage would not have."""
    forged = Forged(tmp_path, shared=False)
    forged.binary(weights=WEIGHTS)
    forged.refuse("though none were to be shared")


def test_two_binaries_are_no_sharing(forged: Forged) -> None:
    """B1: where sharing is promised there is exactly one binary."""
    forged.binary({"p": (K64, 100)})
    shutil.copyfile(forged.staging / BIN, forged.staging / "d.bin")
    forged.graph("iterator", "p", node={})
    change_contexts(forged.staging / GRAPHS["iterator"], ep_cache_context=b"d.bin")
    assert forged.refuse("are not shared").facts["found"] == "c.bin, d.bin"


# -- graphs ---------------------------------------------------------------------------------


def value(name: str, rows: Any = 8, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    shape = None if rows is None else [rows, SIZE]
    return helper.make_tensor_value_info(name, kind, shape)


INTERFACES: dict[str, tuple[dict[str, Any], str]] = {
    "another input": ({"inputs": [value("z")]}, "has other inputs"),
    "an input more": ({"inputs": [value("x"), value("z")]}, "has other inputs"),
    "no input": ({"inputs": []}, "has other inputs"),
    "an input twice": ({"inputs": [value("x"), value("x")]}, "has other inputs"),
    "another output": ({"outputs": [value("z")]}, "has other outputs"),
    "no output": ({"outputs": []}, "has other outputs"),
    "type": ({"inputs": [value("x", 8, TensorProto.FLOAT16)]}, "float16 [8, 64]"),
    "shape": ({"inputs": [value("x", 9)]}, "float32 [9, 64]"),
    "open input": ({"inputs": [value("x", "n")]}, "float32 ['n', 64]"),
    "output type": ({"outputs": [value("y", 8, TensorProto.DOUBLE)]}, "float64"),
    "output shape": ({"outputs": [value("y", 7)]}, "float32 [7, 64]"),
    "output of any shape": ({"outputs": [value("y", None)]}, "any shape"),
}


@pytest.mark.parametrize("case", INTERFACES)
def test_a_compiled_graph_takes_and_gives_what_its_source_does(forged: Forged, case: str) -> None:
    """B15: types of inputs stay what they were."""
    changes, problem = INTERFACES[case]
    forged.graph("context", **changes)
    forged.refuse(problem)


@pytest.mark.parametrize("rows", ["n", None])
@pytest.mark.parametrize("given", ["n", 8, "m"])
def test_what_the_runtime_infers_of_an_open_output_is_taken(
    forged: Forged, rows: Any, given: Any
) -> None:
    """onnxruntime 1.32 writes `[8, 64]` for an output that was declared `["n", 64]`."""
    source = onnx.load(forged.job.members[0].graph, load_external_data=False)
    source.graph.output[0].CopyFrom(value("y", rows))
    forged.job.members[0].graph.write_bytes(source.SerializeToString())
    forged.graph("context", outputs=[value("y", given)])
    forged.verify()


def test_an_input_with_a_default_value_may_go(forged: Forged) -> None:
    source = onnx.load(forged.job.members[0].graph, load_external_data=False)
    source.graph.input.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, [SIZE, SIZE]))
    forged.job.members[0].graph.write_bytes(source.SerializeToString())
    forged.verify()


NODES: dict[str, tuple[dict[str, Any], str]] = {
    "another EP": ({"source": "QNNExecutionProvider"}, "was compiled by another EP"),
    "no EP": ({"source": ""}, "found: no source"),
    "another mode": ({"embed_mode": 7}, "embed_mode 7"),
    "embedded and shared": ({"embed_mode": 1}, "can share nothing"),
}


@pytest.mark.parametrize("case", NODES)
def test_nodes_hold_what_the_ep_that_was_asked_for_compiled(forged: Forged, case: str) -> None:
    """A13: what one EP compiled is not taken for another's."""
    changes, problem = NODES[case]
    forged.graph("iterator", "q", node=changes)
    forged.refuse(problem)


def test_a_variant_of_the_ep_is_the_ep(forged: Forged) -> None:
    forged.graph("iterator", "q", node={"source": "OpenVINOExecutionProvider.AUTO"})
    forged.verify()


def alone(tmp_path: Path, *nodes: onnx.NodeProto) -> Forged:
    """A job of one stage whose graph has these nodes."""
    forged = Forged(tmp_path, shared=False)
    forged.job = replace(forged.job, members=forged.job.members[:1])
    (forged.staging / GRAPHS["iterator"]).unlink()
    (forged.staging / BIN).unlink()
    save_context(forged.staging / GRAPHS["context"], *nodes)
    return forged


def test_an_embedded_binary_is_read_where_it_is(tmp_path: Path) -> None:
    content = forge_binary(PARTS)
    nodes = [
        context_node("a", embed_mode=1, ep_cache_context=content, partition_name="p"),
        context_node("b", embed_mode=1, main_context=0, partition_name="q"),
    ]
    forged = alone(tmp_path, *nodes)
    assert forged.verify().binaries == ()


@pytest.mark.parametrize(
    ("content", "part", "problem"),
    [
        (b"", "q", "holds nothing"),
        (forge_binary(PARTS)[: 2 * K64 + 899], "q", "inside the file"),
        (forge_binary(PARTS)[:-1], "q", "of which the last part ends"),
        (forge_binary(PARTS) + b"x", "q", "of which the last part ends"),
        (forge_binary(PARTS), "r", "without 'r'"),
        (forge_binary(PARTS, WEIGHTS), "q", "though none were to be shared"),
        (b"something else", "q", "is no binary of openvino"),
    ],
)
def test_an_embedded_binary_is_judged_as_a_file_is(
    tmp_path: Path, content: bytes, part: str, problem: str
) -> None:
    nodes = [
        context_node("a", embed_mode=1, ep_cache_context=content, partition_name="p"),
        context_node("b", embed_mode=1, main_context=0, partition_name=part),
    ]
    alone(tmp_path, *nodes).refuse(problem)


def test_nodes_without_a_main_one_are_refused(tmp_path: Path) -> None:
    node = context_node("b", embed_mode=1, main_context=0, partition_name="q")
    alone(tmp_path, node).refuse("a main one that it lacks")


def test_an_uncompiled_graph_is_no_success(forged: Forged) -> None:
    """W#267: the graph as it was, under the name of a compiled one."""
    shutil.copyfile(forged.job.members[0].graph, forged.staging / GRAPHS["context"])
    forged.refuse("Nothing was compiled of the stage 'context'")


@pytest.mark.parametrize("left", [0, 1, 50, 200])
def test_a_graph_that_was_cut_short_is_refused(forged: Forged, left: int) -> None:
    os.truncate(forged.staging / GRAPHS["context"], left)
    with pytest.raises(CompileError):
        forged.verify()


def test_a_graph_that_is_missing_is_named(forged: Forged) -> None:
    (forged.staging / GRAPHS["iterator"]).unlink()
    assert forged.refuse("no compiled graph was left").facts["expected"] == GRAPHS["iterator"]


def external(location: str, offset: int = 0, length: int = BYTES) -> onnx.TensorProto:
    proto = TensorProto(name="W", data_type=TensorProto.FLOAT, dims=[SIZE, SIZE])
    proto.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", offset), ("length", length)):
        proto.external_data.add(key=key, value=str(text))
    return proto


EXTERNAL: dict[str, tuple[onnx.TensorProto, str]] = {
    "the source's": (external(DATA), ""),
    "parent": (external("../x.data"), "leaves the folder"),
    "absolute": (external("/dev/zero"), "is absolute"),
    "another file": (external("tokenizer.json"), "that its source does not have"),
    "in the staging folder": (external(BIN), "that its source does not have"),
    "over the end": (external(DATA, 2 * BYTES), "not wholly in its data file"),
    "too short": (external(DATA, 0, 4), "not wholly in its data file"),
}


@pytest.mark.parametrize("case", EXTERNAL)
def test_weights_of_uncompiled_nodes_are_the_sources_own(forged: Forged, case: str) -> None:
    proto, problem = EXTERNAL[case]
    forged.graph("context", initializers=[proto])
    if problem:
        forged.refuse(problem)
    else:
        forged.verify()


# -- anything -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [BIN, GRAPHS["context"]])
def test_whatever_byte_changes_it_is_taken_or_refused_and_nothing_else(
    forged: Forged, name: str
) -> None:
    chance = random.Random(11)
    path = forged.staging / name
    whole = path.read_bytes()
    # Of a binary, only the description is read.
    reach = min(len(whole), 500)
    for _ in range(2000):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(reach)] = chance.choice([0, 1, 127, 128, 255])
        path.write_bytes(changed)
        try:
            forged.verify()
        except CompileError:
            continue


@pytest.mark.openvino
@pytest.mark.slow
def test_what_the_plugin_writes_is_laid_out_as_the_forged_binaries_are(tmp_path: Path) -> None:
    """The peer of this file: parts at multiples of 64 KiB, the file's end at one, in its words."""
    from turnout.bundle.epcontext import read_context_binary

    toy = make_toy(tmp_path / "bundle")
    compile_job(job_of(toy.folder, shared=True), tmp_path / "staging")
    (path,) = (tmp_path / "staging").glob("*.bin")
    binary = read_context_binary(path)
    assert binary is not None
    assert [offset % K64 for offset, _ in binary.blobs.values()] == [0, 0]
    assert binary.file_bytes % K64 == 0
    assert binary.version.startswith("1.")
    assert binary.producer.startswith("onnxruntime-openvino-ep-plugin-")
