"""Plugins and the inventory: with the real runtimes, real libraries, and injected faults."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnout import catalog
from turnout.errors import EpUnavailableError, TurnoutError, UsageError
from turnout.machine import InstalledEp, Inventory, discovery, origins, plugins
from turnout.machine.inventory import Device, missing_eps

INVENTORIES = Path(__file__).parent / "data" / "inventories"
HAS_OPENVINO = importlib.util.find_spec("onnxruntime_ep_openvino") is not None
needs_openvino = pytest.mark.skipif(not HAS_OPENVINO, reason="onnxruntime-ep-openvino is absent")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="patches an ELF library")


def a_real_library() -> Path:
    """A shared library of the runtime that is no plugin."""
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    return next(p for p in folder.iterdir() if "providers_shared" in p.name)


def plugin_at(path: Path, name: str = "acme") -> origins.Plugin:
    return origins.Plugin(name, origins.ENVIRONMENT_VARIABLE, str(path))


def a_package(folder: Path, module: str, body: str, *, library: bytes | None = None) -> None:
    """An installed package with a module, and a distribution's records."""
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text(body, "utf-8")
    record = [f"{module}/__init__.py,,"]
    if library is not None:
        (folder / module / "libplugin.so").write_bytes(library)
        record.append(f"{module}/libplugin.so,,")
    info = folder / f"{module}-1.2.3.dist-info"
    info.mkdir()
    name = module.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    (info / "RECORD").write_text("\n".join(record) + "\n")


def run(code: str, **environment: str) -> str:
    """What a fresh interpreter prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Finding


def test_a_plugin_is_found_by_the_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.so").write_bytes(b"x")
    pairs = [f"qnn={tmp_path / 'a.so'}", f"acme={tmp_path / 'b.so'}"]
    monkeypatch.setenv("TURNOUT_EP_PATH", os.pathsep.join(pairs))
    found = {plugin.name: plugin for plugin in plugins.find()}
    assert found["QNNExecutionProvider"].library == str(tmp_path / "a.so")
    assert found["QNNExecutionProvider"].problem is None
    assert found["acme"].problem == f"there is no file {tmp_path / 'b.so'}"
    assert found["acme"].fix == "correct the path in TURNOUT_EP_PATH"


@pytest.mark.parametrize("text", ["openvino", "=x", "openvino=", "/path/lib.so"])
def test_a_malformed_environment_variable_is_a_usage_error(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_EP_PATH", text)
    with pytest.raises(UsageError, match="TURNOUT_EP_PATH") as caught:
        plugins.find()
    assert repr(text) in caught.value.facts["found"]


@pytest.mark.parametrize("name", ["cpu", "CPUExecutionProvider", " CPU "])
def test_a_plugin_cannot_take_the_name_of_what_is_built_in(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = f"{name}=/some/plugin.so"
    monkeypatch.setenv("TURNOUT_EP_PATH", f"acme=/other.so{os.pathsep}{entry}")
    for look in (plugins.find, Inventory.discover):
        with pytest.raises(UsageError, match="names cpu, which every runtime has") as caught:
            look()
        assert repr(entry) in caught.value.facts["found"]
        assert "/some/plugin.so" in caught.value.facts["fix"]


@pytest.mark.parametrize(
    "helpers",
    [
        "def get_library_path(): return LIB\ndef get_ep_names(): return ['AcmeExecutionProvider']",
        "def get_library_path(): return LIB\ndef get_ep_name(): return 'AcmeExecutionProvider'",
        "def library_path(): return LIB\nEP_NAME = 'AcmeExecutionProvider'",
        "EP_NAME = 'AcmeExecutionProvider'",
    ],
)
def test_a_package_that_nobody_knows_is_asked_by_its_helper_functions(
    helpers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A7: no table has to know an EP; its package is recognised by the library it holds."""
    body = "import os\nLIB = os.path.join(os.path.dirname(__file__), 'libplugin.so')\n" + helpers
    a_package(tmp_path, "acme_ep_npu", body, library=b"..CreateEpFactories..")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_ep_npu", raising=False)
    plugin = next(p for p in plugins.find() if p.name == "AcmeExecutionProvider")
    assert plugin.source == "acme-ep-npu"
    assert plugin.version == "1.2.3"
    assert plugin.library == str(tmp_path / "acme_ep_npu" / "libplugin.so")
    assert plugin.problem is None


