"""What is taken out of a config so that loading it writes nothing."""

from __future__ import annotations

from turnout.bundle import GenaiConfig
from turnout.bundle.session_keys import CONTEXT_ENABLE


def without_compiling(config: GenaiConfig) -> GenaiConfig:
    """`config` without the session option that has an EP write its compiled model.

    Measured with OpenVINO's plugin: it writes into the source's folder, also from a derived
    bundle, and what it wrote makes every later load fail. `config` itself where nothing asks
    for it. Raises `ConfigError`.
    """
    for stage in config.stages():
        for path in (stage.path, ("model", stage.options_section)):
            place = (*path, "session_options", CONTEXT_ENABLE)
            if config.get(place) == "1":
                config = config.remove(place)
    return config
