"""The table of execution providers.

Sources: spellings and lookups of onnxruntime-genai from its `src/config.cpp` and
`src/*/session_options.cpp`; canonical names from onnxruntime's library; packages and platforms
from the package index; QNN's and OpenVINO's options from running the plugins (docs/machine.md,
also on where sources disagree).
"""

from __future__ import annotations

from turnout.catalog import known, known_openvino
from turnout.catalog.ep import Ep, OfflineTarget, Package

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
        memory="stages",
        options=known.CUDA,
        all_options_known=True,
        device_options=("device_id",),
        default_device="gpu",
        packages=(Package("onnxruntime-genai-cuda", (*_X86, "linux-arm64")),),
    ),
    Ep(
        name="TensorrtExecutionProvider",
        alias="tensorrt",
        aliases=("trt",),
        spellings=("TensorrtExecutionProvider",),
        devices=("gpu",),
        compiles=True,
        options=known.TENSORRT,
        device_options=("device_id",),
        default_device="gpu",
        packages=(Package("onnxruntime-gpu", (*_X86, "linux-arm64")),),
    ),
    Ep(
        name="NvTensorRTRTXExecutionProvider",
        alias="nvtensorrtrtx",
        aliases=("tensorrtrtx", "trtrtx"),
        genai_name="NvTensorRtRtx",
        devices=("gpu",),
        compiles=True,
        # UsesNonRewindableWindowedKeyValueCache in onnxruntime-genai's src/models/kv_cache.cpp.
        slides_caches=True,
        memory="own",
        options=known.TENSORRT_RTX,
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
        whole_option="enable_causallm",
        shares_weights=True,
        memory="own",
        options=known_openvino.OPENVINO,
        all_options_known=True,
        device_options=("device_id", "device_type", "device_luid"),
        device_words={"cpu": "cpu", "gpu": "gpu", "npu": "npu"},
        # onnxruntime-genai picks the CPU when no option selects a device.
        default_device="cpu",
        device_name_key="ov_device",
        context_magic=b"OVEP_BIN",
        refuses_links=True,
        hardware_of="Intel",
        cache_properties=("CACHE_DIR",),
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
        options=known.QNN,
        all_options_known=True,
        # It lists the host's CPU, where it can prepare models for a device that is elsewhere.
        compile_only_on=("cpu",),
        compiles=True,
        shares_weights=True,
        required_options=("backend_type", "backend_path"),
        exclusive_options=("backend_type", "backend_path"),
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
                (*_X86, "linux-arm64", "windows-arm64"),
                "onnxruntime_qnn",
                "onnxruntime_providers_qnn",
                compile_only=_X86,
                # Run there; of the Windows package nothing is known.
                simulates=("linux-x86_64",),
            ),
        ),
        target=OfflineTarget(
            "npu",
            ("soc_model", "htp_arch", "vtcm_mb"),
            required=("soc_model", "htp_arch"),
            # `v2:6:2.51.0:5.51.0:73:60:8:0`, read off graphs that it compiled.
            record={"htp_arch": 4, "soc_model": 5, "vtcm_mb": 6},
            record_version="v2",
            # QNN refuses it in a session that does not compile.
            compiling_options=("enable_htp_prepare_only",),
        ),
        backend_options=("backend_type", "backend_path"),
        backends={
            "htp": "QnnHtp",
            "gpu": "QnnGpu",
            "cpu": "QnnCpu",
            "saver": "QnnSaver",
            "ir": "QnnIr",
            "genie": "Genie",
        },
    ),
    Ep(
        name="DmlExecutionProvider",
        alias="dml",
        aliases=("directml",),
        genai_name="DML",
        devices=("gpu",),
        memory="own",
        options=known.DML,
        all_options_known=True,
        device_options=("device_index", "luid"),
        default_device="gpu",
        packages=(Package("onnxruntime-genai-directml", ("windows-x86_64",)),),
    ),
    Ep(
        name="VitisAIExecutionProvider",
        alias="vitisai",
        genai_name="VitisAI",
        devices=("npu",),
        compiles=True,
        options=known.VITISAI,
        default_device="npu",
        otherwise="comes with AMD's Ryzen AI software and with Windows ML",
    ),
    Ep(
        name="MIGraphXExecutionProvider",
        alias="migraphx",
        spellings=("MIGraphX", "MIGraphXExecutionProvider"),
        devices=("gpu",),
        options=known.MIGRAPHX,
        device_options=("device_id",),
        default_device="gpu",
        packages=(Package("onnxruntime-migraphx", ("linux-x86_64",)),),
    ),
    Ep(
        name="WebGpuExecutionProvider",
        alias="webgpu",
        genai_name="WebGPU",
        devices=("gpu",),
        memory="own",
        options=known.WEBGPU,
        all_options_known=True,
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
        spellings=("CoreML", "CoreMLExecutionProvider"),
        devices=("npu", "gpu", "cpu"),
        options=known.COREML,
        all_options_known=True,
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
        spellings=("ROCMExecutionProvider",),
        devices=("gpu",),
        device_options=("device_id",),
        default_device="gpu",
        packages=(Package("onnxruntime-rocm", ("linux-x86_64",)),),
    ),
    Ep(
        name="XnnpackExecutionProvider",
        alias="xnnpack",
        spellings=("XNNPACK", "XnnpackExecutionProvider"),
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
        memory="own",
        options=known.RYZENAI,
        default_device="npu",
        otherwise="comes with AMD's Ryzen AI software",
    ),
    Ep(
        name="AMDGPUExecutionProvider",
        alias="amdgpu",
        genai_name="AMDGPU",
        devices=("gpu",),
        memory="own",
        device_options=("device_id",),
        default_device="gpu",
        otherwise="comes with AMD's own software",
    ),
)

# EPs that onnxruntime's packages hold beside those above, and that take no node of a language
# model: a stage that names one runs on the CPU EP, and nothing fails (measured).
IDLE = frozenset({"AZURE", "AzureExecutionProvider"})
