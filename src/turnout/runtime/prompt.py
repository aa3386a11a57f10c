"""From what a caller says to token ids: messages, the chat template, and length checks."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from turnout.errors import GenerationError, PromptTooLongError, TokenizerError, UsageError

if TYPE_CHECKING:
    from turnout.bundle import GenaiConfig

Message = Mapping[str, Any]
# Text, the messages of a conversation, or token ids.
Prompt = str | Sequence[Message] | Sequence[int]

TOKENIZER_CONFIG = "tokenizer_config.json"
MAX_TOKENIZER_CONFIG = 16 << 20
_PROBE = "a"
_PROMPT_KINDS = "text, messages (mappings of a role and a content), or token ids"
_NO_TEMPLATE = "Empty chat template"
_BAD_TEMPLATE = "Invalid or unsupported chat template"


@dataclass(frozen=True)
class Limits:
    """How long a sequence may be, prompt and answer together, in tokens.

    `fixed` is true where the caches have that length whatever is asked, as graphs of fixed
    shape have; else the key-value buffers follow the length that is asked for. A prompt takes
    whole windows of `window` tokens.
    """

    tokens: int
    fixed: bool = False
    window: int = 1

    def taken_by(self, prompt_tokens: int) -> int:
        """Tokens that a prompt of that many takes, padding included."""
        return -(-prompt_tokens // self.window) * self.window


@dataclass(frozen=True)
class Length:
    """What one request gets: the runtime's `max_length`, and how many tokens may come out."""

    max_length: int
    new_tokens: int


def limits(config: GenaiConfig) -> Limits:
    """The limits of a bundle with that config.

    A decoder that slides a window over the prompt and is told the length of its past has
    caches of a fixed length, which is the bundle's `search.max_length`. There the runtime
    pads a prompt to whole windows, and counts the padding too (measured, docs/runtime.md).
    """
    context = config.context_length or 0
    window = config.get(("model", "decoder", "sliding_window"))
    told = config.get(("model", "decoder", "inputs", "past_sequence_length"))
    cache = config.search.get("max_length")
    if isinstance(window, dict) and told is not None and isinstance(cache, int):
        size = window.get("window_size")
        return Limits(
            min(cache, context) if context else cache,
            fixed=True,
            window=size if isinstance(size, int) and size > 0 else 1,
        )
    return Limits(context)


def special_ids(config: GenaiConfig) -> set[Any]:
    """Token ids that the config gives a meaning of their own: padding, begin and end."""
    found: set[Any] = set()
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        value = config.get(("model", name))
        found |= set(value) if isinstance(value, list) else {value}
    return found


def plan_length(prompt_tokens: int, new_tokens: int, limits: Limits) -> Length:
    """The lengths for a prompt of that many tokens, `new_tokens` cut to what is left.

    Raises `PromptTooLongError` where there is no room for even one more token.
    """
    taken = limits.taken_by(prompt_tokens)
    room = limits.tokens - taken
    if room < 1:
        padded = "" if taken == prompt_tokens else f", {taken} when padded to whole windows"
        raise PromptTooLongError(
            "The prompt is too long for this bundle.",
            found=f"a prompt of {prompt_tokens} tokens{padded}",
            expected=f"fewer than {limits.tokens}, the context of this bundle",
            fix="shorten the prompt, or use a bundle with a longer context",
        )
    new = min(new_tokens, room)
    return Length(limits.tokens if limits.fixed else prompt_tokens + new, new)


def whole_length(prompt_tokens: int, length: Length, limits: Limits) -> int:
    """The runtime's `min_length` with which no text ends before its last token."""
    return limits.taken_by(prompt_tokens) + length.new_tokens


def check_padding(ids: Sequence[int], pad_id: int | None, limits: Limits) -> None:
    """Raises `GenerationError` for a prompt that the runtime would cut at its padding token.

    It counts a prompt up to the first padding token where shapes are fixed.
    """
    if limits.fixed and pad_id is not None and pad_id in ids:
        raise GenerationError(
            "The prompt holds the bundle's padding token, where the runtime would end it.",
            found=f"token {pad_id} at position {list(ids).index(pad_id)}",
            where="model.pad_token_id",
            fix="set model.pad_token_id to a token that no prompt holds",
        )


def check_text(text: str, what: str = "prompt") -> str:
    """`text` itself. Raises `UsageError` for text that the runtime would cut or refuse."""
    if not isinstance(text, str):
        raise UsageError(f"The {what} is no text.", found=_kind(text), expected="str")
    if not text.strip():
        raise UsageError(f"The {what} is empty.", expected="some text")
    if "\0" in text:
        # The runtime takes text as a C string and silently drops what follows.
        raise UsageError(
            f"The {what} holds a NUL character.", found=f"at character {text.index(chr(0))}"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"The {what} is no valid Unicode text.",
            found=f"a lone surrogate at character {error.start}",
        ) from None
    return text


