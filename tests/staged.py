"""Runs the stages of a built bundle by onnxruntime alone, to see logits at every position."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort


class Staged:
    """A dynamic bundle of `turnout build`, pipeline or flat, on the CPU EP."""

    def __init__(self, bundle: Path) -> None:
        self._config = json.loads((bundle / "genai_config.json").read_text(encoding="utf-8"))
        decoder = self._config["model"]["decoder"]
        stages = decoder.get("pipeline")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        files = (
            {"decoder": decoder["filename"]}
            if stages is None
            else {name: stage["filename"] for entry in stages for name, stage in entry.items()}
        )
        self._sessions = {
            name: ort.InferenceSession(str(bundle / file), options) for name, file in files.items()
        }

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """float32 [tokens, vocabulary]: what follows each prefix of the tokens."""
        if "decoder" in self._sessions:
            return np.stack([self._flat(token_ids[:n]) for n in range(1, len(token_ids) + 1)])
        ids = np.array([token_ids], np.int64)
        embedded = self._run("embeddings", {"input_ids": ids}, "inputs_embeds")
        name = "transformer" if "transformer" in self._sessions else "context"
        states = self._run(
            name,
            {"inputs_embeds": embedded, "attention_mask": np.ones_like(ids), **self._empty(name)},
            "hidden_states",
        )
        # The head keeps the last position of each row: every position as a row of its own.
        rows = states.reshape(-1, 1, states.shape[-1])
        mask = np.ones((len(rows), 1), np.int64)
        feeds = {"hidden_states": rows, "attention_mask": mask}
        return self._run("lm_head", feeds, "logits")[:, 0]

    def _flat(self, token_ids: list[int]) -> np.ndarray:
        ids = np.array([token_ids], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), **self._empty("decoder")}
        return self._run("decoder", feeds, "logits")[0, -1]

    def _empty(self, stage: str) -> dict[str, np.ndarray]:
        return {
            value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
            for value in self._sessions[stage].get_inputs()
            if value.name.startswith("past_key_values")
        }

    def _run(self, stage: str, feeds: dict[str, np.ndarray], output: str) -> np.ndarray:
        return self._sessions[stage].run([output], feeds)[0]


def mean_nll(logits: np.ndarray, token_ids: list[int]) -> float:
    """Mean negative log likelihood of tokens 2 to the last, in nats, computed in float64."""
    rows = logits[:-1].astype(np.float64)
    peak = rows.max(axis=1, keepdims=True)
    totals = peak[:, 0] + np.log(np.exp(rows - peak).sum(axis=1))
    taken = rows[np.arange(len(rows)), token_ids[1:]]
    return float(np.mean(totals - taken))
