"""The numbers that a draft file keeps of the target's logits: per slot and per node, as stored (float32)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.target.sampling import Sampling, argmax, cut, log_p, topk

Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class TargetLaw:
    """The target's say at the slots of one round: raw logits and log p, both float64 [slots, vocabulary]."""

    logits: Tensor
    log_p: Tensor
    sampling: Sampling
    slots: Mapping[str, NDArray[np.generic]]

    @property
    def judged(self) -> Tensor:
        """The law that probability columns describe: p, or softmax(l) at temperature 0."""
        return torch.log_softmax(self.logits, dim=-1) if self.sampling.greedy else self.log_p


def target_law(logits: Tensor, sampling: Sampling, store_topk: int, noise: Tensor | None) -> TargetLaw:
    """Judge raw `logits` [slots, vocabulary]; `noise`, of the same shape, holds log E (None at temperature 0).

    The choice is the winner of log p - log E (Gumbel-max on shared noise, Daliri et al. 2408.07978), or the
    argmax.
    """
    raw = logits.double()
    cutoff, margin = cut(raw, sampling)
    law, lse_p = log_p(raw, cutoff, sampling)
    score = raw if noise is None else law - noise
    choice = argmax(score)
    ranked = score.topk(2).values
    gap = ranked[:, 0] - ranked[:, 1]
    values, indices = topk(raw, store_topk)
    weights = torch.log_softmax(raw, -1) if sampling.greedy else law
    entropy = -(weights.exp() * weights.masked_fill(weights == -torch.inf, 0.0)).sum(-1)
    slots: Columns = {
        "slot_argmax": _ids(argmax(raw)),
        "slot_choice": _ids(choice),
        "slot_choice_logit": _floats(raw.gather(-1, choice[:, None])[:, 0]),
        "slot_gap": _floats(torch.where(gap.isfinite(), gap, torch.nan)),
        "slot_cut_gap": _floats(torch.where(margin.isfinite(), margin, torch.nan)),
        "slot_lse": _floats(torch.logsumexp(raw, -1)),
        "slot_lse_p": _floats(lse_p),
        "slot_cutoff": _floats(cutoff),
        "slot_entropy": _floats(entropy),
        "slot_topk_token": _ids(indices.flatten()),
        "slot_topk_logit": _floats(values.flatten()),
    }
    return TargetLaw(raw, law, sampling, slots)


def node_statistics(law: TargetLaw, tokens: Sequence[int], parents: Sequence[int]) -> Columns:
    """What the target thinks of each node: log p, raw logit, and the p mass of likelier tokens, all [nodes].
    """
    if not tokens:
        empty = np.empty(0, dtype=np.float32)
        return {"node_logp": empty, "node_target_logit": empty, "node_mass_above": empty}
    slots = torch.tensor(parents, device=law.logits.device) + 1
    ids = torch.tensor(tokens, device=law.logits.device)
    logit = law.logits[slots, ids]
    above = law.logits[slots] > logit[:, None]
    mass = (law.judged[slots].exp() * above).sum(-1).clamp(max=1.0)
    return {
        "node_logp": _floats(law.log_p[slots, ids]),
        "node_target_logit": _floats(logit),
        "node_mass_above": _floats(mass),
    }


def _ids(values: Tensor) -> NDArray[np.int32]:
    return values.to(torch.int32).cpu().numpy()


def _floats(values: Tensor) -> NDArray[np.float32]:
    return values.to(torch.float32).cpu().numpy()
