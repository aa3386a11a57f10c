"""Offline targets: compiling for a device that is not here.

`soc_model=60,htp_arch=73` describes one. It is told to the EP in provider options, and it is part
of the store's key, where the device of this machine would stand. It does not go into the config
that is loaded: on the device, the device speaks for itself.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.errors import CompileError, EpUnavailableError, UsageError

if TYPE_CHECKING:
    from turnout.bundle import GraphFile
    from turnout.machine import Inventory

_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
# In the record of a compiled graph, and in the options themselves: not known.
_UNKNOWN = "0"
_SHOWN = 80


def parse(texts: str | Iterable[str]) -> dict[str, str]:
    """The options of `KEY=VALUE,KEY=VALUE`, given once or several times; {} for nothing.

    Raises `UsageError` for what is no such pair, and for a key that stands twice.
    """
    found: dict[str, str] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        for part in text.split(","):
            key, equals, value = (word.strip() for word in part.partition("="))
            if not (equals and key and _VALUE.fullmatch(value)):
                raise UsageError(
                    "The target cannot be read.",
                    found=repr(part[:_SHOWN]),
                    expected="KEY=VALUE,KEY=VALUE, such as soc_model=60,htp_arch=73",
                )
            if key in found:
                raise UsageError(
                    f"The target says {key[:_SHOWN]} twice.",
                    found=f"{found[key]} and {value}",
                    expected="one device",
                )
            found[key] = value
    return found


def validate(ep: str, target: Mapping[str, str]) -> None:
    """Nothing, if `ep` compiles for such a target ({}: this machine). Raises `UsageError`.

    What the EP itself makes of the values is seen when it has compiled: see `took_effect`.
    """
    if not target:
        return
    known, offline = catalog.find(ep), _offline(ep)
    assert known is not None
    for name, value in target.items():
        if name not in offline.options:
            raise UsageError(
                f"A target of {known.alias} is not described by {name[:_SHOWN]}.",
                found=f"{name[:_SHOWN]}={value[:_SHOWN]}",
                expected=", ".join(offline.options),
            )
        option = known.option(name)
        grammar = option.grammar if option is not None else None
        if value == _UNKNOWN or (grammar is not None and not grammar.takes(value)):
            raise UsageError(
                f"A target of {known.alias} cannot have this {name}.",
                found=f"{name}={value[:_SHOWN]}",
                expected=grammar.expected if grammar is not None and grammar.expected else None,
                fix="write the number alone" if re.search(r"[0-9]", value) else None,
            )
    if offline.required and not any(name in target for name in offline.required):
        raise UsageError(
            f"The target of {known.alias} names no device.",
            found=_said(target),
            expected=" or ".join(offline.required),
        )


def for_ep(ep: str, target: Mapping[str, str]) -> dict[str, str]:
    """The target as far as it concerns `ep`: {} for one that compiles for this machine alone.

    Raises `UsageError` for a target that the EP cannot have.
    """
    known = catalog.find(ep)
    if known is None or known.target is None:
        return {}
    validate(ep, target)
    return dict(target)


def require_taken(taken: Iterable[Mapping[str, str]], target: Mapping[str, str]) -> None:
    """Raise `UsageError` for a target that no job takes."""
    if target and not any(taken):
        raise UsageError(
            "The target describes a device, and no stage is compiled for it.",
            found=_said(target),
            expected=f"a stage on {_able()}",
            fix="route a stage there with --ep or --stage",
        )


def provider_options(
    ep: str, options: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, str]:
    """What the EP is given to compile for `target`: its options, and those that describe it.

    Raises `UsageError` for a target that the EP cannot have, or that the options contradict.
    """
    validate(ep, target)
    if not target:
        return dict(options)
    known, offline = catalog.find(ep), _offline(ep)
    assert known is not None
    for name, value in target.items():
        if options.get(name, value) != value:
            raise UsageError(
                f"The target and the provider options of {known.alias} differ.",
                found=f"{name}={value} and {name}={options[name][:_SHOWN]}",
                expected="the same in both",
                fix=f"leave {name} out of one of them",
            )
    chosen: Mapping[str, str] = {}
    if known.required_options and not any(name in options for name in known.required_options):
        chosen = known.defaults.get(offline.device, {})
    return {**chosen, **options, **target}


def inventory_with(inventory: Inventory, ep: str, target: Mapping[str, str]) -> Inventory:
    """The inventory as if the target were here, so that a route can be decided for it.

    Raises `UsageError` for a target that the EP cannot have. An EP that is not installed, or is
    broken, stays so.
    """
    import msgspec

    from turnout.machine.inventory import Device

    validate(ep, target)
    installed = inventory.ep(ep)
    if not target or installed is None or installed.problem is not None:
        return inventory
    there = Device(kind=_offline(ep).device, metadata=dict(target))  # type: ignore[arg-type]
    others = tuple(device for device in installed.devices if device.kind != there.kind)
    changed = msgspec.structs.replace(installed, devices=(there, *others))
    eps = tuple(changed if found is installed else found for found in inventory.eps)
    return msgspec.structs.replace(inventory, eps=eps)


def took_effect(graph: GraphFile, ep: str, target: Mapping[str, str]) -> bool:
    """Whether a compiled graph says that it is for the target; False where it says nothing.

    An EP passes over a value that it does not know, with a line in its log, and compiles for
    another device. Raises `CompileError` where the graph's own record shows that.
    """
    record = graph.compatibility.get(catalog.canonical(ep))
    if not target or record is None:
        return False
    offline = _offline(ep)
    fields = record.split(":")
    if fields[0] != offline.record_version:
        return False
    for name, asked in target.items():
        at = offline.record.get(name)
        if at is None or at >= len(fields):
            continue
        # A name ("SM8550") is recorded as its number.
        if fields[at] == _UNKNOWN or (asked.isdigit() and int(asked) != _number(fields[at])):
            raise CompileError(
                f"The EP {catalog.alias_of(ep)} did not compile for the target.",
                found=f"{name}={fields[at]} in what it wrote ({record[:_SHOWN]})",
                expected=f"{name}={asked}",
                where=graph.path,
                fix=f"check {name}: this version of the EP may not know it",
            )
    return True


def backend_library(ep: str, options: Mapping[str, str], plugin: Path | str) -> Path | None:
    """The library, in the folder of the EP's plugin, that options choose to do the work.

    None for an EP without such libraries. It is loaded as native code, and the options may be a
    bundle's own: raises `CompileError` for a path that leads out of the folder of the plugin,
    `EpUnavailableError` for a library that is not in it.
    """
    known = catalog.find(ep)
    option = next((o for o in known.backend_options if o in options), None) if known else None
    if known is None or option is None:
        return None
    folder, value = Path(plugin).parent, options[option]
    stem = known.backends.get(value)
    path = folder / (_file_name(stem) if stem is not None else value)
    bare = PurePosixPath(value).name == value == PureWindowsPath(value).name
    inside = Path(value).is_absolute() and path.resolve().parent == folder.resolve()
    if stem is None and not (bare or inside):
        raise CompileError(
            f"The option {option} of {known.alias} names a library outside of its plugin.",
            found=value[:_SHOWN],
            expected=f"one of {', '.join(known.backends)}, or the name of a library in {folder}",
        )
    if not path.is_file():
        raise EpUnavailableError(
            f"The plugin of {known.alias} has no such library.",
            found=f"{option}={value[:_SHOWN]}",
            expected=path,
            fix=f"choose one of {', '.join(_present(known, folder)) or 'none'}",
        )
    return path


def _present(known: catalog.Ep, folder: Path) -> list[str]:
    return [word for word, stem in known.backends.items() if (folder / _file_name(stem)).is_file()]


def _file_name(stem: str) -> str:
    return f"{stem}.dll" if sys.platform == "win32" else f"lib{stem}.so"


def _offline(ep: str) -> catalog.OfflineTarget:
    known = catalog.find(ep)
    if known is None or known.target is None:
        raise UsageError(
            f"The EP {catalog.alias_of(ep)} compiles for the devices of this machine alone.",
            expected=f"a target with {_able()}",
            fix="compile on the machine that has the device",
        )
    return known.target


def _able() -> str:
    return " or ".join(found.alias for found in catalog.EPS if found.target is not None)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _said(target: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in target.items())
