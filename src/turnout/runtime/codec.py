"""Text and messages to token ids and back, through the bundle's own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from turnout.errors import UsageError
from turnout.runtime import prompt
from turnout.runtime.detokenize import TextDecoder

NO_TEMPLATE_NOTE = "The bundle has no chat template: the prompt is used as it is."


@dataclass(frozen=True)
class Wording:
    """A prompt in the form that is tokenized, or token ids that were given as such.

    `templated` prompts ask for an answer, the others for a continuation.
    """

    text: str | None
    token_ids: tuple[int, ...] = ()
    templated: bool = False
    notes: tuple[str, ...] = ()


class Codec:
    """The tokenizer of one loaded bundle. `tokenizer` is onnxruntime-genai's."""

    def __init__(self, tokenizer: Any, bundle: Path, vocab_size: int | None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._begin = prompt.begin_token(tokenizer, bundle)
        self._before: list[int] = tokenizer.encode("a").tolist()
        before = str(tokenizer.decode(self._before))
        self._before_length = len(before)
        # SentencePiece puts a space before the first word, and the runtime leaves it there.
        self._pads = before.startswith(" ")

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Token ids; special tokens written out in `text` become themselves.

        `add_bos` puts the begin token in front, unless it is there already; None does so for
        a bundle whose tokenizer does.
        """
        ids: list[int] = self._tokenizer.encode(text).tolist() if text else []
        begin = self._begin
        if begin is None and add_bos:
            begin = int(self._tokenizer.bos_token_id)
        if begin is None or add_bos is False or ids[:1] == [begin]:
            return ids
        return [begin, *ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out, broken characters as U+FFFD."""
        decoder = self.decoder()
        return "".join([*(decoder.push(int(token)) for token in token_ids), decoder.flush()])

    def decoder(self, *, whole_text: bool = True) -> TextDecoder:
        """Decodes the tokens of one text, or (not `whole_text`) of the rest of one."""
        return TextDecoder(self._text_of, strip_space=self._pads and whole_text)

    def _text_of(self, token_ids: Sequence[int]) -> str:
        """Text of tokens in the middle of a text, up to the first byte that is broken.

        The runtime makes U+FFFD of special tokens alone, and drops a space after one, so the
        tokens are decoded behind a letter.
        """
        text = self._tokenizer.decode([*self._before, *token_ids])
        return str(text)[self._before_length :]

    def apply_template(
        self,
        said: str | Sequence[prompt.Message],
        *,
        system: str | None,
        add_generation_prompt: bool = True,
    ) -> str | None:
        """What the bundle's chat template makes of a prompt or messages; None without one."""
        messages = prompt.as_messages(said, system)
        return prompt.render(self._tokenizer, messages, add_generation_prompt=add_generation_prompt)

    def word(self, said: prompt.Prompt, *, system: str | None, raw: bool) -> Wording:
        """The form in which a prompt is tokenized.

        Text and messages go through the chat template once, unless `raw`. In a bundle without
        one, a plain prompt is used as it is, which the notes say.
        """
        if isinstance(said, str):
            return self._word_text(said, system=system, raw=raw)
        said = prompt.as_sequence(said)
        if raw or not said or not isinstance(said[0], Mapping):
            if system is not None or (said and isinstance(said[0], Mapping)):
                raise UsageError(
                    "Only a prompt of one text can be raw.", fix="leave out raw, or give one text"
                )
            ids = prompt.check_token_ids(cast("Sequence[int]", said), self._vocab_size)
            return Wording(None, tuple(ids))
        text = self.apply_template(cast("Sequence[prompt.Message]", said), system=system)
        if text is None:
            raise prompt.no_template()
        return Wording(text, templated=True)

    def _word_text(self, said: str, *, system: str | None, raw: bool) -> Wording:
        if raw:
            if system is not None:
                raise UsageError(
                    "A raw prompt has no system message.", fix="write it into the prompt"
                )
            return Wording(prompt.check_text(said))
        text = self.apply_template(said, system=system)
        if text is not None:
            return Wording(text, templated=True)
        if system is not None:
            raise prompt.no_template()
        return Wording(said, notes=(NO_TEMPLATE_NOTE,))
