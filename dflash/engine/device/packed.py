"""Encoded features of committed rows: a ring that rounds fill on the device, emptied by the host.

How many rows a chain commits is known once its record is read; nothing but these is copied.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.engine.device.arrays import Packed
from dflash.kernels.feature_codes import Encoding
from dflash.kernels.pack_features import feature_ring

Bytes = NDArray[np.uint8]


class PackedRows:
    """The ring of a chain's rounds.

    Attributes:
        ring: that rounds write to.
    """

    def __init__(
        self, rows: int, width: int, encoding: Encoding, device: torch.device, chains: int, least: int
    ) -> None:
        """Allocate.

        Args:
            rows: that a chain commits at most.
            width: numbers a row.
            encoding: of them.
            device: of the rounds.
            chains: that may be queued before the first of them is read.
            least: rows that a round asks room for.
        """
        self.ring = feature_ring(max(chains * rows, least), width, encoding, device)
        self._sources = [self.ring.values.view(torch.uint8), *_some(self.ring.scales)]
        self._pinned: list[Tensor] = []
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._pinned = [
                torch.empty((rows, source.shape[1]), dtype=source.dtype, pin_memory=True)
                for source in self._sources
            ]

    def read(self, first: int, end: int) -> Packed:
        """Rows of a chain whose record was read, in the order of all rows ever.

        On a GPU they are lent: the next call writes over them.
        """
        start, count = first % len(self.ring.values), end - first
        goals = [goal[:count] for goal in self._pinned]
        if not goals:
            goals = [source.new_empty((count, source.shape[1])) for source in self._sources]
            self._copy(goals, start, count)
            return _packed(goals, lent=False)
        with torch.cuda.stream(self._stream):
            self._copy(goals, start, count)
        # rounds that are queued run on meanwhile
        self._stream.synchronize()
        return _packed(goals, lent=True)

    def _copy(self, goals: list[Tensor], start: int, count: int) -> None:
        before = min(count, len(self.ring.values) - start)
        for goal, source in zip(goals, self._sources, strict=True):
            goal[:before].copy_(source[start : start + before], non_blocking=True)
            if before < count:
                goal[before:].copy_(source[: count - before], non_blocking=True)


def _some(scales: Tensor | None) -> Iterator[Tensor]:
    if scales is not None:
        yield scales


def _packed(goals: list[Tensor], *, lent: bool) -> Packed:
    values, *scales = (goal.numpy() for goal in goals)
    return Packed(values, scales[0] if scales else None, lent)
