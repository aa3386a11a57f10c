"""How the values of provider options are written: each grammar is a value that reads text.

A grammar says three things of a text: whether it `takes` it, what it `expected`, and, where it
can tell, a `fix`. Where it takes a text that will not do what it seems to ask, it has a `doubt`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from turnout.catalog.devices import MODES, meant

# A value that is longer is not read: no option needs as much.
MOST_CHARACTERS = 1 << 20


class Grammar:
    """How values of an option are written; this one takes anything."""

    @property
    def expected(self) -> str:
        """What may be written, as a phrase."""
        return "text"

    def takes(self, text: str) -> bool:  # noqa: ARG002
        """Whether it may be written."""
        return True

    def doubt(self, text: str) -> str | None:  # noqa: ARG002
        """What a text that it takes will not do, as a sentence; None for nothing."""
        return None

    def fix(self, text: str) -> str | None:  # noqa: ARG002
        """What to write instead of a text that it does not take, as a phrase."""
        return None


@dataclass(frozen=True)
class Words(Grammar):
    """One of some words; `folded`: in any case."""

    words: tuple[str, ...] = ()
    folded: bool = False

    @property
    def expected(self) -> str:
        """The words."""
        words = [word or '""' for word in self.words]
        return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]

    def takes(self, text: str) -> bool:
        """Whether it is one of them."""
        return (text.lower() if self.folded else text) in self.words

    def fix(self, text: str) -> str | None:
        """The word that differs in case or spaces alone."""
        near = [word for word in self.words if word and word.lower() == text.strip().lower()]
        return f"write {near[0]}" if near else None


@dataclass(frozen=True)
class Number(Grammar):
    """A whole number, from `least` to `most` (None: without bound)."""

    least: int | None = 0
    most: int | None = None

    @property
    def expected(self) -> str:
        """Its range."""
        if self.least is not None and self.most is not None:
            return f"a whole number from {self.least} to {self.most}"
        return "a whole number" + (f", {self.least} or more" if self.least is not None else "")

    def takes(self, text: str) -> bool:
        """Whether it is one, in digits."""
        if not re.fullmatch(r"-?[0-9]{1,20}", text):
            return False
        value = int(text)
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )


@dataclass(frozen=True)
class Device(Grammar):
    """OpenVINO's `device_type`, by the whole grammar or, `single`, as one device."""

    single: bool = False

    @property
    def expected(self) -> str:
        """The forms."""
        one = "CPU, GPU, GPU.N or NPU"
        return f"one device: {one}" if self.single else f"{one}, or AUTO:, HETERO: or MULTI: list"

    def takes(self, text: str) -> bool:
        """Whether it names devices; `single`: whether a device's name can contain it."""
        if not self.single:
            return text == text.upper() and meant(text) is not None
        # Looked up as a part of a device's name, so "" and "PU" find the first one that is there.
        return _is_part_of_device(text) or re.fullmatch(r"GPU\.[0-9]{1,4}", text) is not None

    def doubt(self, text: str) -> str | None:
        """A suffix that is deprecated, or a part of a name, which means whatever comes first."""
        if self.single and text not in {"CPU", "GPU", "NPU"} and _is_part_of_device(text):
            return "it is no device's name, and the first device whose name contains it is taken"
        selection = meant(text)
        if not self.single and selection is not None and selection.precision is not None:
            return "a precision after the device is deprecated"
        return None

    def fix(self, text: str) -> str | None:
        """The device that is meant, where one is."""
        selection = meant(text)
        if selection is None or not selection.devices:
            return None
        if selection.mode is not None:
            return f"choose one of {', '.join(selection.devices)}" if self.single else None
        return f"write {selection.devices[0]}"


@dataclass(frozen=True)
class Properties(Grammar):
    """OpenVINO's `load_config`: a JSON object of properties by device, or a path of such a file.

    `known` are properties of `device` whose values are known; others are taken as they are, for
    which there are depends on the version and on the device.
    """

    device: str = ""
    known: tuple[tuple[str, Grammar], ...] = ()

    @property
    def expected(self) -> str:
        """The form."""
        return 'a JSON object such as {"CPU": {"PROPERTY": "value"}}'

    def takes(self, text: str) -> bool:
        """Whether it can be read; a path is taken as it is."""
        if not text or text.endswith(".json"):
            return True
        document = _json_object(text)
        return (
            document is not None
            and all(
                isinstance(value, dict) and _is_property_map(value, depth=1)
                for value in document.values()
            )
            and self._wrong(document) is None
        )

    def fix(self, text: str) -> str | None:
        """The values of a property that it has another value of."""
        document = _json_object(text) or {}
        wrong = self._wrong(document) if isinstance(document.get(self.device), dict) else None
        return f"{wrong[0]} is {wrong[1].expected}" if wrong is not None else None

    def _wrong(self, document: dict[str, Any]) -> tuple[str, Grammar] | None:
        properties = document.get(self.device, {})
        for name, grammar in self.known:
            value = properties.get(name)
            if isinstance(value, str) and not grammar.takes(value.strip()):
                return name, grammar
        return None

    def doubt(self, text: str) -> str | None:
        """Devices that it names and OpenVINO does not, which are passed over in silence."""
        if text.endswith(".json"):
            return "a file is looked for in the folder of the process, not in the bundle"
        unknown = [key for key in _json_object(text) or {} if not _is_device_key(key)]
        if unknown:
            shown = ", ".join(key[:30] for key in unknown[:5])
            return f"its properties for {shown} are passed over: no device of OpenVINO is named so"
        return None


@dataclass(frozen=True)
class Shapes(Grammar):
    """OpenVINO's `reshape_input`: `name[1,1..128],other[1,64]`."""

    @property
    def expected(self) -> str:
        """The form."""
        return "input names with their dimensions, such as input_ids[1,1..128]"

    def takes(self, text: str) -> bool:
        """Whether every dimension is a number or a range of numbers."""
        *shapes, rest = text.split("]")
        for shape in shapes:
            name, bracket, dimensions = shape.partition("[")
            if not bracket or not name.strip(", ") or "[" in dimensions:
                return False
            if not all(map(_is_dimension, dimensions.split(","))):
                return False
        return not rest.strip(", ")


_MOST_DIMENSION = (1 << 63) - 1
_DEVICE_KEY = re.compile(r"(CPU|GPU|NPU|BATCH|" + "|".join(MODES) + r")(\.[0-9]+)?")
# Objects in one another, the device's own counted: a ninth is an error (measured).
_MOST_LEVELS = 8


def _is_part_of_device(text: str) -> bool:
    return any(text in name for name in ("CPU", "GPU", "NPU"))


def _is_device_key(key: str) -> bool:
    return _DEVICE_KEY.fullmatch(key) is not None


def _is_dimension(text: str) -> bool:
    start, dots, end = text.strip().partition("..")
    ends = (start, end) if dots else (start,)
    if not all(
        re.fullmatch(r"[0-9]{1,19}", part) and int(part) <= _MOST_DIMENSION for part in ends
    ):
        return False
    return not dots or int(start) <= int(end)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        document = json.loads(text) if len(text) <= MOST_CHARACTERS else None
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_property_map(value: dict[str, Any], depth: int) -> bool:
    if depth > _MOST_LEVELS:
        return False
    for item in value.values():
        if isinstance(item, dict):
            fits = _is_property_map(item, depth + 1)
        elif isinstance(item, float):
            fits = math.isfinite(item)
        else:
            fits = isinstance(item, str | int)
        if not fits:
            return False
    return True
