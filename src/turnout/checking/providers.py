"""Checks of EPs and their options in a config, whatever the machine (codes T40x, T41x, T43x).

How the options of a stage are read was measured; what an EP makes of its own is in the catalog,
by generation: that of the machine where one is given, else a plugin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from turnout import catalog
from turnout.bundle.jsontext import Path
from turnout.bundle.session_keys import CONTEXT_PATH, INITIALIZER_FOLDER
from turnout.catalog import Verdict, judge
from turnout.checking import provider_graphs, session_values
from turnout.checking import provider_rules as rules
from turnout.checking.drafts import Draft, placed
from turnout.checking.findings import Finding, Rule
from turnout.checking.holders import OPTIONS, PROVIDERS, Entry, Holder, entry_of, holders
from turnout.checking.subject import Subject
from turnout.routing.judged import generation_of
from turnout.routing.warnings import NO_FALLBACK, unreadable_eps

RULES: tuple[Rule, ...] = rules.RULES

_RULE_OF: Mapping[str, Rule] = {
    "refused": rules.REFUSED,
    "valueless": rules.VALUELESS,
    "ignored": rules.IGNORED,
    "deprecated": rules.IGNORED,
    "unknown": rules.UNKNOWN,
    "missing": rules.MISSING,
}
_ABSOLUTE = re.compile(r"/|[A-Za-z]:[\\/]|\\\\")
# Session options whose value is a path; onnxruntime-genai reads the first two below the bundle.
_PATH_OPTIONS = (
    CONTEXT_PATH,
    INITIALIZER_FOLDER,
    "custom_ops_library",
)
# Two sockets of the largest processors have fewer; a thousand threads take minutes to start.
_MOST_THREADS = 512
_MOST_CHARACTERS = 1 << 16


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about EPs and their options in a config, whatever the machine."""
    yield from placed(subject, _drafts(subject))


def _drafts(subject: Subject) -> Iterator[Draft]:
    found = holders(subject)
    for holder in found:
        yield from _entries(subject, holder)
        for part in _PARTS:
            yield from part(holder)
    yield from provider_graphs.check(subject, found)
    yield from session_values.check(subject, found)
    yield from _on_decoder(subject, found)
    yield from _missing(subject, found)
    yield from _no_fallback(subject)
    yield from _unread(subject)


def _forms(holder: Holder) -> Iterator[Draft]:
    path = (*holder.path, PROVIDERS)
    if isinstance(holder.providers, str):
        yield Draft(
            rules.AS_TEXT,
            path,
            "provider_options is text, so no EP is named by it.",
            found=repr(holder.providers[:80]),
            expected='an array such as [{"OpenVINO": {}}]',
            fix="write an array with an object for each EP, or remove it",
        )
    elements = holder.providers if isinstance(holder.providers, list) else []
    # One that stands alone is how several builders write "the CPU EP".
    for index, element in enumerate(elements if any(elements) else ()):
        if element == {}:
            yield Draft(
                rules.EMPTY,
                (*path, index),
                "An element of provider_options names no EP.",
                found="{}",
                fix="name an EP, or remove the element",
            )


def _entries(subject: Subject, holder: Holder) -> Iterator[Draft]:
    spellings: dict[str, Entry] = {}
    for entry in holder.entries:
        first = spellings.setdefault(entry.ep, entry)
        if first.name != entry.name and _registers(first) and _registers(entry):
            yield _second(subject, holder, first, entry)
        yield from _entry(subject, entry)
    order = [name for name in spellings if name != catalog.CPU.name]
    if len(order) > 1 and len(holder.stages) > 0:
        yield Draft(
            rules.SEVERAL,
            (*holder.path, PROVIDERS),
            f"Several EPs are named for {holder.names}; each takes what those before it leave.",
            found=", ".join(catalog.alias_of(name) for name in order),
        )


def _second(subject: Subject, holder: Holder, first: Entry, entry: Entry) -> Draft:
    """A second spelling: refused on a decoder of one graph, passed over on a stage."""
    whole = any(stage.path == ("model", "decoder") for stage in subject.stages)
    refused = whole and holder.path == ("model", "decoder", OPTIONS)
    return Draft(
        rules.TWICE if refused else rules.SPELLING,
        entry.path,
        f"{entry.name} is the same EP as {first.name}, and is "
        + ("registered twice." if refused else "passed over with its options."),
        found=f"{first.name}, {entry.name}",
        expected="one entry for each EP",
        fix=f"put its options into the entry {first.name}",
    )


def _registers(entry: Entry) -> bool:
    """Whether the runtime registers the EP itself; a variant (`NAME.AUTO`) is an EP of its own."""
    return entry.known is not None and entry.known.takes_options and "." not in entry.name


def _entry(subject: Subject, entry: Entry) -> Iterator[Draft]:
    if entry.known is None:
        if subject.inventory is None and not catalog.is_idle(entry.name):
            yield Draft(
                rules.UNKNOWN_EP,
                entry.path,
                f"The EP {entry.name[:80]!r} is not known to Turnout.",
                found=repr(entry.name[:80]),
                expected="the name of an EP, or of a plugin that is registered",
                fix="see which names are known with: turnout devices",
            )
        return
    if entry.known.spellings and "." not in entry.name:
        yield from _named(entry, entry.known.spellings)
    if not entry.known.takes_options:
        if entry.options:
            yield Draft(
                rules.CPU_OPTIONS,
                entry.path,
                f"The {entry.known.alias.upper()} EP takes no options.",
                found=", ".join(entry.options)[:120],
                fix="remove the options, or the whole entry",
            )
        return
    generation = generation_of(entry.ep, subject.inventory)
    for verdict in judge(entry.known, entry.options, generation, complete=False):
        yield _told((*entry.path, verdict.option or ""), verdict)


