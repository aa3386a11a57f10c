"""The provider options that are known, and how each EP reads their values.

Sources, where nothing else is said: each EP's own parser in the source of onnxruntime, or its
documentation. OpenVINO as a plugin and QNN were run; WebGPU's library was read for its messages.
Options that onnxruntime-genai reads itself: `src/*/session_options.cpp` and `src/config.cpp`.
"""

from __future__ import annotations

from turnout.catalog.devices import PRECISIONS
from turnout.catalog.grammars import Device, Number, Properties, Shapes, Words
from turnout.catalog.options import BUILT_IN, PLUGIN, Option

_PLUGIN, _BUILT_IN = (PLUGIN,), (BUILT_IN,)
_BIT = Words(("0", "1"))
_COUNT = Number()
_BOOLEAN = Words(("0", "1", "true", "false", "True", "False"))
_ARENA = Words(("kNextPowerOfTwo", "kSameAsRequested"))


def _in_load_config(properties: str) -> str:
    return f"write it in load_config as {properties}"


_PRECISIONS = ("f32", "f16", "bf16", "FP32", "FP16", "BF16", "dynamic", "undefined", "")
# Properties of OpenVINO's CPU device (2026.4) with a value that is none of these do not load.
_CPU_PROPERTIES = Properties(
    "CPU",
    (
        ("INFERENCE_PRECISION_HINT", Words(_PRECISIONS)),
        ("PERFORMANCE_HINT", Words(("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"))),
        ("EXECUTION_MODE_HINT", Words(("PERFORMANCE", "ACCURACY", ""))),
    ),
)

# OpenVINO as a plugin, 1.8.1, measured. It says "Provider option X is ignored" in its log, which
# onnxruntime-genai does not show by default; `device_type` and `cache_dir` never reach it, since
# onnxruntime-genai turns them into a device and into `load_config`.
_OPENVINO_PLUGIN = (
    Option("device_type", Device(single=True), refuses=True, for_genai=True, generations=_PLUGIN),
    Option(
        "load_config",
        Properties(),
        refuses=True,
        by_device={"cpu": _CPU_PROPERTIES},
        generations=_PLUGIN,
    ),
    Option("cache_dir", is_path=True, for_genai=True, generations=_PLUGIN),
    # onnxruntime-genai looks for exactly "True"; with another word for it the first prompt fails.
    Option(
        "enable_causallm",
        Words(("True", "False", "false", "FALSE", "0", "")),
        refuses=True,
        generations=_PLUGIN,
    ),
    Option(
        "hint_enable_gqa",
        Words(("true", "false", "1", "0", ""), folded=True),
        refuses=True,
        generations=_PLUGIN,
    ),
    Option("reshape_input", Shapes(), refuses=True, generations=_PLUGIN),
    Option("dump_subgraphs", generations=_PLUGIN),
    Option("device_id", ignored="write device_type", generations=_PLUGIN),
    Option(
        "device_luid",
        ignored="narrow it by device_filtering_options",
        generations=_PLUGIN,
    ),
    Option(
        "precision",
        ignored=_in_load_config('{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'),
        generations=_PLUGIN,
    ),
    Option(
        "num_of_threads",
        ignored=_in_load_config('{"CPU": {"INFERENCE_NUM_THREADS": "$value"}}'),
        generations=_PLUGIN,
    ),
    Option(
        "num_streams",
        ignored=_in_load_config('{"CPU": {"NUM_STREAMS": "$value"}}'),
        generations=_PLUGIN,
    ),
    Option(
        "model_priority",
        ignored=_in_load_config('{"GPU": {"MODEL_PRIORITY": "LOW"}}'),
        generations=_PLUGIN,
    ),
    Option(
        "enable_opencl_throttling",
        ignored=_in_load_config('{"GPU": {"PLUGIN_THROTTLE": "1"}}'),
        generations=_PLUGIN,
    ),
    Option(
        "enable_qdq_optimizer",
        ignored=_in_load_config('{"NPU": {"NPU_QDQ_OPTIMIZATION": "YES"}}'),
        generations=_PLUGIN,
    ),
    Option("disable_dynamic_shapes", ignored="remove it", generations=_PLUGIN),
    Option("layout", ignored="remove it", generations=_PLUGIN),
    Option("context", ignored="remove it", generations=_PLUGIN),
)

