"""The rule `relaxed`: accept a draft among the target's top k that is within delta of the first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision, longest
from dflash.policy.judged import judged_columns, judged_logp, top_columns, top_logp
from dflash.policy.noise import F64
from dflash.policy.parameter import Choice, Number, Whole, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.topology import Bool

PROBABILITY, LOGPROB = "probability", "logprob"


@dataclass(frozen=True, slots=True)
class Relaxed(Rule):
    """Accept while the draft is in the top k and not more than delta below the first, then emit the first."""

    k: int = parameter(Whole(1), 10)
    delta: float = parameter(Number(0.0), 0.6)
    of: str = parameter(Choice((PROBABILITY, LOGPROB)), PROBABILITY)

    name = "relaxed"
    summary = "accept a draft in the target's top k within delta of the first, then emit the first"
    lossless = Lossless.NEVER
    lossless_note = "unless at temperature 0 with k = 1, where only the argmax can pass"
    exactness = Exactness.REJUDGE
    exactness_note = "path-exact at temperature 0 with k = 1; else it may leave the trunk"
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
    temperature_zero = "judges softmax of the raw logits, since the processed p is one-hot"
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
        return longest(rounds, ok, rounds["slot_argmax"], judged_logp(rounds, context))

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Top logits, and what makes probabilities of them; see `Rule.needs`."""
        return tuple({"node_token", "slot_argmax", *judged_columns(context), *top_columns(context)})

    def is_lossless(self, context: RuleContext) -> bool:
        """Lossless where only the argmax can pass; see `Rule.is_lossless`."""
        return context.temperature == 0 and self.k == 1

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Path-exact where lossless; see `Rule.exactness_in`."""
        return Exactness.PATH if self.is_lossless(context) else Exactness.REJUDGE


def within_top(
    rounds: Rounds, context: RuleContext, rule: str, k: int, delta: float, probability: bool
) -> Bool:
    """Return whether each node is among the target's top k and not more than delta below the first; `[N]`."""
    token, logp = top_logp(rounds, context, rule, k)
    at = rounds.parent_slot
    value: F64 = np.exp(logp) if probability else logp
    # a cut token is no candidate, whatever delta
    near = (value >= value[:, :1] - delta) & (logp > -np.inf)
    candidate = near[at] & (token[at] == rounds["node_token"][:, None])
    return np.asarray(candidate.any(axis=1))