def as_sequence(said: object) -> Sequence[Message] | Sequence[int]:
    """A prompt that is no text as a list, such as an array of token ids.

    Raises `UsageError` for what no prompt can be.
    """
    if isinstance(said, Iterable) and not isinstance(said, (Mapping, bytes, bytearray)):
        return list(said)
    raise UsageError("This is no prompt.", found=_kind(said), expected=_PROMPT_KINDS)


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:200]


def check_token_ids(ids: Sequence[int], vocab_size: int | None) -> list[int]:
    """Token ids as a list. Raises `UsageError` for none, and for ids that are no tokens."""
    try:
        checked = [operator.index(token) for token in ids]
    except TypeError:
        raise UsageError(
            "This is no prompt.", found=_kind(list(ids)), expected=_PROMPT_KINDS
        ) from None
    if not checked:
        raise UsageError("The prompt is empty.", expected="at least one token")
    for token in checked:
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            raise UsageError(
                "A token id is out of range.",
                found=token,
                expected=f"0 to {vocab_size - 1}" if vocab_size is not None else "0 or more",
            )
    return checked


def as_messages(prompt: str | Sequence[Message], system: str | None = None) -> list[Message]:
    """The messages of a conversation: `prompt` as the user's, after `system` if there is one.

    Raises `UsageError` for a prompt or system message that is empty, a message without a
    role or content, and a system message given twice.
    """
    messages: list[Message]
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": check_text(prompt)}]
    else:
        said = cast("Sequence[Message]", as_sequence(prompt))
        messages = [_check_message(message, index) for index, message in enumerate(said)]
        if not messages:
            raise UsageError("There are no messages.", expected="at least one")
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise UsageError("The system message is given twice.", fix="give it once")
    return [{"role": "system", "content": check_text(system, "system message")}, *messages]


def _check_message(message: Message, index: int) -> Message:
    parts = message if isinstance(message, Mapping) else {}
    role, content = parts.get("role"), parts.get("content")
    if not isinstance(role, str) or not role or not isinstance(content, str):
        raise UsageError(
            "A message is not one.",
            found=repr(message)[:200],
            expected="a role and a content, both text",
            where=f"message {index}",
        )
    check_text(content, f"{role} message")
    return message


def render(
    tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool
) -> str | None:
    """`messages` through the bundle's own chat template; None where it has none.

    `tokenizer` is onnxruntime-genai's, which takes the messages as a JSON array. Raises
    `TokenizerError` for a template that it cannot use, and `GenerationError` for one that
    refuses these messages.
    """
    document = json.dumps([dict(message) for message in messages], ensure_ascii=False)
    try:
        text = tokenizer.apply_chat_template(document, add_generation_prompt=add_generation_prompt)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        if _NO_TEMPLATE in reason:
            return None
        if _BAD_TEMPLATE in reason:
            raise TokenizerError(
                "The runtime cannot use the bundle's chat template.",
                found=reason,
                fix="repair chat_template in tokenizer_config.json, or give the prompt raw",
            ) from None
        roles = ", ".join(str(message["role"]) for message in messages)
        raise GenerationError(
            "The bundle's chat template refuses these messages.",
            found=reason,
            where=f"messages: {roles}",
            fix="leave out the system message, let user and assistant alternate, or go raw",
        ) from None
    return str(text)


def no_template() -> TokenizerError:
    """The error for what needs a chat template, in a bundle that has none."""
    return TokenizerError(
        "This bundle has no chat template.",
        expected="a chat_template in tokenizer_config.json, or a chat_template.jinja",
        fix="give one prompt without a system message, which is then used as it is (--raw)",
    )


def begin_token(tokenizer: Any, bundle: Path) -> int | None:
    """The token that every prompt begins with; None for a bundle whose prompts have none.

    `add_bos_token` of `tokenizer_config.json` decides; without it, what the tokenizer does
    when it is asked for special tokens. (The runtime's `encode` never adds one by itself.)
    """
    wanted = _add_bos_token(bundle / TOKENIZER_CONFIG)
    if wanted is False:
        return None
    tokenizer.update_options(add_special_tokens="true")
    with_special = tokenizer.encode(_PROBE).tolist()
    tokenizer.update_options(add_special_tokens="false")
    plain = tokenizer.encode(_PROBE).tolist()
    if len(with_special) > len(plain) and with_special[-len(plain) :] == plain:
        return int(with_special[0])
    return int(tokenizer.bos_token_id) if wanted else None


def _add_bos_token(path: Path) -> bool | None:
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(MAX_TOKENIZER_CONFIG))
    except (OSError, ValueError):
        return None
    value = document.get("add_bos_token") if isinstance(document, dict) else None
    return value if isinstance(value, bool) else None