_BUILT_IN_SWITCH = Words(("true", "True", "false", "False"))

# OpenVINO built into onnxruntime-openvino 1.24 (`openvino_provider_factory.cc`): not run here.
# What is deprecated there, and since when, is in its documentation.
_OPENVINO_BUILT_IN = (
    Option("device_type", Device(), refuses=True, generations=_BUILT_IN),
    Option(
        "device_id",
        Words(("CPU", "GPU", "NPU")),
        refuses=True,
        deprecated="write device_type",
        generations=_BUILT_IN,
    ),
    Option("device_luid", generations=_BUILT_IN),
    Option(
        "precision",
        Words(("FP16", "FP32", "ACCURACY")),
        refuses=True,
        by_device={kind.lower(): Words(words) for kind, words in PRECISIONS.items()},
        deprecated=_in_load_config('{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'),
        generations=_BUILT_IN,
    ),
    Option("load_config", Properties(), refuses=True, generations=_BUILT_IN),
    Option(
        "cache_dir",
        is_path=True,
        deprecated=_in_load_config('{"CPU": {"CACHE_DIR": "cache"}}'),
        generations=_BUILT_IN,
    ),
    Option(
        "num_of_threads",
        Number(),
        refuses=True,
        deprecated=_in_load_config('{"CPU": {"INFERENCE_NUM_THREADS": "$value"}}'),
        generations=_BUILT_IN,
    ),
    Option(
        "num_streams",
        Number(least=None),
        refuses=True,
        deprecated=_in_load_config('{"CPU": {"NUM_STREAMS": "$value"}}'),
        generations=_BUILT_IN,
    ),
    Option(
        "model_priority",
        Words(("LOW", "MEDIUM", "HIGH", "DEFAULT")),
        deprecated=_in_load_config('{"GPU": {"MODEL_PRIORITY": "LOW"}}'),
        generations=_BUILT_IN,
    ),
    Option("enable_opencl_throttling", _BUILT_IN_SWITCH, refuses=True, generations=_BUILT_IN),
    Option(
        "enable_qdq_optimizer",
        _BUILT_IN_SWITCH,
        refuses=True,
        deprecated=_in_load_config('{"NPU": {"NPU_QDQ_OPTIMIZATION": "YES"}}'),
        generations=_BUILT_IN,
    ),
    Option(
        "enable_causallm",
        Words(("True", "False", "false")),
        refuses=True,
        generations=_BUILT_IN,
    ),
    Option("disable_dynamic_shapes", _BUILT_IN_SWITCH, refuses=True, generations=_BUILT_IN),
    Option("reshape_input", Shapes(), refuses=True, generations=_BUILT_IN),
    Option("layout", generations=_BUILT_IN),
    Option("context", generations=_BUILT_IN),
)

OPENVINO = (*_OPENVINO_PLUGIN, *_OPENVINO_BUILT_IN)

_HTP_MODES = (
    "burst",
    "balanced",
    "default",
    "high_performance",
    "high_power_saver",
    "low_balanced",
    "low_power_saver",
    "power_saver",
    "extreme_power_saver",
    "sustained_high_performance",
)
_PRIORITIES = (
    "low",
    "normal_low",
    "normal",
    "normal_high",
    "high",
    "high_plus",
    "critical",
    "critical_plus",
)
_QNN_SWITCHES = (
    "disable_file_mapped_weights",
    "dump_json_qnn_graph",
    "dump_qnn_ir_dlc",
    "enable_block_quant_weight_optimization",
    "enable_dx12_shared_memory_allocator",
    "enable_framework_op_trace",
    "enable_htp_fp16_clamp_overflow",
    "enable_htp_fp16_precision",
    "enable_htp_monolithic_lstm",
    "enable_htp_prepare_only",
    "enable_htp_shared_memory_allocator",
    "enable_htp_spill_fill_buffer",
    "enable_vtcm_backup_buffer_sharing",
    "extended_udma",
    "htp_bf16_enable",
    "htp_share_resource_optimization",
    "offload_graph_io_quantization",
    "skip_qnn_version_check",
)
_QNN_PATHS = (
    "dump_qnn_ir_dlc_dir",
    "framework_op_trace_dir",
    "json_qnn_graph_dir",
    "profiling_file_path",
)
_QNN_LIBRARIES = ("qnn_ir_backend_path", "qnn_saver_path")

