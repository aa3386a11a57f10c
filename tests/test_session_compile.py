"""Sessions that are compiled and shared ahead of time, and native code that is not loaded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_compiler import FakeCompiler, files_in, on_openvino, remember_at_once
from session_fixtures import Bundles, Terminal, edit_json, reference
from turnout.bundle import Bundle, GraphFile
from turnout.compiling import obtain, tools
from turnout.compiling.hashes import ContentHashes
from turnout.compiling.options import CompileOptions
from turnout.compiling.prepare import prepare
from turnout.errors import CompileError, LoadError, ProcessError, UsageError
from turnout.routing import route
from turnout.runtime import Session
from turnout.runtime.placement import measure

pytest_plugins = ("session_plugin",)
pytestmark = pytest.mark.usefixtures("own_cache")

IDS, GREEDY = reference("llama-f32", 0)
GENAI = "genai_config.json"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    return FakeCompiler(monkeypatch)


def ask(session: Session) -> list[int]:
    return list(session.generate(IDS, max_new_tokens=8, greedy=True).token_ids)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "_compiled" not in path.parts
    }


def test_unasked_nothing_is_prepared_and_the_bundle_is_loaded_as_it_is(
    bundles: Bundles, own_cache: Path
) -> None:
    """A2: with no option the bundle is loaded from its own folder, byte for byte."""
    folder = bundles("two sessions")
    before = contents(folder)
    with Session(folder) as session:
        assert session.loaded.folder == folder
        assert session.prepared is None
        assert ask(session) == GREEDY
    assert contents(folder) == before
    assert not (folder / "_compiled").exists()
    assert not own_cache.exists()


def test_two_equal_stages_become_one_session_and_answer_the_same(bundles: Bundles) -> None:
    folder = bundles("two sessions")
    before = contents(folder)
    with Session(folder, share="session") as session:
        assert ask(session) == GREEDY
        prepared = session.prepared
        assert prepared is not None
        assert prepared.shared.merged == {"iterator": "context"}
        stages = [stage.name for stage in session.loaded.config.stages()]
        assert stages == ["embeddings", "context", "lm_head"]
        assert set(session.in_effect.stages) == {"embeddings", "context", "iterator", "lm_head"}
    assert session.prepared is None
    assert contents(folder) == before


def test_where_nothing_can_be_compiled_the_session_just_runs(bundles: Bundles) -> None:
    folder = bundles("pipeline")
    with Session(folder, compile=True) as session:
        assert ask(session) == GREEDY
        assert session.prepared is not None
        assert not session.prepared.compiled
        assert set(session.prepared.skipped) == {"embeddings", "transformer", "lm_head"}
    assert not (folder / "_compiled").exists()


def test_what_to_prepare_is_said_once(bundles: Bundles) -> None:
    with pytest.raises(UsageError, match="twice"):
        Session(bundles(), compile=True, preparing=CompileOptions(compile=True))
    with pytest.raises(UsageError, match="unknown"):
        Session(bundles(), share="everything")


# Native code that a config chooses.


def in_decoder(config: dict[str, Any]) -> None:
    config["model"]["decoder"].setdefault("session_options", {})["custom_ops_library"] = "evil.so"


def in_a_stage(config: dict[str, Any]) -> None:
    stage = config["model"]["decoder"]["pipeline"][0]["embeddings"]
    stage.setdefault("session_options", {})["custom_ops_library"] = "evil.so"


def in_a_section_without_a_graph(config: dict[str, Any]) -> None:
    config["model"]["vision"] = {"session_options": {"custom_ops_library": "evil.so"}}


@pytest.mark.parametrize("place", [in_decoder, in_a_stage, in_a_section_without_a_graph])
def test_native_code_that_a_config_chooses_is_not_loaded_unasked(
    bundles: Bundles, place: Callable[[dict[str, Any]], None]
) -> None:
    folder = bundles("pipeline", change=place)
    with pytest.raises(LoadError, match="native code") as raised, Session(folder):
        pass
    assert "evil.so" in raised.value.facts["found"]
    assert "--allow-native-code" in raised.value.facts["fix"]
    assert raised.value.facts["where"].endswith("custom_ops_library")
    with pytest.raises(LoadError, match="native code"):
        measure(Bundle.open(folder))


def test_native_code_beside_compiling_is_refused_as_well_and_by_a_route(bundles: Bundles) -> None:
    bundle = Bundle.open(bundles("flat", change=in_decoder))
    for asked in ({"compile": True}, {"share": "auto"}):
        with pytest.raises(LoadError, match="native code"), Session(bundle, **asked):
            pass
    with pytest.raises(UsageError, match="native code"):
        route(bundle, session_options={"custom_ops_library": "evil.so"})
    assert not (bundle.path / "_compiled").exists()


def test_native_code_is_loaded_where_it_is_asked_for(bundles: Bundles, turnout: Terminal) -> None:
    """The runtime is then the one that does not find the library."""
    folder = bundles("flat", change=in_decoder)
    with pytest.raises(LoadError) as raised, Session(folder, allow_native_code=True):
        pass
    assert "native code" not in raised.value.problem
    assert "evil.so" in str(raised.value)
    refused = turnout("generate", folder, "the cat")
    assert (refused.code, refused.out) == (1, "")
    assert "--allow-native-code" in refused.err
    allowed = turnout("generate", folder, "the cat", "--allow-native-code")
    assert allowed.code == 1
    assert "not done unasked" not in allowed.err


# Warm loads.


@pytest.fixture
def headers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose whole headers are read from now on."""
    read: list[str] = []
    original = GraphFile.read.__func__  # type: ignore[attr-defined]

    def counted(cls: type[GraphFile], path: Path | str) -> GraphFile:
        read.append(Path(path).name)
        graph: GraphFile = original(cls, path)
        return graph

    monkeypatch.setattr(GraphFile, "read", classmethod(counted))
    return read


