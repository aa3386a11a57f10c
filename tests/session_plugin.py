"""Fixtures over `session_fixtures`; a module of its own, so that pytest can load it as a plugin."""

from __future__ import annotations

import pytest

from session_fixtures import Bundles, Terminal


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def turnout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capsys)
