"""The geometry of nodes in one lane's scratch rows: depths, ancestors, and the mask that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LaneRows:
    """Rows to compute in one lane: `tokens` [w] and, for each, its parent among the lane's scratch rows.

    A parent of -1 hangs the row on the end of the trunk; parents come before children.
    """

    lane: int
    tokens: Sequence[int]
    parents: Sequence[int]


@dataclass(slots=True)
class Scratch:
    """The nodes that follow one lane's trunk, as ancestor lists (each node's own index included)."""

    length: int = 0
    ancestors: list[list[int]] = field(default_factory=list)

    def add(self, parents: Sequence[int]) -> int:
        """Append nodes; returns the index of the first of them."""
        first = len(self.ancestors)
        for parent in parents:
            above = [] if parent < 0 else self.ancestors[parent]
            self.ancestors.append([*above, len(self.ancestors)])
        return first

    def positions(self, first: int, width: int) -> NDArray[np.int64]:
        """Absolute positions [width] of the nodes from `first` on; padding rows get the trunk's end."""
        depths = [len(line) - 1 for line in self.ancestors[first : first + width]]
        depths += [0] * (width - len(depths))
        return self.length + np.asarray(depths, dtype=np.int64)

    def visible(self, first: int, width: int, extent: int, window: int | None) -> NDArray[np.bool_]:
        """Mask [width, extent]: the trunk and each node's ancestors, within `window` positions if given."""
        mask = np.zeros((width, extent), dtype=np.bool_)
        mask[:, : self.length] = True
        for row in range(width):
            index = first + row
            line = self.ancestors[index] if index < len(self.ancestors) else [index]
            mask[row, [self.length + node for node in line]] = True
        if window is not None:
            self._limit(mask, first, window)
        return mask

    def _limit(self, mask: NDArray[np.bool_], first: int, window: int) -> None:
        query = self.positions(first, mask.shape[0])
        key = np.arange(mask.shape[1], dtype=np.int64)
        nodes = self.positions(0, len(self.ancestors))
        key[self.length : self.length + len(nodes)] = nodes
        mask &= query[:, None] - key[None, :] < window
