"""Probes that bet on events whose probability the recording claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import pi, sqrt
from typing import ClassVar

from dflash.policy.noise import F64
from dflash.policy.topology import Bool
from dflash.replay.audit.bets import Bet, p_value
from dflash.replay.audit.probe import Probe
from dflash.replay.audit.verdict import Rate, Status, Verdict


@dataclass(slots=True)
class BettingProbe(Probe):
    """Bets on events whose probability the recording claims.

    Attributes:
        covering: whether one of the events happens at every observation, and no two of them.
    """

    covering: ClassVar[bool] = False
    bets: dict[str, Bet] = field(default_factory=dict)

    def bet(self, event: str, hit: Bool, claimed: F64) -> None:
        """Settle observations `[m]` of one event."""
        if len(hit):
            self.bets.setdefault(event, Bet()).add(hit, claimed)

    @property
    def count(self) -> int:
        """Observations."""
        return max((bet.count for bet in self.bets.values()), default=0)

    def p_value(self) -> float | None:
        """Return the p-value of all events together; see `Probe.p_value`."""
        return p_value(self.bets) if self.bets else None

    def verdict(self, alarm: bool, threshold: float) -> Verdict:
        """Fail on an alarm; see `Probe.verdict`."""
        status = Status.UNTESTED if not self.bets else Status.FAILED if alarm else Status.PASSED
        rates = rates_of(self.bets, threshold)
        return Verdict(
            self.name,
            self.question,
            status,
            self.count,
            faults=int(alarm),
            p_value=self.p_value(),
            rates=rates,
            distance=self._distance() if self.covering and rates else None,
            sampling_error=self._sampling_error() if self.covering and rates else None,
            power=_power(rates),
            reasons=self.why(self.count),
        )

    def _distance(self) -> float:
        return sum(abs(bet.hits - bet.expected) for bet in self.bets.values()) / (2 * self.count)

    def _sampling_error(self) -> float:
        """The mean of |x| of a normal x is sqrt(2/pi) of its deviation."""
        return sum(sqrt(2 / pi * bet.variance) for bet in self.bets.values()) / (2 * self.count)


def rates_of(bets: Mapping[str, Bet], threshold: float) -> tuple[Rate, ...]:
    """Return what each bet was about; `threshold` as in `Probe.verdict`."""
    return tuple(
        Rate(
            event,
            bet.count,
            bet.expected / bet.count,
            bet.hits / bet.count,
            bet.detectable(threshold, len(bets)),
        )
        for event, bet in bets.items()
    )


def _power(rates: tuple[Rate, ...]) -> str:
    """Nine files of ten with such an error would have raised an alarm."""
    told = (f"{rate.event}: {rate.detectable:.3g}" for rate in rates)
    return "an error of the mean probability by " + ", ".join(told) if rates else ""
