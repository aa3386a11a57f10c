"""The provider options of OpenVINO that are known: as a plugin, and built into onnxruntime.

The plugin 1.8.1 was run; what is built into onnxruntime-openvino 1.24 was read.
"""

from __future__ import annotations

from turnout.catalog.devices import PRECISIONS
from turnout.catalog.grammars import Device, Number, Properties, Shapes, Words
from turnout.catalog.options import BUILT_IN, PLUGIN, Option

_PLUGIN, _BUILT_IN = (PLUGIN,), (BUILT_IN,)


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
