"""The control `confidence-scheduled`: verify the likeliest nodes of the batch while that pays.

The capacity comes from drafts `lag` steps old, as a survival that every node of this step must reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dflash.policy.control.base import Asked, Control, Frame, Load, Scheduler, Seen, State
from dflash.policy.draft_score import SCORE_COLUMNS
from dflash.policy.errors import StepTimeMissing
from dflash.policy.noise import I64
from dflash.policy.parameter import Number, Whole
from dflash.policy.step_time import StepTime


@dataclass(frozen=True, slots=True)
class ConfidenceScheduled(Control):
    """Admit nodes by survival while tokens x steps a second rises, and stop at the first that does not.

    Attributes:
        lag: steps that pass before drafts are known.
        floor: the least survival a node counts with.
    """

    lag: int = field(default=2, metadata={"type": Whole(0)})
    floor: float = field(default=1e-6, metadata={"type": Number(0.0, 1.0)})

    name = "confidence-scheduled"
    summary = "verify the nodes of the batch that are likeliest to survive, while tokens a second rise"
    source = "DSpark, algorithm 1; SGLang's confidence scheduler"
    varies = ("survival",)
    columns = SCORE_COLUMNS
    batch = True
    timed = True

    @property
    def delay(self) -> int:
        """After how many further rounds an outcome is known."""
        return self.lag

    @property
    def streams(self) -> bool:
        """The capacity is one for the batch."""
        return True

    def scheduler(self, frame: Frame, size: int) -> Scheduler:
        """Return one that admits everything; see `Control.scheduler`."""
        if frame.step_time is None:
            raise StepTimeMissing(self.name)
        return _Scheduler(self, frame, frame.step_time, size)


class _Scheduler(Scheduler):
    def __init__(self, control: ConfidenceScheduled, frame: Frame, step_time: StepTime, size: int) -> None:
        self.control = control
        self.step_time = step_time
        self.context = 0.0
        super().__init__(frame, size)

    def fresh(self, size: int) -> State:
        """Return a scope that admits everything; see `Scheduler.fresh`."""
        whole = {name: np.zeros(size, dtype=np.int64) for name in ("admitted", "offered")}
        return {**super().fresh(size), "survival": np.zeros(size), **whole}

    def ask(self, who: I64, load: Load) -> Asked:
        """Ask for the survival that the last known step was worth; see `Scheduler.ask`."""
        self.context = load.context
        return super().ask(who, load)._replace(survival=self.state["survival"][who])

    def learn(self, who: I64, seen: Seen) -> None:
        """Find how many nodes of a step were worth verifying; see `Scheduler.learn`."""
        requests = int(seen.rounds.sum())
        ranked = np.sort(np.maximum(seen.survival, self.control.floor))[::-1]
        tokens = requests + np.concatenate(([0.0], np.cumsum(ranked)))
        nodes = np.arange(len(tokens)) / requests
        us = self.step_time.draft(self.frame.length, self.frame.branches, requests)
        us = us + self.step_time.verify(nodes, requests, self.context)
        drops = np.flatnonzero(tokens[1:] * us[:-1] <= tokens[:-1] * us[1:])
        admitted = int(drops[0]) if len(drops) else len(ranked)
        self.state["admitted"][who], self.state["offered"][who] = admitted, len(ranked)
        self.state["survival"][who] = self._lowest(ranked, admitted)
        self.state["known"][who] += 1

    def _lowest(self, ranked: np.ndarray[tuple[int], np.dtype[np.float64]], admitted: int) -> float:
        """Return the survival of the last node admitted: 0 where all were, more than 1 where none was."""
        if admitted == len(ranked):
            return 0.0
        return float(ranked[admitted - 1]) if admitted else 2.0
