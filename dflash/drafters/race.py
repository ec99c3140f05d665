"""Draw siblings from a drafter's logits: the best B of a race, which is sampling without replacement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.drafters.base import SlotLaw
from dflash.policy.context import DraftSampling

Floats = NDArray[np.float64]


class Sibling(NamedTuple):
    """One drawn token: its rank in q, log q conditional on the siblings before it, and its score's lead."""

    token: int
    rank: int
    log_q: float
    draft_gap: float | None


def slot_law(logits: Floats, sampling: DraftSampling) -> SlotLaw:
    """q of one slot from raw draft logits [vocabulary]: temperature, top-k, then top-p; ties to the lowest
    id.

    At temperature 0 the "law" is the ranking alone: log q holds the raw logits of the top-k.
    """
    width = sampling.top_k or len(logits)
    order = np.lexsort((np.arange(len(logits)), -logits)) if width >= len(logits) else _top(logits, width)
    return ranked_law(order, logits[order], sampling)


def ranked_law(tokens: NDArray[np.int64], logits: Floats, sampling: DraftSampling) -> SlotLaw:
    """q from the top-k tokens and their raw logits, in order of logit; what is at -inf is left out."""
    possible = int(np.isfinite(logits).sum())
    tokens, logits = tokens[:possible], logits[:possible]
    if sampling.temperature == 0.0:
        return SlotLaw(tokens, logits)
    scaled = logits / sampling.temperature
    log_q = scaled - np.logaddexp.reduce(scaled)
    if sampling.top_p < 1.0:
        keep = 1 + int(np.searchsorted(np.exp(log_q).cumsum(), sampling.top_p))
        log_q = log_q[:keep] - np.logaddexp.reduce(log_q[:keep])
        tokens = tokens[:keep]
    return SlotLaw(tokens, log_q)


def _top(logits: Floats, width: int) -> NDArray[np.int64]:
    border = np.partition(logits, -width)[-width]
    candidates = np.flatnonzero(logits >= border)
    order = np.lexsort((candidates, -logits[candidates]))
    return candidates[order][:width].astype(np.int64)


def draw(law: SlotLaw, log_exponentials: Floats | None, count: int) -> list[Sibling]:
    """The `count` winners of log q - log E among the law's tokens, in race order.

    `log_exponentials` [vocabulary] is the noise of the slot, or None to take the best by logit (a
    deterministic proposal: log q is 0). Each later sibling's log q is conditional on the earlier ones being
    out.
    """
    score = law.log_q if log_exponentials is None else law.log_q - log_exponentials[law.tokens]
    order = np.lexsort((law.tokens, -score))
    count = min(count, len(order))
    left_out = score[order[count]] if count < len(order) else None
    siblings: list[Sibling] = []
    log_left = 0.0
    for index in order[:count]:
        log_q = 0.0 if log_exponentials is None else float(law.log_q[index]) - log_left
        gap = None if left_out is None else float(score[index] - left_out)
        siblings.append(Sibling(int(law.tokens[index]), int(index), min(log_q, 0.0), gap))
        if log_exponentials is not None:
            log_left = _log_minus(log_left, float(law.log_q[index]))
    return siblings


def _log_minus(log_a: float, log_b: float) -> float:
    """log(exp(a) - exp(b)); -inf when nothing is left."""
    if log_b >= log_a:
        return -np.inf
    return log_a + float(np.log(-np.expm1(log_b - log_a)))
