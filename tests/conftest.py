"""What every test process needs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

ANY_VENDOR = str(Path(__file__).parent / "any_vendor")

# Before anything imports onnxruntime, here and in every child: see the module's docstring.
os.environ["PYTHONPATH"] = os.pathsep.join(
    path for path in (ANY_VENDOR, os.environ.get("PYTHONPATH")) if path
)
sys.path.insert(0, ANY_VENDOR)
sys.modules.pop("sitecustomize", None)
import sitecustomize  # noqa: E402, F401


def pytest_configure() -> None:
    # A shell starts its background jobs with interrupts ignored, and children inherit that: the
    # tests of Ctrl-C would then test nothing. A handler is reset to the default in children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which is not there yet."""
    folder = tmp_path / "the cache"
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(folder))
    return folder
