"""What is on disk: configs, ONNX headers, tokenizers. Reads; never executes a model."""

from turnout.bundle.bundle import COMPILED, DERIVED_MARK, Bundle
from turnout.bundle.checks import require_regular
from turnout.bundle.config import CONFIG_NAME, GenaiConfig, ProviderEntry, Stage
from turnout.bundle.graph import GraphFile
from turnout.bundle.layouts import DEVICE_FILTER
from turnout.bundle.session_keys import INITIALIZER_FOLDER
from turnout.bundle.tokenizer import TokenizerInfo
from turnout.bundle.weights import Weights, weigh

__all__ = [
    "COMPILED",
    "CONFIG_NAME",
    "DERIVED_MARK",
    "DEVICE_FILTER",
    "INITIALIZER_FOLDER",
    "Bundle",
    "GenaiConfig",
    "GraphFile",
    "ProviderEntry",
    "Stage",
    "TokenizerInfo",
    "Weights",
    "require_regular",
    "weigh",
]
