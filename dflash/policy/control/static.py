"""The control `static`: nothing changes."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.policy.control.base import Control, Frame, Scheduler, Seen
from dflash.policy.noise import I64


@dataclass(frozen=True, slots=True)
class Static(Control):
    """The shape and the rule stay as they are."""

    name = "static"
    summary = "the shape and the rule stay as they are"
    source = "no control"

    def scheduler(self, frame: Frame, size: int) -> Scheduler:
        """Return one that always asks for the same; see `Control.scheduler`."""
        return _Unmoved(frame, size)


class _Unmoved(Scheduler):
    def learn(self, who: I64, seen: Seen) -> None:
        """Learn nothing; see `Scheduler.learn`."""
