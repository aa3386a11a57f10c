"""What is checked: a config, alone or with the bundle around it, and the machine to run it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from turnout.bundle.jsontext import Lines, Path, show_path
from turnout.checking.findings import Place
from turnout.errors import BundleError

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig, GraphFile, Stage
    from turnout.machine import Inventory


@dataclass(frozen=True)
class Subject:
    """A config whose stages can be read.

    `bundle` is None for a lone config, and then nothing may be said about files; its config may
    differ from `config`, which is the effective one where a route is checked. `inventory` is
    None where no machine is to be considered.
    """

    config: GenaiConfig
    bundle: Bundle | None = None
    inventory: Inventory | None = None

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage in the order in which it runs."""
        return self.config.stages()

    @cached_property
    def graphs(self) -> Mapping[str, GraphFile]:
        """The graphs that are there and can be read, by their stage's name; {} without files.

        What is wrong with the others is said by the checks of files.
        """
        found: dict[str, GraphFile] = {}
        for stage in self.stages if self.bundle is not None else ():
            assert self.bundle is not None
            try:
                found[stage.name] = self.bundle.graph(stage)
            except BundleError:
                continue
        return found

    def place(self, path: Path) -> Place:
        """How a JSON path of the config is shown, with its line and column where it exists."""
        node = self.config.root.find(path)
        if node is None:
            return Place(show_path(path))
        return Place(show_path(path), *self._lines.at(node.start))

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.config.text)
