"""The preset `sglang`: the target-only kernel of SGLang's trees, and its chain and block kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import Proposal, RuleContext
from dflash.policy.decision import Decision
from dflash.policy.match import equal_to
from dflash.policy.noise import Purpose
from dflash.policy.parameter import Choice, Number, parameter
from dflash.policy.presets.engine import (
    CHAIN_COLUMNS,
    GREEDY_COLUMNS,
    Preset,
    block,
    block_remark,
    chain,
    half_open_coins,
    refuse_shared,
)
from dflash.policy.rounds import Rounds
from dflash.policy.sequential import first_passing, replacements, unknown_residuals
from dflash.policy.target_only import TARGET_ONLY_COLUMNS, add_up

TARGET_ONLY, CHAIN, BLOCK = "target-only", "chain", "block"


@dataclass(frozen=True, slots=True)
class Sglang(Preset):
    """Accept the first sibling with coin < sum of p / acc or p >= single; or chains by u q < p, or blocks."""

    method: str = parameter(Choice((TARGET_ONLY, CHAIN, BLOCK)), TARGET_ONLY)
    single: float = parameter(Number(0.0, 1.0), 1.0)
    acc: float = parameter(Number(0.0, 1.0), 1.0)

    name = "sglang"
    summary = (
        "accept the first sibling with coin < p summed over siblings / acc or p >= single, else emit a draw "
        "from what the siblings leave of p; chain and block test p against q"
    )
    lossless_note = "with single = acc = 1 on distinct siblings; chain and block ignore the thresholds"
    columns = tuple(dict.fromkeys((*CHAIN_COLUMNS, *GREEDY_COLUMNS, "node_residual_mass")))
    temperature_zero = "greedy: accepts and emits the argmax"
    processing = (
        "p: softmax at the temperature, renormalised after top-k and after top-p, as recorded; q, where "
        "it is read, is scaled by its temperature alone"
    )
    source = (
        "SGLang sgl_kernel/speculative/sampling.cuh and kernels/ops/speculative/reject_sampling.py; coins "
        "in [0, 1), one a slot on trees; chain u q < p with 0 < q <= 1; block coin < h"
    )

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            ChainsOnly: method=chain or block, and a tree branches.
            MixedProposals: method=chain, and drafters of a union follow different laws.
            IndependentOnly: method=block on sampled drafts that are not independent.
        """
        self.refuse(context, rounds.trees.branching)
        if context.temperature == 0:
            return equal_to(rounds, rounds["slot_argmax"])
        if self.method == BLOCK:
            coin = half_open_coins(rounds, context, Purpose.BLOCK)
            return block(self.name, rounds, context, coin, strict=True)
        if self.method == CHAIN:
            return self._chain(rounds, context)
        ok, excess = add_up(rounds, half_open_coins(rounds, context), self.single, self.acc)
        known = context.recorded_rule == self.name
        return first_passing(rounds, ok, replacements(rounds, known), excess)

    def _chain(self, rounds: Rounds, context: RuleContext) -> Decision:
        p, q = np.exp(rounds.present("node_logp")), np.exp(rounds.present("node_logq"))
        coin = half_open_coins(rounds, context)
        lawful = (q > 0) & (q <= 1)
        excess = coin - p / np.where(lawful, q, 1.0)
        return chain(self.name, rounds, context, (coin * q < p) & lawful, excess)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """The argmax at temperature 0, what the kernel reads above; see `Rule.needs`."""
        if context.temperature == 0:
            return GREEDY_COLUMNS
        if self.method == TARGET_ONLY:
            return TARGET_ONLY_COLUMNS
        mass = ("node_residual_mass",) if self.method == BLOCK and context.sampled else ()
        return (*CHAIN_COLUMNS, *mass)

    def refuse(self, context: RuleContext, branching: bool) -> None:
        """method=block needs independent drafts; see `Rule.refuse`."""
        refuse_shared(self.name, context, self.method == BLOCK)
        Preset.refuse(self, context, branching)

    def judges_trees(self, context: RuleContext) -> bool:
        """The target-only kernel does; see `Rule.judges_trees`."""
        return self.method == TARGET_ONLY

    def is_lossless(self, context: RuleContext) -> bool:
        """Lossless unless a threshold is lowered or siblings repeat; see `Rule.is_lossless`."""
        whole = self.single == 1.0 and self.acc == 1.0 and context.proposal is not Proposal.IID
        return context.temperature == 0 or self.method != TARGET_ONLY or whole

    def judges_q(self, context: RuleContext) -> bool:
        """Only the chain and block kernels; see `Rule.judges_q`."""
        return self.method != TARGET_ONLY and context.temperature > 0 and context.sampled

    def remark(self, context: RuleContext) -> str | None:
        """Say where emitted tokens are unknown; see `Rule.remark`."""
        if self.method == BLOCK:
            return block_remark(self, context)
        if self.method == CHAIN:
            return Preset.remark(self, context)
        return unknown_residuals(context.temperature == 0 or context.recorded_rule == self.name)
