"""One group of anchors on the device: drafted, verified and judged by the launches of a live round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dflash.engine.dense.inputs import DenseInputs
from dflash.engine.dense.lanes import DenseLanes
from dflash.engine.dense.record import dense_fields
from dflash.engine.device.arrays import Records
from dflash.engine.device.plan import RoundPlan, draft_top
from dflash.engine.device.record import RecordRing, RecordSizes, record_words, tensors_of
from dflash.engine.device.round import DraftPart, rows_of
from dflash.engine.device.views import Moves, RoundViews
from dflash.kernels.round_draft import DraftColumns, draft_level
from dflash.kernels.round_inputs import round_inputs
from dflash.kernels.round_lanes import RoundTree
from dflash.kernels.round_slots import SlotScratch, target_slots
from dflash.target.native_layers import KeyValue, StepSpace
from dflash.target.step_graphs import capture


class DenseStep:
    """Buffers of the dense pass's lanes, and their graph.

    Attributes:
        tree: what every lane drafts.
        drawn: whether tokens are drawn, and q of the trunk's tokens is a law that is wanted.
    """

    def __init__(self, lanes: DenseLanes, plan: RoundPlan, drawn: bool) -> None:
        trunk, count, shape = lanes.trunk, lanes.count, plan.shape
        device = trunk.device
        self.trunk, self.drawn, self.way = trunk, drawn, trunk.step.way
        self.tree = RoundTree.make(shape.length, shape.branches, count, device)
        self.chain = RoundTree.make(shape.length, 1, count, device)
        self.inputs = DenseInputs.make(count, max(shape.length, 1), device)
        drafter = lanes.own_drafter if self.tree.nodes else None
        seen = 2 if drafter is None else draft_top(drafter, plan.store_topk)
        self.fields = dense_fields(RecordSizes(count, plan.top, seen, 0, False), self.tree, drawn)
        self.record = torch.zeros((1, record_words(self.fields)), dtype=torch.int32, device=device)
        self.views = RoundViews.of(self.record[0], self.fields, Moves.make(count, self.tree, device))
        self.ring = RecordRing(self.record, self.fields)
        view = tensors_of(self.record[0], self.fields)
        self._trunk_logit = view["trunk_logit"]
        self._forced = _columns(self.chain, view["forced_ids"], view["forced_logits"]) if drawn else None
        kids = self.tree.branches if self.tree.nodes else 0
        rows = count * (self.tree.nodes + 1)
        self._scratch = SlotScratch.make(rows, trunk.vocabulary, kids, device)
        self._cache, self._verify = self._verifying()
        self._draft: DraftPart | None = None
        self._context: list[KeyValue] = []
        self._block: StepSpace | None = None
        if drafter is not None and drafter.native is not None:
            self._draft = DraftPart(drafter, drafter.native, plan, self.tree, count)
            stores = drafter.cache.whole(drafter.cache.capacity)
            self._context = [KeyValue(store.keys, store.values) for store in stores]
            self._block = self._drafting(drafter.config.block_size)
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda" and self.way.impl == "triton" and not plan.eager:
            # no lane of the trial run is live, and it stores nothing
            self._graph, _ = capture(self._compute)

    @torch.inference_mode()
    def _verifying(self) -> tuple[list[KeyValue], StepSpace]:
        step, cache, width = self.trunk.step, self.trunk.stores(), self.trunk.padded(self.tree.nodes + 1)
        step.reserve(cache[0].keys.shape[2])
        space = step.space(len(self.inputs.lanes.live), width, width, cache)
        space.inputs.words.copy_(self.tree.row_words(width))
        return cache, space

    @torch.inference_mode()
    def _drafting(self, size: int) -> StepSpace | None:
        if self._draft is None:
            return None
        own, count = self._draft.step, len(self.inputs.lanes.live)
        own.reserve(self._context[0].keys.shape[2])
        space = own.space(count, size, size, self._context)
        causal = [(2 << row) - 1 for row in range(size)]
        space.inputs.words.copy_(torch.tensor(causal).expand(count, -1))
        return space

    @torch.inference_mode()
    def queue(self, words: Tensor) -> int:
        """Let the lanes score what int32 `[words]` on the device says; returns the ticket of their record."""
        self.inputs.flat.copy_(words)
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()
        return self.ring.push()

    def read(self, ticket: int) -> Records:
        """Wait for a group's record: fields `[1, …]`."""
        return self.ring.read(ticket)

    @torch.inference_mode()
    def _compute(self) -> None:
        lanes, tree, views = self.inputs.lanes, self.tree, self.views
        verify = rows_of(self._verify)
        block = None if self._block is None else rows_of(self._block)
        mask_token = 0 if self._draft is None else self._draft.mask_token
        way: dict[str, Any] = {"impl": self.way.impl, "pdl": self.way.pdl}
        round_inputs(lanes, tree, verify, block, mask_token, views.start, **way)
        if self._draft is not None and self._block is not None:
            columns = views.drafted._replace(rows=verify.tokens)
            given = (self._block, self._context, lanes, columns, views.confidence, self.drawn)
            logits = self._draft.run(*given)
            if self._forced is not None:
                self._force(self._draft, logits, self._forced)
        output = self.trunk.step.run(self._verify, self._cache).logits
        if output is None:
            raise RuntimeError("a dense pass needs a step that leaves logits")
        scored = output.unflatten(0, (len(lanes.live), -1))
        target_slots(
            scored, views.drafted.tokens, views.drafted.ids, tree, lanes, views.slots, scratch=self._scratch,
            **way,
        )  # fmt: skip
        self._trunk_logit.copy_(scored[:, 0].gather(1, self.inputs.trunk[0].long()[:, None]))

    def _force(self, draft: DraftPart, logits: Tensor, out: DraftColumns) -> None:
        """Note what the drafter saw at each slot behind the trunk's own tokens."""
        way: dict[str, Any] = {"impl": self.way.impl, "pdl": self.way.pdl}
        given = (draft.bias, draft.law, self.chain, self.inputs.lanes, out)
        for depth in range(1, self.chain.length + 1):
            draft_level(logits, depth, *given, ids=draft.ids, scratch=draft.scratch.parts, **way)
            out.tokens[:, depth - 1].copy_(self.inputs.trunk[depth - 1])


def _columns(chain: RoundTree, ids: Tensor, logits: Tensor) -> DraftColumns:
    """Columns of a chain of which only the candidates are kept."""
    count, length = chain.parents.shape
    ints = torch.zeros((2, count, length), dtype=torch.int32, device=ids.device)
    floats = torch.zeros((4, count, length), device=ids.device)
    rows = torch.zeros((count, length + 1), dtype=torch.int32, device=ids.device)
    log_q, gaps, margins, lse = floats
    return DraftColumns(ints[0], ints[1], log_q, gaps, margins, lse, ids, logits, rows)
