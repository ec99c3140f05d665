"""The rule `fly`: forgive a rejected draft where the target is uncertain and the drafts after it all pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.judged import judged_columns, judged_logp, top_columns, top_logp
from dflash.policy.noise import F64, Purpose
from dflash.policy.parameter import Number, Whole, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.sequential import first_passing, replacements, residuals_known, unknown_residuals
from dflash.policy.topology import Bool

WIDEST = 6


@dataclass(frozen=True, slots=True)
class Fly(Rule):
    """Accept as `speculative` does, and a rejected draft too if `window` drafts after it are accepted."""

    entropy: float = parameter(Number(0.0), 0.3)
    k: int = parameter(Whole(1), 3)
    window: int | None = parameter(Whole(1), None, shown="the draft's length less one, from 1 to 6")

    name = "fly"
    summary = (
        "accept as speculative does, and a rejected draft too where the top k of p hold an entropy of at "
        "least `entropy` and the next `window` drafts are all accepted"
    )
    lossless = Lossless.NEVER
    lossless_note = "a rejected draft may stay"
    exactness = Exactness.REJUDGE
    exactness_note = "it leaves the trunk at every draft that it forgives"
    columns = (
        "node_token",
        "node_logp",
        "node_logq",
        "node_target_logit",
        "slot_choice",
        "slot_topk_token",
        "slot_topk_logit",
        "slot_lse",
        "slot_lse_p",
        "slot_cutoff",
        "node_residual_token",
    )
    trees = False
    temperature_zero = "greedy instead of speculative; the entropy is of softmax of the raw logits"
    source = "FLy, arXiv 2511.22972; defaults of vLLM's rejection_sample_method fly"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            ChainsOnly: a tree branches.
            MixedProposals: drafters of a union follow different laws.
            TooFewTopLogits: fewer than k were stored.
        """
        self.refuse(context, rounds.trees.branching)
        logp = judged_logp(rounds, context)
        if not context.sampled:
            drafted = rounds["node_token"]
            native = (drafted == rounds["slot_choice"][rounds.parent_slot]) & (drafted >= 0)
            return first_passing(rounds, self._forgiven(rounds, context, native, logp), rounds["slot_choice"])
        excess = np.log(context.coins(rounds, Purpose.ACCEPT)) - (logp - rounds.present("node_logq"))
        ok = self._forgiven(rounds, context, excess <= 0, logp)
        emitted = replacements(rounds, residuals_known(self.name, context))
        return first_passing(rounds, ok, emitted, excess)

    def _forgiven(self, rounds: Rounds, context: RuleContext, native: Bool, logp: F64) -> Bool:
        """Return whether each node is accepted natively or forgiven; `[N]`."""
        _, top = top_logp(rounds, context, self.name, self.k)
        with np.errstate(invalid="ignore"):
            spread = -np.where(top > -np.inf, np.exp(top) * top, 0.0).sum(axis=1)
        counts = np.diff(rounds.node_offsets)[rounds.node_round]
        window = np.clip(counts - 1, 1, WIDEST) if self.window is None else np.full_like(counts, self.window)
        failed = np.concatenate(([0], np.cumsum(~native)))
        after = np.arange(1, len(native) + 1)
        inside = rounds.node_depth + window <= counts
        followed = inside & (failed[np.where(inside, after + window, after)] == failed[after])
        unsure = spread[rounds.parent_slot] >= self.entropy
        return np.asarray(native | (followed & unsure & (logp > -np.inf)))

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Top logits, and q on sampled drafts; see `Rule.needs`."""
        native = {"node_logq", "node_residual_token"} if context.sampled else {"node_token"}
        return tuple({"slot_choice", *native, *judged_columns(context), *top_columns(context)})

    def judges_q(self, context: RuleContext) -> bool:
        """On sampled drafts; see `Rule.judges_q`."""
        return context.sampled

    def remark(self, context: RuleContext) -> str | None:
        """Say where emitted tokens are unknown; see `Rule.remark`."""
        return unknown_residuals(not context.sampled or residuals_known(self.name, context))
