"""Mean, extremes and percentiles of a stream of numbers, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dflash.policy.noise import F64

KEPT = 2**21


@dataclass(slots=True)
class Spread:
    """What is kept of numbers seen: power sums and extremes exactly, at most `KEPT` of the numbers.

    Beyond `KEPT` numbers percentiles come from a random share of them; the draws are fixed.
    """

    count: int = 0
    powers: F64 = field(default_factory=lambda: np.zeros(4))
    low: float = np.inf
    high: float = -np.inf
    share: float = 1.0
    _kept: list[F64] = field(default_factory=list)
    _size: int = 0
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, values: F64) -> None:
        """Take finite numbers."""
        if not len(values):
            return
        self.count += len(values)
        self.powers += [float((values**power).sum()) for power in (1, 2, 3, 4)]
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self._keep(values if self.share == 1.0 else self._thinned(values, self.share))

    def _keep(self, values: F64) -> None:
        self._kept.append(values.astype(np.float32))
        self._size += len(values)
        while self._size > KEPT:
            self._kept = [self._thinned(np.concatenate(self._kept), 0.5)]
            self._size, self.share = len(self._kept[0]), self.share / 2

    def _thinned(self, values: F64, share: float) -> F64:
        return values[self._random.random(len(values)) < share]

    @property
    def mean(self) -> float | None:
        return float(self.powers[0] / self.count) if self.count else None

    @property
    def error(self) -> float | None:
        """Standard error of the mean, the numbers taken as independent; None for fewer than two."""
        return self._error(self.powers[0], self.powers[1])

    @property
    def rms(self) -> float | None:
        """Root of the mean square."""
        return float(np.sqrt(self.powers[1] / self.count)) if self.count else None

    @property
    def rms_error(self) -> float | None:
        """Standard error of `rms`, to first order."""
        error, rms = self._error(self.powers[1], self.powers[3]), self.rms
        return None if error is None or rms is None else error / (2 * rms) if rms else 0.0

    def _error(self, total: float, squares: float) -> float | None:
        if self.count < 2:
            return None
        mean = total / self.count
        return float(np.sqrt(max(0.0, squares / self.count - mean * mean) / (self.count - 1)))

    def percentiles(self, wanted: Sequence[float]) -> dict[str, float | None]:
        """Return percentiles by name, such as "99.9"; 100 and 0 are the extremes, exact."""
        if not self.count:
            return {f"{percent:g}": None for percent in wanted}
        kept = np.concatenate(self._kept) if self._size else np.array([self.low, self.high])
        inner = np.percentile(kept, wanted)
        exact = {100.0: self.high, 0.0: self.low}
        return {
            f"{percent:g}": exact.get(float(percent), float(value))
            for percent, value in zip(wanted, inner, strict=True)
        }

    def to_dict(self, wanted: Sequence[float]) -> dict[str, Any]:
        """Return count, mean, its standard error and percentiles."""
        return {
            "count": self.count,
            "mean": self.mean,
            "standard_error": self.error,
            "percentiles": self.percentiles(wanted),
            "percentiles_of": self.share,
        }
