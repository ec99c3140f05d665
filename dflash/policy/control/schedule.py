"""The control `schedule`: the length is read off a table by batch size."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from dflash.policy.control.base import Asked, Control, Frame, Load, Scheduler, Seen
from dflash.policy.control.steps import BatchTable, table_of
from dflash.policy.noise import I64


@dataclass(frozen=True, slots=True)
class Schedule(Control):
    """The batch is the requests that share a step, which the engine knows without delay.

    Attributes:
        table: length from a batch size on.
    """

    table: str = field(default="1:5/9:3/33:1/65:0", metadata={"type": BatchTable()})

    name = "schedule"
    summary = "the length that a table gives for the batch size"
    source = "num_speculative_tokens_per_batch_size of vLLM; draft_len_schedule of TensorRT-LLM"
    varies = ("length",)
    batch = True

    def scheduler(self, frame: Frame, size: int) -> Scheduler:
        """Return one that looks up the table; see `Control.scheduler`."""
        return _Scheduler(self, frame, size)


class _Scheduler(Scheduler):
    def __init__(self, control: Schedule, frame: Frame, size: int) -> None:
        self.table = table_of(control.table)
        super().__init__(frame, size)

    def ask(self, who: I64, load: Load) -> Asked:
        """Look the batch size up; see `Scheduler.ask`."""
        wanted = [length for smallest, length in self.table if smallest <= load.requests][-1]
        self.state["length"][who] = min(wanted, self.frame.longest)
        self.state["clipped"][who] = wanted > self.frame.longest
        return super().ask(who, load)

    def learn(self, who: I64, seen: Seen) -> None:
        """Learn nothing but that rounds passed; see `Scheduler.learn`."""
        self.state["known"][who] += 1

    def held(self, who: I64) -> int:
        """The table reads nothing that is learned; see `Scheduler.held`."""
        return sys.maxsize
