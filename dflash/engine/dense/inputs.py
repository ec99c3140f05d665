"""What a group of anchors asks of the dense pass's lanes: one row of int32 words, copied at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash.engine.lane import Lane
from dflash.kernels.philox import word_bits
from dflash.kernels.round_lanes import RoundLanes

_SCALARS = ("live", "lengths", "anchors")
_HEATS = ("temperatures", "draft_temperatures")


class Heats(NamedTuple):
    """A request's temperatures, the target's and the drafter's."""

    target: float
    draft: float


class DenseInputs(NamedTuple):
    """The words of a group, and views of them."""

    flat: Tensor
    """int32 `[words]`."""
    lanes: RoundLanes
    trunk: Tensor
    """int32 `[tokens, lanes]`: the trunk's tokens behind each anchor; at its end, the last one again."""

    @classmethod
    def make(cls, lanes: int, tokens: int, device: torch.device) -> DenseInputs:
        """Allocate for lanes that look `tokens` tokens ahead."""
        flat = torch.zeros((7 + tokens) * lanes, dtype=torch.int32, device=device)
        rows = flat.view(-1, lanes)
        views = dict(zip(_SCALARS, rows, strict=False))
        views |= {name: rows[3 + place].view(torch.float32) for place, name in enumerate(_HEATS)}
        views["keys"] = rows[5:7].view(lanes, 2)
        return cls(flat, RoundLanes.make(lanes, device)._replace(**views), rows[7:])

    def words_of(self, lane: Lane, groups: Sequence[Sequence[int]], heats: Heats) -> Tensor:
        """Words int32 `[groups, words]` of groups of a request's anchors, where the lanes are."""
        tokens, lanes = self.trunk.shape
        words = np.zeros((len(groups), 7 + tokens, lanes), dtype=np.int32)
        trunk = np.array(lane.trunk, dtype=np.int32)
        words[:, 3:5] = np.array(heats, dtype=np.float32).view(np.int32)[:, None]
        key = word_bits(torch.tensor(lane.request.key)).numpy()
        words[:, 5:7] = np.tile(key, lanes).reshape(2, lanes)
        for group, positions in zip(words, groups, strict=True):
            at = np.array(positions)
            ahead = np.minimum(at + 1 + np.arange(tokens)[:, None], len(trunk) - 1)
            group[0, : len(at)] = 1
            group[1, : len(at)], group[2, : len(at)] = at, trunk[at]
            group[7:, : len(at)] = trunk[ahead]
        found = torch.from_numpy(words.reshape(len(groups), -1))
        if self.flat.is_cuda:
            found = found.pin_memory()
        return found.to(self.flat.device, non_blocking=True)