@pytest.fixture
def warm(
    bundles: Bundles, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A bundle of which one stage was compiled, and whose preparation is remembered."""
    remember_at_once(monkeypatch)
    folder = on_openvino(bundles, "two sessions", "context")
    prepared_of(folder)
    compiler.compiled.clear()
    yield folder


def prepared_of(folder: Path, **asked: Any) -> Any:
    bundle = Bundle.open(folder)
    return prepare(bundle, bundle.config, CompileOptions(compile=True, **asked))


def test_a_warm_preparation_reads_no_header_and_is_the_same(
    warm: Path, headers: list[str], compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    original = ContentHashes._hashed

    def counted(self: ContentHashes, path: Path, spans: Any) -> Any:
        hashed.append(path)
        return original(self, path, spans)

    monkeypatch.setattr(ContentHashes, "_hashed", counted)
    first = prepared_of(warm)
    # Of the bundle: the library of a plugin that was installed just now is hashed each time.
    assert not [path for path in hashed if path.is_relative_to(warm)]
    assert (headers, compiler.compiled) == ([], [])
    again = prepared_of(warm, paranoid=True)  # reads everything
    assert headers
    assert first.to_json() == again.to_json()
    assert first.config.text == again.config.text
    assert first.artifacts == again.artifacts
    assert list(first.compiled) == ["context"]


def rewritten(path: Path, at: int) -> None:
    """Another content of the same size, in place, with its modification time set back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def rewritten_weight(folder: Path) -> None:
    tensors = GraphFile.read(folder / "context.onnx").initializers
    rewritten(folder / "model.data", next(t.external.offset for t in tensors if t.external))


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "a weight, its time set back": (rewritten_weight, True),
    "a template that came": (
        lambda folder: (folder / "chat_template.jinja").write_text("{{ 1 }}"),
        False,
    ),
    "a tokenizer file": (lambda folder: rewritten(folder / "tokenizer.json", 5), False),
    "the compiled binary": (
        lambda folder: next((folder / "_compiled" / "store").glob("*/*.bin")).unlink(),
        True,
    ),
    "a file of the derived bundle": (
        lambda folder: next((folder / "_compiled" / "routes").glob("*/tokenizer.json")).unlink(),
        False,
    ),
    "the derived config": (
        lambda folder: next((folder / "_compiled" / "routes").glob(f"*/{GENAI}")).write_text("{}"),
        False,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changed_is_noticed(
    warm: Path, headers: list[str], compiler: FakeCompiler, change: str
) -> None:
    """A13: what is loaded was made of what is there now, whatever the times say."""
    do, compiles = CHANGES[change]
    do(warm)
    prepared = prepared_of(warm)
    assert headers
    assert compiler.compiled == (["context"] if compiles else [])
    for name in ("tokenizer.json", GENAI, "context_openvino_ctx.onnx", "context.bin"):
        assert (prepared.folder / name).is_file()
    assert (prepared.folder / "tokenizer.json").read_bytes() == (
        warm / "tokenizer.json"
    ).read_bytes()
    assert (prepared.folder / GENAI).read_text() != "{}"
    assert (prepared.folder / "chat_template.jinja").exists() == (
        warm / "chat_template.jinja"
    ).exists()


def test_another_version_of_the_runtime_compiles_anew_and_says_so(
    warm: Path, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tools.version_of("onnxruntime")
    monkeypatch.setattr(tools, "version_of", lambda _: "9.9.9")
    prepared = prepared_of(warm)
    assert compiler.compiled == ["context"]
    assert prepared.missed == {"context": (f"onnxruntime {installed} -> 9.9.9",)}


def test_files_that_were_written_just_now_are_not_remembered(
    bundles: Bundles, compiler: FakeCompiler, headers: list[str], own_cache: Path
) -> None:
    """A second change within the same tick of the clock would go unnoticed."""
    folder = on_openvino(bundles, "pipeline", "transformer")
    prepared_of(folder)
    assert not (own_cache / "receipts").exists()
    headers.clear()
    prepared_of(folder)
    assert headers


def test_a_bundle_cannot_bring_a_receipt_along(warm: Path, own_cache: Path) -> None:
    assert [path.suffix for path in (own_cache / "receipts").iterdir()] == [".json"]
    assert not any("receipt" in name for name in files_in(warm))


def test_a_damaged_receipt_is_none(warm: Path, own_cache: Path, headers: list[str]) -> None:
    (receipt,) = (own_cache / "receipts").iterdir()
    whole = receipt.read_bytes()
    for damaged in (b"", whole[:-20], b"[" * 100_000, whole.replace(b'"facts":', b'"fucts":')):
        receipt.write_bytes(damaged)
        headers.clear()
        assert list(prepared_of(warm).compiled) == ["context"]
        assert headers


def test_a_stage_that_was_not_compiled_is_tried_again(
    bundles: Bundles, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_at_once(monkeypatch)
    folder = on_openvino(bundles, "pipeline", "transformer")
    compiler.broken = {"transformer"}
    said: list[str] = []
    bundle = Bundle.open(folder)
    prepared = prepare(bundle, bundle.config, CompileOptions(compile=True), say=said.append)
    assert list(prepared.uncompiled) == ["transformer"]
    assert "SIGSEGV" in said[0]
    compiler.broken = set()
    assert list(prepared_of(folder).compiled) == ["transformer"]


def test_what_must_be_compiled_and_is_not_is_an_error(
    bundles: Bundles, compiler: FakeCompiler
) -> None:
    folder = on_openvino(bundles, "pipeline", "transformer")
    compiler.broken = {"transformer"}
    with pytest.raises(CompileError, match="SIGSEGV"):
        prepared_of(folder, require_compiled=True)
    assert files_in(folder / "_compiled") == set()


def test_a_warm_look_at_a_folder_of_thousands_of_files_is_not_taken(
    warm: Path, headers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.compiling.receipts._MOST_FILES", 3)
    prepared_of(warm)
    assert headers


# The real compiler.


@pytest.mark.slow
@pytest.mark.openvino
class TestOpenVino:
    def test_a_compiled_session_answers_as_one_compiled_in_memory(
        self, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A5: an accelerator EP compiles when asked."""
        bundle = Bundle.open(bundles("two sessions"))
        chosen = route(bundle, ep="openvino", reproducible=True)
        with Session(bundle, chosen) as session:
            expected = ask(session)
        assert expected == GREEDY
        for _ in range(2):
            with Session(bundle, chosen, compile=True) as session:
                assert ask(session) == expected
                assert session.prepared is not None
                assert set(session.prepared.compiled) == {"embeddings", "context", "lm_head"}
                # The second one finds everything.
                monkeypatch.setattr(obtain, "call_worker", None)

    def test_the_eps_own_sharing_loads_and_answers(self, bundles: Bundles) -> None:
        """B1: two models share one set of weights."""
        bundle = Bundle.open(bundles("static"))
        chosen = route(bundle, ep="openvino", reproducible=True)
        with Session(bundle, chosen, compile=True, share="ep") as session:
            assert ask(session) == GREEDY
            assert session.prepared is not None
            assert session.prepared.shared.bytes_saved > 0

    def test_without_a_cache_nothing_is_left(self, bundles: Bundles, own_cache: Path) -> None:
        bundle = Bundle.open(bundles("pipeline"))
        chosen = route(bundle, ep="openvino")
        preparing = CompileOptions(compile=True, no_cache=True)
        with Session(bundle, chosen, preparing=preparing) as session:
            folder = session.loaded.folder
            assert folder.is_dir()
            assert ask(session)
        assert not folder.exists()
        assert not folder.parent.exists()
        assert not (bundle.path / "_compiled").exists()
        assert not (own_cache / "store").exists()

    def test_a_compiler_that_fails_leaves_a_session_that_runs(
        self, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def hang(*_: object) -> dict[str, Any]:
            raise ProcessError("The child process did not answer within 1 s.")

        monkeypatch.setattr(obtain, "call_worker", hang)
        bundle = Bundle.open(bundles("pipeline"))
        chosen = route(bundle, ep="openvino", reproducible=True)
        said: list[str] = []
        with Session(bundle, chosen, compile=True, say=said.append) as session:
            assert ask(session) == GREEDY
            assert session.prepared is not None
            assert len(session.prepared.uncompiled) == len(said) == 3
        assert all("did not answer" in line for line in said)

    def test_a_hub_cache_is_compiled_and_left_as_it_is(
        self, bundles: Bundles, tmp_path: Path, own_cache: Path
    ) -> None:
        from bundle_fixtures import as_hub_cache

        folder = as_hub_cache(bundles("pipeline"), tmp_path / "hub")
        before = files_in(folder.parents[1])
        bundle = Bundle.open(folder)
        chosen = route(bundle, ep="openvino", reproducible=True)
        with Session(bundle, chosen, compile=True) as session:
            assert ask(session) == GREEDY
        assert files_in(folder.parents[1]) == before
        assert len(list((own_cache / "store").glob("*/manifest.json"))) == 3

    def test_where_compiled_nodes_run_is_measured(
        self, bundles: Bundles, turnout: Terminal
    ) -> None:
        done = turnout(
            "explain",
            bundles("two sessions"),
            "--ep",
            "openvino",
            "--compile",
            "--measure",
            "--json",
        )
        assert done.code == 0, done.err
        placed = {stage["stage"]: stage for stage in done.json["placed"]["stages"]}
        assert list(placed) == ["embeddings", "context", "lm_head"]
        assert "openvino" in {ep["ep"] for ep in placed["context"]["eps"]}


def test_a_clock_that_was_set_back_changes_nothing(
    warm: Path, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    year = 365 * 86400
    monkeypatch.setattr(time, "time", lambda: 1.7e9 - year)
    monkeypatch.setattr(time, "time_ns", lambda: (1_700_000_000 - year) * 10**9)
    edit_json(warm / "tokenizer_config.json", lambda config: config.update(note="changed"))
    assert list(prepared_of(warm).compiled) == ["context"]
    assert compiler.compiled == []
