"""The rule `greedy`: accept a draft while it is the target's most likely token."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.match import equal_to
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule


@dataclass(frozen=True, slots=True)
class Greedy(Rule):
    """Accept while draft = argmax, then emit the argmax."""

    name = "greedy"
    summary = "accept a draft while it is the target's argmax, then emit the argmax"
    lossless = Lossless.GREEDY
    lossless_note = "at temperature 0; above it the argmax replaces the sampled token"
    exactness = Exactness.PATH
    exactness_note = "at temperature 0; re-judge on sampled recordings, whose trunk it leaves"
    columns = ("node_token", "slot_argmax")
    temperature_zero = "the same"
    source = "greedy decoding; longest matching branch on trees"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`."""
        return equal_to(rounds, rounds["slot_argmax"])

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Path-exact at temperature 0 only; see `Rule.exactness_in`."""
        return Exactness.PATH if context.temperature == 0 else Exactness.REJUDGE
