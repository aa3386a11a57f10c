"""Let the OpenVINO plugin find the CPU of a machine whose processor is not Intel's.

The plugin offers its CPU device on Intel's processors alone, by the vendor that onnxruntime tells
it (docs/machine.md), though OpenVINO runs on others as well. So that its tests run the real plugin
on every x86-64 Linux machine, processes of the tests tell it that vendor: the only thing that is
made up, for hardware that is absent. Python imports this module at the start of each process that
has its folder in PYTHONPATH; nothing happens before onnxruntime is imported.

Python's onnxruntime and the library that onnxruntime-genai uses each have a table of functions
for plugins, `OrtApi`. The functions about hardware only return a field and stand side by side in
it, by which the tables are found.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.util
import mmap
import platform
import struct
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

INTEL = 0x8086
CPUINFO, MAPS = Path("/proc/cpuinfo"), Path("/proc/self/maps")
# What `HardwareDevice_Type` and, next in the table, `HardwareDevice_VendorId` are compiled to.
TYPE, VENDOR_ID = bytes.fromhex("f30f1efa8b07c3"), bytes.fromhex("f30f1efa8b4704c3")
POINTER = ctypes.sizeof(ctypes.c_void_p)

_VendorId = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)


@_VendorId
def _intel(_device: int) -> int:
    return INTEL


def is_needed() -> bool:
    """Whether this is a machine where the plugin would find no CPU, and could run on it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return "GenuineIntel" not in CPUINFO.read_text("utf-8", errors="replace")


def pretend(library: Path) -> None:
    """Have `library`, which is loaded, tell plugins that the hardware is Intel's."""
    mapped = list(_mapped(library))
    code = {
        start: ctypes.string_at(start, end - start) for start, end, mode in mapped if "x" in mode
    }
    data = {
        start: ctypes.string_at(start, end - start)
        for start, end, mode in mapped
        if "x" not in mode and "r" in mode
    }
    for slot in list(_slots(code, data)):
        _write(slot, ctypes.cast(_intel, ctypes.c_void_p).value or 0)


def _mapped(library: Path) -> Iterator[tuple[int, int, str]]:
    for line in MAPS.read_text("utf-8", errors="replace").splitlines():
        if line.endswith(str(library)):
            span, mode, *_ = line.split()
            start, end = (int(part, 16) for part in span.split("-"))
            yield start, end, mode


def _slots(code: dict[int, bytes], data: dict[int, bytes]) -> Iterator[int]:
    """Where pointers to functions of the kind of `VENDOR_ID` stand after one to `TYPE`'s."""
    types = set(_found(code, TYPE))
    for function in _found(code, VENDOR_ID):
        for slot in _found(data, struct.pack("P", function)):
            before = ctypes.c_void_p.from_address(slot - POINTER).value
            if slot % POINTER == 0 and before in types:
                yield slot


def _found(memory: dict[int, bytes], pattern: bytes) -> Iterator[int]:
    for start, content in memory.items():
        at = content.find(pattern)
        while at >= 0:
            yield start + at
            at = content.find(pattern, at + 1)


def _write(slot: int, value: int) -> None:
    page = slot - slot % mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), writable) != 0:
        raise OSError(ctypes.get_errno(), "the table of onnxruntime's functions stays read-only")
    ctypes.c_void_p.from_address(slot).value = value


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module as it would be found anyway, and changes onnxruntime once it is loaded."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: Any = None
        self._looking = False

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        # It stays in place: a spec may be asked for by somebody who imports nothing.
        if name != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None:
            self._own, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._own.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._own.exec_module(module)
        module.__spec__.loader = module.__loader__ = self._own
        for library in _libraries(with_python="onnxruntime" in sys.modules):
            ctypes.CDLL(str(library))
            pretend(library)


def _libraries(*, with_python: bool) -> list[Path]:
    """What has a table of functions: the library of onnxruntime-genai, and Python's module."""
    found = importlib.util.find_spec("onnxruntime")
    if found is None or found.origin is None:
        return []
    folder = Path(found.origin).parent / "capi"
    return [
        *folder.glob("libonnxruntime.so*"),
        *(folder.glob("*_state*.so") if with_python else ()),
    ]


if is_needed():
    # onnxruntime-genai finds the library of onnxruntime without importing that.
    for module_name in ("onnxruntime", "onnxruntime_genai"):
        if module_name not in sys.modules:
            sys.meta_path.insert(0, _AfterImport(module_name))
