"""onnxruntime's profile of a session: which EP computed each node, and for how long.

The file is a JSON array of one event a line (measured on onnxruntime 1.32, like all below). A
node that ran is an event of the category `Node`, with its EP in `args.provider`; a subgraph that
an EP took is one node. An event is written when it ends, so the nodes of a run come before its
`model_run`, and the nodes of a body (of `If`, `Loop`) before the node that holds them. The last
line, `]`, is written when the session is released.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnout.errors import GenerationError

# A line holds the shapes of all inputs of a node: some hundred bytes for each of them.
MAX_LINE = 4 << 20
SUBGRAPH = "subgraph"


@dataclass
class Tally:
    """What one EP computed: the operator of each of its nodes, and seconds of all their runs.

    The operator is `SUBGRAPH` for nodes that an EP took as one.
    """

    nodes: dict[int, str] = field(default_factory=dict)
    time_s: float = 0.0


@dataclass
class Profile:
    """What a session did: runs on prompts and on tokens, and tallies by canonical EP of each."""

    prompt_runs: int = 0
    token_runs: int = 0
    prompt: dict[str, Tally] = field(default_factory=dict)
    tokens: dict[str, Tally] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """Whether the session ran at all."""
        return self.prompt_runs + self.token_runs > 0

    def read(self, path: Path, token_runs: int) -> None:
        """Add the file at `path`, of a session whose last `token_runs` runs were on tokens.

        It is read line by line. Raises `GenerationError` for a file that is cut off or is none.
        """
        runs = sum(_is_run(line) for line in _lines(path))
        first_token = max(runs - token_runs, 0)
        self.prompt_runs += first_token
        self.token_runs += runs - first_token
        done, nested = 0, _Nesting()
        for line in _lines(path):
            if _is_run(line):
                done, nested = done + 1, _Nesting()
            elif '"provider"' in line:
                event = _event(line, path)
                # Also of other categories, such as an EP's own kernels.
                if event.get("cat") == "Node":
                    tallies = self.prompt if done < first_token else self.tokens
                    _count(event, nested.own_time(event), tallies)


class _Nesting:
    """Time of nodes without that of the nodes inside them, from events in the order they end."""

    def __init__(self) -> None:
        # By thread: begin and duration of the nodes that nothing holds yet.
        self._loose: dict[int, list[tuple[int, int]]] = {}

    def own_time(self, event: dict[str, Any]) -> float:
        """Seconds."""
        begin, lasted = int(event["ts"]), int(event["dur"])
        loose = self._loose.setdefault(event["tid"], [])
        inside = 0
        while loose and loose[-1][0] >= begin:
            inside += loose.pop()[1]
        loose.append((begin, lasted))
        return max(lasted - inside, 0) / 1e6


def _is_run(line: str) -> bool:
    return '"model_run"' in line and '"Session"' in line


def _count(event: dict[str, Any], seconds: float, tallies: dict[str, Tally]) -> None:
    arguments = event["args"]
    ep, operator = arguments["provider"], arguments.get("op_name", "")
    tally = tallies.setdefault(ep, Tally())
    tally.time_s += seconds
    # Names may be missing, and the bodies of control flow number their nodes anew.
    key = hash((arguments.get("node_index"), event["name"]))
    # What an EP took gets a name that begins with the EP's.
    tally.nodes[key] = SUBGRAPH if operator.startswith(ep) else operator


def _event(line: str, path: Path) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line.rstrip().removesuffix(","))
        kinds = (event["ts"], int), (event["dur"], int), (event["tid"], int), (event["name"], str)
        if all(isinstance(value, kind) for value, kind in kinds) and event["args"]["provider"]:
            return event
    except (ValueError, KeyError, TypeError):
        pass
    raise _unreadable(path, f"the line {line[:80]!r}")


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file that is complete."""
    line = ""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            while more := file.readline(MAX_LINE):
                line = more
                yield line
    except OSError as error:
        raise _unreadable(path, error.strerror or error) from error
    if line.strip() != "]":
        raise _unreadable(path, f"an end at {line[-80:]!r}" if line else "an empty file")


def _unreadable(path: Path, found: object) -> GenerationError:
    return GenerationError(
        "The runtime's profile is not complete.",
        found=found,
        expected="one event a line, and a last line of ]",
        where=path,
        fix="free some space in the temporary folder, and measure again",
    )
