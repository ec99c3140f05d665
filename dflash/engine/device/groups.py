"""Lanes whose rounds share forwards: all of an engine, or two groups whose rounds run at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from dflash.drafters.base import DraftShape
from dflash.engine.device.round import DeviceRound
from dflash.engine.device.rows import RoundRows
from dflash.engine.lane import Lane
from dflash.policy.step_time import StepTime

# times what all lanes together take, where nothing of the groups' rounds overlaps
MOST_COST = 1.03


class Flight(NamedTuple):
    """A chain that was queued and not read: its records, the lanes that it was for, its first round."""

    ticket: int
    lanes: list[Lane]
    step: int


class LaneGroup:
    """Lanes next to each other, the rounds that they share, and the stream that these run on.

    Attributes:
        rounds: what runs on the device.
        stream: None for the current one.
        maker: of their rows.
        flying: the chain that was queued last, if it is not read.
    """

    def __init__(self, rounds: DeviceRound, stream: torch.cuda.Stream | None = None) -> None:
        self.rounds, self.stream = rounds, stream
        self.maker: RoundRows = rounds.row_maker()
        self.flying: Flight | None = None

    @property
    def window(self) -> slice:
        """Indices of its lanes."""
        return slice(self.rounds.window.start, self.rounds.window.stop)

    def own(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Those of these lanes that belong to it."""
        return [lane for lane in lanes if lane.index in self.rounds.window]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Queue work on its stream."""
        if self.stream is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            yield


def lane_groups(rounds: Sequence[DeviceRound]) -> list[LaneGroup]:
    """Groups of these rounds, each with a stream of its own if there are several."""
    device = rounds[0].trunk.device
    apart = len(rounds) > 1 and device.type == "cuda"
    return [LaneGroup(each, torch.cuda.Stream(device) if apart else None) for each in rounds]


def halves(lanes: int) -> list[range]:
    """Windows of two groups of lanes."""
    middle = lanes - lanes // 2
    return [range(middle), range(middle, lanes)]


def halves_pay(step_time: StepTime, shape: DraftShape, lanes: int) -> bool:
    """Whether a round of each of two groups surely takes no more than 3 % longer than one of all lanes.

    What they gain depends on how much of one group's drafting fits under the other's verification, which no
    profile says; so this asks what they cost if nothing does, at any context of the profile.
    """
    contexts = np.array(step_time.verify_us.axes[2])

    def round_us(count: int) -> np.ndarray:
        draft = step_time.draft(shape.length, shape.branches, count)
        return draft + step_time.verify(shape.length * shape.branches, count, contexts)

    apart = sum(round_us(len(window)) for window in halves(lanes))
    return bool((apart <= MOST_COST * round_us(lanes)).all())
