"""A bundle: a directory that onnxruntime-genai loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from turnout.bundle.config import CONFIG_NAME, GenaiConfig
from turnout.bundle.layouts import Stage
from turnout.errors import NotABundleError


@dataclass(frozen=True)
class Bundle:
    """A directory with a `genai_config.json`, read but never executed."""

    path: Path
    config: GenaiConfig

    @classmethod
    def open(cls, path: Path | str) -> Bundle:
        """The bundle at `path`. Raises `NotABundleError` and `ConfigError`."""
        path = Path(path)
        if not (path / CONFIG_NAME).is_file():
            raise NotABundleError(f"{path} is not a bundle.", where=path)
        return cls(path, GenaiConfig.load(path / CONFIG_NAME))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage in the order in which it runs."""
        return self.config.stages()
