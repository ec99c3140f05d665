"""Probes: emitted tokens follow p, and do not lean towards what was drafted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dflash.policy.context import Proposal
from dflash.policy.noise import F64, I64
from dflash.policy.topology import Bool
from dflash.replay.audit.betting import BettingProbe
from dflash.replay.audit.emission import Emission, emission
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.families import families, thinned
from dflash.replay.audit.verdict import LISTED, Fault, Status, Verdict


def not_bound(evidence: Evidence) -> str | None:
    """Return why emitted tokens need not follow the stored p, if they need not."""
    policy, context = evidence.policy, evidence.context
    if evidence.file.header.contexts is not None:
        return "its tokens were emitted by another target: p was scored afterwards"
    if not policy.is_lossless(context):
        return f"the recorded policy {policy} is lossy here, so its tokens need not follow p"
    return None


@dataclass(slots=True)
class Emitted(BettingProbe):
    """Bets on the rank in p of every emitted token: p alone sets the odds, whatever was drafted before."""

    name = "emitted tokens"
    question = "emitted tokens follow p"
    nothing = "no token was emitted"
    covering = True
    impossible: int = 0
    listed: list[Fault] = field(default_factory=list)

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why these tokens need not follow p; see `Probe.untestable`."""
        return not_bound(evidence)

    def take(self, evidence: Evidence) -> None:
        """Bet on the likeliest token, the next three, and all others."""
        found = emission(evidence)
        top = evidence.rounds["slot_topk_token"][found.slot]
        known = (
            (found.token >= 0) & (top >= 0).all(axis=1) if top.shape[1] else np.zeros(len(top), dtype=bool)
        )
        found = Emission(*(part[known] for part in found))
        top, p = top[known], _law(evidence, found.slot)
        hit = top == found.token[:, None]
        rank = np.where(hit.any(axis=1), hit.argmax(axis=1), top.shape[1])
        self._refuse(
            evidence, found, np.where(hit, p, 0.0).sum(axis=1) if len(p) else np.zeros(0), hit.any(axis=1)
        )
        self.bet("the likeliest token", rank == 0, p[:, 0])
        self.bet("ranks 2 to 4", (rank > 0) & (rank < 4), p[:, 1:4].sum(axis=1))
        self.bet("all other tokens", rank >= 4, 1.0 - p[:, :4].sum(axis=1))

    def _refuse(self, evidence: Evidence, found: Emission, p: F64, stored: Bool) -> None:
        """A token that p gives nothing cannot be emitted even once."""
        greedy = evidence.context.temperature == 0
        for place in np.flatnonzero((p == 0.0) & (stored | greedy)):
            self.impossible += 1
            if len(self.listed) < LISTED:
                slot = f"slot {int(evidence.slot_index[found.slot[place]])}"
                where = evidence.place(int(found.row[place]))
                token = str(int(found.token[place]))
                self.listed.append(Fault(*where, slot, "emitted token", "a token with p > 0", token))

    def verdict(self, alarm: bool, threshold: float) -> Verdict:
        """Fail on an alarm, and on any token that cannot be; see `Probe.verdict`."""
        verdict = BettingProbe.verdict(self, alarm, threshold)
        power = f"any token that p gives nothing; {verdict.power}" if verdict.places else ""
        if not self.impossible:
            return replace(verdict, power=power)
        return replace(
            verdict,
            status=Status.FAILED,
            faults=self.impossible + alarm,
            listed=tuple(self.listed),
            power=power,
        )


def _law(evidence: Evidence, slots: I64) -> F64:
    """p of the stored top tokens; one-hot at temperature 0."""
    if evidence.context.temperature:
        p = evidence.top_p[slots]
        # the normaliser is rounded, all the more at low temperatures
        return np.asarray(p / np.maximum(1.0, p.sum(axis=1))[:, None])
    rounds = evidence.rounds
    chosen: Bool = rounds["slot_topk_token"][slots] == rounds["slot_choice"][slots, None]
    return chosen.astype(np.float64)


@dataclass(slots=True)
class Favourites(BettingProbe):
    """Bets on the draft's favourite: a rule that is too kind to drafts emits it too often."""

    name = "lean"
    question = "emitted tokens do not lean towards the draft's favourite"
    nothing = "no token was emitted where a draft has a favourite and the target samples"

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why a lean would prove nothing; see `Probe.untestable`."""
        if (reason := not_bound(evidence)) is not None:
            return reason
        if evidence.context.proposal is Proposal.MIXED:
            return "drafters of a union have no common favourite"
        if evidence.context.sampled and evidence.policy.rule.name == "block":
            return "under block a token's law depends on where its round ended, so only all tokens follow p"
        return None

    def limited(self, evidence: Evidence) -> str | None:
        """Return whether cut rows are left out; see `Probe.limited`."""
        return thinned(evidence, fair=True) if evidence.context.sampled else None

    def take(self, evidence: Evidence) -> None:
        """Bet on the likeliest draft at every slot that was expanded, or on a deterministic first child."""
        if not evidence.context.temperature:
            return
        found = emission(evidence)
        favourite, p = _sampled(evidence) if evidence.context.sampled else _first_children(evidence)
        here = (favourite[found.slot] >= 0) & ~np.isnan(p[found.slot])
        slots = found.slot[here]
        self.bet("the draft's favourite", found.token[here] == favourite[slots], p[slots])


def _sampled(evidence: Evidence) -> tuple[I64, F64]:
    """The likeliest token of q at every slot with children, and its p."""
    favourite, p = _none(evidence)
    if (drawn := families(evidence)) is not None:
        drawn = drawn.take(evidence.uncut[evidence.slot_round[drawn.slots]])
        row = evidence.rounds.expanded_row[drawn.slots]
        best = drawn.tokens[:, :1]
        logits = evidence.rounds["draft_topk_target_logit"][row][:, :1]
        favourite[drawn.slots] = best[:, 0]
        p[drawn.slots] = evidence.probability(drawn.slots, logits)[:, 0]
    return favourite, p


def _first_children(evidence: Evidence) -> tuple[I64, F64]:
    favourite, p = _none(evidence)
    rounds = evidence.rounds
    first = np.flatnonzero(rounds.node_rank == 0)
    favourite[rounds.parent_slot[first]] = rounds["node_token"][first]
    p[rounds.parent_slot[first]] = np.exp(rounds["node_logp"][first])
    return favourite, p


def _none(evidence: Evidence) -> tuple[I64, F64]:
    slots = len(evidence.slot_round)
    return np.full(slots, -1, dtype=np.int64), np.full(slots, np.nan)
