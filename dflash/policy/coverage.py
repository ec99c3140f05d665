"""The rule `coverage`: accept a draft while it lies within the target's nucleus."""

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
class Coverage(Rule):
    """Accept while the likelier tokens hold less than `mass`, then emit the choice."""

    mass: float = parameter(Number(0.0, 1.0, open_low=True), 0.8)

    name = "coverage"
    summary = "accept a draft while the tokens likelier than it hold less than mass, then emit the choice"
    lossless = Lossless.NEVER
    lossless_note = "any token of the nucleus is taken for the target's own"
    exactness = Exactness.REJUDGE
    exactness_note = "it may leave the trunk at any token"
    columns = ("node_mass_above", "node_logp", "node_target_logit", "slot_lse", "slot_choice")
    temperature_zero = "judges softmax of the raw logits, since the processed p is one-hot"
    source = "nucleus acceptance; Medusa's code has it with top_p 0.8"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`."""
        logp = judged_logp(rounds, context)
        inside = rounds.present("node_mass_above") < as_stored(self.mass)
        return longest(rounds, inside & (logp > -np.inf), rounds["slot_choice"], logp)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Raw logits at temperature 0, probabilities above; see `Rule.needs`."""
        return ("node_mass_above", *judged_columns(context), "slot_choice")
