"""The target's law as rules on probabilities see it: p, and softmax of the raw logits at temperature 0."""

from __future__ import annotations

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.errors import TooFewTopLogits
from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds


def judged_columns(context: RuleContext) -> tuple[str, ...]:
    """Return the columns that `judged_logp` reads."""
    return ("node_target_logit", "slot_lse") if context.temperature == 0 else ("node_logp",)


def judged_logp(rounds: Rounds, context: RuleContext) -> F64:
    """Return log p of every node; `[N]`, -inf where nothing of p is left."""
    if context.temperature > 0:
        return rounds.present("node_logp")
    return np.asarray(rounds.present("node_target_logit") - rounds.present("slot_lse")[rounds.parent_slot])


def top_columns(context: RuleContext) -> tuple[str, ...]:
    """Return the columns that `top_logp` reads."""
    law = ("slot_lse",) if context.temperature == 0 else ("slot_lse_p", "slot_cutoff")
    return ("slot_topk_token", "slot_topk_logit", *law)


def top_logp(rounds: Rounds, context: RuleContext, rule: str, count: int) -> tuple[I64, F64]:
    """Return the target's likeliest tokens at every slot and their log p.

    Args:
        rule: asked on whose behalf.
        count: how many.

    Returns:
        `[N + R, count]` tokens in order of logit, then lowest id, and log p, -inf for cut tokens.

    Raises:
        TooFewTopLogits: fewer were stored.
    """
    token, logit = rounds["slot_topk_token"], rounds.present("slot_topk_logit")
    if len(token) and token.shape[1] < count:
        raise TooFewTopLogits(rule, count, token.shape[1])
    token, logit = token[:, :count], logit[:, :count]
    if context.temperature == 0:
        return token, logit - rounds.present("slot_lse")[:, None]
    log_p = logit / context.temperature - rounds.present("slot_lse_p")[:, None]
    return token, np.where(logit < rounds["slot_cutoff"][:, None], -np.inf, log_p)


def as_stored(value: float) -> float:
    """Return a bound rounded as the columns are, so that a stored value equals the bound it stands for."""
    return float(np.float32(value))
