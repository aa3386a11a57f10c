"""ONNX headers read by our own walker, compared with the onnx package as its peer."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bundle_fixtures import build_flat, build_pipeline
from turnout.bundle import GraphFile
from turnout.bundle.graph import (
    ELEMENT_TYPES,
    EpContext,
    ExternalRange,
    Names,
    Product,
    ValueInfo,
)
from turnout.errors import GraphError


def write(path: Path, graph: onnx.GraphProto | bytes) -> Path:
    data = graph if isinstance(graph, bytes) else helper.make_model(graph).SerializeToString()
    path.write_bytes(data)
    return path


def graph_of(*initializers: onnx.TensorProto, nodes: list[onnx.NodeProto] | None = None) -> bytes:
    graph = helper.make_graph(nodes or [], "g", [], [], list(initializers))
    return helper.make_model(graph).SerializeToString()


def varint(number: int) -> bytes:
    data = b""
    while True:
        number, low = number >> 7, number & 127
        data += bytes([low | (128 if number else 0)])
        if not number:
            return data


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def test_a_real_graph_reads_as_the_onnx_package_reads_it(tmp_path: Path) -> None:
    folder = build_pipeline(tmp_path / "bundle")
    for path in folder.glob("*.onnx"):
        model = onnx.load(path, load_external_data=False)
        graph = GraphFile.read(path)
        assert graph.ir_version == model.ir_version == 10
        assert graph.opsets == {entry.domain: entry.version for entry in model.opset_import}
        assert (graph.name, graph.producer) == (model.graph.name, "fixtures")
        assert graph.file_bytes == path.stat().st_size
        assert [value.name for value in graph.inputs] == [v.name for v in model.graph.input]
        assert [value.name for value in graph.outputs] == [v.name for v in model.graph.output]
        assert graph.ops == Counter((node.domain, node.op_type) for node in model.graph.node)
        for mine, theirs in zip(graph.initializers, model.graph.initializer, strict=True):
            assert mine.name == theirs.name
            assert mine.shape == tuple(theirs.dims)
            external = {entry.key: entry.value for entry in theirs.external_data}
            assert (mine.external is None) == (not external)
            if mine.external is not None:
                assert mine.external.location == external["location"]
                assert mine.external.offset == int(external["offset"])
                assert mine.external.length == int(external["length"]) == mine.nbytes
    assert GraphFile.read(folder / "embeddings.onnx").external_files == ("weights.data",)


def test_shapes_keep_names_and_unknown_dimensions(tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info("a", TensorProto.FLOAT16, ["batch", 3, None, 64]),
        helper.make_tensor_value_info("b", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BFLOAT16, None),
        helper.make_tensor_sequence_value_info("d", TensorProto.FLOAT, ["n"]),
        helper.make_value_info("e", helper.make_optional_type_proto(
            helper.make_tensor_type_proto(TensorProto.UINT8, [1]))),
    ]  # fmt: skip
    graph = GraphFile.read(write(tmp_path / "m.onnx", helper.make_graph([], "g", values, [])))
    assert graph.inputs == (
        ValueInfo("a", "float16", ("batch", 3, None, 64)),
        ValueInfo("b", "int64", ()),
        ValueInfo("c", "bfloat16", None),
        ValueInfo("d", "sequence(float32)", None),
        ValueInfo("e", "optional(uint8)", None),
    )


def test_every_element_type_of_onnx_is_known() -> None:
    ours = {
        number: name.replace("undefined", "UNDEFINED")
        for number, (name, _) in ELEMENT_TYPES.items()
    }
    words = {"FLOAT": "float32", "DOUBLE": "float64", "UNDEFINED": "UNDEFINED"}
    theirs = {
        number: words.get(name, name.lower()) for name, number in TensorProto.DataType.items()
    }
    assert ours == theirs


@pytest.mark.parametrize(
    ("kind", "shape", "nbytes"),
    [
        (TensorProto.FLOAT, (3, 5), 60),
        (TensorProto.BFLOAT16, (3, 5), 30),
        (TensorProto.FLOAT8E4M3FN, (3, 5), 15),
        (TensorProto.BOOL, (7,), 7),
        (TensorProto.COMPLEX128, (2,), 32),
        (TensorProto.INT4, (3, 5), 8),  # 15 halves of a byte
        (TensorProto.UINT2, (3, 5), 4),  # 15 quarters
        (TensorProto.FLOAT4E2M1, (4,), 2),
        (TensorProto.FLOAT6E2M3, (4,), 3),
        (TensorProto.FLOAT, (), 4),
        (TensorProto.FLOAT, (0, 5), 0),
    ],
)
def test_sizes_follow_from_type_and_shape(
    tmp_path: Path, kind: int, shape: tuple[int, ...], nbytes: int
) -> None:
    raw = TensorProto(name="t", data_type=kind, dims=shape, raw_data=bytes(nbytes))
    (item,) = GraphFile.read(write(tmp_path / "m.onnx", graph_of(raw))).initializers
    assert (item.shape, item.nbytes, item.external) == (shape, nbytes, None)


def test_typed_data_and_strings_are_stepped_over(tmp_path: Path) -> None:
    tensors = [
        helper.make_tensor("f", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]),
        helper.make_tensor("i", TensorProto.INT4, [3], [1, 2, 3]),
        helper.make_tensor("s", TensorProto.STRING, [2], [b"ab", b"\xff\xfe\xfd"]),
        numpy_helper.from_array(np.zeros((2, 2), np.float64), "d"),
    ]
    found = GraphFile.read(write(tmp_path / "m.onnx", graph_of(*tensors))).initializers
    assert [(item.name, item.dtype, item.nbytes) for item in found] == [
        ("f", "float32", 12),
        ("i", "int4", 2),
        ("s", "string", 5),
        ("d", "float64", 32),
    ]


def test_unpacked_dimensions_read_as_packed_ones_do(tmp_path: Path) -> None:
    packed = b"\x0a\x02\x02\x03" + b"\x10\x02" + field(9, bytes(6))
    unpacked = b"\x08\x02\x08\x03" + b"\x10\x02" + field(9, bytes(6))
    for tensor in (packed, unpacked):
        path = write(tmp_path / "m.onnx", field(7, field(5, tensor)))
        assert GraphFile.read(path).initializers[0].shape == (2, 3)


def test_constants_in_nodes_subgraphs_and_sparse_tensors_are_found(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "then",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(3, np.float32), "v"),
        numpy_helper.from_array(np.arange(3), "at"),
        [10],
    )
    nodes = [
        helper.make_node(
            "Constant", [], ["k"], value=numpy_helper.from_array(np.zeros(5, np.int8))
        ),
        helper.make_node("If", ["c"], ["out"], then_branch=inner, else_branch=inner),
    ]
    graph = helper.make_graph(nodes, "g", [], [], sparse_initializer=[sparse])
    found = GraphFile.read(write(tmp_path / "m.onnx", graph))
    assert [(item.name, item.origin, item.depth, item.nbytes) for item in found.initializers] == [
        ("k", "constant", 0, 5),
        ("w", "initializer", 1, 8),
        ("w", "initializer", 1, 8),
        ("v", "sparse", 0, 12),
        ("at", "sparse", 0, 24),
    ]
    assert found.ops == {("", "Constant"): 1, ("", "If"): 1, ("", "Identity"): 2}
    assert found.node_count == 4


def test_ep_context_nodes_tell_their_binaries(tmp_path: Path) -> None:
    make = helper.make_node
    nodes = [
        make("EPContext", ["x"], ["y"], name="outside", domain="com.microsoft", embed_mode=0,
             main_context=1, ep_cache_context="a_ctx.bin", source="OpenVINOExecutionProvider",
             partition_name="p_0"),
        make("EPContext", ["x"], ["z"], name="inside", domain="com.microsoft", embed_mode=1,
             main_context=0, ep_cache_context=b"\xff" * 5000, source="QNNExecutionProvider"),
        make("EPContext", ["x"], ["v"], name="bare", domain="com.microsoft"),
    ]  # fmt: skip
    path = write(tmp_path / "m.onnx", helper.make_graph(nodes, "g", [], []))
    found = GraphFile.read(path)
    assert found.ep_contexts == (
        EpContext("outside", "OpenVINOExecutionProvider", "a_ctx.bin", 0, 0, 1, "p_0"),
        EpContext("inside", "QNNExecutionProvider", None, 5000, 1, 0, ""),
        EpContext("bare", "", None, 0, 1, 1, ""),
    )
    inside = found.ep_contexts[1]
    data = path.read_bytes()[inside.embedded_at : inside.embedded_at + inside.embedded_bytes]
    assert data == b"\xff" * 5000


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"location": "w", "offset": "64", "length": "12"}, ExternalRange("w", 64, 12)),
        ({"location": "w", "length": "12"}, ExternalRange("w", 0, 12)),
        ({"location": "w"}, ExternalRange("w", 0, 12)),  # to be read as long as the tensor is
        ({"location": "w", "checksum": "abc"}, ExternalRange("w", 0, 12)),
        ({"location": "w", "offset": "-1"}, None),
        ({"location": "w", "offset": "1e3"}, None),
        ({"location": "w", "length": "9" * 30}, None),
        ({"location": ""}, None),
        ({}, None),
    ],
)
def test_external_ranges_are_read_or_refused(
    tmp_path: Path, entries: dict[str, str], expected: ExternalRange | None
) -> None:
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[3], data_location=1)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path = write(tmp_path / "m.onnx", graph_of(tensor))
    if expected is not None:
        assert GraphFile.read(path).initializers[0].external == expected
        return
    with pytest.raises(GraphError, match="not a readable ONNX file"):
        GraphFile.read(path)


class CountedFile(io.FileIO):
    """A file that tells the sizes of its reads, as many of them as the system was asked for."""

    sizes: list[int]

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        self.sizes.append(len(data))
        return data


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of files that are opened from now on without a buffer."""
    CountedFile.sizes = sizes = []
    monkeypatch.setattr(os, "fdopen", lambda handle, *_, **__: CountedFile(handle, "rb"))
    return sizes


