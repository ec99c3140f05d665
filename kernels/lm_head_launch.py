"""The launch behind `lm_head_topk`: a pass over the vocabulary and a merge of its parts."""

from __future__ import annotations

from torch import Tensor

from dflash.kernels.attention_checks import interpreted
from dflash.kernels.lm_head_call import Choices, Draw, HeadScores
from dflash.kernels.lm_head_merge import merge_parts
from dflash.kernels.lm_head_plan import HeadPlan
from dflash.kernels.lm_head_scratch import HeadScratch
from dflash.kernels.lm_head_triton import score_chunks
from dflash.kernels.row_norm import CarriedNorm, launch_norm


def launch_head(
    hidden: Tensor, weight: Tensor, ids: Tensor | None, asked: Tensor | None, draw: Draw | None, scale: float,
    norm: CarriedNorm | None, eps: float, plan: HeadPlan, scratch: HeadScratch, out: HeadScores, pdl: bool,
) -> None:  # fmt: skip
    """Run both kernels; a tensor that is not there is stood in for by one that is not read."""
    rows, tile, read_norm = len(hidden), plan.tile, launch_norm(hidden, norm)
    spec = draw or Draw(hidden, hidden, hidden)
    choice = out.choice or Choices(*(4 * [out.lse]))
    count = 0 if asked is None else asked.shape[1]
    pdl = pdl and not interpreted()
    read = [hidden if t is None else t for t in (ids, asked, *spec[:3], spec.purposes, spec.paths)]
    found = out.lse if out.asked is None else out.asked
    shared = {
        "TOP": plan.top, "ASKED": 0 if asked is None else 1 << (count - 1).bit_length(),
        "DRAWS": draw is not None, "PURPOSES": spec.purposes is not None, "PATHS": spec.paths is not None,
        "MAPPED": ids is not None, "PDL": pdl, "launch_pdl": pdl,
    }  # fmt: skip
    score_chunks[(plan.row_tiles, plan.parts)](
        read_norm.x, weight, read_norm.squares, *read, *scratch, found,
        read_norm.x.stride(0), weight.stride(0), weight.shape[1],
        rows, len(weight), plan.share, count, scale, eps, read_norm.parts,
        BLOCK_N=plan.block_n, HALVES=1 if plan.block_n == 16 else 2, BLOCK_V=tile.block_v,
        BLOCK_D=tile.block_d, CELLS=plan.cells, STAGES=tile.stages, NORM=read_norm.parts_at_once,
        EVEN=weight.shape[1] % tile.block_d == 0, PREFETCH=tile.prefetch,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers, **shared,
    )  # fmt: skip
    merge_parts[(rows, 1 if draw is None else 2)](
        *read, *scratch, out.values, out.ids, out.lse, found, *choice,
        rows, plan.parts, plan.tiles, len(weight), count, out.ids.shape[1],
        LISTS=plan.merge_lists, TILES=plan.merge_tiles,
        num_warps=plan.merge_warps, num_stages=1, **shared,
    )  # fmt: skip
