"""The engine whose rounds run on the device: the host queues one round, then reads the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.device_law import LaneLaw
from dflash.engine.device_round import DeviceRound
from dflash.engine.device_rows import RowMaker, features_of, times_of
from dflash.engine.lane import Emission, Lane, Truncation
from dflash.engine.loop import Engine, Sink
from dflash.kernels.round_finish import EOS, GOES_ON, LENGTH
from dflash.policy.context import DraftSampling
from dflash.target.scratch import Scratch

_REASONS = {GOES_ON: Truncation.NONE, EOS: Truncation.EOS, LENGTH: Truncation.LENGTH}


class _Flight(NamedTuple):
    """A round that was queued and not read: its record, the lanes that it was for, its number."""

    ticket: int
    lanes: list[Lane]
    step: int


class DeviceEngine(Engine):
    """Decodes like `Engine`, with rounds that never wait for the host.

    Acceptance, and ends by an end-of-text token or by length, are decided on the device. Stop strings are
    found when the host reads a round, one round late: the round that the lane has begun by then is dropped.

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
        tree = rounds.tree
        parents = tree.parents[0].tolist() if tree.nodes else []
        self._maker = RowMaker(parents, tree.expanded, tree.branches, rounds.plan.store_topk)
        self._flying: _Flight | None = None

    def _prefill(self, lane: Lane, sink: Sink) -> None:
        super()._prefill(lane, sink)
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
        """Queue a round of every open lane, and take in the round before."""
        before, step = self._flying, self._step
        longest = max(len(lane.trunk) for lane in lanes)
        self._flying = _Flight(self.rounds.launch(longest), list(lanes), step)
        self._step += 1
        if before is not None:
            self._land(before, sink)

    def _land(self, flight: _Flight, sink: Sink) -> None:
        """Read a round's record and hand out its rows."""
        waiting = [lane for lane in flight.lanes if not lane.done]
        if not waiting:
            return
        record = self.rounds.read(flight.ticket)
        emissions = [self._emit(lane, record) for lane in waiting]
        if self.quiet:
            return
        shared = {"step": flight.step, "batch_size": len(flight.lanes), **times_of(record)}
        laws = [LaneLaw(lane.request.sampling, self._drawn(lane)) for lane in waiting]
        rows = self._maker.rows(record, [lane.index for lane in waiting], laws)
        for lane, emission, row in zip(waiting, emissions, rows, strict=True):
            row |= {"round": lane.rounds - 1, "emitted": emission.emitted, **shared}
            row["truncated_by"] = str(emission.truncated_by)
            if self.features is not None:
                row |= features_of(record, lane.index)
            sink.row(lane, row)

    def _emit(self, lane: Lane, record: Any) -> Emission:
        """Give a lane the round's tokens; the device has ended it where the host ends it."""
        index = lane.index
        nodes = record["path"][index, : record["count"][index]]
        tokens = [*record["node_token"][index, nodes].tolist(), int(record["bonus"][index])]
        found = lane.emit(tokens)
        lane.rounds += 1
        said = Emission(int(record["emitted"][index]), _REASONS[int(record["reason"][index])])
        if found.truncated_by is Truncation.STOP:
            self.wasted_rounds += said.truncated_by is Truncation.NONE
        elif found != said:
            raise RuntimeError(f"the device ended a request by {said}, the host by {found}")
        return found

    def _drawn(self, lane: Lane) -> DraftSampling | None:
        """How q is made in a lane's request; None where tokens are not drawn."""
        sampling = self.drafter.sampling_at(lane.request.sampling.temperature)
        return sampling if sampling.temperature > 0 and self.rounds.tree.nodes else None