# onnxruntime-qnn 2.7.0. Run on x86-64: it passes over words that it does not know with a line in
# its log, and fails on two backends at once and on numbers that are none.
QNN = (
    Option("backend_type", Words(("htp", "gpu", "cpu", "saver", "ir", "genie"))),
    Option("backend_path", is_path=True, is_native=True),
    Option("htp_performance_mode", Words(_HTP_MODES)),
    Option("qnn_context_priority", Words(_PRIORITIES)),
    Option("profiling_level", Words(("off", "basic", "detailed", "optrace"))),
    Option("htp_graph_finalization_optimization_mode", Number(0, 3)),
    Option("rpc_control_latency", _COUNT, refuses=True),
    Option("device_id", _COUNT, refuses=True),
    Option("vtcm_mb", _COUNT),
    # A number or, in newer versions, a chip's name.
    Option("soc_model"),
    Option("htp_arch", _COUNT),
    Option("genie_log_level", Words(("error", "warn", "info", "verbose"))),
    Option("num_graph_prepare_threads", _COUNT),
    Option("htp_graph_splitting_num_prepare_threads", _COUNT),
    Option("op_packages", is_native=True),
    *(Option(name, _BIT) for name in _QNN_SWITCHES),
    *(Option(name, is_path=True) for name in _QNN_PATHS),
    *(Option(name, is_path=True, is_native=True) for name in _QNN_LIBRARIES),
)

# What onnxruntime-genai reads as sizes of the arena, `arena_extend_strategy` among them: the
# documentation of onnxruntime has words for it instead, on which the number fails to parse.
_CUDA_ARENA = (
    "max_mem",
    "arena_extend_strategy",
    "initial_chunk_size_bytes",
    "max_dead_bytes_per_chunk",
    "initial_growth_chunk_size_bytes",
)
CUDA = (
    Option("device_id", _COUNT),
    # onnxruntime-genai captures graphs for exactly "1".
    Option("enable_cuda_graph", _BIT),
    Option("gpu_mem_limit", _COUNT),
    *(Option(name, Number(-1), generations=_BUILT_IN) for name in _CUDA_ARENA),
    *(Option(name, generations=_PLUGIN) for name in _CUDA_ARENA),
    Option("cudnn_conv_algo_search", Words(("EXHAUSTIVE", "HEURISTIC", "DEFAULT"))),
    *(
        Option(name, _BOOLEAN)
        for name in (
            "cudnn_conv1d_pad_to_nc1d",
            "cudnn_conv_use_max_workspace",
            "do_copy_in_default_stream",
            "enable_skip_layer_norm_strict_mode",
            "fuse_conv_bias",
            "has_user_compute_stream",
            "prefer_nhwc",
            "tunable_op_enable",
            "tunable_op_tuning_enable",
            "use_ep_level_unified_stream",
            "use_tf32",
        )
    ),
    Option("sdpa_kernel", Number(least=None)),
    Option("tunable_op_max_tuning_duration_ms", _COUNT),
    Option("user_compute_stream"),
    Option("gpu_external_alloc"),
    Option("gpu_external_free"),
    Option("gpu_external_empty_cache"),
)

TENSORRT = (
    Option("device_id", _COUNT),
    *(
        Option(name, is_path=True)
        for name in (
            "trt_engine_cache_path",
            "trt_engine_decryption_lib_path",
            "trt_ep_context_file_path",
            "trt_onnx_model_folder_path",
            "trt_timing_cache_path",
        )
    ),
)

# The header in onnxruntime's source has the older `nv_cuda_graph_enable`; onnxruntime-genai and
# NVIDIA's own documentation have `enable_cuda_graph`.
TENSORRT_RTX = (
    Option("device_id", _COUNT),
    Option("enable_cuda_graph", _BIT),
    Option("nv_cuda_graph_enable", deprecated="write enable_cuda_graph"),
    Option("nv_multi_profile_enable", _BIT),
    Option("nv_max_workspace_size", _COUNT),
    Option("nv_max_shared_mem_size", _COUNT),
    Option("nv_runtime_cache_path", is_path=True),
)

