"""Scratch memory of the small products: what the splits of a depth leave for the program that ends last."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.errors import ShapeRefused
from dflash.kernels.product_plan import ProductPlan


class ProductScratch(NamedTuple):
    """Memory between the splits and their sum; one stream at a time may use it."""

    parts: Tensor
    """float32: for each split and tile two tiles of the output."""
    squares: Tensor
    """float32: for each split and tile the sums of squares of the rows."""
    tickets: Tensor
    """int32 counters, zero between launches: the summing program puts them back."""


def sizes_of(plan: ProductPlan) -> tuple[int, int, int]:
    """Numbers that a launch needs in each part."""
    if plan.splits == 1:
        return 0, 0, 0
    tiles = plan.row_tiles * plan.column_tiles
    rows = plan.splits * tiles * plan.block_m
    return 2 * rows * plan.tile.half, rows, tiles


def product_scratch(plans: list[ProductPlan], device: torch.device) -> ProductScratch:
    """Allocate scratch memory once for launches that follow each other on one stream."""
    parts, squares, tickets = (max(found) for found in zip(*map(sizes_of, plans), strict=True))
    return ProductScratch(
        torch.empty(parts, dtype=torch.float32, device=device),
        torch.empty(squares, dtype=torch.float32, device=device),
        torch.zeros(tickets, dtype=torch.int32, device=device),
    )


def fitting_product_scratch(
    scratch: ProductScratch | None, plan: ProductPlan, device: torch.device
) -> ProductScratch:
    """Return the given scratch if this launch fits into it, or new scratch if none is given.

    Raises:
        ShapeRefused: it was made for smaller launches.
    """
    if scratch is None:
        return product_scratch([plan], device)
    for name, tensor, need in zip(ProductScratch._fields, scratch, sizes_of(plan), strict=True):
        if tensor.numel() < need:
            raise ShapeRefused(f"scratch.{name}", f"at least {need} numbers", tensor.shape)
    return scratch
