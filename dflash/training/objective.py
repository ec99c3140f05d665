"""What one batch of anchors teaches: divergence from the target, slot by slot, with decaying weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash.drafters.block.model import BlockDrafter
from dflash.training.corpus import Corpus
from dflash.training.distribution_loss import Head, divergence


class Lesson(NamedTuple):
    """The outcome of a batch.

    Attributes:
        loss: To be minimised.
        divergence: Weighted mean of KL(target || draft), nats.
        agreed: `[drafts]`, share of slots whose likeliest token is the target's, given the text before.
    """

    loss: Tensor
    divergence: Tensor
    agreed: Tensor


class Labels(NamedTuple):
    """By slot `[B, A, drafts]`: the position and token before it, and its weight."""

    before: Tensor
    tokens: Tensor
    weights: Tensor


def labels(corpus: Corpus, texts: Tensor, anchors: Tensor, drafts: int, decay: float) -> Labels:
    """What the slots of blocks at `anchors` `[B, A]` stand behind; a slot counts as long as all tokens up to
    its own are the target's, with weight exp(-slot / decay).
    """
    offsets = torch.arange(drafts, device=anchors.device)
    before = anchors[..., None] + offsets
    inside = before + 1 < corpus.length
    before = before.clamp(max=corpus.length - 2)
    tokens = corpus.tokens[texts].gather(1, before.flatten(1)).view_as(before)
    own = corpus.own[texts].gather(1, before.flatten(1) + 1).view_as(before)
    counts = (own & inside).float().cumprod(-1)
    return Labels(before, tokens, counts * torch.exp(-offsets / decay))


def lesson(
    drafter: BlockDrafter, output: nn.Linear, corpus: Corpus, texts: Tensor, anchors: Tensor, decay: float
) -> Lesson:
    """Draft from `anchors` `[B, A]` of `texts` `[B]` and compare with the target, whatever was drafted before
    a slot being the text's own tokens.
    """
    slots = labels(corpus, texts, anchors, drafter.config.drafts, decay)
    hidden = drafter(corpus.tokens[texts], corpus.taps[texts], anchors)
    teacher = corpus.opinions.at(texts, slots.before.flatten(1))
    weights = slots.weights.flatten()
    markov = drafter.markov_head
    mixed = None if markov is None else markov(hidden, slots.tokens).flatten(0, 2)
    head = Head(output.weight, output.bias, None if markov is None else markov.markov_w2.weight)
    seen = divergence(hidden.flatten(0, 2), mixed, head, teacher, weights)
    loss = seen.loss + _calibration(drafter, hidden, slots, seen.overlap.view_as(slots.weights))
    counted = (slots.weights > 0).flatten(0, 1).float()
    agreed = (seen.agreed.view_as(slots.weights).flatten(0, 1) * counted).sum(0) / counted.sum(0).clamp(min=1)
    return Lesson(loss, seen.loss.detach(), agreed)


def _calibration(drafter: BlockDrafter, hidden: Tensor, slots: Labels, overlap: Tensor) -> Tensor | float:
    """Cross-entropy of the confidence head with the probability that p/q accepts (DSpark); it reads the
    hidden states without changing them.
    """
    if drafter.confidence_head is None:
        return 0.0
    known = None
    if drafter.markov_head is not None:
        known = drafter.markov_head.markov_w1(slots.tokens).detach()
    sure = drafter.confidence_head(hidden.detach(), known).float()
    miss = functional.binary_cross_entropy_with_logits(sure, overlap.clamp(0, 1), reduction="none")
    return (miss * slots.weights).sum() / slots.weights.sum().clamp(min=1e-9)
