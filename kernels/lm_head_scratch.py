"""Scratch memory of `lm_head_topk`: what the parts of the vocabulary leave for their merge."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.errors import ShapeRefused
from dflash.kernels.lm_head_plan import RACERS, HeadPlan


class HeadScratch(NamedTuple):
    """What the parts leave for the merge; one stream at a time may use it."""

    keys: Tensor
    """int64 `[rows, parts, top]`: logits with their ids."""
    sums: Tensor
    """float32 `[3, rows, tiles]`: largest logit, sum of exp(l - m), the same over the temperature."""
    picks: Tensor
    """int64 `[rows, tiles, 2]`: the two best of each tile's race, as scores with their ids."""
    logits: Tensor
    """float32 `[rows, tiles, 2]`: their logits."""
    borders: Tensor
    """int32 `[rows, top + 2]`: orders that values of each row have reached, `lm_head_borders`; the lowest
    between launches: the merge puts them back."""


def make_head_scratch(hidden: Tensor, plan: HeadPlan) -> HeadScratch:
    """Allocate what a launch of this plan needs."""
    rows = len(hidden)
    keys = torch.empty((rows, plan.parts, plan.top), dtype=torch.int64, device=hidden.device)
    sums = torch.empty((3, rows, plan.tiles), dtype=torch.float32, device=hidden.device)
    picks = torch.empty((rows, plan.tiles, 2), dtype=torch.int64, device=hidden.device)
    borders = torch.full((rows, plan.top + RACERS), -(1 << 31), dtype=torch.int32, device=hidden.device)
    return HeadScratch(keys, sums, picks, torch.empty_like(picks, dtype=torch.float32), borders)


def fitting_head_scratch(scratch: HeadScratch | None, hidden: Tensor, plan: HeadPlan) -> HeadScratch:
    """Return the given scratch if it is that of this launch, or new scratch if none is given.

    Raises:
        ShapeRefused: it was made for another shape, mode or tile.
    """
    if scratch is None:
        return make_head_scratch(hidden, plan)
    wanted = (len(hidden), plan.parts, plan.top, plan.tiles)
    found = (*scratch.keys.shape, scratch.sums.shape[-1])
    if found != wanted:
        raise ShapeRefused("scratch", f"{wanted} from this call's sizes", found)
    return scratch
