"""The provider options that are known, and how each EP reads their values; OpenVINO's apart.

Sources, where nothing else is said: each EP's own parser in the source of onnxruntime, or its
documentation. QNN was run; WebGPU's library was read for its messages.
Options that onnxruntime-genai reads itself: `src/*/session_options.cpp` and `src/config.cpp`.
"""

from __future__ import annotations

from turnout.catalog.grammars import Number, Words
from turnout.catalog.options import BUILT_IN, PLUGIN, Option

_BIT = Words(("0", "1"))
_COUNT = Number()
_BOOLEAN = Words(("0", "1", "true", "false", "True", "False"))
_ARENA = Words(("kNextPowerOfTwo", "kSameAsRequested"))

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
    *(Option(name, Number(-1), generations=(BUILT_IN,)) for name in _CUDA_ARENA),
    *(Option(name, generations=(PLUGIN,)) for name in _CUDA_ARENA),
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
