"""Whose chances a rule has: presets toss as the rules that they implement, a few rules by their own.

The engines' coins of 24 bits are taken for real numbers.
"""

from __future__ import annotations

import numpy as np

from dflash.policy.block import Block
from dflash.policy.context import RuleContext
from dflash.policy.ensemble import Ensemble
from dflash.policy.match import Match
from dflash.policy.noise import F64
from dflash.policy.presets import sglang, vllm_mrv2
from dflash.policy.presets.transformers import Transformers
from dflash.policy.presets.trtllm import Trtllm
from dflash.policy.presets.vllm_v1 import VllmV1
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Rule
from dflash.policy.speculative import Speculative
from dflash.policy.synthetic import Synthetic
from dflash.policy.target_only import pass_chances
from dflash.policy.threshold import Threshold


def core_rule(rule: Rule, context: RuleContext) -> Rule:
    """Return the rule whose chances a preset has above temperature 0; other rules are their own."""
    if context.temperature == 0:
        return rule
    match rule:
        case Trtllm() | vllm_mrv2.VllmMrv2(method=vllm_mrv2.STRICT):
            return Match()
        case Transformers():
            return Speculative() if context.sampled else Match()
        case VllmV1() | vllm_mrv2.VllmMrv2(method=vllm_mrv2.STANDARD) | sglang.Sglang(method=sglang.CHAIN):
            return Speculative()
        case vllm_mrv2.VllmMrv2(method=vllm_mrv2.BLOCK) | sglang.Sglang(method=sglang.BLOCK):
            return Block()
    return rule


def own_chances(rule: Rule, rounds: Rounds, context: RuleContext) -> F64 | None:
    """Return the chance that each node passes once its parent is accepted; `[N]`, None if it is not known."""
    if isinstance(rule, Synthetic):
        # the rates are those of whole prefixes
        reached = np.array((1.0, *rule.rates))
        with np.errstate(invalid="ignore"):
            rate = np.where(reached[:-1] > 0, reached[1:] / reached[:-1], 0.0)
        return np.asarray(rate[rounds.node_depth - 1])
    if context.temperature == 0:
        return None
    if isinstance(rule, Ensemble) and not rounds.trees.branching:
        ratio = np.exp(rounds.present("node_logp") - rounds.present("node_logq"))
        return np.asarray(np.minimum(1.0, 1.0 - rule.w + rule.w * ratio))
    if isinstance(rule, Threshold) and rule.pair:
        single, acc = (1.0 if bound is None else bound for bound in (rule.single, rule.acc))
        return pass_chances(rounds, single, acc)
    if isinstance(rule, sglang.Sglang):
        return pass_chances(rounds, rule.single, rule.acc)
    return None
