"""Residual masses of drawn nodes from what a record has of p and q (`dflash/engine/residual.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.engine.device_record import Arrays
from dflash.policy.context import DraftSampling
from dflash.target.sampling import Sampling

Floats = NDArray[np.float64]


class LaneLaw(NamedTuple):
    """How a lane's request draws: the target, and the drafter where its tokens are drawn."""

    target: Sampling
    draft: DraftSampling | None


def residual_masses(of_lanes: Arrays, laws: Sequence[LaneLaw], ratio: Floats, branches: int) -> Floats:
    """Σ_v max(0, P p(v) - q(v)) at every node's slot, q renormalised without the siblings before it.

    Args:
        of_lanes: a record's lanes, in all of which nodes are drawn.
        laws: of each.
        ratio: `[lanes, nodes]`, p/q of every node.
        branches: of the tree.

    Returns:
        `[lanes, nodes]`; of no meaning for nodes that are not there.
    """
    lanes, nodes = ratio.shape
    expanded = of_lanes["draft_lse"].shape[1]
    heat = np.array([law.target.temperature for law in laws])[:, None, None]
    q = _law(of_lanes["draft_logits"].astype(np.float64), [law.draft or DraftSampling() for law in laws])
    lse_p = of_lanes["lse_p"][:, :expanded, None].astype(np.float64)
    p = np.where(q > 0, np.exp(of_lanes["draft_target"].astype(np.float64) / heat - lse_p), 0.0)
    parent = np.maximum(np.arange(nodes) - branches + 1, 0)
    capped = np.ones((lanes, nodes + 1))
    for first in range(0, nodes, branches):
        here = slice(first, first + branches)
        capped[:, 1:][:, here] = np.minimum(1.0, capped[:, parent[here]] * ratio[:, here])
    scaled = capped[:, parent, None] * p[:, parent]
    elsewhere = capped[:, parent] * np.maximum(0.0, 1.0 - p.sum(-1))[:, parent]
    left = q[:, parent]
    for sibling in range(1, min(branches, nodes)):
        gone = of_lanes["draft_ids"][:, 0] == of_lanes["node_token"][:, sibling - 1, None]
        left[:, sibling:branches] = np.where(gone[:, None], 0.0, left[:, sibling:branches])
    total = left.sum(-1, keepdims=True)
    # nothing is left of q where an earlier sibling had all of it
    left = left / np.where(total > 0, total, 1.0)
    return elsewhere + np.maximum(0.0, scaled - left).sum(-1)


def _law(logits: Floats, draws: Sequence[DraftSampling]) -> Floats:
    """q `[lanes, slots, candidates]` in order of logit, as `dflash/drafters/race.py` makes it."""
    heat = np.array([draw.temperature for draw in draws])[:, None, None]
    width = np.array([draw.top_k or logits.shape[2] for draw in draws])[:, None, None]
    place = np.arange(logits.shape[2])
    scaled = np.where((place < width) & np.isfinite(logits), logits / heat, -np.inf)
    weight = np.exp(scaled - scaled.max(-1, keepdims=True))
    q = weight / weight.sum(-1, keepdims=True)
    top_p = np.array([draw.top_p for draw in draws])[:, None, None]
    if (top_p < 1.0).any():
        kept = (q.cumsum(-1) < top_p).sum(-1, keepdims=True)
        q = np.where((place <= kept) | (top_p >= 1.0), q, 0.0)
        q = q / q.sum(-1, keepdims=True)
    return q
