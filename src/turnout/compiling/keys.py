"""The key of a compiled job: everything that what comes of it depends on.

An artifact is used for a job whose key is the same, and for no other. The inputs are kept beside
the artifact in words, so that a miss can be explained: `onnxruntime 1.31.1 -> 1.32.0`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turnout.bundle.session_keys import (
    CONTEXT_ENABLE,
    CONTEXT_PATH,
    INITIALIZER_FOLDER,
    SHARE_CONTEXTS,
    STOP_SHARING,
)

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GraphFile
    from turnout.compiling.hashes import ContentHashes
    from turnout.compiling.jobs import Job

# Raised when what a worker writes changes though its inputs do not.
SCHEMA_VERSION = 1
_LONGEST = 60

# Session options that say how a session runs and logs, not what is compiled.
_IMMATERIAL = frozenset(
    {
        "log_id",
        "log_severity_level",
        "log_verbosity_level",
        "enable_profiling",
        "intra_op_num_threads",
        "inter_op_num_threads",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "custom_ops_library",
        CONTEXT_ENABLE,
        CONTEXT_PATH,
        SHARE_CONTEXTS,
        STOP_SHARING,
        INITIALIZER_FOLDER,
        "session.force_spinning_stop",
        "session.intra_op.allow_spinning",
        "session.inter_op.allow_spinning",
        "session.use_device_allocator_for_initializers",
    }
)


@dataclass(frozen=True)
class Machine:
    """What a key says of where a job is compiled.

    `tools` are names and versions: of onnxruntime, and of the plugin with its library's hash.
    `device` says which one it is compiled for: vendor, device, driver, or the processor.
    """

    tools: Mapping[str, str]
    device: Mapping[str, str] = field(default_factory=dict)


def material(options: Mapping[str, Any]) -> dict[str, str]:
    """The session options that matter to what is compiled, as strings."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in sorted(options.items())
        if key not in _IMMATERIAL
    }


def key_inputs(job: Job, bundle: Bundle, machine: Machine, hashes: ContentHashes) -> dict[str, Any]:
    """Everything that the job's artifacts depend on, as plain data with readable names.

    Reads weights only where their hashes are not remembered. Raises `GraphError`.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": job.kind,
        "ep": job.ep,
        "shared": job.shared,
        "provider_options": dict(sorted(job.provider_options.items())),
        "target": dict(sorted(job.target.items())),
        "device": dict(sorted(machine.device.items())),
        "tools": dict(sorted(machine.tools.items())),
        "stages": [
            {
                "stage": member.stage,
                "graph": hashes.file(member.graph),
                "weights": _weights(bundle.graph(bundle.stage(member.stage)), job, hashes),
                "session_options": dict(sorted(member.session_options.items())),
            }
            for member in job.members
        ],
    }


def digest(inputs: Mapping[str, Any]) -> str:
    """The key: SHA-256 of the inputs' canonical JSON, as 64 hexadecimal digits."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """What changed between two sets of inputs, a line each; () where nothing did."""
    before, after = dict(_flat(old)), dict(_flat(new))
    lines = []
    for name in dict.fromkeys([*before, *after]):
        left, right = before.get(name), after.get(name)
        if left == right:
            continue
        if "graph" in name or "weights" in name:
            lines.append(f"{name} changed")
        else:
            lines.append(f"{name} {_shown(left)} -> {_shown(right)}")
    return tuple(lines)


def are_related(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two sets of inputs have a graph, or the weights of one, in common."""
    return bool(_contents(one) & _contents(other))


def stages_of(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What inputs say of each stage of their job; stored ones may hold anything."""
    found = inputs.get("stages")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _contents(inputs: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for item in stages_of(inputs):
        found.add(str(item.get("graph")))
        weights = item.get("weights")
        if isinstance(weights, dict):
            found |= set(map(str, weights.values()))
    return found


def _weights(graph: GraphFile, job: Job, hashes: ContentHashes) -> dict[str, str]:
    """The hash of what a graph uses of each of its data files."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for item in graph.initializers:
        if item.external is not None:
            outer = item.external
            spans.setdefault(outer.location, []).append((outer.offset, outer.length))
    return {
        location: hashes.digest(job.data_folder / location, found)
        for location, found in sorted(spans.items())
    }


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves with names for people: `tools.onnxruntime` is `onnxruntime`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            hidden = not name and key in {"tools", "device", "stages"}
            yield from _flat(inner, "" if hidden else f"{name} {key}".strip())
    elif isinstance(value, list):
        for item in value:
            label = item.get("stage", "") if isinstance(item, Mapping) else ""
            yield from _flat(item, f"{name} {label}".strip())
    else:
        yield name, value


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
