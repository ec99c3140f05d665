"""The kernels behind `draft_best`: a pass for the next token by depth, then one for what is kept of all."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.lm_head_draw import finite
from dflash.kernels.round_best import BLOCK, BestScratch
from dflash.kernels.round_draft import DraftColumns, DraftLaw, LowRank
from dflash.kernels.round_draft_triton import (
    HELD,
    bias_of,
    candidates,
    leave_sums,
    load_factor,
    slot_at,
    store_lse,
)
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import BLOCK as KEPT_BLOCK
from dflash.kernels.round_slots import cell_of, cells_of, power, row_stride
from dflash.kernels.round_slots_triton import TILE_WARPS, merge_warps
from dflash.kernels.row_cells import leave_cells, search_plan
from dflash.kernels.sort_keys import NO_KEY, NO_ORDER, id_of_key, key_of, order_of_key, ordered, value_of

# rows that one program may take; they share a factor in its registers
GROUP = 8
# programs of a level from which on rows are grouped
PROGRAMS = 768
LEAD_WARPS = 4
# so that six programs fit into a multiprocessor, and `PROGRAMS` into a device
LEAD_REGISTERS = 80
EVEN = 16


@triton.jit
def _tokens_before(
    Leads, Map, Before, there, lane, inner, above, before_apart, before_at,
    FIRST: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """Tokens that rows hang on, those that are there already or the best of the level above; 0 for none."""
    if FIRST:
        token = tl.load(Before + lane * before_apart + before_at + inner, mask=there, other=-1)
        return tl.maximum(token, 0), token >= 0
    best = tl.load(Leads + above, mask=there, other=NO_KEY)
    alive = (best != NO_KEY) & (tl.abs(value_of(order_of_key(best))) < float("inf"))
    token = tl.where(alive, id_of_key(best), 0)
    if MAPPED:
        token = tl.load(Map + token, mask=alive, other=0)
    return token, alive


@triton.jit
def _leave_level(Orders, PartSums, Lead, at, apart, logits, ids, real, alive, CELL: tl.constexpr):
    """Leave what is kept of each cell of a tile, and offer the tile's best key to its slot."""
    CELLS: tl.constexpr = logits.shape[0] // CELL
    keys = tl.where(real, key_of(ordered(logits), ids), NO_KEY)
    best = tl.max(tl.reshape(keys, [CELLS, CELL]), 1)
    order = order_of_key(best)
    highest = tl.where(order == NO_ORDER, -float("inf"), value_of(order))
    below = tl.reshape(logits, [CELLS, CELL]) - finite(highest)[:, None]
    cell = at + tl.arange(0, CELLS)
    tl.store(Orders + cell, order)
    tl.store(PartSums + cell, highest)
    tl.store(PartSums + apart + cell, tl.sum(tl.exp(below), 1))
    # the largest of all, whoever comes first
    tl.atomic_max(Lead, tl.max(best, 0), mask=alive, sem="relaxed")


@triton.jit
def _row_before(Table, tokens, place, there, rank: tl.constexpr, HOLDS: tl.constexpr, RANK: tl.constexpr):
    """The token that one row of a group hangs on, and that token's row of the table where it is held."""
    r = tl.arange(0, RANK if HOLDS else 1)
    token = tl.sum(tl.where(tl.arange(0, tokens.shape[0]) == place, tokens, 0), 0)
    row = tl.load(Table + token.to(tl.int64) * rank + r, mask=(r < rank) & there & HOLDS, other=0.0)
    return token, row.to(tl.float32)


