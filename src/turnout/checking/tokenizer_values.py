"""Values in tokenizer files that make onnxruntime-genai 0.18 fail when it makes a tokenizer.

Each was tried by tests/test_checking_tokenizers.py; what it does not look at is not judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_KINDS = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
_SHOWN = 60
PRE_TOKENIZERS = frozenset(
    {
        "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace",
        "Punctuation", "Sequence", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit",
    }
)  # fmt: skip
_FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")
_TOKENS = ("bos_token", "eos_token", "unk_token")
_NUMBER = re.compile(r"\s*[+-]?\d")


def _kind_of(value: Any) -> str:
    """What a value of JSON is, in words."""
    return _KINDS.get(type(value), "a number")


def flaws_of(document: Mapping[str, Any]) -> Iterator[str]:
    """What the runtime does not take in a `tokenizer.json`: a place, and what is there."""
    model = document["model"]
    # Older files leave the type out, those with a list of pieces and scores too.
    if model.get("type", "" if isinstance(model.get("vocab"), list) else "BPE") in {None, "BPE"}:
        yield from _vocabulary_flaws(model)
        yield from _merge_flaws(model)
    yield from _added_flaws(document.get("added_tokens"))
    yield from _pre_tokenizer_flaws(document.get("pre_tokenizer"))


def _vocabulary_flaws(model: Mapping[str, Any]) -> Iterator[str]:
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict):
        yield f"model.vocab is {_kind_of(vocabulary)}" if "vocab" in model else "no model.vocab"
        return
    for text, number in vocabulary.items():
        if not isinstance(number, int | float):
            yield f"the id of {text[:_SHOWN]!r} is {_kind_of(number)}"
            return


def _merge_flaws(model: Mapping[str, Any]) -> Iterator[str]:
    if "merges" not in model:
        yield "no model.merges"
    merges = model.get("merges")
    if merges is None or merges == {}:
        return
    if not isinstance(merges, list):
        yield f"model.merges is {_kind_of(merges)}"
        return
    for index, merge in enumerate(merges):
        if isinstance(merge, str):
            # The runtime takes a first line with # for a comment, and looks for another for ever.
            is_whole = " " in merge and not (index == 0 and merge.startswith("#"))
        else:
            is_whole = (
                isinstance(merge, list)
                and len(merge) > 1
                and isinstance(merge[0], str)
                and isinstance(merge[1], str)
            )
        if not is_whole:
            yield f"model.merges[{index}] is {json.dumps(merge)[:_SHOWN]}"
            return


def _added_flaws(entries: Any) -> Iterator[str]:
    """What the runtime does not take in a list of added tokens."""
    if not isinstance(entries, list | dict | None):
        yield f"added_tokens is {_kind_of(entries)}"
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if not isinstance(entry, dict):
            yield f"added_tokens[{index}] is {_kind_of(entry)}"
        elif (flaw := _added_flaw(entry)) is not None:
            yield f"added_tokens[{index}].{flaw}"


def _added_flaw(entry: Mapping[str, Any]) -> str | None:
    """What the runtime does not take in an added token: a key, and what its value is."""
    if not isinstance(entry.get("content", ""), str):
        return f"content is {_kind_of(entry['content'])}"
    if not isinstance(entry.get("id", 0), int | float):
        return f"id is {_kind_of(entry['id'])}"
    wrong = next((key for key in _FLAGS if not isinstance(entry.get(key, True), bool)), None)
    return None if wrong is None else f"{wrong} is {_kind_of(entry[wrong])}"


def _pre_tokenizer_flaws(entry: Any) -> Iterator[str]:
    inner = entry.get("pretokenizers") if isinstance(entry, dict) else None
    for item in (entry, *(inner if isinstance(inner, list) else ())):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind is not None and (not isinstance(kind, str) or kind not in PRE_TOKENIZERS):
            yield f"a pre_tokenizer of the type {json.dumps(kind)[:_SHOWN]}"


_OTHERS: Mapping[str, Callable[[Any], bool]] = {
    "clean_up_tokenization_spaces": lambda value: isinstance(value, bool),
    "model_max_length": lambda value: type(value) in {int, float},
    "tiktoken_file": lambda value: isinstance(value, str),
}


def config_flaws(config: Mapping[str, Any]) -> Iterator[str]:
    """What the runtime does not take in a `tokenizer_config.json`: a key, and what its value is."""
    for key in _TOKENS:
        token = config.get(key)
        if not isinstance(token, str | dict | None):
            yield f"{key} is {_kind_of(token)}"
        elif isinstance(token, dict) and not isinstance(token.get("content", ""), str):
            yield f"{key}.content is {_kind_of(token['content'])}"
    for key, is_right in _OTHERS.items():
        if key in config and not is_right(config[key]):
            yield f"{key} is {_kind_of(config[key])}"
    entries = config.get("added_tokens_decoder")
    for number, entry in entries.items() if isinstance(entries, dict) else ():
        place = f"added_tokens_decoder[{number[:_SHOWN]!r}]"
        if not _NUMBER.match(number):
            yield f"{place} is no number"
        elif not isinstance(entry, dict):
            yield f"{place} is {_kind_of(entry)}"
        elif (flaw := _added_flaw({**entry, "id": 0})) is not None:
            yield f"{place}.{flaw}"
