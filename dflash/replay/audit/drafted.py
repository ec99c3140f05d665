"""Probes of drafts that need no generator: they follow q, and are independent of the target's choices."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dflash.draftfile.summary import Kind
from dflash.policy.context import Proposal
from dflash.policy.noise import F64, I64
from dflash.replay.audit.betting import BettingProbe
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.families import families, thinned


class _First(NamedTuple):
    """The first child of every anchor `[m]`: one draw a position, each on noise that nothing used before.

    `slot` is the anchor's; `place` the child's among the draft's best tokens; `tokens` and `law` `[m, K]`.
    """

    slot: I64
    place: I64
    token: I64
    tokens: I64
    law: F64


def _first(evidence: Evidence) -> _First | None:
    found = families(evidence)
    if found is None:
        return None
    kind = Kind.DENSE if evidence.file.header.dense else Kind.LIVE
    at_anchor = evidence.slot_depth[found.slots] == 0
    rows = evidence.slot_round[found.slots]
    here = np.flatnonzero(at_anchor & (evidence.kind[rows] == kind) & evidence.uncut[rows])
    token = evidence.rounds["node_token"][found.members[here, 0]].astype(np.int64)
    return _First(
        found.slots[here], found.place[here, 0], token, found.tokens[here], np.exp(found.log_law[here])
    )


def _unknown(evidence: Evidence) -> str | None:
    if evidence.context.proposal is Proposal.MIXED:
        return "drafters of a union drew from several laws, and no node says from which"
    if not evidence.context.q_complete:
        return "q is not stored whole: record with --draft-top-k at most --store-topk"
    return None


@dataclass(slots=True)
class _OfFirstDrafts(BettingProbe):
    """Bets on the first draft at every anchor, where drafts were sampled."""

    nothing = "no draft was sampled"

    def limited(self, evidence: Evidence) -> str | None:
        """Return whether cut rows are left out; see `Probe.limited`."""
        return thinned(evidence, fair=True) if evidence.context.sampled else None

    def take(self, evidence: Evidence) -> None:
        """Bet on what the first drafts are."""
        first = _first(evidence) if evidence.context.sampled else None
        if first is not None:
            self.settle(evidence, first)

    @abstractmethod
    def settle(self, evidence: Evidence, first: _First) -> None:
        """Settle the bets on these drafts."""


@dataclass(slots=True)
class Drafted(_OfFirstDrafts):
    """Bets on the rank in q of the first draft at every anchor."""

    name = "drafted tokens"
    question = "drafted tokens follow q"
    covering = True

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why q cannot set the odds; see `Probe.untestable`."""
        return _unknown(evidence) if evidence.context.sampled else None

    def settle(self, evidence: Evidence, first: _First) -> None:
        """Bet on q's favourite, the next three, and all others."""
        rank, q = np.where(first.place >= 0, first.place, first.law.shape[1]), first.law
        self.bet("q's favourite", rank == 0, q[:, 0])
        self.bet("ranks 2 to 4 of q", (rank > 0) & (rank < 4), q[:, 1:4].sum(axis=1))
        self.bet("all other drafts", rank >= 4, q[:, 4:].sum(axis=1))


@dataclass(slots=True)
class Independence(_OfFirstDrafts):
    """Bets on the draft being the target's choice, which independent noise allows with chance sum p q."""

    name = "independence"
    question = "draft and target noise are independent, unless drafts are shared"

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why a coincidence would prove nothing; see `Probe.untestable`."""
        if not evidence.context.sampled:
            return None
        if evidence.context.proposal is Proposal.SHARED:
            return "shared drafts run on the target's noise by design"
        return _unknown(evidence)

    def settle(self, evidence: Evidence, first: _First) -> None:
        """Bet that the first draft at an anchor is the choice there."""
        row = evidence.rounds.expanded_row[first.slot]
        p = evidence.probability(first.slot, evidence.rounds["draft_topk_target_logit"][row])
        chance = (p * first.law).sum(axis=1)
        hit = first.token == evidence.rounds["slot_choice"][first.slot]
        known = ~np.isnan(chance)
        self.bet("the draft is the choice", hit[known], chance[known])
