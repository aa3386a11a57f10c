"""`genai_config.json`: the document kept losslessly, and its stages as they take effect.

`GenaiConfig.stages` is the only code that knows the layouts of a config; nothing else walks
the JSON. How onnxruntime-genai picks the session options of a stage was read in its source
(`Model::CreateSessionOptions`, `MultiModalLanguageModel`, `QwenVisionPipeline`) and is
measured by `tests/test_config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from turnout.bundle import jsonedit, jsontext, layouts, merging
from turnout.bundle.layouts import ProviderEntry, Stage
from turnout.errors import ConfigError
from turnout.files import kind_of

CONFIG_NAME = "genai_config.json"
# The largest of some sixty real ones has 21 kB; each edit reads the text again.
MAX_CONFIG_BYTES = 2 << 20

__all__ = ["CONFIG_NAME", "GenaiConfig", "ProviderEntry", "Stage"]


@dataclass(frozen=True)
class GenaiConfig:
    """One config, immutable. `text` is the document byte for byte; edits give a new config.

    `root` is the document as it stands; everything else reads it as the runtime does, where a
    key that stands twice adds up (`merging`). An edit of such a document makes it one.
    """

    text: str
    where: str = field(compare=False)
    root: jsontext.Node = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, where: Path | str = CONFIG_NAME) -> GenaiConfig:
        """Read `text`; `where` names it in errors. Raises `ConfigError`."""
        root = jsontext.parse(text, where)
        if root.kind != "object":
            raise ConfigError(
                f"{where} is no configuration.",
                found=f"a JSON {root.kind}",
                expected="a JSON object with a model",
                where=where,
            )
        return cls(text, str(where), root)

    @classmethod
    def load(cls, path: Path | str) -> GenaiConfig:
        """Read the file at `path`. Raises `ConfigError`, also when it cannot be read."""
        path = Path(path)
        return cls.parse(jsontext.decode(cls.read(path), path), path)

    @staticmethod
    def read(path: Path) -> bytes:
        """The bytes of a config's file. Raises `ConfigError` for none, and for one too large."""
        try:
            if not path.is_file():
                raise ConfigError(f"{path} is no regular file.", found=kind_of(path), where=path)
            with path.open("rb") as file:
                data = file.read(MAX_CONFIG_BYTES + 1)
        except OSError as error:
            raise ConfigError(
                f"Cannot read {path}: {error.strerror or error}.", where=path
            ) from error
        if len(data) > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{path} is too large for a configuration.",
                found=f"{path.stat().st_size} bytes",
                expected=f"at most {MAX_CONFIG_BYTES} bytes",
                where=path,
            )
        return data

    @cached_property
    def document(self) -> dict[str, Any]:
        """The document as plain Python data, as the runtime reads duplicate keys. Read only."""
        data: dict[str, Any] = self._merged.data()
        return data

    def get(self, path: jsontext.Path, default: Any = None) -> Any:
        """The value at a JSON path such as `("model", "type")` as plain data, or `default`."""
        node = self._merged.find(path)
        return default if node is None else node.data()

    def stages(self) -> tuple[Stage, ...]:
        """Every stage in the order in which it runs, first those that feed the decoder.

        Raises `ConfigError` where the document has no model, or a value that onnxruntime-genai
        would refuse in a place that decides about stages.
        """
        return self._stages

    def providers(self, options: jsontext.Path) -> tuple[ProviderEntry, ...]:
        """The entries of `provider_options` in the session options at that JSON path.

        Raises `ConfigError` for a value that onnxruntime-genai would refuse.
        """
        return layouts.read_providers(self.text, self._merged, self.where, options)

    @cached_property
    def _merged(self) -> jsontext.Node:
        return merging.merged(self.root)

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        return layouts.read_stages(self.text, self._merged, self.where)

    def edit(self, path: jsontext.Path, value: Any) -> GenaiConfig:
        """A config with `value` at `path`, all other bytes as they are; self if it is there.

        Objects missing on the way are added; an index equal to an array's length appends.
        """
        whole = self._whole()
        edited = whole._with(jsonedit.replace(whole.text, whole.root, path, value))
        return self if edited is whole else edited

    def remove(self, path: jsontext.Path) -> GenaiConfig:
        """A config without the member or element at `path`; self if there is none."""
        whole = self._whole()
        edited = whole._with(jsonedit.remove(whole.text, whole.root, path))
        return self if edited is whole else edited

    def _whole(self) -> GenaiConfig:
        """The document without doubled objects and arrays, of which an edit could see one only."""
        if self._merged is self.root:
            return self
        return self._with(merging.collapse(self.text, self.root))

    def _with(self, text: str) -> GenaiConfig:
        return self if text == self.text else GenaiConfig.parse(text, self.where)

    @property
    def model_type(self) -> str:
        """`model.type`, "" when it is absent."""
        return str(self.get(("model", "type"), ""))

    @property
    def context_length(self) -> int | None:
        """`model.context_length` in tokens, None when it is absent or no positive number."""
        value = self.get(("model", "context_length"))
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if value > 0 else None

    @property
    def search(self) -> Mapping[str, Any]:
        """The `search` section: the bundle's own generation settings."""
        value = self.get(("search",))
        return value if isinstance(value, dict) else {}
