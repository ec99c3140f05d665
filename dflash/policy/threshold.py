"""The rule `threshold`: accept a draft while the target gives it at least probability t."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision, longest
from dflash.policy.noise import F64
from dflash.policy.parameter import Number
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule


@dataclass(frozen=True, slots=True)
class Threshold(Rule):
    """Accept while p >= t, then emit the choice."""

    t: float = field(default=0.7, metadata={"type": Number(low=0.0, high=1.0, open_low=True)})

    name = "threshold"
    summary = "accept a draft while the target gives it probability t or more, then emit the choice"
    lossless = Lossless.NEVER
    lossless_note = "at temperature 0 with t > 0.5, where only the argmax can pass"
    exactness = Exactness.REJUDGE
    exactness_note = "path-exact at temperature 0 with t > 0.5; else it may leave the trunk"
    columns = ("node_logp", "node_target_logit", "slot_lse", "slot_choice")
    temperature_zero = "judges softmax of the raw logits, since the processed p is one-hot"
    source = "acceptance gate on the target's probability"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`."""
        logp = judged_logp(rounds, context)
        # rounded as log p is stored, so that p = t passes
        lowest = np.float64(np.float32(np.log(self.t)))
        return longest(rounds, logp >= lowest, rounds["slot_choice"], logp)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Raw logits at temperature 0, probabilities above; see `Rule.needs`."""
        return (*judged_columns(context), "slot_choice")

    def is_lossless(self, context: RuleContext) -> bool:
        """Lossless where only the argmax can pass; see `Rule.is_lossless`."""
        return context.temperature == 0 and self.t > 0.5

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Path-exact where lossless; see `Rule.exactness_in`."""
        return Exactness.PATH if self.is_lossless(context) else Exactness.REJUDGE


def judged_columns(context: RuleContext) -> tuple[str, ...]:
    """Return the columns that `judged_logp` reads."""
    return ("node_target_logit", "slot_lse") if context.temperature == 0 else ("node_logp",)


def judged_logp(rounds: Rounds, context: RuleContext) -> F64:
    """Return log p of every node as rules on probabilities see it: of softmax(l) at temperature 0; `[N]`."""
    if context.temperature > 0:
        return rounds.present("node_logp")
    return np.asarray(rounds.present("node_target_logit") - rounds.present("slot_lse")[rounds.parent_slot])
