"""The target's noise at absolute positions, computed once however often it is looked at."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from dflash.policy.noise import target_exponentials

Key = tuple[int, int]


class TargetNoise:
    """log E over the vocabulary by (request key, position); the most recent `keep` positions stay at hand.

    A choice is the winner of log p - log E at its position, so every branch and every later round that
    reaches the position meets the same noise (Daliri et al. 2408.07978).
    """

    def __init__(self, vocabulary: int, keep: int = 64) -> None:
        self.vocabulary = vocabulary
        self.keep = keep
        self._rows: OrderedDict[tuple[Key, int], NDArray[np.float32]] = OrderedDict()

    def log_exponentials(self, key: Key, position: int) -> NDArray[np.float32]:
        """log E [vocabulary] for the token that will stand at `position`."""
        row = self._rows.get((key, position))
        if row is None:
            # an exponential of 0 can not occur and one of infinity never wins
            row = np.log(target_exponentials(key, position, self.vocabulary)).astype(np.float32)
            self._rows[key, position] = row
            if len(self._rows) > self.keep:
                self._rows.popitem(last=False)
        self._rows.move_to_end((key, position))
        return row
