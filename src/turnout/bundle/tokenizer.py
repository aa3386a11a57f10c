"""What a bundle's tokenizer files say, read cheaply.

Which template takes effect was measured with onnxruntime-genai 0.18 (docs/bundles.md): the
`chat_template` of `tokenizer_config.json` when that key is there, else `chat_template.jinja`,
else `chat_template.json`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from turnout.errors import TokenizerError
from turnout.files import is_file

CONFIG, TEMPLATE, TEMPLATE_JSON = (
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
MAX_BYTES = 64 << 20

# Files that together make a tokenizer, and the kind of its model; None: it is said inside.
_KINDS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("tokenizer.json",), None),
    (("tokenizer.model",), "SentencePiece"),
    (("vocab.json", "merges.txt"), "BPE"),
    (("vocab.txt",), "WordPiece"),
)
_OTHERS = (
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "tokenizer_module.json",
)
FILES = (
    *(name for names, _ in _KINDS for name in names),
    CONFIG,
    TEMPLATE,
    TEMPLATE_JSON,
    *_OTHERS,
)
_MODEL_TYPE = re.compile(rb'"model"\s*:\s*\{\s*"type"\s*:\s*"(\w{1,40})"')


@dataclass(frozen=True)
class TokenizerInfo:
    """What the files say. `kind` is the model's: BPE, Unigram, WordPiece, SentencePiece, or None.

    `files` are those that are there, `missing` those without which the runtime has no
    tokenizer. `chat_template` is the one that takes effect, and `template_file` where it is.
    """

    kind: str | None
    tokenizer_class: str | None
    files: tuple[str, ...]
    missing: tuple[str, ...]
    chat_template: str | None
    template_file: str | None


# What the runtime passes over in `tokenizer_config.json`, and strings, where it is none.
_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def no_json(text: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python takes for numbers of JSON and the runtime does not."""
    raise ValueError(f"{text}, which is no JSON")


def parse_config(data: bytes) -> tuple[Any, str]:
    """The document in a `tokenizer_config.json`, and what in the text is no JSON, "" for nothing.

    The runtime takes comments, and reads to the first zero byte. Raises `ValueError`.
    """
    text, zero, _ = data.partition(b"\0")
    whole, odd = text.decode("utf-8-sig"), "zero bytes behind the end" if zero else ""
    try:
        return json.loads(whole, parse_constant=no_json), odd
    except RecursionError as error:
        raise ValueError("too deep a nesting") from error
    except ValueError:
        bare = _COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else " ", whole)
        if bare == whole:
            raise
        return json.loads(bare, parse_constant=no_json), odd or "comments"


def read_tokenizer(folder: Path) -> TokenizerInfo:
    """Read the tokenizer files in `folder`. Raises `TokenizerError` for one that is no JSON."""
    files = sorted(name for name in FILES if is_file(folder / name))
    found = next((names for names, _ in _KINDS if set(files).issuperset(names)), None)
    config = _json(folder / CONFIG) or {}
    template, source = _template(folder, config)
    missing = [] if is_file(folder / CONFIG) else [CONFIG]
    if found is None:
        missing.append("tokenizer.json")
    kind = dict(_KINDS).get(found) if found else None
    if found and kind is None:
        kind = _model_type(folder / found[0])
    name = config.get("tokenizer_class")
    return TokenizerInfo(
        kind=kind,
        tokenizer_class=name if isinstance(name, str) else None,
        files=tuple(files),
        missing=tuple(missing),
        chat_template=template,
        template_file=source,
    )


def _model_type(path: Path) -> str | None:
    # A search instead of parsing: vocabularies make these files up to 30 MB long.
    data = _read(path)
    match = _MODEL_TYPE.search(data)
    if match is not None:
        return match.group(1).decode("ascii")
    return "BPE" if b'"merges"' in data else None  # older files leave the type out


def _template(folder: Path, config: dict[str, Any]) -> tuple[str | None, str | None]:
    if "chat_template" in config:
        text = _default_of(config["chat_template"])
        return (text, CONFIG) if text else (None, None)
    if is_file(folder / TEMPLATE):
        path = folder / TEMPLATE
        try:
            return _read(path).decode("utf-8") or None, TEMPLATE
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{path} is no UTF-8 text.", where=path) from error
    document = _json(folder / TEMPLATE_JSON)
    text = _default_of(document.get("chat_template")) if document else None
    return (text, TEMPLATE_JSON) if text else (None, None)


def _default_of(value: Any) -> str | None:
    """A template, or the one named `default` of a list of named ones."""
    if isinstance(value, list):
        named = [item for item in value if isinstance(item, dict) and item.get("name") == "default"]
        value = named[0].get("template") if named else None
    return value if isinstance(value, str) and value else None


def _json(path: Path) -> dict[str, Any] | None:
    if not is_file(path):
        return None
    try:
        data = _read(path)
        document = parse_config(data)[0] if path.name == CONFIG else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON.", found=str(error)[:200], where=path) from error
    if not isinstance(document, dict):
        raise TokenizerError(f"{path} is no JSON object.", where=path)
    return document


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TokenizerError(
            f"Cannot read {path}: {error.strerror or error}.", where=path
        ) from error
    if len(data) > MAX_BYTES:
        raise TokenizerError(
            f"{path} is too large.", expected=f"at most {MAX_BYTES} bytes", where=path
        )
    return data
