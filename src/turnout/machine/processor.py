"""What kind of processor this is: what is compiled or packed for it is for no other kind."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MODEL = ("model name", "CPU part", "cpu model")
_FEATURES = ("flags", "Features")


@cache
def processor() -> str:
    """The processor's model and a hash of its instruction-set features, for comparing.

    On Linux from `/proc/cpuinfo`; elsewhere the name and revision that the system gives, which
    stand for the features.
    """
    facts = _linux()
    if facts:
        model = next((facts[key] for key in _MODEL if key in facts), "")
        features = next((facts[key] for key in _FEATURES if key in facts), "")
        digest = hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:12]
        return f"{platform.machine()} {model} {digest}"
    return f"{platform.machine()} {platform.processor()}"


def _linux() -> dict[str, str]:
    """The facts about the first processor; {} elsewhere."""
    try:
        text = _CPUINFO.read_text("utf-8", "replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
