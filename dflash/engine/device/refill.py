"""Prompts of lanes on the device, without the host: keys, values, the drafter's context, the first token.

They have buffers, graphs and a stream of their own, so that rounds of other lanes may run at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.drafters.base import Drafter
from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.device.arrays import ENDED, STARTED, Records
from dflash.engine.device.plan import PLAIN_CHAIN, RoundPlan
from dflash.engine.device.prompt_records import PromptRecord, PromptRecords
from dflash.engine.device.prompt_rows import PromptRows, Prompts
from dflash.engine.device.record import RecordSizes, layout_of, record_fields, record_words
from dflash.engine.device.shared import key_bits
from dflash.engine.device.views import Moves, RoundViews
from dflash.engine.features import SentLines
from dflash.engine.judge import Row
from dflash.engine.lane import Emission, Lane
from dflash.engine.recorder.unmade import Unmade
from dflash.kernels.ancestors import MAX_NODES
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_prints import project_rows, sign_words
from dflash.kernels.round_slots import SlotScratch, target_slots
from dflash.kernels.round_stamp import stamp
from dflash.target.lane_prefill import PIECES, Around, LanePrefill, size_of, sizes_up_to
from dflash.target.llama_step import StepOutput
from dflash.target.native import NativeTrunk
from dflash.target.native_layers import KeyValue, StepSpace
from dflash.target.prompt_inputs import Piece, pieces_of

MOST = PIECES[-1]
# words that a forward is told: whether its first prompt began before it, then of each prompt that ends in it
# the last token's position, the temperature and the key
_FIRST, _LENGTHS, _HEATS, _KEYS, _TOLD = 0, 4, 4 + MOST, 4 + 2 * MOST, 4 + 4 * MOST


class Refill(NamedTuple):
    """A forward that was queued and that prompts end with.

    Attributes:
        lanes: that these prompts fill.
        record: of their last tokens, in this order.
        rows: that were computed since the forward before that prompts end with.
        taps: of each prompt's tokens, if they are wanted.
        behind: whether it runs behind all rounds that were queued before it.
        kept: what goes to the host of the prompts' hidden states, once it is sent; nothing or one.
    """

    lanes: Sequence[Lane]
    record: PromptRecord
    rows: int
    taps: Sequence[Tensor | None]
    behind: bool
    kept: list[SentLines]


class _Part(NamedTuple):
    """A piece of a lane's prompt that no forward has taken yet."""

    piece: Piece
    lane: Lane
    in_turn: bool


