"""What the runtime's messages mean: which stage, which EP, why, and what to do.

The runtime names files and EPs only inside its messages, so a failure is attributed by what
a message mentions: a graph's file, then an EP, and else the stages that run on a plugin's EP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.bundle import COMPILED
from turnout.bundle.bundle import ALLOW
from turnout.errors import GenerationError, LoadError, MachineError, TurnoutError, UsageError
from turnout.runtime import layout

if TYPE_CHECKING:
    from turnout.bundle import Bundle, GenaiConfig, Stage
    from turnout.routing import Route

MAX_REASON = 600
# What comes before the reason: source file, function, and onnxruntime's status code.
_STATUS = re.compile(r"^.*?\[ONNXRuntimeError\] : \d+ : \w+ : ", re.DOTALL)
_SOURCE = re.compile(r"^\S+\.(?:cc|cpp|h):\d+ .*?\) ")

# A message about weights names the tensor and no file.
_TENSOR = re.compile(r"(?:initializer: |tensor )([^\s,]+?)[.,]?\s")

# Message of the runtime -> what to do. The first that matches counts.
_FIXES = (
    (r"Permission denied|system error number 13", ALLOW),
    (r"File doesn't exist", "restore the file, or build or download the bundle again"),
    (
        r"Protobuf parsing failed|No graph was found|INVALID_PROTOBUF",
        "the file is damaged: build or download the bundle again",
    ),
    (
        r"External data path|external data|External initializer",
        "put the weight file back inside the bundle's folder, beside its graph",
    ),
    (
        r"devices matched the filtering criteria",
        "choose a device that `turnout devices` lists, with --device or --provider-option",
    ),
    (
        r"not compatible with any execution provider added",
        "route the stage to the EP that it was compiled for, or use the uncompiled bundle",
    ),
    (
        r"fallback to CPU EP has been explicitly disabled",
        "set session.disable_cpu_ep_fallback to 0, or route the stage to another EP",
    ),
    (
        r"not supported in this build|Unknown provider name|not been built with|not available",
        "see `turnout devices` for what is installed, or route elsewhere with --ep or --stage",
    ),
    (
        r"cannot open shared object file|Failed to load library|Error loading",
        "install what provides the library, or route elsewhere with --ep or --stage",
    ),
    (
        r"parsing '.*genai_config.json'|must be",
        "correct genai_config.json, or use the version of onnxruntime-genai that it was made for",
    ),
)

# What the runtime's binding says of a text that is no Unicode.
_NO_TEXT = "incompatible constructor arguments"

_NAMES_FIX = "compare model.type and the names of model.decoder with what the graph has"


def explain(
    message: str, step: str, config: GenaiConfig, bundle: Bundle, route: Route | None = None
) -> LoadError | UsageError:
    """The error for what the runtime said in `step` ("config", "model" or "tokenizer").

    `config` is the effective one of `bundle` along `route`. What is said about a session option
    that the route sets is a `UsageError`.
    """
    if step == "config" and _NO_TEXT in message:
        return _no_path(bundle)
    message = _in_the_bundle(message, bundle)
    asked = _options_of(route, message)
    if asked:
        return UsageError(
            "The runtime refuses a session option of the route.",
            found=tidy(message),
            where=", ".join(asked),
            fix="give it another value, or leave it out",
        )
    if step != "tokenizer" and layout.misfit(message, config):
        return layout.wrong_type(config, bundle.path, tidy(message))
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, message)), None)
    if step == "config":
        problem, where = "The runtime refuses the bundle's configuration.", bundle.path
    elif step == "tokenizer":
        problem, where = "The bundle's tokenizer cannot be loaded.", bundle.path
        fix = fix or "restore the tokenizer's files, or build or download the bundle again"
    else:
        stages = _with_tensor(message, config, bundle) or blame(message, config)
        problem = _problem(stages, "cannot be loaded")
        where = bundle.path / str(stages[0].filename) if len(stages) == 1 else bundle.path
    return LoadError(problem, found=tidy(message), where=where, fix=fix)


def _no_path(bundle: Bundle) -> LoadError:
    return LoadError(
        "The runtime takes no path that is not UTF-8.",
        found=str(bundle.path.resolve()),
        where=bundle.path,
        fix="give the folder of the bundle, and those above it, names in UTF-8",
    )


def _options_of(route: Route | None, message: str) -> list[str]:
    """The session options of a route that a message names, as they are asked for."""
    if route is None:
        return []
    found = [
        f"{key}={value}"
        for stage in route.stages
        for key, value in stage.set_options.items()
        if re.search(rf"(?<![^\W_]){re.escape(key)}(?!\w)", message)
    ]
    return list(dict.fromkeys(found))


def _in_the_bundle(message: str, bundle: Bundle) -> str:
    """The message with a derived bundle's folder replaced by that of its source."""
    from turnout.compiling import cache_folder

    for root in (bundle.path.resolve() / COMPILED, (cache_folder() / "bundles").resolve()):
        folder = re.escape(str(root)) + r"(?:[/\\][0-9a-f]{12})?[/\\]routes[/\\][0-9a-f]{12}"
        message = re.sub(folder, lambda _: str(bundle.path), message)
    return message


