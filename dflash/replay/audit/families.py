"""Siblings under one slot, with the law that they were drawn from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.context import DraftSampling
from dflash.policy.noise import F64, I64
from dflash.policy.topology import Bool, sibling_order
from dflash.replay.audit.evidence import ROUNDING, Evidence


class Families(NamedTuple):
    """G slots that a drafter expanded and drew children at.

    Attributes:
        slots: `[G]`.
        members: `[G, most]` flat nodes in order of proposal, -1 = none.
        tokens: `[G, K]` the draft's best tokens.
        logits: `[G, K]` their raw draft logits.
        log_law: `[G, K]` log q of them; the logits where drafts are deterministic.
        place: `[G, most]` where each child stands among them, -1 = nowhere.
        slack: `[G]` how far log q may be off because logits are stored in 32 bits.
    """

    slots: I64
    members: I64
    tokens: I64
    logits: F64
    log_law: F64
    place: I64
    slack: F64

    def take(self, here: I64 | Bool) -> Families:
        """Keep some families."""
        return Families(
            self.slots[here],
            self.members[here],
            self.tokens[here],
            self.logits[here],
            self.log_law[here],
            self.place[here],
            self.slack[here],
        )

    def at(self, values: F64, here: I64, sibling: int) -> F64:
        """Return `values` `[G, K]` at one sibling's token in some families; -inf where it is none of them."""
        place = self.place[here, sibling]
        return np.where(place >= 0, values[here, np.maximum(place, 0)], -np.inf)


def families(evidence: Evidence) -> Families | None:
    """Return the siblings under every slot with stored draft logits, in whole rows; None if there are none.

    Where rounding decides which tokens top-p keeps, q is not known and the family is left out.
    """
    rounds = evidence.rounds
    order, start = sibling_order(rounds.parent_slot)
    keep = (rounds.expanded_row[rounds.parent_slot[order]] >= 0) & evidence.whole[rounds.node_round[order]]
    place, order, start = (np.arange(len(order)) - start)[keep], order[keep], start[keep]
    if not len(order):
        return None
    heads, family = np.unique(start, return_inverse=True)
    members = np.full((len(heads), int(place.max()) + 1), -1, dtype=np.int64)
    members[family, place] = order
    slots = rounds.parent_slot[members[:, 0]]
    row = rounds.expanded_row[slots]
    tokens, logits = rounds["draft_topk_token"][row].astype(np.int64), rounds["draft_topk_logit"][row]
    drawn = np.where(members >= 0, rounds["node_token"][members], -1)
    hit = tokens[:, None, :] == drawn[:, :, None]
    found = np.where(hit.any(axis=2), hit.argmax(axis=2), -1)
    if not evidence.context.sampled:
        return Families(slots, members, tokens, logits, logits, found, 0 * logits[:, 0])
    sampling = evidence.context.draft
    slack = 1e-4 + 2 * ROUNDING * np.abs(logits).max(axis=1) / sampling.temperature
    log_law, sure = _log_law(logits, sampling, slack)
    return Families(slots, members, tokens, logits, log_law, found, slack).take(sure)


def log_softmax(logits: F64) -> F64:
    """Return log softmax of what is stored `[G, K]`."""
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1)[:, None])


def _log_law(logits: F64, sampling: DraftSampling, slack: F64) -> tuple[F64, Bool]:
    """log q after temperature, top-k and top-p, and whether it is sure which tokens top-p keeps.

    In logarithms, so that the law of later siblings is there where the first has nearly all of q.
    """
    scaled = logits / sampling.temperature
    if sampling.top_k:
        scaled[:, sampling.top_k :] = -np.inf
    log_q = log_softmax(scaled)
    if sampling.top_p >= 1.0:
        return log_q, np.ones(len(log_q), dtype=bool)
    before = np.cumsum(np.exp(log_q), axis=1) - np.exp(log_q)
    sure: Bool = np.abs(before[:, 1:] - sampling.top_p).min(axis=1, initial=1.0) > slack
    log_q[before >= sampling.top_p] = -np.inf
    return log_softmax(log_q), sure


def thinned(evidence: Evidence, fair: bool = False) -> str | None:
    """Return why some rows are left out, if they are.

    Args:
        fair: whether the drafts must be a fair sample, beside whole families.
    """
    if (evidence.uncut if fair else evidence.whole).all():
        return None
    return "live rows were cut by what had been drawn, and nobody knows what is gone; dense rows are not cut"
