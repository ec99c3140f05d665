"""How far the target's probabilities moved: KL, change of p, same top-1; the rows of llama.cpp's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dflash.diff.aligned import Aligned
from dflash.diff.spread import Spread
from dflash.diff.topk import Join, lowest
from dflash.policy.noise import F64, I64

# the tail is 1 minus stored float32 values, so that less than this is rounding
FLOOR = 2.0**-20
KL_PERCENTILES = (100, 99.9, 99, 95, 90, 50, 10, 5, 1, 0)
CHANGE_PERCENTILES = (100, 99.9, 99, 95, 90, 75, 50, 25, 10, 5, 1, 0.1, 0)
NEEDED = ("slot_lse", "slot_topk_token", "slot_topk_logit")
DEFINITIONS: Mapping[str, str] = {
    "kl": "KL of softmax(raw logits), A against B, at every slot with the same context: over the tokens that "
    "both files list, the tokens that only A lists taken as one (B gives them at most what its list leaves "
    f"them) and the rest as one. Merging outcomes can only lower KL, so this is a lower bound; masses under "
    f"{FLOOR:.0e} count as {FLOOR:.0e}",
    "kl_reverse": "the same, B against A",
    "change_of_p": "p of B minus p of A, softmax of raw logits, for the tokens that either side chose",
    "same_top1": "share of the slots at which both targets rank the same token first",
    "standard_error": "of the mean, slots taken as independent, as llama.cpp prints it",
}


@dataclass(slots=True)
class Probabilities:
    """Sums over all slots that both files have in the same context.

    Attributes:
        kl, kl_reverse: KL of A against B, and of B against A, in nats.
        change: change of p of the chosen tokens.
        unlisted: choices of one side that the other does not list, so that their change is unknown.
        top1, top1_same: slots at which both sides have a first token, and at which it is the same.
    """

    kl: Spread = field(default_factory=Spread)
    kl_reverse: Spread = field(default_factory=Spread)
    change: Spread = field(default_factory=Spread)
    unlisted: int = 0
    top1: int = 0
    top1_same: int = 0

    def add_top1(self, aligned: Aligned) -> None:
        """Count slots with the same likeliest token."""
        found = aligned.per_slot("slot_argmax")
        both = found.a.valid & found.b.valid
        self.top1 += int(both.sum())
        self.top1_same += int((both & (found.a.value == found.b.value)).sum())

    def add(self, aligned: Aligned, join: Join, law: tuple[F64, F64]) -> None:
        """Take the joined lists of top logits.

        Args:
            law: log-sum-exp of the raw logits at every slot, on either side; NaN where it is null.
        """
        sides = []
        for lists, lse in ((join.a, law[0]), (join.b, law[1])):
            logits = lists.logits("slot_topk_logit")
            log_p = np.where(logits.valid, logits.value, -np.inf) - lse[:, None]
            sides.append(np.minimum(log_p, 0.0))
        _add_kl(self.kl, sides[0], sides[1], join.in_b)
        _add_kl(self.kl_reverse, sides[1], sides[0], join.in_a)
        self._add_changes(aligned, join, sides[0], sides[1], law)

    def _add_changes(
        self, aligned: Aligned, join: Join, log_a: F64, log_b: F64, law: tuple[F64, F64]
    ) -> None:
        choice = aligned.per_slot("slot_choice")
        logit = aligned.per_slot("slot_choice_logit")
        own = [
            np.exp(np.minimum(np.where(side.valid, side.value, np.nan) - lse, 0.0))
            for side, lse in zip((logit.a, logit.b), law, strict=True)
        ]
        both = choice.a.valid & choice.b.valid & np.isfinite(own[0]) & np.isfinite(own[1])
        same = choice.a.value == choice.b.value
        self.change.add((own[1] - own[0])[both & same])
        apart = np.flatnonzero(both & ~same)
        in_b = _p_of(choice.a.value[apart], join.b.token[apart], log_b[apart])
        in_a = _p_of(choice.b.value[apart], join.a.token[apart], log_a[apart])
        changes = np.concatenate((in_b - own[0][apart], own[1][apart] - in_a))
        known = np.isfinite(changes)
        self.change.add(changes[known])
        self.unlisted += int((~known).sum())

    @property
    def same_top1(self) -> float | None:
        return self.top1_same / self.top1 if self.top1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the rows of the report."""
        share = self.same_top1
        error = None if share is None or self.top1 < 2 else (share * (1 - share) / (self.top1 - 1)) ** 0.5
        return {
            "kl": self.kl.to_dict(KL_PERCENTILES),
            "kl_reverse": self.kl_reverse.to_dict(KL_PERCENTILES),
            "change_of_p": {
                **self.change.to_dict(CHANGE_PERCENTILES),
                "rms": self.change.rms,
                "rms_standard_error": self.change.rms_error,
                "unlisted": self.unlisted,
            },
            "same_top1": {
                "count": self.top1,
                "same": self.top1_same,
                "share": share,
                "standard_error": error,
            },
        }


def _add_kl(spread: Spread, log_p: F64, log_q: F64, partner: I64) -> None:
    known = np.isfinite(log_p).any(axis=1) & np.isfinite(log_q).any(axis=1)
    spread.add(divergence(log_p[known], log_q[known], partner[known]))


def divergence(log_p: F64, log_q: F64, partner: I64) -> F64:
    """Return a lower bound of KL(p, q) at every slot.

    Args:
        log_p: `[S, Kp]` log p of the tokens that one side lists, -inf beyond the end of the list.
        log_q: `[S, Kq]` log q of those that the other side lists.
        partner: `[S, Kp]` where the other side lists the same token, -1 if nowhere.
    """
    common = partner >= 0
    beside = log_q[np.arange(len(log_q))[:, None], np.maximum(partner, 0)]
    common &= np.isfinite(log_p) & np.isfinite(beside)
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):
        sum_common = np.where(common, p * (log_p - beside), 0.0).sum(axis=1)
    tail_p = np.maximum(1.0 - np.where(common, p, 0.0).sum(axis=1), FLOOR)
    tail_q = np.maximum(1.0 - np.where(common, np.exp(beside), 0.0).sum(axis=1), FLOOR)
    alone = np.isfinite(log_p) & ~common
    own = np.minimum(np.where(alone, p, 0.0).sum(axis=1), tail_p - FLOOR / 2)
    most = np.exp(lowest(log_q, np.isfinite(log_q))) * alone.sum(axis=1)
    return np.asarray(sum_common + _tail(own, tail_p, most, tail_q))


def _tail(own: F64, tail_p: F64, most: F64, tail_q: F64) -> F64:
    """The part of the tokens that are not common: `own` of `tail_p` against at most `most` of `tail_q`."""
    merged = tail_p * np.log(tail_p / tail_q)
    bound = np.maximum(most, FLOOR / 2)
    tighter = (own > 0) & (bound < tail_q * own / tail_p)
    p, q = np.where(tighter, own, 0.5), np.where(tighter, bound, 0.5)
    rest_p, rest_q = np.where(tighter, tail_p - own, 0.5), np.where(tighter, tail_q - bound, 0.5)
    split = p * np.log(p / q) + rest_p * np.log(rest_p / rest_q)
    return np.where(tighter, split, merged)


def _p_of(token: I64, listed: I64, log_p: F64) -> F64:
    """The probability of a token in a list; NaN if it is not there."""
    found = listed == token[:, None]
    if not found.size:
        return np.full(len(token), np.nan)
    at = found.argmax(axis=1)
    log = log_p[np.arange(len(at)), at]
    return np.where(found.any(axis=1) & np.isfinite(log), np.exp(log), np.nan)
