"""Rows of device rounds whose lanes verified parts of the tree, each in a shape of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash.drafters.base import DraftShape
from dflash.engine.device_law import LaneLaw
from dflash.engine.device_record import Arrays
from dflash.engine.device_rows import Place, RowMaker, lanes_of
from dflash.engine.judge import Row
from dflash.kernels.round_lanes import RoundTree

_NODES = ("node_token", "node_rank", "log_q", "draft_gap", "margin", "confidence", "node_logit", "node_mass")
_SLOTS = ("slot_ids", "slot_logits", "choice", "choice_logit", "gap", "lse", "lse_p", "entropy")
_SEEN = ("draft_lse", "draft_ids", "draft_logits", "draft_target")


class ShapedRows:
    """Makes rows of lanes that were cut to shapes within one tree: those of a live draft of that shape."""

    def __init__(self, tree: RoundTree, store_topk: int) -> None:
        self.length, self.branches, self.store_topk = tree.length, tree.branches, store_topk
        self._makers: dict[DraftShape, RowMaker] = {}

    def rows(
        self, records: Arrays, taken: Sequence[Place], laws: Sequence[LaneLaw], shapes: Sequence[DraftShape]
    ) -> list[Row]:
        """See `RowMaker.rows`; `shapes` are those that the lanes were cut to."""
        of_lanes = lanes_of(records, taken)
        inside = [self._inside(shape) for shape in shapes]
        found: dict[int, Row] = {}
        for shape in dict.fromkeys(inside):
            places = [place for place, other in enumerate(inside) if other == shape]
            part = {name: values[places] for name, values in of_lanes.items()}
            rows = self._maker(shape).rows_of(self._cut(part, shape), [laws[place] for place in places])
            found.update(zip(places, rows, strict=True))
        return [found[place] for place in range(len(taken))]

    def _inside(self, shape: DraftShape) -> DraftShape:
        return DraftShape(min(shape.length, self.length), min(shape.branches, self.branches))

    def _maker(self, shape: DraftShape) -> RowMaker:
        if shape not in self._makers:
            tree = RoundTree.make(shape.length, shape.branches, 1, "cpu")
            parents = tree.parents[0].tolist()
            self._makers[shape] = RowMaker(parents, tree.expanded, shape.branches, self.store_topk)
        return self._makers[shape]

    def _cut(self, of_lanes: Arrays, shape: DraftShape) -> Arrays:
        """What a record of the smaller tree would hold."""
        length, branches = shape.length, shape.branches
        if (length, branches) == (self.length, self.branches):
            return of_lanes
        node = np.arange(self.length * self.branches)
        kept = np.flatnonzero((node // self.branches < length) & (node % self.branches < branches))
        slots = np.concatenate([[0], kept + 1])
        expanded = slots[: 1 + (length - 1) * branches if length else 0]
        # a path's -1 reads the last place
        place = np.full(len(node) + 1, -1, dtype=np.int32)
        place[kept] = np.arange(len(kept))
        cut = {"path": place[of_lanes["path"]][:, : len(kept)]}
        for names, where in ((_NODES, kept), (_SLOTS, slots), (_SEEN, expanded)):
            cut |= {name: of_lanes[name][:, where] for name in names}
        if length and branches < self.branches:
            # the best sibling that was left out is the first one that was cut
            cut["draft_gap"][:, :branches] -= of_lanes["draft_gap"][:, branches : branches + 1]
        return of_lanes | cut
