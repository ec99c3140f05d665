"""How far drafted distributions are from the target's: a chunked divergence that never holds all logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 4096


class Teacher(Protocol):
    """The target's raw logits at chosen rows."""

    def logits(self, rows: slice) -> Tensor:
        """`[rows, vocabulary]`."""


class Divergence(NamedTuple):
    """What a step measured.

    Attributes:
        loss: Weighted mean of KL(target || draft), with gradients.
        overlap: `[rows]`, 1 - total variation: the probability that p/q accepts a draft.
        agreed: bool `[rows]`, whether both think the same token the likeliest.
    """

    loss: Tensor
    overlap: Tensor
    agreed: Tensor


class Head(NamedTuple):
    """An output head `[vocabulary, hidden]`, and a low-rank one `[vocabulary, rank]` for what is learned of
    the token before; None without.
    """

    weight: Tensor
    bias: Tensor | None
    markov: Tensor | None


def divergence(
    hidden: Tensor, mixed: Tensor | None, head: Head, teacher: Teacher, weights: Tensor, chunk: int = CHUNK
) -> Divergence:
    """Compare drafted logits, `head` of `hidden` (plus the Markov part of `mixed`), with the teacher's.

    Logits exist for `chunk` rows at a time: the gradient is taken in the same pass, before they are dropped.

    Args:
        hidden: `[rows, hidden]`.
        mixed: `[rows, rank]`, or None without a Markov head.
        head: Weights of both heads; the first is frozen.
        teacher: The target's logits of the same rows.
        weights: `[rows]`, not negative.
    """
    if mixed is None or head.markov is None:
        mixed, markov = hidden.new_zeros(len(hidden), 0), hidden.new_zeros(len(head.weight), 0)
    else:
        markov = head.markov
    return Divergence(*_Divergence.apply(hidden, mixed, markov, head, teacher, weights, chunk))


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        mixed: Tensor,
        markov: Tensor,
        head: Head,
        teacher: Teacher,
        weights: Tensor,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = head.weight.dtype
        share = (weights / weights.sum().clamp(min=1e-9)).float()
        low = markov.to(kind)
        grad_hidden, grad_mixed = torch.empty_like(hidden), torch.empty_like(mixed)
        grad_markov = torch.zeros_like(markov, dtype=torch.float32)
        losses, overlaps, agreements = [], [], []
        for rows in even_slices(len(hidden), chunk):
            part, extra = hidden[rows].to(kind), mixed[rows].to(kind)
            drafted = functional.linear(part, head.weight, head.bias)
            if len(low[0]):
                drafted = drafted + extra @ low.T
            seen = _Compared(*compared(drafted.device.type)(drafted, teacher.logits(rows), share[rows]))
            losses.append(seen.loss)
            overlaps.append(seen.overlap)
            agreements.append(seen.agreed)
            grad_hidden[rows] = seen.gradient @ head.weight
            grad_mixed[rows] = seen.gradient @ low
            grad_markov += seen.gradient.T @ extra
        context.save_for_backward(grad_hidden, grad_mixed, grad_markov.to(markov.dtype))
        overlap, agreed = torch.cat(overlaps), torch.cat(agreements)
        context.mark_non_differentiable(overlap, agreed)
        return torch.cat(losses).sum(), overlap, agreed

    @staticmethod
    def backward(context: Any, upstream: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        hidden, mixed, markov = context.saved_tensors
        return hidden * upstream, mixed * upstream, markov * upstream, None, None, None, None


def even_slices(rows: int, most: int) -> list[slice]:
    """As few slices as possible of at most so many rows, as equal as possible: one shape to compile for."""
    size = -(-rows // -(-rows // most))
    return [slice(start, start + size) for start in range(0, rows, size)]


class _Compared(NamedTuple):
    """Rows of weighted KL and its gradient by the drafted logits, and what else `Divergence` tells."""

    loss: Tensor
    gradient: Tensor
    overlap: Tensor
    agreed: Tensor


def _compare(drafted: Tensor, taught: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of `_Compared`, of logits `[rows, vocabulary]` and shares of the weight `[rows]`."""
    log_q = functional.log_softmax(drafted.float(), -1)
    log_p = functional.log_softmax(taught.float(), -1)
    p, q = log_p.exp(), log_q.exp()
    loss = (p * (log_p - log_q)).sum(-1) * share
    gradient = ((q - p) * share[:, None]).to(drafted.dtype)
    return loss, gradient, torch.minimum(p, q).sum(-1), drafted.argmax(-1) == taught.argmax(-1)


@cache
def compared(device: str) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    """The comparison for a kind of device: compiled into few passes over the vocabulary on CUDA."""
    return torch.compile(_compare, dynamic=False) if device == "cuda" else _compare
