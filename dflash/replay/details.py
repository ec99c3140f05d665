"""What a replay tells beside acceptance: branches always, calibration and predicted speed if asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dflash.policy.registry import Policy
from dflash.policy.shape import Shape
from dflash.replay.branching import Branching
from dflash.replay.calibration import Calibration
from dflash.replay.cost import CostModel
from dflash.replay.result import PolicyRow
from dflash.replay.tally import Collector
from dflash.replay.work import Work, speeds


class Wanted(NamedTuple):
    """What to tell beside acceptance.

    Attributes:
        calibration: how well confidence and margin foretell acceptance.
        cost: prices the rounds; without it no speed is predicted.
    """

    calibration: bool = False
    cost: CostModel | None = None


@dataclass(frozen=True, slots=True)
class Details:
    """The collectors of several policies, in their order."""

    branching: tuple[Branching, ...]
    calibration: tuple[Calibration, ...] = field(default=())
    work: tuple[Work, ...] = field(default=())

    @classmethod
    def of(cls, wanted: Wanted, policies: Sequence[Policy], largest: Shape) -> Details:
        """Make the collectors.

        Args:
            largest: the shape that is drafted where a policy leaves it open.
        """
        calibration = tuple(Calibration() for _ in (policies if wanted.calibration else ()))
        cost = wanted.cost
        work = () if cost is None else tuple(Work.of(cost, policy, largest) for policy in policies)
        return cls(tuple(Branching() for _ in policies), calibration, work)

    def collectors(self, others: Sequence[Sequence[Collector]] = ()) -> list[tuple[Collector, ...]]:
        """Return the collectors of each policy, those of others after these."""
        kinds: tuple[Sequence[Collector], ...] = (self.branching, self.calibration, self.work)
        own = zip(*[kind for kind in kinds if kind], strict=True)
        after = tuple(others) or ((),) * len(self.branching)
        return [(*some, *more) for some, more in zip(own, after, strict=True)]

    def filled(self, rows: Sequence[PolicyRow]) -> tuple[PolicyRow, ...]:
        """Return the rows with what was collected; speeds are compared with the first policy's."""
        priced = speeds(self.work, 0, np.ones(len(self.work), dtype=bool)) if self.work else ()
        found = []
        for index, row in enumerate(rows):
            found.append(
                replace(
                    row,
                    branching=self.branching[index].report(),
                    calibration=self.calibration[index].report() if self.calibration else None,
                    speed=priced[index] if priced else None,
                )
            )
        return tuple(found)
