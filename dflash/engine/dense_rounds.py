"""The dense pass where rounds run on the device: the same launches, a graph a group of anchors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from dflash.drafters.base import Drafter
from dflash.engine.dense_inputs import Heats
from dflash.engine.dense_lanes import DenseLanes, backwards, rows_needed
from dflash.engine.dense_record import DenseRowMaker
from dflash.engine.dense_step import DenseStep
from dflash.engine.device_law import LaneLaw
from dflash.engine.device_plan import RoundPlan
from dflash.engine.judge import Row
from dflash.engine.lane import Lane
from dflash.target.native import NativeTrunk

# groups that are queued before the first of them is read
AHEAD = 3


class DenseRounds:
    """Dense rows by the kernels of live rounds on the device, whose bits they have in `replay-exact`.

    Nothing is accepted and nothing committed: each group of anchors gives all lanes anew.
    """

    def __init__(
        self, trunk: NativeTrunk, drafter: Drafter, plan: RoundPlan, *, trunk_is_choices: bool
    ) -> None:
        self.trunk, self.drafter, self.plan = trunk, drafter, plan
        self.trunk_is_choices = trunk_is_choices
        self._held: DenseLanes | None = None
        self._steps: dict[bool, DenseStep] = {}

    def rows(self, lane: Lane) -> Iterator[Row]:
        """One row for every committed output token but the last, in order."""
        positions = range(len(lane.request.prompt_tokens), len(lane.trunk) - 1)
        if not positions:
            return
        lanes = self._lanes(len(lane.trunk))
        lanes.follow(self.trunk, self.drafter, lane.index, positions[-1])
        groups = list(backwards(positions, lanes.count))
        for rows in reversed(list(self._groups(lanes, lane, groups))):
            yield from rows

    def _groups(self, lanes: DenseLanes, lane: Lane, groups: Sequence[Sequence[int]]) -> Iterator[list[Row]]:
        """Rows of each group, made while the device is at the next ones."""
        temperature = lane.request.sampling.temperature
        draws = self.drafter.sampling_at(temperature)
        drawn = draws.temperature > 0 and self.plan.shape.length > 0
        law = LaneLaw(lane.request.sampling, draws if drawn else None)
        step = self._step(lanes, drawn)
        maker = DenseRowMaker(step.tree, self.plan.store_topk, self.trunk_is_choices)
        heats = Heats(temperature, draws.temperature if drawn else 0.0)
        words = step.inputs.words_of(lane, groups, heats)
        waiting: deque[tuple[int, Sequence[int]]] = deque()
        for group, asked in zip(groups, words, strict=True):
            if len(waiting) == AHEAD:
                ticket, before = waiting.popleft()
                yield maker.rows(step.read(ticket), lane, before, law)
            waiting.append((step.queue(asked), group))
        for ticket, group in waiting:
            yield maker.rows(step.read(ticket), lane, group, law)

    def _lanes(self, tokens: int) -> DenseLanes:
        capacity = rows_needed(self.trunk, self.drafter, tokens)
        if self._held is None or self._held.trunk.cache.capacity < capacity:
            # what is outgrown goes before its successor is made
            self._held, self._steps = None, {}
            shape = self.plan.shape
            self._held = DenseLanes.beside(self.trunk, self.drafter, shape.length * shape.branches, capacity)
        return self._held

    def _step(self, lanes: DenseLanes, drawn: bool) -> DenseStep:
        if drawn not in self._steps:
            self._steps[drawn] = DenseStep(lanes, self.plan, drawn)
        return self._steps[drawn]
