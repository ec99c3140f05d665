"""Bets against a claimed probability: a test whose false-alarm rate holds at every sample size.

Each bet multiplies a stake by a likelihood ratio whose mean is 1 under the claim, whatever came before; by
Ville's inequality an honest file lifts the stake to 1/a with probability a at most. The average over many
bets is such a stake again. (Shafer 2021, "Testing by betting"; Ramdas et al. 2023, arXiv 2210.01948.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt

import numpy as np

from dflash.policy.noise import F64
from dflash.policy.topology import Bool

# of the log odds; no larger ones, which would bet on the rounding of probabilities near 0 and 1
_TILTS = np.concatenate([sign * 2.0 ** np.arange(-6.0, 2.0) for sign in (-1.0, 1.0)])
_POWER_QUANTILE = 1.2816


@dataclass(slots=True)
class Bet:
    """Stakes on one event that each observation may or may not be.

    Attributes:
        count: observations.
        hits: of which the event.
        expected: sum of the claimed probabilities.
        variance: sum of p (1 - p).
    """

    count: int = 0
    hits: int = 0
    expected: float = 0.0
    variance: float = 0.0
    _prices: F64 = field(default_factory=lambda: np.zeros(len(_TILTS)))

    def add(self, hit: Bool, claimed: F64) -> None:
        """Settle observations.

        Args:
            hit: `[m]` whether the event happened.
            claimed: `[m]` its probability, known before each of them.
        """
        p = np.clip(claimed, 0.0, 1.0)
        self.count += len(hit)
        self.hits += int(hit.sum())
        self.expected += float(p.sum())
        self.variance += float((p * (1.0 - p)).sum())
        for place, tilt in enumerate(_TILTS):
            self._prices[place] += np.log1p(p * np.expm1(tilt)).sum()

    @property
    def log_stake(self) -> float:
        """Log of the average stake."""
        return self._log_stake(self.hits)

    def detectable(self, p_value: float, events: int) -> float:
        """Return the error of the mean probability that nine runs of ten with it would betray.

        Of the two directions the one that is harder to see; 1 if no error would be seen.

        Args:
            p_value: that counts as an alarm.
            events: bet on together.
        """
        if not self.count:
            return 1.0
        goal, mean = log(events / p_value), self.expected / self.count
        seen = []
        for end in (0.0, float(self.count)):
            if self._log_stake(end) >= goal:
                hits = _cross(lambda hits: self._log_stake(hits) - goal, self.expected, end)
                seen.append(abs(_rate_beyond(hits / self.count, end > 0, self.count) - mean))
        return min(1.0, max(seen, default=1.0))

    def _log_stake(self, hits: float) -> float:
        return _log_mean(_TILTS * hits - self._prices)


def _cross(function: Callable[[float], float], below: float, above: float) -> float:
    """Return where a function that is negative at one place and not at the other changes sign."""
    for _ in range(60):
        middle = (below + above) / 2
        below, above = (middle, above) if function(middle) < 0 else (below, middle)
    return above


def _rate_beyond(share: float, more: bool, count: int) -> float:
    """Return the rate of which nine samples of ten lie beyond a share of hits."""
    sign = 1.0 if more else -1.0

    def lead(rate: float) -> float:
        return sign * (rate - share) - _POWER_QUANTILE * sqrt(rate * (1.0 - rate) / count)

    return _cross(lead, share, 1.0 if more else 0.0)


def p_value(bets: Mapping[str, Bet]) -> float:
    """Return the p-value of several bets that share their observations."""
    stake = _log_mean(np.array([bet.log_stake for bet in bets.values()]))
    return 1.0 if stake <= 0 else exp(-stake)


def holm(p_values: Sequence[float], rate: float) -> list[bool]:
    """Return which tests alarm if at most a share `rate` of honest files may see any alarm (Holm 1979)."""
    alarms = [False] * len(p_values)
    for left, place in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        if p_values[place] > rate / (len(p_values) - left):
            break
        alarms[place] = True
    return alarms


def _log_mean(logs: F64) -> float:
    return float(np.logaddexp.reduce(logs) - log(len(logs)))
