"""What a report says of the machine, of the programs, and of the bundle."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import turnout
from turnout.files import is_file
from turnout.perf.report import BundleReport, DeviceReport, Environment

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.machine import Inventory

_CPUINFO = Path("/proc/cpuinfo")
_CPU_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


def environment(inventory: Inventory) -> Environment:
    """The machine that this runs on; `inventory` is its own."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    return Environment(
        turnout=turnout.__version__,
        runtimes=dict(inventory.runtimes),
        plugins={
            ep.alias: f"{ep.source} {ep.version}" if ep.version else ep.source
            for ep in inventory.eps
            if ep.library is not None and ep.problem is None
        },
        python=platform.python_version(),
        os=platform.platform(),
        machine=platform.machine(),
        cpu=cpu_name(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        usable_cores=_usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        devices=tuple(
            DeviceReport(ep=ep.alias, kind=device.kind, hardware=device.label)
            for ep in inventory.eps
            if ep.problem is None
            for device in ep.devices
        ),
    )


def cpu_name() -> str:
    """The processor's name as its system has it; what kind it is, where that is not told."""
    name = ""
    try:
        if sys.platform == "win32":
            name = _from_registry()
        elif sys.platform == "darwin":
            import subprocess

            name = subprocess.run(
                ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            ).stdout
        else:
            name = _from_cpuinfo(_CPUINFO.read_text("utf-8", errors="replace"))
    except (OSError, ValueError, RuntimeError):
        name = ""
    return " ".join(name.split()) or platform.processor() or platform.machine()


def _from_cpuinfo(text: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model"}:
            return value
    return ""


def _from_registry() -> str:
    import winreg

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _CPU_KEY) as key:  # type: ignore[attr-defined, unused-ignore]
        value, _ = winreg.QueryValueEx(key, "ProcessorNameString")  # type: ignore[attr-defined, unused-ignore]
        return str(value)


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def identity(bundle: Bundle) -> BundleReport:
    """Which bundle it is: the hash is of what the runtime loads, names and contents.

    Those are the config, all graphs with their weights and context binaries, and the tokenizer's
    files. Raises `BundleError` for a file that is missing or cannot be read.
    """
    from turnout.compiling.hashes import ContentHashes
    from turnout.compiling.places import cache_folder

    hashes = ContentHashes(cache_folder())
    digest = hashlib.sha256()
    for name, path in sorted(_loaded_files(bundle)):
        digest.update(f"{name}\0{hashes.file(path)}\n".encode(errors="surrogateescape"))
    model_type = bundle.config.get(("model", "type"))
    return BundleReport(
        name=bundle.path.resolve().name,
        path=str(bundle.path),
        model_type=model_type if isinstance(model_type, str) else None,
        total_bytes=bundle.total_bytes,
        content_sha256=digest.hexdigest(),
    )


def _loaded_files(bundle: Bundle) -> set[tuple[str, Path]]:
    """What the runtime loads: the names by which it does, and the files, as far as they are there.

    By those names, and not by paths, a bundle is the same in a hub's cache and elsewhere.
    """
    from turnout.bundle import CONFIG_NAME
    from turnout.bundle.tokenizer import FILES

    found = {(CONFIG_NAME, bundle.path / CONFIG_NAME)}
    for stage in bundle.stages:
        if not stage.filename:
            continue
        graph = stage.filename
        found.add((graph, bundle.graph_path(stage)))
        for name, path in (*bundle.data_files(stage).items(), *bundle.context_files(stage).items()):
            found.add((f"{graph}: {name}", path))
    found |= {(name, bundle.tokenizer_folder / name) for name in FILES}
    return {(name, path) for name, path in found if is_file(path)}
