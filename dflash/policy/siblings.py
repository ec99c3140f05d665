"""p/q of later siblings: the target's law after earlier siblings failed, from the stored draft top-k.

q lies wholly inside the draft top-k, so p outside of it only scales; a vector over the top-k and one tail
mass carry the recursion exactly.
"""

from __future__ import annotations

import numpy as np

from dflash.policy.context import DraftSampling, RuleContext
from dflash.policy.errors import NullColumn
from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import sibling_order

SIBLING_COLUMNS = (
    "node_token",
    "draft_lse",
    "draft_topk_token",
    "draft_topk_logit",
    "draft_topk_target_logit",
    "slot_lse_p",
    "slot_cutoff",
)


def sibling_log_ratio(rounds: Rounds, context: RuleContext) -> F64:
    """Return log p/q of every node, its earlier siblings being rejected; `[N]`, NaN at only children."""
    slots, member = _families(rounds)
    row = rounds.expanded_row[slots]
    if (row < 0).any():
        raise NullColumn("draft_topk_logit", "siblings stand under a slot that the drafter did not expand")
    draft = draft_law(rounds["draft_topk_logit"][row], context.draft)
    target = target_law(rounds, slots, row, context.temperature)
    tail = np.maximum(0.0, 1.0 - target.sum(axis=1))
    tokens = rounds["draft_topk_token"][row]
    ratio = np.full(len(rounds.node_rank), np.nan)
    for nodes in member.T:
        family = np.flatnonzero(nodes >= 0)
        node = nodes[family]
        hit = tokens[family] == rounds["node_token"][node, None]
        if not hit.any(axis=1).all():
            raise NullColumn("draft_topk_token", "a sibling is not among the stored draft top-k")
        place = hit.argmax(axis=1)
        with np.errstate(divide="ignore"):
            ratio[node] = np.log(target[family, place]) - rounds["node_logq"][node]
        _reject(target, tail, draft, family, place, context.proposal.with_replacement)
    return ratio


def draft_law(logit: F64, sampling: DraftSampling) -> F64:
    """Return q over the stored draft top-k.

    Args:
        logit: `[G, K]` raw draft logits, descending.
        sampling: temperature, top-k and top-p (keeps tokens before which less than top-p is gathered).
    """
    scaled = logit / sampling.temperature
    if sampling.top_k:
        scaled[:, sampling.top_k :] = -np.inf
    law = np.exp(scaled - scaled[:, :1])
    law /= law.sum(axis=1, keepdims=True)
    if sampling.top_p < 1.0:
        law[np.cumsum(law, axis=1) - law >= sampling.top_p] = 0.0
        law /= law.sum(axis=1, keepdims=True)
    return np.asarray(law)


def target_law(rounds: Rounds, slots: I64, row: I64, temperature: float) -> F64:
    """Return p over the stored draft top-k of the given slots.

    Args:
        slots: `[G]` flat slots.
        row: `[G]` their rows in the `draft_topk_*` columns.
        temperature: of the target, above 0.
    """
    logit = rounds["draft_topk_target_logit"][row]
    law = np.exp(logit / temperature - rounds.present("slot_lse_p")[slots, None])
    law[logit < rounds["slot_cutoff"][slots, None]] = 0.0
    return np.asarray(law)


def _families(rounds: Rounds) -> tuple[I64, I64]:
    """Return the slots with several children `[G]` and those children `[G, most]`, -1 = none."""
    order, start = sibling_order(rounds.parent_slot)
    place = np.arange(len(order)) - start
    several = np.isin(start, start[place > 0])
    order, start, place = order[several], start[several], place[several]
    heads, family = np.unique(start, return_inverse=True)
    member = np.full((len(heads), int(place.max(initial=0)) + 1), -1, dtype=np.int64)
    member[family, place] = order
    return rounds.parent_slot[member[:, 0]], member


def _reject(target: F64, tail: F64, draft: F64, family: I64, place: I64, with_replacement: bool) -> None:
    """Replace p by norm(max(0, p - q)), and q by q without the rejected token, in the given families."""
    rest = np.maximum(0.0, target[family] - draft[family])
    total = rest.sum(axis=1) + tail[family]
    scale = np.where(total > 0, total, 1.0)
    target[family] = rest / scale[:, None]
    tail[family] /= scale
    if with_replacement:
        return
    draft[family, place] = 0.0
    left = draft[family].sum(axis=1)
    draft[family] /= np.where(left > 0, left, 1.0)[:, None]
