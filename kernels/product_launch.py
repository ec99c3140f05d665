"""What the launches of all small products have in common."""

from __future__ import annotations

from typing import Any

from dflash.kernels.product_plan import ProductPlan
from dflash.kernels.row_norm import NormLaunch


def launch_options(plan: ProductPlan, depth: int, norm: NormLaunch, pdl: bool) -> dict[str, Any]:
    """The plan as the kernels' constants and the compiler's options."""
    tile = plan.tile
    return {
        "BLOCK_M": plan.block_m, "HALF": tile.half, "BLOCK_K": tile.block_k, "WAYS": tile.ways,
        "STAGES": tile.stages, "SPLITS": plan.splits, "EVEN": depth % (tile.block_k * tile.ways) == 0,
        "NORM": norm.own, "PARTS": norm.parts_at_once, "SWAP": tile.swap, "PREFETCH": tile.prefetch,
        "BULK": tile.bulk, "EARLY": tile.early, "PDL": pdl, "num_warps": tile.warps, "num_stages": tile.stages,
        "launch_pdl": pdl,
    }  # fmt: skip
