"""What the launches of all small products have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dflash.kernels.product_plan import SMALL_WEIGHT, ProductPlan
from dflash.kernels.row_norm import NormLaunch

SQUARES_A_THREAD = 32


def _at_once(parts: int, warps: int, block_m: int) -> int:
    """How many parts of carried squares are loaded before the products: as many as registers allow."""
    most = SQUARES_A_THREAD * 32 * warps // block_m
    return min(1 << (parts - 1).bit_length(), most) if parts else 0


def asked_later(later: Tensor | None, pdl: bool) -> tuple[Tensor | None, int]:
    """The weight that a launch asks for ahead of its time, and its numbers; None where that is no gain."""
    if later is None or not pdl or later.numel() > SMALL_WEIGHT:
        return None, 0
    return later, later.numel()


def launch_options(plan: ProductPlan, depth: int, norm: NormLaunch, pdl: bool) -> dict[str, Any]:
    """The plan as the kernels' constants and the compiler's options."""
    tile = plan.tile
    return {
        "BLOCK_M": plan.block_m, "HALF": tile.half, "BLOCK_K": tile.block_k, "WAYS": tile.ways,
        "STAGES": tile.stages, "SPLITS": plan.splits, "EVEN": depth % (tile.block_k * tile.ways) == 0,
        "NORM": norm.own, "PARTS": _at_once(norm.parts, tile.warps, plan.block_m), "SWAP": tile.swap,
        "PREFETCH": tile.prefetch, "BULK": tile.bulk, "EARLY": tile.early, "PDL": pdl,
        "num_warps": tile.warps, "num_stages": tile.stages, "launch_pdl": pdl,
    }  # fmt: skip
