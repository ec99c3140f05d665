"""The rule `tolerance`: the lossy acceptance that a checkpoint of the speculators format declares."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision, longest
from dflash.policy.judged import judged_logp
from dflash.policy.parameter import Number, Whole, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.within_top import WithinTop, within_top


@dataclass(frozen=True, slots=True)
class Tolerance(WithinTop):
    """Accept while the draft is in the top k within `tolerance` nats of the first, then emit the choice."""

    k: int = parameter(Whole(1), 1)
    tolerance: float = parameter(Number(0.0), 0.0)

    name = "tolerance"
    emits = "slot_choice"
    summary = "accept a draft in the target's top k within tolerance nats of the first, then emit the choice"
    lossless_note = "unless at temperature 0 with k = 1, the format's default, where only the argmax can pass"
    columns = (
        "node_token",
        "node_logp",
        "node_target_logit",
        "slot_choice",
        "slot_topk_token",
        "slot_topk_logit",
        "slot_lse",
        "slot_lse_p",
        "slot_cutoff",
    )
    source = "verifier_accept_k and accept_tolerance of the speculators checkpoint format"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            TooFewTopLogits: fewer than k were stored.
        """
        ok = within_top(rounds, context, self.name, self.k, self.tolerance, probability=False)
        return longest(rounds, ok, rounds[self.emits], judged_logp(rounds, context))
