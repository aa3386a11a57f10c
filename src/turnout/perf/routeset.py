"""Several routes in one text: `config; ep=cpu; name=fast ep=openvino compile share=ep`.

Routes stand between semicolons or on lines; in a file, a line may end in a comment after #. The
words of a route are the options of the command line, with or without their dashes and with `=` or
a space before the value, quoted as a shell would have it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.compiling.options import CompileOptions
from turnout.errors import UsageError
from turnout.routing.request import CONFIG, SCOPES, RouteRequest, parse_option, parse_stage

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.machine import Inventory
    from turnout.routing import Route

MAX_ROUTES = 32
MAX_TEXT = 1 << 20
EXAMPLE = 'for example --route-set "config; ep=cpu; stage lm_head=openvino"'
_FLAGS = ("config", "reproducible", "compile", "no-compile")
_VALUES = ("name", "ep", "device", "scope", "share", "route")
_LISTS = ("stage", "provider-option", "session-option")


@dataclass(frozen=True)
class Candidate:
    """A route to be measured or verified: its name, what is asked, and what is prepared.

    `saved` names the file of a saved route, which takes the place of what is asked.
    """

    name: str
    request: RouteRequest = field(default_factory=RouteRequest)
    preparing: CompileOptions = field(default_factory=CompileOptions)
    saved: Path | None = None

    def decide(self, bundle: Bundle, machine: Inventory | None) -> Route | None:
        """The route for `bundle`; None where nothing is asked for, and the bundle is left as it is.

        Raises `UsageError` for what cannot be asked of it, `MachineError` for what `machine` (None:
        this one) lacks.
        """
        from turnout.routing import Route
        from turnout.routing import route as decide

        if self.saved is not None:
            return Route.load(self.saved, bundle, machine)
        if self.request == RouteRequest():
            return None
        return decide(bundle, self.request, inventory=machine)


def parse(
    text: str, base: CompileOptions | None = None, *, comments: bool = False
) -> tuple[Candidate, ...]:
    """The routes in `text`; `base` is what they prepare where they say nothing about it.

    `comments`: a # begins one, which ends with its line, as in a file.
    Raises `UsageError` for a word that means nothing, for no route or too many, and for two of
    one name.
    """
    base = base or CompileOptions()
    check_text(text)
    found = tuple(_candidate(part, base) for part in _parts(text, comments=comments))
    check(found)
    return found


def check(candidates: tuple[Candidate, ...]) -> None:
    """Raise `UsageError` for no route or too many, and for two of one name."""
    if not candidates:
        raise UsageError("The set of routes is empty.", expected="one or more routes", fix=EXAMPLE)
    if len(candidates) > MAX_ROUTES:
        raise UsageError(
            "There are too many routes.", found=len(candidates), expected=f"at most {MAX_ROUTES}"
        )
    check_names(candidates)


def check_text(text: str) -> None:
    """Raise `UsageError` for text that no document can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            "The routes are no Unicode text.", found=ascii(text[error.start : error.end])
        ) from error


def check_names(candidates: tuple[Candidate, ...]) -> None:
    """Raise `UsageError` where two routes have one name."""
    names = [candidate.name for candidate in candidates]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"Two routes have the name {name!r}.",
                fix="give one of them another name, as in name=second ep=cpu",
            )


def _parts(text: str, *, comments: bool) -> Iterator[list[str]]:
    """The words of each route."""
    for line in text.splitlines():
        words: list[str] = []
        for word in (*_words(line, comments=comments), ";"):
            if set(word) != {";"}:
                words.append(word)
            elif words:
                yield words
                words = []


