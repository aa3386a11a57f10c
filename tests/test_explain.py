"""`turnout explain` as a person and as a program would call it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from bundle_fixtures import build_flat, build_pipeline, read_config, write_config
from session_fixtures import Bundles, Terminal, edit_json, set_provider
from turnout.bundle import GenaiConfig
from turnout.cli.diffs import unified
from turnout.errors import MachineError
from turnout.machine import Inventory

pytest_plugins = ("session_plugin",)

INVENTORIES = Path(__file__).parent / "data" / "inventories"
SNAPDRAGON = INVENTORIES / "snapdragon-laptop.json"
INTEL = INVENTORIES / "intel-laptop.json"
CORPUS = Path(os.environ.get("TURNOUT_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
NPU = {"OpenVINO": {"device_type": "NPU", "num_streams": "2"}}
QNN = {"qnn": {"backend_path": "QnnHtp.dll"}}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Three stages, the middle one on OpenVINO's npu."""
    return build_pipeline(tmp_path / "bundle", providers={"transformer": [NPU]})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(out: str) -> dict[str, list[str]]:
    """The table: the cells of each stage, by its name."""
    lines = out.splitlines()
    (head,) = [index for index, line in enumerate(lines) if line.startswith("stage ")]
    found = {}
    for line in lines[head:]:
        if not line:
            break
        if not line.startswith(" "):
            name, *cells = re.split(r"  +", line)
            found[name] = cells
    return found


def test_without_options_it_says_what_the_bundle_says(turnout: Terminal, tmp_path: Path) -> None:
    """A2: nothing is asked, and nothing changes."""
    folder = build_flat(tmp_path / "bundle")
    done = turnout("explain", folder)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"{folder}\n"
        "  requested  config\n"
        "  effective  config\n"
        "\n"
        "stage    from  to   device  options      reason\n"
        "decoder  cpu   cpu  cpu     as they are  the bundle's config\n"
        "\n"
        "genai_config.json: no change\n"
    )


def test_an_ep_is_explained_stage_by_stage_for_another_machine(
    turnout: Terminal, mixed: Path
) -> None:
    """A3: kept, borrowed, and why; the machine is the one of the inventory."""
    done = turnout("explain", mixed, "--ep", "openvino", "--inventory", INTEL)
    assert done.code == 0, done.err
    assert rows(done.out) == {
        "stage": ["from", "to", "device", "options", "on windows-x86_64", "reason"],
        "embeddings": ["cpu", "openvino", "npu", "borrowed", "yes", "--ep openvino"],
        "transformer": ["openvino", "openvino", "npu", "kept", "yes", "--ep openvino"],
        "lm_head": ["cpu", "openvino", "npu", "borrowed", "yes", "--ep openvino"],
    }
    assert done.out.count("  options  device_type=NPU, num_streams=2\n") == 3
    assert "warning: moved to openvino though the bundle keeps them on the CPU" in done.out
    diff = done.out.partition("--- genai_config.json\n+++ effective\n")[2]
    added = [line for line in diff.splitlines() if line.startswith("+")]
    assert sum('"OpenVINO": {' in line for line in added) == 2


def test_what_is_dropped_with_an_ep_is_said(turnout: Terminal, mixed: Path) -> None:
    """A4, A6"""
    change = {"ep.share_ep_contexts": "1", "provider_options": [NPU]}
    edit_json(
        mixed / "genai_config.json",
        lambda c: c["model"]["decoder"]["pipeline"][0]["transformer"].update(
            session_options=change
        ),
    )
    done = turnout("explain", mixed, "--ep", "cpu")
    assert rows(done.out)["transformer"] == ["openvino", "cpu", "cpu", "removed", "--ep cpu"]
    (dropped,) = [line for line in done.out.splitlines() if line.startswith("  dropped")]
    for words in ("openvino: device_type=NPU", "num_streams=2", "ep.share_ep_contexts=1"):
        assert words in dropped


def test_options_that_were_asked_for_are_shown(turnout: Terminal, tmp_path: Path) -> None:
    folder = build_flat(
        tmp_path / "bundle", decoder={"session_options": {"provider_options": [NPU]}}
    )
    done = turnout(
        "explain", folder, "--provider-option", "cache_dir=x", "--session-option",
        "enable_mem_pattern=false", "--inventory", INTEL,
    )  # fmt: skip
    assert rows(done.out)["decoder"][3] == "added to"
    assert "  options  device_type=NPU, num_streams=2, cache_dir=x\n" in done.out
    assert "  session  enable_mem_pattern=false\n" in done.out


