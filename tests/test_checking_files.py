"""Files of a bundle that cannot be used, or that nothing uses; judged by the runtime itself."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import (
    DATA_FILE,
    as_hub_cache,
    build_flat,
    build_pipeline,
    generate,
    read_config,
    write_config,
)
from session_fixtures import Bundles
from turnout import checking
from turnout.bundle import DERIVED_MARK, Bundle
from turnout.checking import Finding, Subject, data, files, tokenizers
from turnout.compiling import loadable

OPENVINO = [{"OpenVINO": {"device_type": "CPU"}}]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5000000000\n"


def findings(folder: Path) -> list[Finding]:
    bundle = Bundle.open(folder)
    return list(files.check(Subject(bundle.config, bundle)))


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in findings(folder)]


def everything(folder: Path) -> list[Finding]:
    """All that the three modules of files say."""
    bundle = Bundle.open(folder)
    subject = Subject(bundle.config, bundle)
    return [f for module in (files, data, tokenizers) for f in module.check(subject)]


def set_decoder(folder: Path, **values: Any) -> None:
    config = read_config(folder)
    config["model"]["decoder"].update(values)
    write_config(folder, config)


def rename(folder: Path, old: str, new: str) -> None:
    (folder / old).rename(folder / new)


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "flat": build_flat,
    "inline": lambda folder: build_flat(folder, inline=True),
    "pipeline": build_pipeline,
    "four stages": lambda folder: build_pipeline(folder, two_sessions=True, layout="many objects"),
    "subfolder": lambda folder: build_pipeline(folder, subfolder="graphs/a b"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hub", [False, True])
def test_a_sound_bundle_gives_no_finding_and_loads(
    tmp_path: Path, layout: str, hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bundles as a hub's client stores them, every file a link, are sound too."""
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    folder = LAYOUTS[layout](tmp_path / "bundle")
    (folder / "README.md").write_text("read me")
    (folder / ".gitattributes").write_text("*.onnx filter=lfs")
    if hub:
        folder = as_hub_cache(folder, tmp_path / "models--x--y", "cpu/int4")
    assert everything(folder) == []
    bundle = Bundle.open(folder)
    assert generate(loadable(bundle, bundle.config)) == [203, 84, 118, 84, 259, 151]
    assert everything(folder) == [], "what was compiled beside it is no part of it"


@pytest.mark.parametrize("kind", ["flat", "pipeline", "two sessions", "static"])
def test_what_turnout_builds_gives_no_finding(tmp_path: Path, kind: str) -> None:
    bundles = Bundles(tmp_path)
    for model in ("llama-spm", "qwen2-bias-tied"):
        assert everything(bundles(kind, model=model)) == []


def test_a_lone_config_gives_no_finding(tmp_path: Path) -> None:
    subject = Subject(Bundle.open(build_flat(tmp_path / "b")).config)
    assert [list(module.check(subject)) for module in (files, data, tokenizers)] == [[], [], []]


def test_a_missing_graph_is_told_at_its_place_in_the_config(tmp_path: Path) -> None:
    folder = build_pipeline(tmp_path / "bundle", two_sessions=True)
    (folder / "iterator.onnx").unlink()
    (finding,) = findings(folder)
    assert (finding.code, finding.severity, finding.kind) == ("T301", "error", "files")
    assert finding.path == "model.decoder.pipeline[0].iterator.filename"
    text = (folder / "genai_config.json").read_text().splitlines()
    assert finding.line is not None
    assert '"filename": "iterator.onnx"' in text[finding.line - 1]
    assert finding.message == "The graph of the stage 'iterator', iterator.onnx, is missing."
    with pytest.raises(RuntimeError, match="File doesn't exist"):
        generate(folder)


def test_a_stage_without_a_file_is_told(tmp_path: Path) -> None:
    folder = build_flat(tmp_path / "bundle")
    config = read_config(folder)
    del config["model"]["decoder"]["filename"]
    write_config(folder, config)
    (finding,) = [f for f in findings(folder) if f.severity == "error"]
    assert (finding.code, finding.path) == ("T301", "model.decoder")


