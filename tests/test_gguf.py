"""The reader of GGUF files: against the gguf package on right files, and on wrong ones.

Offsets in errors are computed by hand from the layout: magic 4, version 4, two counts of 8.
"""

from __future__ import annotations

import io
import os
import struct
import sys
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import gguf as peer
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_fixtures import (
    F16,
    F32,
    Q4_0,
    Tensor,
    array,
    f32,
    f32s,
    f64,
    flag,
    gguf_bytes,
    i8,
    i32s,
    i64,
    string,
    strings,
    text_bytes,
    u8,
    u16,
    u32,
    write_gguf,
)
from turnout.building.gguf import GgufArray, GgufFile
from turnout.building.gguf_source import WINDOW, Source
from turnout.errors import GgufError, SourceError, TurnoutError, UnsupportedModelError, UsageError

TINY = sorted((Path(__file__).parent / "data" / "tiny").glob("*.gguf"))
RNG = np.random.default_rng(11)


def opened(tmp_path: Path, data: bytes) -> GgufFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return GgufFile.open(path)


def refused(tmp_path: Path, data: bytes, kind: type[TurnoutError] = GgufError) -> TurnoutError:
    with pytest.raises(kind) as caught:
        opened(tmp_path, data)
    assert str(tmp_path / "m.gguf") in caught.value.facts["where"]
    return caught.value


