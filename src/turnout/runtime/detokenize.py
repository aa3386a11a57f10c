"""Tokens to text, one at a time, without losing or breaking a character.

The runtime's own `TokenizerStream` drops readable tokens that follow bytes which never
complete a character, and its `decode` stops at the first such byte (measured, see
docs/runtime.md). So tokens are decoded alone, and only those that are parts of a character
are held back and decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
# A character of UTF-8 is at most four bytes, and a token is at least one.
MAX_PARTS = 4


class TextDecoder:
    """Turns the tokens of one text into pieces; `decode` is the runtime's, ids to text.

    A byte that is part of no character becomes U+FFFD. `strip_space` drops one leading
    space, which SentencePiece models put before the first word of every text.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], *, strip_space: bool = False
    ) -> None:
        self._decode = decode
        self._strip_space = strip_space
        self._parts: list[int] = []
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that `token` completes; "" for a special token or a part of a character."""
        alone = self._decode([token])
        if alone and REPLACEMENT in alone:
            self._parts.append(token)
            return self._strip(self._settle(final=False))
        return self._strip(self._settle(final=True) + alone)

    def flush(self) -> str:
        """What is left at the end of the text, incomplete characters replaced."""
        return self._strip(self._settle(final=True))

    def _settle(self, *, final: bool) -> str:
        """Text of the held parts; with `final` nothing stays held."""
        text = ""
        while self._parts:
            joined = self._decode(self._parts)
            if REPLACEMENT not in joined:
                text += joined[self._shown :]
                self._parts, self._shown = [], 0
                break
            start = self._clean_parts()
            incomplete = len(self._parts) - start < MAX_PARTS
            if incomplete and not final:
                clean = joined.index(REPLACEMENT)
                text += joined[self._shown : clean]
                self._shown = max(self._shown, clean)
                break
            # The part after the clean ones begins with bytes that nothing completes.
            spoiled = self._decode(self._parts[: start + 1])[self._shown :]
            # One mark for all bytes of a character that was cut short.
            text += "" if spoiled == REPLACEMENT and text.endswith(REPLACEMENT) else spoiled
            self._parts, self._shown = self._parts[start + 1 :], 0
        return text

    def _clean_parts(self) -> int:
        """How many parts from the first make whole characters."""
        for count in range(len(self._parts), 0, -1):
            if REPLACEMENT not in self._decode(self._parts[:count]):
                return count
        return 0

    def _strip(self, text: str) -> str:
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text
