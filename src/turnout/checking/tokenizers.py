"""Checks of tokenizer and chat template (codes T33x).

What onnxruntime-genai 0.18 does with each was measured by tests/test_checking_tokenizers.py.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from turnout.bundle import Bundle
from turnout.bundle.tokenizer import (
    CONFIG,
    FILES,
    MAX_BYTES,
    TEMPLATE,
    TEMPLATE_JSON,
    parse_config,
)
from turnout.checking.file_rules import OUTSIDE
from turnout.checking.files import problem_with
from turnout.checking.findings import Finding
from turnout.checking.locating import Located, is_pointer, locate
from turnout.checking.subject import Subject
from turnout.checking.templates import flaw_of
from turnout.checking.tokenizer_rules import (
    ADDED,
    EOS,
    LOOSE,
    NO_CLASS,
    NO_TEMPLATE,
    TEMPLATE_BROKEN,
    TOKENIZER_BROKEN,
    TOKENIZER_MISSING,
    TOKENIZER_RULES,
    UNKNOWN_CLASS,
    VALUES,
    VOCABULARY,
)
from turnout.checking.tokenizer_values import config_flaws
from turnout.checking.vocabulary import Vocabulary, read_vocabulary

RULES = TOKENIZER_RULES
VOCABULARY_FILE = "tokenizer.json"
_MODULE = "tokenizer_module.json"
_FETCH = "fetch it again from where the model comes from"
_SHOWN = 200
_MOST_FLAWS = 4
# Where fewer than one in so many tokens of the model have no embedding, most prompts work.
_MANY = 100
# The classes that onnxruntime-genai 0.18 makes tokenizers of, each also with `Fast` behind it;
# each was tried.
CLASSES = frozenset(
    {
        "", "BaichuanTokenizer", "CLIPTokenizer", "ChatGLMTokenizer", "CodeGenTokenizer",
        "CodeLlamaTokenizer", "DebertaV2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer",
        "GemmaTokenizer", "InternLM2Tokenizer", "LlamaTokenizer", "MarianTokenizer",
        "MistralCommonBackend", "Phi3Tokenizer", "PreTrainedTokenizer", "PythonBackend",
        "Qwen2Tokenizer", "SentencePieceBackend", "T5Tokenizer", "TokenizersBackend",
        "WhisperTokenizer", "XLMRobertaTokenizer",
    }
)  # fmt: skip
# Kinds of models that it takes where no class is named.
_KINDS = frozenset({"", "BPE", "Unigram"})


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about tokenizer and chat template."""
    if subject.bundle is not None:
        yield from _check(subject, subject.bundle)


def _check(subject: Subject, bundle: Bundle) -> Iterator[Finding]:
    named = subject.config.get(("model", "tokenizer_dir"))
    folder = named if isinstance(named, str) and named else "."
    located = locate(bundle, folder)
    if folder != "." and located.found != "a folder":
        what = f"The folder of the tokenizer, {folder[:_SHOWN]},"
        if located.path is not None:
            located = Located(None, "missing", "a file")
        yield problem_with(
            located, what, subject.place(("model", "tokenizer_dir")), TOKENIZER_MISSING, OUTSIDE
        )
        return
    yield from _Tokenizer(subject, bundle, folder).findings()


