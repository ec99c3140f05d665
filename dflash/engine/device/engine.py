"""The engine whose rounds run on the device: the host queues a chain of them, then reads the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.dense.late import LateSink
from dflash.engine.device.arrays import Records
from dflash.engine.device.deferring import DeferringSink
from dflash.engine.device.groups import Flight, LaneGroup, lane_groups
from dflash.engine.device.landing import Landing
from dflash.engine.device.law import LaneLaw, Laws
from dflash.engine.device.prompt_records import PromptRecord
from dflash.engine.device.prompted import PromptedEngine
from dflash.engine.device.refill import PromptRound
from dflash.engine.device.round import DeviceRound
from dflash.engine.device.rows import Chain, RoundNumbers, RoundRows
from dflash.engine.lane import Lane, Truncation
from dflash.engine.loop import Conversation, Sink
from dflash.engine.recorder.unmade import Unmade, hand_over
from dflash.engine.states import States
from dflash.policy.context import DraftSampling
from dflash.target.scratch import Scratch


class DeviceEngine(PromptedEngine):
    """Decodes like `Engine`, with rounds that never wait for the host.

    Acceptance, and ends by an end-of-text token or by length, are decided on the device. Stop strings are
    found when the host reads rounds, a chain late: those that the lane has begun by then are dropped.

    Attributes:
        groups: of lanes whose rounds share forwards; those of several run at the same time.
        rounds: what runs on the device, of the first group.
        wasted_rounds: rounds of lanes that had met their stop string already.
        quiet: whether rounds leave tokens alone, and no rows.
        defers: whether rows are handed over only once the next rounds are queued.
    """

    def __init__(self, *parts: Any, rounds: Sequence[DeviceRound], **more: Any) -> None:
        super().__init__(*parts, **more)
        self.control = self.control.at_all_lanes()
        self.groups = lane_groups(rounds)
        # a record is taken on one stream
        self.joins_unread = len(self.groups) == 1
        self.rounds = rounds[0]
        self.wasted_rounds = 0
        self.quiet, self.defers = False, True
        self._deferring: DeferringSink | None = None
        count = self.trunk.cache.lanes
        self._laws = np.zeros((count, len(Laws._fields)))
        # of trunks, now and once their requests have ended by length
        self._lengths, self._ends = np.zeros((2, count), np.int64)

    @cached_property
    def prompts(self) -> PromptRound:
        """What reads them."""
        found = super().prompts
        found.round_streams = [group.stream for group in self.groups if group.stream is not None]
        return found

    def warm_up(self, context: int) -> None:
        """Make what the first prompt and the first round would wait for else."""
        super().warm_up(context)
        for group in self.groups:
            with group.at_work():
                group.rounds.ready(context)

    def _group_of(self, lane: Lane) -> LaneGroup:
        return next(group for group in self.groups if lane.index in group.rounds.window)

    def _joined(self, lane: Lane) -> None:
        request = lane.request
        temperature, read = request.sampling.temperature, len(request.prompt_tokens)
        self._laws[lane.index] = LaneLaw(temperature, self._drawn(temperature)).numbers
        self._lengths[lane.index], self._ends[lane.index] = read + 1, read + request.max_new_tokens

    def _hold(self, lanes: Sequence[Lane], unread: PromptRecord | None = None) -> None:
        for group in self.groups:
            if going := [lane for lane in group.own(lanes) if not lane.done]:
                with group.at_work():
                    group.rounds.open(going, unread)

    def _rest_lane(self, lane: Lane) -> None:
        group = self._group_of(lane)
        with group.at_work():
            group.rounds.close(lane.index)

    def _close(self, lane: Lane, sink: Sink) -> None:
        if lane.finish in (Truncation.STOP, Truncation.INTERRUPTED):
            self._rest_lane(lane)
        self._tell_where(lane)
        super()._close(lane, sink)

    def _drop_prompts(self) -> None:
        super()._drop_prompts()
        for group in self.groups:
            if group.flying is not None:
                self._forget(group, group.flying)
            group.flying = None

    def _forget(self, group: LaneGroup, flight: Flight) -> None:
        """Never read a chain, whose rounds may still write where lanes go on."""
        group.rounds.forget(flight.ticket)
        self._written |= {lane.index for lane in flight.lanes if not lane.done}

    def _tell_where(self, lane: Lane) -> None:
        """Let the host's caches know how far the device has come."""
        stored = len(lane.trunk) - 1
        self.trunk.scratch[lane.index] = Scratch(stored)
        if isinstance(self.drafter, BlockFamily):
            self.drafter.moved(lane.index, stored)

    def run(
        self, conversations: Iterable[Conversation], sink: Sink, *how: Any, **more: Any
    ) -> Iterator[Lane]:
        """As `Engine.run`; rounds go on while rows are handed over, and dense ones computed."""
        if self.quiet or not self.defers:
            yield from self._run(conversations, sink, *how, **more)
            return
        deferring = self._deferring = DeferringSink(sink)
        try:
            yield from self._run(conversations, deferring, *how, **more)
        finally:
            self._deferring = None
            deferring.flush()

    def _run(
        self, conversations: Iterable[Conversation], sink: Sink, *how: Any, **more: Any
    ) -> Iterator[Lane]:
        if self.dense is None:
            yield from super().run(conversations, sink, *how, **more)
            return
        late = LateSink(sink)
        try:
            yield from super().run(conversations, late, *how, **more)
        finally:
            late.flush()

    def _hand_on(self, sink: Sink) -> None:
        """Give the sink what has waited until rounds were queued, among it first tokens."""
        self._answer_joined()
        self._give_prompts(sink)
        if self._deferring is not None:
            self._deferring.flush()

    def _rest(self, sink: Sink) -> None:
        if isinstance(sink, LateSink):
            sink.flush()
        self._hand_on(sink)

    def _join(self, lanes: Sequence[Lane], sink: Sink) -> None:
        if isinstance(sink, LateSink):
            sink.tend()
        super()._join(lanes, sink)

    def round(self, lanes: Sequence[Lane], sink: Sink) -> None:
        """Queue a chain of rounds of every open lane, and take in the chain before."""
        for group in self.groups:
            before, group.flying = group.flying, None
            if open_lanes := group.own(lanes):
                group.flying = self._launched(group, open_lanes, before)
            try:
                self._hand_on(sink)
            except BaseException:
                if before is not None:
                    self._forget(group, before)
                raise
            if before is not None:
                self._land(group, before, sink)

    def _launched(self, group: LaneGroup, lanes: list[Lane], before: Flight | None) -> Flight | None:
        """Queue a chain, if lanes may have more to emit than what is queued before it surely does."""
        rounds, chain = group.rounds, group.rounds.plan.chain
        # every round of a live lane emits a token
        ahead = 0 if before is None else chain
        if all(lane.left <= ahead for lane in lanes):
            return None
        with group.at_work():
            # a token that is not read may be behind a prompt
            longest = max(len(lane.trunk) for lane in lanes) + 1
            flight = Flight(rounds.launch(longest), lanes, self._step)
        self._step += chain
        return flight

    def _land(self, group: LaneGroup, flight: Flight, sink: Sink) -> None:
        """Read a chain's records and hand out their rows."""
        lanes = [lane for lane in flight.lanes if not lane.done]
        if not lanes:
            group.rounds.forget(flight.ticket)
            return
        records, chain = group.rounds.read(flight.ticket), group.rounds.plan.chain
        landing = self._landing(group, records, lanes)
        for place in range(chain):
            self._listen(landing, place)
        landing.settle(chain)
        self._lengths[group.window] += landing.emitted.sum(0)
        if not self.quiet:
            rows = landing.rows()
            batch, step = records["live"].sum(1)[rows.record], flight.step + rows.record
            shape = group.rounds.plan.shape
            full = np.full((2, len(step)), [[shape.length], [shape.branches]])
            numbers = RoundNumbers(*rows, batch, step, *full)
            self._hand_over(group.maker, records, numbers, landing, sink)

    def _landing(self, group: LaneGroup, records: Records, lanes: Sequence[Lane]) -> Landing:
        left = (self._ends - self._lengths)[group.window]
        return Landing(records, lanes, left, self.target.eos, group.window.start)

    def _listen(self, landing: Landing, place: int) -> None:
        """Let those who follow a text have that of a round; count the rounds begun after a stop string."""
        for stopped in landing.listen(place):
            self.wasted_rounds += stopped.after
            if stopped.goes_on:
                # each round that runs would have emitted a token
                left = max(0, stopped.lane.left - stopped.after)
                self.wasted_rounds += min(self._still_queued(stopped.lane), left)

    def _still_queued(self, lane: Lane) -> int:
        return 0 if self._group_of(lane).flying is None else self.rounds.plan.chain

    def _hand_over(
        self, maker: RoundRows, records: Records, numbers: RoundNumbers, landing: Landing, sink: Sink,
        states: Sequence[States] | None = None,
    ) -> None:  # fmt: skip
        """Give the sink the rows of a chain."""
        chain = Chain.of(records, numbers, self._laws[landing.first :], states)
        rows = Unmade.now(landing.first + numbers.lane, maker, chain, chain.size)
        hand_over(sink, {lane.index: lane for lane in landing.lanes}, rows)

    def _drawn(self, temperature: float) -> DraftSampling | None:
        """How q is made in requests of a temperature; None where tokens are not drawn."""
        sampling = self.drafter.sampling_at(temperature)
        return sampling if sampling.temperature > 0 and self.rounds.tree.nodes else None
