"""How the target's logits become p: temperature, then top-k, then top-p, as one cut on the raw logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.errors import UsageError
from dflash.policy.temperature import TEMPERATURES, is_temperature


class BadTemperature(UsageError):
    """A temperature at which p cannot be computed."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Processing in force. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 cut nothing.

    Raises:
        BadTemperature: Logits over the temperature would not fit the columns.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not is_temperature(self.temperature):
            raise BadTemperature(f"Expected a temperature of {TEMPERATURES}, found {self.temperature:g}.")

    @property
    def greedy(self) -> bool:
        """Whether the choice is the argmax."""
        return self.temperature == 0.0

    @property
    def cuts(self) -> bool:
        """Whether any token can be cut."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0)


def cut(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Lowest kept logit and the margin of the cut, both [slots], for float64 `logits` [slots, vocabulary].

    Tokens are kept if their logit is at least the first result, so ties at the border are kept together. The
    margin is in raw logits: the distance to the highest cut token or, under top-p, the smallest shift that
    moves the cut if that is smaller; inf where nothing is cut.
    """
    slots, vocabulary = logits.shape
    cutoff = logits.new_full((slots,), -torch.inf)
    margin = logits.new_full((slots,), torch.inf)
    if not sampling.cuts:
        return cutoff, margin
    width = min(sampling.top_k or vocabulary, vocabulary)
    ordered = logits.topk(width).values
    if sampling.top_k:
        cutoff = ordered[:, -1]
    if sampling.top_p < 1.0:
        cutoff, margin = _nucleus(logits, ordered, cutoff, sampling)
    below = logits.masked_fill(logits >= cutoff[:, None], -torch.inf).amax(-1)
    nothing_cut = below == -torch.inf
    margin = torch.where(nothing_cut, torch.inf, torch.minimum(margin, cutoff - below))
    return torch.where(nothing_cut, -torch.inf, cutoff), margin


def _nucleus(logits: Tensor, ordered: Tensor, cutoff: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    # tokens tied with the top-k border are kept too, so the mass below is taken over the kept set
    kept = logits.masked_fill(logits < cutoff[:, None], -torch.inf)
    mass = ((ordered - _lse(kept, sampling.temperature) * sampling.temperature) / sampling.temperature).exp()
    total = mass.cumsum(-1).clamp(max=1.0)
    last = (total < sampling.top_p).sum(-1, keepdim=True).clamp(max=ordered.shape[-1] - 1)
    inside = total.gather(-1, last)[:, 0]
    before = torch.where(last[:, 0] > 0, total.gather(-1, (last - 1).clamp(min=0))[:, 0], 0.0)
    goal = torch.logit(logits.new_tensor(sampling.top_p))
    shift = torch.minimum(goal - torch.logit(before), torch.logit(inside) - goal) * sampling.temperature
    return ordered.gather(-1, last)[:, 0], shift.clamp(min=0.0)


def _lse(logits: Tensor, temperature: float) -> Tensor:
    return torch.logsumexp(logits / temperature, dim=-1, keepdim=True)


def argmax(values: Tensor) -> Tensor:
    """Index of the largest value in each row; the lowest index where several tie."""
    best = values.amax(-1, keepdim=True)
    indices = torch.arange(values.shape[-1], device=values.device)
    return torch.where(values == best, indices, values.shape[-1]).amin(-1)


def topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row and their indices, ordered by value, then lowest index."""
    count = min(count, values.shape[-1])
    # one more tells whether the border is tied without another pass over the vocabulary
    found, indices = values.topk(min(count + 1, values.shape[-1]))
    tied = found[:, count - 1] == found[:, -1] if found.shape[-1] > count else found.new_zeros(len(found))
    found, indices = found[:, :count], indices[:, :count]
    border = found[:, -1:]
    for row in torch.nonzero(tied)[:, 0].tolist():
        above = indices[row][found[row] > border[row]]
        level = torch.nonzero(values[row] == border[row])[: count - len(above), 0]
        indices[row] = torch.cat([above, level])
    indices = indices.sort(-1).values
    order = torch.sort(values.gather(-1, indices), dim=-1, descending=True, stable=True).indices
    indices = indices.gather(-1, order)
    return values.gather(-1, indices), indices
