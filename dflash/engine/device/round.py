"""Speculative rounds of all lanes without the host: drafted, verified, accepted, committed, recorded.

On a GPU a chain of whole rounds is one CUDA graph; with `impl="reference"` the same steps run anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash.drafters.block.drafter import BlockFamily
from dflash.drafters.block.native import BlockStep
from dflash.engine.device.arrays import DRAFTED, ENDED, STARTED, VERIFIED, Records
from dflash.engine.device.packed import PackedRows
from dflash.engine.device.plan import RoundPlan, draft_law, draft_top, ids_of
from dflash.engine.device.prompt_records import PromptRecord
from dflash.engine.device.record import RecordRing, RecordSizes, record_fields, record_words
from dflash.engine.device.rows import RoundRows
from dflash.engine.device.shared import RoundShared
from dflash.engine.device.views import Moves, RoundViews
from dflash.engine.lane import Lane
from dflash.engine.loop import synchronise
from dflash.engine.recorder.columns import ColumnMaker
from dflash.kernels.accept_tree import Accepted, accept_tree
from dflash.kernels.pack_features import pack_features
from dflash.kernels.round_best import BestScratch, draft_best
from dflash.kernels.round_confidence import ConfidenceWeights, confidences
from dflash.kernels.round_cut import cut_nodes
from dflash.kernels.round_draft import DraftColumns, LowRank, draft_level
from dflash.kernels.round_finish import round_finish
from dflash.kernels.round_inputs import RowInputs, round_inputs
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_prints import project_rows, sign_words
from dflash.kernels.round_rows import RowStores, keep_rows
from dflash.kernels.round_slots import SlotScratch, target_slots
from dflash.kernels.round_stamp import stamp
from dflash.kernels.round_taps import keep_taps
from dflash.target.native import NativeTrunk
from dflash.target.native_layers import KeyValue, StepSpace
from dflash.target.step_graphs import capture


def rows_of(space: StepSpace) -> RowInputs:
    """A step's inputs by lane."""
    inputs = space.inputs
    lanes = len(inputs.lengths)
    by_lane = inputs.tokens.view(lanes, -1), inputs.positions.view(lanes, -1)
    return RowInputs(*by_lane, inputs.places.view(lanes, -1, 2), inputs.lengths)


class DraftPart:
    """Drafting on the device: the block, its head, and the tree drawn level by level."""

    def __init__(
        self, drafter: BlockFamily, step: BlockStep, plan: RoundPlan, tree: RoundTree, lanes: int
    ) -> None:
        self.model, self.step, self.tree = drafter.model, step, tree
        self.law, self.ids = draft_law(drafter), ids_of(drafter)
        self.first_slot = drafter.config.first_slot
        head = drafter.model.markov_head
        self.bias = None if head is None else LowRank(head.markov_w1.weight.data, head.markov_w2.weight.data)
        # a learned mask takes the place of any token's embedding, and its id may be in no table
        learned = drafter.model.mask_embedding is not None
        self.mask_token = -1 if learned else drafter.config.mask_token
        device = step.layers[0].norm.device
        candidates = drafter.config.draft_vocabulary or drafter.config.vocabulary
        biased = self.bias is not None
        # a level has no more rows than there are expanded slots
        self.scratch = BestScratch.make(lanes * tree.expanded, candidates, biased, device)
        self.confident = self._confidence_weights()

    def run(
        self, space: StepSpace, cache: Sequence[KeyValue], lanes: RoundLanes, out: DraftColumns,
        confidence: Tensor, drawn: bool,
    ) -> Tensor:  # fmt: skip
        """Draft every lane's tree; confidences go to `[lanes, nodes]`.

        Args:
            space: of the blocks' inputs.
            cache: of the context.
            lanes: of the requests.
            out: where nodes go.
            confidence: where confidences go.
            drawn: whether any lane's draft temperature is above 0.

        Returns:
            Logits `[lanes, length, draft vocabulary]`, without any bias by the token before.
        """
        way, length = self.step.way, self.tree.length
        made = self.step.run(space, cache, head=True)
        if made.hidden is None or made.logits is None:
            raise RuntimeError("a device round drafts from logits")
        slots = slice(self.first_slot, self.first_slot + length)
        hidden, logits = made.hidden[:, slots], made.logits[:, slots]
        given = (self.bias, self.law, self.tree, lanes, out)
        shared: dict[str, Any] = {"ids": self.ids, "impl": way.impl, "pdl": way.pdl}
        forks = 1 if self.tree.branches > 1 else 0
        for depth in range(1, 1 + (length if drawn else forks)):
            draft_level(logits, depth, *given, scratch=self.scratch.parts, **shared)
        if not drawn and length > forks:
            draft_best(logits, *given, first=forks + 1, scratch=self.scratch, **shared)
        if self.confident is not None:
            confidences(
                hidden, out.tokens, self.confident, self.tree, lanes, confidence, impl=way.impl, pdl=way.pdl
            )
        return logits

    def _confidence_weights(self) -> ConfidenceWeights | None:
        head, markov = self.model.confidence_head, self.model.markov_head
        if head is None:
            return None
        table = markov.markov_w1.weight.data if head.with_markov and markov is not None else None
        return ConfidenceWeights(head.proj.weight.data[0], head.proj.bias.data, table)


