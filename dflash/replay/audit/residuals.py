"""Probe: what replaces a rejected draft comes from the residual law of the recorded rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dflash.policy.context import Proposal
from dflash.policy.noise import F64, I64, Purpose
from dflash.policy.sequential import RATIO_RULES
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.exact import Compared, ExactProbe, differing
from dflash.replay.audit.families import Families, families, thinned
from dflash.replay.audit.races import NO_KEY, anchor_race, has_noise

# a residual of less mass is rounding; so is this much of any probability
_EMPTY, _ROUNDING = 1e-5, 2e-6


@dataclass(slots=True)
class Residuals(ExactProbe):
    """Computes the residual mass and runs the residual race again, at the siblings of every slot.

    Under `block` the residual is norm(max(0, P p - q)) with P the capped ratio of the path, under ratio
    rules norm(max(0, p - q)) after the siblings before; under rules that emit choices it is the choice.
    """

    name = "residuals"
    question = "replacements come from the residual law of the recorded rule, scaled as it says"
    nothing = "no node was drafted"
    power = "every mass off by about 1e-4, every replacement that a stored token would have beaten"
    unscaled: int = 0
    missed: int = 0

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why residuals cannot be computed; see `Probe.untestable`."""
        context = evidence.context
        if not context.sampled:
            return None
        if context.proposal is Proposal.MIXED or not context.q_complete:
            return "q is not known whole"
        if evidence.policy.rule.draws_residuals(context) and not has_noise(evidence):
            return NO_KEY
        return None

    def limited(self, evidence: Evidence) -> str | None:
        """Return whether cut rows are left out; see `Probe.limited`."""
        return thinned(evidence) if evidence.context.sampled else None

    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield masses and replacements."""
        found = families(evidence) if evidence.context.sampled else None
        if not evidence.policy.rule.draws_residuals(evidence.context):
            yield _choices(evidence)
        if found is None:
            return
        walk = _Walk(evidence, found)
        name = evidence.policy.rule.name
        drawn = evidence.policy.rule.draws_residuals(evidence.context)
        for sibling, nodes in enumerate(found.members.T):
            here = np.flatnonzero(nodes >= 0)
            yield self._mass(evidence, walk, here, nodes[here])
            if drawn and name == "block":
                yield walk.race(here, nodes[here], walk.scaled(here))
            elif drawn and name in RATIO_RULES:
                yield walk.race(here, nodes[here], walk.rejected(here))
            walk.pass_over(here, sibling)

    def _mass(self, evidence: Evidence, walk: _Walk, here: I64, nodes: I64) -> Compared:
        found = evidence.rounds["node_residual_mass"][nodes]
        expected, plain = walk.mass(here, walk.capped[here]), walk.mass(here, np.ones(len(here)))
        slack = walk.slack[here]
        compared = differing(evidence, "node_residual_mass", "node", nodes, expected, found, slack)
        missed = np.abs(expected - found) > slack
        self.missed += int(missed.sum())
        self.unscaled += int((missed & (np.abs(plain - found) <= slack)).sum())
        return compared

    def causes(self) -> tuple[str, ...]:
        """Return whether the masses are those of an unscaled residual; see `ExactProbe.causes`."""
        if self.missed and self.unscaled >= 0.9 * self.missed:
            return ("the residual is max(0, p - q), not scaled by the ratio P of its path",)
        return ()


def _choices(evidence: Evidence) -> Compared:
    rounds = evidence.rounds
    nodes = np.arange(len(rounds.node_parent))
    choice = rounds["slot_choice"][rounds.parent_slot].astype(np.float64)
    found = rounds["node_residual_token"].astype(np.float64)
    found[found < 0] = np.nan
    return differing(
        evidence, "node_residual_token of a rule that emits choices", "node", nodes, choice, found
    )


class _Walk:
    """The laws at every slot as one sibling after the other is rejected; q lies inside the draft's top-k.

    `p` and `q` `[G, K]` are over the draft's best tokens, `other` `[G, K']` over the target's, 0 for those
    that are among the draft's; p after rejections is known up to the factor `share` for all other tokens.
    `blur` `[G]` is how far p may be off, which grows where little of it is left.
    """

    def __init__(self, evidence: Evidence, found: Families) -> None:
        rounds = evidence.rounds
        self.evidence, self.found = evidence, found
        row = rounds.expanded_row[found.slots]
        self.plain = evidence.probability(found.slots, rounds["draft_topk_target_logit"][row])
        self.p, self.q = self.plain.copy(), np.exp(found.log_law)
        self.slack = found.slack + evidence.top_slack(found.slots)
        self.blur = _ROUNDING + self.slack - 2e-4
        self.others = rounds["slot_topk_token"][found.slots].astype(np.int64)
        known = (self.others[:, :, None] == found.tokens[:, None, :]).any(axis=2)
        self.other = np.where(known, 0.0, evidence.top_p[found.slots])
        self.tail = np.maximum(0.0, 1.0 - self.p.sum(axis=1))
        self.share = np.ones(len(found.slots))
        at_node = np.ones(len(evidence.slot_round))
        at_node[rounds.node_slot] = _capped_ratios(evidence)
        self.capped = at_node[found.slots]

    def mass(self, here: I64, capped: F64) -> F64:
        """Return the residual mass before each sibling, at a ratio `capped` `[m]` of the path."""
        plain, q = self.plain[here], self.q[here]
        elsewhere = capped * np.maximum(0.0, 1.0 - plain.sum(axis=1))
        return np.asarray(elsewhere + np.maximum(0.0, capped[:, None] * plain - q).sum(axis=1))

    def scaled(self, here: I64) -> tuple[F64, F64, F64]:
        """Return max(0, P p - q) over the draft's tokens, the target's others, and per p of any token."""
        capped = self.capped[here]
        weight = np.maximum(0.0, capped[:, None] * self.plain[here] - self.q[here])
        return weight, capped[:, None] * self.other[here], capped

    def rejected(self, here: I64) -> tuple[F64, F64, F64]:
        """Return max(0, p - q) likewise, p being what is left of the target's law."""
        share = self.share[here]
        return np.maximum(0.0, self.p[here] - self.q[here]), share[:, None] * self.other[here], share

    def race(self, here: I64, nodes: I64, weights: tuple[F64, F64, F64]) -> Compared:
        """Run the residual race among all tokens whose p is stored; a token without one may win by luck."""
        own, other, scale = weights
        slots = self.found.slots[here]
        drawn = self.evidence.rounds["node_residual_token"][nodes].astype(np.int64)
        tokens = np.column_stack([drawn, self.found.tokens[here], self.others[here]])
        known = np.column_stack([own, other])
        hit = tokens[:, 1:] == drawn[:, None]
        # no token outside of the target's stored top has more mass than the last of them
        most = scale * self.evidence.top_p[slots].min(axis=1)
        mine = np.where(hit.any(axis=1), np.where(hit, known, 0.0).max(axis=1), most)
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.log(np.column_stack([mine, known])) - anchor_race(
                self.evidence, Purpose.RESIDUAL, slots, tokens
            )
            behind = score.max(axis=1) - score[:, 0]
        winner = score.argmax(axis=1)
        best = tokens[np.arange(len(here)), winner]
        blur = self.blur[here]
        told = (drawn >= 0) & (np.nan_to_num(known.sum(axis=1)) > np.maximum(_EMPTY, blur))
        rival = np.column_stack([mine, known])[np.arange(len(here)), winner]
        near = behind <= 1e-3 + blur / np.maximum(np.minimum(mine, rival), 1e-12)
        row, index = self.evidence.rounds.node_round[nodes], self.evidence.rounds.node_index[nodes]
        wrong = told & (best != drawn)
        return Compared("node_residual_token", "node", row, index, wrong, near, best, drawn)

    def pass_over(self, here: I64, sibling: int) -> None:
        """Reject one sibling of these slots, as `policy.speculative.residuals` does."""
        rest = np.maximum(0.0, self.p[here] - self.q[here])
        total = rest.sum(axis=1) + self.tail[here]
        scale = np.where(total > 0, total, 1.0)
        self.p[here] = rest / scale[:, None]
        self.tail[here] /= scale
        self.share[here] /= scale
        self.blur[here] /= np.maximum(scale, 1e-12)
        if self.evidence.context.proposal.with_replacement:
            return
        place = self.found.place[here, sibling]
        self.q[here[place >= 0], place[place >= 0]] = 0.0
        left = self.q[here].sum(axis=1)
        self.q[here] /= np.where(left > 0, left, 1.0)[:, None]


def _capped_ratios(evidence: Evidence) -> F64:
    """P = min(1, P(parent) p/q) at every node; `[N]`."""
    rounds = evidence.rounds
    ratio = np.exp(np.minimum(rounds["node_logp"] - rounds["node_logq"], 50.0))
    # one more element, so that the parent -1 reads 1
    capped = np.ones(len(ratio) + 1)
    for depth in range(1, int(rounds.node_depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(rounds.node_depth == depth)
        capped[nodes] = np.minimum(1.0, capped[rounds.parent_node[nodes]] * ratio[nodes])
    return capped[:-1]
