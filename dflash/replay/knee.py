"""The knee of the acceptance curve: beyond which length a further position gains little."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.replay.statistics import Interval, at_least, draws_of, interval_of

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


def knee(lengths: I64, longest: int) -> Knee | None:
    """Find the knee.

    Args:
        lengths: `[requests, accepted + 1]` rounds by request and accepted length.
        longest: the length that was drafted.

    Returns:
        None without rounds.
    """
    lengths = lengths[lengths.sum(axis=1) > 0]
    if not len(lengths):
        return None
    width = max(longest + 1, lengths.shape[1])
    padded = np.pad(lengths, ((0, 0), (0, width - lengths.shape[1])))
    columns = np.column_stack((padded.sum(axis=1), at_least(padded))).astype(np.float64)
    marginal = _marginal(columns.sum(axis=0)[None])
    place = int(_place(marginal)[0])
    interval = None
    if place and len(columns) > 1:
        interval = interval_of(_place(_marginal(draws_of(columns, len(columns)))).astype(np.float64))
    curve = 1.0 + np.concatenate(([0.0], np.cumsum(marginal[0])))
    return Knee(place or None, interval, tuple(curve.tolist()))


def _marginal(sums: F64) -> F64:
    return np.asarray(sums[:, 1:] / sums[:, :1])


def _place(marginal: F64) -> I64:
    """Return the last position that gains more than the mean one, 0 if none stands out; `[draws]`."""
    if marginal.shape[1] < 2:
        return np.zeros(len(marginal), dtype=np.int64)
    mean = marginal.mean(axis=1, keepdims=True)
    # the sum of equal gains may miss their mean by rounding
    return np.asarray((marginal > mean * (1 + 1e-9)).sum(axis=1), dtype=np.int64)