@pytest.mark.parametrize(
    ("inventory", "answer", "words"),
    [
        (INTEL, "yes", None),
        (SNAPDRAGON, "no", "transformer: on windows-arm64, openvino is not installed"),
    ],
)
def test_the_inventory_alone_says_whether_a_machine_has_what_the_bundle_names(
    turnout: Terminal, mixed: Path, inventory: Path, answer: str, words: str | None
) -> None:
    """W#452: a route that a machine cannot take is said before anything is tried there."""
    done = turnout("explain", mixed, "--inventory", inventory)
    assert done.code == 0, done.err
    table = rows(done.out)
    assert [table[name][-2] for name in ("embeddings", "transformer")] == ["yes", answer]
    if words is None:
        assert "warning" not in done.out
    else:
        assert f"warning: {words}" in done.out
    document = turnout("explain", mixed, "--inventory", inventory, "--json").json
    assert [stage["available"] for stage in document["stages"]] == [True, answer == "yes", True]


def test_a_device_that_a_machine_lacks_is_said(turnout: Terminal, tmp_path: Path) -> None:
    document = json.loads(INTEL.read_text("utf-8"))
    for ep in document["eps"]:
        ep["devices"] = [device for device in ep["devices"] if device["kind"] != "npu"]
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps(document), "utf-8")
    folder = build_pipeline(tmp_path / "bundle", providers={"transformer": [NPU]})
    done = turnout("explain", folder, "--inventory", inventory)
    assert "warning: transformer: on windows-x86_64, openvino finds no npu there" in done.out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"problem": "it crashed", "fix": "mend it"}, "is broken: it crashed (mend it)"),
        ({"devices": [{"kind": "npu", "compile_only": True}]}, "can compile but not run there"),
        ({"devices": []}, "finds no npu there"),
    ],
)  # fmt: skip
def test_an_ep_that_a_machine_cannot_use_is_said_with_the_reason(
    turnout: Terminal, mixed: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """W#860: an EP that only compiles there is named."""
    document = json.loads(INTEL.read_text("utf-8"))
    (ep,) = [ep for ep in document["eps"] if ep["name"] == "OpenVINOExecutionProvider"]
    ep.update(change)
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps(document), "utf-8")
    done = turnout("explain", mixed, "--inventory", inventory)
    assert done.code == 0
    assert f"warning: transformer: on windows-x86_64, openvino {words}" in done.out


def test_an_ep_that_is_not_here_is_a_warning_and_not_an_error(
    turnout: Terminal, tmp_path: Path
) -> None:
    """V#1962: what the bundle names is explained, with how to install it."""
    folder = build_pipeline(tmp_path / "bundle", providers={"transformer": [{"vitisai": {}}]})
    done = turnout("explain", folder)
    assert done.code == 0
    assert rows(done.out)["transformer"][-2:] == ["no", "the bundle's config"]
    assert "warning: transformer: on this machine, vitisai is not installed (" in done.out


