"""What a native forward reads: a few small tensors in one buffer, which one copy fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGN = 4


class StepInputs(NamedTuple):
    """The inputs of `lanes` lanes of `width` rows each; all are views of `flat`, int32."""

    flat: Tensor
    words: Tensor
    """int64 `[lanes, width]`: bit j says that a row sees cache row length + j."""
    tokens: Tensor
    """int32 `[lanes x width]`."""
    positions: Tensor
    """int32 `[lanes x width]`."""
    places: Tensor
    """int32 `[lanes x width, 2]`: lane and cache row; lane -1 is padding, and stores nothing."""
    lengths: Tensor
    """int32 `[lanes]`: trunk rows that every row of the lane sees."""

    @classmethod
    def make(
        cls, lanes: int, width: int, device: torch.device | str = "cpu", pinned: bool = False
    ) -> StepInputs:
        """Allocate; every row is padding and every lane empty."""
        flat = torch.zeros(cls.room(lanes, width), dtype=torch.int32, device=device, pin_memory=pinned)
        made = cls.of(flat, lanes, width)
        made.clear()
        return made

    @staticmethod
    def room(lanes: int, width: int) -> int:
        """32-bit words of all of them."""
        return _starts(lanes, width)[-1]

    @classmethod
    def of(cls, flat: Tensor, lanes: int, width: int) -> StepInputs:
        """Inputs that lie at the beginning of int32 `[any number]`, on 8 bytes."""
        rows = lanes * width
        words, tokens, positions, places, lengths, end = _starts(lanes, width)
        return cls(
            flat[:end],
            flat[words : words + 2 * rows].view(torch.int64).view(lanes, width),
            flat[tokens : tokens + rows],
            flat[positions : positions + rows],
            flat[places : places + 2 * rows].view(rows, 2),
            flat[lengths : lengths + lanes],
        )

    def clear(self) -> None:
        """Make every row padding and every lane empty."""
        self.flat.zero_()
        self.places[:, 0] = -1

    def set_lane(self, lane: int, length: int, rows: Sequence[LaneRow]) -> None:
        """Fill a lane's first rows; `length` trunk rows are seen by all."""
        width = self.words.shape[1]
        at = slice(lane * width, lane * width + len(rows))
        columns = list(zip(*rows, strict=True))
        self.tokens[at] = torch.tensor(columns[0], dtype=torch.int32)
        self.positions[at] = torch.tensor(columns[1], dtype=torch.int32)
        self.places[at, 0] = lane
        self.places[at, 1] = torch.tensor(columns[2], dtype=torch.int32)
        self.words[lane, : len(rows)] = torch.tensor([signed(word) for word in columns[3]])
        self.lengths[lane] = length


class LaneRow(NamedTuple):
    """One row of a lane."""

    token: int
    position: int
    row: int
    """Its cache row."""
    word: int
    """The rows from the lane's length on that it sees, as bits."""


def _starts(lanes: int, width: int) -> list[int]:
    """Where the tensors begin in 32-bit words, and where the last one ends."""
    rows, starts = lanes * width, [0]
    for count in (2 * rows, rows, rows, 2 * rows, lanes):
        starts.append(starts[-1] + -(-count // _ALIGN) * _ALIGN)
    return starts


def signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
