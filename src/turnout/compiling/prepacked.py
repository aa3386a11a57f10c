"""Stages whose weights are stored as the CPU EP's kernels want them: what is there, and proof.

Everything here runs in the parent, on headers and configs; the work itself is done by children
(`turnout.compiling.worker_prepack`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

DATA_FILE = "prepacked.data"
DISABLED = "session.disable_prepacking"
_SUFFIX = "_prepacked.onnx"
_LONGEST = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def artifact_names(stages: Iterable[str]) -> dict[str, str]:
    """A file name for each stage's packed graph. A stage may be called anything in a config."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for stage in stages:
        safe = _UNSAFE.sub("_", stage)[:_LONGEST]
        if safe != stage or safe.lower() in taken:
            safe += "-" + hashlib.sha256(stage.encode()).hexdigest()[:8]
        taken.add(safe.lower())
        names[stage] = safe + _SUFFIX
    return names
