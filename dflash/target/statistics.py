"""The numbers that a draft file keeps of the target's logits: per slot and per node, as stored (float32)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.target.sampling import Sampling, argmax, cut, topk

_FLOOR = -1e4

Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class TargetLaw:
    """The target's say at the slots of one round.

    `logits` [slots, vocabulary] are raw, float32. p is softmax(l / T) over the tokens whose logit is at least
    `cutoff` [slots], one-hot at the choice at temperature 0. `judged_lse` [slots] normalises the law that
    probability columns describe: p, or softmax(l) at temperature 0. `slots` holds the slot columns.
    """

    logits: Tensor
    sampling: Sampling
    cutoff: Tensor
    judged_lse: Tensor
    slots: Mapping[str, NDArray[np.generic]]

    def p(self, slot: int) -> NDArray[np.float64]:
        """p [vocabulary] at one slot; temperature above 0."""
        scaled = self.logits[slot].double() / self.sampling.temperature - self.judged_lse[slot]
        return scaled.exp().masked_fill(self.logits[slot] < self.cutoff[slot], 0.0).cpu().numpy()

    def log_judged(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """Log probability [m] of tokens at slots under the law that probability columns describe."""
        raw = self.logits[slots, tokens]
        log_p = raw.double() / (self.sampling.temperature or 1.0) - self.judged_lse[slots]
        return log_p.masked_fill(raw < self.cutoff[slots], -torch.inf)

    def log_p(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """log p [m] of tokens at slots; 0 or -inf at temperature 0."""
        if not self.sampling.greedy:
            return self.log_judged(slots, tokens)
        choice = torch.from_numpy(np.asarray(self.slots["slot_choice"])).to(slots.device)
        return torch.where(tokens == choice[slots], 0.0, -torch.inf)


def target_law(logits: Tensor, sampling: Sampling, store_topk: int, noise: Tensor | None) -> TargetLaw:
    """Judge raw `logits` [slots, vocabulary]; `noise`, of the same shape, is log E (None at temperature 0).

    The choice is the winner of log p - log E (Gumbel-max on shared noise, Daliri et al. 2408.07978), or the
    argmax. The vocabulary is passed over as few times as the columns allow: recording must cost little.
    """
    raw = logits.float()
    values, tokens = topk(raw, max(store_topk, 2))
    cutoff, margin = cut(raw, sampling)
    centred = raw - values[:, :1]
    lse_raw, entropy = _lse_and_entropy(centred)
    lse_raw = lse_raw + values[:, 0].double()
    if noise is None:
        choice, gap = tokens[:, 0], (values[:, 0] - values[:, 1])
        lse, lse_p = lse_raw, torch.full_like(lse_raw, torch.nan)
    else:
        scaled = centred / sampling.temperature
        if sampling.cuts:
            scaled.masked_fill_(raw < cutoff[:, None], -torch.inf)
        lse, entropy = _lse_and_entropy(scaled)
        lse = lse_p = lse + values[:, 0].double() / sampling.temperature
        choice, gap = race(scaled, noise)
    kept = min(store_topk, values.shape[1])
    slots: Columns = {
        "slot_argmax": _ids(tokens[:, 0]),
        "slot_choice": _ids(choice),
        "slot_choice_logit": _floats(raw.gather(-1, choice[:, None])[:, 0]),
        "slot_gap": _floats(torch.where(gap.isfinite(), gap, torch.nan)),
        "slot_cut_gap": _floats(torch.where(margin.isfinite(), margin, torch.nan)),
        "slot_lse": _floats(lse_raw),
        "slot_lse_p": _floats(lse_p),
        "slot_cutoff": _floats(cutoff),
        "slot_entropy": _floats(entropy),
        "slot_topk_token": _ids(tokens[:, :kept].flatten()),
        "slot_topk_logit": _floats(values[:, :kept].flatten()),
    }
    return TargetLaw(raw, sampling, cutoff, lse, slots)


def race(scaled: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Winner and lead [slots] of log p - log E, ties to the lowest id; both inputs [slots, vocabulary]."""
    score = scaled - noise
    winner = argmax(score)
    best = score.topk(2).values
    return winner, best[:, 0] - best[:, 1]


def _lse_and_entropy(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """log-sum-exp and entropy [slots], float64, of rows whose largest entry is 0; cut tokens are -inf."""
    weight = scaled.exp()
    total = weight.sum(-1).double()
    # finite stand-ins for -inf: their weight is 0
    mean = torch.linalg.vecdot(weight, scaled.clamp(min=_FLOOR)).double() / total
    return total.log(), total.log() - mean


def node_statistics(law: TargetLaw, tokens: Sequence[int], parents: Sequence[int]) -> Columns:
    """What the target thinks of each node: log p, raw logit, mass of likelier tokens, all [nodes]."""
    if not tokens:
        empty = np.empty(0, dtype=np.float32)
        return {"node_logp": empty, "node_target_logit": empty, "node_mass_above": empty}
    device = law.logits.device
    slots = torch.tensor(parents, device=device) + 1
    ids = torch.tensor(tokens, device=device)
    mass = _mass_above(law, slots, law.logits[slots, ids])
    return {
        "node_logp": _floats(law.log_p(slots, ids)),
        "node_target_logit": _floats(law.logits[slots, ids]),
        "node_mass_above": _floats(mass),
    }


def _mass_above(law: TargetLaw, slots: Tensor, logit: Tensor) -> Tensor:
    """Mass [nodes] of tokens whose logit is larger; from the stored top-K where the node is among them."""
    count = len(law.slots["slot_topk_token"]) // len(law.logits)
    top = torch.from_numpy(np.array(law.slots["slot_topk_token"], dtype=np.int64)).to(logit.device)
    top = top.reshape(-1, count)[slots]
    raw = law.logits[slots[:, None], top]
    log_p = law.log_judged(slots[:, None].expand_as(top).flatten(), top.flatten()).reshape(top.shape)
    mass = (log_p.exp() * (raw > logit[:, None])).sum(-1)
    for node in torch.nonzero((raw > logit[:, None]).all(-1))[:, 0].tolist():
        row = law.logits[slots[node]]
        ids = torch.nonzero(row > logit[node])[:, 0]
        mass[node] = law.log_judged(slots[node].expand(len(ids)), ids).exp().sum()
    return mass.clamp(max=1.0)


def _ids(values: Tensor) -> NDArray[np.int32]:
    return values.to(torch.int32).cpu().numpy()


def _floats(values: Tensor) -> NDArray[np.float32]:
    return values.to(torch.float32).cpu().numpy()
