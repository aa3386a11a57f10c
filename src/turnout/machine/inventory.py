"""The inventory: which execution providers and devices a machine has, as a document.

It is discovered here, or read from a file that another machine wrote (`turnout devices --json`),
so that a route can be decided for a machine that is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from turnout import catalog
from turnout.documents import Form

SCHEMA_VERSION = 1

DeviceKind = Literal["cpu", "gpu", "npu"]


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One piece of hardware that an EP lists.

    `compile_only`: its EP can prepare models there but not run them. `assumed`: the EP is built
    into the runtime, which cannot say whether the hardware is there.
    """

    kind: DeviceKind
    vendor: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    metadata: dict[str, str] = {}
    compile_only: bool = False
    assumed: bool = False

    @property
    def label(self) -> str:
        """The device's own name where it has told one, else its vendor."""
        for key in ("FULL_DEVICE_NAME", "Description", "description"):
            if self.metadata.get(key):
                return self.metadata[key]
        return self.vendor or ""


class InstalledEp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An EP that is installed, working or not.

    `name` is canonical; `source` is "built-in", a package's name or "TURNOUT_EP_PATH";
    `problem` says why it cannot be used and `fix` what to do.
    """

    name: str
    source: str
    library: str | None = None
    version: str | None = None
    devices: tuple[Device, ...] = ()
    problem: str | None = None
    fix: str | None = None

    @property
    def alias(self) -> str:
        """Its short name."""
        return catalog.alias_of(self.name)

    @property
    def compile_only(self) -> bool:
        """Whether it has devices but can run on none of them."""
        return bool(self.devices) and all(device.compile_only for device in self.devices)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of device it can run on here, in the EP's order of preference."""
        if self.problem is not None:
            return ()
        here = {device.kind for device in self.devices if not device.compile_only}
        known = catalog.find(self.name)
        order = known.devices if known is not None else catalog.DEVICES
        return tuple(k for k in order if k in here) + tuple(
            k for k in catalog.DEVICES if k in here and k not in order
        )

    def exposes(self, kind: str, *, assumed: bool = True) -> bool:
        """Whether it can run on that kind of device; without `assumed`, as proven."""
        return self.problem is None and any(
            device.kind == kind and not device.compile_only and (assumed or not device.assumed)
            for device in self.devices
        )


class MissingEp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known EP that is not installed, and the package that brings it to this platform.

    `devices` are those that it can run on there; none where it could only compile.
    """

    name: str
    devices: tuple[str, ...]
    package: str


class Platform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The machine: `word` is the catalog's `system-machine` word."""

    word: str
    system: str = ""
    python: str = ""


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a machine has. `runtimes` maps package names to versions; `comment` is for people."""

    schema_version: int = SCHEMA_VERSION
    comment: str | msgspec.UnsetType = msgspec.UNSET
    platform: Platform
    runtimes: dict[str, str]
    eps: tuple[InstalledEp, ...]
    missing: tuple[MissingEp, ...] = ()

    @staticmethod
    def discover() -> Inventory:
        """Look at this machine, in a child process: about 0.4 s; no plugin is loaded here.

        A plugin that crashes or hangs is reported as a problem of its EP. Raises `MachineError`
        when the runtimes themselves cannot be loaded.
        """
        from turnout.machine.discovery import discover

        return discover()

    @staticmethod
    def minimal() -> Inventory:
        """What every machine has: the EPs that are part of every runtime. Nothing is loaded."""
        built_in = (
            InstalledEp(
                name=ep.name,
                source="built-in",
                devices=tuple(Device(kind=kind) for kind in ep.devices),  # type: ignore[arg-type]
            )
            for ep in catalog.EPS
            if ep.builtin
        )
        return Inventory(platform=Platform(word=""), runtimes={}, eps=tuple(built_in))

    @staticmethod
    def from_json(text: str | bytes, where: object = None) -> Inventory:
        """Read a document; `where` names its file. Raises `UsageError` naming the JSON path."""
        return _FORM.decode(text, where)

    def to_json(self) -> str:
        """The document, readable by `from_json`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def ep(self, name: str) -> InstalledEp | None:
        """The installed EP of that alias or name, None if there is none."""
        wanted = catalog.canonical(name)
        for ep in self.eps:
            if ep.name == wanted:
                return ep
        folded = wanted.lower()
        return next((ep for ep in self.eps if ep.name.lower() == folded), None)

    def best_ep(self, device: str, *, assumed: bool = True) -> InstalledEp | None:
        """The EP to use for a kind of device, None if nothing serves it.

        One whose first device in the catalog is the asked one wins over one that also serves it;
        then the catalog's order decides.
        """

        def rank(ep: InstalledEp) -> tuple[bool, int]:
            known = catalog.find(ep.name)
            native = known is not None and known.devices[:1] == (device,)
            return (not native, catalog.order_of(ep.name))

        serving = [ep for ep in self.eps if ep.exposes(device, assumed=assumed)]
        return min(serving, key=rank, default=None)

    @property
    def problems(self) -> tuple[InstalledEp, ...]:
        """EPs that are installed but cannot be used."""
        return tuple(ep for ep in self.eps if ep.problem is not None)


class _Header(msgspec.Struct):
    schema_version: int


_AGAIN = "write it again with the same version of turnout: turnout devices --json"
_FORM = Form(
    name="inventory",
    header=_Header,
    document=Inventory,
    version=SCHEMA_VERSION,
    fix="write it on the target machine with: turnout devices --json",
    fix_older=_AGAIN,
    fix_newer=_AGAIN,
)


def missing_eps(installed: Iterable[str], platform: str) -> tuple[MissingEp, ...]:
    """Known EPs that are not `installed` and have a package for `platform`."""
    here = set(installed)
    return tuple(
        MissingEp(
            name=ep.name,
            devices=ep.devices if ep.runs_on(platform) else (),
            package=package.name,
        )
        for ep in catalog.EPS
        if ep.name not in here and (package := ep.package_for(platform)) is not None
    )
