"""OpenVINO's words for devices: `GPU.1`, `AUTO:GPU,CPU`, `CPU_FP32`.

What is taken depends on the generation. The EP that onnxruntime-openvino has built in reads the
whole grammar (`ParseDeviceType` and `ParsePrecision` of its source). With the plugin it is
onnxruntime-genai that reads `device_type`: it takes the first device whose own name contains the
text, so one device in capitals is all that can be said (measured with plugin 1.8.1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnout.errors import UsageError

MODES = ("AUTO", "HETERO", "MULTI")
PRECISIONS = {
    "CPU": ("FP32", "ACCURACY"),
    "GPU": ("FP16", "FP32", "ACCURACY"),
    "NPU": ("FP16", "ACCURACY"),
}
_DEVICE = re.compile(r"(CPU|GPU|NPU)(?:\.(0|[1-9][0-9]{0,3}))?(?:_([A-Z0-9]+))?")
_INDEXED = frozenset({"GPU"})
_MOST_DEVICES = 64


@dataclass(frozen=True)
class DeviceSelection:
    """Which devices a `device_type` names.

    `mode` is AUTO, HETERO or MULTI, None for one device; `devices` are in order of priority, none
    where AUTO is to choose. `precision` is what a deprecated suffix says (`CPU_FP32`).
    """

    mode: str | None
    devices: tuple[str, ...]
    precision: str | None = None

    @property
    def kind(self) -> str | None:
        """The kind of device ("cpu", "gpu", "npu"); None where several are left open."""
        kinds = {device.partition(".")[0].lower() for device in self.devices}
        return kinds.pop() if len(kinds) == 1 else None


def read_device_type(text: str) -> DeviceSelection:
    """What a `device_type` says by the whole grammar. Raises `UsageError`.

    Spaces do not count; letters are capitals. OpenVINO's documentation asks for two devices after
    AUTO, HETERO and MULTI, its source takes one.
    """
    value = text.replace(" ", "")
    mode, colon, listed = value.partition(":")
    if value == "AUTO":
        return DeviceSelection("AUTO", ())
    if not colon:
        device, precision = _device(value, text)
        return DeviceSelection(None, (device,), precision)
    if mode not in MODES:
        raise _error(text, "a list of devices begins with AUTO:, HETERO: or MULTI:")
    words = listed.split(",")
    if len(words) > _MOST_DEVICES:
        raise _error(text, f"at most {_MOST_DEVICES} devices")
    if not all(words):
        raise _error(text, f"devices after {mode}:, such as {mode}:GPU,CPU")
    devices = []
    for word in words:
        device, precision = _device(word, text)
        if precision is not None:
            raise _error(text, "no precision in a list of devices")
        if device in devices:
            raise _error(text, f"each device once; {device} stands twice")
        devices.append(device)
    return DeviceSelection(mode, tuple(devices))


def meant(text: str) -> DeviceSelection | None:
    """What a `device_type` means to a reader who overlooks case; None where it means nothing."""
    try:
        return read_device_type(text.upper())
    except UsageError:
        return None


def _device(word: str, text: str) -> tuple[str, str | None]:
    match = _DEVICE.fullmatch(word)
    if match is None:
        raise _error(text, "CPU, GPU, GPU.N or NPU, or a list after AUTO:, HETERO: or MULTI:")
    kind, index, precision = match.groups()
    if index is not None and kind not in _INDEXED:
        raise _error(text, f"{kind} without a number")
    if precision is not None and precision not in PRECISIONS[kind]:
        raise _error(text, f"one of {', '.join(PRECISIONS[kind])} as the precision of {kind}")
    return (kind if index is None else f"{kind}.{index}"), precision


def _error(text: str, expected: str) -> UsageError:
    selection = None if text == text.upper() else meant(text)
    fix = f"write {text.upper()}" if selection is not None else None
    return UsageError(
        "The device_type cannot be read.", found=repr(text[:80]), expected=expected, fix=fix
    )
