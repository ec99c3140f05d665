"""The launch behind `tree_attention` and `block_attention`: one or two Triton kernels."""

from __future__ import annotations

from torch import Tensor

from dflash.kernels.attention_checks import Sizes, interpreted
from dflash.kernels.attention_plan import Plan
from dflash.kernels.attention_scratch import Scratch
from dflash.kernels.attention_triton import attend_chunks, merge_chunks

LOG2_E = 1.4426950408889634


def launch(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, words: Tensor | None, pages: Tensor | None, out: Tensor,
    sizes: Sizes, scale: float, chosen: Plan, scratch: Scratch, pdl: bool,
) -> None:  # fmt: skip
    """Run the chunk kernel, and the merge kernel if there is one and a lane can have two chunks."""
    tile = chosen.tile
    rows = chosen.row_tiles * tile.block_m
    batch_pad = 1 << (sizes.batch - 1).bit_length()
    pdl = pdl and not interpreted()
    shared = {
        "GROUP": sizes.group, "HEAD": sizes.head, "HEAD_PAD": chosen.head_pad, "BATCH_PAD": batch_pad,
        "BLOCK_N": tile.block_n, "MAX_PARTS": chosen.max_parts, "MERGE_ROWS": chosen.merge_rows,
        "MERGE_SPLITS": chosen.merge_splits, "PDL": pdl,
    }  # fmt: skip
    attend_chunks[(chosen.row_tiles, sizes.kv_heads, chosen.grid_items)](
        q, k, v, q if words is None else words, lengths, q if pages is None else pages, out, *scratch,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        0 if pages is None else pages.stride(0), 0 if words is None else words.stride(0),
        scale * LOG2_E, sizes.batch, sizes.queries, sizes.tail,
        chosen.items, chosen.min_chunk, sizes.capacity,
        BLOCK_M=tile.block_m, STAGES=tile.stages, PAGE=sizes.page, TREE=words is not None, TICKET=tile.ticket,
        COMPILED=not interpreted(), PREFETCH=tile.prefetch, TWO_LOOPS=tile.two_loops, **shared,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers, launch_pdl=pdl,
    )  # fmt: skip
    if tile.ticket or chosen.grid_items == 1:
        return
    blocks = -(-sizes.queries * sizes.group // chosen.merge_rows)
    merge_chunks[(blocks, sizes.kv_heads, sizes.batch)](
        lengths, out, scratch.part_o, scratch.part_l, *out.stride()[:3],
        sizes.batch, sizes.queries, sizes.tail, chosen.items, chosen.min_chunk,
        ROWS_ALL=rows, **shared, num_warps=tile.merge_warps, num_stages=1, launch_pdl=pdl,
    )  # fmt: skip
