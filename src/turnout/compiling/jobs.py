"""What is compiled together: a job is one child process, and one entry of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["context", "prepacked"]


@dataclass(frozen=True)
class Member:
    """One stage of a job.

    `graph` is its source graph, absolute and without links; `filename` is how the config names
    it. `session_options` are those that matter to compiling, as strings.
    """

    stage: str
    graph: Path
    filename: str
    session_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """Stages that one child compiles for one EP with the same options, in order.

    `kind` "context" makes EPContext graphs; "prepacked" makes graphs whose weights are stored in
    the layout of the CPU EP's kernels. `shared`: the EP keeps one copy of the members' weights.
    `target` describes a device that is not here (`soc_model`, ...), {} this machine's.
    `data_folder` is where the members' external data is.
    """

    kind: Kind
    ep: str
    members: tuple[Member, ...]
    data_folder: Path
    provider_options: Mapping[str, str] = field(default_factory=dict)
    shared: bool = False
    target: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its stages, for people: `context+iterator`."""
        return "+".join(member.stage for member in self.members)

    def argument(self, staging: Path, libraries: Mapping[str, str]) -> dict[str, Any]:
        """What the child is told, as plain data; `libraries` are those of plugins, by EP."""
        return {
            "staging": str(staging),
            "ep": self.ep,
            "provider_options": dict(self.provider_options),
            "members": [
                {
                    "stage": member.stage,
                    "graph": str(member.graph),
                    "session_options": dict(member.session_options),
                }
                for member in self.members
            ],
            "data_folder": str(self.data_folder),
            "shared": self.shared,
            "target": dict(self.target),
            "libraries": dict(libraries),
        }
