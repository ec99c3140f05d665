"""How sure the drafter was of each node: its stated confidence, else the probability it gave the token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.errors import DraftScoreMissing
from dflash.policy.noise import F64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool

SCORE_COLUMNS = ("node_token", "node_confidence", "draft_lse", "draft_topk_token", "draft_topk_logit")


class Scored(NamedTuple):
    """Whether each node stays, and by how much its score lies over what it had to reach; both `[N]`."""

    keep: Bool
    lead: F64


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


def lowest(rounds: Rounds, score: F64) -> F64:
    """Return the least `score` of a node and its ancestors; `[N]`."""
    least = score.copy()
    for depth in range(2, int(rounds.node_depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(rounds.node_depth == depth)
        least[nodes] = np.minimum(least[nodes], least[rounds.parent_node[nodes]])
    return least


def best(rounds: Rounds, score: F64, count: int) -> Scored:
    """Keep the `count` best nodes of each round, the lowest node first among equals.

    The lead of a node that stays is over the best that goes, that of one that goes over the worst that stays.
    """
    order = np.lexsort((-score, rounds.node_round))
    place = np.empty(len(score), dtype=np.int64)
    place[order] = np.arange(len(score)) - rounds.node_offsets[rounds.node_round[order]]
    counts, first = np.diff(rounds.node_offsets), rounds.node_offsets[:-1]
    stays = np.minimum(count, counts)
    worst, next_best = np.full(len(rounds), np.inf), np.full(len(rounds), -np.inf)
    some, cut = stays > 0, counts > count
    worst[some] = score[order[first[some] + stays[some] - 1]]
    next_best[cut] = score[order[first[cut] + count]]
    keep = place < count
    with np.errstate(invalid="ignore"):
        lead = score - np.where(keep, next_best[rounds.node_round], worst[rounds.node_round])
    return Scored(keep, lead)