@pytest.mark.parametrize(
    ("section", "name", "code"),
    [
        ("decoder", "../model.onnx", "T109"),
        ("decoder", "/tmp/model.onnx", "T109"),
        ("vision", "../model.onnx", "T109"),
        ("decoder", "C:\\model.onnx", "T302"),
        ("draft", "../model.onnx", "T302"),
    ],
)
def test_a_graph_outside_the_bundle_is_told_once(
    tmp_path: Path, section: str, name: str, code: str
) -> None:
    """By the parser's checks where the parser refuses it, by the files' elsewhere."""
    folder = build_flat(tmp_path / "bundle")
    shutil.copyfile(folder / "model.onnx", tmp_path / "model.onnx")
    config = read_config(folder)
    config["model"].setdefault(section, {})["filename"] = name
    write_config(folder, config)
    errors = [f for f in checking.check(folder).findings if f.path == f"model.{section}.filename"]
    assert [(f.code, f.severity) for f in errors] == [(code, "error")]
    if section == "decoder":
        with pytest.raises(RuntimeError):
            generate(folder)


def test_a_graph_behind_a_link_out_of_the_bundle_is_told(tmp_path: Path) -> None:
    """onnxruntime would follow it; Turnout does not."""
    folder = build_flat(tmp_path / "bundle", inline=True)
    rename(folder, "model.onnx", "../elsewhere.onnx")
    (folder / "model.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    (finding,) = findings(folder)
    assert finding.code == "T302"
    assert finding.found == f"a link to {(tmp_path / 'elsewhere.onnx').resolve()}"


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "dangling link"])
def test_what_is_no_file_is_told_without_waiting(tmp_path: Path, kind: str) -> None:
    folder = build_flat(tmp_path / "bundle", inline=True)
    path = folder / "model.onnx"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to("gone.onnx")
    (finding,) = findings(folder)
    expected = {
        "folder": ("T303", "a folder"),
        "pipe": ("T303", "a pipe"),
        "device": ("T302", "a link to /dev/zero"),
        "dangling link": ("T301", f"a link to {folder.resolve()}/gone.onnx, where nothing is"),
    }
    assert (finding.code, finding.found) == expected[kind]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (POINTER, "a Git LFS pointer, not the file itself"),
        (b"<!DOCTYPE html><html>", "HTML or XML"),
        (b"", None),
        (b"GGUF\x03\0\0\0", "a GGUF file"),
    ],
)
def test_a_graph_that_is_none_is_told(tmp_path: Path, content: bytes, found: str | None) -> None:
    folder = build_flat(tmp_path / "bundle", inline=True)
    (folder / "model.onnx").write_bytes(content)
    (finding,) = findings(folder)
    assert (finding.code, finding.path, finding.found) == ("T304", "model.onnx", found)
    with pytest.raises(RuntimeError, match=r"Protobuf parsing failed|ModelProto|No graph"):
        generate(folder)


