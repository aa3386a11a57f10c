"""For tests of faults: a quick compiler that forges, a process to be killed, and what must hold.

The forged artifacts pass the real judge, and their binary holds the SHA-256 of the graph and the
weights that they were made of, so that what is stale shows. As a script:

    python fault_fixtures.py FUNCTION JSON      prints what the function returns, as JSON
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx

from compile_fixtures import context_node, forge_binary
from session_fixtures import reference

HERE = Path(__file__).resolve()
IDS, GREEDY = reference("llama-f32", 0)
LOG = "FAULT_LOG"
K64 = 1 << 16
PART = "part"


# -- the compiler that forges -----------------------------------------------------------------


def made_of(graph: Path, data_folder: Path) -> bytes:
    """The SHA-256 of a graph and of its data files, as text."""
    model = onnx.load(graph, load_external_data=False)
    names = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    digest = hashlib.sha256(graph.read_bytes())
    for name in sorted(names):
        digest.update((data_folder / name).read_bytes())
    return digest.hexdigest().encode()


def forge(argument: dict[str, Any]) -> dict[str, Any]:
    """Takes the place of the worker: an artifact a stage, sound by its headers."""
    staging = Path(argument["staging"])
    for member in argument["members"]:
        source = onnx.load(member["graph"], load_external_data=False)
        stem = f"{member['stage']}_openvino_ctx"
        content = made_of(Path(member["graph"]), Path(argument["data_folder"]))
        binary = forge_binary({PART: (K64, len(content))})
        (staging / f"{stem}.bin").write_bytes(binary[:K64] + content + binary[K64 + len(content) :])
        node = context_node("c", ep_cache_context=f"{stem}.bin", partition_name=PART)
        del source.graph.node[:], source.graph.initializer[:], source.graph.value_info[:]
        node.input[:] = [value.name for value in source.graph.input]
        node.output[:] = [value.name for value in source.graph.output]
        source.graph.node.append(node)
        (staging / f"{stem}.onnx").write_bytes(source.SerializeToString())
    if os.environ.get(LOG):
        with Path(os.environ[LOG]).open("a") as log:
            log.write(f"{os.getpid()}\n")
    return {"files": [], "tools": {"forge": "1"}}


def forge_slowly(argument: dict[str, Any]) -> dict[str, Any]:
    """The same, and takes its time."""
    time.sleep(0.7)
    return forge(argument)


def forge_the_second_time(argument: dict[str, Any]) -> dict[str, Any]:
    """Crashes the first time that anybody asks."""
    time.sleep(0.7)
    with contextlib.suppress(FileExistsError):
        (Path(os.environ[LOG]).parent / "crashed").mkdir()
        os.kill(os.getpid(), signal.SIGKILL)
    return forge(argument)


def hang_with_descendants(argument: dict[str, Any]) -> None:
    """Starts a process, in a session of its own, and never answers."""
    code = (
        "import os, time\nwhile True:\n    time.sleep(0.05)\n    open(os.environ['FAULT_LOG'], 'a')"
    )
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    Path(os.environ[LOG]).write_text(f"{os.getpid()} {child.pid}")
    (Path(argument["staging"]) / "half.bin").write_bytes(b"half")
    time.sleep(600)


def forged_content(graph: Path) -> bytes:
    """Of what a forged graph says it was made."""
    (node,) = onnx.load(graph, load_external_data=False).graph.node
    name = next(a.s.decode() for a in node.attribute if a.name == "ep_cache_context")
    return (graph.parent / name).read_bytes()[K64 : K64 + 64]


def is_current(folder: Path, derived: Path) -> bool:
    """Whether every forged graph in a derived bundle was made of what is in the source now."""
    graphs = list(derived.glob("*_openvino_ctx.onnx"))
    return bool(graphs) and all(
        forged_content(graph) == made_of(folder / graph.name.replace("_openvino_ctx", ""), folder)
        for graph in graphs
    )


# -- processes --------------------------------------------------------------------------------


def start(function: str, argument: dict[str, Any], **environment: str) -> subprocess.Popen[str]:
    """A function of this file, or of another module ("module:name"), in a process of its own."""
    if ":" not in function:
        function = f"{HERE.stem}:{function}"
    command = [sys.executable, str(HERE), function, json.dumps(argument)]
    path = os.pathsep.join([str(HERE.parent), *filter(None, sys.path)])
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def finish(process: subprocess.Popen[str], timeout: float = 240) -> Any:
    """What it printed."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def prepare_here(argument: dict[str, Any]) -> dict[str, Any]:
    """Prepare a bundle, with the worker that is named; what came of it."""
    from turnout.bundle import Bundle
    from turnout.compiling import obtain
    from turnout.compiling.options import CompileOptions
    from turnout.compiling.prepare import prepare

    obtain._WORKERS["context"] = f"{HERE.stem}:{argument['worker']}"
    bundle = Bundle.open(argument["bundle"])
    while argument.get("gate") and not Path(argument["gate"]).exists():
        time.sleep(0.005)
    options = CompileOptions(compile=True, **argument.get("options", {}))
    said: list[str] = []
    with prepare(bundle, bundle.config, options, say=said.append) as prepared:
        return {"said": said, **prepared.to_json()}


