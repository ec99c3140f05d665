"""Texts to train on, with the target's hidden states and what it thought of every next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dflash.training.distribution_loss import Teacher

_OUT = -1e4


class Opinions(Protocol):
    """What the target thought after each token of each text."""

    def at(self, texts: Tensor, positions: Tensor) -> Teacher:
        """The target's logits of what follows `positions` `[B, n]` of the texts `[B]`, rows in order."""


@dataclass(slots=True)
class HiddenOpinions:
    """Kept as the states that the output head reads, `[texts, length, hidden]`."""

    last: Tensor
    weight: Tensor
    bias: Tensor | None

    def at(self, texts: Tensor, positions: Tensor) -> Teacher:
        """See `Opinions`."""
        rows = self.last[texts[:, None], positions].flatten(0, 1)
        return _HiddenTeacher(rows, self.weight, self.bias)


@dataclass(slots=True)
class TopOpinions:
    """Kept as the largest logits and their tokens, `[texts, length, K]`; nothing else has mass."""

    tokens: Tensor
    values: Tensor
    vocabulary: int

    def at(self, texts: Tensor, positions: Tensor) -> Teacher:
        """See `Opinions`."""
        chosen = (texts[:, None], positions)
        tokens, values = self.tokens[chosen].flatten(0, 1), self.values[chosen].flatten(0, 1)
        return _TopTeacher(tokens, values, self.vocabulary)


@dataclass(slots=True)
class _HiddenTeacher:
    states: Tensor
    weight: Tensor
    bias: Tensor | None

    def logits(self, rows: slice) -> Tensor:
        return functional.linear(self.states[rows], self.weight, self.bias)


@dataclass(slots=True)
class _TopTeacher:
    tokens: Tensor
    values: Tensor
    vocabulary: int

    def logits(self, rows: slice) -> Tensor:
        values = self.values[rows]
        return values.new_full((len(values), self.vocabulary), _OUT).scatter(-1, self.tokens[rows], values)


@dataclass(slots=True)
class Corpus:
    """Equally long texts on one device.

    Attributes:
        tokens: int64 `[texts, length]`.
        own: bool `[texts, length]`, whether a token is the target's own word in an answer; nothing else is
            drafted.
        taps: `[texts, length, taps x hidden]`.
        opinions: Of the target, after every token.
    """

    tokens: Tensor
    own: Tensor
    taps: Tensor
    opinions: Opinions

    @property
    def length(self) -> int:
        """Tokens of a text."""
        return self.tokens.shape[1]


def empty_corpus(texts: int, length: int, taps: int, model: torch.nn.Module) -> Corpus:
    """Room for texts of a transformers model, on its device and in its dtype."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    weight = head.weight.detach()
    hidden = weight.shape[1]
    return Corpus(
        torch.zeros(texts, length, dtype=torch.long, device=weight.device),
        torch.zeros(texts, length, dtype=torch.bool, device=weight.device),
        weight.new_zeros(texts, length, taps * hidden),
        HiddenOpinions(weight.new_zeros(texts, length, hidden), weight, getattr(head, "bias", None)),
    )


class Anchors:
    """Draws where to draft from: texts, and positions whose token and next token are the target's own."""

    def __init__(self, own: Tensor, texts: slice = slice(None)) -> None:
        mask = own[texts].cpu().numpy()
        usable = mask[:, :-1] & mask[:, 1:]
        self.counts: NDArray[np.int64] = usable.sum(1)
        self.starts = np.concatenate([[0], self.counts.cumsum()[:-1]])
        self.positions = np.nonzero(usable)[1]
        self.texts = np.flatnonzero(self.counts)

    def draw(self, texts: int, anchors: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """`[texts]` and `[texts, anchors]`, on the host; texts differ from each other if there are enough."""
        chosen = generator.choice(self.texts, texts, replace=texts > len(self.texts))
        place = (generator.random((texts, anchors)) * self.counts[chosen, None]).astype(np.int64)
        return torch.from_numpy(chosen), torch.from_numpy(self.positions[self.starts[chosen, None] + place])