@contextmanager
def counted_calls() -> Iterator[Callable[[], int]]:
    """Gives the number of calls so far, of Python's functions and of C's: work without a clock."""
    count, before = 0, sys.getprofile()

    def count_one(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(count_one)
    try:
        yield lambda: count
    finally:
        sys.setprofile(before)


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of GGUF files from now on."""
    sizes: list[int] = []
    read_into = Source.read_into

    def counted(self: Source, offset: int, target: memoryview, where: str = "") -> None:
        sizes.append(len(target))
        read_into(self, offset, target, where)

    monkeypatch.setattr(Source, "read_into", counted)
    return sizes


def small_file() -> bytes:
    """Every kind of value, and three tensors."""
    return gguf_bytes(
        {
            "general.architecture": string("llama"),
            "a.u8": u8(200),
            "a.i8": i8(-3),
            "a.u16": u16(65535),
            "a.u32": u32(7),
            "a.f32": f32(0.5),
            "a.flag": flag(1),
            "a.i64": i64(-(1 << 40)),
            "a.f64": f64(0.1),
            "a.texts": strings(["one", "", "drei €"]),
            "a.ints": i32s([1, -2, 3]),
            "a.floats": f32s([0.25, -1.0]),
            "a.flags": array(7, b"\1\0\1", 3),
            "a.nested": array(9, struct.pack("<IQ", 4, 1) + struct.pack("<I", 5), 1),
            "a.empty": array(8, b"", 0),
        },
        [
            Tensor("vector", [3], F32, struct.pack("<3f", 1, 2, 3)),
            Tensor("matrix", [32, 2], Q4_0, bytes(range(36))),
            Tensor("cube", [2, 3, 4], F16, bytes(range(48))),
        ],
    )


class TestRightFiles:
    @pytest.mark.parametrize("path", TINY, ids=lambda path: path.stem)
    def test_metadata_and_tensors_equal_the_gguf_packages(self, path: Path) -> None:
        theirs = peer.GGUFReader(path)
        fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
        with GgufFile.open(path) as ours:
            assert list(ours.metadata) == list(fields)
            for key, value in ours.metadata.items():
                expected = fields[key].contents()
                found = list(value.read()) if isinstance(value, GgufArray) else value
                assert found == expected, key
            assert list(ours.tensors) == [t.name for t in theirs.tensors]
            for tensor in theirs.tensors:
                mine = ours.tensors[tensor.name]
                assert mine.type == tensor.tensor_type.name
                assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
                assert (mine.offset, mine.nbytes) == (tensor.data_offset, tensor.n_bytes)
                raw = tensor.data.view(np.uint8).reshape(mine.rows, -1)
                assert np.array_equal(mine.read(), raw)

    def test_every_kind_of_value_is_read(self, tmp_path: Path) -> None:
        with opened(tmp_path, small_file()) as file:
            assert file.version == 3
            assert file.architecture == "llama"
            assert [file.integer(f"a.{k}") for k in ("u8", "i8", "u16", "u32", "i64")] == [
                200,
                -3,
                65535,
                7,
                -(1 << 40),
            ]
            assert (file.number("a.f32"), file.number("a.f64")) == (0.5, 0.1)
            assert file.flag("a.flag") is True
            assert file.strings("a.texts") == ["one", "", "drei €"]
            assert file.integers("a.ints") == [1, -2, 3]
            assert file.numbers("a.floats") == [0.25, -1.0]
            assert file.numbers("a.ints") == [1.0, -2.0, 3.0]
            assert file.strings("a.empty") == []
            flags = file.metadata["a.flags"]
            assert isinstance(flags, GgufArray)
            assert list(flags.read()) == [True, False, True]

    def test_version_2_is_read_like_version_3(self, tmp_path: Path) -> None:
        data = gguf_bytes({"a": u32(1)}, [Tensor("t", [2], F32, bytes(8))], version=2)
        with opened(tmp_path, data) as file:
            assert (file.version, file.integer("a"), file.tensors["t"].shape) == (2, 1, (2,))

    def test_the_files_own_alignment_is_used(self, tmp_path: Path) -> None:
        data = gguf_bytes(
            {"general.alignment": u32(8)},
            [Tensor("a", [1], F32, b"abcd"), Tensor("b", [1], F32, b"wxyz")],
            alignment=8,
        )
        with opened(tmp_path, data) as file:
            assert file.tensors["b"].offset == file.tensors["a"].offset + 8
            assert file.tensors["b"].read().tobytes() == b"wxyz"

    def test_only_the_rows_asked_for_are_read(self, tmp_path: Path) -> None:
        with opened(tmp_path, small_file()) as file:
            matrix = file.tensors["matrix"]
            assert (matrix.shape, matrix.rows, matrix.row_bytes) == ((2, 32), 2, 18)
            assert matrix.read(1).tolist() == [list(range(18, 36))]
            assert matrix.read(1, 1).shape == (0, 18)
            cube = file.tensors["cube"]
            assert (cube.shape, cube.rows) == ((4, 3, 2), 12)
            assert cube.read(5, 7).tolist() == [list(range(20, 24)), list(range(24, 28))]
            assert file.tensors["vector"].read().view("<f4").tolist() == [[1.0, 2.0, 3.0]]

    @pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 3), (2, 1)])
    def test_rows_that_a_tensor_does_not_have_are_refused(
        self, tmp_path: Path, start: int, stop: int
    ) -> None:
        with opened(tmp_path, small_file()) as file, pytest.raises(UsageError, match="no rows"):
            file.tensors["matrix"].read(start, stop)

    def test_threads_read_at_once(self, tmp_path: Path) -> None:
        rows = RNG.integers(0, 256, (512, 4), dtype=np.uint8)
        path = write_gguf(tmp_path / "m.gguf", {}, [Tensor("t", [1, 512], F32, rows.tobytes())])
        wrong: list[int] = []

        def read(file: GgufFile, first: int) -> None:
            for row in range(first, 512, 4):
                if not np.array_equal(file.tensors["t"].read(row, row + 1)[0], rows[row]):
                    wrong.append(row)

        with GgufFile.open(path) as file:
            threads = [threading.Thread(target=read, args=(file, n)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not wrong

    def test_reading_works_where_positioned_reads_are_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "preadv")
        self.test_threads_read_at_once(tmp_path)

    def test_a_closed_file_may_be_closed_again_and_no_longer_be_read(self, tmp_path: Path) -> None:
        file = opened(tmp_path, small_file())
        tensor = file.tensors["matrix"]
        file.close()
        file.close()
        with pytest.raises(GgufError, match="Cannot read"):
            tensor.read()


class TestValuesAskedFor:
    def test_a_missing_key_is_named(self, tmp_path: Path) -> None:
        with opened(tmp_path, small_file()) as file, pytest.raises(GgufError) as caught:
            file.integer("llama.block_count")
        assert "llama.block_count" in caught.value.problem
        assert caught.value.facts["expected"] == "an integer"

    def test_a_default_stands_for_a_missing_key_only(self, tmp_path: Path) -> None:
        with opened(tmp_path, small_file()) as file:
            assert file.integer("none", 4) == 4
            assert file.number("none", 1) == 1
            assert file.flag("none", True) is True
            assert file.text("none", None) is None
            assert file.strings("none", None) is None
            assert file.integers("none", None) is None
            assert file.numbers("none", None) is None
            with pytest.raises(GgufError):
                file.integer("a.f32", 4)

    @pytest.mark.parametrize(
        ("getter", "key", "found"),
        [
            ("integer", "a.f32", "0.5"),
            ("integer", "a.flag", "True"),
            ("integer", "a.ints", "an array of 3 values of type INT32"),
            ("number", "a.flag", "True"),
            ("flag", "a.u8", "200"),
            ("text", "a.u8", "200"),
            ("strings", "general.architecture", "'llama'"),
            ("strings", "a.ints", "an array of 3 values of type INT32"),
            ("integers", "a.floats", "an array of 2 values of type FLOAT32"),
            ("integers", "a.nested", "an array of 1 values of type ARRAY"),
            ("numbers", "a.texts", "an array of 3 values of type STRING"),
        ],
    )
    def test_a_value_of_another_type_is_refused_saying_which(
        self, tmp_path: Path, getter: str, key: str, found: str
    ) -> None:
        with opened(tmp_path, small_file()) as file, pytest.raises(GgufError) as caught:
            getattr(file, getter)(key)
        assert caught.value.facts["found"] == found
        assert key in caught.value.facts["where"]

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_numbers_are_finite(self, tmp_path: Path, value: float) -> None:
        data = gguf_bytes({"a": f32(value), "b": f32s([1.0, value])})
        with opened(tmp_path, data) as file:
            with pytest.raises(GgufError, match="finite"):
                file.number("a")
            with pytest.raises(GgufError) as caught:
                file.numbers("b")
        assert "at index 1" in caught.value.facts["found"]

    def test_a_token_that_is_not_utf8_is_named_by_its_index(self, tmp_path: Path) -> None:
        data = gguf_bytes({"t": strings(["ok", b"\xff\xfe"])})
        problem = "Element 1 of the array 't'"
        with opened(tmp_path, data) as file, pytest.raises(GgufError, match=problem) as caught:
            file.strings("t")
        # 24 of header, key 8 + 1, type 4, element type 4, count 8, "ok" 8 + 2, length 8.
        assert "byte 67," in caught.value.facts["where"]


class TestOtherFiles:
    def test_a_path_that_does_not_exist_is_wrong_usage(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="There is no file"):
            GgufFile.open(tmp_path / "none.gguf")
        with pytest.raises(UsageError):
            GgufFile.open(tmp_path / "nul\0.gguf")

    def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            GgufFile.open(tmp_path)
        assert caught.value.facts["found"] == "a directory"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_named_pipe_is_refused_without_waiting_for_a_writer(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(UsageError, match="not a GGUF file"):
            GgufFile.open(tmp_path / "pipe.gguf")

    @pytest.mark.parametrize(
        ("head", "looks_like"),
        [
            (b"", "an empty file"),
            (bytes(64), "zeros"),
            (b"PK\x03\x04rest of a zip", "a zip archive"),
            (struct.pack("<Q", 60) + b'{"weight":{"dtype":"F32"', "a safetensors file"),
            (b"\x08\x0a\x12\x07pytorch", "an ONNX model"),
            (b"<!DOCTYPE html><html>", "a web page"),
            (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
            (b"tjgg\x03\0\0\0", "a GGJT file"),
            (b'{"model_type": "llama"}', "a JSON document"),
            (b"\x1f\x8b\x08\0", "a gzip archive"),
            (b"hello", "starts with b'hello'"),
        ],
    )
    def test_a_file_of_another_format_is_said_to_be_what_it_looks_like(
        self, tmp_path: Path, head: bytes, looks_like: str
    ) -> None:
        error = refused(tmp_path, head)
        assert "is not a GGUF file" in error.problem
        assert looks_like in error.facts["found"]

    def test_real_files_of_other_formats_are_recognized(self, tmp_path: Path) -> None:
        import onnx

        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("data.pkl", "x")
        assert "zip" in refused(tmp_path, packed.getvalue()).facts["found"]
        graph = onnx.helper.make_graph([], "g", [], [])
        model = onnx.helper.make_model(graph).SerializeToString()
        assert "ONNX" in refused(tmp_path, model).facts["found"]

    @pytest.mark.parametrize(
        ("version", "found"),
        [(1, "version 1"), (4, "version 4"), (0x03000000, "a big-endian file, version 3")],
    )
    def test_other_versions_and_byte_orders_are_refused(
        self, tmp_path: Path, version: int, found: str
    ) -> None:
        error = refused(tmp_path, gguf_bytes(version=version))
        assert error.facts["found"] == found
        assert error.facts["expected"] == "little-endian, version 2 or 3"


class TestCutShort:
    def test_a_header_cut_at_any_byte_is_refused_naming_where(self, tmp_path: Path) -> None:
        whole = small_file()
        header = len(whole) - 12 - 20 - 36 - 28 - 48  # the data, with its padding
        for length in range(header):
            error = refused(tmp_path, whole[:length])
            if length >= 4:
                assert "byte " in error.facts["where"], length
        opened(tmp_path, whole).close()

    def test_a_file_cut_inside_metadata_names_the_key(self, tmp_path: Path) -> None:
        whole = gguf_bytes({"first": u32(1), "second": string("long enough")})
        error = refused(tmp_path, whole[: whole.index(b"long") + 4])
        assert "metadata key 'second'" in error.facts["where"]
        assert error.facts["found"] == "4 bytes left"
        assert error.facts["expected"] == "11 bytes for a metadata text"

    def test_a_file_cut_inside_a_tensor_names_the_tensor_and_the_sizes(
        self, tmp_path: Path
    ) -> None:
        whole = small_file()
        error = refused(tmp_path, whole[:-8])
        assert "'cube'" in error.problem
        assert "40 of them for this tensor" in error.facts["found"]
        assert error.facts["expected"].startswith("48 bytes")

    def test_a_file_that_shrinks_after_it_was_opened_is_an_error(self, tmp_path: Path) -> None:
        with opened(tmp_path, small_file()) as file:
            os.truncate(tmp_path / "m.gguf", file.tensors["cube"].offset + 10)
            with pytest.raises(GgufError, match="ended while it was read") as caught:
                file.tensors["cube"].read()
        assert (caught.value.facts["found"], caught.value.facts["expected"]) == (
            "10 bytes",
            "48 bytes",
        )


HUGE = (1 << 63) - 1
ABSURD: list[tuple[str, bytes]] = [
    ("2^63 tensors", gguf_bytes({"a": u32(1)}, tensor_count=1 << 63)),
    ("2^63 keys", gguf_bytes({"a": u32(1)}, key_count=1 << 63)),
    ("a million keys in a small file", gguf_bytes({"a": u32(1)}, key_count=1_000_000)),
    ("an array of 2^28 integers", gguf_bytes({"a": array(4, bytes(8), 1 << 28)})),
    ("an array of 2^63 bytes", gguf_bytes({"a": array(0, bytes(8), HUGE)})),
    ("an array of 2^28 strings", gguf_bytes({"a": array(8, bytes(64), 1 << 28)})),
    ("a text longer than the file", gguf_bytes({"a": (8, struct.pack("<Q", 1 << 40))})),
    ("a text of 2^64 - 1 bytes", gguf_bytes({"a": (8, struct.pack("<Q", (1 << 64) - 1))})),
    ("a string in an array longer than the file", gguf_bytes({"a": array(8, b"\xff" * 16, 2)})),
    ("a key longer than the file", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(64)),
    ("an array of 2^28 arrays", gguf_bytes({"a": array(9, bytes(64), 1 << 28)})),
    ("arrays nested deep", gguf_bytes({"a": array(9, struct.pack("<IQ", 9, 1) * 5000, 1)})),
    ("a tensor of 2^63 bytes", gguf_bytes({}, [Tensor("t", [1 << 61], F32)])),
]


class TestAbsurdCounts:
    @pytest.mark.parametrize("data", [d for _, d in ABSURD], ids=[name for name, _ in ABSURD])
    def test_are_refused_at_once_and_without_memory(self, tmp_path: Path, data: bytes) -> None:
        """Nothing is allocated or looped over before it is compared with the file's size."""
        tracemalloc.start()
        with counted_calls() as calls:
            refused(tmp_path, data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 0 < calls() < 2000
        assert peak < 1 << 20

    def test_millions_of_empty_strings_that_the_file_does_hold_are_bounded(
        self, tmp_path: Path
    ) -> None:
        count = (1 << 23) + 1
        path = tmp_path / "m.gguf"
        with path.open("wb") as file:
            file.write(gguf_bytes({"a": array(8, b"", count)}))
            file.truncate(file.tell() + 8 * count)  # sparse zeros: that many empty strings
        with pytest.raises(GgufError, match="more nested values") as caught:
            GgufFile.open(path)
        assert "metadata key 'a'" in caught.value.facts["where"]

    def test_a_large_array_is_not_read_before_it_is_asked_for(self, tmp_path: Path) -> None:
        count = 300 << 20
        path = tmp_path / "m.gguf"
        with path.open("wb") as file:
            file.write(gguf_bytes({"a": array(0, b"", count)}))
            file.truncate(file.tell() + count)
        tracemalloc.start()
        with GgufFile.open(path) as file, pytest.raises(GgufError, match="cannot be read"):
            file.integers("a")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20


class TestMetadataThatIsWrong:
    def test_a_key_that_is_there_twice(self, tmp_path: Path) -> None:
        error = refused(tmp_path, gguf_bytes([("same", u32(1)), ("same", u32(2))]))
        assert "'same' twice" in error.problem
        # 24 of header, 8 + 4 of key, 4 of type, 4 of value: the second pair.
        assert "byte 44" in error.facts["where"]

    def test_a_key_that_is_not_utf8(self, tmp_path: Path) -> None:
        error = refused(tmp_path, gguf_bytes({b"ab\xff": u32(1)}))
        assert "is not UTF-8" in error.problem
        assert "byte 34" in error.facts["where"]

    def test_a_text_that_is_not_utf8(self, tmp_path: Path) -> None:
        error = refused(tmp_path, gguf_bytes({"general.name": string(b"x\xff")}))
        assert "'general.name'" in error.facts["where"]

    def test_a_value_of_an_unknown_type(self, tmp_path: Path) -> None:
        error = refused(tmp_path, gguf_bytes({"a": (13, bytes(8))}))
        assert error.facts["found"] == "type 13"
        assert "byte 33, metadata key 'a'" in error.facts["where"]

    def test_a_boolean_that_is_neither(self, tmp_path: Path) -> None:
        assert refused(tmp_path, gguf_bytes({"a": flag(2)})).facts["found"] == "2"

    def test_a_text_longer_than_any_model_needs(self, tmp_path: Path) -> None:
        error = refused(tmp_path, gguf_bytes({"a": string(b"x" * ((1 << 24) + 1))}))
        assert "too long" in error.problem

    @pytest.mark.parametrize("value", [u32(0), u32(7), u32(1 << 20), string("32"), flag(1), f32(8)])
    def test_an_alignment_that_is_impossible(self, tmp_path: Path, value: Any) -> None:
        error = refused(tmp_path, gguf_bytes({"general.alignment": value}))
        assert "impossible alignment" in error.problem

    def test_a_part_of_a_split_model_says_so(self, tmp_path: Path) -> None:
        data = gguf_bytes({"split.count": u16(3)})
        error = refused(tmp_path, data, UnsupportedModelError)
        assert error.facts["found"] == "split.count = 3"
        assert "merge" in error.facts["fix"]


class TestTensorsThatAreWrong:
    @pytest.mark.parametrize(
        ("tensor", "problem", "found"),
        [
            (Tensor("t", [], F32), "number of dimensions", "0"),
            (Tensor("t", [1] * 5, F32), "number of dimensions", "5"),
            (Tensor("t", [4, 0], F32), "impossible shape", "dimensions [4, 0]"),
            (Tensor("t", [1 << 32, 1 << 32], F32), "impossible shape", "dimensions"),
            (Tensor("t", [33], Q4_0), "no whole blocks", "dimensions [33]"),
            (Tensor("t", [1], F32, bytes(4), offset=4), "the file's alignment", "offset 4"),
            (Tensor("t", [1], F32, bytes(4), offset=64), "ends before", "0 of them"),
            (Tensor("t", [1], F32, bytes(4), offset=(1 << 64) - 32), "ends before", "0 of them"),
        ],
    )
    def test_are_refused_by_name(
        self, tmp_path: Path, tensor: Tensor, problem: str, found: str
    ) -> None:
        error = refused(tmp_path, gguf_bytes({}, [tensor]))
        assert problem in error.problem
        assert "'t'" in error.problem
        assert found in error.facts["found"]
        assert "'t'" in error.facts["where"]

    def test_two_of_one_name(self, tmp_path: Path) -> None:
        twice = [Tensor("t", [1], F32, bytes(4)), Tensor("t", [1], F32, bytes(4))]
        assert "'t' twice" in refused(tmp_path, gguf_bytes({}, twice)).problem

    def test_two_that_overlap(self, tmp_path: Path) -> None:
        tensors = [Tensor("a", [16], F32, bytes(64)), Tensor("b", [1], F32, bytes(4), offset=32)]
        error = refused(tmp_path, gguf_bytes({}, tensors))
        assert error.problem == "The tensors 'a' and 'b' overlap."

    @pytest.mark.parametrize(
        ("kind", "found"),
        [(10, "Q2_K"), (16, "IQ2_XXS"), (39, "MXFP4"), (4, "Q4_2 (removed"), (99, "number 99")],
    )
    def test_of_a_type_that_is_not_handled_are_named_with_it(
        self, tmp_path: Path, kind: int, found: str
    ) -> None:
        data = gguf_bytes({}, [Tensor("blk.0.attn_q.weight", [256], kind, bytes(512))])
        error = refused(tmp_path, data, UnsupportedModelError)
        assert "blk.0.attn_q.weight" in error.problem
        assert found in error.facts["found"]
        assert "Q4_K" in error.facts["expected"]

    def test_every_type_that_the_gguf_package_knows_has_its_name_and_sizes(self) -> None:
        from turnout.building.gguf_types import OTHER_TENSOR_TYPES, TENSOR_TYPES

        for kind in peer.GGMLQuantizationType:
            if kind.value in TENSOR_TYPES:
                mine = TENSOR_TYPES[kind.value]
                assert mine.name == kind.name
                assert (mine.block, mine.nbytes) == peer.GGML_QUANT_SIZES[kind]
            else:
                assert OTHER_TENSOR_TYPES[kind.value] == kind.name


def many_tokens(count: int) -> bytes:
    words = [f"token{index:x}" for index in range(count)]
    pairs = [f"to ken{index:x}" for index in range(count)]
    return gguf_bytes({"tokens": strings(words), "merges": strings(pairs)})


def test_a_vocabulary_of_150000_is_opened_in_one_pass_and_in_little_memory(
    tmp_path: Path, read_sizes: list[int]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(many_tokens(150_000))
    tracemalloc.start()
    with counted_calls() as calls:
        file = GgufFile.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    # Both arrays: one step a string, and every byte read once, in windows that overlap a little.
    assert 0 < calls() < 2 * 150_000 + 2000
    assert 0 < len(read_sizes) < path.stat().st_size / WINDOW + 3
    assert sum(read_sizes) < path.stat().st_size + 1000
    with file:
        assert len(file.strings("tokens")) == 150_000
        assert file.strings("merges")[-1] == f"to ken{149_999:x}"


def test_a_refused_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    close: Callable[[int], None] = os.close
    monkeypatch.setattr(os, "close", lambda handle: (closed.append(handle), close(handle)))
    refused(tmp_path, b"nothing")
    assert len(closed) == 1


EXTREMES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["byte", "number", "cut", "insert", "delete"]),
        st.floats(0, 1),
        st.one_of(st.integers(0, 255), st.sampled_from(EXTREMES)),
    ),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, edits: list[tuple[str, float, int]]) -> bytes:
    out = bytearray(data)
    for kind, where, value in edits:
        at = int(where * max(0, len(out) - 1))
        if kind == "byte":
            out[at : at + 1] = bytes([value & 255])
        elif kind == "number":
            out[at : at + 8] = struct.pack("<Q", value)
        elif kind == "cut":
            del out[at:]
        elif kind == "insert":
            out[at:at] = bytes([value & 255]) * 5
        else:
            del out[at : at + 3]
    return bytes(out)


