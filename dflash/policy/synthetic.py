"""The rule `synthetic`: accept by given rates, for load tests; the text means nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.errors import TooFewRates
from dflash.policy.noise import Purpose
from dflash.policy.parameter import Falling, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.sequential import first_passing


@dataclass(frozen=True, slots=True)
class Synthetic(Rule):
    """Accept the first i drafts with probability `rates[i - 1]`, whatever they are, then emit the choice."""

    rates: tuple[float, ...] = parameter(Falling())

    name = "synthetic"
    summary = "accept the first i drafts with the i-th of given rates, whatever they are; for load tests only"
    lossless = Lossless.NEVER
    lossless_note = "the text is meaningless"
    exactness = Exactness.REJUDGE
    exactness_note = "it leaves the trunk at once"
    columns = ("node_token", "slot_choice")
    trees = False
    temperature_zero = "the same"
    source = "vLLM's synthetic_acceptance_rates: P(first i accepted), turned into conditional rates"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            ChainsOnly: a tree branches.
            TooFewRates: a draft is longer than the rates.
        """
        self.refuse(context, rounds.trees.branching)
        deepest = int(rounds.node_depth.max(initial=0))
        if deepest > len(self.rates):
            raise TooFewRates(self.name, len(self.rates), deepest)
        survival = np.array((1.0, *self.rates))
        with np.errstate(invalid="ignore"):
            rate = np.where(survival[:-1] > 0, survival[1:] / survival[:-1], 0.0)
        excess = context.coins(rounds, Purpose.ACCEPT) - rate[rounds.node_depth - 1]
        ok = (excess < 0) & (rounds["node_token"] >= 0)
        return first_passing(rounds, ok, rounds["slot_choice"], excess)
