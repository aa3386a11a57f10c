"""Checks of a config against a machine's inventory (codes T42x). Without one, none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from turnout import catalog
from turnout.bundle.jsontext import Path
from turnout.catalog.grammars import Device
from turnout.checking.drafts import Draft, placed
from turnout.checking.findings import Finding, Rule
from turnout.checking.holders import Entry, entry_of, holders
from turnout.checking.subject import Subject
from turnout.machine.plugins import how_to_install
from turnout.routing.judged import generation_of
from turnout.routing.options import device_of
from turnout.routing.targets import available
from turnout.routing.warnings import only_compiles

if TYPE_CHECKING:
    from turnout.bundle import ProviderEntry, Stage
    from turnout.machine import InstalledEp, Inventory

NOT_INSTALLED = Rule(
    "T420",
    "error",
    "route",
    "An EP that the machine lacks",
    why='The model does not load there ("... is not supported in this build"). Nothing falls back'
    " to another EP.",
    bad="a stage on QNN, and a machine with an Intel processor",
    good="pip install onnxruntime-qnn, or --ep openvino on that machine",
)
BROKEN = Rule(
    "T421",
    "error",
    "route",
    "An EP that is installed but broken",
    why="Its library does not load on the machine, so no stage on it does.",
    bad="a plugin without a library that it needs, or made for another onnxruntime",
    good="the package installed again, in versions that belong together",
)
NO_DEVICE = Rule(
    "T422",
    "error",
    "route",
    "A device that the machine lacks",
    why='The EP is there, but finds no such device, and the model does not load ("No OpenVINO'
    ' devices matched"). Another device is never taken in its place.',
    bad='{"model": {"decoder": {"session_options": {"provider_options":'
    ' [{"OpenVINO": {"device_type": "NPU"}}]}}}}, and a machine without an NPU',
    good="--device gpu on that machine, or a bundle made for it",
)
COMPILE_ONLY = Rule(
    "T423",
    "warning",
    "route",
    "A device on which the EP can only compile",
    why="The EP lists it to prepare models for other machines. The bundle may load, and nearly"
    " all of it runs on the CPU EP.",
    bad="a stage on QNN, and an x86-64 machine, where QNN lists the CPU",
    good="--ep cpu on that machine, or a machine with the NPU",
)

RULES: tuple[Rule, ...] = (NOT_INSTALLED, BROKEN, NO_DEVICE, COMPILE_ONLY)


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about what a machine lacks; none where `subject` has no inventory."""
    if subject.inventory is not None:
        yield from placed(subject, _drafts(subject, subject.inventory))


def _drafts(subject: Subject, inventory: Inventory) -> Iterator[Draft]:
    found = holders(subject)
    users: dict[str, list[str]] = {}
    places: dict[str, Entry] = {}
    for holder in found:
        for entry in holder.entries:
            places.setdefault(entry.ep, entry)
            users.setdefault(entry.ep, []).extend(stage.name for stage in holder.stages)
    for ep, entry in places.items():
        yield from _installed(inventory, entry, ", ".join(dict.fromkeys(users[ep]))[:200])
    for stage in subject.stages:
        if stage.takes_options:
            yield from _device(inventory, stage, entry_of(found, stage, stage.ep))


def _installed(inventory: Inventory, entry: Entry, users: str) -> Iterator[Draft]:
    if (entry.known is not None and entry.known.builtin) or catalog.is_idle(entry.name):
        return
    installed, alias = inventory.ep(entry.name), catalog.alias_of(entry.name)
    where = f" (stages: {users})" if users else ""
    if installed is None:
        yield Draft(
            NOT_INSTALLED,
            entry.path,
            f"The execution provider {alias[:80]} is not installed on the machine{where}.",
            found=f"the machine has {available(inventory)}",
            fix=how_to_install(entry.ep, inventory.platform.word or None),
        )
    elif installed.problem is not None:
        yield Draft(
            BROKEN,
            entry.path,
            f"The execution provider {alias} is installed on the machine but broken{where}.",
            found=installed.problem,
            expected="a library that loads",
            fix=installed.fix,
        )


def _device(inventory: Inventory, stage: Stage, place: Entry | None) -> Iterator[Draft]:
    installed = inventory.ep(stage.ep)
    entry = next((entry for entry in stage.providers if entry.ep == stage.ep), None)
    if installed is None or installed.problem is not None or entry is None or place is None:
        return
    if only_compiles(stage, inventory):
        yield Draft(
            COMPILE_ONLY,
            place.path,
            f"{installed.alias} can compile for stage {stage.name} on the machine but not run it.",
            found=", ".join(f"{d.kind} (compile only)" for d in installed.devices[:8]),
            fix="route the stage to another EP, or run it on a machine that has the device",
        )
        return
    generation = generation_of(stage.ep, inventory)
    device = device_of(entry, entry.ep, generation)
    wanted = _unmatched(entry, installed, generation)
    if wanted is None and (device is None or device in installed.kinds):
        return
    here = _named(installed) or installed.kinds
    yield Draft(
        NO_DEVICE,
        (*place.path, *_selecting(place)),
        f"{installed.alias} finds no {wanted or device} for stage {stage.name} on the machine.",
        found=f"{installed.alias} on {', '.join(here) or 'no device'}; the machine has"
        f" {available(inventory)}",
        expected=f"one of {', '.join(here)}" if here else None,
        fix=f"route it with --device {installed.kinds[0]}"
        if installed.kinds
        else f"{catalog.device_advice(installed.name)}, or route the stage to another EP",
    )


def _selecting(place: Entry) -> Path:
    """The option of an entry that selects its device, if it has one."""
    known = place.known
    return next(
        ((key,) for key in (known.device_options if known else ()) if key in place.options), ()
    )


def _unmatched(entry: ProviderEntry, installed: InstalledEp, generation: str) -> str | None:
    """The device that an option names and no device here is called; None where one is.

    onnxruntime-genai takes the first device whose own name contains the text, so GPU.0 is not
    found where the only one is called GPU.
    """
    known, names = catalog.find(entry.ep), _named(installed)
    if known is None or not names or generation != catalog.PLUGIN:
        return None
    for name in known.device_options:
        option = known.option(name, generation)
        if option is None or not isinstance(option.grammar, Device):
            continue
        text = entry.options.get(name)
        if text is not None and option.grammar.takes(text) and not any(text in n for n in names):
            return text
    return None


def _named(installed: InstalledEp) -> tuple[str, ...]:
    """What OpenVINO calls the devices of an inventory: `CPU`, `GPU.0`."""
    names = (device.metadata.get("ov_device") for device in installed.devices)
    return tuple(dict.fromkeys(name for name in names if name))
