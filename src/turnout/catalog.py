"""Facts about execution providers: the only table of them, and the only place that knows names.

Behaviour elsewhere follows from the traits below, never from a name. An EP that is missing here
still works: its name is passed through, and what it can do comes from the inventory.

Sources: spellings and lookups of onnxruntime-genai from its `src/config.cpp` and
`src/*/session_options.cpp`; canonical names from onnxruntime's library; packages and platforms
from the package index; QNN's and OpenVINO's options from running the plugins (see docs/machine.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Order of preference when any device will do.
DEVICES = ("npu", "gpu", "cpu")

_SUFFIX = "executionprovider"


@dataclass(frozen=True)
class Package:
    """A package that brings an EP.

    `platforms` are `system-machine` words (`linux-x86_64`, `windows-arm64`, `macos-arm64`).
    `module` is the module of a plugin package and `library` the stem of the library inside it,
    both None for a package that takes onnxruntime's place and has the EP built in.
    `compile_only` are those platforms on which it can prepare models but not run them.
    """

    name: str
    platforms: tuple[str, ...]
    module: str | None = None
    library: str | None = None
    compile_only: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ep:
    """One execution provider.

    `devices` come in order of preference; `compile_only_on` are devices that its plugin lists
    but can only compile on, ahead of time. `required_options`: at least one must be given.
    `device_words` maps an option's value to a device; `default_device` is the one that takes
    effect when no option selects any. `exact_*` are what makes its arithmetic exact:
    session options, or properties inside the JSON provider option `properties_option`, and
    `exact_on` the devices that can.
    """

    name: str
    alias: str
    aliases: tuple[str, ...] = ()
    genai_name: str = ""
    devices: tuple[str, ...] = ()
    compile_only_on: tuple[str, ...] = ()
    builtin: bool = False
    takes_options: bool = True
    compiles: bool = False
    shares_weights: bool = False
    required_options: tuple[str, ...] = ()
    device_options: tuple[str, ...] = ()
    device_words: Mapping[str, str] = field(default_factory=dict)
    default_device: str | None = None
    defaults: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    properties_option: str | None = None
    exact_properties: Mapping[str, str] = field(default_factory=dict)
    exact_session_options: Mapping[str, str] = field(default_factory=dict)
    exact_unpacked_options: Mapping[str, str] = field(default_factory=dict)
    exact_on: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    otherwise: str | None = None

    @property
    def written_name(self) -> str:
        """The spelling written into a `genai_config.json`."""
        return self.genai_name or self.name

    def serves(self, device: str) -> bool:
        """Whether it can run (not just compile) on that kind of device."""
        return device in self.devices

    def package_for(self, platform: str) -> Package | None:
        """The package to install on `platform`, None if there is none."""
        return next((p for p in self.packages if platform in p.platforms), None)

    def runs_on(self, platform: str) -> bool:
        """Whether it can run on `platform` with what its packages bring there."""
        package = self.package_for(platform)
        return package is None or platform not in package.compile_only

    @property
    def selecting_options(self) -> tuple[str, ...]:
        """The options whose values say which kind of device to use."""
        return tuple(dict.fromkeys(key for chosen in self.defaults.values() for key in chosen))

    def device_of(self, options: Mapping[str, str]) -> str | None:
        """The kind of device that provider options select; None if left open (`AUTO:GPU,CPU`)."""
        for option in self.device_options:
            device = self.device_words.get(_device_word(options.get(option, "")))
            if device is not None:
                return device
        if any(option in options for option in self.selecting_options):
            return None
        return self.default_device


_X86 = ("linux-x86_64", "windows-x86_64")

CPU = Ep(
    name="CPUExecutionProvider",
    alias="cpu",
    genai_name="cpu",
    devices=("cpu",),
    builtin=True,
    # onnxruntime-genai refuses options on its `cpu` entry.
    takes_options=False,
    default_device="cpu",
    # Products of 4-bit weights at accuracy level 4 otherwise quantize their activations.
    exact_session_options={"mlas.qnbit.force_fp32": "1"},
    # The one above reaches products of 4-bit weights in blocks of 32 on x86; this one all others,
    # at several times the cost.
    exact_unpacked_options={"session.disable_prepacking": "1"},
    exact_on=("cpu",),
)

EPS: tuple[Ep, ...] = (
    CPU,
    Ep(
        name="CUDAExecutionProvider",
        alias="cuda",
        genai_name="cuda",
        devices=("gpu",),
        device_options=("device_id",),
        default_device="gpu",
        packages=(Package("onnxruntime-genai-cuda", _X86),),
    ),
    Ep(
        name="TensorrtExecutionProvider",
        alias="tensorrt",
        aliases=("trt",),
        devices=("gpu",),
        compiles=True,
        device_options=("device_id",),
        default_device="gpu",
        packages=(Package("onnxruntime-gpu", _X86),),
    ),
    Ep(
        name="NvTensorRTRTXExecutionProvider",
        alias="nvtensorrtrtx",
        aliases=("tensorrtrtx", "trtrtx"),
        genai_name="NvTensorRtRtx",
        devices=("gpu",),
        compiles=True,
        device_options=("device_id",),
        default_device="gpu",
        packages=(
            Package(
                "onnxruntime-ep-nv-tensorrt-rtx",
                (*_X86, "linux-arm64", "windows-arm64"),
                "onnxruntime_ep_nv_tensorrt_rtx",
                "onnxruntime_providers_nv_tensorrt_rtx",
            ),
        ),
    ),
    Ep(
        name="OpenVINOExecutionProvider",
        alias="openvino",
        aliases=("ov",),
        genai_name="OpenVINO",
        devices=("npu", "gpu", "cpu"),
        compiles=True,
        shares_weights=True,
        device_options=("device_type", "device_id", "device_luid"),
        device_words={"cpu": "cpu", "gpu": "gpu", "npu": "npu"},
        # onnxruntime-genai picks the CPU when no option selects a device.
        default_device="cpu",
        defaults={
            "cpu": {"device_type": "CPU"},
            "gpu": {"device_type": "GPU"},
            "npu": {"device_type": "NPU"},
        },
        properties_option="load_config",
        exact_properties={
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        },
        exact_on=("cpu", "gpu"),
        packages=(
            Package(
                "onnxruntime-ep-openvino",
                _X86,
                "onnxruntime_ep_openvino",
                "onnxruntime_providers_openvino_plugin",
            ),
        ),
    ),
    Ep(
        name="QNNExecutionProvider",
        alias="qnn",
        genai_name="QNN",
        devices=("npu", "gpu"),
        # It lists the host's CPU, where it can prepare models for a device that is elsewhere.
        compile_only_on=("cpu",),
        compiles=True,
        shares_weights=True,
        required_options=("backend_type", "backend_path"),
        device_options=("backend_type", "backend_path", "device_id"),
        device_words={
            "htp": "npu",
            "gpu": "gpu",
            "cpu": "cpu",
            "qnnhtp": "npu",
            "qnngpu": "gpu",
            "qnncpu": "cpu",
        },
        # The type names a backend without a path, so it means the same on every machine.
        defaults={"npu": {"backend_type": "htp"}, "gpu": {"backend_type": "gpu"}},
        packages=(
            Package(
                "onnxruntime-qnn",
                (*_X86, "windows-arm64"),
                "onnxruntime_qnn",
                "onnxruntime_providers_qnn",
                compile_only=_X86,
            ),
        ),
    ),
    Ep(
        name="DmlExecutionProvider",
        alias="dml",
        aliases=("directml",),
        genai_name="DML",
        devices=("gpu",),
        device_options=("device_id", "device_filter", "performance_preference"),
        default_device="gpu",
        packages=(Package("onnxruntime-genai-directml", ("windows-x86_64",)),),
    ),
    Ep(
        name="VitisAIExecutionProvider",
        alias="vitisai",
        genai_name="VitisAI",
        devices=("npu",),
        compiles=True,
        default_device="npu",
        otherwise="comes with AMD's Ryzen AI software and with Windows ML",
    ),
    Ep(
        name="MIGraphXExecutionProvider",
        alias="migraphx",
        devices=("gpu",),
        device_options=("device_id",),
        default_device="gpu",
        packages=(Package("onnxruntime-migraphx", ("linux-x86_64",)),),
    ),
    Ep(
        name="WebGpuExecutionProvider",
        alias="webgpu",
        genai_name="WebGPU",
        devices=("gpu",),
        device_options=("deviceId", "adapterIndex", "powerPreference"),
        default_device="gpu",
        packages=(
            Package(
                "onnxruntime-ep-webgpu",
                (*_X86, "linux-arm64", "windows-arm64", "macos-arm64"),
                "onnxruntime_ep_webgpu",
                "onnxruntime_providers_webgpu",
            ),
        ),
    ),
    Ep(
        name="CoreMLExecutionProvider",
        alias="coreml",
        devices=("npu", "gpu", "cpu"),
        device_options=("MLComputeUnits",),
        device_words={"cpuonly": "cpu", "cpuandgpu": "gpu", "cpuandneuralengine": "npu"},
        defaults={
            "cpu": {"MLComputeUnits": "CPUOnly"},
            "gpu": {"MLComputeUnits": "CPUAndGPU"},
            "npu": {"MLComputeUnits": "CPUAndNeuralEngine"},
        },
        otherwise="is built into onnxruntime on macOS",
    ),
    Ep(
        name="ROCMExecutionProvider",
        alias="rocm",
        devices=("gpu",),
        device_options=("device_id",),
        default_device="gpu",
        packages=(Package("onnxruntime-rocm", ("linux-x86_64",)),),
    ),
    Ep(
        name="XnnpackExecutionProvider",
        alias="xnnpack",
        devices=("cpu",),
        default_device="cpu",
        otherwise="needs an onnxruntime that was built with it",
    ),
    Ep(
        name="RyzenAILightExecutionProvider",
        alias="ryzenai",
        aliases=("ryzenailight",),
        genai_name="RyzenAI",
        devices=("npu",),
        default_device="npu",
        otherwise="comes with AMD's Ryzen AI software",
    ),
    Ep(
        name="AMDGPUExecutionProvider",
        alias="amdgpu",
        genai_name="AMDGPU",
        devices=("gpu",),
        device_options=("device_id",),
        default_device="gpu",
        otherwise="comes with AMD's own software",
    ),
)


def _normalised(name: str) -> str:
    word = name.strip().lower()
    # A plugin may list variants of itself as NAME.VARIANT ("OpenVINOExecutionProvider.AUTO").
    full, dot, _ = word.partition(_SUFFIX + ".")
    if dot:
        word = full
    word = word.replace("-", "").replace("_", "").replace(" ", "")
    return word.removesuffix(_SUFFIX) or word


def _device_word(value: str) -> str:
    """`GPU.1`, `CPU_FP32`, `C:\\x\\QnnHtp.dll`, `libQnnHtp.so` -> gpu, cpu, qnnhtp, qnnhtp."""
    word = value.strip().replace("\\", "/").rpartition("/")[2].lower().removeprefix("lib")
    return word.partition(".")[0].partition("_")[0]


_BY_WORD = {
    _normalised(word): ep
    for ep in EPS
    for word in (ep.name, ep.alias, *ep.aliases, ep.genai_name)
    if word
}


def find(name: str) -> Ep | None:
    """The EP of that alias or full name, in any case; None if the table does not know it."""
    return _BY_WORD.get(_normalised(name))


def canonical(name: str) -> str:
    """The full name of an EP; a name that the table does not know is returned as it is."""
    ep = find(name)
    return ep.name if ep is not None else name


def alias_of(name: str) -> str:
    """The short name of an EP; a name that the table does not know is returned as it is."""
    ep = find(name)
    return ep.alias if ep is not None else name


def order_of(name: str) -> int:
    """The EP's place in the table; those that it does not know come after all others."""
    ep = find(name)
    return EPS.index(ep) if ep is not None else len(EPS)