def test_of_four_gigabytes_of_inline_weights_a_few_kilobytes_are_read(
    tmp_path: Path, read_sizes: list[int]
) -> None:
    gigabyte, tensors = 1 << 30, 4
    heads = []
    for index in range(tensors):
        head = b"\x08" + varint(gigabyte) + b"\x10\x02" + field(8, f"w{index}".encode())
        head += varint(9 << 3 | 2) + varint(gigabyte)
        heads.append(varint(5 << 3 | 2) + varint(len(head) + gigabyte) + head)
    size = sum(len(head) + gigabyte for head in heads)
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.write(b"\x08\x0a" + varint(7 << 3 | 2) + varint(size))
        for head in heads:
            file.write(head)
            file.seek(gigabyte, os.SEEK_CUR)
        file.truncate(file.tell())
    tracemalloc.start()
    graph = GraphFile.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [item.nbytes for item in graph.initializers] == [gigabyte] * tensors
    # The first bytes, which tell the format, and a window of 16 KiB for each tensor and the end.
    assert 0 < len(read_sizes) <= tensors + 3
    assert sum(read_sizes) <= 64 + (tensors + 2) * 16384
    assert peak < 200_000


def test_a_file_larger_than_the_window_reads_as_the_onnx_package_reads_it(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    tensors = [
        numpy_helper.from_array(chance.integers(0, 255, 60_000 + 3001 * i, np.uint8), f"tensor/{i}")
        for i in range(70)
    ]
    nodes = [helper.make_node("Add", [f"tensor/{i}", "x" * 300 * i], [f"y{i}"]) for i in range(70)]
    nodes.append(
        helper.make_node("Constant", [], ["z"], value_string="s" * 40_000, name="n" * 20_000)
    )
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], tensors))
    for field_order in (model, onnx.ModelProto(ir_version=3, graph=model.graph)):
        path = write(tmp_path / "m.onnx", field_order.SerializeToString())
        assert path.stat().st_size > 8 << 20
        graph = GraphFile.read(path)
        assert [(i.name, i.nbytes) for i in graph.initializers] == [
            (tensor.name, len(tensor.raw_data)) for tensor in tensors
        ]
        assert graph.ops == {("", "Add"): 70, ("", "Constant"): 1}


