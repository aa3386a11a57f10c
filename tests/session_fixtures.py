"""Tiny real bundles for sessions, built once a test process, and the command line in-process."""

from __future__ import annotations

import io
import json
import shutil
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TINY = Path(__file__).parent / "data" / "tiny"
# What the options of `build` are for each kind of bundle.
KINDS: dict[str, dict[str, Any]] = {
    "flat": {"layout": "flat"},
    "pipeline": {},
    "two sessions": {"two_sessions": True},
    "static": {"static_prefill": 16},
}


def reference(model: str, index: int) -> tuple[list[int], list[int]]:
    """A prompt and its 8 greedy tokens, from the float32 reference of tests/data/tiny."""
    models = json.loads((TINY / "tiny.json").read_text("utf-8"))["models"]
    row = next(row for row in models if row["file"] == f"{model}.gguf")["reference"][index]
    return row["token_ids"], row["greedy_8"]


@dataclass
class Bundles:
    """Makes bundles; each call gives a copy of its own, to be changed at will."""

    folder: Path
    made: int = 0

    def __call__(
        self,
        kind: str = "flat",
        *,
        model: str = "llama-f32",
        change: Callable[[dict[str, Any]], object] | None = None,
    ) -> Path:
        """A bundle of that kind; `change` edits its config in place."""
        from turnout.building import build

        original = self.folder / f"{model} {kind}"
        if not original.exists():
            build(TINY / f"{model}.gguf", original, accuracy_level=0, **KINDS[kind])
        self.made += 1
        copy = self.folder / f"copy {self.made}"
        shutil.copytree(original, copy)
        if change is not None:
            edit_json(copy / "genai_config.json", change)
        return copy


def long_bundle(folder: Path, kind: str) -> Path:
    """A tiny bundle with a context of 40,000 tokens: its prompts can take seconds."""
    from turnout.building import build

    key = b"llama.context_length" + struct.pack("<I", 4)
    data = (TINY / "llama-f32.gguf").read_bytes()
    source = folder / "long.gguf"
    source.write_bytes(data.replace(key + struct.pack("<I", 256), key + struct.pack("<I", 40_000)))
    return build(source, folder / "long", accuracy_level=0, **KINDS[kind])


# Some 38,000 tokens.
LONG_PROMPT = "the cat " * 9500


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text("utf-8"))
    change(document)
    path.write_text(json.dumps(document, ensure_ascii=False), "utf-8")


def set_eos(token: int) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["model"].update(eos_token_id=token)


def set_provider(stage: str, *providers: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Gives a stage of a pipeline, or a flat decoder, those provider options."""

    def change(config: dict[str, Any]) -> None:
        decoder = config["model"]["decoder"]
        places = {
            name: place for item in decoder.get("pipeline", []) for name, place in item.items()
        }
        place = places.get(stage, decoder)
        place["session_options"] = {"provider_options": list(providers)}

    return change


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal:
    """Runs `turnout` in this process, as `main` does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object, stdin: str | bytes | None = None) -> Done:
        from turnout.cli.main import main

        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        self._monkeypatch.setattr(sys, "argv", ["turnout", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = 0
        try:
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)
