"""A lane: one of the engine's concurrent requests, its trunk, and where its answer ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from dflash.engine.request import Request
from dflash.engine.text import StopWatch, TextStream


class Truncation(StrEnum):
    """Why a round's tokens were cut, or that they were not."""

    NONE = "none"
    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    INTERRUPTED = "interrupted"


class Emission(NamedTuple):
    """How many of a round's tokens were kept, and why no more."""

    emitted: int
    truncated_by: Truncation


@dataclass(slots=True)
class Lane:
    """A request being decoded. `trunk` is the prompt and every committed token."""

    index: int
    request: Request
    eos: frozenset[int]
    stream: TextStream
    on_text: Callable[[str], None] | None = None
    trunk: list[int] = field(default_factory=list)
    rounds: int = 0
    finish: Truncation = Truncation.NONE
    stop_at: int | None = None
    shown: int = 0

    @classmethod
    def start(
        cls,
        index: int,
        request: Request,
        eos: frozenset[int],
        tokenizer: Any,
        on_text: Callable[[str], None] | None,
    ) -> Lane:
        """A lane whose trunk is the prompt."""
        return cls(index, request, eos, TextStream(tokenizer), on_text, list(request.prompt_tokens))

    @property
    def output(self) -> list[int]:
        """The committed tokens after the prompt."""
        return self.trunk[len(self.request.prompt_tokens) :]

    @property
    def left(self) -> int:
        """Tokens that may still be emitted."""
        return self.request.max_new_tokens + len(self.request.prompt_tokens) - len(self.trunk)

    @property
    def text(self) -> str:
        """The answer, cut before its stop string."""
        if not self.listening:
            return self.stream.whole([token for token in self.output if token not in self.eos])
        return self.stream.text if self.stop_at is None else self.stream.text[: self.stop_at]

    @property
    def done(self) -> bool:
        """Whether the answer has ended."""
        return self.finish is not Truncation.NONE

    def emit(self, tokens: Sequence[int]) -> Emission:
        """Commit a round's tokens one by one, exactly as plain decoding would, until one of them ends the
        answer.
        """
        for count, token in enumerate(tokens, start=1):
            self.trunk.append(token)
            if (reason := self._ends_with(token)) is not Truncation.NONE:
                self.finish = reason
                self._close_text()
                return Emission(count, reason)
        return Emission(len(tokens), Truncation.NONE)

    def take(self, tokens: Sequence[int], rounds: int, finish: Truncation) -> None:
        """Commit the tokens of several rounds, whose end is known, where nobody follows the text."""
        self.trunk += tokens
        self.rounds += rounds
        self.finish = finish

    def interrupt(self) -> None:
        """End the answer where it is."""
        self.finish = Truncation.INTERRUPTED
        self._close_text()

    @property
    def listening(self) -> bool:
        """Whether somebody wants the text as it grows."""
        return bool(self.request.stop or self.on_text)

    def _ends_with(self, token: int) -> Truncation:
        if token in self.eos:
            return Truncation.EOS
        if self.listening:
            self._show(self.stream.push(token))
        if self.stop_at is not None:
            return Truncation.STOP
        if self.left <= 0:
            return Truncation.LENGTH
        return Truncation.NONE

    def _show(self, fresh: str) -> None:
        if not fresh:
            return
        watch = StopWatch(self.request.stop)
        self.stop_at = watch.find(self.stream.text, len(fresh))
        if self.stop_at is None:
            self._tell(len(self.stream.text) - watch.begun(self.stream.text))

    def _close_text(self) -> None:
        if not self.listening:
            return
        if self.stop_at is None:
            self.stream.finish()
        self._tell(len(self.text))

    def _tell(self, end: int) -> None:
        if self.on_text and end > self.shown:
            self.on_text(self.stream.text[self.shown : end])
            self.shown = end