_NOT_BY_GENAI = "onnxruntime-genai makes the device itself: write device_index or luid"

# All that onnxruntime-genai reads; nothing is passed on to the EP.
DML = (
    Option("device_index", _COUNT),
    Option("luid"),
    Option("enable_graph_capture", _BIT),
    Option("device_id", ignored=_NOT_BY_GENAI),
    Option("device_filter", ignored=_NOT_BY_GENAI),
    Option("performance_preference", ignored=_NOT_BY_GENAI),
    Option("disable_metacommands", ignored="remove it"),
)

_CACHE_MODE = Words(("disabled", "lazyRelease", "simple", "bucket"))

# `webgpu_provider_factory.cc`; "Invalid ..." messages are in the library of 0.4.0 as well.
WEBGPU = (
    Option("preferredLayout", Words(("NCHW", "NHWC")), refuses=True),
    Option("validationMode", Words(("disabled", "wgpuOnly", "basic", "full")), refuses=True),
    Option("powerPreference", Words(("high-performance", "low-power")), refuses=True),
    Option("dawnBackendType", Words(("D3D12", "Vulkan")), refuses=True),
    Option("kvCacheQuantizationBits", Words(("0", "4", "8")), refuses=True),
    *(
        Option(name, _BIT, refuses=True)
        for name in (
            "enableGraphCapture",
            "enableInt64",
            "enablePIXCapture",
            "enableRobustness",
            "preserveDevice",
        )
    ),
    *(
        Option(name, _CACHE_MODE, refuses=True)
        for name in (
            "storageBufferCacheMode",
            "uniformBufferCacheMode",
            "queryResolveBufferCacheMode",
            "defaultBufferCacheMode",
        )
    ),
    Option("deviceId", _COUNT, refuses=True),
    Option("maxNumPendingDispatches", Number(1, 4096), refuses=True),
    Option("maxStorageBufferBindingSize", _COUNT, refuses=True),
    Option("multiRotaryCacheConcatOffset", _COUNT, refuses=True),
    Option("sessionBufferPoolGenerations", _COUNT, refuses=True),
    Option("forceCpuNodeNames"),
    Option("dawnProcTable"),
    Option("webgpuInstance"),
    Option("webgpuDevice"),
    Option("adapterIndex"),
)

# `coreml_options.cc` fails on every other option.
COREML = (
    Option(
        "MLComputeUnits",
        Words(("CPUOnly", "CPUAndGPU", "CPUAndNeuralEngine", "ALL")),
        refuses=True,
    ),
    Option("ModelFormat", Words(("MLProgram", "NeuralNetwork")), refuses=True),
    Option("RequireStaticInputShapes", _BIT),
    Option("EnableOnSubgraphs", _BIT),
    Option("SpecializationStrategy", Words(("Default", "FastPrediction")), refuses=True),
    Option("ProfileComputePlan", _BIT),
    Option("AllowLowPrecisionAccumulationOnGPU", _BIT),
    Option("ModelCacheDirectory", is_path=True),
)

MIGRAPHX = (
    Option("device_id", _COUNT),
    Option("migraphx_arena_extend_strategy", _ARENA),
    Option("migraphx_model_cache_dir", is_path=True),
    Option("migraphx_save_compiled_model", ignored="write migraphx_model_cache_dir"),
    Option("migraphx_save_model_name", ignored="write migraphx_model_cache_dir"),
    Option("migraphx_load_compiled_model", ignored="write migraphx_model_cache_dir"),
    Option("migraphx_load_model_name", ignored="write migraphx_model_cache_dir"),
)

VITISAI = (
    Option("config_file", is_path=True),
    Option("cacheDir", is_path=True),
    Option("cache_dir", is_path=True),
    Option("xclbin", is_path=True),
    Option("external_ep_libray", is_path=True, is_native=True),
)

RYZENAI = (Option("external_data_file", is_path=True),)