def unavailable(
    error: MachineError, eps: Iterable[str], config: GenaiConfig, bundle: Path
) -> LoadError:
    """The error for an EP that the effective config names and this machine cannot use."""
    named = [ep for ep in eps if ep in error.problem] or list(eps)
    stages = [s for s in config.stages() if any(entry.ep in named for entry in s.providers)]
    facts = {name: error.facts.get(name) for name in ("found", "expected", "where", "fix")}
    facts["where"] = facts["where"] or str(bundle)
    otherwise = f"; otherwise: {facts['fix']}" if facts["fix"] else ""
    facts["fix"] = f"route to what this machine has, with {_routes(named)}{otherwise}"
    return LoadError(f"{_problem(stages, 'cannot be loaded')} {error.problem}", **facts)


def _routes(failed: Sequence[str]) -> str:
    """Options that route to an EP that runs here, other than those that failed."""
    from turnout.machine import Inventory

    try:
        inventory = Inventory.discover()
    except TurnoutError:
        inventory = Inventory.minimal()
    able = [ep.alias for ep in inventory.eps if ep.kinds and ep.name not in failed]
    return " or ".join(f"--ep {alias}" for alias in able)


def failed_run(message: str, doing: str, config: GenaiConfig) -> GenerationError:
    """The error for what the runtime said while generating; `doing` names the step."""
    stages = blame(message, config, plugins_else=False)
    problem = _problem(stages, "failed") if stages else "The model failed."
    fix = _NAMES_FIX if re.search(r"Model (?:in|out)put was not found", message) else None
    return GenerationError(problem, found=tidy(message), where=doing, fix=fix)


def tidy(message: str) -> str:
    """A message on one line, without source positions, at most `MAX_REASON` characters."""
    text = _SOURCE.sub("", _STATUS.sub("", message.strip()))
    text = " ".join(text.split()) or "no reason given"
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."


def blame(message: str, config: GenaiConfig, *, plugins_else: bool = True) -> list[Stage]:
    """The stages that a message is about; with `plugins_else`, those on plugins if it is mute."""
    stages = list(config.stages())
    for mentioned in (_mentions_file, _mentions_ep):
        found = [stage for stage in stages if mentioned(message, stage)]
        if found:
            return found
    if not plugins_else:
        return []
    return [stage for stage in stages if stage.ep != catalog.CPU.name] or stages


def _with_tensor(message: str, config: GenaiConfig, bundle: Bundle) -> list[Stage]:
    names = set(_TENSOR.findall(message))
    return [stage for stage in config.stages() if names and names & _tensors(stage, bundle)]


def _tensors(stage: Stage, bundle: Bundle) -> set[str]:
    try:
        return {tensor.name for tensor in bundle.graph(stage).initializers}
    except TurnoutError:
        return set()


def _mentions_file(message: str, stage: Stage) -> bool:
    if not stage.filename:
        return False
    return re.search(rf"(?:^|[/\\'\"\s]){re.escape(stage.filename)}(?![\w.])", message) is not None


def _mentions_ep(message: str, stage: Stage) -> bool:
    names = set()
    for entry in stage.providers:
        known = catalog.find(entry.ep)
        names |= {entry.name, entry.ep}
        names |= {known.written_name} if known is not None else set()
    names -= {catalog.CPU.name, catalog.CPU.written_name}
    return any(re.search(rf"\b{re.escape(name)}\b", message, re.IGNORECASE) for name in names)


def _problem(stages: Sequence[Stage], what: str) -> str:
    if not stages:
        return f"The bundle {what}."
    names = ", ".join(stage.name for stage in stages)
    eps = ", ".join(dict.fromkeys(catalog.alias_of(stage.ep) for stage in stages))
    if len(stages) == 1:
        return f"Stage {names} {what} on {eps}."
    return f"One of the stages {names} {what} on {eps}."
