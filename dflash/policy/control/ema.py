"""The control `ema`: move between a few lengths by a running mean of accepted drafts, with hysteresis."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dflash.policy.control.base import Frame, Learning, Scheduler, Seen, State
from dflash.policy.control.steps import Steps
from dflash.policy.noise import I64
from dflash.policy.parameter import Number, Whole

_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Ema(Learning):
    """It starts at the largest candidate within the policy's length, with a mean of one less.

    Attributes:
        after: rounds of warm-up.
        alpha: weight of the newest round in the mean.
        every: rounds between two decisions.
        candidates: lengths to choose from.
        down: move down while the mean is at most the next lower candidate - 0.5 + `down`.
        up: move up while the mean is above the candidate - 0.5 + `up`.
        ceiling: no candidate above ceil(mean x `ceiling`) but the lowest; 0 sets no ceiling.
    """

    after: int = field(default=10, metadata={"type": Whole(0)})
    alpha: float = field(default=0.2, metadata={"type": Number(0.0, 1.0, open_low=True)})
    every: int = field(default=5, metadata={"type": Whole(1)})
    candidates: tuple[int, ...] = field(default=(1, 3, 5, 7), metadata={"type": Steps()})
    down: float = field(default=-0.25, metadata={"type": Number()})
    up: float = field(default=0.0, metadata={"type": Number()})
    ceiling: float = field(default=0.0, metadata={"type": Number(0.0)})

    name = "ema"
    summary = "move between a few lengths by an exponential mean of accepted drafts, with hysteresis"
    source = "--speculative-adaptive of SGLang"
    varies = ("length",)

    def scheduler(self, frame: Frame, size: int) -> Scheduler:
        """Return one at its first candidate; see `Control.scheduler`."""
        return _Scheduler(self, frame, size)


class _Scheduler(Scheduler):
    def __init__(self, control: Ema, frame: Frame, size: int) -> None:
        self.control = control
        self.steps = np.array(control.candidates, dtype=np.int64)
        super().__init__(frame, size)

    def fresh(self, size: int) -> State:
        """Return scopes at their first candidate; see `Scheduler.fresh`."""
        state = super().fresh(size)
        first = max(0, int(np.searchsorted(self.steps, self.frame.length, side="right")) - 1)
        state["_place"] = np.full(size, first, dtype=np.int64)
        state["length"] = np.minimum(self.steps[state["_place"]], self.frame.longest)
        state["ema"] = state["length"] - 1.0
        return state

    def learn(self, who: I64, seen: Seen) -> None:
        """Update the mean, and decide where it is time; see `Scheduler.learn`."""
        state, control = self.state, self.control
        mean = seen.accepted / seen.rounds
        state["ema"][who] = (1.0 - control.alpha) * state["ema"][who] + control.alpha * mean
        state["known"][who] += 1
        beyond = state["known"][who] - control.after
        self._decide(who[(beyond > 0) & (beyond % control.every == 0)])

    def _decide(self, who: I64) -> None:
        state, control, steps = self.state, self.control, self.steps
        ema, place = state["ema"][who], state["_place"][who]
        for _ in steps[1:]:
            place -= (place > 0) & (ema <= steps[place - 1] - _HALF + control.down)
        for _ in steps[1:]:
            place += (place < len(steps) - 1) & (ema > steps[place] - _HALF + control.up)
        if control.ceiling:
            highest = np.searchsorted(steps, np.ceil(ema * control.ceiling), side="right") - 1
            place = np.minimum(place, np.maximum(highest, 0))
        wanted = steps[place]
        allowed = np.searchsorted(steps, self.frame.longest, side="right") - 1
        state["_place"][who] = np.minimum(place, max(int(allowed), 0))
        state["length"][who] = np.minimum(steps[state["_place"][who]], self.frame.longest)
        state["clipped"][who] = wanted > self.frame.longest
