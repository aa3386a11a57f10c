"""Groups of options that several commands take: a dataclass each, spelled out once.

    @app.command()
    @taking(asked=RouteOptions)
    def explain(bundle: ..., *, asked: RouteOptions) -> None: ...

The command line's library reads a command's options from its signature. `taking` gives it the
fields of the groups there, in the place of the parameter that gets them as one value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_type_hints


def taking(**groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameters named in `groups` are options, the fields of dataclasses."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        names = {name: [item.name for item in fields(group)] for name, group in groups.items()}

        @functools.wraps(command)
        def call(**given: Any) -> None:
            for name, group in groups.items():
                given[name] = group(**{field: given.pop(field) for field in names[name]})
            command(**given)

        parameters = list(_parameters(command, groups))
        # The library would otherwise read the signature of what is wrapped.
        del call.__wrapped__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {item.name: item.annotation for item in parameters}
        return call

    return wrap


def _parameters(
    command: Callable[..., None], groups: dict[str, type]
) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            yield parameter.replace(
                annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY
            )
            continue
        options = get_type_hints(group, include_extras=True)
        for item in fields(group):
            yield inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=item.default,
                annotation=options[item.name],
            )