@pytest.mark.parametrize(
    ("data", "found", "byte"),
    [
        (b"\x08\x0a\x3a\xff\xff\x7f", "a length of 2097151 bytes where 0 are left", 2),
        (b"\x3a\x05\x0a\x09abc", "a length of 9 bytes where 3 are left", 2),
        (b"\x08", "the end of the message", 1),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a number of more than ten bytes", 1),
        (b"\x0b", "wire type 3", 0),
        (b"\x00\x01", "field number 0", 0),
        (b"\x0d\x01\x02", "2 bytes", 0),
        (b"\x08\x0a", "no graph", 0),
        (field(7, field(5, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f" * 2)), "shape", 4),
        (field(7, field(5, b"\x08" + varint((1 << 64) - 1))), "shape [-1]", 4),
        (field(7, field(5, b"\x08\x01" * 65)), "more dimensions", 5),
        (field(7, field(5, b"\x08\x04\x10\x01" + field(9, bytes(15)))), "15 bytes of data", 4),
        (field(7, field(1, field(4, b"\xff\xfe"))), "bytes that are no text", 6),
        (field(7, field(1, field(4, b"x" * ((1 << 20) + 1)))), "text of 1048577 bytes", 12),
    ],
)  # fmt: skip
def test_a_malformed_header_is_refused_naming_the_offset(
    tmp_path: Path, data: bytes, found: str, byte: int
) -> None:
    path = write(tmp_path / "m.onnx", data)
    with pytest.raises(GraphError) as caught:
        GraphFile.read(path)
    assert found in caught.value.facts["found"]
    place, number = caught.value.facts["where"].split(", byte ")
    assert place == str(path)
    assert abs(int(number) - byte) <= 4  # the byte itself, or the start of what holds it


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"PK\x03\x04abc", "ZIP"),
        (b"\x18\x00\x00\x00ORTM", "ORT format"),
    ],
)
def test_other_files_named_onnx_are_told_by_name(tmp_path: Path, data: bytes, found: str) -> None:
    with pytest.raises(GraphError) as caught:
        GraphFile.read(write(tmp_path / "m.onnx", data))
    assert found in caught.value.facts["found"]
    assert caught.value.facts["fix"]


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="missing"):
        GraphFile.read(tmp_path / "none.onnx")
    with pytest.raises(GraphError, match="no regular file"):
        GraphFile.read(tmp_path)
    with pytest.raises(GraphError, match="empty"):
        GraphFile.read(write(tmp_path / "empty.onnx", b""))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.onnx")
        with pytest.raises(GraphError, match="no regular file"):
            GraphFile.read(tmp_path / "pipe.onnx")


