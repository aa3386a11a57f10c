"""Compiles one job into a staging folder. Runs in a child process, and nothing else does.

An EP shares weights between graphs through a context that lives only as long as one of its
sessions (measured with OpenVINO's plugin 1.8.1), so the first session of a shared job is kept
until the last graph is compiled. Where weights stay outside the binary, they are recorded there
by the location that the graph gives, which is relative to the folder of the weights; so the same
name is found again wherever that folder is named when the compiled graph is loaded.
"""

from __future__ import annotations

import collections
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout import catalog
from turnout.bundle import GraphFile
from turnout.bundle.session_keys import (
    CONTEXT_EMBED,
    CONTEXT_ENABLE,
    CONTEXT_PATH,
    CONTEXTS,
    INITIALIZER_FOLDER,
    SHARE_CONTEXTS,
    STOP_SHARING,
)
from turnout.compiling.naming import context_name
from turnout.compiling.targets import backend_library, provider_options
from turnout.compiling.worker_sessions import message_of, open_session, register
from turnout.errors import BundleError, CompileError, TurnoutError
from turnout.machine.origins import version_of

_RECORD = "session.record_ep_graph_assignment_info"
# Of these a job decides, not the session options of a stage; so it does of all other options
# of contexts, which name files.
_DECIDED = frozenset({SHARE_CONTEXTS, STOP_SHARING, INITIALIZER_FOLDER})
_SHOWN = 6


def compile_here(argument: dict[str, Any]) -> dict[str, Any]:
    """Compile the job that `argument` describes (`Job.argument`) into its empty staging folder.

    Returns `files` (the names of what was written), `tools` (names and versions of what compiled,
    and the hash of each plugin library) and `seconds` by stage. Raises `CompileError`,
    `EpUnavailableError` or `DeviceUnavailableError`.
    """
    staging = Path(argument["staging"])
    if any(staging.iterdir()):
        raise CompileError("The staging folder is not empty.", where=staging)
    members = argument["members"]
    register(argument["libraries"])
    anchor, seconds = None, {}
    for index, member in enumerate(members):
        start = time.monotonic()
        target = staging / context_name(member["stage"], argument["ep"])
        entries = _entries(argument, member, target, last=index == len(members) - 1)
        session = _compile(argument, member, entries)
        _require_compiled(session, argument, member, target)
        if argument["shared"] and anchor is None:
            anchor = session
        # One that is not needed any more makes room for the next.
        del session
        seconds[member["stage"]] = round(time.monotonic() - start, 3)
    tools = _tools(argument["ep"], argument["libraries"])
    files = sorted(path.name for path in staging.iterdir())
    return {"files": files, "tools": tools, "seconds": seconds}


def _entries(
    argument: Mapping[str, Any], member: Mapping[str, Any], target: Path, *, last: bool
) -> dict[str, str]:
    """The session options that a member is compiled with."""
    own = member["session_options"]
    entries = {
        key: value
        for key, value in own.items()
        if key not in _DECIDED and not key.startswith(CONTEXTS)
    }
    embed = own.get(CONTEXT_EMBED) == "1" and not argument["shared"]
    entries |= {
        CONTEXT_ENABLE: "1",
        CONTEXT_PATH: str(target),
        CONTEXT_EMBED: "1" if embed else "0",
        _RECORD: "1",
    }
    if argument["shared"]:
        entries[SHARE_CONTEXTS] = "1"
        if last:
            entries[STOP_SHARING] = "1"
    # All members read the weights of one folder: an EP takes equal names for equal weights.
    if Path(member["graph"]).parent != Path(argument["data_folder"]):
        entries[INITIALIZER_FOLDER] = argument["data_folder"]
    return entries


def _compile(
    argument: Mapping[str, Any], member: Mapping[str, Any], entries: Mapping[str, str]
) -> Any:
    ep = argument["ep"]
    try:
        return open_session(
            Path(member["graph"]),
            ep=ep,
            provider_options=_provider_options(argument),
            session_options=entries,
        )
    except TurnoutError:
        raise
    except Exception as error:
        raise CompileError(
            f"{catalog.alias_of(ep)} does not compile the stage {member['stage']!r}.",
            found=message_of(error),
            where=member["graph"],
        ) from error


def _provider_options(argument: Mapping[str, Any]) -> dict[str, str]:
    ep = argument["ep"]
    options = provider_options(ep, argument["provider_options"], argument["target"])
    if ep in argument["libraries"]:
        backend_library(ep, options, argument["libraries"][ep])
    return options


def _require_compiled(
    session: Any, argument: Mapping[str, Any], member: Mapping[str, Any], target: Path
) -> None:
    """Raises `CompileError` where an EP took nothing: then no graph, or an uncompiled one, is
    written, and nothing else says so.
    """
    ep = argument["ep"]
    try:
        compiled = bool(GraphFile.read(target).ep_contexts)
    except BundleError:
        compiled = False
    if not compiled:
        check = "check the target, " if argument["target"] else ""
        raise CompileError(
            f"For {catalog.alias_of(ep)}, nothing was compiled of the stage {member['stage']!r}.",
            found=_where_nodes_went(session, ep) + _open_shapes(Path(member["graph"])),
            expected="nodes that this EP takes",
            fix=f"{check}route the stage to another EP, or leave it uncompiled",
        )


def _open_shapes(graph: Path) -> str:
    """What some EPs do not take, as the rest of a sentence."""
    for value in GraphFile.read(graph).inputs:
        if any(not isinstance(size, int) for size in value.shape or ()):
            shape = ", ".join(str(size) for size in value.shape or ())
            return f"; the input {value.name[:80]} has the open shape [{shape[:80]}]"
    return ""


def _where_nodes_went(session: Any, ep: str) -> str:
    placed: dict[str, collections.Counter[str]] = {}
    try:
        for part in session.get_provider_graph_assignment_info():
            kinds = placed.setdefault(part.ep_name, collections.Counter())
            kinds.update(node.op_type for node in part.get_nodes())
    except Exception as error:  # only an explanation is lost
        return f"no compiled graph ({message_of(error)})"
    if ep in placed:
        return f"{placed[ep].total()} nodes that it takes, and writes nothing of"
    rows = []
    for name, kinds in placed.items():
        most = ", ".join(kind for kind, _ in kinds.most_common(_SHOWN))
        rows.append(f"{kinds.total()} on {catalog.alias_of(name)} ({most})")
    return "its nodes go elsewhere: " + ("; ".join(rows) or "there are none")


def _tools(ep: str, libraries: Mapping[str, str]) -> dict[str, str]:
    import onnxruntime

    tools = {"onnxruntime": str(onnxruntime.__version__)}
    known = catalog.find(ep)
    for package in known.packages if known is not None else ():
        version = version_of(package.name)
        if version is not None:
            tools[package.name] = version
    for device in onnxruntime.get_ep_devices():
        version = dict(device.ep_metadata).get("version")
        if device.ep_name == ep and version:
            tools[f"plugin of {catalog.alias_of(ep)}"] = str(version)
    for name, library in libraries.items():
        with Path(library).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        tools[f"library of {catalog.alias_of(name)}"] = digest
    return tools
