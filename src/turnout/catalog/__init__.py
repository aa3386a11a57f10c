"""Facts about execution providers: the only table of them, and the only place that knows names.

Behaviour elsewhere follows from the traits of `Ep`, never from a name. An EP that is missing here
still works: its name is passed through, and what it can do comes from the inventory.

`table` holds the EPs, `ep` says what one is, `known` holds their options, `grammars` how their
values are written, `devices` OpenVINO's words for devices, and `judging` says what an EP makes of
the options that it is given. Where sources disagree: docs/machine.md.
"""

from __future__ import annotations

from turnout.catalog.devices import DeviceSelection, read_device_type
from turnout.catalog.ep import DEVICES, Ep, OfflineTarget, Package
from turnout.catalog.judging import Verdict, judge
from turnout.catalog.lookup import (
    alias_of,
    canonical,
    device_advice,
    find,
    is_idle,
    order_of,
    takes_compiled,
)
from turnout.catalog.options import BUILT_IN, GENERATIONS, PLUGIN, Option
from turnout.catalog.table import CPU, EPS

__all__ = [
    "BUILT_IN",
    "CPU",
    "DEVICES",
    "EPS",
    "GENERATIONS",
    "PLUGIN",
    "DeviceSelection",
    "Ep",
    "OfflineTarget",
    "Option",
    "Package",
    "Verdict",
    "alias_of",
    "canonical",
    "device_advice",
    "find",
    "is_idle",
    "judge",
    "order_of",
    "read_device_type",
    "takes_compiled",
]