def test_nesting_is_bounded(tmp_path: Path) -> None:
    payload = b""
    for _ in range(2000):
        payload = field(1, field(5, field(6, payload)))  # node, attribute, graph
    with pytest.raises(GraphError) as caught:
        GraphFile.read(write(tmp_path / "deep.onnx", field(7, payload)))
    assert "nesting" in caught.value.facts["found"]
    payload = b""
    for _ in range(2000):
        payload = field(4, field(1, payload))  # sequences of sequences
    data = field(7, field(11, field(2, payload)))
    with pytest.raises(GraphError, match="not a readable ONNX file"):
        GraphFile.read(write(tmp_path / "deep.onnx", data))


def test_the_number_of_fields_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.bundle.protobuf.MAX_FIELDS", 1000)
    with pytest.raises(GraphError) as caught:
        GraphFile.read(write(tmp_path / "m.onnx", field(7, b"\x08\x01" * 2000)))
    assert caught.value.facts["expected"] == "at most 1000 fields"


def test_a_truncated_graph_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = build_flat(tmp_path / "bundle") / "model.onnx"
    whole, graph = path.stat().st_size, GraphFile.read(path)
    for length in reversed(range(1, whole)):
        os.truncate(path, length)
        try:
            found = GraphFile.read(path)
        except GraphError:
            continue
        # Only the list of opsets, which ends the file, was cut between two entries.
        assert whole - length < 30
        assert (found.inputs, found.ops) == (graph.inputs, graph.ops)
        assert found.initializers == graph.initializers


@pytest.mark.parametrize("inline", [False, True], ids=["external", "inline"])
@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 2000), pytest.param(1, 60_000, marks=pytest.mark.slow)],
)
def test_mutated_headers_only_ever_raise_graph_errors(
    tmp_path: Path, seed: int, count: int, inline: bool
) -> None:
    chance = random.Random(seed)
    source = build_flat(tmp_path / "bundle", inline=inline) / "model.onnx"
    whole = source.read_bytes()[:3000]
    for index in range(count):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    data[at] ^= 1 << chance.randrange(8)
                case 2:
                    data[at : at + 1] = varint(chance.getrandbits(chance.choice([7, 31, 63])))
                case 3:
                    del data[at : at + chance.randint(1, 9)]
        # A new file each time: some file systems wait for the disk when one is written over.
        path = tmp_path / f"{index}.onnx"
        path.write_bytes(data)
        with contextlib.suppress(GraphError):
            GraphFile.read(path)
        path.unlink()


