"""The engine of adaptive control on the device: rounds are queued ahead in the shapes that the host foresees.

The control itself runs when a round is read, just as it does for rounds through the host. A round in another
shape than it then asks for counts for nothing: its lanes go back, and it runs again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dflash.engine.control import indices
from dflash.engine.device.arrays import Records
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.ladder import Launched, RoundLadder, Shapes
from dflash.engine.device.landing import Landing
from dflash.engine.device.prompt_records import PromptRecord
from dflash.engine.device.refill import PromptRound
from dflash.engine.device.rows import RoundNumbers
from dflash.engine.lane import Lane
from dflash.engine.loop import Sink
from dflash.engine.states import States
from dflash.policy.control.base import Asked
from dflash.policy.noise import I64

# flights that wait for another to be read
AHEAD = 2
# a window changes no sooner than 8 rounds after its last change
STEADY = 16


class _Flight(NamedTuple):
    """Rounds that were queued and not read.

    Attributes:
        lanes: that they were queued for.
        shapes: of all of them.
        turn: `[lanes]` how many requests each index has had, -1 where it takes no part.
    """

    launched: Launched
    lanes: list[Lane]
    shapes: Shapes
    turn: I64

    @property
    def rounds(self) -> int:
        """How many."""
        return self.launched.rounds.plan.chain

    @property
    def open(self) -> list[Lane]:
        """The lanes whose requests go on, as far as the host knows."""
        return [lane for lane in self.lanes if not lane.done]


class _Landed(NamedTuple):
    """A flight that was read.

    Attributes:
        depths: `[rounds, lanes]` of what was drafted.
        states: what decided the rounds that were taken in so far.
    """

    records: Records
    landing: Landing
    depths: I64
    states: list[States]


class AdaptiveEngine(DeviceEngine):
    """Decodes like `DeviceEngine`, in shapes that change from round to round.

    Rounds whose shape is decided already are queued in chains as far as it stays the same and they may be
    read together (`Ahead.together`), else one by one. Of a control that does not say how long a shape lasts,
    chains are queued beyond what is decided once shapes have been steady for a while.

    Attributes:
        ladder: what runs on the device.
        wasted_rounds: rounds of lanes that had met their stop string already, or that ran in another shape
            than the control asked for once all before them were known.
    """

    def __init__(self, *parts: Any, ladder: RoundLadder, **more: Any) -> None:
        super().__init__(*parts, rounds=[ladder.rungs[-1].single], **more)
        self.ladder = ladder
        self._flights: deque[_Flight] = deque()
        self._emitted = 1.0
        self._steady = 0
        self._last = Shapes.none(self.trunk.cache.lanes)
        self._turn = np.zeros(self.trunk.cache.lanes, np.int64)

    def warm_up(self, context: int) -> None:
        """As `Engine.warm_up`; rounds of all lengths are captured, too."""
        super().warm_up(context)
        self.ladder.ready(context)

    @cached_property
    def prompts(self) -> PromptRound:
        """What reads them, once the contexts of requests before are left alone."""
        found = super().prompts
        found.after = self.ladder.caught_up
        return found

    def _hold(self, lanes: Sequence[Lane], unread: PromptRecord | None = None) -> None:
        self._turn[indices(lanes)] += 1
        self.ladder.hold(lanes, fresh=True, unread=unread)

    def _close(self, lane: Lane, sink: Sink) -> None:
        if self.dense is not None:
            self.ladder.catch_up(self._reach(indices([lane])))
        super()._close(lane, sink)

    def round(self, lanes: Sequence[Lane], sink: Sink) -> None:
        """Queue rounds ahead, and take in the oldest that are unread."""
        self._forget_empty()
        # what is foreseen is of lanes in this order, as what is asked
        lanes = sorted(lanes, key=lambda lane: lane.index)
        while self._launch(lanes):
            pass
        self._hand_on(sink)
        self._take_in(self._flights.popleft(), sink)

    def _drop_prompts(self) -> None:
        super()._drop_prompts()
        for flight in self._flights:
            flight.launched.forget()
            self._written |= {lane.index for lane in flight.open}
        self._flights.clear()

    def _forget_empty(self) -> None:
        """Leave rounds unread whose requests have all ended before."""
        for flight in list(self._flights):
            if all(lane.done for lane in flight.lanes):
                flight.launched.forget()
                self._flights.remove(flight)

    @property
    def _unread(self) -> int:
        """Rounds in the air."""
        return sum(flight.rounds for flight in self._flights)

    def _left(self, who: I64) -> I64:
        """Tokens that lanes may still emit after all rounds in the air, each of which emits one or more."""
        left = self._ends[who] - self._lengths[who]
        for flight in self._flights:
            # an index goes on to the next request
            there = flight.turn[who] == self._turn[who]
            left -= flight.rounds * there
        return left

    def _launch(self, lanes: Sequence[Lane]) -> bool:
        """Queue rounds of these lanes if it is time; returns whether it was."""
        flights = self._flights
        # a chain that waits behind other rounds leaves the host time enough
        if len(flights) > AHEAD or (len(flights) > 1 and flights[-1].rounds > 1):
            return False
        unread, who = self._unread, indices(lanes)
        left = self._left(who)
        more = left > 0
        if not more.any():
            return False
        who, going = who[more], [lane for lane, goes in zip(lanes, more.tolist(), strict=True) if goes]
        context = self._context(who) + self._emitted * unread
        ahead = self.control.foresee(who, context, unread + self.ladder.longest_chain)
        shapes = Shapes.of(who, ahead.at(unread), len(self._ends))
        rounds = self.ladder.rung(shapes.deepest).chained.plan.chain
        lasting = ahead.last(unread, rounds) and int(left.max()) >= rounds
        steady = self._steady >= STEADY and not ahead.lasts
        chain = lasting and (ahead.together(unread, rounds) or steady)
        if len(flights) > 1 if chain else unread >= ahead.sure:
            return False
        launched = self.ladder.launch(self._reach(who), shapes, chain)
        turn = np.full_like(self._turn, -1)
        turn[who] = self._turn[who]
        flights.append(_Flight(launched, going, shapes, turn))
        return True

    def _context(self, who: I64) -> float:
        """Mean length of these lanes' trunks, as far as they were read."""
        return int(self._lengths[who].sum()) / len(who)

    def _reach(self, who: I64) -> int:
        """Tokens that the longest trunk may come to with all rounds in the air."""
        most = self.ladder.plan.shape.length + 1
        return int(self._lengths[who].max()) + most * self._unread

    def _take_in(self, flight: _Flight, sink: Sink) -> None:
        """Let the control ask for rounds that have run; take them in as long as that is how they ran."""
        lanes = flight.open
        who = np.sort(indices(lanes))
        landed: _Landed | None = None
        place = 0
        while place < flight.rounds and len(who):
            asked = self.control.ask(who, self._context(who))
            if not self._ran_so(flight, who, asked):
                break
            if landed is None:
                landed = self._read(flight, lanes)
            landing = landed.landing
            if not self.quiet:
                landed.states.append(self.control.states(who))
            self._listen(landing, place)
            self.control.learn(who, asked, landing.count[place, who], landed.depths[place, who])
            emitted = landing.emitted[place, who]
            self._emitted = int(emitted.sum()) / len(who)
            self._lengths[who] += emitted
            place += 1
            who = landing.open[place].nonzero()[0] if place < flight.rounds else who
        if landed is not None:
            self._commit(flight, landed, place, sink)
        if place < flight.rounds and len(who):
            self._go_back(flight, flight.rounds - place)

    def _ran_so(self, flight: _Flight, who: I64, asked: Asked) -> bool:
        """Whether the lanes ran in these shapes; takes note of how long these have lasted."""
        now = Shapes.of(who, asked, len(self._last.length))
        self._steady = self._steady + 1 if self._last.agree(now, who) else 0
        self._last = now
        return flight.shapes.agree(now, who)

    def _read(self, flight: _Flight, lanes: Sequence[Lane]) -> _Landed:
        records = flight.launched.read()
        depths = _depths(records["node_token"], self.ladder.plan.shape.branches)
        return _Landed(records, self._landing(self.groups[0], records, lanes), depths, [])

    def _commit(self, flight: _Flight, landed: _Landed, rounds: int, sink: Sink) -> None:
        """Give lanes the tokens of the first rounds, and the sink their rows."""
        landing, step = landed.landing, self._step
        landing.settle(rounds)
        self._step += rounds
        if self.quiet:
            return
        rows = landing.rows()
        shapes = flight.shapes.length[rows.lane], flight.shapes.branches[rows.lane]
        batch = landing.open.sum(1)[rows.record]
        numbers = RoundNumbers(*rows, batch, step + rows.record, *shapes)
        maker = flight.launched.maker
        self._hand_over(maker, landed.records, numbers, landing, sink, landed.states)

    def _go_back(self, flight: _Flight, rounds: int) -> None:
        """Undo the last rounds of this flight, and all that were queued after it."""
        self._steady = 0
        lanes = {lane.index: lane for lane in flight.open}
        self.wasted_rounds += len(lanes) * rounds
        flight.launched.forget()
        for one in self._flights:
            one.launched.forget()
            self.wasted_rounds += len(one.open) * one.rounds
            lanes |= {lane.index: lane for lane in one.open}
        self._flights.clear()
        self.ladder.hold(list(lanes.values()))

    def _still_queued(self, lane: Lane) -> int:
        return sum(one.rounds for one in self._flights if any(lane is other for other in one.lanes))


def _depths(tokens: I64, branches: int) -> I64:
    """How deep trees `[rounds, lanes, nodes]` are, of which -1 is no node."""
    depths = 1 + np.arange(tokens.shape[2], dtype=np.int64) // branches
    deepest: I64 = np.where(tokens >= 0, depths, 0).max(2, initial=0)
    return deepest