class PromptRound:
    """Prompts of an engine's lanes, each a round without nodes at the prompt's last token.

    Up to eight pieces of the prompts that were added share a forward, in order; a prompt may begin in one
    and end in the next.

    Attributes:
        stream: that they run on; None where there are no streams.
        after: what they wait for that was recorded on another stream.
        round_streams: of rounds that run on other streams than the current one.
    """

    def __init__(self, trunk: NativeTrunk, drafter: Drafter, plan: RoundPlan, eos: Collection[int]) -> None:
        self.trunk, self.drafter, self.plan = trunk, drafter, plan
        device = trunk.device
        way = trunk.step.way
        self.way: dict[str, Any] = {"impl": way.impl, "pdl": way.pdl}
        self.steps = LanePrefill(trunk.step, MOST, _TOLD)
        self.tree = RoundTree.make(0, 1, MOST, device)
        width = len(trunk.taps) * int(trunk.config.hidden_size)
        sizes = RecordSizes(MOST, plan.top, 2, 0 if plan.projection is None else width, features=False)
        fields = record_fields(sizes, self.tree)
        self.record = torch.zeros((1, record_words(fields)), dtype=torch.int32, device=device)
        self.views = RoundViews.of(self.record[0], fields, Moves.make(MOST, self.tree, device))
        layout = layout_of(fields)
        self.eos = torch.tensor(sorted(eos), dtype=torch.int32, device=device)
        # as in `PromptRecord`
        self._begins = torch.zeros((2, MOST), dtype=torch.int32, device=device)
        self.records = PromptRecords(self.record, self._begins, layout)
        self.signs = None if plan.projection is None else sign_words(plan.projection)
        self.scratch = SlotScratch.make(MOST, trunk.vocabulary, 0, device)
        self.maker = PromptRows(Records(self.record.cpu().numpy(), layout), plan.store_topk)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.after: torch.cuda.Event | None = None
        self.round_streams: Sequence[torch.cuda.Stream] = ()
        self._resting = RoundLanes.make(MOST, device)
        self._parts: deque[_Part] = deque()
        self._taps: dict[int, list[Tensor]] = {}
        self._rows = 0
        self._wait()

    @property
    def _keeps_taps(self) -> bool:
        """Whether somebody wants taps who is not part of the graphs."""
        return self.plan.features is not None or (bool(self.drafter.taps) and self._native is None)

    @property
    def _native(self) -> BlockFamily | None:
        """The drafter, if its context is computed by the graphs."""
        drafter = self.drafter
        return drafter if isinstance(drafter, BlockFamily) and drafter.native is not None else None

    def warm_up(self, context: int) -> None:
        """Make buffers and graphs for prompts of up to so many tokens, where rounds go on behind them."""
        self.room(context + 2 * PLAIN_CHAIN * (self.plan.shape.length + 1))
        around = self._around()
        for pieces in sizes_up_to(self.trunk.cache.lanes, context):
            self.steps.ready(self.trunk.stores(), pieces, around)
        self._wait()

    def room(self, tokens: int) -> None:
        """Have room for trunks of so many tokens; nothing runs meanwhile where caches must move."""
        cache, native = self.trunk.cache, self._native
        needed = tokens + 2 * MAX_NODES
        contexts = () if native is None else native.cache.whole(0)
        held = 0 in cache.keys and (native is None or bool(contexts))
        if held and needed <= cache.capacity and (native is None or needed <= native.cache.capacity):
            return
        self._wait()
        if not self.trunk.pages(needed):
            cache.reserve(1 << max(4, (cache.capacity - 1).bit_length()))
        self.trunk.stores()
        if native is not None and native.native is not None:
            native.cache.extend(0, 0, native.native.empty_rows())
            native.cache.whole(needed)
            native.native.reserve(native.cache.capacity)
        self._wait()

    def _wait(self) -> None:
        if self.stream is not None:
            torch.cuda.synchronize(self.stream.device)

    def add(self, lane: Lane, *, in_turn: bool) -> None:
        """Take a lane's prompt; it runs once it is launched.

        Args:
            lane: whose request has not begun; nothing that is queued may read or write its rows any more.
            in_turn: whether it is to wait for all that is queued by then.
        """
        tokens = lane.request.prompt_tokens
        self.room(len(tokens))
        self.drafter.open(lane.index)
        self._parts += [_Part(piece, lane, in_turn) for piece in pieces_of(lane.index, 0, tokens)]

    @property
    def full(self) -> bool:
        """Whether there are as many pieces as a forward takes."""
        return len(self._parts) >= MOST

    def launch(self, *, rest: bool) -> Iterator[Refill]:
        """Queue forwards of what was added: full ones alone, or all that is needed for the `rest`, too."""
        while self.full or (rest and self._parts):
            parts = [self._parts.popleft() for _ in range(min(MOST, len(self._parts)))]
            with self.aside(in_turn=any(part.in_turn for part in parts)):
                refill = self._forward(parts)
            if refill is not None:
                yield refill

    def drop(self) -> None:
        """Forget what was added and not launched."""
        self._parts.clear()
        self._taps.clear()
        self._rows = 0

    @torch.inference_mode()
    def _forward(self, parts: Sequence[_Part]) -> Refill | None:
        """Queue one forward; None if no prompt ends with it."""
        ending = [part for part in parts if part.piece.last]
        pieces = [part.piece for part in parts]
        output = self.steps.forward(self.trunk.stores(), pieces, self._around(), _told(parts[0], ending))
        if self._keeps_taps and output.taps is not None:
            self._keep(pieces, output.taps)
        self._rows += size_of(len(parts)) * MAX_NODES
        if not ending:
            return None
        taps = [self._seen(part.lane) for part in ending]
        behind = any(part.in_turn for part in parts)
        found = Refill([part.lane for part in ending], self.records.push(), self._rows, taps, behind, [])
        self._rows = 0
        return found

    def _keep(self, pieces: Sequence[Piece], taps: Tensor) -> None:
        """Keep the taps of each lane's pieces, which are next to each other."""
        first = 0
        for lane, group in groupby(pieces, lambda piece: piece.lane):
            own = list(group)
            count = sum(len(piece.tokens) for piece in own)
            self._taps.setdefault(lane, []).append(taps[first : first + count].clone())
            first += len(own) * MAX_NODES

    def _seen(self, lane: Lane) -> Tensor | None:
        """Taps of a whole prompt, which the drafter is given if it takes them in itself."""
        parts = self._taps.pop(lane.index, None)
        if parts is None:
            return None
        taps = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self._native is None:
            self.drafter.see(lane.index, taps)
        return taps

    @contextmanager
    def aside(self, *, in_turn: bool = False) -> Iterator[None]:
        """Work on the stream of prompts, behind all other work if it must be `in_turn`."""
        if self.stream is None:
            yield
            return
        if self.after is not None:
            self.stream.wait_event(self.after)
        if in_turn:
            for other in (torch.cuda.current_stream(self.stream.device), *self.round_streams):
                self.stream.wait_stream(other)
        with torch.cuda.stream(self.stream):
            yield

    def _around(self) -> Around:
        """What is computed in every forward of prompts, over the drafter's context as it lies now."""
        native = self._native
        if native is None or native.native is None:
            return Around((), self._start, partial(self._judge, ()))
        context = [KeyValue(*pair) for pair in native.cache.whole(0)]
        memory = tuple(store.data_ptr() for pair in context for store in pair)
        return Around((*memory, native.cache.capacity), self._start, partial(self._judge, context))

    def _start(self, told: Tensor) -> None:
        stamp(self.views.times, STARTED, unless=told[_FIRST : _FIRST + 1], **self.way)

    def _judge(self, context: Sequence[KeyValue], space: StepSpace, output: StepOutput, told: Tensor) -> None:
        """Give the drafter a forward's taps; judge the logits of the prompts that end in it."""
        native, views = self._native, self.views
        if output.logits is None or space.wanted is None:
            raise RuntimeError("a prompt needs a step that leaves logits of a few rows")
        if native is not None and native.native is not None and output.taps is not None:
            native.native.project(output.taps, space.inputs.positions, space.inputs.places, context)
        lanes = self._resting._replace(
            lengths=told[_LENGTHS:_HEATS],
            temperatures=told[_HEATS:_KEYS].view(torch.float32),
            keys=told[_KEYS:_TOLD].view(MOST, 2),
        )
        tokens, asked = views.drafted.tokens, views.drafted.ids
        target_slots(
            output.logits[:, None], tokens, asked, self.tree, lanes, views.slots, scratch=self.scratch,
            **self.way,
        )  # fmt: skip
        choice = views.slots.choice[:, 0]
        self._begins[0].copy_((choice[:, None] != self.eos).all(1))
        self._begins[1].copy_(choice)
        if self.signs is not None and views.prints is not None and output.taps is not None:
            scale = output.taps.shape[1] ** -0.5
            project_rows(output.taps, space.wanted, self.signs, scale, views.prints, **self.way)
        stamp(views.times, ENDED, **self.way)

    def first_tokens(self, refill: Refill) -> list[int]:
        """Wait for a forward; the choice behind each prompt."""
        found: list[int] = refill.record.wait()["choice"][0, : len(refill.lanes), 0].tolist()
        return found

    def rows(self, refill: Refill) -> list[Row]:
        """Wait for a forward; the columns of each prompt's last token."""
        records = refill.record.wait()
        return [self.maker.row(records, place, lane) for place, lane in enumerate(refill.lanes)]

    def unmade(self, refill: Refill, emissions: Sequence[Emission]) -> Unmade:
        """Wait for a forward; the rows of prompts whose first tokens were emitted, to be made elsewhere."""
        part = Prompts.of(refill.record.wait(), refill.lanes, emissions)
        where = np.array([lane.index for lane in refill.lanes[: len(emissions)]], np.int64)
        return Unmade.now(where, self.maker, part, part.size)

    def forget(self, refill: Refill) -> None:
        """Never read a forward's record, or not again."""
        self.records.give_back(refill.record)


def _told(first: _Part, ending: Sequence[_Part]) -> NDArray[np.int32]:
    """What a forward is told, see `_FIRST`."""
    told, count = np.zeros(_TOLD, np.int32), len(ending)
    told[_FIRST] = first.piece.start > 0
    if ending:
        requests = [part.lane.request for part in ending]
        told[_LENGTHS:][:count] = [len(request.prompt_tokens) - 1 for request in requests]
        told[_HEATS:][:count].view(np.float32)[:] = [request.sampling.temperature for request in requests]
        told[_KEYS:][: 2 * count] = key_bits([request.key for request in requests]).ravel()
    return told