def _named(entry: Entry, spellings: tuple[str, ...]) -> Iterator[Draft]:
    if entry.name not in spellings:
        yield Draft(
            rules.NAME,
            entry.path,
            f"onnxruntime-genai does not know an EP by the name {entry.name[:80]}.",
            found=entry.name[:80],
            expected=" or ".join(spellings),
            fix=f"write {spellings[0]}",
        )


def _told(path: Path, verdict: Verdict) -> Draft:
    return Draft(
        _RULE_OF[verdict.fate],
        path,
        f"{verdict.problem[:1].upper()}{verdict.problem[1:]}."
        if verdict.fate not in {"refused", "valueless", "ignored", "missing"}
        else f"{verdict.problem}.",
        found=verdict.found,
        expected=verdict.expected,
        fix=verdict.fix,
    )


def _missing(subject: Subject, found: tuple[Holder, ...]) -> Iterator[Draft]:
    """Options that no part of what takes effect for a stage gives."""
    told: set[Path] = set()
    for stage in subject.stages:
        for entry in stage.providers:
            known, place = catalog.find(entry.name), entry_of(found, stage, entry.ep)
            if known is None or place is None or entry.device_filter or place.path in told:
                continue
            for verdict in judge(known, entry.options, generation_of(entry.ep, subject.inventory)):
                if verdict.fate == "missing":
                    told.add(place.path)
                    yield _told(place.path, verdict)


def _on_decoder(subject: Subject, found: tuple[Holder, ...]) -> Iterator[Draft]:
    """EPs of the decoder itself, whose memory the stages of its pipeline do not read."""
    unreadable = {entry.name for entry in unreadable_eps(subject.config)}
    own = next((h for h in found if h.path == ("model", "decoder", OPTIONS)), None)
    for entry in own.entries if own is not None else ():
        if entry.name not in unreadable or entry.known is None:
            continue
        piped = [s for s in subject.stages if s.in_decoder]
        yield Draft(
            rules.ON_DECODER,
            entry.path,
            f"{entry.known.alias} is set for the decoder of a pipeline, whose stages cannot read"
            " its memory.",
            found=entry.name,
            expected="EPs in the session_options of the stages",
            fix="move the entry to the stages that shall run on it:"
            f" {', '.join(stage.name for stage in piped)[:120]}",
        )


def _no_fallback(subject: Subject) -> Iterator[Draft]:
    key = NO_FALLBACK
    for stage in subject.stages:
        if stage.ep != catalog.CPU.name or stage.effective_options.get(key) != "1":
            continue
        own = (*stage.path, OPTIONS, key)
        inherited: Path = ("model", stage.options_section, OPTIONS, key)
        yield Draft(
            rules.NO_FALLBACK,
            own if stage.session_options.get(key) == "1" else inherited,
            f"Stage {stage.name} runs on the CPU EP and forbids it.",
            found=f"{key}=1 without another EP",
            fix="remove the option, or name an EP",
        )


def _unread(subject: Subject) -> Iterator[Draft]:
    for stage in subject.stages:
        if not stage.takes_options and stage.session_options:
            yield Draft(
                rules.UNREAD,
                (*stage.path, OPTIONS),
                f"The runtime takes no session options for stage {stage.name}.",
                found=", ".join(stage.session_options)[:120],
                fix="remove them",
            )


def _session_options(holder: Holder) -> Iterator[Draft]:
    profile = holder.options.get("enable_profiling")
    if isinstance(profile, str) and holder.stages:
        yield Draft(
            rules.PROFILING,
            (*holder.path, "enable_profiling"),
            "Every run writes a profile.",
            found=f"enable_profiling={profile[:80]}",
            fix="remove the option",
        )


def _threads(holder: Holder) -> Iterator[Draft]:
    for key in ("intra_op_num_threads", "inter_op_num_threads"):
        count = holder.options.get(key)
        if not isinstance(count, int | float) or isinstance(count, bool):
            continue
        odd = not 0 <= count <= _MOST_THREADS
        if odd or (key.startswith("inter") and count > 1):
            yield Draft(
                rules.THREADS,
                (*holder.path, key),
                f"{key} is out of the ordinary." if odd else f"{key} has no effect.",
                found=f"{key}={count}"[:80],
                expected=f"a number from 0 (as many as there are cores) to {_MOST_THREADS}"
                if odd
                else "0, 1 or nothing: nodes run one after another",
            )


def _absolute(holder: Holder) -> Iterator[Draft]:
    values: list[tuple[Path, Any]] = [
        ((*holder.path, key), holder.options.get(key))
        for key in (*_PATH_OPTIONS, "enable_profiling")
    ]
    values += [
        ((*entry.path, key), value)
        for entry in holder.entries
        for key, value in entry.options.items()
    ]
    for path, value in values:
        found = _absolute_in(value) if isinstance(value, str) else None
        if found is not None:
            yield Draft(
                rules.ABSOLUTE,
                path,
                f"{path[-1]} holds an absolute path.",
                found=repr(found[:120]),
                expected="a path that holds on every machine",
                fix="write a path relative to the bundle, or remove the option",
            )


def _absolute_in(text: str) -> str | None:
    """The absolute path in a value, also inside a JSON document; None without one."""
    if _ABSOLUTE.match(text):
        return text
    if not text.startswith("{") or len(text) > _MOST_CHARACTERS:
        return None
    try:
        waiting = [json.loads(text)]
    except (ValueError, RecursionError):
        return None
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and _ABSOLUTE.match(value):
            return value
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return None


_PARTS: tuple[Callable[[Holder], Iterator[Draft]], ...] = (
    _forms,
    _session_options,
    _threads,
    _absolute,
)
