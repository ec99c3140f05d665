"""The engine whose rounds run on the device: the host queues a chain of them, then reads the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.dense.late import LateSink
from dflash.engine.device.arrays import Records
from dflash.engine.device.landing import Landing
from dflash.engine.device.law import LaneLaw, Laws
from dflash.engine.device.prompted import PromptedEngine
from dflash.engine.device.round import DeviceRound
from dflash.engine.device.rows import Chain, RoundNumbers, RoundRows
from dflash.engine.lane import Lane, Truncation
from dflash.engine.loop import Conversation, Sink
from dflash.engine.recorder.unmade import Unmade, hand_over
from dflash.policy.context import DraftSampling
from dflash.target.scratch import Scratch


class _Flight(NamedTuple):
    """A chain that was queued and not read: its records, the lanes that it was for, its first round."""

    ticket: int
    lanes: list[Lane]
    step: int


class DeviceEngine(PromptedEngine):
    """Decodes like `Engine`, with rounds that never wait for the host.

    Acceptance, and ends by an end-of-text token or by length, are decided on the device. Stop strings are
    found when the host reads rounds, a chain late: those that the lane has begun by then are dropped.

    Attributes:
        rounds: what runs on the device.
        wasted_rounds: rounds of lanes that had met their stop string already.
        quiet: whether rounds leave tokens alone, and no rows.
    """

    def __init__(self, *parts: Any, rounds: DeviceRound, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.rounds = rounds
        self.wasted_rounds = 0
        self.quiet = False
        self._maker = rounds.row_maker()
        count = self.trunk.cache.lanes
        self._laws = np.zeros((count, len(Laws._fields)))
        # of trunks, now and once their requests have ended by length
        self._lengths, self._ends = np.zeros((2, count), np.int64)
        self._flying: _Flight | None = None

    def warm_up(self, context: int) -> None:
        """Make what the first prompt and the first round would wait for else."""
        super().warm_up(context)
        self.rounds.ready(context)

    def _joined(self, lane: Lane) -> None:
        """A lane has its first token."""
        temperature = lane.request.sampling.temperature
        self._laws[lane.index] = LaneLaw(temperature, self._drawn(temperature)).numbers
        self._lengths[lane.index], self._ends[lane.index] = len(lane.trunk), len(lane.trunk) + lane.left

    def _hold(self, lanes: Sequence[Lane]) -> None:
        if going := [lane for lane in lanes if not lane.done]:
            self.rounds.open(going)

    def _close(self, lane: Lane, sink: Sink) -> None:
        if lane.finish in (Truncation.STOP, Truncation.INTERRUPTED):
            self.rounds.close(lane.index)
        self._tell_where(lane)
        super()._close(lane, sink)

    def _tell_where(self, lane: Lane) -> None:
        """Let the host's caches know how far the device has come."""
        stored = len(lane.trunk) - 1
        self.trunk.scratch[lane.index] = Scratch(stored)
        if isinstance(self.drafter, BlockFamily):
            self.drafter.moved(lane.index, stored)

    def run(
        self, conversations: Iterable[Conversation], sink: Sink, *how: Any, **more: Any
    ) -> Iterator[Lane]:
        """As `Engine.run`; rounds go on while the dense rows of requests that have ended are computed."""
        if self.dense is None:
            yield from super().run(conversations, sink, *how, **more)
            return
        late = LateSink(sink)
        try:
            yield from super().run(conversations, late, *how, **more)
        finally:
            late.flush()

    def _join(self, lanes: Sequence[Lane], sink: Sink) -> None:
        if isinstance(sink, LateSink):
            sink.tend()
        super()._join(lanes, sink)

    def round(self, lanes: Sequence[Lane], sink: Sink) -> None:
        """Queue a chain of rounds of every open lane, and take in the chain before."""
        before, chain = self._flying, self.rounds.plan.chain
        self._flying = None
        # every round of a live lane emits a token
        ahead = 0 if before is None else chain
        if any(lane.left > ahead for lane in lanes):
            longest = max(len(lane.trunk) for lane in lanes)
            self._flying = _Flight(self.rounds.launch(longest), list(lanes), self._step)
            self._step += chain
        if before is not None:
            self._land(before, sink)

    def _land(self, flight: _Flight, sink: Sink) -> None:
        """Read a chain's records and hand out their rows."""
        lanes = [lane for lane in flight.lanes if not lane.done]
        if not lanes:
            return
        records, chain = self.rounds.read(flight.ticket), self.rounds.plan.chain
        landing = self._landing(records, lanes)
        for place in range(chain):
            self._listen(landing, place)
        landing.settle(chain)
        self._lengths += landing.emitted.sum(0)
        if not self.quiet:
            rows = landing.rows()
            batch, step = records["live"].sum(1)[rows.record], flight.step + rows.record
            shape = self.rounds.plan.shape
            full = np.full((2, len(step)), [[shape.length], [shape.branches]])
            self._hand_over(self._maker, records, RoundNumbers(*rows, batch, step, *full), lanes, sink)

    def _landing(self, records: Records, lanes: Sequence[Lane]) -> Landing:
        return Landing(records, lanes, self._ends - self._lengths, self.target.eos)

    def _listen(self, landing: Landing, place: int) -> None:
        """Let those who follow a text have that of a round; count the rounds begun after a stop string."""
        for stopped in landing.listen(place):
            self.wasted_rounds += stopped.after
            if stopped.goes_on:
                self.wasted_rounds += self._still_queued(stopped.lane)

    def _still_queued(self, lane: Lane) -> int:
        """Rounds of a lane that are queued after those that are being read."""
        return 0 if self._flying is None else self.rounds.plan.chain

    def _hand_over(
        self, maker: RoundRows, records: Records, numbers: RoundNumbers, lanes: Sequence[Lane], sink: Sink,
        texts: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """Give the sink the rows of a chain."""
        chain = Chain.of(records, numbers, self._laws, texts)
        rows = Unmade.now(numbers.lane, maker, chain, chain.size)
        hand_over(sink, {lane.index: lane for lane in lanes}, rows)

    def _drawn(self, temperature: float) -> DraftSampling | None:
        """How q is made in requests of a temperature; None where tokens are not drawn."""
        sampling = self.drafter.sampling_at(temperature)
        return sampling if sampling.temperature > 0 and self.rounds.tree.nodes else None
