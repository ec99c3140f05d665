"""The Pareto front: points that none other matches in everything and beats in something."""

from __future__ import annotations

import numpy as np

from dflash.policy.noise import F64
from dflash.policy.topology import Bool


def front(costs: F64) -> Bool:
    """Return which points are on the front.

    Args:
        costs: `[points, criteria]`, less is better.
    """
    on = np.ones(len(costs), dtype=bool)
    for index, point in enumerate(costs):
        no_worse = (costs <= point).all(axis=1)
        on[index] = not (no_worse & (costs < point).any(axis=1)).any()
    return on
