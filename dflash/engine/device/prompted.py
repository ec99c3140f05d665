"""An engine whose prompts are read while rounds of other lanes run; each lane joins them at a set time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.device.refill import PromptRound, Refill
from dflash.engine.device.round import DeviceRound
from dflash.engine.lane import Lane, Truncation
from dflash.engine.loop import Engine, Sink, begun
from dflash.target.native import NativeTrunk
from dflash.target.scratch import Scratch

# rows of prompts for which there is time under the rounds that are queued at once
ROWS_A_ROUND = 1024


class _Waiting(NamedTuple):
    """A prompt, and before which round it joins at the soonest."""

    refill: Refill
    round: int


class Refills:
    """Prompts that were queued, in order.

    Which of them are waited for before a round depends on their lengths and their places in the queue,
    never on how long they take: so a run repeats, whatever the device does meanwhile. Those that run behind
    queued rounds are not waited for before others are queued, or the device would run out of work.
    """

    def __init__(self, rows: int = ROWS_A_ROUND) -> None:
        self.rows = rows
        self._waiting: deque[_Waiting] = deque()
        self._credit = self._round = 0

    def add(self, refill: Refill) -> None:
        """Queue one more."""
        self._waiting.append(_Waiting(refill, self._round + 1 + refill.behind))

    def due(self, *, idle: bool) -> Iterator[Refill]:
        """Those that join before the next round.

        Args:
            idle: whether nothing else decodes, so that there is nothing to do but wait for the first.
        """
        self._credit += self.rows
        self._round += 1
        while self._waiting and (idle or self._is_due(self._waiting[0])):
            refill = self._waiting.popleft().refill
            self._credit, idle = max(0, self._credit - refill.rows), False
            yield refill
        if not self._waiting:
            self._credit = 0

    def _is_due(self, waiting: _Waiting) -> bool:
        return waiting.round <= self._round and waiting.refill.rows <= self._credit

    def drop(self) -> list[Refill]:
        """Forget all of them."""
        found = [waiting.refill for waiting in self._waiting]
        self._waiting.clear()
        self._credit = 0
        return found


class PromptedEngine(Engine):
    """Reads prompts on the device.

    Attributes:
        trunk: whose rows prompts fill.
        rounds: of the lanes that have begun.
        overlaps: whether prompts are read while other lanes' rounds run.
        refills: prompts that are being read.
    """

    trunk: NativeTrunk
    rounds: DeviceRound

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.overlaps = True
        self.refills = Refills()
        self._written: set[int] = set()

    @cached_property
    def prompts(self) -> PromptRound:
        """What reads them."""
        return PromptRound(self.trunk, self.drafter, self.rounds.plan)

    def warm_up(self, context: int) -> None:
        """Make the buffers and graphs that the first prompt would wait for else."""
        self.prompts.warm_up(context)

    def _fill(self, lane: Lane, sink: Sink) -> None:
        if self.overlaps:
            self.refills.add(self._launch_prompt(lane))
        else:
            self._prefill(lane, sink)

    def _prefill(self, lane: Lane, sink: Sink) -> None:
        self._take_first(self._launch_prompt(lane), sink)

    def _launch_prompt(self, lane: Lane) -> Refill:
        # what is queued may still write where a request was cut short, read what dense rows need, or bring
        # the context of a drafter up to a request's end
        in_turn = lane.index in self._written or self.dense is not None
        self._written.discard(lane.index)
        if (shared := self.rounds.shared).ring is not None:
            # taps that are kept of the request before belong to nobody now
            shared.lanes.lengths[lane.index] = 0
        return self.prompts.launch(lane, in_turn=in_turn or shared.ring is not None)

    def _join(self, lanes: Sequence[Lane], sink: Sink) -> None:
        for refill in self.refills.due(idle=not any(begun(lane) for lane in lanes)):
            self._take_first(refill, sink)

    def _take_first(self, refill: Refill, sink: Sink) -> None:
        """Wait for a prompt, emit its first token, and let its lane take part in rounds."""
        lane = refill.lane
        row, read = self.prompts.row(refill), len(lane.trunk)
        with self.prompts.aside():
            if self.features and refill.taps is not None:
                row |= self.features.of(refill.taps[-1:])
            self._answer(lane, row, refill.taps, sink)
        self.trunk.scratch[lane.index] = Scratch(read)
        if isinstance(self.drafter, BlockFamily):
            self.drafter.moved(lane.index, read)
        self._joined(lane)

    def _joined(self, lane: Lane) -> None:
        """A lane has its first token."""
        raise NotImplementedError

    def _close(self, lane: Lane, sink: Sink) -> None:
        if lane.finish in (Truncation.STOP, Truncation.INTERRUPTED):
            self._written.add(lane.index)
        super()._close(lane, sink)

    def _drop_prompts(self) -> None:
        for refill in self.refills.drop():
            self.prompts.forget(refill)
