"""Who speaks in each of many streams, token by token: forced headers, users, answers; all on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.training.script import ANSWER, USER, Headers, Stream


@dataclass(frozen=True, slots=True)
class Manners:
    """How long turns may be, in tokens, and the temperature of users."""

    longest_user: int = 256
    longest_answer: int = 192
    user_temperature: float = 1.0


class Said(NamedTuple):
    """The next token of every stream, and whether it is the target's own word in an answer; `[streams]`."""

    tokens: Tensor
    own: Tensor


class Dialogue:
    """Takes the target's logits of every stream and says what comes next, changing its state in place.

    No step depends on a value on the host, so that it can be captured in a CUDA graph.
    """

    def __init__(
        self, streams: Sequence[Stream], headers: Headers, manners: Manners, device: torch.device
    ) -> None:
        def vector(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        begins = [stream.begins for stream in streams]
        ends = list(accumulate(map(len, begins)))
        user_at, answer_at = ends[-1], ends[-1] + len(headers.after_user)
        pieces = [*(token for begin in begins for token in begin), *headers.after_user, *headers.after_answer]
        self.pieces = vector(pieces)
        self.cursor = vector([0, *ends[:-1]])
        self.until = vector(ends)
        self.speaker = vector([stream.speaker for stream in streams])
        self.spoken = torch.zeros_like(self.cursor)
        self.after = vector([user_at, answer_at])
        self.after_until = vector([answer_at, len(pieces)])
        self.end = vector([headers.after_user[0], headers.after_answer[0]])
        self.next_speaker = vector([ANSWER, headers.follows_answer])
        self.longest = vector([manners.longest_user, manners.longest_answer])
        warmth = torch.tensor([stream.temperature for stream in streams], device=device)
        self.temperature = torch.stack([torch.full_like(warmth, manners.user_temperature), warmth])

    def first(self) -> Said:
        """The tokens that the streams begin with."""
        return self._say(torch.zeros_like(self.cursor))

    def next(self, logits: Tensor, generator: torch.Generator) -> Said:
        """What follows, given raw logits `[streams, vocabulary]` of the token before."""
        warmth = self.temperature.gather(0, self.speaker[None])[0]
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=generator)
        # a race at temperature 0 is won by the largest logit
        return self._say((logits.float() - noise.log_() * warmth[:, None]).argmax(-1))

    def _say(self, chosen: Tensor) -> Said:
        forced = self.cursor < self.until
        known = self.pieces[self.cursor.clamp(max=len(self.pieces) - 1)]
        end = self.end[self.speaker]
        cut = self.spoken + 1 >= self.longest[self.speaker]
        ended = ~forced & ((chosen == end) | cut)
        tokens = torch.where(forced, known, torch.where(ended, end, chosen))
        own = ~forced & (self.speaker == ANSWER) & (tokens == chosen)
        after, until = self.after[self.speaker], self.after_until[self.speaker]
        self.cursor.copy_(torch.where(ended, after + 1, self.cursor + forced))
        self.until.copy_(torch.where(ended, until, self.until))
        self.spoken.copy_(torch.where(forced | ended, 0, self.spoken + 1))
        self.speaker.copy_(torch.where(ended, self.next_speaker[self.speaker], self.speaker))
        return Said(tokens, own)


__all__ = ["ANSWER", "USER", "Dialogue", "Manners", "Said"]