def _words(line: str, *, comments: bool) -> list[str]:
    """Words and semicolons of a line, without its comment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";")
    if not comments:
        lexer.commenters = ""
    lexer.whitespace_split = True
    # What a shell takes for escapes stands in paths of Windows.
    lexer.escape = ""
    try:
        return list(lexer)
    except ValueError as error:
        raise UsageError("The set of routes is malformed.", found=error, fix=EXAMPLE) from error


def _candidate(words: list[str], base: CompileOptions) -> Candidate:
    said: dict[str, Any] = {}
    for key, value in _pairs(words):
        if key in _LISTS:
            said.setdefault(key, []).append(value)
        elif key in said:
            raise UsageError(f"A route says {key} twice.", found=" ".join(words))
        else:
            said[key] = value
    _check_alone(said, words)
    request = RouteRequest(
        ep=said.get("ep"),
        device=said.get("device", CONFIG).lower(),
        stages=tuple(parse_stage(value) for value in said.get("stage", ())),
        scope=said.get("scope", "pipeline").lower(),
        provider_options=tuple(parse_option(value) for value in said.get("provider-option", ())),
        session_options=tuple(parse_option(value) for value in said.get("session-option", ())),
        reproducible="reproducible" in said,
    )
    preparing = _preparing(said, base)
    saved = Path(said["route"]) if "route" in said else None
    name = said.get("name") or name_of(request, preparing, saved)
    return Candidate(name, request, preparing, saved)


def name_of(
    request: RouteRequest, preparing: CompileOptions | None = None, saved: Path | None = None
) -> str:
    """The name of a route that has none of its own: its words, in one spelling and order."""
    words = [f"route={saved.name}"] if saved is not None else []
    words += [f"ep={catalog.alias_of(request.ep)}"] if request.ep is not None else []
    words += [f"device={request.device}"] if request.device != CONFIG else []
    for name, ep, device in request.stages:
        on = f"@{device}" if device is not None else ""
        words.append(f"stage {name}={catalog.alias_of(ep)}{on}")
    words += [f"scope={request.scope}"] if request.scope != SCOPES[0] else []
    for kind, options in (
        ("provider-option", request.provider_options),
        ("session-option", request.session_options),
    ):
        for stage, key, value in options:
            words.append(f"{kind} " + (f"{stage}:" if stage is not None else "") + f"{key}={value}")
    words += ["reproducible"] if request.reproducible else []
    words = words or [CONFIG]
    if preparing is not None:
        words += ["compile"] if preparing.compile else []
        words += [f"share={preparing.share}"] if preparing.share is not None else []
    return " ".join(words)


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Options of a route with their values, "" for a flag."""
    waiting = iter(words)
    for word in waiting:
        key, equals, value = word.removeprefix("--").partition("=")
        key = key.replace("_", "-")
        if key in _FLAGS and not equals:
            yield key, ""
        elif key in (*_VALUES, *_LISTS):
            value = value if equals else next(waiting, "")
            if not value:
                raise UsageError(
                    f"A route says {key} without a value.", found=" ".join(words), fix=EXAMPLE
                )
            yield key, value
        else:
            raise UsageError(
                "A route says something that is not known.",
                found=repr(word),
                expected=", ".join(_FLAGS)
                + ", or one of these with a value: "
                + ", ".join((*_VALUES, *_LISTS)),
                fix=EXAMPLE,
            )


def _check_alone(said: dict[str, Any], words: list[str]) -> None:
    """ "config" and a saved route say all there is to say about a route."""
    routing = {"ep", "device", "scope", "reproducible", *_LISTS} & set(said)
    for alone, others in (
        ("config", routing | ({"route"} & set(said))),
        ("route", routing),
        ("no-compile", {"compile"} & set(said)),
    ):
        if alone in said and others:
            raise UsageError(
                f"A route says {alone}, and something else beside it.",
                found=" ".join(words),
                fix=f"leave out {alone}, or the rest",
            )


def _preparing(said: dict[str, Any], base: CompileOptions) -> CompileOptions:
    from dataclasses import replace

    if "no-compile" in said:
        # What sharing it implies goes with it.
        base = replace(base, compile=False, require_compiled=False)
    share = said["share"].lower() if "share" in said else base.share
    return replace(base, compile=base.compile or "compile" in said, share=share)
