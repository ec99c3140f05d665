"""The rule `threshold`: accept a draft while the target gives it at least probability t.

With `single` or `acc` it is SGLang's pair of thresholds instead, which decides by coins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import Proposal, RuleContext
from dflash.policy.decision import Decision, longest
from dflash.policy.errors import ParameterConflict
from dflash.policy.judged import as_stored, judged_columns, judged_logp
from dflash.policy.match import equal_to
from dflash.policy.noise import Purpose
from dflash.policy.parameter import Number, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.sequential import first_passing, replacements, unknown_residuals
from dflash.policy.target_only import TARGET_ONLY_COLUMNS, add_up

DEFAULT_T = 0.7


@dataclass(frozen=True, slots=True)
class Threshold(Rule):
    """Accept while p >= t, then emit the choice; or accept by SGLang's `single` and `acc`."""

    t: float | None = parameter(Number(0.0, 1.0, open_low=True), None, shown=DEFAULT_T)
    single: float | None = parameter(Number(0.0, 1.0), None)
    acc: float | None = parameter(Number(0.0, 1.0), None)

    name = "threshold"
    summary = "accept a draft while the target gives it probability t or more, then emit the choice"
    lossless = Lossless.NEVER
    lossless_note = (
        "unless at temperature 0 with t > 0.5 or under single and acc, or above it with single = acc = 1"
    )
    exactness = Exactness.REJUDGE
    exactness_note = "path-exact at temperature 0 where lossless; else it may leave the trunk"
    columns = (
        "node_logp",
        "node_target_logit",
        "slot_lse",
        "slot_choice",
        "node_token",
        "node_residual_token",
    )
    temperature_zero = (
        "t judges softmax of the raw logits, since the processed p is one-hot; single and acc are greedy"
    )
    source = (
        "acceptance gate on the target's probability; single, acc: SGLang's "
        "--speculative-accept-threshold-single and -acc, p >= single or coin < p / acc, summed over siblings"
    )

    def __post_init__(self) -> None:
        if self.pair and self.t is not None:
            raise ParameterConflict(self.name, "t", "single and acc")
        if not self.pair and self.t is None:
            object.__setattr__(self, "t", DEFAULT_T)

    @property
    def pair(self) -> bool:
        """Whether SGLang's thresholds decide; the one not given is 1."""
        return self.single is not None or self.acc is not None

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`."""
        if self.t is not None:
            logp = judged_logp(rounds, context)
            return longest(rounds, logp >= as_stored(np.log(self.t)), rounds["slot_choice"], logp)
        if context.temperature == 0:
            return equal_to(rounds, rounds["slot_choice"])
        single, acc = (1.0 if bound is None else bound for bound in (self.single, self.acc))
        ok, excess = add_up(rounds, context.coins(rounds, Purpose.ACCEPT), single, acc)
        known = context.recorded_rule == self.name
        return first_passing(rounds, ok, replacements(rounds, known), excess)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Raw logits at temperature 0, probabilities above; see `Rule.needs`."""
        if not self.pair:
            return (*judged_columns(context), "slot_choice")
        return ("node_token", "slot_choice") if context.temperature == 0 else TARGET_ONLY_COLUMNS

    def runs_live(self) -> bool:
        """Only `t`: the recorder draws no tokens from what the pair leaves of p; see `Rule.runs_live`."""
        return not self.pair

    def is_lossless(self, context: RuleContext) -> bool:
        """Lossless where only the argmax, or a draw from p, can pass; see `Rule.is_lossless`."""
        if self.t is not None:
            return context.temperature == 0 and self.t > 0.5
        whole = self.single in (None, 1.0) and self.acc in (None, 1.0)
        return context.temperature == 0 or (whole and context.proposal is not Proposal.IID)

    def draws_residuals(self, context: RuleContext) -> bool:
        """Under the pair; see `Rule.draws_residuals`."""
        return self.pair and context.temperature > 0

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Path-exact where the choice alone decides; see `Rule.exactness_in`."""
        exact = context.temperature == 0 and self.is_lossless(context)
        return Exactness.PATH if exact else Exactness.REJUDGE

    def remark(self, context: RuleContext) -> str | None:
        """Say where emitted tokens are unknown; see `Rule.remark`."""
        return unknown_residuals(not self.draws_residuals(context) or context.recorded_rule == self.name)
