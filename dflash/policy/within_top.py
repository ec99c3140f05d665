"""Rules that take a draft among the target's top k, near enough to the first."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.judged import judged_columns, top_columns, top_logp
from dflash.policy.noise import F64
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.topology import Bool


class WithinTop(Rule):
    """What such rules share.

    Attributes:
        k: how many of the target's tokens are candidates.
        emits: the column of what is emitted where the path ends.
    """

    __slots__ = ()
    k: int
    emits: ClassVar[str]
    lossless = Lossless.NEVER
    exactness = Exactness.REJUDGE
    exactness_note = "path-exact at temperature 0 with k = 1; else it may leave the trunk"
    temperature_zero = "judges softmax of the raw logits, since the processed p is one-hot"

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Top logits, and what makes probabilities of them; see `Rule.needs`."""
        columns = ("node_token", self.emits, *judged_columns(context), *top_columns(context))
        return tuple(dict.fromkeys(columns))

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
