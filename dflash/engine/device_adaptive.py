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
from dflash.engine.device_engine import DeviceEngine, Said
from dflash.engine.device_ladder import RoundLadder, Rung
from dflash.engine.device_law import LaneLaw
from dflash.engine.device_record import Arrays
from dflash.engine.device_rows import Place, features_of, times_of
from dflash.engine.lane import Emission, Lane, Truncation
from dflash.engine.loop import Sink
from dflash.policy.control.base import Asked, Control, Learning
from dflash.policy.noise import I64

AHEAD = 2


class _Queued(NamedTuple):
    """A round that was queued and not read: where its record will be, its lanes, and their shapes."""

    rung: Rung
    ticket: int
    lanes: dict[int, Lane]
    shapes: dict[int, DraftShape]


def rounds_ahead(control: Control) -> int:
    """How many rounds may be queued unread while another is: what they come to must not decide about it."""
    return min(control.delay, AHEAD) if isinstance(control, Learning) else AHEAD


class AdaptiveEngine(DeviceEngine):
    """Decodes like `DeviceEngine`, in shapes that change from round to round.

    Attributes:
        ladder: what runs on the device.
        wasted_rounds: rounds of lanes that had met their stop string already, or that ran in another shape
            than the control asked for once all before them were known.
    """

    def __init__(self, *parts: Any, ladder: RoundLadder, **more: Any) -> None:
        super().__init__(*parts, rounds=ladder.rungs[-1].rounds, **more)
        self.ladder = ladder
        self.ahead = rounds_ahead(self.control.policy.control)
        self._flights: deque[_Queued] = deque()
        self._emitted = 1.0

    def _hold(self, lane: Lane) -> None:
        self.ladder.hold([lane], fresh=True)

    def _close(self, lane: Lane, sink: Sink) -> None:
        if self.dense is not None:
            self.ladder.catch_up(self._reach([lane]))
        super()._close(lane, sink)

    def round(self, lanes: Sequence[Lane], sink: Sink) -> None:
        """Queue rounds ahead, and take in the oldest that is unread."""
        self._forget_empty()
        while len(self._flights) <= self.ahead and (going := self._going_on(lanes)):
            self._launch(going)
        self._take_in(self._flights.popleft(), sink)

    def _forget_empty(self) -> None:
        """Leave rounds unread whose requests have all ended before."""
        for flight in list(self._flights):
            if all(lane.done for lane in flight.lanes.values()):
                flight.rung.rounds.forget(flight.ticket)
                self._flights.remove(flight)

    def _going_on(self, lanes: Sequence[Lane]) -> list[Lane]:
        """The lanes that may be live after all rounds in the air, each of which emits a token or more."""
        return [
            lane for lane in lanes if lane.request.max_new_tokens - len(lane.output) > self._in_the_air(lane)
        ]

    def _in_the_air(self, lane: Lane) -> int:
        return sum(flight.lanes.get(lane.index) is lane for flight in self._flights)

    def _launch(self, lanes: list[Lane]) -> None:
        steps = len(self._flights)
        if steps:
            context = np.mean([len(lane.trunk) + self._emitted * self._in_the_air(lane) for lane in lanes])
            asked = self.control.foresee(lanes, steps, float(context))
        else:
            asked = self.control.ask(lanes)
        shapes = _shapes(lanes, asked)
        launched = self.ladder.launch(self._reach(lanes), shapes)
        self._flights.append(_Queued(*launched, {lane.index: lane for lane in lanes}, shapes))

    def _reach(self, lanes: Sequence[Lane]) -> int:
        """Tokens that the longest trunk may come to with all rounds in the air."""
        most = self.ladder.plan.shape.length + 1
        return max(len(lane.trunk) for lane in lanes) + len(self._flights) * most

    def _take_in(self, flight: _Queued, sink: Sink) -> None:
        """Let the control ask for a round that has run; take it in if that is how it ran."""
        lanes = [lane for lane in flight.lanes.values() if not lane.done]
        asked = self.control.ask(lanes)
        shapes = _shapes(lanes, asked)
        if any(shapes[lane.index] != flight.shapes[lane.index] for lane in lanes):
            self._go_back(flight)
            return
        texts = [] if self.quiet else self.control.texts(lanes)
        records = flight.rung.rounds.read(flight.ticket)
        said = Said.of(records)
        emissions = [self._emit(lane, said, Place(0, lane.index)) for lane in lanes]
        self._emitted = float(np.mean([emission.emitted for emission in emissions]))
        if not self.quiet:
            self._give(flight, records, lanes, emissions, texts, sink)
        where = [lane.index for lane in lanes]
        depths = _depths(records, where, self.ladder.plan.shape.branches)
        self.control.learn(lanes, asked, records["count"][0, where].astype(np.int64), depths)
        self._step += 1

    def _go_back(self, flight: _Queued) -> None:
        """Undo this round and all that were queued after it."""
        flights = [flight, *self._flights]
        self._flights.clear()
        lanes: dict[int, Lane] = {}
        for one in flights:
            one.rung.rounds.forget(one.ticket)
            open_lanes = {index: lane for index, lane in one.lanes.items() if not lane.done}
            lanes |= open_lanes
            self.wasted_rounds += len(open_lanes)
        self.ladder.hold(list(lanes.values()))

    def _give(
        self, flight: _Queued, records: Arrays, lanes: Sequence[Lane], emissions: Sequence[Emission],
        texts: Sequence[str], sink: Sink,
    ) -> None:  # fmt: skip
        """Give the sink the rows of a round."""
        places = [Place(0, lane.index) for lane in lanes]
        laws = [LaneLaw(lane.request.sampling, self._drawn(lane)) for lane in lanes]
        shapes = [flight.shapes[lane.index] for lane in lanes]
        rows = flight.rung.maker.rows(records, places, laws, shapes)
        shared = {"batch_size": len(lanes), "step": self._step, **times_of(records, 0)}
        for lane, place, emission, text, row in zip(lanes, places, emissions, texts, rows, strict=True):
            row |= {"round": lane.rounds - 1, "emitted": emission.emitted, "control_state": text, **shared}
            row["truncated_by"] = str(emission.truncated_by)
            if self.features is not None:
                row |= features_of(records, place)
            sink.row(lane, row)

    def _count_wasted(self, said: Said, place: Place) -> None:
        """Count the rounds that a lane has begun after its stop string."""
        if said.end(place).truncated_by is Truncation.NONE:
            self.wasted_rounds += len(self._flights)


def _shapes(lanes: Sequence[Lane], asked: Asked) -> dict[int, DraftShape]:
    """What each lane is to draft."""
    pairs = zip(lanes, asked.length.tolist(), asked.branches.tolist(), strict=True)
    return {lane.index: DraftShape(length, branches) for lane, length, branches in pairs}


def _depths(records: Arrays, lanes: Sequence[int], branches: int) -> I64:
    """How deep the trees of lanes are."""
    there = records["node_token"][0, lanes] >= 0
    depths = 1 + np.arange(there.shape[1], dtype=np.int64) // branches
    deepest: I64 = np.where(there, depths, 0).max(1, initial=0)
    return deepest
