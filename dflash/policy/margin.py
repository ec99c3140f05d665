"""The rule `margin`: accept the target's runner-up too where the target hardly prefers its first token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision, longest
from dflash.policy.errors import TooFewTopLogits
from dflash.policy.judged import judged_columns, judged_logp
from dflash.policy.parameter import Number, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule


@dataclass(frozen=True, slots=True)
class Margin(Rule):
    """Accept the choice, and either of the two likeliest tokens where their logits differ by at most m."""

    m: float = parameter(Number(0.0), 0.5)

    name = "margin"
    summary = (
        "accept the target's choice, and its two likeliest tokens where their raw logits differ by at most "
        "m, then emit the choice"
    )
    lossless = Lossless.NEVER
    lossless_note = "the runner-up is taken for the target's own where the margin is small"
    exactness = Exactness.REJUDGE
    exactness_note = "it may leave the trunk where the margin is small"
    columns = (
        "node_token",
        "node_logp",
        "node_target_logit",
        "slot_lse",
        "slot_choice",
        "slot_topk_token",
        "slot_topk_logit",
    )
    temperature_zero = "accepts the argmax, and the runner-up within m of it"
    source = "margin-aware verification, arXiv 2601.15498; m in raw logits"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            TooFewTopLogits: fewer than two were stored.
        """
        token, logit = rounds["slot_topk_token"], rounds.present("slot_topk_logit")
        if len(token) and token.shape[1] < 2:
            raise TooFewTopLogits(self.name, 2, token.shape[1])
        at, logp = rounds.parent_slot, judged_logp(rounds, context)
        drafted = rounds["node_token"]
        first_two = (token[at, :2] == drafted[:, None]).any(axis=1) & (logp > -np.inf)
        close = logit[at, 0] - logit[at, 1] <= self.m
        own = (drafted == rounds["slot_choice"][at]) & (drafted >= 0)
        return longest(rounds, own | (first_two & close), rounds["slot_choice"], logp)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """The two likeliest tokens; see `Rule.needs`."""
        return ("node_token", "slot_choice", "slot_topk_token", "slot_topk_logit", *judged_columns(context))
