"""Scratch memory of the attention kernels: what the chunks leave for their merge."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Sizes, check_choice
from dflash.kernels.attention_plan import Mode, Plan, Tile, plan
from dflash.kernels.errors import ShapeRefused


class Scratch(NamedTuple):
    """Memory between the chunks and their merge; one stream at a time may use it."""

    part_o: Tensor
    part_l: Tensor
    tickets: Tensor
    """int32 counters, zero between launches: the merging program puts them back."""


def make_scratch(q: Tensor, sizes: Sizes, chosen: Plan) -> Scratch:
    """Allocate what a launch of these sizes needs."""
    tile = chosen.tile
    rows = chosen.row_tiles * tile.block_m
    outer = (chosen.grid_items, sizes.kv_heads, rows)
    counters = sizes.batch * sizes.kv_heads * chosen.row_tiles if tile.ticket else 0
    return Scratch(
        torch.empty((*outer, sizes.head), dtype=q.dtype if tile.half else torch.float32, device=q.device),
        torch.empty(outer, dtype=torch.float32, device=q.device),
        torch.zeros(counters, dtype=torch.int32, device=q.device),
    )


def fitting_scratch(scratch: Scratch | None, q: Tensor, sizes: Sizes, chosen: Plan) -> Scratch:
    """Return the given scratch if it is that of this launch, or new scratch if none is given.

    Raises:
        ShapeRefused: it was made for another shape, mode or tile.
    """
    if scratch is None:
        return make_scratch(q, sizes, chosen)
    rows = chosen.row_tiles * chosen.tile.block_m
    outer = (chosen.grid_items, sizes.kv_heads, rows)
    counters = sizes.batch * sizes.kv_heads * chosen.row_tiles if chosen.tile.ticket else 0
    if tuple(scratch.part_o.shape) != (*outer, sizes.head) or scratch.tickets.numel() != counters:
        raise ShapeRefused("scratch", f"{(*outer, sizes.head)} from this call's sizes", scratch.part_o.shape)
    return scratch


def make_plan(sizes: Sizes, mode: Mode, tile: Tile | None) -> Plan:
    """Choose the launch of an attention call.

    Raises:
        ChoiceRefused: a mode that does not exist.
    """
    check_choice("mode", Mode, mode)
    return plan(
        sizes.batch, sizes.queries, sizes.kv_heads, sizes.group, sizes.head, sizes.capacity, mode, tile
    )
