"""The control `heuristic`: a longer draft after a round that accepts all of it, else a shorter one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dflash.policy.control.base import Frame, Learning, Scheduler, Seen
from dflash.policy.noise import I64
from dflash.policy.parameter import Whole


@dataclass(frozen=True, slots=True)
class Heuristic(Learning):
    """Scope `request` is transformers' `heuristic_transient`, `stream` its `heuristic`.

    Attributes:
        up: added to the length where the whole length that was asked for is accepted.
        down: taken off it elsewhere, to no less than 1.
    """

    up: int = field(default=2, metadata={"type": Whole(0)})
    down: int = field(default=1, metadata={"type": Whole(0)})

    name = "heuristic"
    summary = "length + 2 after a round that accepts all of it, else length - 1"
    source = "num_assistant_tokens_schedule of transformers"
    varies = ("length",)

    def scheduler(self, frame: Frame, size: int) -> Scheduler:
        """Return one that starts with the policy's length; see `Control.scheduler`."""
        return _Scheduler(self, frame, size)


class _Scheduler(Scheduler):
    def __init__(self, control: Heuristic, frame: Frame, size: int) -> None:
        self.control = control
        super().__init__(frame, size)

    def learn(self, who: I64, seen: Seen) -> None:
        """Lengthen or shorten; see `Scheduler.learn`."""
        self.state["known"][who] += 1
        acts = self.state["known"][who] >= self.control.after
        who, full = who[acts], (seen.full == seen.rounds)[acts]
        length = self.state["length"][who]
        wanted = np.where(full, length + self.control.up, np.maximum(length - self.control.down, 1))
        self.state["length"][who] = np.minimum(wanted, self.frame.longest)
        self.state["clipped"][who] = wanted > self.frame.longest
