"""The geometry of nodes in one lane's scratch rows: where they hang, their ancestors, and their mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LaneRows:
    """Rows to compute in one lane: `tokens` [w] and, for each, its parent among the lane's scratch rows.

    Parents come before children. A parent of -1 hangs the row on the trunk: on its end, or, where `bases` [w]
    is given, behind its first `bases[i]` tokens; later tokens of the trunk are invisible to that subtree.
    """

    lane: int
    tokens: Sequence[int]
    parents: Sequence[int]
    bases: Sequence[int] | None = None


@dataclass(slots=True)
class Scratch:
    """The nodes of one lane: for each, the trunk tokens it sees and its ancestors, itself included."""

    length: int = 0
    bases: list[int] = field(default_factory=list)
    ancestors: list[list[int]] = field(default_factory=list)

    def add(self, rows: LaneRows) -> int:
        """Append nodes; returns the index of the first of them."""
        first = len(self.ancestors)
        for index, parent in enumerate(rows.parents):
            root = parent < 0
            base = self.length if rows.bases is None else rows.bases[index]
            self.bases.append(base if root else self.bases[parent])
            self.ancestors.append([*([] if root else self.ancestors[parent]), len(self.ancestors)])
        return first

    def clear(self) -> None:
        """Forget all nodes."""
        self.bases.clear()
        self.ancestors.clear()

    def positions(self, first: int, width: int) -> NDArray[np.int64]:
        """Absolute positions [width] of the nodes from `first` on; padding rows get the trunk's end."""
        nodes = range(first, min(first + width, len(self.ancestors)))
        known = [self.bases[node] + len(self.ancestors[node]) - 1 for node in nodes]
        return np.array(known + [self.length] * (width - len(known)), dtype=np.int64)

    def visible(self, first: int, width: int, extent: int, window: int | None) -> NDArray[np.bool_]:
        """Mask [width, extent]: the trunk below each node and its ancestors, `window` positions back."""
        mask = np.zeros((width, extent), dtype=np.bool_)
        for row in range(width):
            node = first + row
            if node < len(self.ancestors):
                mask[row, : self.bases[node]] = True
                mask[row, [self.length + above for above in self.ancestors[node]]] = True
            else:
                mask[row, self.length + node] = True
        if window is not None:
            self._limit(mask, first, window)
        return mask

    def _limit(self, mask: NDArray[np.bool_], first: int, window: int) -> None:
        query = self.positions(first, mask.shape[0])
        key = np.arange(mask.shape[1], dtype=np.int64)
        nodes = self.positions(0, len(self.ancestors))
        key[self.length : self.length + len(nodes)] = nodes
        mask &= query[:, None] - key[None, :] < window
