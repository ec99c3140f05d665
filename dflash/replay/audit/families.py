"""Siblings under one slot, with the law that they were drawn from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.siblings import draft_law
from dflash.policy.topology import sibling_order
from dflash.replay.audit.evidence import Evidence


class Families(NamedTuple):
    """G slots that a drafter expanded and drew children at.

    Attributes:
        slots: `[G]`.
        members: `[G, most]` flat nodes in order of proposal, -1 = none.
        tokens: `[G, K]` the draft's best tokens.
        logits: `[G, K]` their raw draft logits.
        law: `[G, K]` q of them.
        place: `[G, most]` where each child stands among them, -1 = nowhere.
    """

    slots: I64
    members: I64
    tokens: I64
    logits: F64
    law: F64
    place: I64

    def take(self, here: I64) -> Families:
        """Keep some families."""
        return Families(
            self.slots[here],
            self.members[here],
            self.tokens[here],
            self.logits[here],
            self.law[here],
            self.place[here],
        )

    def at(self, values: F64, here: I64, sibling: int) -> F64:
        """Return `values` `[G, K]` at one sibling's token in some families; 0 where it is none of them."""
        place = self.place[here, sibling]
        return np.where(place >= 0, values[here, np.maximum(place, 0)], 0.0)


def families(evidence: Evidence) -> Families | None:
    """Return the siblings under every slot with stored draft logits; None if there are none."""
    rounds = evidence.rounds
    order, start = sibling_order(rounds.parent_slot)
    keep = rounds.expanded_row[rounds.parent_slot[order]] >= 0
    place, order, start = (np.arange(len(order)) - start)[keep], order[keep], start[keep]
    if not len(order):
        return None
    heads, family = np.unique(start, return_inverse=True)
    members = np.full((len(heads), int(place.max()) + 1), -1, dtype=np.int64)
    members[family, place] = order
    slots = rounds.parent_slot[members[:, 0]]
    row = rounds.expanded_row[slots]
    tokens, logits = rounds["draft_topk_token"][row].astype(np.int64), rounds["draft_topk_logit"][row]
    law = draft_law(logits.copy(), evidence.context.draft) if evidence.context.sampled else logits
    drawn = np.where(members >= 0, rounds["node_token"][members], -1)
    hit = tokens[:, None, :] == drawn[:, :, None]
    found = np.where(hit.any(axis=2), hit.argmax(axis=2), -1)
    return Families(slots, members, tokens, logits, law, found)
