"""The rule `tolerance`: the lossy acceptance that a checkpoint of the speculators format declares."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision, longest
from dflash.policy.judged import judged_columns, judged_logp, top_columns
from dflash.policy.parameter import Number, Whole, parameter
from dflash.policy.relaxed import within_top
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule


@dataclass(frozen=True, slots=True)
class Tolerance(Rule):
    """Accept while the draft is in the top k within `tolerance` nats of the first, then emit the choice."""

    k: int = parameter(Whole(1), 1)
    tolerance: float = parameter(Number(0.0), 0.0)

    name = "tolerance"
    summary = "accept a draft in the target's top k within tolerance nats of the first, then emit the choice"
    lossless = Lossless.NEVER
    lossless_note = "unless at temperature 0 with k = 1, the format's default, where only the argmax can pass"
    exactness = Exactness.REJUDGE
    exactness_note = "path-exact at temperature 0 with k = 1; else it may leave the trunk"
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
    temperature_zero = "judges softmax of the raw logits, since the processed p is one-hot"
    source = "verifier_accept_k and accept_tolerance of the speculators checkpoint format"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            TooFewTopLogits: fewer than k were stored.
        """
        ok = within_top(rounds, context, self.name, self.k, self.tolerance, probability=False)
        return longest(rounds, ok, rounds["slot_choice"], judged_logp(rounds, context))

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Top logits, and what makes probabilities of them; see `Rule.needs`."""
        return tuple({"node_token", "slot_choice", *judged_columns(context), *top_columns(context)})

    def is_lossless(self, context: RuleContext) -> bool:
        """Lossless where only the argmax can pass; see `Rule.is_lossless`."""
        return context.temperature == 0 and self.k == 1

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Path-exact where lossless; see `Rule.exactness_in`."""
        return Exactness.PATH if self.is_lossless(context) else Exactness.REJUDGE
