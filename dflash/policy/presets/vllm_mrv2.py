"""The preset `vllm-mrv2`: the rejection sampler of vLLM's Model Runner V2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.match import equal_to
from dflash.policy.noise import Purpose
from dflash.policy.parameter import Choice, parameter
from dflash.policy.presets.engine import (
    CHAIN_COLUMNS,
    GREEDY_COLUMNS,
    Preset,
    block,
    block_remark,
    chain,
    half_closed_coins,
    refuse_shared,
)
from dflash.policy.rounds import Rounds

STANDARD, BLOCK, STRICT = "standard", "block", "strict"


@dataclass(frozen=True, slots=True)
class VllmMrv2(Preset):
    """Accept while log p > log u + log q, u in (0, 1]; or whole blocks; or by equality."""

    method: str = parameter(Choice((STANDARD, BLOCK, STRICT)), STANDARD)

    name = "vllm-mrv2"
    summary = "accept a draft while log p > log u + log q, u in (0, 1], else draw from norm(max(0, p - q))"
    lossless_note = "for every method; block on independent drafts only"
    exactness_note = (
        "at temperature 0 and with method=strict; else re-judge, since the engine draws its own coins"
    )
    columns = tuple(dict.fromkeys((*CHAIN_COLUMNS, *GREEDY_COLUMNS, "node_residual_mass")))
    trees = False
    temperature_zero = "greedy: accepts and emits the argmax"
    processing = (
        "p: temperature, top-k and top-p masks, softmax, as recorded; q is scaled by its temperature alone: "
        "record with --draft-top-k 0 to judge what the engine would draw"
    )
    source = (
        "vLLM vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py: rejection_sample_method standard "
        "and block (u <= h); strict, its first form, compares sampled tokens"
    )

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            ChainsOnly: a tree branches.
            MixedProposals: drafters of a union follow different laws.
            IndependentOnly: method=block on sampled drafts that are not independent.
        """
        self.refuse(context, rounds.trees.branching)
        if not self.tosses(context):
            return equal_to(rounds, rounds["slot_argmax" if context.temperature == 0 else "slot_choice"])
        if self.method == BLOCK:
            coin = half_closed_coins(rounds, context, Purpose.BLOCK)
            return block(self.name, rounds, context, coin, strict=False)
        log_ratio = rounds.present("node_logp") - rounds.present("node_logq")
        excess = np.log(half_closed_coins(rounds, context)) - log_ratio
        return chain(self.name, rounds, context, excess < 0, excess)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Tokens where equality decides, probabilities elsewhere; see `Rule.needs`."""
        if context.temperature == 0:
            return GREEDY_COLUMNS
        if self.method == STRICT:
            return ("node_token", "slot_choice")
        mass = ("node_residual_mass",) if self.method == BLOCK and context.sampled else ()
        return (*CHAIN_COLUMNS, *mass)

    def refuse(self, context: RuleContext, branching: bool) -> None:
        """method=block needs independent drafts; see `Rule.refuse`."""
        refuse_shared(self.name, context, self.method == BLOCK)
        Preset.refuse(self, context, branching)

    def tosses(self, context: RuleContext) -> bool:
        """Above temperature 0 unless strict; see `Preset.tosses`."""
        return context.temperature > 0 and self.method != STRICT

    def remark(self, context: RuleContext) -> str | None:
        """Say where emitted tokens are unknown; see `Rule.remark`."""
        return block_remark(self, context) if self.method == BLOCK else Preset.remark(self, context)
