"""The knee of the acceptance curve: beyond which length a further position gains little."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.noise import I64
from dflash.replay.statistics import Interval, at_least, bend

KNEE_DEFINITIONS = {
    "knee": "the length at which tau(length) = 1 + sum of the marginal acceptances up to it lies farthest "
    "above the chord between length 0 and the longest (Satopaa et al. 2011); no position after it gains more "
    "than the mean position does",
    "curve": "tau of the same rounds if every draft is cut to this length (exact for rules that accept "
    "prefixes; block verification may accept more of a longer draft)",
}


class Knee(NamedTuple):
    """Where the curve bends.

    Attributes:
        length: None for fewer than two positions, or a curve without a bend.
        interval: 95 %, over requests.
        curve: tau at lengths 0, 1, ...
    """

    length: int | None
    interval: Interval | None
    curve: tuple[float, ...]


def knee(lengths: I64, longest: int, interval: Interval | None = None) -> Knee | None:
    """Find the knee.

    Args:
        lengths: `[accepted + 1]` rounds by accepted length.
        longest: the length that was drafted.
        interval: of the knee, from resamples.

    Returns:
        None without rounds.
    """
    rounds = int(lengths.sum())
    if not rounds:
        return None
    marginal = at_least(np.pad(lengths, (0, max(0, longest + 1 - len(lengths))))) / rounds
    place = int(bend(marginal, longest))
    curve = 1.0 + np.concatenate(([0.0], np.cumsum(marginal)))
    return Knee(place or None, interval if place else None, tuple(curve.tolist()))