def test_a_package_without_a_plugin_library_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_package(tmp_path, "onnxruntime_tools", "raise AssertionError('imported')", library=b"other")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "onnxruntime-tools" not in {plugin.source for plugin in plugins.find()}


def test_a_package_that_fails_to_import_is_reported_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_package(
        tmp_path, "acme_ep_bad", "raise ImportError('no acmelib')", library=b"CreateEpFactories"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = next(p for p in plugins.find() if p.source == "acme-ep-bad")
    assert plugin.problem == "ImportError: no acmelib"
    assert plugin.fix == "pip install --force-reinstall acme-ep-bad"


# What went wrong with a library


def test_a_library_that_is_no_plugin_is_told_by_the_missing_symbol() -> None:
    error = plugins.try_register("onnxruntime", plugin_at(a_real_library()))
    assert error is not None
    assert "no symbol CreateEpFactories" in error.facts["found"]
    assert str(a_real_library()) in error.facts["where"]
    assert "onnxruntime 1." in error.facts["where"]


@on_linux
@pytest.mark.parametrize("runtime", origins.RUNTIMES)
def test_a_missing_dependency_is_named(runtime: str, tmp_path: Path) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(a_real_library().read_bytes().replace(b"libc.so.6\0", b"libQ.so.6\0"))
    error = plugins.try_register(runtime, plugin_at(broken))
    assert error is not None
    assert error.facts["found"] == "missing library libQ.so.6, which it needs"
    assert error.facts["fix"] == "install what provides libQ.so.6"


@on_linux
@pytest.mark.parametrize("content", [b"no library at all" * 40, b"", b"\x7fELF"])
def test_a_file_that_is_no_library_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    error = plugins.try_register("onnxruntime", plugin_at(path))
    assert error is not None
    assert error.facts["found"] == "the file is not a library of this platform"


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (
            "Failed to load library x.so with error: x.so: undefined symbol: _ZN3ovE",
            "missing symbol _ZN3ovE",
        ),
        (
            "LoadLibrary failed with error 126 when trying to load x.dll",
            "a library that it needs is missing",
        ),
        (
            "LoadLibrary failed with error 193 when trying to load x.dll",
            "the file is not a library of this platform",
        ),
        (
            "dlopen(x.dylib, 0x6): Library not loaded: @rpath/libov.dylib",
            "missing library @rpath/libov.dylib, which it needs",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : The requested API version [99] is not available",
            "it was made for another onnxruntime: The requested API version [99] is not available",
        ),
        ("something new", "something new"),
    ],
)
def test_messages_of_other_loaders_are_understood(message: str, found: str) -> None:
    error = plugins.explain(origins.Plugin("acme", "acme-ep", "x"), RuntimeError(message))
    assert error.facts["found"] == found
    assert error.facts["fix"]


# Registering


def test_the_cpu_ep_registers_nothing() -> None:
    """A4: with every stage on the CPU EP nothing is registered, not even the runtime loaded."""
    code = (
        "import sys; from turnout.machine import plugins\n"
        "plugins.register(['cpu', 'CPUExecutionProvider'])\n"
        "print('onnxruntime' in sys.modules, 'onnxruntime_genai' in sys.modules)"
    )
    assert run(code).split() == ["False", "False"]


@pytest.mark.parametrize(
    ("name", "fix"),
    [("tensorrt", "onnxruntime-gpu"), ("acme", "TURNOUT_EP_PATH=acme=PATH"), ("vitisai", "AMD")],
)
def test_an_ep_that_is_not_installed_says_how_to_get_it(name: str, fix: str) -> None:
    with pytest.raises(EpUnavailableError, match="not installed") as caught:
        plugins.register([name])
    assert fix in caught.value.facts["fix"] or "no package" in caught.value.facts["fix"]