@dataclass(slots=True)
class _Built:
    """Buffers of rounds over caches that stay where they are, and their graph."""

    key: tuple[int, ...]
    verify: StepSpace
    cache: list[KeyValue]
    block: StepSpace | None
    context: list[KeyValue]
    stores: RowStores
    holds: Any
    """What a graph reads by address besides."""
    graph: torch.cuda.CUDAGraph | None = None


class DeviceRound:
    """Rounds of an engine's lanes, of all or of a window of them, on the device.

    The host says which request a lane holds (`open`, `close`), queues rounds (`launch`) and reads their
    records (`read`) as late as it likes. On the device a lane stops by itself at an end-of-text token or at
    its last token.

    Attributes:
        window: indices of the lanes.
        shared: what the device knows of the requests, whatever the tree.
        tree: what every lane drafts.
        drawn: whether a lane has had a draft temperature above 0, for which there is another graph.
    """

    def __init__(
        self,
        trunk: NativeTrunk,
        drafter: BlockFamily | None,
        plan: RoundPlan,
        eos: Sequence[int],
        shared: RoundShared | None = None,
        window: range | None = None,
    ) -> None:
        self.trunk, self.drafter, self.plan = trunk, drafter, plan
        self.way = trunk.step.way
        self.window = window or range(trunk.cache.lanes)
        count, device = len(self.window), trunk.device
        self.shared = shared or RoundShared(count, device, first=self.window.start)
        self.lanes = self.shared.lanes
        self.tree = RoundTree.make(plan.shape.length, plan.shape.branches, count, device)
        self.eos = torch.tensor(sorted(eos), dtype=torch.int32, device=device)
        self.width = trunk.padded(self.tree.nodes + 1)
        taps = len(trunk.taps) * int(trunk.config.hidden_size)
        drawn = draft_top(drafter, plan.store_topk) if drafter is not None and self.tree.nodes else 2
        sizes = RecordSizes(
            count, plan.top, drawn, 0 if plan.projection is None else taps, plan.features is not None
        )
        self.fields = record_fields(sizes, self.tree)
        words = record_words(self.fields)
        self.record = torch.zeros((plan.chain, words), dtype=torch.int32, device=device)
        moves = Moves.make(count, self.tree, device)
        self.views = [RoundViews.of(record, self.fields, moves) for record in self.record]
        self.ring = RecordRing(self.record, self.fields)
        self.packed = self._packed_rows(count, taps)
        self.signs = None if plan.projection is None else sign_words(plan.projection)
        self.draft = self._draft_part(count)
        rows, kids = count * (self.tree.nodes + 1), self.tree.branches if self.tree.nodes else 0
        self.slot_scratch = SlotScratch.make(rows, trunk.vocabulary, kids, device)
        self.drawn = False
        self._built: _Built | None = None

    def _draft_part(self, lanes: int) -> DraftPart | None:
        if self.drafter is None or not self.tree.nodes or self.drafter.native is None:
            return None
        return DraftPart(self.drafter, self.drafter.native, self.plan, self.tree, lanes)

    def _packed_rows(self, lanes: int, width: int) -> PackedRows | None:
        """Room for the features of rounds, if they are kept."""
        encoding, tree = self.plan.features, self.tree
        if encoding is None:
            return None
        rows, least = self.plan.chain * lanes * (tree.length + 1), lanes * (tree.nodes + 1)
        return PackedRows(rows, width, encoding, self.record.device, self.ring.slots, least)

    def open(self, lanes: Sequence[Lane], unread: PromptRecord | None = None) -> None:
        """Let lanes decode on from the newest tokens of their trunks, or from those that are `unread`."""
        self.shared.hold(lanes, self.heat, unread=unread)
        heats = {lane.request.sampling.temperature for lane in lanes}
        self.drawn = self.drawn or any(self.heat(heat) > 0 for heat in heats)

    def heat(self, temperature: float) -> float:
        """The drafter's temperature in requests of this target temperature."""
        return 0.0 if self.drafter is None else self.drafter.sampling_at(temperature).temperature

    def close(self, index: int) -> None:
        """Let a lane rest."""
        self.shared.rest(index)

    def launch(self, longest: int) -> int:
        """Queue a chain of rounds; returns the ticket of their records.

        Args:
            longest: tokens of the longest trunk, as far as the host knows, by one chain at most.
        """
        built = self.ready(longest)
        if built.graph is None:
            self._compute(built)
        else:
            built.graph.replay()
        return self.ring.push()

    def ready(self, longest: int) -> _Built:
        """Rounds over caches with room for what this chain and the one before write."""
        ahead = longest + 2 * self.plan.chain * (self.tree.length + 1)
        cache, context = self.trunk.cache, self._fit(ahead)
        first = cache.keys[0] if 0 in cache.keys else self.trunk.stores()[0].keys
        key = (self.drawn, cache.capacity, first.data_ptr(), *(pair.keys.data_ptr() for pair in context[:1]))
        if self._built is None or self._built.key != key:
            # the graph before may still run on what it holds
            synchronise(self.record.device)
            self._built = self._build(key, self._own(self.trunk.stores()), self._own(context))
        return self._built

    def _own(self, stores: Sequence[KeyValue]) -> list[KeyValue]:
        """The window's lanes of caches of all."""
        window = slice(self.window.start, self.window.stop)
        return [KeyValue(*(store[window] for store in pair)) for pair in stores]

    def _fit(self, ahead: int) -> list[KeyValue]:
        """Have room for trunks of so many tokens; the drafter's context, if there is to be one."""
        cache = self.trunk.cache
        drafter = self.drafter if self.draft is not None else None
        behind = ahead + (0 if drafter is None else drafter.config.block_size)
        # prompts are read on a stream of their own, which must not meet caches on the move
        moves = ahead + self.width > cache.capacity or (
            drafter is not None and behind > drafter.cache.capacity
        )
        if moves:
            synchronise(self.record.device)
        cache.fit(ahead + self.width)
        context = [] if drafter is None else drafter.cache.whole(behind)
        if moves:
            synchronise(self.record.device)
        return context

    @torch.inference_mode()
    def _build(self, key: tuple[int, ...], cache: list[KeyValue], context: list[KeyValue]) -> _Built:
        count, step = len(self.lanes.live), self.trunk.step
        step.reserve(cache[0].keys.shape[2])
        verify = step.space(count, self.width, self.width, cache)
        verify.inputs.words.copy_(self.tree.row_words(self.width))
        block, holds = None, [step.rotary]
        if self.draft is not None:
            own, size = self.draft.step, self.draft.step.config.block_size
            own.reserve(context[0].keys.shape[2])
            block = own.space(count, size, size, context)
            causal = [(2 << row) - 1 for row in range(size)]
            block.inputs.words.copy_(torch.tensor(causal).expand(count, -1))
            holds.append(own.rotary)
        stores = RowStores.of([tensor for pair in cache for tensor in pair])
        built = _Built(key, verify, cache, block, context, stores, holds)
        if self.record.is_cuda and self.way.impl == "triton" and not self.plan.eager:
            built.graph = self._captured(built)
        return built

    def _captured(self, built: _Built) -> torch.cuda.CUDAGraph:
        """The graph of a round; the trial runs that come with it find no live lane."""
        live = self.lanes.live.clone()
        self.lanes.live.zero_()
        graph, _ = capture(lambda: self._compute(built))
        self.lanes.live.copy_(live)
        return graph

    @torch.inference_mode()
    def _compute(self, built: _Built) -> None:
        """Queue the launches of a chain; nothing here waits for the device."""
        for views in self.views:
            self._round(built, views)

    def _round(self, built: _Built, views: RoundViews) -> None:
        tree, lanes, times = self.tree, self.lanes, views.times
        way = {"impl": self.way.impl, "pdl": self.way.pdl}
        verify = rows_of(built.verify)
        block = None if built.block is None else rows_of(built.block)
        mask_token = 0 if self.draft is None else self.draft.mask_token
        started, verified = times[STARTED : STARTED + 1], times[VERIFIED : VERIFIED + 1]
        round_inputs(lanes, tree, verify, block, mask_token, views.start, time=started, **way)
        if self.draft is not None and built.block is not None:
            columns = views.drafted._replace(rows=verify.tokens)
            self.draft.run(built.block, built.context, lanes, columns, views.confidence, self.drawn)
            if self.shared.limits is not None:
                cut_nodes(columns.tokens, self.shared.limits, tree, **way)
            stamp(times, DRAFTED, **way)
        output = self.trunk.step.run(built.verify, built.cache)
        accepted = self._judge(output.logits, views)
        tokens = views.drafted.tokens
        round_finish(
            tokens, accepted, self.eos, tree, lanes, self.width, views.end, time=verified, **way
        )  # fmt: skip
        self._commit(built, views, output.taps)
        if self.draft is not None:
            stamp(times, ENDED, **way)

    def _judge(self, logits: Tensor | None, views: RoundViews) -> Accepted:
        """The target's columns, and the path that the rule accepts."""
        if logits is None:
            raise RuntimeError("a device round needs a step that leaves logits")
        tree, impl, slots, tokens = self.tree, self.way.impl, views.slots, views.drafted.tokens
        target_slots(
            logits.unflatten(0, (len(self.lanes.live), -1)), tokens, views.drafted.ids, tree, self.lanes,
            slots, scratch=self.slot_scratch, impl=impl, pdl=self.way.pdl,
        )  # fmt: skip
        choices = slots.ids[..., 0].contiguous() if self.plan.by_argmax else slots.choice
        if tree.nodes:
            return accept_tree(tokens, tree.parents, tree.words, choices, impl=impl)
        none = torch.zeros_like(views.end.count)
        return Accepted(none, views.end.path, choices.flatten(), none)

    def _commit(self, built: _Built, views: RoundViews, taps: Tensor | None) -> None:
        """Move accepted rows to the trunk's end; give their hidden states to the drafter and the record."""
        end, way = views.end, {"impl": self.way.impl, "pdl": self.way.pdl}
        if self.tree.branches > 1 and self.tree.nodes:
            keep_rows(built.stores, end.path, views.start.lengths, kept=self.tree.length, **way)
        if taps is None:
            return
        if self.signs is not None and views.prints is not None:
            scale = taps.shape[1] ** -0.5
            project_rows(taps, end.rows.flatten(), self.signs, scale, views.prints, **way)
        if self.draft is None and self.shared.ring is not None:
            keep_taps(taps, views.start, self.shared.ring, **way)
        if self.packed is not None:
            by_lane = taps.view(len(self.lanes.live), self.width, -1)[:, : self.tree.nodes + 1]
            live, span = views.start.live, views.packed
            pack_features(by_lane, end.count, end.path, self.packed.ring, live=live, span=span, **way)
        if self.draft is not None:
            kept = taps.index_select(0, end.rows.flatten())
            self.draft.step.project(kept, end.positions.flatten(), end.places.flatten(0, 1), built.context)

    def row_maker(self) -> RoundRows:
        """What makes rows of the records."""
        tree = self.tree
        parents = tree.parents[0].tolist() if tree.nodes else []
        maker = ColumnMaker(parents, tree.expanded, tree.branches, self.plan.store_topk)
        return RoundRows(self.ring.layout, maker, self.plan.features)

    def read(self, ticket: int) -> Records:
        """Wait for the records of a chain: fields `[chain, ...]`.

        Features on a GPU are lent, until the next call.
        """
        records = self.ring.read(ticket)
        if self.packed is not None:
            packed = records["packed"]
            records.features = self.packed.read(int(packed[0, 0]), int(packed[-1, 1]))
        return records

    def forget(self, ticket: int) -> None:
        """Never read the records of a chain."""
        self.ring.forget(ticket)
