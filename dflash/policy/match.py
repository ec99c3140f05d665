"""The rule `match`: accept a draft while it equals the token that the target itself chose."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.policy.context import Proposal, RuleContext
from dflash.policy.decision import Decision, end_after, longest
from dflash.policy.noise import I64
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule


@dataclass(frozen=True, slots=True)
class Match(Rule):
    """Accept while draft = choice, then emit the choice."""

    name = "match"
    summary = "accept a draft while it equals the target's own choice, then emit the choice"
    lossless = Lossless.ALWAYS
    lossless_note = "every emitted token is the target's choice, whatever was drafted"
    exactness = Exactness.PATH
    exactness_note = "always"
    columns = ("node_token", "slot_choice")
    temperature_zero = "the same as greedy"
    source = "token equality with the target's sample; shared noise after Daliri et al., arXiv 2408.07978"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`."""
        return equal_to(rounds, rounds["slot_choice"])

    def remark(self, context: RuleContext) -> str | None:
        """Say so where drafts do not share the target's noise; see `Rule.remark`."""
        if context.sampled and context.proposal is not Proposal.SHARED:
            return (
                f"drafts are {context.proposal}: match accepts less than it would on shared ones; judge "
                "these by speculative, or record with --proposal shared"
            )
        return None


def equal_to(rounds: Rounds, slot_token: I64) -> Decision:
    """Accept the longest path of drafts equal to `slot_token` at their parent's slot, and emit it."""
    if rounds.trees.chains:
        return end_after(rounds, rounds.leading_equal(slot_token), slot_token)
    return longest(rounds, rounds.equal(slot_token), slot_token)