def test_a_failed_registration_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lib.so"
    monkeypatch.setenv("TURNOUT_EP_PATH", f"acme={path}")
    with pytest.raises(EpUnavailableError) as missing:
        plugins.register(["acme"])
    assert missing.value.facts["found"] == f"there is no file {path}"
    path.write_bytes(a_real_library().read_bytes())
    with pytest.raises(EpUnavailableError) as other:
        plugins.register(["acme"])
    assert "CreateEpFactories" in other.value.facts["found"]


@needs_openvino
@pytest.mark.openvino
def test_a_plugin_is_registered_once_with_each_runtime_by_many_threads() -> None:
    """B18: one runtime core a process. G#2006: a plugin must be known to both runtimes."""
    code = """
import threading, onnxruntime, onnxruntime_genai
from turnout.machine import plugins
calls = []
for module in (onnxruntime, onnxruntime_genai):
    def spy(name, path, real=module.register_execution_provider_library, m=module.__name__):
        calls.append(m)
        return real(name, path)
    module.register_execution_provider_library = spy
threads = [threading.Thread(target=plugins.register, args=(["openvino"],)) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
plugins.register(["OpenVINO", "cpu", "OpenVINOExecutionProvider"])
print(sorted(calls), sum(d.ep_name == "OpenVINOExecutionProvider" and d.device.type.name == "CPU"
                         for d in onnxruntime.get_ep_devices()))
"""
    assert run(code).strip() == "['onnxruntime', 'onnxruntime_genai'] 1"


@needs_openvino
@pytest.mark.openvino
@pytest.mark.parametrize("name", ["OpenVINOExecutionProvider", "hosts_own_name"])
def test_a_plugin_that_the_host_registered_already_is_taken_as_it_is(name: str) -> None:
    """B18: registering under a second name would list every device twice."""
    code = f"""
import onnxruntime, onnxruntime_genai, onnxruntime_ep_openvino as ov
for module in (onnxruntime, onnxruntime_genai):
    module.register_execution_provider_library({name!r}, ov.get_library_path())
from turnout.machine import plugins
plugins.register(["openvino"])
print(sum(d.ep_name == "OpenVINOExecutionProvider" and d.device.type.name == "CPU"
          for d in onnxruntime.get_ep_devices()))
"""
    assert run(code).strip() == "1"


# Discovering


def test_discovery_finds_the_cpu_ep_and_leaves_this_process_clean() -> None:
    before = set(plugins._registered)
    inventory = Inventory.discover()
    cpu = inventory.ep("cpu")
    assert cpu is not None
    assert cpu.source == "built-in"
    assert cpu.kinds == ("cpu",)
    assert set(inventory.runtimes) == {"onnxruntime", "onnxruntime-genai"}
    assert inventory.platform.word == plugins.platform_word()
    assert set(plugins._registered) == before


@needs_openvino
@pytest.mark.openvino
def test_discovery_lists_each_device_of_openvino_once() -> None:
    """Its variant `OpenVINOExecutionProvider.AUTO` is the same hardware."""
    found = Inventory.discover().ep("openvino")
    assert found is not None
    assert found.problem is None
    assert found.source == "onnxruntime-ep-openvino"
    assert [d.kind for d in found.devices].count("cpu") == 1
    assert found.devices[0].label
    assert Path(str(found.library)).is_file()


@needs_openvino
@pytest.mark.openvino
def test_a_library_that_is_given_another_name_is_told_what_it_calls_its_ep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    openvino = Inventory.discover().ep("openvino")
    assert openvino is not None
    monkeypatch.setenv("TURNOUT_EP_PATH", f"myov={openvino.library}")
    inventory = Inventory.discover()
    (mine,) = inventory.problems
    assert (mine.name, mine.kinds) == ("myov", ())
    assert mine.problem == "its library calls its EP OpenVINOExecutionProvider"
    assert mine.fix == f"set TURNOUT_EP_PATH=openvino={openvino.library}"
    found = inventory.ep("openvino")
    assert found is not None and found.problem is None
    code = (
        "from turnout.machine import plugins\n"
        "try: plugins.register(['myov'])\n"
        "except Exception as error: print(error.facts['found'])\n"
    )
    assert run(code).strip() == mine.problem


