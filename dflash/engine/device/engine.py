"""The engine whose rounds run on the device: the host queues a chain of them, then reads the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.device.arrays import Arrays, Records
from dflash.engine.device.law import LaneLaw
from dflash.engine.device.round import DeviceRound
from dflash.engine.device.rows import REASONS, Chain, Place, RoundNumbers, RoundRows
from dflash.engine.lane import Emission, Lane, Truncation
from dflash.engine.loop import Engine, Sink
from dflash.engine.recorder.unmade import Unmade, hand_over
from dflash.kernels.round_finish import EOS, GOES_ON, LENGTH
from dflash.policy.context import DraftSampling
from dflash.target.scratch import Scratch

CODES = {Truncation(name): place for place, name in enumerate(REASONS)}
_REASONS = {GOES_ON: Truncation.NONE, EOS: Truncation.EOS, LENGTH: Truncation.LENGTH}


class _Flight(NamedTuple):
    """A chain that was queued and not read: its records, the lanes that it was for, its first round."""

    ticket: int
    lanes: list[Lane]
    step: int


class _Landed(NamedTuple):
    """A round of a lane that was read: its number in the request, and what it emitted."""

    place: Place
    lane: Lane
    number: int
    emission: Emission


class Said(NamedTuple):
    """What a chain's records say of the answers, as lists `[rounds, lanes]`."""

    live: list[list[int]]
    count: list[list[int]]
    bonus: list[list[int]]
    emitted: list[list[int]]
    reason: list[list[int]]
    path: list[list[list[int]]]
    node_token: list[list[list[int]]]

    @classmethod
    def of(cls, records: Arrays) -> Said:
        """Read records."""
        return cls(*(records[name].tolist() for name in cls._fields))

    def tokens(self, place: Place) -> list[int]:
        """Accepted nodes' tokens and the target's own."""
        record, lane = place
        drafted = self.node_token[record][lane]
        path = self.path[record][lane][: self.count[record][lane]]
        return [*(drafted[node] for node in path), self.bonus[record][lane]]

    def end(self, place: Place) -> Emission:
        """How many of them the device has kept, and why no more."""
        record, lane = place
        return Emission(self.emitted[record][lane], _REASONS[self.reason[record][lane]])


class DeviceEngine(Engine):
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
        self._flying: _Flight | None = None

    def warm_up(self, context: int) -> None:
        """As `Engine.warm_up`; rounds are captured, too."""
        super().warm_up(context)
        self.rounds.ready(context)

    def _prefill(self, lane: Lane, sink: Sink) -> None:
        super()._prefill(lane, sink)
        self._hold(lane)

    def _hold(self, lane: Lane) -> None:
        """Tell the device of a lane whose prompt is read."""
        if not lane.done:
            self.rounds.open(lane)

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

    def round(self, lanes: Sequence[Lane], sink: Sink) -> None:
        """Queue a chain of rounds of every open lane, and take in the chain before."""
        before, chain = self._flying, self.rounds.plan.chain
        self._flying = None
        # every round of a live lane emits a token
        ahead = 0 if before is None else chain
        if any(lane.request.max_new_tokens - len(lane.output) > ahead for lane in lanes):
            longest = max(len(lane.trunk) for lane in lanes)
            self._flying = _Flight(self.rounds.launch(longest), list(lanes), self._step)
            self._step += chain
        if before is not None:
            self._land(before, sink)

    def _land(self, flight: _Flight, sink: Sink) -> None:
        """Read a chain's records and hand out their rows."""
        if all(lane.done for lane in flight.lanes):
            return
        records = self.rounds.read(flight.ticket)
        said = Said.of(records)
        landed: list[_Landed] = []
        for which in range(self.rounds.plan.chain):
            for lane in flight.lanes:
                if not lane.done:
                    place = Place(which, lane.index)
                    landed.append(_Landed(place, lane, lane.rounds, self._emit(lane, said, place)))
        if not self.quiet:
            self._tell(flight, records, landed, sink)

    def _tell(self, flight: _Flight, records: Records, landed: Sequence[_Landed], sink: Sink) -> None:
        """Give the sink the rows of what has landed."""
        known = [(*place, number, emitted, CODES[reason]) for place, _, number, (emitted, reason) in landed]
        record, index, number, emitted, reason = np.array(known, np.int64).T
        batch, step = records["live"].sum(1)[record], flight.step + record
        shape = self.rounds.plan.shape
        full = np.full((2, len(landed)), [[shape.length], [shape.branches]])
        numbers = RoundNumbers(record, index, number, emitted, reason, batch, step, *full)
        self._hand_over(self._maker, Chain.of(records, numbers, self._laws(flight.lanes)), flight.lanes, sink)

    def _hand_over(self, maker: RoundRows, chain: Chain, lanes: Sequence[Lane], sink: Sink) -> None:
        rows = Unmade.now(chain.numbers[1], maker, chain, chain.size)
        hand_over(sink, {lane.index: lane for lane in lanes}, rows)

    def _laws(self, lanes: Sequence[Lane]) -> dict[int, LaneLaw]:
        """How the requests of lanes draw, by lane."""
        heats = {lane.index: lane.request.sampling.temperature for lane in lanes}
        laws = {heat: LaneLaw(heat, self._drawn(heat)) for heat in set(heats.values())}
        return {index: laws[heat] for index, heat in heats.items()}

    def _emit(self, lane: Lane, said: Said, place: Place) -> Emission:
        """Give a lane a round's tokens; the device has ended it where the host ends it."""
        found = lane.emit(said.tokens(place))
        lane.rounds += 1
        if found.truncated_by is Truncation.STOP:
            self._count_wasted(said, place)
        elif found != said.end(place):
            raise RuntimeError(f"the device ended a request by {said.end(place)}, the host by {found}")
        return found

    def _count_wasted(self, said: Said, place: Place) -> None:
        """Count the rounds that a lane has begun after its stop string."""
        after = [live[place.lane] for live in said.live[place.record + 1 :]]
        goes_on = all(after) and said.end(place).truncated_by is Truncation.NONE
        self.wasted_rounds += sum(after)
        if goes_on and self._flying is not None:
            self.wasted_rounds += self.rounds.plan.chain

    def _drawn(self, temperature: float) -> DraftSampling | None:
        """How q is made in requests of a temperature; None where tokens are not drawn."""
        sampling = self.drafter.sampling_at(temperature)
        return sampling if sampling.temperature > 0 and self.rounds.tree.nodes else None
