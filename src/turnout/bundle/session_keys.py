"""Session options of onnxruntime that decide where compiled graphs and weights are found.

Names from onnxruntime's `onnxruntime_session_options_config_keys.h`. Values are strings; flags are
"1" or "0".
"""

from __future__ import annotations

# The folder of external data; onnxruntime-genai joins it to the bundle's own.
INITIALIZER_FOLDER = "session.model_external_initializers_file_folder_path"
# What an EP compiled is written, and where; at load, where the graph is whose binary is looked for.
CONTEXTS = "ep.context_"
CONTEXT_ENABLE = CONTEXTS + "enable"
CONTEXT_PATH = CONTEXTS + "file_path"
CONTEXT_EMBED = CONTEXTS + "embed_mode"
# Several graphs keep one copy of their weights, until the last of them is compiled.
SHARE_CONTEXTS = "ep.share_ep_contexts"
STOP_SHARING = "ep.stop_share_ep_contexts"
