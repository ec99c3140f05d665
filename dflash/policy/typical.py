"""The rule `typical`: accept a draft that is likely enough for how uncertain the target is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision, longest
from dflash.policy.judged import as_stored, judged_columns, judged_logp
from dflash.policy.parameter import Number, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule


@dataclass(frozen=True, slots=True)
class Typical(Rule):
    """Accept while p > min(eps, delta exp(-H)), then emit the choice."""

    eps: float = parameter(Number(0.0, 1.0, open_low=True), 0.3)
    delta: float = parameter(Number(0.0, open_low=True), 0.09)

    name = "typical"
    summary = "accept a draft while p > min(eps, delta exp(-H)), H the entropy of p, then emit the choice"
    lossless = Lossless.NEVER
    lossless_note = "where p is flat, unlikely tokens pass"
    exactness = Exactness.REJUDGE
    exactness_note = "it may leave the trunk at any token"
    columns = ("node_logp", "node_target_logit", "slot_lse", "slot_entropy", "slot_choice")
    temperature_zero = "judges softmax of the raw logits, since the processed p is one-hot"
    source = (
        "typical acceptance, Medusa, arXiv 2401.10774: eps 0.3, delta 0.09; vLLM V0 swaps the names and "
        "values, so that its defaults are eps 0.09 and delta 0.3"
    )

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`."""
        return typical(rounds, context, self.eps, self.delta)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Raw logits at temperature 0, probabilities above; see `Rule.needs`."""
        return (*judged_columns(context), "slot_entropy", "slot_choice")


def typical(rounds: Rounds, context: RuleContext, eps: float, delta: float) -> Decision:
    """Accept the longest path with p > min(eps, delta exp(-H)) and emit the choice where it ends."""
    logp = judged_logp(rounds, context)
    entropy = rounds.present("slot_entropy")[rounds.parent_slot]
    bound = np.minimum(as_stored(np.log(eps)), np.log(delta) - entropy)
    return longest(rounds, logp > bound, rounds["slot_choice"], logp)
