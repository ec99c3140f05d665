"""Greedy tau of a drafter on texts that the target wrote greedily: draft at every position, then walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.drafters.block.model import BlockDrafter
from dflash.training.corpus import Corpus

_BATCH = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in a corpus: text number, position of its first token, how many tokens it has, and how many
    of the target's tokens are known from its first on, which judge the drafts of the last rounds.
    """

    text: int
    first: int
    count: int
    known: int


@dataclass(slots=True)
class Tally:
    """Live rounds that a walk made: `accepted` by position of the draft, counted over `rounds`.

    tau is accepted nodes + 1 a round, before an answer is cut to its length; nothing is accepted after its
    end token.
    """

    rounds: int
    accepted: NDArray[np.int64]

    @property
    def tau(self) -> float | None:
        """None without rounds."""
        return None if self.rounds == 0 else 1.0 + float(self.accepted.sum()) / self.rounds

    @property
    def marginal(self) -> list[float]:
        """Share of rounds that accepted the first, the first two, … drafts."""
        return (self.accepted / max(1, self.rounds)).tolist()

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.rounds + other.rounds, self.accepted + other.accepted)


@torch.inference_mode()
def draft_greedily(drafter: BlockDrafter, tokens: Tensor, taps: Tensor, anchors: Tensor) -> Tensor:
    """The likeliest token slot by slot, each behind the ones drafted before it: `[B, A, drafts]`.

    Args:
        drafter: With its target's tables borrowed.
        tokens: int64 `[B, T]`.
        taps: `[B, T, taps x hidden]`.
        anchors: int64 `[B, A]`.
    """
    hidden = drafter(tokens, taps, anchors)
    logits = drafter.logits(hidden)
    before, state, drafted = tokens.gather(1, anchors), None, []
    for slot in range(hidden.shape[2]):
        scores = drafter.slot(hidden[:, :, slot], logits[:, :, slot], before, state)
        state = scores.state
        before = scores.logits.argmax(-1)
        drafted.append(before)
    return torch.stack(drafted, dim=-1)


@torch.inference_mode()
def accepted_lengths(
    drafter: BlockDrafter, corpus: Corpus, answers: Sequence[Answer]
) -> list[NDArray[np.int64]]:
    """Drafts accepted from each token of each answer but its last, `[count - 1]` an answer.

    All answers are drafted for in one forward.
    """
    device = corpus.tokens.device
    ends = torch.tensor([answer.first + answer.known for answer in answers], device=device)
    firsts = torch.tensor([answer.first for answer in answers], device=device)
    longest = max(answer.count for answer in answers) - 1
    texts = torch.tensor([answer.text for answer in answers], device=device)
    extent = int(ends.max())
    tokens, taps = corpus.tokens[texts, :extent], corpus.taps[texts, :extent]
    # rows past the end of a short answer are drafted, too, and dropped below
    anchors = (firsts[:, None] + torch.arange(longest, device=device)).clamp(max=extent - 1)
    drafted = draft_greedily(drafter, tokens, taps, anchors)
    places = anchors[..., None] + torch.arange(1, drafter.config.drafts + 1, device=device)
    said = tokens.gather(1, places.clamp(max=extent - 1).flatten(1)).view_as(places)
    right = (drafted == said) & (places < ends[:, None, None])
    lengths = right.cumprod(-1).sum(-1).cpu().numpy()
    return [row[: answer.count - 1] for row, answer in zip(lengths, answers, strict=True)]


def walk(accepted: NDArray[np.int64], drafts: int) -> Tally:
    """Rounds from the first token of an answer, each moving by what it accepted and one token more."""
    lengths = []
    place = 0
    while place < len(accepted):
        lengths.append(int(accepted[place]))
        place += lengths[-1] + 1
    counts = np.bincount(lengths, minlength=drafts + 1)
    return Tally(len(lengths), counts[::-1].cumsum()[::-1][1:])


def greedy_tally(drafter: BlockDrafter, corpus: Corpus, answers: Sequence[Answer]) -> Tally:
    """The walks of several answers together."""
    drafts = drafter.config.drafts
    total = Tally(0, np.zeros(drafts, dtype=np.int64))
    drafted = sorted((one for one in answers if one.count > 1), key=lambda one: one.first + one.known)
    for start in range(0, len(drafted), _BATCH):
        for accepted in accepted_lengths(drafter, corpus, drafted[start : start + _BATCH]):
            total += walk(accepted, drafts)
    return total


def answers_of(corpus: Corpus, texts: Sequence[int], longest: int) -> list[Answer]:
    """The first answer of each text, up to `longest` tokens; a text without one has none."""
    found = []
    for text in texts:
        own = corpus.own[text].cpu().numpy()
        if not own.any():
            continue
        first = int(own.argmax())
        rest = own[first:]
        known = len(rest) if rest.all() else int(rest.argmin())
        found.append(Answer(text, first, min(known, longest), known))
    return found
