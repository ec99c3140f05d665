"""The preset `medusa`: typical acceptance as Medusa's own code has it."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.match import equal_to
from dflash.policy.parameter import Number, parameter
from dflash.policy.presets.engine import GREEDY_COLUMNS, Preset
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless
from dflash.policy.typical import typical

SAMPLED_COLUMNS = ("node_logp", "slot_entropy", "slot_choice")


@dataclass(frozen=True, slots=True)
class Medusa(Preset):
    """Accept the longest path with p > min(threshold, alpha exp(-H)), then emit the choice."""

    threshold: float = parameter(Number(0.0, 1.0, open_low=True), 0.3)
    alpha: float = parameter(Number(0.0, open_low=True), 0.09)

    name = "medusa"
    summary = "accept the longest path with p > min(threshold, alpha exp(-H)), then emit the choice"
    lossless = Lossless.GREEDY
    lossless_note = "at temperature 0; above it unlikely tokens pass where p is flat"
    exactness_note = "at temperature 0; above it re-judge, as it may leave the trunk"
    columns = tuple(dict.fromkeys((*SAMPLED_COLUMNS, *GREEDY_COLUMNS)))
    temperature_zero = "greedy: accepts and emits the argmax"
    processing = "p: softmax at the temperature, nothing cut; record without top-k and top-p"
    source = (
        "Medusa's evaluate_posterior: posterior_threshold 0.3, posterior_alpha 0.09; ties go to the larger "
        "sum of log p. H is exact here; Medusa adds 1e-5 to p inside of its logarithm"
    )

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`."""
        if context.temperature == 0:
            return equal_to(rounds, rounds["slot_argmax"])
        return typical(rounds, context, self.threshold, self.alpha)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """The argmax at temperature 0, probabilities above; see `Rule.needs`."""
        return GREEDY_COLUMNS if context.temperature == 0 else SAMPLED_COLUMNS

    def tosses(self, context: RuleContext) -> bool:
        """Never; see `Preset.tosses`."""
        return False

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Path-exact where it is greedy; see `Rule.exactness_in`."""
        return Exactness.PATH if context.temperature == 0 else Exactness.REJUDGE
