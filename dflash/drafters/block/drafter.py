"""Draft with a block drafter: the target's taps become context, one forward drafts every anchor's block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dflash.drafters.base import SCORED_CUTS, Anchor, Drafter, DraftShape, Proposal, entry
from dflash.drafters.block.cache import ContextCache
from dflash.drafters.block.masks import block_masks
from dflash.drafters.block.model import BlockDrafter, SlotScores
from dflash.drafters.block.native import BlockStep, Place
from dflash.drafters.drawing import Drawing, Growth
from dflash.policy.context import DraftSampling
from dflash.target.model import Work
from dflash.target.native_layers import Way

Key = tuple[tuple[int, int], ...]


class BlockFamily(Drafter):
    """The families `dflash` and `dspark`.

    The whole block is always computed, whatever part of it is drafted, so that a smaller shape is the larger
    one, cut. Branches fork by the drawing's fan and share the one forward: where no head reads the token
    before, the tail of every branch is conditioned on no sibling.

    Attributes:
        work: forwards, and rows of blocks computed.
        native: the native step, which takes blocks at the ends of the lanes' contexts; None for none.
        projected: rows of context computed, one a committed token.
    """

    def __init__(
        self,
        name: str,
        model: BlockDrafter,
        drawing: Drawing,
        identity: Mapping[str, Any],
        lanes: int,
        capacity: int,
    ) -> None:
        super().__init__(drawing.kind)
        self.name = name
        self.model = model
        self.config = model.config
        self.family = model.config.family
        self.taps = model.config.taps
        self.longest = model.config.drafts
        self.drawing = drawing
        self.cache = ContextCache(lanes, capacity)
        self.work = Work()
        self.projected = 0
        self._identity = dict(identity)
        self.native: BlockStep | None = None
        self._drafted: tuple[Key, Tensor] | None = None

    def use_native(self, way: Way | None = None) -> None:
        """Project contexts, and compute blocks at the ends of contexts, on the native kernels.

        Raises:
            NativeUnsupported: lists everything about the drafter that does not fit.
        """
        self.native = BlockStep(self.name, self.model, way=way)

    def beside(self, lanes: int, capacity: int) -> BlockFamily:
        """A drafter of the same weights, with lanes and graphs of its own."""
        found = BlockFamily(self.name, self.model, self.drawing, self._identity, lanes, capacity)
        found.native = None if self.native is None else self.native.beside()
        return found

    def follow(self, other: BlockFamily, length: int) -> None:
        """Have contexts of `length` rows, which the caller copies from a lane of another drafter."""
        self.cache.become(other.cache, length)
        self._drafted = None

    def open(self, lane: int) -> None:
        """Forget the lane's context."""
        self.cache.reset(lane)
        self._drafted = None

    def moved(self, lane: int, length: int) -> None:
        """Take notice of `length` context rows of a lane, which rounds on the device have written."""
        self.cache.lengths[lane] = length
        self._drafted = None

    @torch.inference_mode()
    def see(self, lane: int, states: Tensor) -> None:
        """Project the taps of newly committed tokens into every layer's keys and values."""
        start = self.cache.lengths[lane]
        self.projected += len(states)
        self._drafted = None
        if self.native is not None:
            taps = states.to(self.model.fc.weight.dtype)
            stores = self.cache.extend(lane, len(states), self.native.empty_rows())
            self.native.append(lane, taps, start, stores)
            return
        positions = torch.arange(start, start + len(states), device=states.device)[None]
        context = self.model.context(states[None].to(self.model.fc.weight.dtype))
        self.cache.append(lane, self.model.key_values(context, positions))

    @torch.inference_mode()
    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """Compute every anchor's block in one forward, then draw all trees slot by slot."""
        trees = [self.drawing.start(anchor, shape) for anchor in anchors]
        if shape.length == 0:
            return [tree.proposal for tree in trees]
        hidden = self._hidden(anchors)
        logits = self.model.logits(hidden[:, : shape.length])
        state: Tensor | None = None
        for slot in range(shape.length):
            rows = [place for place, tree in enumerate(trees) for _ in tree.frontier]
            before = [token for tree in trees for token in tree.tokens]
            scores = self._slot(hidden, logits, slot, rows, before, state)
            parents = self._grow(trees, scores)
            state = None if scores.state is None else scores.state[parents]
        return [tree.proposal for tree in trees]

    def _grow(self, trees: Sequence[Growth], scores: SlotScores) -> list[int]:
        """Grow every tree by its rows of the scores; returns the row that each new frontier node hangs on."""
        confidence = None if scores.confidence is None else scores.confidence.sigmoid().tolist()
        parents: list[int] = []
        first = 0
        for tree in trees:
            frontier = tree.frontier
            last = first + len(frontier)
            self.drawing.grow(tree, scores.logits[first:last], confidence and confidence[first:last])
            row = {node: first + place for place, node in enumerate(frontier)}
            parents += [row[tree.proposal.parents[node]] for node in tree.frontier]
            first = last
        return parents

    def _slot(
        self,
        hidden: Tensor,
        logits: Tensor,
        slot: int,
        rows: Sequence[int],
        before: Sequence[int],
        state: Tensor | None,
    ) -> SlotScores:
        tokens = torch.tensor(before, device=hidden.device)
        return self.model.slot(hidden[rows, slot], logits[rows, slot], tokens, state)

    def _hidden(self, anchors: Sequence[Anchor]) -> Tensor:
        """Hidden states [anchors, drafts, hidden]; the last anchors' are kept until a lane moves on."""
        key = tuple((anchor.lane, anchor.position) for anchor in anchors)
        if self._drafted is None or self._drafted[0] != key:
            self._drafted = key, self._forward(anchors)
        return self._drafted[1]

    def _forward(self, anchors: Sequence[Anchor]) -> Tensor:
        """One forward over the blocks of all anchors, several of which may share a lane."""
        if self.native is not None and self._at_ends(anchors):
            return self._native(anchors, self.native)
        lanes = list(dict.fromkeys(anchor.lane for anchor in anchors))
        places: dict[int, list[int]] = {lane: [] for lane in lanes}
        for place, anchor in enumerate(anchors):
            if anchor.position > self.cache.lengths[anchor.lane]:
                raise RuntimeError(f"taps end before position {anchor.position}: see was not called")
            places[anchor.lane].append(place)
        width = max(map(len, places.values()))
        device = self.model.fc.weight.device
        positions = torch.full((len(lanes), width), -1)
        tokens = torch.zeros_like(positions)
        for row, lane in enumerate(lanes):
            here = [anchors[place] for place in places[lane]]
            positions[row, : len(here)] = torch.tensor([anchor.position for anchor in here])
            tokens[row, : len(here)] = torch.tensor([anchor.trunk[anchor.position] for anchor in here])
        positions, tokens = positions.to(device), tokens.to(device)
        length = int(max(anchor.position for anchor in anchors))
        masks = block_masks(self.config.layers, positions, self.config.block_size, length)
        hidden = self.model.blocks(tokens, positions, self.cache.read(lanes, length), masks)
        self.work.forwards += 1
        self.work.rows += len(anchors) * self.config.block_size
        order = [(lanes.index(a.lane), places[a.lane].index(place)) for place, a in enumerate(anchors)]
        rows, columns = zip(*order, strict=True)
        return hidden[list(rows), list(columns)]

    def _at_ends(self, anchors: Sequence[Anchor]) -> bool:
        """Whether each anchor stands at the end of a context of its own, behind which its block may lie."""
        lanes = {anchor.lane for anchor in anchors}
        lengths = self.cache.lengths
        return len(lanes) == len(anchors) and all(0 < a.position == lengths[a.lane] for a in anchors)

    def _native(self, anchors: Sequence[Anchor], step: BlockStep) -> Tensor:
        """The same forward on the native kernels."""
        longest = max(self.cache.lengths) + self.config.block_size
        places = [Place(a.lane, a.trunk[a.position], a.position) for a in anchors]
        hidden = step.blocks(places, self.cache.whole(longest)).hidden
        self.work.forwards += 1
        self.work.rows += len(anchors) * self.config.block_size
        return hidden[[anchor.lane for anchor in anchors], self.config.first_slot :]

    @torch.inference_mode()
    def trunk_log_q(self, anchors: Sequence[Anchor], counts: Sequence[int]) -> list[list[float]] | None:
        """log q of the trunk's tokens after each anchor, every slot behind the trunk's own tokens."""
        temperature = anchors[0].temperature
        if self.sampling_at(temperature).temperature == 0:
            return None
        hidden = self._hidden(anchors)
        logits = self.model.logits(hidden[:, : max(counts)])
        found: list[list[float]] = [[] for _ in anchors]
        state: Tensor | None = None
        rows = range(len(anchors))
        for slot in range(max(counts)):
            # an anchor near the trunk's end goes along with its last token, unread
            before = [anchor.trunk[min(anchor.position + slot, len(anchor.trunk) - 1)] for anchor in anchors]
            scores = self._slot(hidden, logits, slot, rows, before, state)
            state = scores.state
            for row, raw in enumerate(scores.logits.double().cpu().numpy()):
                if slot < counts[row]:
                    token = anchors[row].trunk[anchors[row].position + slot + 1]
                    found[row].append(self.drawing.log_q(raw, token, temperature))
        return found

    def sampling_at(self, temperature: float) -> DraftSampling:
        """Draft processing in a request of this temperature."""
        return self.drawing.sampling_at(temperature)

    def header(self) -> dict[str, Any]:
        """Identity, taps, the block, and how q is made; every cut equals a live draft."""
        block = {
            "block_size": self.config.block_size,
            "slots": str(self.config.slots),
            "taps": list(self.config.taps),
            "siblings": "seen" if self.config.path_dependent else "unseen",
        }
        confidence = {"confidence": "slot"} if self.config.confidence else {}
        if self.native is not None:
            block["impl"] = "native"
        facts = self.drawing.header() | self._identity | block | confidence
        return entry(self.name, self.family, self.kind, cuts=[*SCORED_CUTS], **facts)
