"""A stand-in for the child that compiles: what is around it is tested without an EP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from session_fixtures import Bundles, edit_json
from turnout.bundle import Bundle
from turnout.compiling import obtain, receipts
from turnout.compiling.jobs import Job
from turnout.errors import CompileError, ProcessError

OPENVINO = {"OpenVINO": {"device_type": "CPU"}}


class FakeCompiler:
    """Takes the place of the child and of its judge; `compiled` lists the stages that it did.

    A "compiled" graph is the source's own, under another name, with a binary of text beside it.
    `broken` are stages that it cannot do, `raises` what it raises instead of compiling.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(obtain, "call_worker", self.work)
        monkeypatch.setattr(obtain, "verify", self.judge)
        monkeypatch.setattr(obtain, "verify_stored", lambda *_: None)
        self.compiled: list[str] = []
        self.limits: list[float] = []
        self.broken: set[str] = set()
        self.raises: type[BaseException] | None = None

    def work(self, kind: str, argument: dict[str, Any], limit: float, doing: str) -> dict[str, Any]:
        staging = Path(argument["staging"])
        self.limits.append(limit)
        for member in argument["members"]:
            (staging / f"{member['stage']}.bin").write_text("half")
            if self.raises is not None:
                raise self.raises
            if member["stage"] in self.broken:
                raise ProcessError(f"The child process for {doing} crashed (SIGSEGV).")
            self.compiled.append(member["stage"])
            (staging / f"{member['stage']}.bin").write_text("blob" * 1000)
            shutil.copy(member["graph"], staging / f"{member['stage']}_openvino_ctx.onnx")
        return {"files": [], "tools": {"fake": "1"}}

    def judge(self, staging: Path, job: Job, bundle: Bundle) -> tuple[dict[str, str], int, str]:
        graphs = {m.stage: f"{m.stage}_openvino_ctx.onnx" for m in job.members}
        if not all((staging / name).is_file() for name in graphs.values()):
            raise CompileError("A graph is missing.")
        return graphs, 0, "structure"


def on_openvino(bundles: Bundles, kind: str = "pipeline", *stages: str) -> Path:
    """A bundle whose config sends those stages, or all, to OpenVINO."""
    folder = bundles(kind)

    def change(config: dict[str, Any]) -> None:
        for item in config["model"]["decoder"]["pipeline"]:
            for name, stage in item.items():
                if not stages or name in stages:
                    stage["session_options"] = {"provider_options": [dict(OPENVINO)]}

    edit_json(folder / "genai_config.json", change)
    return folder


def remember_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts of files that were written just now count, too."""
    monkeypatch.setattr(receipts, "_SETTLED_NS", 0)


def files_in(folder: Path) -> set[str]:
    """Every file below, locks left out."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))