@triton.jit(
    do_not_specialize=[
        "rows", "each", "per", "depth", "expanded", "branches", "before_apart", "before_at", "rows_all",
    ]
)  # fmt: skip
def lead_tiles(
    Logits, Table, Factor, Map, Before, Biased, Orders, PartSums, Leads, Rooted,
    lane_apart, row_apart, rows, each, per, depth, expanded, branches, before_apart, before_at, vocabulary,
    rows_all, rank: tl.constexpr,
    BLOCK_V: tl.constexpr, CELL: tl.constexpr, ROWS: tl.constexpr, RANK: tl.constexpr, FIRST: tl.constexpr,
    MAPPED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Bias a tile of `each` rows' logits and leave what is kept of it; grid (groups of rows, tiles).

    How many rows there are is no constant of the program, so that no row's bits depend on it.
    """
    begin, tile = tl.program_id(0) * each, tl.program_id(1)
    count = tl.minimum(each, rows - begin)
    ids = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    real = ids < vocabulary
    if FIRST and PDL:
        tl.extra.cuda.gdc_wait()
    # where an earlier level ran before this one, what it has waited for is there
    level = Logits + (depth - 1) * row_apart
    ahead = tl.load(level + (begin // per).to(tl.int64) * lane_apart + ids, mask=real, other=-float("inf"))
    HOLDS: tl.constexpr = RANK <= HELD
    held = load_factor(Factor, ids, real & HOLDS, 0, rank, RANK if HOLDS else 1).to(tl.float32)
    if PDL:
        if not FIRST:
            tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    place = tl.arange(0, ROWS)
    lane, inner, there = (begin + place) // per, (begin + place) % per, place < count
    tokens, alive = _tokens_before(
        Leads, Map, Before, there, lane, inner, slot_at(lane, depth - 1, inner, expanded, branches),
        before_apart, before_at, FIRST, MAPPED,
    )  # fmt: skip
    mine = there & (tile == 0)
    tl.store(Rooted + slot_at(lane, depth, inner, expanded, branches), alive.to(tl.int32), mask=mine)
    after, column = _row_before(Table, tokens, 0, True, rank, HOLDS, RANK)
    PART: tl.constexpr = BLOCK_V // CELL
    cells = tl.num_programs(1) * PART
    for i in tl.range(0, count):
        row, token, logits, weights = begin + i, after, ahead, column
        slot = slot_at(row // per, depth, row % per, expanded, branches).to(tl.int64)
        more = i + 1 < count
        base = level + ((row + 1) // per).to(tl.int64) * lane_apart
        ahead = tl.load(base + ids, mask=real & more, other=-float("inf"))
        after, column = _row_before(Table, tokens, i + 1, more, rank, HOLDS, RANK)
        if HOLDS:
            bias = tl.sum(held * weights[None, :], 1)
        else:
            bias = bias_of(Factor, Table, token, ids, real, rank, RANK)
        biased = tl.where(real, logits.to(tl.float32) + bias, -float("inf"))
        tl.store(Biased + slot * vocabulary + ids, biased, mask=real)
        lives = tl.max(tl.where(place == i, alive.to(tl.int32), 0), 0) > 0
        at, apart = slot * cells + tile * PART, rows_all.to(tl.int64) * cells
        _leave_level(Orders, PartSums, Leads + slot, at, apart, biased, ids, real, lives, CELL)


@triton.jit
def _depth_of(row, slots, first, branches):
    """Lane, depth and place in its level of a row of all slots from depth `first` on."""
    lane, place = row // slots, row % slots
    begun = tl.where(first == 1, 1, branches)
    depth = tl.where(place < begun, first, first + 1 + (place - begun) // branches)
    inner = tl.where(place < begun, place, (place - begun) % branches)
    return lane, depth, inner


@triton.jit(do_not_specialize=["slots", "first", "expanded", "branches", "rows_all"])
def kept_tiles(
    Logits, Orders, PartSums, lane_apart, row_apart,
    slots, first, expanded, branches, vocabulary, rows_all,
    BLOCK_V: tl.constexpr, CELL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What is kept of a tile of one slot's logits, which have no bias; grid (lanes x slots, tiles)."""
    row, tile = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane, depth, inner = _depth_of(row, slots, first, branches)
    slot = slot_at(lane, depth, inner, expanded, branches)
    ids = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    base = Logits + lane.to(tl.int64) * lane_apart + (depth - 1) * row_apart
    logits = tl.load(base + ids, mask=ids < vocabulary, other=-float("inf")).to(tl.float32)
    at, apart = slot * tl.num_programs(1) + tile, rows_all * tl.num_programs(1)
    order = tl.where(ids < vocabulary, ordered(logits), NO_ORDER)
    leave_sums(PartSums, at, apart, logits, order)
    leave_cells(Orders, at, order, CELL)


@triton.jit
def _rooted(
    PartSums, Before, lane, depth, inner, first, expanded, branches, before_apart, before_at, tiles,
    TILES: tl.constexpr, DEPTHS: tl.constexpr,
):  # fmt: skip
    """Whether everything that a node hangs on could be drafted, by the largest logits of slots above."""
    above, tile = tl.arange(0, DEPTHS), tl.arange(0, TILES)
    between = (above >= first) & (above < depth)
    slot = slot_at(lane, tl.maximum(above, 1), inner, expanded, branches)
    there = between[:, None] & (tile < tiles)[None, :]
    highest = tl.load(PartSums + slot[:, None] * tiles + tile[None, :], mask=there, other=-float("inf"))
    best = value_of(tl.max(tl.where(there, ordered(highest), NO_ORDER), 1))
    lacks = tl.sum((between & ~(tl.abs(best) < float("inf"))).to(tl.int32), 0)
    root = tl.load(Before + lane * before_apart + before_at + inner)
    return (root >= 0) & (lacks == 0)


@triton.jit(
    do_not_specialize=[
        "slots", "first", "nodes", "expanded", "branches", "rows_out", "before_apart", "before_at", "cells",
        "tiles", "top", "rows_all",
    ]
)  # fmt: skip
def keep_best(
    Logits, Biased, Orders, PartSums, Leads, Rooted, Map, Before,
    Tokens, Ranks, LogQ, Gaps, Margins, Lse, Ids, Values, Rows,
    lane_apart, row_apart, vocabulary,
    slots, first, nodes, expanded, branches, rows_out, before_apart, before_at, cells, tiles, top, rows_all,
    CELLS: tl.constexpr, SPAN: tl.constexpr, CELL: tl.constexpr, FINE: tl.constexpr, TOP: tl.constexpr,
    TILES: tl.constexpr, WIDTH: tl.constexpr,
    DEPTHS: tl.constexpr, BIASED: tl.constexpr, MAPPED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store what is kept of one slot and the node under it; grid (lanes x slots, 2), the sum beside."""
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane, depth, inner = _depth_of(row, slots, first, branches)
    slot = slot_at(lane, depth, inner, expanded, branches)
    if tl.program_id(1) == 1:
        store_lse(Lse, PartSums, slot, slot, rows_all, tiles, TILES)
        return
    if BIASED:
        base = Biased + slot.to(tl.int64) * vocabulary
        rooted = tl.load(Rooted + slot) > 0
        tl.store(Leads + slot, NO_KEY)
    else:
        base = Logits + lane.to(tl.int64) * lane_apart + (depth - 1) * row_apart
        rooted = _rooted(
            PartSums, Before, lane, depth, inner, first, expanded, branches, before_apart, before_at, tiles,
            TILES, DEPTHS,
        )  # fmt: skip
    value, token = candidates(
        Orders, base, Map, Ids, Values, slot, slot, cells, vocabulary, top, CELLS, SPAN, CELL, FINE,
        TOP, MAPPED,
    )  # fmt: skip
    place = tl.arange(0, TOP)
    best = tl.sum(tl.where(place == 0, value, 0.0), 0)
    second = tl.sum(tl.where(place == 1, value, 0.0), 0)
    possible, followed = tl.abs(best) < float("inf"), tl.abs(second) < float("inf")
    lead = tl.where(possible, best, 0.0) - tl.where(followed, second, 0.0)
    alone = tl.where(possible, float("inf"), float("nan"))
    there = rooted & possible
    chosen = tl.where(there, tl.sum(tl.where(place == 0, token, 0), 0), 0)
    node = (depth - 1) * branches + inner
    at = lane * nodes + node
    tl.store(Tokens + at, tl.where(there, chosen, -1))
    tl.store(Ranks + at, 0)
    tl.store(LogQ + at, 0.0)
    tl.store(Gaps + at, tl.where(there & followed & (WIDTH > 1), lead, float("nan")))
    tl.store(Margins + at, tl.where(followed, lead, alone))
    tl.store(Rows + lane * rows_out + 1 + node, chosen)


def launch_best(
    logits: Tensor, bias: LowRank | None, law: DraftLaw, tree: RoundTree, lanes: RoundLanes,
    out: DraftColumns, ids: Tensor | None, first: int, scratch: BestScratch, pdl: bool,
) -> None:  # fmt: skip
    """Run the levels that depend on each other, then both passes over all of them."""
    count, branches, vocabulary = len(lanes.lengths), tree.branches, logits.shape[2]
    apart = (logits.stride(0), row_stride(logits))
    before, *hangs = (lanes.anchors, 1, 0) if first == 1 else (out.tokens, tree.nodes, 0)
    mapped = before if ids is None else ids
    shared, mapping = {"PDL": pdl, "launch_pdl": pdl}, {"MAPPED": ids is not None}
    top, tiles, cells = out.ids.shape[2], -(-vocabulary // KEPT_BLOCK), cells_of(vocabulary)
    slots, rows_all = tree.expanded - (first == 2), count * tree.expanded
    if bias is not None:
        rank, parts = bias.table.shape[1], tiles * KEPT_BLOCK // BLOCK
        # odd sizes take more than that
        registers = LEAD_REGISTERS if rank <= HELD.value and vocabulary % EVEN == 0 else None
        for depth in range(first, tree.length + 1):
            per = 1 if depth == 1 else branches
            rows = count * per
            each = min(GROUP, max(1, rows * parts // PROGRAMS))
            lead_tiles[(-(-rows // each), parts)](
                logits, *bias, mapped, before, *scratch.parts, scratch.leads, scratch.rooted,
                *apart, rows, each, per, depth, tree.expanded, branches, *hangs, vocabulary, rows_all, rank,
                BLOCK_V=BLOCK, ROWS=GROUP, RANK=power(rank), CELL=cell_of(vocabulary),
                FIRST=depth == first, num_warps=LEAD_WARPS,
                maxnreg=registers, **mapping, **shared,
            )  # fmt: skip
    else:
        kept_tiles[(count * slots, tiles)](
            logits, *scratch.parts[1:], *apart,
            slots, first, tree.expanded, branches, vocabulary, rows_all,
            BLOCK_V=KEPT_BLOCK, CELL=cell_of(vocabulary), num_warps=TILE_WARPS, **shared,
        )  # fmt: skip
    parts = tiles if bias is None else cells
    keep_best[(count * slots, 2)](
        logits, *scratch.parts, scratch.leads, scratch.rooted, mapped, before, *out, *apart, vocabulary,
        slots, first, tree.nodes, tree.expanded, branches, out.rows.shape[1], *hangs, cells, parts, top,
        rows_all,
        TILES=power(parts), WIDTH=law.top_k or top, DEPTHS=power(tree.length + 1), BIASED=bias is not None,
        num_warps=merge_warps(tiles), **search_plan(vocabulary, top), **mapping, **shared,
    )  # fmt: skip