def test_a_broken_plugin_is_a_problem_of_its_ep_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"no library at all" * 40)
    monkeypatch.setenv("TURNOUT_EP_PATH", f"qnn={path}")
    inventory = Inventory.discover()
    (broken,) = inventory.problems
    assert broken.name == "QNNExecutionProvider"
    assert broken.source == "TURNOUT_EP_PATH"
    assert broken.library == str(path)
    assert broken.problem
    assert broken.fix == "correct the path in TURNOUT_EP_PATH"
    assert broken.kinds == ()
    assert "QNNExecutionProvider" not in {ep.name for ep in inventory.missing}
    assert inventory.ep("cpu") is not None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("import os; os.abort()", "crashed (SIGABRT)"),
        ("import os; os._exit(7)", "ended with code 7"),
        pytest.param(
            "import time; time.sleep(60)", "did not answer within 8 s", marks=pytest.mark.slow
        ),
    ],
)
def test_a_plugin_that_crashes_or_hangs_is_reported_and_the_others_are_found(
    body: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "SIG" in problem and sys.platform == "win32":
        pytest.skip("signals")
    a_package(tmp_path, "acme_ep_npu", body, library=b"CreateEpFactories")
    monkeypatch.syspath_prepend(str(tmp_path))
    inventory = discovery.discover(timeout=8)
    (broken,) = inventory.problems
    assert broken.source == "acme-ep-npu"
    assert problem in str(broken.problem)
    assert inventory.ep("cpu") is not None


def test_what_a_plugin_prints_does_not_disturb_discovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import os; os.write(1, b'{\"noise\": 1}\\n'); print('noise')"
    a_package(tmp_path, "acme_ep_npu", body, library=b"CreateEpFactories")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Inventory.discover().ep("cpu") is not None


def test_the_current_folder_is_not_searched_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise SystemExit('from the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert Inventory.discover().ep("cpu") is not None


def test_known_eps_that_are_not_installed_come_with_a_package_of_the_platform() -> None:
    missing = missing_eps(["CPUExecutionProvider", "QNNExecutionProvider"], "windows-arm64")
    assert [(ep.name, ep.package) for ep in missing] == [
        ("NvTensorRTRTXExecutionProvider", "onnxruntime-ep-nv-tensorrt-rtx"),
        ("WebGpuExecutionProvider", "onnxruntime-ep-webgpu"),
    ]


@pytest.mark.parametrize(
    ("platform", "devices"),
    [("windows-arm64", ("npu", "gpu")), ("linux-x86_64", ()), ("windows-x86_64", ())],
)
def test_a_missing_ep_that_could_only_compile_here_promises_no_device(
    platform: str, devices: tuple[str, ...]
) -> None:
    (qnn,) = [ep for ep in missing_eps([], platform) if ep.package == "onnxruntime-qnn"]
    assert qnn.devices == devices
    assert ("can only compile" in plugins.how_to_install("qnn", platform)) == (devices == ())


# The document


@pytest.mark.parametrize("path", sorted(INVENTORIES.glob("*.json")), ids=lambda p: p.stem)
def test_an_inventory_survives_being_written_and_read(path: Path) -> None:
    inventory = Inventory.from_json(path.read_text("utf-8"))
    assert Inventory.from_json(inventory.to_json()) == inventory
    assert json.loads(inventory.to_json())["schema_version"] == 1
    assert "hand" in json.loads(inventory.to_json())["comment"]


def test_a_discovered_inventory_survives_being_written_and_read() -> None:
    inventory = Inventory.discover()
    assert Inventory.from_json(inventory.to_json()) == inventory


def inventory_json(**changes: object) -> str:
    document = json.loads((INVENTORIES / "intel-laptop.json").read_text("utf-8"))
    return json.dumps({**document, **changes})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("not json", "$"),
        ("[]", "$"),
        ("{}", "$"),
        (inventory_json(schema_version="1"), "$.schema_version"),
        (inventory_json(eps=3), "$.eps"),
        (inventory_json(eps=[{"source": "x"}]), "$.eps[0]"),
        (inventory_json(eps=[{"name": "a", "source": "x", "device": []}]), "$.eps[0]"),
        (
            inventory_json(eps=[{"name": "a", "source": "x", "devices": [{"kind": "tpu"}]}]),
            "$.eps[0].devices[0].kind",
        ),
        (inventory_json(extra=1), "$"),
    ],
)
def test_an_invalid_inventory_is_refused_naming_the_json_path(text: str, where: str) -> None:
    with pytest.raises(TurnoutError, match="not a valid document") as caught:
        Inventory.from_json(text, where="target.json")
    assert caught.value.facts["where"] == f"target.json: {where}"
    assert caught.value.facts["found"]


