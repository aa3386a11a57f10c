"""onnxruntime-genai's own tokenizer over a folder, without any model.

`og.Tokenizer` takes a folder or an `og.Config`; `genai_config.json` must name a model type and
a decoder, but the decoder's file is never opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def tokenizer_model(folder: Path, vocab_size: int) -> Any:
    """Write the smallest `genai_config.json` that is taken; the `og.Tokenizer` of `folder`."""
    import onnxruntime_genai as og

    config = {
        "model": {
            "type": "llama",
            "vocab_size": vocab_size,
            "context_length": 64,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "decoder": {
                "filename": "none.onnx",
                "head_size": 1,
                "hidden_size": 1,
                "num_attention_heads": 1,
                "num_hidden_layers": 1,
                "num_key_value_heads": 1,
            },
        },
        "search": {"max_length": 64},
    }
    (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    return og.Tokenizer(str(folder))
