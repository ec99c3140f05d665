"""The rule `relaxed`: accept a draft among the target's top k that is within delta of the first."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision, longest
from dflash.policy.judged import judged_logp
from dflash.policy.parameter import Choice, Number, Whole, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.within_top import WithinTop, within_top

PROBABILITY, LOGPROB = "probability", "logprob"


@dataclass(frozen=True, slots=True)
class Relaxed(WithinTop):
    """Accept while the draft is in the top k and not more than delta below the first, then emit the first."""

    k: int = parameter(Whole(1), 10)
    delta: float = parameter(Number(0.0), 0.6)
    of: str = parameter(Choice((PROBABILITY, LOGPROB)), PROBABILITY)

    name = "relaxed"
    emits = "slot_argmax"
    summary = "accept a draft in the target's top k within delta of the first, then emit the first"
    lossless_note = "unless at temperature 0 with k = 1, where only the argmax can pass"
    columns = (
        "node_token",
        "node_logp",
        "node_target_logit",
        "slot_argmax",
        "slot_topk_token",
        "slot_topk_logit",
        "slot_lse",
        "slot_lse_p",
        "slot_cutoff",
    )
    source = (
        "TensorRT-LLM's relaxed acceptance for thinking, here on every round: its kernel compares "
        "probabilities, its documentation log-probabilities, so `of` names which"
    )

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            TooFewTopLogits: fewer than k were stored.
        """
        ok = within_top(rounds, context, self.name, self.k, self.delta, self.of == PROBABILITY)
        return longest(rounds, ok, rounds[self.emits], judged_logp(rounds, context))