SEEDS = [small_file(), TINY[0].read_bytes()[:8192], TINY[3].read_bytes()[:8192]]


def is_read_or_refused(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # some file systems wait for the disk when one is written over
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with GgufFile.open(path) as file:
            for value in file.metadata.values():
                if isinstance(value, GgufArray):
                    value.read()
            for tensor in file.tensors.values():
                tensor.read(0, 1)
    except SourceError as error:
        assert error.problem
        assert error.facts
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 << 20


def fuzzed(max_examples: int, *, derandomize: bool) -> Any:
    return settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=derandomize,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@fuzzed(200, derandomize=True)
@given(seed=st.sampled_from(SEEDS), edits=EDITS)
def test_a_mutated_file_is_read_or_refused_and_nothing_else(
    tmp_path: Path, seed: bytes, edits: list[tuple[str, float, int]]
) -> None:
    is_read_or_refused(tmp_path / "m.gguf", edited(seed, edits))


@pytest.mark.slow
@fuzzed(4000, derandomize=False)
@given(seed=st.sampled_from(SEEDS), edits=EDITS)
def test_other_mutated_files_each_time_are_read_or_refused_and_nothing_else(
    tmp_path: Path, seed: bytes, edits: list[tuple[str, float, int]]
) -> None:
    is_read_or_refused(tmp_path / "m.gguf", edited(seed, edits))


def test_the_layout_of_the_fixture_is_the_formats(tmp_path: Path) -> None:
    """What these tests call right is what the gguf package takes."""
    path = tmp_path / "m.gguf"
    path.write_bytes(small_file())
    reader = peer.GGUFReader(path)
    assert reader.fields["a.texts"].contents() == ["one", "", "drei €"]
    assert [t.name for t in reader.tensors] == ["vector", "matrix", "cube"]
    assert text_bytes("é") == b"\x02\0\0\0\0\0\0\0\xc3\xa9"
