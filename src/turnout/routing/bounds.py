"""Session options that no route sets, wherever it comes from: native code, files to be written,
and absurd threads."""

from __future__ import annotations

from turnout.bundle.session_keys import CONTEXTS
from turnout.errors import UsageError

# onnxruntime loads the library of that name into the process, with all of the user's rights.
NATIVE_CODE = "custom_ops_library"
# onnxruntime starts as many threads as it is told, and 100000 never end to start.
MOST_THREADS = 1024
_THREADS = frozenset({"intra_op_num_threads", "inter_op_num_threads"})


def check_session_option(key: str, value: object) -> None:
    """Raise `UsageError` for a session option that no route sets."""
    if key == NATIVE_CODE:
        raise UsageError(
            f"{key} has the runtime load native code, which no route chooses.",
            found=f"{key}={value}"[:200],
            fix="leave it out; only a bundle's own configuration names such a library",
        )
    # One has an EP write its compiled model into the bundle, where the next load finds it in its
    # way; the others say how, and mean nothing else but for what was compiled before.
    if key.startswith(CONTEXTS):
        raise UsageError(
            f"{key} compiles a model ahead of time, which is not done through session options.",
            found=f"{key}={value}"[:200],
            fix="leave it out; a compiled model is a bundle's own matter",
        )
    if key in _THREADS and isinstance(value, int) and value > MOST_THREADS:
        raise UsageError(
            f"{key} is too large.", found=value, expected=f"at most {MOST_THREADS} threads"
        )
