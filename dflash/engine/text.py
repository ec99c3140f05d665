"""Tokens to text, one token at a time: whole characters only, and stop strings found over token borders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_HALF = "�"


class TextStream:
    """Decodes a growing answer. `text` holds what is certain: a character split over tokens waits for its
    rest.

    Decoding works on a window of recent tokens whose start moves on once the text before it is settled, so
    each token costs the same however long the answer is.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._tokens: list[int] = []
        self._settled = 0
        self._shown = 0
        self.text = ""

    def push(self, token: int) -> str:
        """Add a token; returns the text that became certain with it."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._settled : self._shown])
        after = self._decode(self._tokens[self._settled :])
        if after.endswith(_HALF) or len(after) < len(before):
            return ""
        self._settled, self._shown = self._shown, len(self._tokens)
        fresh = after[len(before) :]
        self.text += fresh
        return fresh

    def finish(self) -> str:
        """The rest of the text, a broken last character included."""
        before = self._decode(self._tokens[self._settled : self._shown])
        fresh = self._decode(self._tokens[self._settled :])[len(before) :]
        self._settled, self._shown = self._shown, len(self._tokens)
        self.text += fresh
        return fresh

    def whole(self, tokens: Sequence[int]) -> str:
        """The text of an answer that is over; what `push` and `finish` come to, token by token."""
        return self._decode(tokens)

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


class StopWatch:
    """Finds the first stop string in an answer as it grows."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop = tuple(stop)
        self._longest = max((len(text) for text in self.stop), default=0)

    def find(self, text: str, fresh: int) -> int | None:
        """Where the earliest stop string starts that ends within the last `fresh` characters of `text`."""
        start = max(0, len(text) - fresh - self._longest + 1)
        places = [place for place in (text.find(stop, start) for stop in self.stop) if place >= 0]
        return min(places, default=None)

    def begun(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a stop string."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if any(len(stop) > size and stop.startswith(text[-size:]) for stop in self.stop):
                return size
        return 0
