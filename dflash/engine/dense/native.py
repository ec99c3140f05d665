"""The dense pass on the native step: the launches of live rounds, so that its rows have their bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dflash.drafters.base import Anchor, Drafter, DraftShape
from dflash.engine.dense.dense_pass import DensePass, anchor_at, tree_rows
from dflash.engine.dense.lanes import DenseLanes, backwards, rows_needed
from dflash.engine.heap import give_back
from dflash.engine.judge import Judge, Row
from dflash.engine.lane import Lane
from dflash.target.native import NativeTrunk
from dflash.target.scratch import Scratch


class NativeDensePass(DensePass):
    """`DensePass` whose anchors stand at the ends of trunks, one a lane, as those of live rounds do."""

    def __init__(self, trunk: NativeTrunk, drafter: Drafter, judge: Judge, shape: DraftShape) -> None:
        super().__init__(trunk, drafter, judge, shape)
        self.native = trunk
        self._held: DenseLanes | None = None

    def rows(self, lane: Lane) -> Iterator[Row]:
        """One row for every committed output token but the last, in order."""
        positions = range(len(lane.request.prompt_tokens), len(lane.trunk) - 1)
        if not positions:
            return
        lanes = self._lanes(len(lane.trunk))
        lanes.follow(self.native, self.drafter, lane.index, positions[-1])
        found: list[list[Row]] = []
        for group in backwards(positions, lanes.count):
            anchors = [anchor_at(lane, position) for position in group]
            found.append(list(self._group(lanes, lane, anchors)))
            give_back()
        for rows in reversed(found):
            yield from rows

    def _lanes(self, tokens: int) -> DenseLanes:
        capacity = rows_needed(self.native, self.drafter, tokens)
        if self._held is None or self._held.trunk.cache.capacity < capacity:
            # what is outgrown goes before its successor is made
            self._held = None
            nodes = self.shape.length * self.shape.branches
            self._held = DenseLanes.beside(self.native, self.drafter, nodes, capacity)
        return self._held

    def _group(self, lanes: DenseLanes, lane: Lane, anchors: Sequence[Anchor]) -> Iterator[Row]:
        placed = [replace(anchor, lane=place) for place, anchor in enumerate(anchors)]
        own = lanes.own_drafter
        asked = anchors if own is None else placed
        for place, anchor in enumerate(anchors):
            lanes.trunk.scratch[place] = Scratch(anchor.position)
            if own is not None:
                own.moved(place, anchor.position)
        drafts = self.drafted(lane, asked, lanes.drafter)
        trees = [tree_rows(anchor, draft.proposal) for anchor, draft in zip(placed, drafts, strict=True)]
        scored = lanes.trunk.score(trees)
        for anchor, draft, seen in zip(anchors, drafts, scored, strict=True):
            yield self.row(lane, anchor, draft, seen.logits)
