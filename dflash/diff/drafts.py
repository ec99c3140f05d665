"""Whether the same contexts were given the same drafts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dflash.diff.aligned import Aligned
from dflash.diff.changes import ColumnChange
from dflash.diff.decisions import exact, list_elements
from dflash.diff.shapes import Bounds, are_cuts


@dataclass(slots=True)
class Drafts:
    """Counts over rows with the same context in which either side drafted.

    Attributes:
        same_trees: rows with the same nodes in the same order.
        first, same_first: rows in which both drafted, and those whose first node is the same token.
        nodes_a, nodes_b: drafted nodes.
        common: nodes whose tokens on the path from the anchor are the same on both sides.
        cut: rows with other trees, one of which is the other cut as the headers ask for; told in the causes.
    """

    rows: int = 0
    same_trees: int = 0
    first: int = 0
    same_first: int = 0
    nodes_a: int = 0
    nodes_b: int = 0
    common: int = 0
    cut: int = 0

    def add(
        self, aligned: Aligned, changes: dict[str, ColumnChange | None], bounds: tuple[Bounds, Bounds]
    ) -> None:
        """Count trees; `changes` take `node_token` and `node_parent`, tree by tree."""
        nodes, rows = aligned.nodes, aligned.rows
        some = (nodes.count_a > 0) | (nodes.count_b > 0)
        matched = np.bincount(nodes.pair, minlength=len(some))
        in_order = np.bincount(nodes.pair[nodes.a == nodes.b], minlength=len(some))
        whole = (matched == nodes.count_a) & (matched == nodes.count_b) & (in_order == matched)
        both = (nodes.count_a > 0) & (nodes.count_b > 0)
        zero = np.zeros_like(rows.a)
        first_a = aligned.a.flat("node_token").take(rows.a, zero).value
        first_b = aligned.b.flat("node_token").take(rows.b, zero).value
        self.rows += int(some.sum())
        self.same_trees += int((some & whole).sum())
        self.first += int(both.sum())
        self.same_first += int((both & (first_a == first_b)).sum())
        self.nodes_a += int(nodes.count_a.sum())
        self.nodes_b += int(nodes.count_b.sum())
        self.common += len(nodes.pair)
        if not whole[some].all():
            # equal nodes in another order are no cut
            moved = (matched == nodes.count_a) & (matched == nodes.count_b)
            self.cut += int((some & ~whole & ~moved & are_cuts(aligned, *bounds)).sum())
        for name, change in changes.items():
            if change is not None:
                # only trees that differ are worth the objects
                change.compared += int((some & whole).sum())
                exact(change, aligned, list_elements(aligned, name, some & ~whole))

    @property
    def differ(self) -> bool:
        return self.same_trees != self.rows

    @property
    def only_cut(self) -> bool:
        """Whether trees differ, and none but by a cut."""
        return self.differ and self.same_trees + self.cut == self.rows

    def to_dict(self) -> dict[str, Any]:
        return {name: count for name, count in asdict(self).items() if name != "cut"}
