"""Checks of files that are missing, outside, of the wrong kind, or unused (codes T30x).

What the runtime does with each was measured by tests/test_checking_files.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from turnout import catalog
from turnout.bundle import DERIVED_MARK, Bundle, Stage
from turnout.bundle.jsontext import Path as JsonPath
from turnout.bundle.modeltypes import unopened_sections
from turnout.checking import libraries, unused
from turnout.checking.file_rules import (
    DERIVED,
    FILE_RULES,
    LINKED_WEIGHTS,
    MISSING,
    NAMED,
    NOT_REGULAR,
    OTHER_CASE,
    OUTSIDE,
    UNREADABLE,
)
from turnout.checking.findings import Finding, Place, Rule
from turnout.checking.locating import (
    Located,
    file_path,
    is_refused_by_parser,
    locate,
    relative_name,
)
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import listed
from turnout.errors import BundleError
from turnout.files import is_file

RULES = FILE_RULES
# Keys of a section that name a file which is opened only when it is needed.
_LATER = ("config_filename", "adapter_filename")
_FETCH = "fetch or build the bundle again"


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about files that are missing, outside, of the wrong kind, or unused."""
    if subject.bundle is not None:
        yield from _check(subject, subject.bundle)


def _check(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    if is_file(bundle.path / DERIVED_MARK):
        yield DERIVED.at(
            DERIVED_MARK,
            "This is a derived bundle, and none by itself.",
            expected="the bundle that it was derived from",
            fix="give that bundle instead",
        )
    unopened = unopened_sections(subject.config.model_type)
    for stage in subject.stages:
        if stage.section not in unopened:
            yield from _graph(subject, bundle, stage)
    for path in _sections(subject):
        yield from _named_later(subject, bundle, path)
    yield from libraries.check(subject, bundle)
    yield from unused.check(subject, bundle)
    yield from _linked_weights(subject, bundle)


def _graph(subject: Subject, bundle: Bundle, stage: Stage) -> Iterator[Finding]:
    path = file_path(subject, stage)
    place = subject.place(path)
    if not stage.filename:
        yield MISSING.at(
            place,
            f"The stage {stage.name!r} names no file.",
            expected="the name of an ONNX file",
        )
        return
    if is_refused_by_parser(path, stage.filename):
        return
    located = locate(bundle, stage.filename)
    if located.path is None:
        what = f"The graph of the stage {stage.name!r}, {stage.filename[:200]},"
        yield problem_with(located, what, place, MISSING, OUTSIDE)
        return
    try:
        bundle.graph(stage)
    except BundleError as error:
        facts = error.facts
        offset = facts.get("where", "").rpartition(", byte ")
        at = f" at byte {offset[2]}" if offset[1] else ""
        yield UNREADABLE.at(
            relative_name(bundle, located.path),
            error.problem,
            found=(facts["found"] + at) if "found" in facts else None,
            expected=facts.get("expected"),
            fix=facts.get("fix", _FETCH),
        )


def problem_with(
    located: Located, what: str, place: Place | str, missing: Rule, outside: Rule
) -> Finding:
    """The finding for a file that cannot be used; `what` names it."""
    if located.problem == "outside":
        return outside.at(
            place,
            f"{what} is no path inside the bundle.",
            found=located.found,
            expected="a relative path without ..",
            fix="put the file into the bundle",
        )
    if located.problem == "link":
        return outside.at(
            place,
            f"{what} is a link that leads out of the bundle.",
            found=located.found,
            expected="a file in the bundle",
            fix="put the file itself in the place of the link",
        )
    if located.problem == "kind":
        return NOT_REGULAR.at(
            place, f"{what} is no regular file.", found=located.found, expected="a file"
        )
    if located.problem == "case":
        return OTHER_CASE.at(
            place,
            f"{what} is there under another case only, which works on Windows and not on Linux.",
            found=located.found,
            fix="write the name as the file has it, or rename the file",
        )
    return missing.at(
        place,
        f"{what} is missing.",
        found=located.found,
        expected="a file of that name",
        fix=_FETCH,
    )


def _sections(subject: Subject) -> Iterator[JsonPath]:
    """Every object that names graphs: the sections of the model."""
    model = subject.config.get(("model",))
    for name, value in model.items() if isinstance(model, dict) else ():
        if isinstance(value, dict):
            yield ("model", name)


def _named_later(subject: Subject, bundle: Bundle, section: JsonPath) -> Iterator[Finding]:
    for key in _LATER:
        value = subject.config.get((*section, key))
        if not isinstance(value, str) or not value:
            continue
        if is_refused_by_parser((*section, key), value):
            continue
        located = locate(bundle, value)
        if located.path is None:
            what = f"The file that {section[-1]}.{key} names, {value[:200]},"
            yield problem_with(located, what, subject.place((*section, key)), NAMED, OUTSIDE)


def _linked_weights(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    """Weights behind the links of a hub's cache, which some EPs do not follow."""
    if bundle.blobs is None:
        return
    names = [
        stage.name
        for stage in subject.stages
        for graph in [subject.graphs.get(stage.name)]
        if graph is not None
        and any(item.external and graph.is_read(item) for item in graph.initializers)
        and any((ep := catalog.find(entry.ep)) and ep.refuses_links for entry in stage.providers)
    ]
    if names:
        yield LINKED_WEIGHTS.at(
            subject.place(("model",)),
            f"Weights of {listed(names)} are behind links, which their EP refuses.",
            found="a snapshot in a hub's cache",
            expected="files, where another program than Turnout runs it",
            fix="run it with Turnout, or copy the snapshot with its links followed (`cp -rL`)",
        )
