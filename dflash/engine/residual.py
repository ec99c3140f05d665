"""What replaces a node that failed, and the mass that block verification needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.drafters.base import Anchor, Proposal, SlotLaw
from dflash.policy.block import block_residual_token
from dflash.policy.noise import residual_exponentials
from dflash.policy.speculative import residual_tokens
from dflash.target.statistics import TargetLaw

Floats = NDArray[np.float64]


def residual_columns(
    anchor: Anchor,
    proposal: Proposal,
    law: TargetLaw,
    row: dict[str, Any],
    emits_choice: bool,
    scaled: bool = False,
) -> dict[str, Any]:
    """`node_residual_mass` and `node_residual_token` [nodes].

    The mass is Σ_v max(0, P p(v) - q(v)) at the parent's slot, with q the law that the node was drawn from
    and P the capped ratio along the path to the parent (Sun et al. 2403.10444); it does not exist for
    deterministic q or at temperature 0. The token is the choice at the parent's slot for rules that emit
    choices; else a draw from the residual, whose p is `scaled` by P under block verification.
    """
    choices = row["slot_choice"]
    tokens = np.array([choices[parent + 1] for parent in proposal.parents], dtype=np.int32)
    mass = np.full(len(proposal), np.nan, dtype=np.float32)
    if not proposal.law or law.sampling.greedy:
        return {"node_residual_mass": mass, "node_residual_token": tokens}
    capped = _capped_ratios(proposal, row)
    paths = _paths(proposal)
    for parent, q in proposal.law.items():
        children = [node for node, above in enumerate(proposal.parents) if above == parent]
        drawn = [proposal.tokens[node] for node in children]
        mass[children] = _masses(capped[parent + 1], law, parent + 1, q, drawn)
        if not emits_choice:
            scale = capped[parent + 1] if scaled else None
            tokens[children] = _tokens(
                anchor, law.p(parent + 1), q, drawn, paths[children[0]], choices[parent + 1], scale
            )
    return {"node_residual_mass": mass, "node_residual_token": tokens}


def _tokens(
    anchor: Anchor,
    p: Floats,
    q: SlotLaw,
    drawn: list[int],
    first_path: tuple[int, ...],
    choice: int,
    scale: float | None,
) -> list[int]:
    """One replacement a sibling, drawn on the residual noise of the siblings' slot."""
    whole_q = np.zeros_like(p)
    whole_q[q.tokens] = np.exp(q.log_q)
    noise = residual_exponentials(anchor.key, anchor.position, len(first_path), first_path[:-1], len(p))
    if scale is not None:
        return [block_residual_token(scale, p, whole_q, noise, int(choice))]
    return residual_tokens(p, whole_q, drawn, False, noise, int(choice))


def _capped_ratios(proposal: Proposal, row: dict[str, Any]) -> list[float]:
    """P by slot: min(1, P(parent) p/q) along the path, 1 at the anchor."""
    ratios = [1.0]
    for node, parent in enumerate(proposal.parents):
        log_ratio = float(row["node_logp"][node]) - float(row["node_logq"][node])
        ratios.append(min(1.0, ratios[parent + 1] * float(np.exp(min(log_ratio, 50.0)))))
    return ratios


def _masses(capped: float, law: TargetLaw, slot: int, q: SlotLaw, drawn: list[int]) -> list[float]:
    """One mass a sibling, q renormalised without the siblings before it; only q's support needs a look."""
    device = law.logits.device
    tokens = torch.from_numpy(q.tokens).to(device)
    p = law.log_judged(torch.full_like(tokens, slot), tokens).exp().cpu().numpy()
    elsewhere = capped * max(0.0, 1.0 - float(p.sum()))
    left = np.exp(q.log_q)
    masses = []
    for token in drawn:
        # nothing is left of q where an earlier sibling had all of it
        total = left.sum() or 1.0
        masses.append(elsewhere + float(np.maximum(0.0, capped * p - left / total).sum()))
        left[q.tokens == token] = 0.0
    return masses


def _paths(proposal: Proposal) -> list[tuple[int, ...]]:
    """Sibling ranks from the anchor to each node."""
    paths: list[tuple[int, ...]] = []
    seen: dict[int, int] = {}
    for parent in proposal.parents:
        rank = seen.get(parent, 0)
        seen[parent] = rank + 1
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    return paths
