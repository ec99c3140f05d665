"""The preset `transformers`: assisted generation of Hugging Face transformers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.match import equal_to
from dflash.policy.presets.engine import CHAIN_COLUMNS, GREEDY_COLUMNS, Preset, chain, half_open_coins
from dflash.policy.rounds import Rounds


@dataclass(frozen=True, slots=True)
class Transformers(Preset):
    """Accept while u <= p/q, u in [0, 1); drafts without q must equal the sampled token."""

    name = "transformers"
    summary = "accept a draft while u <= p/q, u in [0, 1), else emit a draw from norm(max(0, p - q))"
    lossless_note = "up to u = 0, which accepts p = 0; drafts without q are compared with the target's sample"
    exactness_note = "on deterministic drafts and at temperature 0; re-judge on sampled ones, by own coins"
    columns = tuple(dict.fromkeys((*CHAIN_COLUMNS, *GREEDY_COLUMNS)))
    trees = False
    temperature_zero = "greedy: accepts and emits the argmax"
    processing = (
        "p and q: the same logits processors at every slot; as recorded where the drafter's temperature, "
        "top-k and top-p are the target's"
    )
    source = (
        "transformers generation/utils.py, assisted decoding; batch size 1, logits processors at every slot, "
        "candidates without logits (prompt lookup) by equality"
    )

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            ChainsOnly: a tree branches.
            MixedProposals: drafters of a union follow different laws.
        """
        self.refuse(context, rounds.trees.branching)
        if not self.tosses(context):
            return equal_to(rounds, rounds["slot_argmax" if context.temperature == 0 else "slot_choice"])
        ratio = np.exp(rounds.present("node_logp") - rounds.present("node_logq"))
        excess = half_open_coins(rounds, context) - ratio
        return chain(self.name, rounds, context, excess <= 0, excess)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Tokens where equality decides, probabilities on sampled drafts; see `Rule.needs`."""
        if context.temperature == 0:
            return GREEDY_COLUMNS
        return CHAIN_COLUMNS if context.sampled else ("node_token", "slot_choice")

    def tosses(self, context: RuleContext) -> bool:
        """On sampled drafts; see `Preset.tosses`."""
        return context.sampled