def ask_here(argument: dict[str, Any]) -> dict[str, Any]:
    """Load a bundle through the store and ask it: what is to be killed, and what comes after.

    `phases` names a file that gets the name of each phase as it begins.
    """
    from turnout import Session, route
    from turnout.bundle import Bundle
    from turnout.compiling.options import CompileOptions

    if argument.get("phases"):
        mark_phases(Path(argument["phases"]))
    bundle = Bundle.open(argument["bundle"])
    chosen = route(bundle, reproducible=True, **argument["route"])
    outcomes: list[str] = []
    options = CompileOptions(**argument["options"])
    session = Session(bundle, chosen, preparing=options, progress=Told(outcomes))
    with session:
        assert session.prepared is not None
        result = session.generate(IDS, max_new_tokens=8, greedy=True)
        return {
            "tokens": list(result.token_ids),
            "outcomes": outcomes,
            "folder": str(session.loaded.folder),
            **{
                key: session.prepared.to_json()[key] for key in ("compiled", "uncompiled", "shared")
            },
        }


class Told:
    """Keeps how jobs ended."""

    def __init__(self, outcomes: list[str]) -> None:
        self.outcomes = outcomes

    def started(self, name: str, expected_s: float | None) -> None:
        pass

    def ended(self, name: str, outcome: str) -> None:
        self.outcomes.append(outcome)


def phases() -> dict[str, tuple[Any, str]]:
    """Where each phase begins: an object and the name of its function."""
    from importlib import import_module

    import onnxruntime_genai as og

    from turnout.compiling import obtain, receipts
    from turnout.compiling.hashes import ContentHashes
    from turnout.compiling.store import Store

    return {
        "hashing": (ContentHashes, "_hash"),
        "compiling": (obtain, "call_worker"),
        "verifying": (obtain, "verify"),
        "publishing": (Store, "publish"),
        "deriving": (import_module("turnout.compiling.derive"), "_fill"),
        "remembering": (receipts, "_write"),
        "loading": (og, "Model"),
    }


def mark_phases(log: Path) -> None:
    """Write each phase's name as it begins."""
    found = phases().items()
    log.write_text("deciding\n")
    for name, (owner, function) in found:
        original = getattr(owner, function)

        def marked(*a: Any, _name: str = name, _call: Any = original, **k: Any) -> Any:
            with log.open("a") as file:
                file.write(_name + "\n")
            return _call(*a, **k)

        setattr(owner, function, marked)


# -- what must hold ---------------------------------------------------------------------------


def leftovers(*roots: Path) -> list[str]:
    """Staging folders and temporary files below these folders."""
    return sorted(
        str(path)
        for root in roots
        for path in root.rglob(".*")
        if path.name.startswith((".turnout-", ".replaced-by-turnout"))
    )


def all_files(*roots: Path) -> set[str]:
    """Every file, but locks and the memory of hashes."""
    return {
        str(path)
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and path.suffix not in {".lock", ".sqlite", ".sqlite-journal"}
    }


def require_sound(store: Path) -> list[str]:
    """The keys in a store, all of whose entries are complete, with the bytes that were written."""
    from turnout.compiling.store import Broken, Store

    keys = []
    for entry in Store(store).entries():
        if isinstance(entry, Broken):
            # The name is claimed an instant before what it stands for is there.
            assert not list(entry.folder.iterdir()), entry
        else:
            Store(store).verify(entry)
            keys.append(entry.key)
    return keys


if __name__ == "__main__":
    from importlib import import_module

    module, _, name = sys.argv[1].partition(":")
    answer = getattr(import_module(module), name)(json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps(answer) + "\n")