def test_an_inventory_of_another_version_is_refused_saying_both() -> None:
    with pytest.raises(TurnoutError, match="version") as caught:
        Inventory.from_json(inventory_json(schema_version=2))
    assert caught.value.facts["found"] == "schema_version 2"
    assert caught.value.facts["expected"] == "schema_version 1"


# Choosing


def one(name: str, *devices: Device, **facts: str) -> InstalledEp:
    return InstalledEp(name=name, source="test", devices=devices, **facts)


def machine(*eps: InstalledEp) -> Inventory:
    return Inventory(platform=discovery.Inventory.minimal().platform, runtimes={}, eps=eps)


CPU_EP = one("CPUExecutionProvider", Device(kind="cpu"))


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("intel-laptop", "npu", "openvino"),
        ("intel-laptop", "gpu", "openvino"),
        ("intel-laptop", "cpu", "cpu"),
        ("snapdragon-laptop", "npu", "qnn"),
        ("snapdragon-laptop", "gpu", "dml"),
        ("snapdragon-laptop", "cpu", "cpu"),
        ("nvidia-workstation", "gpu", "cuda"),
        ("nvidia-workstation", "npu", None),
    ],
)
def test_the_best_ep_for_a_device_is_the_one_that_is_at_home_there(
    name: str, device: str, expected: str | None
) -> None:
    """A11, and W#1138: `--device cpu` is the CPU EP, not another one that also serves it."""
    text = (INVENTORIES / f"{name}.json").read_text("utf-8")
    best = Inventory.from_json(text).best_ep(device)
    assert (best.alias if best is not None else None) == expected


def test_a_device_that_can_only_be_compiled_for_is_never_picked() -> None:
    """W#860: QNN lists the host's CPU, which it cannot use."""
    qnn = one("QNNExecutionProvider", Device(kind="cpu", compile_only=True))
    found = machine(qnn).best_ep("cpu")
    assert found is None
    assert qnn.compile_only
    assert qnn.kinds == ()


def test_a_broken_ep_serves_nothing() -> None:
    broken = one("OpenVINOExecutionProvider", Device(kind="npu"), problem="does not load")
    assert machine(CPU_EP, broken).best_ep("npu") is None


def test_an_ep_that_no_table_knows_serves_what_it_lists_after_known_ones() -> None:
    acme = one("AcmeExecutionProvider", Device(kind="npu"), Device(kind="cpu"))
    here = machine(CPU_EP, acme)
    assert here.best_ep("npu") == acme
    assert here.best_ep("cpu") == CPU_EP
    assert here.ep("acmeexecutionprovider") == acme


def test_hardware_that_is_only_assumed_is_not_proof() -> None:
    cuda = one("CUDAExecutionProvider", Device(kind="gpu", assumed=True))
    assert machine(cuda).best_ep("gpu") == cuda
    assert machine(cuda).best_ep("gpu", assumed=False) is None


def test_what_every_machine_has_is_the_cpu_ep() -> None:
    minimal = Inventory.minimal()
    assert [ep.name for ep in minimal.eps] == ["CPUExecutionProvider"]
    assert minimal.best_ep("cpu") is not None
    assert catalog.CPU.name == "CPUExecutionProvider"
