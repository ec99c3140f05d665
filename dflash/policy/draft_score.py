"""How sure the drafter was of each node: its stated confidence, else the probability it gave the token."""

from __future__ import annotations

import numpy as np

from dflash.policy.errors import DraftScoreMissing
from dflash.policy.noise import F64
from dflash.policy.rounds import Rounds

SCORE_COLUMNS = ("node_token", "node_confidence", "draft_lse", "draft_topk_token", "draft_topk_logit")


def log_confidence(rounds: Rounds, cut: str) -> F64:
    """Return the log of the drafter's confidence in every node, at most 0; `[N]`.

    That is `node_confidence`; where it is null, the token's probability in softmax of the raw draft logits.

    Args:
        rounds: with the columns of `SCORE_COLUMNS`, or with `node_confidence` alone if it is never null.
        cut: on whose behalf.

    Raises:
        DraftScoreMissing: a node has neither.
    """
    with np.errstate(divide="ignore"):
        score: F64 = np.log(rounds["node_confidence"])
    open_ = np.flatnonzero(np.isnan(score))
    if not len(open_):
        return np.minimum(score, 0.0)
    if "draft_lse" not in rounds.values:
        raise DraftScoreMissing(cut)
    slot = rounds.parent_slot[open_]
    row = rounds.expanded_row[slot]
    if (row < 0).any():
        raise DraftScoreMissing(cut)
    hit = rounds["draft_topk_token"][row] == rounds["node_token"][open_, None]
    if not hit.any(axis=1).all():
        raise DraftScoreMissing(cut)
    logit = rounds["draft_topk_logit"][row, hit.argmax(axis=1)]
    score[open_] = logit - rounds["draft_lse"][slot]
    return np.minimum(score, 0.0)


def cumulative(rounds: Rounds, score: F64) -> F64:
    """Return the sum of `score`, none above 0, over a node and its ancestors, never above the parent's."""
    total = score.copy()
    # level by level, since sums in another order may round a child above its parent
    for depth in range(2, int(rounds.node_depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(rounds.node_depth == depth)
        total[nodes] += total[rounds.parent_node[nodes]]
    return total
