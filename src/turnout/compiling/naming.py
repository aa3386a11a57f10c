"""What a compiled graph is called: by its stage and the EP that compiled it."""

from __future__ import annotations

import hashlib
import re

from turnout import catalog

# Taken as it is. Names with two dots have been misread by EPs, capitals may be the same name on
# one file system and two on another, and a config may hold anything.
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_OTHERS = re.compile(r"[^a-z0-9_-]+")
_LONGEST = 40


def context_name(stage: str, ep: str) -> str:
    """`context_openvino_ctx.onnx`: the file of a stage that was compiled for an EP."""
    return f"{_word(stage)}_{_word(catalog.alias_of(ep))}_ctx.onnx"


def prepacked_name(stage: str) -> str:
    """`context_prepacked.onnx`: the file of a stage whose weights were packed."""
    return f"{_word(stage)}_prepacked.onnx"


def _word(name: str) -> str:
    """A name as a part of a file's name, different for different names."""
    if _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_OTHERS.sub('-', name.lower()).strip('-')[:_LONGEST]}-{digest}"
