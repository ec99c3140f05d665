"""A lane's prompt on the device, without the host: keys, values, the drafter's context, the first token.

It has buffers, graphs and a stream of its own, so that rounds of other lanes may run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash.drafters.base import Drafter
from dflash.drafters.block.drafter import BlockFamily
from dflash.draftfile.rows import Ragged
from dflash.engine.device.arrays import ENDED, STARTED
from dflash.engine.device.law import LaneLaw, Laws
from dflash.engine.device.plan import PLAIN_CHAIN, RoundPlan
from dflash.engine.device.record import RecordRing, RecordSizes, record_fields, record_words
from dflash.engine.device.shared import sent
from dflash.engine.device.views import Moves, RoundViews
from dflash.engine.judge import Row
from dflash.engine.lane import Lane
from dflash.engine.recorder.columns import ColumnMaker
from dflash.kernels.ancestors import MAX_NODES
from dflash.kernels.philox import word_bits
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_prints import project_rows, sign_words
from dflash.kernels.round_slots import SlotScratch, target_slots
from dflash.kernels.round_stamp import stamp
from dflash.target.lane_prefill import PIECES, Behind, LanePrefill, rows_of
from dflash.target.llama_step import StepOutput
from dflash.target.native import NativeTrunk
from dflash.target.native_layers import KeyValue, StepSpace


class Refill(NamedTuple):
    """A prompt that was queued.

    Attributes:
        lane: that it fills.
        ticket: of its record.
        rows: that are computed.
        taps: of its tokens, if they are wanted.
        behind: whether it runs behind all rounds that were queued before it.
    """

    lane: Lane
    ticket: int
    rows: int
    taps: Tensor | None
    behind: bool


class PromptRound:
    """Prompts of an engine's lanes, each a round without nodes at the prompt's last token.

    Attributes:
        stream: that they run on; None where there are no streams.
    """

    def __init__(self, trunk: NativeTrunk, drafter: Drafter, plan: RoundPlan) -> None:
        self.trunk, self.drafter, self.plan = trunk, drafter, plan
        device = trunk.device
        way = trunk.step.way
        self.way: dict[str, Any] = {"impl": way.impl, "pdl": way.pdl}
        self.steps = LanePrefill(trunk.step)
        self.tree = RoundTree.make(0, 1, 1, device)
        self.lanes = RoundLanes.make(1, device)
        width = len(trunk.taps) * int(trunk.config.hidden_size)
        sizes = RecordSizes(1, plan.top, 2, 0 if plan.projection is None else width, features=False)
        fields = record_fields(sizes, self.tree)
        self.record = torch.zeros((1, record_words(fields)), dtype=torch.int32, device=device)
        self.views = RoundViews.of(self.record[0], fields, Moves.make(1, self.tree, device))
        self.ring = RecordRing(self.record, fields, trunk.cache.lanes + 1)
        self.signs = None if plan.projection is None else sign_words(plan.projection)
        self.scratch = SlotScratch.make(1, trunk.vocabulary, plan.top, 0, device)
        self.maker = ColumnMaker([], self.tree.expanded, 1, plan.store_topk)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
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
        behind = self._behind()
        for pieces in PIECES:
            if pieces == 1 or pieces * MAX_NODES // 2 < context:
                self.steps.ready(self.trunk.stores(), pieces, behind)
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

    @torch.inference_mode()
    def launch(self, lane: Lane, *, in_turn: bool) -> Refill:
        """Queue a lane's prompt.

        Args:
            lane: whose request has not begun; nothing that is queued may read or write its rows any more.
            in_turn: whether it is to wait for all that was queued before.
        """
        tokens, index = lane.request.prompt_tokens, lane.index
        self.room(len(tokens))
        self.drafter.open(index)
        behind = self._behind()
        with self.aside(in_turn=in_turn):
            self._tell(lane)
            stamp(self.views.times, STARTED, **self.way)
            found = self.steps.run(
                self.trunk.stores(), index, 0, tokens, behind=behind, keep_taps=self._keeps_taps
            )
            if found.taps is not None and self._native is None:
                self.drafter.see(index, found.taps)
            return Refill(lane, self.ring.push(), rows_of(len(tokens)), found.taps, in_turn)

    @contextmanager
    def aside(self, *, in_turn: bool = False) -> Iterator[None]:
        """Work on the stream of prompts, behind all other work if it must be `in_turn`."""
        if self.stream is None:
            yield
            return
        if in_turn:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def _tell(self, lane: Lane) -> None:
        """Let the device know how the request draws, and where its first choice stands."""
        request, lanes = lane.request, self.lanes
        lanes.lengths.fill_(len(request.prompt_tokens) - 1)
        lanes.temperatures.fill_(request.sampling.temperature)
        bits = word_bits(torch.tensor([request.key])).tolist()
        lanes.keys.copy_(sent(bits, torch.int32, lanes.keys.device))

    def _behind(self) -> Behind:
        """What follows every forward of a prompt, over the drafter's context as it lies now."""
        native = self._native
        if native is None or native.native is None:
            return Behind((), partial(self._judge, ()))
        context = [KeyValue(*pair) for pair in native.cache.whole(0)]
        memory = tuple(store.data_ptr() for pair in context for store in pair)
        return Behind((*memory, native.cache.capacity), partial(self._judge, context))

    def _judge(self, context: Sequence[KeyValue], space: StepSpace, output: StepOutput) -> None:
        """Give the drafter a forward's taps; judge the logits of its last token."""
        native, views = self._native, self.views
        if output.logits is None or space.wanted is None:
            raise RuntimeError("a prompt needs a step that leaves logits of one row")
        if native is not None and native.native is not None and output.taps is not None:
            native.native.project(output.taps, space.inputs.positions, space.inputs.places, context)
        tokens, asked = views.drafted.tokens, views.drafted.ids
        target_slots(
            output.logits[None], tokens, asked, self.tree, self.lanes, views.slots, scratch=self.scratch,
            **self.way,
        )  # fmt: skip
        if self.signs is not None and views.prints is not None and output.taps is not None:
            scale = output.taps.shape[1] ** -0.5
            project_rows(output.taps, space.wanted, self.signs, scale, views.prints, **self.way)
        stamp(views.times, ENDED, **self.way)

    def row(self, refill: Refill) -> Row:
        """Wait for a prompt; the columns of its last token."""
        records = self.ring.read(refill.ticket)
        request = refill.lane.request
        of_rows = {name: values[0] for name, values in records.items() if name != "times"}
        law = Laws.of([LaneLaw(request.sampling.temperature, None)])
        columns = self.maker.columns(of_rows, law)
        row: Row = {
            name: column.values if isinstance(column, Ragged) else np.asarray(column)[0]
            for name, column in columns.items()
        }
        times = records["times"][0]
        spent = (times[ENDED] - times[STARTED]) / 1e3 if times[STARTED] else np.nan
        position = len(request.prompt_tokens) - 1
        row |= {"anchor_position": position, "anchor_token": request.prompt_tokens[position]}
        row |= {"verify_us": spent, "round_us": spent}
        if "fingerprint" in of_rows:
            row["feature_fingerprint"] = of_rows["fingerprint"].reshape(-1)
        return row

    def forget(self, refill: Refill) -> None:
        """Never read a prompt's record."""
        self.ring.forget(refill.ticket)
