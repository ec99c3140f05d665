"""The dense pass where rounds run on the device: the same launches, a graph a group of anchors."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dflash.drafters.base import Drafter
from dflash.engine.dense.inputs import Heats
from dflash.engine.dense.lanes import DenseLanes, backwards, rows_needed
from dflash.engine.dense.late import LateSink
from dflash.engine.dense.rows import DenseGroup, DenseRowMaker
from dflash.engine.dense.step import DenseStep
from dflash.engine.device.law import LaneLaw
from dflash.engine.device.plan import RoundPlan
from dflash.engine.lane import Lane
from dflash.engine.recorder.columns import ColumnMaker
from dflash.engine.recorder.unmade import TakesRows, Unmade, hand_over
from dflash.kernels.round_lanes import RoundTree
from dflash.target.native import NativeTrunk

# groups that are queued before the first of them is read
AHEAD = 3


@dataclass(frozen=True, slots=True)
class _Request:
    """A request of which every group is queued: those that were read, the last ones first."""

    lane: Lane
    law: LaneLaw
    groups: list[DenseGroup] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Queued:
    """A group that is to be read."""

    request: _Request
    step: DenseStep
    ticket: int
    positions: Sequence[int]


class DenseRounds:
    """Dense rows by the kernels of live rounds on the device, whose bits they have in `replay-exact`.

    Nothing is accepted and nothing committed: each group of anchors gives all lanes anew.
    """

    def __init__(
        self, trunk: NativeTrunk, drafter: Drafter, plan: RoundPlan, *, trunk_is_choices: bool
    ) -> None:
        self.trunk, self.drafter, self.plan = trunk, drafter, plan
        tree = RoundTree.make(plan.shape.length, plan.shape.branches, 1, "cpu")
        parents = tree.parents[0].tolist()
        columns = ColumnMaker(parents, tree.expanded, tree.branches, plan.store_topk)
        self._maker = DenseRowMaker(columns, tree.length, trunk_is_choices)
        self._held: DenseLanes | None = None
        self._steps: dict[bool, DenseStep] = {}
        self._queue: deque[_Queued] = deque()

    def give(self, lane: Lane, sink: TakesRows) -> None:
        """Give a sink one row for every committed output token but the last, in order; a `LateSink` later."""
        positions = range(len(lane.request.prompt_tokens), len(lane.trunk) - 1)
        if not positions:
            return
        lanes = self._lanes(len(lane.trunk))
        lanes.follow(self.trunk, self.drafter, lane.index, positions[-1])
        request = self._queued(lanes, lane, positions)
        if isinstance(sink, LateSink):
            sink.later(lane, partial(self._hand_over, request, sink.sink))
        else:
            self._hand_over(request, sink)

    def _hand_over(self, request: _Request, sink: TakesRows) -> None:
        """Wait for what is not read yet."""
        while any(queued.request is request for queued in self._queue):
            self._read()
        lane = request.lane
        for group in reversed(request.groups):
            where = np.full(len(group.counts), lane.index)
            hand_over(sink, {lane.index: lane}, Unmade.now(where, self._maker, group, group.size))

    def _queued(self, lanes: DenseLanes, lane: Lane, positions: Sequence[int]) -> _Request:
        """Queue all groups of a request, the last ones first."""
        temperature = lane.request.sampling.temperature
        draws = self.drafter.sampling_at(temperature)
        drawn = draws.temperature > 0 and self.plan.shape.length > 0
        request = _Request(lane, LaneLaw(temperature, draws if drawn else None))
        step = self._step(lanes, drawn)
        groups = list(backwards(positions, lanes.count))
        words = step.inputs.words_of(lane, groups, Heats(temperature, draws.temperature if drawn else 0.0))
        for group, asked in zip(groups, words, strict=True):
            if len(self._queue) == AHEAD:
                self._read()
            self._queue.append(_Queued(request, step, step.queue(asked), group))
        return request

    def _read(self) -> None:
        """Wait for the oldest group."""
        queued = self._queue.popleft()
        step, lane, group = queued.step, queued.request.lane, queued.positions
        records = {
            name: values[0, : len(group)]
            for name, values in step.read(queued.ticket).items()
            if name != "times"
        }
        length, last = step.tree.length, len(lane.trunk) - 1
        at = np.array(group, dtype=np.int64)[:, None] + 1 + np.arange(max(length, 1))
        ahead = np.array(lane.trunk, dtype=np.int32)[np.minimum(at, last)]
        counts = [min(length, last - position) for position in group]
        queued.request.groups.append(DenseGroup(records, ahead, counts, queued.request.law))

    def _lanes(self, tokens: int) -> DenseLanes:
        capacity = rows_needed(self.trunk, self.drafter, tokens)
        if self._held is None or self._held.trunk.cache.capacity < capacity:
            while self._queue:
                self._read()
            # what is outgrown goes before its successor is made
            self._held, self._steps = None, {}
            shape = self.plan.shape
            self._held = DenseLanes.beside(self.trunk, self.drafter, shape.length * shape.branches, capacity)
        return self._held

    def _step(self, lanes: DenseLanes, drawn: bool) -> DenseStep:
        if drawn not in self._steps:
            self._steps[drawn] = DenseStep(lanes, self.plan, drawn)
        return self._steps[drawn]
