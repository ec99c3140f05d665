"""The preset `vllm-v1`: the rejection sampler of vLLM's V1 engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.match import equal_to
from dflash.policy.presets.engine import CHAIN_COLUMNS, GREEDY_COLUMNS, Preset, chain, half_open_coins
from dflash.policy.rounds import Rounds


@dataclass(frozen=True, slots=True)
class VllmV1(Preset):
    """Accept while p/q >= u and q > 0, u in [0, 1); q is 1 for deterministic drafts."""

    name = "vllm-v1"
    summary = "accept a draft while p/q >= u, u in [0, 1), else emit a draw from norm(max(0, p - q))"
    lossless_note = "up to u = 0, which accepts p = 0"
    columns = tuple(dict.fromkeys((*CHAIN_COLUMNS, *GREEDY_COLUMNS)))
    trees = False
    temperature_zero = "greedy: accepts and emits the argmax"
    processing = (
        "p: temperature, top-k and top-p masks, softmax, as recorded; q is scaled by its temperature alone: "
        "record with --draft-top-k 0 to judge what the engine would draw"
    )
    source = "vLLM vllm/v1/sample/rejection_sampler.py; q of deterministic drafts is 1, top-k and top-p cut p"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            ChainsOnly: a tree branches.
            MixedProposals: drafters of a union follow different laws.
        """
        self.refuse(context, rounds.trees.branching)
        if context.temperature == 0:
            return equal_to(rounds, rounds["slot_argmax"])
        ratio = np.exp(rounds.present("node_logp") - rounds.present("node_logq"))
        excess = half_open_coins(rounds, context) - ratio
        return chain(self.name, rounds, context, excess <= 0, excess)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """The argmax at temperature 0, probabilities above; see `Rule.needs`."""
        return GREEDY_COLUMNS if context.temperature == 0 else CHAIN_COLUMNS
