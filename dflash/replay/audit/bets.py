"""Bets against a claimed probability: a test whose false-alarm rate holds at every sample size.

Each bet multiplies a stake by a likelihood ratio whose mean is 1 under the claim, whatever came before; by
Ville's inequality an honest file lifts the stake to 1/a with probability a at most. The average over many
bets is such a stake again. (Shafer 2021, "Testing by betting"; Ramdas et al. 2023, arXiv 2210.01948.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt

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
    _log_stakes: F64 = field(default_factory=lambda: np.zeros(len(_TILTS)))

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
            self._log_stakes[place] += tilt * hit.sum() - np.log1p(p * np.expm1(tilt)).sum()

    @property
    def log_stake(self) -> float:
        """Log of the average stake."""
        return _log_mean(self._log_stakes)

    def detectable(self, p_value: float, events: int) -> float:
        """Return the error of the mean probability that nine files of ten with it would betray.

        Args:
            p_value: that counts as an alarm.
            events: bet on together.
        """
        if not self.count:
            return inf
        need = log(events * len(_TILTS) / p_value)
        # where all is nearly certain, each surprise raises a stake by its tilt and no more
        surprises = need / float(_TILTS.max()) / self.count
        spread = sqrt(self.variance) / self.count
        return max(surprises, spread * (_POWER_QUANTILE + sqrt(_POWER_QUANTILE**2 + 2 * need)))


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