def test_a_truncated_graph_is_told_with_the_byte(tmp_path: Path) -> None:
    folder = build_flat(tmp_path / "bundle", inline=True)
    whole = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(whole[: len(whole) // 2])
    (finding,) = findings(folder)
    assert finding.code == "T304"
    assert finding.found is not None
    assert finding.found.startswith("a length of ")
    assert " at byte " in finding.found
    assert finding.expected == "a length within the message"


def test_a_name_in_another_case_is_told_with_the_name_that_is_there(tmp_path: Path) -> None:
    folder = build_pipeline(tmp_path / "bundle", subfolder="graphs")
    if (folder / "GRAPHS").exists():
        pytest.skip("this file system does not tell cases apart")
    (folder / "graphs").rename(folder / "Graphs")
    rename(folder, "Graphs/lm_head.onnx", "Graphs/LM_head.onnx")
    assert [(f.code, f.found) for f in findings(folder)] == [
        ("T305", "Graphs/embeddings.onnx"),
        ("T305", "Graphs/transformer.onnx"),
        ("T305", "Graphs/LM_head.onnx"),
    ]


def test_a_derived_bundle_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    bundle = Bundle.open(build_flat(tmp_path / "bundle"))
    derived = loadable(bundle, bundle.config.edit(("search", "top_k"), 3))
    assert (derived / DERIVED_MARK).exists()
    config = bundle.config
    found = list(files.check(Subject(config, Bundle(derived, config))))
    assert [finding.code for finding in found] == ["T300"]


def test_files_that_sections_name_are_warned_about_when_they_are_missing(tmp_path: Path) -> None:
    """Measured: text is answered without the files that images need."""
    vision = {"config_filename": "image.json", "adapter_filename": "vision.onnx_adapter"}
    folder = build_flat(tmp_path / "bundle", model={"vision": vision})
    assert [(f.code, f.severity, f.path) for f in findings(folder)] == [
        ("T307", "warning", "model.vision.config_filename"),
        ("T307", "warning", "model.vision.adapter_filename"),
    ]
    assert generate(folder)
    for name in vision.values():
        (folder / name).write_text("{}")
    assert findings(folder) == []


class TestNativeCode:
    """A bundle that chooses code to run."""

    def bundle(self, tmp_path: Path, library: str) -> Path:
        folder = build_flat(tmp_path / "bundle")
        options = {"custom_ops_library": library, "provider_options": []}
        set_decoder(folder, session_options=options)
        return folder

    def test_a_library_in_the_bundle_is_warned_about(self, tmp_path: Path) -> None:
        folder = self.bundle(tmp_path, "ops.so")
        (folder / "ops.so").write_bytes(b"\x7fELF of somebody")
        (finding,) = findings(folder)
        assert (finding.code, finding.severity) == ("T308", "warning")
        assert finding.path == "model.decoder.session_options.custom_ops_library"
        assert "runs native code" in finding.message
        with pytest.raises(RuntimeError, match=r"Failed to load library .*ops\.so"):
            generate(folder)

    def test_one_that_is_nowhere_is_an_error(self, tmp_path: Path) -> None:
        folder = self.bundle(tmp_path, "turnout_no_such_library.so")
        assert [(f.code, f.severity) for f in findings(folder)] == [("T319", "error")]
        with pytest.raises(RuntimeError, match="Failed to load library"):
            generate(folder)

    def test_one_that_is_elsewhere_is_warned_about(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = self.bundle(tmp_path, "turnout_ops.so")
        for place in ("work", "path"):
            (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / "work")
        monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path / 'path'}")
        assert codes(folder) == ["T319"]
        for place in ("work", "path"):
            library = tmp_path / place / "turnout_ops.so"
            library.write_bytes(b"")
            (finding,) = findings(folder)
            assert (finding.code, finding.severity) == ("T308", "warning")
            assert finding.found == "none in the bundle, but one elsewhere"
            library.unlink()

    @pytest.mark.parametrize("library", ["../ops.so", "/usr/lib/ops.so"])
    def test_one_outside_the_bundle_is_an_error(self, tmp_path: Path, library: str) -> None:
        folder = self.bundle(tmp_path, library)
        assert [(f.code, f.severity) for f in findings(folder)] == [("T302", "error")]
        with pytest.raises(RuntimeError, match=r"path traversal|Failed to load library"):
            generate(folder)

    def test_stages_that_inherit_it_are_told_once(self, tmp_path: Path) -> None:
        folder = build_pipeline(tmp_path / "bundle")
        set_decoder(folder, session_options={"custom_ops_library": "turnout_none.so"})
        (finding,) = findings(folder)
        assert "embeddings, transformer, lm_head" in finding.message


class TestHubCache:
    """Files that are links into a hub's folder of blobs."""

    def bundle(self, tmp_path: Path) -> Path:
        folder = build_pipeline(tmp_path / "b", providers={"lm_head": OPENVINO})
        return as_hub_cache(folder, tmp_path / "hub")

    def test_weights_for_an_ep_that_refuses_links_are_told(self, tmp_path: Path) -> None:
        (finding,) = findings(self.bundle(tmp_path))
        assert (finding.code, finding.severity, finding.path) == ("T318", "info", "model")
        assert "lm_head" in finding.message
        assert findings(as_hub_cache(build_flat(tmp_path / "c"), tmp_path / "other")) == []
        assert findings(build_pipeline(tmp_path / "d", providers={"lm_head": OPENVINO})) == []

    @pytest.mark.openvino
    def test_the_runtime_alone_refuses_them(self, tmp_path: Path) -> None:
        pytest.importorskip("onnxruntime_ep_openvino", reason="the plugin is not installed")
        from turnout.machine import plugins

        plugins.register(["OpenVINOExecutionProvider"])
        with pytest.raises(RuntimeError, match="outside the base directory"):
            generate(self.bundle(tmp_path))


class TestUnused:
    """What is fetched and stored for nothing."""

    def test_stray_graphs_and_weights_are_told_with_their_size(self, tmp_path: Path) -> None:
        folder = build_flat(tmp_path / "bundle")
        (folder / "old").mkdir()
        (folder / "old" / "model.onnx").write_bytes(b"x" * 1000)
        (folder / "model_fp32.onnx.data").write_bytes(b"x" * 5000)
        (folder / "model.safetensors").write_bytes(b"x")
        with (folder / "huge.txt").open("wb") as file:
            file.truncate(65 << 20)
        assert {(f.severity, f.path, f.found) for f in findings(folder)} == {
            ("info", "huge.txt", f"{65 << 20} bytes"),
            ("info", "model.safetensors", "1 bytes"),
            ("info", "model_fp32.onnx.data", "5000 bytes"),
            ("info", "old/model.onnx", "1000 bytes"),
        }
        assert set(codes(folder)) == {"T309"}

    def test_what_is_used_or_small_or_hidden_or_named_is_not(self, tmp_path: Path) -> None:
        folder = build_flat(tmp_path / "bundle")
        for name in (
            "README.md", "LICENSE", ".gitattributes", "config.json", "vocab.json", "merges.txt",
            "tokenizer.model", "chat_template.jinja", "preprocessor_config.json",
            "named.bin", "my.onnx_adapter",
        ):  # fmt: skip
            (folder / name).write_text("{}")
        for name in (".git/model.onnx", "_compiled/store/x.onnx", "routes/x/model.onnx"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_bytes(b"x")
        (folder / "routes" / "x" / DERIVED_MARK).write_text("{}")
        set_decoder(folder, prefill_data="named.bin")
        assert findings(folder) == []

    @pytest.mark.skipif(sys.platform != "linux", reason="names are bytes there only")
    def test_a_name_that_is_no_text_can_be_written(self, tmp_path: Path) -> None:
        folder = build_flat(tmp_path / "bundle")
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff.onnx")).write_bytes(b"x")
        (finding,) = findings(folder)
        assert finding.path == "\\udcff.onnx"
        assert finding.message.encode()

    def test_a_link_to_what_is_used_is_no_stray(self, tmp_path: Path) -> None:
        folder = build_flat(tmp_path / "bundle")
        (folder / "again.onnx").symlink_to("model.onnx")
        os.link(folder / DATA_FILE, folder / "again.data")
        assert findings(folder) == []

    def test_where_a_graph_cannot_be_read_no_data_is_called_unused(self, tmp_path: Path) -> None:
        folder = build_pipeline(tmp_path / "bundle")
        (folder / "lm_head.onnx").write_bytes(b"")
        assert codes(folder) == ["T304"]


@pytest.mark.parametrize(
    "value", ["", "\0", "a" * 5000, ".", "..", "//", "a/./b", "x:y", "model.onnx/x"]
)
def test_names_of_any_kind_never_raise(tmp_path: Path, value: str) -> None:
    folder = build_flat(tmp_path / "bundle")
    bundle = Bundle.open(folder)
    config = bundle.config
    vision = {"filename": value, "config_filename": value, "adapter_filename": [value]}
    for path, new in (
        (("model", "decoder", "filename"), value),
        (("model", "decoder", "session_options", "custom_ops_library"), value),
        (("model", "decoder", "shared_initializers"), [{"data_file": value}, value, 3]),
        (("model", "vision"), vision),
        (("model", "tokenizer_dir"), value),
    ):
        changed = config.edit(path, new)
        subject = Subject(changed, Bundle(folder, changed))
        for module in (files, data, tokenizers):
            for finding in module.check(subject):
                finding.to_json()


def test_ten_gigabytes_are_checked_in_under_a_second(tmp_path: Path) -> None:
    folder = build_pipeline(tmp_path / "bundle", two_sessions=True)
    with (folder / DATA_FILE).open("r+b") as file:
        file.truncate(10 << 30)
    everything(folder)  # imports
    start = time.perf_counter()
    assert everything(folder) == []
    assert time.perf_counter() - start < 1
