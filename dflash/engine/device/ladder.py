"""Device rounds of several lengths over the same lanes: every round takes the shortest that holds its lanes.

Plain rounds keep their taps in a ring; a drafter's context takes them in when drafting resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash.drafters.base import DraftShape
from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.device.arrays import Records
from dflash.engine.device.plan import RoundPlan, chain_of
from dflash.engine.device.prompt_records import PromptRecord
from dflash.engine.device.round import DeviceRound
from dflash.engine.device.rows import RoundRows
from dflash.engine.device.shared import RoundShared
from dflash.engine.lane import Lane
from dflash.kernels.round_cut import RoundLimits
from dflash.kernels.round_taps import TapRing, pending_rows
from dflash.policy.control.base import Asked
from dflash.policy.noise import I64
from dflash.target.native import NativeTrunk
from dflash.target.native_layers import KeyValue
from dflash.target.staging import Staging

# plain rounds between two times that a drafter's contexts are brought up to the trunks' ends
RING = 256


class Rung(NamedTuple):
    """Rounds of one length, one by one and in a chain, and what makes their rows."""

    single: DeviceRound
    chained: DeviceRound
    maker: RoundRows

    def of(self, chain: bool) -> DeviceRound:
        """One round, or a chain of them."""
        return self.chained if chain else self.single


class Launched(NamedTuple):
    """Rounds that were queued, what makes their rows, and the ticket of their records."""

    rounds: DeviceRound
    maker: RoundRows
    ticket: int

    def read(self) -> Records:
        """Wait for the records."""
        return self.rounds.read(self.ticket)

    def forget(self) -> None:
        """Never read the records."""
        self.rounds.forget(self.ticket)


class Shapes(NamedTuple):
    """What every lane of an engine drafts; those that do not take part draft nothing.

    Attributes:
        length: `[lanes]`; `branches` likewise.
    """

    length: I64
    branches: I64

    @classmethod
    def none(cls, lanes: int) -> Shapes:
        """No lane takes part."""
        return cls(np.zeros(lanes, np.int64), np.zeros(lanes, np.int64))

    @classmethod
    def of(cls, who: I64, asked: Asked, lanes: int) -> Shapes:
        """What was asked for in the lanes of these indices."""
        found = cls.none(lanes)
        found.length[who], found.branches[who] = asked.length, asked.branches
        return found

    @property
    def deepest(self) -> int:
        """The longest draft."""
        return int(self.length.max())

    def agree(self, other: Shapes, who: I64) -> bool:
        """Whether some lanes draft the same in both."""
        same = (self.length == other.length) & (self.branches == other.branches)
        return bool(same[who].all())


def rung_lengths(longest: int) -> list[int]:
    """No draft, those that fill a power of two of rows with their anchor, and the longest."""
    full = ((1 << step) - 1 for step in range(longest.bit_length()))
    return sorted({0, longest, *full})


class RoundLadder:
    """Rounds of all lanes of an engine, each lane in a shape of its own.

    Attributes:
        rungs: by length, from 0 to that of the whole tree.
        longest_chain: rounds that are queued at once, at most.
        caught_up: recorded whenever the drafter's contexts were brought up to the ends of trunks; None
            where nothing runs at the same time.
        shared: what all of them know of the requests.
    """

    def __init__(
        self, trunk: NativeTrunk, drafter: BlockFamily | None, plan: RoundPlan, eos: Sequence[int]
    ) -> None:
        self.trunk, self.drafter, self.plan = trunk, drafter, plan
        lanes, device = trunk.cache.lanes, trunk.device
        ring = None
        if drafter is not None:
            like = trunk.step.embedding.new_empty(0, len(trunk.taps) * int(trunk.config.hidden_size))
            ring = TapRing.make(lanes, RING, like)
        self._told = torch.zeros(2 * lanes, dtype=torch.int32, device=device)
        self._staging = Staging(2 * lanes, Tensor.numpy, device)
        limits = RoundLimits(*self._told.view(2, lanes))
        self.shared = RoundShared(lanes, device, limits, ring)
        self.rungs = [self._rung(length, eos) for length in rung_lengths(plan.shape.length)]
        self.longest_chain = max(rung.chained.plan.chain for rung in self.rungs)
        self._limits = Shapes.none(lanes)
        self._pending = 0
        self._ready = False
        self.caught_up = torch.cuda.Event() if device.type == "cuda" else None

    def _rung(self, length: int, eos: Sequence[int]) -> Rung:
        plan = replace(self.plan, shape=DraftShape(length, self.plan.shape.branches))
        single, chained = (
            DeviceRound(self.trunk, self.drafter, replace(plan, chain=chain), eos, self.shared)
            for chain in (1, chain_of(length))
        )
        return Rung(single, chained, single.row_maker())

    def hold(self, lanes: Sequence[Lane], *, fresh: bool = False, unread: PromptRecord | None = None) -> None:
        """Let lanes stand at the ends of their trunks.

        Args:
            lanes: whose rounds that were queued meanwhile count for nothing.
            fresh: whether the drafter's contexts end there, too, as after a prompt.
            unread: see `RoundShared.hold`.
        """
        heat = self.rungs[-1].single.heat
        self.shared.hold(lanes, heat, fresh=fresh, unread=unread)
        if any(heat(each) > 0 for each in {lane.request.sampling.temperature for lane in lanes}):
            for rung in self.rungs:
                rung.single.drawn = rung.chained.drawn = True
        if (ring := self.shared.ring) is not None and not fresh:
            torch.minimum(ring.known, self.shared.lanes.lengths, out=ring.known)

    def close(self, index: int) -> None:
        """Let a lane rest."""
        self.shared.rest(index)

    def rung(self, deepest: int) -> Rung:
        """The shortest rung that holds drafts of a length."""
        return next((rung for rung in self.rungs if rung.single.tree.length >= deepest), self.rungs[-1])

    def ready(self, longest: int) -> None:
        """Capture the rounds of all rungs, once, for trunks of so many tokens."""
        if self._ready:
            return
        for rung in self.rungs:
            rung.single.ready(longest)
            rung.chained.ready(longest)
        self._ready = True

    def launch(self, longest: int, shapes: Shapes, chain: bool) -> Launched:
        """Queue a round, or a chain of them.

        Args:
            longest: tokens that the longest trunk may come to before that.
            shapes: of all lanes.
            chain: whether there are to be several.
        """
        self.ready(longest)
        rung = self.rung(shapes.deepest)
        rounds = rung.of(chain)
        self._limit(shapes)
        self._keep_context(0 if rounds.tree.nodes else rounds.plan.chain, longest)
        return Launched(rounds, rung.maker, rounds.launch(longest))

    def _limit(self, shapes: Shapes) -> None:
        """Tell the device, unless it knows; rounds without drafts never look."""
        if not shapes.deepest:
            return
        if not self._limits.agree(shapes, np.arange(len(shapes.length))):
            self._limits = shapes
            block = self._staging.take()
            block.form[:] = np.concatenate(shapes)
            self._staging.send(block, self._told)

    def _keep_context(self, plain: int, longest: int) -> None:
        """See to it that the ring has room for some plain rounds, or nothing where drafting goes on."""
        if self.shared.ring is None:
            return
        if self._pending and (not plain or self._pending + plain > RING):
            self.catch_up(longest)
        if plain and not self._pending:
            self.shared.ring.known.copy_(self.shared.lanes.lengths)
        self._pending += plain

    @torch.inference_mode()
    def catch_up(self, longest: int) -> None:
        """Let the drafter's contexts take in what plain rounds have left in the ring.

        Args:
            longest: tokens of the longest trunk at most.
        """
        ring, drafter = self.shared.ring, self.drafter
        if ring is None or drafter is None or drafter.native is None or not self._pending:
            return
        lengths = self.shared.lanes.lengths
        stores = drafter.cache.whole(longest + drafter.config.block_size)
        cache = [KeyValue(*pair) for pair in stores]
        drafter.native.reserve(cache[0].keys.shape[2])
        rows = pending_rows(ring, lengths, 1 << (self._pending - 1).bit_length())
        drafter.native.project(*rows, cache)
        ring.known.copy_(lengths)
        self._pending = 0
        if self.caught_up is not None:
            self.caught_up.record(torch.cuda.current_stream(lengths.device))
