"""The rule `speculative`: accept a draft with probability min(1, p/q), replace it from the residual.

Several siblings are tried in turn, each against the residual law that the failed ones left (SpecInfer with
replacement, Sequoia without).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.errors import IncompleteDraftLaw
from dflash.policy.match import equal_to
from dflash.policy.noise import F64, Purpose, race
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.sequential import first_passing, replacements, residuals_known, unknown_residuals
from dflash.policy.siblings import SIBLING_COLUMNS, sibling_log_ratio
from dflash.policy.topology import sibling_ranks


@dataclass(frozen=True, slots=True)
class Speculative(Rule):
    """Accept with probability min(1, p/q), else draw from norm(max(0, p - q))."""

    name = "speculative"
    summary = "accept a draft with probability min(1, p/q), else emit a draw from norm(max(0, p - q))"
    lossless = Lossless.ALWAYS
    lossless_note = "emitted tokens follow p for any q that is the law of the draft"
    exactness = Exactness.PATH
    exactness_note = "on deterministic drafts; law-exact on sampled chains, re-judge on sampled trees"
    columns = ("node_logp", "node_logq", "slot_choice", "node_residual_token", *SIBLING_COLUMNS)
    temperature_zero = "the same as greedy"
    source = (
        "Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318; trees: SpecInfer, arXiv "
        "2305.09781, and Sequoia, arXiv 2402.12374"
    )

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            IncompleteDraftLaw: a sampled tree branches and q is not stored whole.
            MixedProposals: drafters of a union follow different laws.
        """
        self.refuse(context, rounds.trees.branching)
        if not context.sampled:
            return equal_to(rounds, rounds["slot_choice"])
        log_ratio = rounds.present("node_logp") - rounds.present("node_logq")
        if rounds.trees.branching:
            # a cut may have left a later sibling alone
            later = sibling_ranks(rounds.parent_slot) > 0
            log_ratio[later] = sibling_log_ratio(rounds, context)[later]
        log_coin = np.log(context.coins(rounds, Purpose.ACCEPT))
        excess = log_coin - log_ratio
        known = residuals_known(self.name, context)
        return first_passing(rounds, excess <= 0, replacements(rounds, known), excess)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Tokens and choices on deterministic drafts, probabilities on sampled ones; see `Rule.needs`."""
        return self.columns if context.sampled else ("node_token", "slot_choice")

    def refuse(self, context: RuleContext, branching: bool) -> None:
        """Trees of sampled drafts need all of q; see `Rule.refuse`."""
        Rule.refuse(self, context, branching)
        if branching and context.sampled and not context.q_complete:
            raise IncompleteDraftLaw(self.name)

    def judges_q(self, context: RuleContext) -> bool:
        """On sampled drafts; see `Rule.judges_q`."""
        return context.sampled

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Depends on how drafts were drawn; see `Rule.exactness_in`."""
        if not context.sampled:
            return Exactness.PATH
        return Exactness.REJUDGE if trees else Exactness.LAW

    def remark(self, context: RuleContext) -> str | None:
        """Say where emitted tokens are unknown; see `Rule.remark`."""
        return unknown_residuals(not context.sampled or residuals_known(self.name, context))


def residuals(p: F64, q: F64, tokens: Sequence[int], with_replacement: bool) -> Iterator[F64]:
    """Yield the law of the replacement after the first 1, 2, ... siblings have been rejected.

    Args:
        p: `[V]` target law at the siblings' slot.
        q: `[V]` draft law there, before any draw.
        tokens: the siblings, in order.
        with_replacement: whether the drafter may draw a token twice.

    Yields:
        `[V]`, unnormalised, one a sibling; all zeros where the rejection had no probability.
    """
    target, draft = p.astype(np.float64), q.astype(np.float64)
    for token in tokens:
        rest = np.maximum(0.0, target - draft)
        yield rest
        total = rest.sum()
        target = rest / total if total > 0 else rest
        if not with_replacement:
            draft = draft.copy()
            draft[token] = 0.0
            left = draft.sum()
            draft = draft / left if left > 0 else draft


def residual_tokens(
    p: F64, q: F64, tokens: Sequence[int], with_replacement: bool, exponential: F64, choice: int
) -> list[int]:
    """Draw what is emitted if the first 1, 2, ... siblings fail and the block ends there.

    Args:
        p: `[V]`; `q`, `tokens` and `with_replacement` as in `residuals`.
        exponential: `[V]` noise of purpose residual at the siblings' depth under their parent's path.
        choice: the target's choice at the slot, taken where the residual is empty (a rejection that
            cannot happen but by rounding).

    Returns:
        One token a sibling: the values of `node_residual_token`.
    """
    drawn = (race(exponential, law) for law in residuals(p, q, tokens, with_replacement))
    return [token if token >= 0 else choice for token in drawn]
