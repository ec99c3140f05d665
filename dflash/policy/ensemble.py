"""The rule `ensemble`: judge drafts by a mixture of target and drafter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.errors import NullColumn, SampledOnly, UndecidedMixture
from dflash.policy.match import equal_to
from dflash.policy.noise import F64, I64, Purpose
from dflash.policy.parameter import Number, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.sequential import first_passing, replacements, residuals_known, unknown_residuals
from dflash.policy.topology import Bool

SAMPLED_COLUMNS = ("node_logp", "node_logq", "slot_choice", "node_residual_token")
GREEDY_COLUMNS = (
    "node_token",
    "slot_argmax",
    "slot_lse",
    "slot_topk_token",
    "slot_topk_logit",
    "draft_lse",
    "draft_topk_token",
    "draft_topk_logit",
    "draft_topk_target_logit",
)


@dataclass(frozen=True, slots=True)
class Ensemble(Rule):
    """Accept with probability min(1, 1 - w + w p/q), else draw from norm(max(0, p - q))."""

    w: float = parameter(Number(0.0, 1.0, open_low=True), 0.9)

    name = "ensemble"
    summary = "accept with probability min(1, 1 - w + w p/q), else emit a draw from norm(max(0, p - q))"
    lossless = Lossless.NEVER
    lossless_note = "unless w = 1, where it is speculative; the bias is bounded by 1 - w"
    exactness = Exactness.REJUDGE
    exactness_note = "it leaves the trunk wherever the drafter's weight decides"
    columns = tuple(dict.fromkeys((*SAMPLED_COLUMNS, *GREEDY_COLUMNS)))
    trees = False
    temperature_zero = "accepts and emits the argmax of w p + (1 - w) q, both softmax of raw logits"
    source = "static ensemble, arXiv 2604.07622; transformers' assistant_ensemble_weight w"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            ChainsOnly: a tree branches.
            SampledOnly: drafts follow no law, at a temperature above 0.
            MixedProposals: drafters of a union follow different laws.
            NullColumn: at temperature 0, the drafter states no q.
            UndecidedMixture: at temperature 0, the stored top logits do not decide where a path ends.
        """
        self.refuse(context, rounds.trees.branching)
        if context.temperature == 0:
            return self._greedy(rounds)
        ratio = np.exp(rounds.present("node_logp") - rounds.present("node_logq"))
        excess = context.coins(rounds, Purpose.ACCEPT) - (1.0 - self.w + self.w * ratio)
        emitted = replacements(rounds, residuals_known(self.name, context))
        return first_passing(rounds, excess <= 0, emitted, excess)

    def _greedy(self, rounds: Rounds) -> Decision:
        best = rounds["slot_argmax"].copy()
        expanded = rounds.expanded_row >= 0
        if not expanded[rounds.parent_slot].all():
            raise NullColumn("draft_topk_logit", "the drafter states no q for some of its drafts")
        slots = np.flatnonzero(expanded)
        if len(slots):
            best[slots] = _likeliest(rounds, slots, self.w)
        decision = equal_to(rounds, best)
        if undecided := int((decision.bonus < 0).sum()):
            raise UndecidedMixture(self.name, undecided)
        return decision

    def refuse(self, context: RuleContext, branching: bool) -> None:
        """Above temperature 0 drafts must follow a law; see `Rule.refuse`."""
        Rule.refuse(self, context, branching)
        if context.temperature > 0 and not context.sampled:
            raise SampledOnly(self.name, str(context.proposal))

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Both models' top logits at temperature 0, probabilities above; see `Rule.needs`."""
        return GREEDY_COLUMNS if context.temperature == 0 else SAMPLED_COLUMNS

    def is_lossless(self, context: RuleContext) -> bool:
        """Lossless without the drafter's weight; see `Rule.is_lossless`."""
        return self.w == 1.0

    def judges_q(self, context: RuleContext) -> bool:
        """On sampled drafts; see `Rule.judges_q`."""
        return context.sampled

    def remark(self, context: RuleContext) -> str | None:
        """Say where emitted tokens are unknown; see `Rule.remark`."""
        return unknown_residuals(not context.sampled or residuals_known(self.name, context))


def _likeliest(rounds: Rounds, slots: I64, w: float) -> I64:
    """Return the argmax of w p + (1 - w) q at expanded slots, lowest id on ties; -1 where it is open."""
    row, lse = rounds.expanded_row[slots], rounds.present("slot_lse")[slots, None]
    draft_token, target_token = rounds["draft_topk_token"][row], rounds["slot_topk_token"][slots]
    q = np.exp(rounds.present("draft_topk_logit")[row] - rounds["draft_lse"][slots, None])
    both = w * np.exp(rounds.present("draft_topk_target_logit")[row] - lse) + (1.0 - w) * q
    p = w * np.exp(rounds.present("slot_topk_logit")[slots] - lse)
    least_q, least_p = (1.0 - w) * q[:, -1:], p[:, -1:]
    alone: Bool = ~(target_token[:, :, None] == draft_token[:, None, :]).any(axis=2)
    token = np.concatenate([draft_token, target_token], axis=1)
    floor: F64 = np.concatenate([both, np.where(alone, p, -np.inf)], axis=1)
    # q of a token outside of the draft top-k lies between 0 and the last one stored
    ceiling = np.concatenate([both, np.where(alone, p + least_q, -np.inf)], axis=1)
    most = floor.max(axis=1, keepdims=True)
    best = np.where(floor == most, token, np.iinfo(np.int32).max).min(axis=1)
    others = np.where(token == best[:, None], -np.inf, ceiling).max(axis=1)
    settled = (others <= most[:, 0]) & ((least_p + least_q)[:, 0] <= most[:, 0])
    return np.where(settled, best, -1)
