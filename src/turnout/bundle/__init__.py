"""What is on disk: configs, ONNX headers, tokenizers. Reads; never executes a model."""

from turnout.bundle.bundle import Bundle
from turnout.bundle.config import CONFIG_NAME, GenaiConfig, ProviderEntry, Stage

__all__ = ["CONFIG_NAME", "Bundle", "GenaiConfig", "ProviderEntry", "Stage"]