def test_what_the_bundle_says_is_explained_where_the_runtimes_do_not_load(
    turnout: Terminal, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Inventory:
        raise MachineError("The runtimes of this machine could not be looked at.")

    monkeypatch.setattr(Inventory, "discover", staticmethod(broken))
    done = turnout("explain", mixed)
    assert done.code == 0
    assert rows(done.out)["transformer"] == [
        "openvino", "openvino", "npu", "as they are", "the bundle's config",
    ]  # fmt: skip
    assert turnout("explain", mixed, "--ep", "openvino").code == 1


def test_json_has_everything(turnout: Terminal, mixed: Path) -> None:
    done = turnout("explain", mixed, "--ep", "openvino", "--inventory", INTEL, "--json")
    document = done.json
    assert list(document) == [
        "schema_version", "bundle", "machine", "requested", "effective", "changes", "stages",
        "warnings", "diff", "placed", "preparing",
    ]  # fmt: skip
    assert (document["schema_version"], document["placed"]) == (1, None)
    assert (document["requested"], document["effective"]) == ("--ep openvino", "openvino")
    assert (document["changes"], document["machine"]) == (True, "windows-x86_64")
    assert document["stages"][0] == {
        "stage": "embeddings",
        "section": "decoder",
        "before": "CPUExecutionProvider",
        "ep": "OpenVINOExecutionProvider",
        "device": "npu",
        "options": NPU["OpenVINO"],
        "session_options": {},
        "how": "borrowed",
        "dropped": [],
        "reason": "--ep openvino",
        "file": "embeddings.onnx",
        "runs_on_prompt": True,
        "runs_on_tokens": True,
        "providers": [
            {
                "name": "OpenVINO",
                "ep": "OpenVINOExecutionProvider",
                "options": NPU["OpenVINO"],
                "device_filter": {},
            }
        ],
        "dropped_session_options": [],
        "available": True,
        "lacks": None,
    }
    assert document["diff"].startswith("--- genai_config.json\n+++ effective\n@@ -")
    unchanged = turnout("explain", mixed, "--inventory", INTEL, "--json").json
    assert (unchanged["changes"], unchanged["diff"]) == (False, "")


def test_the_diff_is_one_that_patch_applies(turnout: Terminal, mixed: Path, tmp_path: Path) -> None:
    """Its peer is `patch`: the config, patched, is the config that the route gives."""
    if shutil.which("patch") is None:
        pytest.skip("no patch here")
    arguments = ("--ep", "openvino", "--inventory", INTEL)
    document = turnout("explain", mixed, *arguments, "--json").json
    copy = tmp_path / "copy.json"
    shutil.copy(mixed / "genai_config.json", copy)
    subprocess.run(
        ["patch", "-s", str(copy)], input=document["diff"].encode(), check=True, timeout=30
    )
    from turnout.bundle import Bundle
    from turnout.routing import RouteRequest, apply, resolve

    bundle = Bundle.open(mixed)
    inventory = Inventory.from_json(INTEL.read_text("utf-8"))
    wanted = apply(bundle.config, resolve(bundle.config, inventory, RouteRequest(ep="openvino")))
    assert copy.read_text("utf-8") == wanted.text


def test_a_config_in_one_line_is_laid_out_for_the_diff(turnout: Terminal, mixed: Path) -> None:
    config = read_config(mixed)
    (mixed / "genai_config.json").write_text(json.dumps(config), "utf-8")
    done = turnout("explain", mixed, "--ep", "cpu")
    assert "--- genai_config.json (laid out)" in done.out
    assert re.search(r'^- +"num_streams": "2"$', done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) < 200


def test_a_diff_of_large_documents_that_differ_everywhere_takes_no_time(tmp_path: Path) -> None:
    def config(word: str) -> GenaiConfig:
        keys = {f"{word}{n}": n % 7 for n in range(100_000)}
        return GenaiConfig.parse(json.dumps({"model": keys}, indent=1))

    one, other = config("a"), config("b")
    start = time.perf_counter()
    lines = unified(one, other)
    assert time.perf_counter() - start < 2
    assert sum(line.startswith("-") for line in lines) == 100_001
    assert lines[2] == "@@ -1,100004 +1,100004 @@"


def test_nothing_is_written_and_no_runtime_is_loaded(turnout: Terminal, mixed: Path) -> None:
    before = contents(mixed.parent)
    code = (
        "import sys; sys.argv = ['turnout', 'explain', *sys.argv[1:]]\n"
        "from turnout.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n"
        "    print([m for m in ('onnxruntime', 'onnxruntime_genai', 'numpy', 'onnx_ir', 'rich')"
        " if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(mixed), "--ep", "openvino", "--inventory", str(INTEL)],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stderr == "[]\n"
    assert contents(mixed.parent) == before


def test_stages_that_are_missing_on_disk_do_not_matter(turnout: Terminal, mixed: Path) -> None:
    """Only the config is read: the time is the same for a bundle of any size."""
    for path in mixed.glob("*.onnx"):
        path.unlink()
    assert turnout("explain", mixed, "--ep", "cpu").code == 0


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here: set TURNOUT_CORPUS")
@pytest.mark.parametrize("options", [(), ("--ep", "qnn"), ("--device", "cpu", "--reproducible")])
def test_other_peoples_configs_are_explained_or_refused_in_words(
    turnout: Terminal, tmp_path: Path, options: tuple[str, ...]
) -> None:
    explained = 0
    for config in sorted((CORPUS / "genai_configs").glob("*.json")):
        shutil.copy(config, tmp_path / "genai_config.json")
        done = turnout("explain", tmp_path, *options, "--inventory", SNAPDRAGON)
        assert done.code in {0, 1, 2}
        assert "defect" not in done.err
        explained += done.code == 0
    # With --reproducible the graphs are looked at, which are not there.
    assert explained > 50 or "--reproducible" in options


def test_names_from_the_bundle_cannot_drive_the_terminal(turnout: Terminal, tmp_path: Path) -> None:
    folder = build_flat(tmp_path / "bundle")
    evil = {"session_options": {"provider_options": [{"Ev\x1b[2Jil\nEP": {"a\x9b": "b\r"}}]}}
    config = read_config(folder)
    config["model"]["decoder"].update(evil)
    write_config(folder, config)
    done = turnout("explain", folder, "--inventory", INTEL)
    assert done.code == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.out)
    assert "Ev\\x1b[2Jil\\nEP" in done.out


def test_quiet_shows_the_stages_alone(turnout: Terminal, mixed: Path) -> None:
    done = turnout("explain", mixed, "--ep", "cpu", "-q")
    assert list(rows(done.out)) == ["stage", "embeddings", "transformer", "lm_head"]
    assert "dropped" not in done.out
    assert "genai_config.json" not in done.out


def test_help_says_that_nothing_is_loaded(turnout: Terminal) -> None:
    """A17"""
    done = turnout("explain", "--help")
    assert "Nothing is loaded" in " ".join(done.out.split())
    assert "config|auto|cpu|gpu|npu" in done.out


def test_wrong_usage_is_refused(turnout: Terminal, mixed: Path, tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    assert turnout("explain", mixed, "--ep", "cpu", "--save-route", saved).code == 0
    for options in (
        ("--ep", "warp"),
        ("--measure", "--inventory", INTEL),
        ("--measure", "--time-limit", "0"),
        ("--measure", "--time-limit", "nan"),
        ("--route", saved, "--ep", "cpu"),
        ("--route", saved, "--session-option", "a=b"),
        ("--route", saved, "--reproducible"),
        ("--route", tmp_path / "none.json"),
        ("--inventory", tmp_path / "none.json"),
    ):
        done = turnout("explain", mixed, *options)
        assert (done.code, done.out) == (2, ""), options
        assert done.err.startswith("error: ")


def test_a_saved_route_is_explained_as_it_was_decided(
    turnout: Terminal, mixed: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "r.json"
    decided = turnout(
        "explain", mixed, "--device", "auto", "--inventory", INTEL, "--save-route", saved, "--json"
    )
    again = turnout("explain", mixed, "--route", saved, "--inventory", INTEL, "--json")
    assert again.code == 0, again.err
    assert again.json == decided.json
    # Here, there is no npu: the decision stands, and the machine's lack is said.
    here = turnout("explain", mixed, "--route", saved)
    assert rows(here.out)["lm_head"][:3] == ["cpu", "openvino", "npu"]
    assert "warning: embeddings, transformer, lm_head: on this machine, openvino " in here.out


def test_generate_and_chat_save_a_route_and_take_it(
    turnout: Terminal, bundles: Bundles, tmp_path: Path
) -> None:
    path = bundles("pipeline", change=set_provider("transformer", QNN))
    saved = tmp_path / "r.json"
    few = ("--max-new-tokens", "3", "--json")
    first = turnout("generate", path, "the", "--ep", "cpu", "--save-route", saved, *few)
    assert first.code == 0, first.err
    second = turnout("generate", path, "the", "--route", saved, *few)
    assert second.code == 0, second.err
    assert second.json["route"] == first.json["route"]
    assert second.json["token_ids"] == first.json["token_ids"]
    chat = turnout("chat", path, "--route", saved, *few, stdin="the\n")
    assert chat.code == 0, chat.err
    assert chat.json["route"]["effective"] == "cpu"
    assert chat.json["route"]["placed"] is None
    other = tmp_path / "other.json"
    assert turnout("chat", path, "--ep", "cpu", "--save-route", other, stdin="").code == 0
    assert other.read_bytes() == saved.read_bytes()


def test_what_the_bundle_says_can_be_saved_too(
    turnout: Terminal, bundles: Bundles, tmp_path: Path
) -> None:
    path, saved = bundles("flat"), tmp_path / "r.json"
    done = turnout("generate", path, "the", "--max-new-tokens", "2", "--save-route", saved)
    assert done.code == 0, done.err
    done = turnout("generate", path, "the", "--max-new-tokens", "2", "--route", saved, "--json")
    assert done.json["route"]["effective"] == "config"
    assert not (path / "_compiled").exists()


def test_a_saved_route_fails_to_load_where_its_ep_is_not(
    turnout: Terminal, bundles: Bundles, tmp_path: Path
) -> None:
    path, saved = bundles("pipeline"), tmp_path / "r.json"
    turnout("explain", path, "--ep", "qnn", "--inventory", SNAPDRAGON, "--save-route", saved)
    done = turnout("generate", path, "the", "--route", saved)
    assert done.code == 1
    assert "qnn (QNNExecutionProvider) is not installed" in done.err
    assert "the route was decided for windows-arm64" in done.err


def test_measuring_shows_what_ran_where(turnout: Terminal, bundles: Bundles) -> None:
    path = bundles("two sessions")
    before = contents(path)
    done = turnout("explain", path, "--measure", "-q")
    assert done.code == 0, done.err
    placed = re.findall(r"^  placed   cpu: (\d+) nodes? [\d.]+ ms \(", done.out, re.MULTILINE)
    assert len(placed) == 4
    assert placed[0] == "1"
    assert contents(path) == before
    told = turnout("explain", path, "--measure", "-v").out
    assert re.search(r"^    prompt 1 run, cpu: 1 node [\d.]+ ms$", told, re.MULTILINE)
    assert re.search(r"^    tokens 3 runs, cpu: 1 node [\d.]+ ms$", told, re.MULTILINE)
    assert "    tokens 0 runs\n" in told


@pytest.mark.openvino
def test_measuring_shows_what_falls_back_in_plain_words(
    turnout: Terminal, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A15: a stage on OpenVINO whose attention the CPU EP computes says so."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = bundles("pipeline")
    done = turnout("explain", path, "--ep", "openvino", "--measure", "--json")
    assert done.code == 0, done.err
    placed = done.json["placed"]
    assert (placed["prompt_tokens"], placed["new_tokens"]) == (8, 4)
    transformer = placed["stages"][1]
    assert {item["ep"]: item["nodes"] for item in transformer["eps"]} == {"openvino": 3, "cpu": 2}
    assert transformer["eps"][1]["operators"] == {"GroupQueryAttention": 2}
    assert transformer["eps"][1]["prompt"]["time_s"] > 0
    told = turnout("explain", path, "--ep", "openvino", "--measure").out
    assert re.search(
        r"^  placed   openvino: 3 nodes [\d.]+ ms \(3 subgraphs\);"
        r" cpu: 2 nodes [\d.]+ ms \(2 GroupQueryAttention\)$",
        told,
        re.MULTILINE,
    )
    assert not (path / "_compiled").exists()


@pytest.mark.openvino
@pytest.mark.slow
def test_measuring_a_saved_route_of_a_real_plugin(
    turnout: Terminal, bundles: Bundles, tmp_path: Path
) -> None:
    path, saved = bundles("flat"), tmp_path / "r.json"
    done = turnout("explain", path, "--ep", "openvino", "--save-route", saved)
    assert done.code == 0, done.err
    document = turnout("explain", path, "--route", saved, "--measure", "--json").json
    assert document["placed"]["stages"][0]["eps"][0]["ep"] == "openvino"
    assert [stage["available"] for stage in document["stages"]] == [True]


def test_measuring_what_cannot_be_loaded_is_the_error_of_loading(
    turnout: Terminal, bundles: Bundles
) -> None:
    path = bundles("pipeline", change=set_provider("transformer", QNN))
    done = turnout("explain", path, "--measure")
    assert (done.code, done.out) == (1, "")
    assert "qnn (QNNExecutionProvider) is not installed" in done.err
    assert "--ep cpu" in done.err


def test_an_ep_that_computed_nothing_is_a_warning(
    turnout: Terminal, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A15: a fake placement, since no plugin here leaves everything to the CPU EP."""
    from turnout.runtime import placement
    from turnout.runtime.placement import EpPlacement, Placement, Share, StagePlacement

    share = Share(9, 0.001)
    cpu = EpPlacement(
        "cpu", 9, 0.002, {"A": 3, "B": 2, "C": 1, "D": 1, "E": 1, "F": 1}, share, share
    )
    stages = (StagePlacement("decoder", True, 1, 3, (cpu,)),)
    monkeypatch.setattr(placement, "measure", lambda *_, **__: Placement(8, 4, stages))
    done = turnout("explain", bundles("flat"), "--ep", "openvino", "--measure")
    assert "  placed   cpu: 9 nodes 2.0 ms (3 A, 2 B, 1 C, 1 D, 2 more)\n" in done.out
    assert "warning: decoder: openvino computed nothing, all nodes ran on cpu\n" in done.out


def test_ten_gigabytes_of_weights_are_explained_in_under_a_second(
    turnout: Terminal, bundles: Bundles
) -> None:
    """Weights are not read: with `--reproducible` not even where graphs are looked into."""
    path = bundles("pipeline")
    (data,) = path.glob("*.data")
    os.truncate(data, 10 << 30)
    start = time.process_time()
    done = turnout("explain", path, "--ep", "cpu", "--reproducible")
    assert done.code == 0, done.err
    assert time.process_time() - start < 1


# --- what will not load ---------------------------------------------------------------------------


def compiled(folder: Path, source: str = "OpenVINOExecutionProvider") -> Path:
    """A pipeline whose middle graph an EP compiled; what it compiled is not there."""
    import onnx

    build_pipeline(folder, providers={"transformer": [{"OpenVINO": {"device_type": "CPU"}}]})
    path = folder / "transformer.onnx"
    model = onnx.load(str(path), load_external_data=False)
    names = [value.name for value in model.graph.output]
    inputs = [value.name for value in model.graph.input]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.append(
        onnx.helper.make_node(
            "EPContext", inputs, names, domain="com.microsoft", source=source, embed_mode=0,
            ep_cache_context="transformer.bin", main_context=1,
        )
    )  # fmt: skip
    path.write_bytes(model.SerializeToString())
    (folder / "transformer.bin").write_bytes(b"compiled")
    return folder


def test_a_compiled_stage_that_is_sent_elsewhere_is_said_to_fail(
    turnout: Terminal, tmp_path: Path
) -> None:
    folder = compiled(tmp_path / "b")
    done = turnout("explain", folder, "--ep", "cpu")
    assert done.code == 0, done.err
    said = "stage transformer: its graph is compiled by openvino and will not load on cpu"
    assert said in done.out
    saved = tmp_path / "route.json"
    assert turnout("explain", folder, "--ep", "cpu", "--save-route", saved).code == 0
    assert said in turnout("explain", folder, "--route", saved).out
    done = turnout("generate", folder, "x", "--ep", "cpu")
    assert "EPContext node generated by 'OpenVINOExecutionProvider' is not compatible" in done.err
    assert said not in turnout("explain", folder).out


@pytest.mark.parametrize("option", ["session.disable_cpu_ep_fallback=1"])
def test_a_stage_that_forbids_the_ep_it_runs_on_is_said_to_fail(
    option: str, turnout: Terminal, tmp_path: Path
) -> None:
    folder = build_pipeline(tmp_path / "b")
    done = turnout("explain", folder, "--session-option", f"lm_head:{option}")
    assert "warning: stage lm_head: session.disable_cpu_ep_fallback=1 forbids" in done.out
    done = turnout("generate", folder, "x", "--session-option", f"lm_head:{option}")
    assert "fallback to CPU EP has been explicitly disabled" in done.err
    off = option.replace("=1", "=0")
    assert "warning" not in turnout("explain", folder, "--session-option", off).out


@pytest.mark.openvino
def test_an_ep_on_the_decoder_of_a_pipeline_is_said_to_fail_until_it_is_routed(
    turnout: Terminal, tmp_path: Path
) -> None:
    folder = build_pipeline(tmp_path / "b")
    edit_json(
        folder / "genai_config.json",
        lambda config: config["model"]["decoder"]["session_options"].update(
            provider_options=[{"OpenVINO": {"device_type": "CPU"}}]
        ),
    )
    said = "OpenVINO is set for the decoder of a pipeline, whose stages cannot read its memory"
    assert said in turnout("explain", folder).out
    assert "resides on the primary device type" in turnout("generate", folder, "x").err
    assert said not in turnout("explain", folder, "--ep", "cpu").out
    assert turnout("generate", folder, "x", "--ep", "cpu").code == 0
