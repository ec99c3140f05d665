"""The engine of adaptive control on the device: rounds are queued ahead in the shapes that the host foresees.

The control itself runs when a round is read, just as it does for rounds through the host. A round in another
shape than it then asks for counts for nothing: its lanes go back, and it runs again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dflash.drafters.base import DraftShape
from dflash.engine.device.arrays import Records
from dflash.engine.device.engine import CODES, DeviceEngine, Said
from dflash.engine.device.ladder import Launched, RoundLadder
from dflash.engine.device.rows import Chain, Place, RoundNumbers
from dflash.engine.lane import Emission, Lane, Truncation
from dflash.engine.loop import Sink
from dflash.policy.control.base import Asked, Control, Learning
from dflash.policy.noise import I64

AHEAD = 2
# a window changes no sooner than 8 rounds after its last change
STEADY = 16

Shapes = dict[int, DraftShape]


class _Flight(NamedTuple):
    """Rounds that were queued and not read, their lanes, and what these draft in all of them."""

    launched: Launched
    lanes: dict[int, Lane]
    shapes: Shapes

    @property
    def rounds(self) -> int:
        """How many."""
        return self.launched.rounds.plan.chain

    @property
    def open(self) -> list[Lane]:
        """The lanes whose requests go on, as far as the host knows."""
        return [lane for lane in self.lanes.values() if not lane.done]


class _Told(NamedTuple):
    """A round that was taken in, of its lanes in order: their numbers in the requests, and more."""

    place: int
    step: int
    lanes: list[Lane]
    numbers: list[int]
    emissions: list[Emission]
    texts: list[str]


def rounds_ahead(control: Control) -> int:
    """How many rounds may be queued unread while another is: what they come to must not decide about it."""
    return min(control.delay, AHEAD) if isinstance(control, Learning) else AHEAD


class AdaptiveEngine(DeviceEngine):
    """Decodes like `DeviceEngine`, in shapes that change from round to round.

    While shapes change, rounds are queued one by one, no further ahead than outcomes are known that decide
    about them. Once they have been steady for a while, rounds are queued in chains.

    Attributes:
        ladder: what runs on the device.
        wasted_rounds: rounds of lanes that had met their stop string already, or that ran in another shape
            than the control asked for once all before them were known.
    """

    def __init__(self, *parts: Any, ladder: RoundLadder, **more: Any) -> None:
        super().__init__(*parts, rounds=ladder.rungs[-1].single, **more)
        self.ladder = ladder
        self.ahead = rounds_ahead(self.control.policy.control)
        self._flights: deque[_Flight] = deque()
        self._emitted = 1.0
        self._steady = 0
        self._shapes: Shapes = {}

    def warm_up(self, context: int) -> None:
        """As `Engine.warm_up`; rounds of all lengths are captured, too."""
        super().warm_up(context)
        self.ladder.ready(context)

    def _hold(self, lane: Lane) -> None:
        self.ladder.hold([lane], fresh=True)

    def _close(self, lane: Lane, sink: Sink) -> None:
        if self.dense is not None:
            self.ladder.catch_up(self._reach([lane]))
        super()._close(lane, sink)

    def round(self, lanes: Sequence[Lane], sink: Sink) -> None:
        """Queue rounds ahead, and take in the oldest that are unread."""
        self._forget_empty()
        while (going := self._going_on(lanes)) and self._launch(going):
            pass
        self._take_in(self._flights.popleft(), sink)

    def _forget_empty(self) -> None:
        """Leave rounds unread whose requests have all ended before."""
        for flight in list(self._flights):
            if not flight.open:
                flight.launched.forget()
                self._flights.remove(flight)

    def _going_on(self, lanes: Sequence[Lane]) -> list[Lane]:
        """The lanes that may be live after all rounds in the air, each of which emits a token or more."""
        air = self._in_the_air()
        return [lane for lane in lanes if _left(lane) > air.get(id(lane), 0)]

    @property
    def _unread(self) -> int:
        """Rounds in the air."""
        return sum(flight.rounds for flight in self._flights)

    def _in_the_air(self) -> dict[int, int]:
        """Rounds in the air of each lane, by its identity: a request's index goes on to the next."""
        found: dict[int, int] = {}
        for flight in self._flights:
            for lane in flight.lanes.values():
                found[id(lane)] = found.get(id(lane), 0) + flight.rounds
        return found

    def _launch(self, lanes: list[Lane]) -> bool:
        """Queue rounds of these lanes if it is time; returns whether it was."""
        steps = self._unread
        alone = steps > self.ahead
        if alone and (self._steady < STEADY or len(self._flights) > 1):
            return False
        shapes = self._foresee(lanes, steps)
        chain = self._steady >= STEADY and self._holds(lanes, shapes, steps)
        if alone and not chain:
            return False
        launched = self.ladder.launch(self._reach(lanes), shapes, chain)
        self._flights.append(_Flight(launched, {lane.index: lane for lane in lanes}, shapes))
        return True

    def _foresee(self, lanes: Sequence[Lane], steps: int) -> Shapes:
        """What the control will ask for after so many steps; exact for none."""
        if not steps:
            return _shapes(lanes, self.control.ask(lanes))
        more = steps - self._unread
        air = self._in_the_air()
        contexts = [len(lane.trunk) + self._emitted * (air.get(id(lane), 0) + more) for lane in lanes]
        return _shapes(lanes, self.control.foresee(lanes, steps, float(np.mean(contexts))))

    def _holds(self, lanes: Sequence[Lane], shapes: Shapes, steps: int) -> bool:
        """Whether shapes are likely to last for a chain of rounds, and a request for as long."""
        deepest = max(shape.length for shape in shapes.values())
        rounds = self.ladder.rung(deepest).chained.plan.chain
        air = self._in_the_air()
        left = max(_left(lane) - air.get(id(lane), 0) for lane in lanes)
        return left >= rounds and self._foresee(lanes, steps + rounds - 1) == shapes

    def _reach(self, lanes: Sequence[Lane]) -> int:
        """Tokens that the longest trunk may come to with all rounds in the air."""
        most = self.ladder.plan.shape.length + 1
        return max(len(lane.trunk) for lane in lanes) + most * self._unread

    def _take_in(self, flight: _Flight, sink: Sink) -> None:
        """Let the control ask for rounds that have run; take them in as long as that is how they ran."""
        records: Records | None = None
        told: list[_Told] = []
        for place in range(flight.rounds):
            if not (lanes := flight.open):
                break
            asked = self.control.ask(lanes)
            if not self._ran_so(flight, _shapes(lanes, asked)):
                self._go_back(flight, flight.rounds - place)
                break
            if records is None:
                records = flight.launched.read()
                said = Said.of(records)
            told.append(self._tell_round(lanes, said, place))
            where = [lane.index for lane in lanes]
            depths = _depths(records["node_token"][place, where], self.ladder.plan.shape.branches)
            self.control.learn(lanes, asked, records["count"][place, where].astype(np.int64), depths)
        if records is not None and not self.quiet:
            self._give(flight, records, told, sink)

    def _ran_so(self, flight: _Flight, shapes: Shapes) -> bool:
        """Whether the lanes ran in these shapes; takes note of how long these have lasted."""
        same = all(self._shapes.get(index, shape) == shape for index, shape in shapes.items())
        self._steady = self._steady + 1 if same else 0
        self._shapes = shapes
        return all(flight.shapes[index] == shape for index, shape in shapes.items())

    def _tell_round(self, lanes: list[Lane], said: Said, place: int) -> _Told:
        """Give lanes their tokens of a round."""
        texts = [] if self.quiet else self.control.texts(lanes)
        numbers = [lane.rounds for lane in lanes]
        emissions = [self._emit(lane, said, Place(place, lane.index)) for lane in lanes]
        self._emitted = sum(emission.emitted for emission in emissions) / len(lanes)
        self._step += 1
        return _Told(place, self._step - 1, lanes, numbers, emissions, texts)

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

    def _give(self, flight: _Flight, records: Records, told: Sequence[_Told], sink: Sink) -> None:
        """Give the sink the rows of rounds."""
        known = [
            (one.place, lane.index, number, emitted, CODES[reason], len(one.lanes), one.step)
            for one in told
            for lane, number, (emitted, reason) in zip(one.lanes, one.numbers, one.emissions, strict=True)
        ]
        shapes = [flight.shapes[lane.index] for one in told for lane in one.lanes]
        drafted = np.array([(shape.length, shape.branches) for shape in shapes], np.int64)
        numbers = RoundNumbers(*np.array(known, np.int64).T, *drafted.T)
        lanes = list({lane.index: lane for one in told for lane in one.lanes}.values())
        texts = [text for one in told for text in one.texts]
        chain = Chain.of(records, numbers, self._laws(lanes), texts)
        self._hand_over(flight.launched.maker, chain, lanes, sink)

    def _count_wasted(self, said: Said, place: Place) -> None:
        """Count the rounds that a lane has begun after its stop string."""
        after = [live[place.lane] for live in said.live[place.record + 1 :]]
        self.wasted_rounds += sum(after)
        if all(after) and said.end(place).truncated_by is Truncation.NONE:
            self.wasted_rounds += sum(one.rounds for one in self._flights if place.lane in one.lanes)


def _left(lane: Lane) -> int:
    """Tokens that a request may still emit."""
    return lane.request.max_new_tokens + len(lane.request.prompt_tokens) - len(lane.trunk)


def _shapes(lanes: Sequence[Lane], asked: Asked) -> Shapes:
    """What each lane is to draft."""
    pairs = zip(lanes, asked.length.tolist(), asked.branches.tolist(), strict=True)
    return {lane.index: DraftShape(length, branches) for lane, length, branches in pairs}


def _depths(tokens: I64, branches: int) -> I64:
    """How deep trees `[lanes, nodes]` are, of which -1 is no node."""
    depths = 1 + np.arange(tokens.shape[1], dtype=np.int64) // branches
    deepest: I64 = np.where(tokens >= 0, depths, 0).max(1, initial=0)
    return deepest