def test_products_of_quantized_weights_are_told_once_each(tmp_path: Path) -> None:
    """In graphs inside the graph too; a missing attribute has the default of its schema."""

    def product(**given: int) -> onnx.NodeProto:
        return helper.make_node(
            "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=64, **given
        )

    inner = helper.make_graph([product(bits=8, block_size=16, accuracy_level=4)], "inner", [], [])
    nodes = [
        product(block_size=32),
        product(bits=4, block_size=32, accuracy_level=0),
        helper.make_node("Other", [], ["z"], bits=2, block_size=128),
        helper.make_node("If", ["c"], ["v"], then_branch=inner, else_branch=inner),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], [])), tmp_path / "m.onnx")
    assert GraphFile.read(tmp_path / "m.onnx").products == {Product(4, 32, 0), Product(8, 16, 4)}


def test_what_is_read_in_any_graph_is_told_of_inputs_and_constants(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    inner = helper.make_graph(
        [helper.make_node("Neg", ["outer"], ["t"])], "i", [], [value("t", 1, [1])]
    )
    graph = helper.make_graph(
        [
            helper.make_node("If", ["choice"], ["y"], then_branch=inner, else_branch=inner),
            helper.make_node("Add", ["y", "weight"], ["z"], name="an addition"),
        ],
        "g",
        [value(name, 1, [1]) for name in ("choice", "unread", "passed")],
        [value(name, 1, [1]) for name in ("z", "passed")],
        [helper.make_tensor(name, 1, [1], [1.0]) for name in ("weight", "outer", "surplus")],
    )
    found = GraphFile.read(write(tmp_path / "m.onnx", graph))
    assert found.reads == {"choice", "passed", "weight", "outer"}
    assert found.names == Names()


def test_names_that_do_not_fit_are_told(tmp_path: Path) -> None:
    neg = functools.partial(helper.make_node, "Neg")
    constant = helper.make_node(
        "Constant", [], ["w"], name="a", value=helper.make_tensor("v", 1, [1], [1.0])
    )
    graph = helper.make_graph(
        [
            neg(["nothing"], ["y"], name="a"),
            neg(["x", ""], ["y"], name="a"),
            constant,
            neg(["w"], ["x"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info("nowhere", 1, [1])],
    )
    names = GraphFile.read(write(tmp_path / "m.onnx", graph)).names
    assert names == Names(undefined=("nothing", "nowhere"), repeated=("y", "x"), twins=("a",))


def test_a_node_is_read_alike_however_long_its_fields_are(tmp_path: Path) -> None:
    names = [f"{letter}{'x' * length}" for letter, length in (("a", 5), ("b", 200), ("c", 5000))]
    for count in (1, 2, 3):
        graph = helper.make_graph(
            [helper.make_node("Sum", names[:count], ["y"], domain="d", name="n" * 300)],
            "g",
            [helper.make_tensor_value_info(name, 1, [1]) for name in names],
            [helper.make_tensor_value_info("y", 1, [1])],
        )
        found = GraphFile.read(write(tmp_path / "m.onnx", graph))
        assert (found.reads, found.ops) == (set(names[:count]), {("d", "Sum"): 1})


def test_what_an_inline_tensor_lacks_is_told(tmp_path: Path) -> None:
    whole = helper.make_tensor("whole", TensorProto.INT64, [3], [1, 300, -1])
    short = helper.make_tensor("short", TensorProto.INT64, [2], [300, -1])
    short.dims[0] = 3
    floats = helper.make_tensor("floats", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    halves = helper.make_tensor("halves", TensorProto.FLOAT16, [2], [1.0, 2.0])
    nothing = onnx.TensorProto(name="nothing", data_type=TensorProto.FLOAT, dims=[4])
    key = onnx.TensorProto(name="key", data_type=TensorProto.FLOAT, dims=[4], data_location=1)
    for name, value in (("location", "d"), ("checksum", "1"), ("bogus", "1")):
        key.external_data.add(key=name, value=value)
    found = GraphFile.read(
        write(tmp_path / "m.onnx", graph_of(whole, short, floats, halves, nothing, key))
    )
    assert {item.name: item.flaw for item in found.initializers} == {
        "whole": "",
        "short": "2 numbers of 3",
        "floats": "",
        "halves": "",
        "nothing": "0 numbers of 4",
        "key": "a key 'bogus' of external data, which is unknown",
    }