@dataclass(frozen=True)
class _Tokenizer:
    subject: Subject
    bundle: Bundle
    folder: str  # relative to the bundle

    def findings(self) -> Iterator[Finding]:
        """What is wrong with its files."""
        config = None
        read = self.document(CONFIG)
        if isinstance(read, Finding):
            yield read
        else:
            if read[1]:
                yield self.loose(CONFIG, read[1])
            config = yield from self.with_module(read[0])
            yield from self.values(CONFIG, list(islice(config_flaws(config), _MOST_FLAWS)))
        yield from self.links()
        vocabulary = self.vocabulary(config or {})
        if isinstance(vocabulary, Finding):
            yield vocabulary
        elif vocabulary is not None:
            yield from self.values(VOCABULARY_FILE, vocabulary.flaws)
            if vocabulary.rest:
                yield self.loose(VOCABULARY_FILE, f"{vocabulary.rest!r} behind the end")
        if config is None:
            return
        kind = vocabulary.kind if isinstance(vocabulary, Vocabulary) else ""
        unknown = list(self.of_class(config, kind))
        yield from unknown
        yield from self.template(config, has_class=bool(unknown or config.get("tokenizer_class")))
        if isinstance(vocabulary, Vocabulary):
            yield from self.ids(config, vocabulary)

    def with_module(self, config: Mapping[str, Any]) -> Generator[Finding, None, Mapping[str, Any]]:
        """The config with what `tokenizer_module.json`, where it is there, says over it."""
        if self.located(_MODULE).path is None:
            return config
        module = self.document(_MODULE)
        if isinstance(module, Finding):
            yield module
            return config
        return {**config, **module[0]}

    def links(self) -> Iterator[Finding]:
        """Files that the runtime would read, and that lead out of the bundle."""
        for file in FILES:
            located = self.located(file)
            if located.problem == "link" and file not in {CONFIG, VOCABULARY_FILE}:
                yield self.unusable(file, located)

    def name(self, file: str) -> str:
        """A file of the tokenizer, relative to the bundle."""
        return file if self.folder == "." else f"{self.folder}/{file}"

    def located(self, file: str) -> Located:
        """Where a file of the tokenizer is."""
        return locate(self.bundle, self.name(file))

    def unusable(self, file: str, located: Located) -> Finding:
        """The finding for a file that is not there, or none."""
        name = self.name(file)
        what = f"The tokenizer's file {name}"
        return problem_with(located, what, name, TOKENIZER_MISSING, OUTSIDE)

    def broken(self, file: str, found: str, expected: str = "JSON") -> Finding:
        """The finding for a file that cannot be read."""
        name = self.name(file)
        return TOKENIZER_BROKEN.at(
            name,
            f"The tokenizer's file {name} cannot be read.",
            found=found[:_SHOWN],
            expected=expected,
            fix=_FETCH,
        )

    def values(self, file: str, flaws: Sequence[str]) -> Iterator[Finding]:
        """The finding for values that the runtime does not take, if there are any."""
        if flaws:
            name = self.name(file)
            yield VALUES.at(
                name,
                f"The runtime makes no tokenizer of {name} as it is.",
                found="; ".join(flaws)[:_SHOWN],
                fix=_FETCH,
            )

    def loose(self, file: str, found: str) -> Finding:
        """The finding for a file that others than the runtime refuse."""
        name = self.name(file)
        return LOOSE.at(
            name,
            f"The tokenizer's file {name} is not quite JSON.",
            found=found[:_SHOWN],
            expected="one JSON object, and nothing else",
            fix=_FETCH,
        )

    def document(self, file: str) -> tuple[Mapping[str, Any], str] | Finding:
        """A JSON object, and what beside it is no JSON; or what is wrong with the file."""
        located = self.located(file)
        if located.path is None:
            return self.unusable(file, located)
        if is_pointer(located.path):
            return self.broken(file, "a Git LFS pointer")
        try:
            document, odd = parse_config(_read(located.path))
        except (OSError, ValueError, RecursionError) as error:
            return self.broken(file, str(error))
        return (
            (document, odd) if isinstance(document, dict) else self.broken(file, "no JSON object")
        )

    def vocabulary(self, config: Mapping[str, Any]) -> Vocabulary | Finding | None:
        """The ids, or what is wrong with the file; None where they are in a file of tiktoken."""
        other = config.get("tiktoken_file")
        if isinstance(other, str) and other:
            located = self.located(other)
            return None if located.path is not None else self.unusable(other, located)
        located = self.located(VOCABULARY_FILE)
        if located.path is None:
            return self.unusable(VOCABULARY_FILE, located)
        if is_pointer(located.path):
            return self.broken(VOCABULARY_FILE, "a Git LFS pointer")
        try:
            return read_vocabulary(located.path)
        except (OSError, ValueError) as error:
            return self.broken(VOCABULARY_FILE, str(error))

    def of_class(self, config: Mapping[str, Any], kind: str) -> Iterator[Finding]:
        """What is wrong with the tokenizer's class."""
        given = config.get("tokenizer_class", "")
        name = self.name(CONFIG)
        known = isinstance(given, str) and given.removesuffix("Fast") in CLASSES
        if known and (given or kind in _KINDS):
            return
        yield UNKNOWN_CLASS.at(
            name,
            f"onnxruntime-genai 0.18 makes no tokenizer of the class {str(given)[:_SHOWN]!r}."
            if not known
            else f"onnxruntime-genai 0.18 makes no tokenizer of the kind {kind}.",
            found=repr(given)[:_SHOWN] if not known else f"{kind} in {VOCABULARY_FILE}",
            expected=", ".join(sorted(CLASSES - {""})) if not known else "BPE or Unigram",
            fix="where tokenizer.json is BPE, PreTrainedTokenizerFast will do",
        )

    def template(self, config: Mapping[str, Any], *, has_class: bool) -> Iterator[Finding]:
        """What is wrong with the chat template that takes effect."""
        if "chat_template" in config:
            text, file = config["chat_template"], CONFIG
        else:
            file = next((f for f in (TEMPLATE, TEMPLATE_JSON) if self.located(f).path), "")
            found = self.template_of(file) if file else ""
            if isinstance(found, Finding):
                yield found
                return
            text = found
        if not isinstance(text, str):
            kind = {list: "a list", dict: "an object", type(None): "null"}.get(type(text), "none")
            yield self.bad_template(file, kind)
        elif not text:
            yield NO_TEMPLATE.at(
                self.name(CONFIG),
                "There is no chat template.",
                fix="use --raw, or add the chat_template that the model was tuned with",
            )
        elif not has_class:
            yield NO_CLASS.at(
                self.name(CONFIG),
                "The chat template has no effect without a tokenizer_class.",
                found="no tokenizer_class",
                expected="a tokenizer_class",
                fix="add the tokenizer_class of the model",
            )
        if isinstance(text, str) and (flaw := flaw_of(text)) is not None:
            yield self.bad_template(file, flaw, "statements that the runtime knows, and their ends")

    def template_of(self, file: str) -> Any:
        """The template that a file of its own holds, or what is wrong with it."""
        path = self.located(file).path
        assert path is not None  # the caller looked
        try:
            data = _read(path)
            if file == TEMPLATE:
                return data.decode("utf-8")
            document = json.loads(data)
        except (OSError, ValueError, RecursionError) as error:
            return self.bad_template(file, str(error)[:_SHOWN])
        if not isinstance(document, dict):
            return self.bad_template(file, "no JSON object")
        return document.get("chat_template", "")

    def bad_template(self, file: str, found: str, expected: str = "UTF-8 text") -> Finding:
        """The finding for a template that the runtime does not take."""
        name = self.name(file)
        return TEMPLATE_BROKEN.at(
            name,
            f"The chat template in {name} cannot be used.",
            found=found,
            expected=expected,
            fix="write the template as one text"
            if expected == "UTF-8 text"
            else "mend the template, or take the one of the model",
        )

    def ids(self, config: Mapping[str, Any], vocabulary: Vocabulary) -> Iterator[Finding]:
        """Ids that the model does not have."""
        added = {**vocabulary.added, **_decoder_tokens(config)}
        size = self.subject.config.get(("model", "vocab_size"))
        if type(size) is int and size > 0:
            yield from self.outside(vocabulary, added, size)
        eos = _text_of(config.get("eos_token"))
        if eos is None:
            return
        number = added.get(eos, vocabulary.find(eos))
        ends = self.subject.config.get(("model", "eos_token_id"))
        known = ends if isinstance(ends, list) else [ends]
        if number is None or ends is None or number in known:
            return
        yield EOS.at(
            self.subject.place(("model", "eos_token_id")),
            f"The tokenizer's eos_token {eos[:_SHOWN]!r} is not among the config's eos_token_id.",
            found=str(ends)[:_SHOWN],
            expected=number,
            fix=f"add {number} to eos_token_id, where answers do not end",
        )

    def outside(
        self, vocabulary: Vocabulary, added: Mapping[str, int], size: int
    ) -> Iterator[Finding]:
        """Tokens whose ids are not below `vocab_size`."""
        own = {t: n for t, n in vocabulary.pieces.items() if n >= size and t not in added}
        beyond = {text: number for text, number in added.items() if number >= size}
        if len(own) * _MANY < len(vocabulary.pieces):
            beyond, own = {**own, **beyond}, {}
        for rule, ids in ((VOCABULARY, own), (ADDED, beyond)):
            if not ids:
                continue
            shown = ", ".join(
                repr(text[:40]) for text in heapq.nsmallest(3, ids, key=ids.__getitem__)
            )
            kind = "added tokens" if added.keys() >= ids.keys() else "tokens"
            yield rule.at(
                self.name(VOCABULARY_FILE),
                f"The tokenizer has {len(ids)} {kind} outside the model's vocabulary: {shown}"
                + (", ..." if len(ids) > 3 else "."),
                found=f"ids up to {max(ids.values())}",
                expected=f"ids below vocab_size, {size}",
                fix="use the tokenizer of this very model, or mend vocab_size",
            )


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return data


def _text_of(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _decoder_tokens(config: Mapping[str, Any]) -> dict[str, int]:
    """Tokens that `added_tokens_decoder` adds; the runtime adds them too."""
    entries = config.get("added_tokens_decoder")
    found = {}
    for key, value in entries.items() if isinstance(entries, dict) else ():
        text = _text_of(value) if isinstance(value, dict) else None
        if text is not None and key.isascii() and key.isdigit() and len(key) < 10:
            found[text] = int(key)
    return found
