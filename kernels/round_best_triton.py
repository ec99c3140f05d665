"""The kernels behind `draft_best`: a pass for the next token by depth, then one for what is kept of all."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.round_best import BLOCK, BestScratch
from dflash.kernels.round_draft import DraftColumns, DraftLaw, LowRank
from dflash.kernels.round_draft_triton import add_bias, candidates, leave_sums, slot_at, store_lse
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import BLOCK as KEPT_BLOCK
from dflash.kernels.round_slots import power, row_stride
from dflash.kernels.round_slots_triton import leave_top
from dflash.kernels.sort_keys import (
    NO_KEY,
    NO_ORDER,
    TOP_ID,
    id_of_key,
    key_of,
    order_of_key,
    ordered,
    value_of,
)


@triton.jit
def _token_before(
    Leads, Map, Before, lane, inner, slot_before, before_apart, before_at, tiles,
    TILES: tl.constexpr, FIRST: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """The token that a row hangs on: one that is there already, or the best of the level above."""
    if FIRST:
        token = tl.load(Before + lane * before_apart + before_at + inner)
    else:
        tile = tl.arange(0, TILES)
        lead = tl.load(Leads + slot_before.to(tl.int64) * tiles + tile, mask=tile < tiles, other=NO_KEY)
        best = tl.max(lead, 0)
        token = id_of_key(best)
        if MAPPED:
            token = tl.load(Map + token, mask=best != NO_KEY, other=0)
        token = tl.where(best == NO_KEY, 0, token)
    return tl.maximum(token, 0)


@triton.jit(
    do_not_specialize=[
        "per", "depth", "expanded", "branches", "before_apart", "before_at", "vocabulary", "rank",
    ]
)  # fmt: skip
def lead_tiles(
    Logits, Table, Factor, Map, Before, Biased, Leads,
    lane_apart, row_apart, per, depth, expanded, branches, before_apart, before_at, vocabulary, rank,
    BLOCK_V: tl.constexpr, TILES: tl.constexpr, RANK: tl.constexpr, FIRST: tl.constexpr,
    MAPPED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best key of a tile of one row's biased logits; grid (rows, tiles)."""
    row, tile = tl.program_id(0), tl.program_id(1)
    lane, inner = row // per, row % per
    ids, r = tile * BLOCK_V + tl.arange(0, BLOCK_V), tl.arange(0, RANK)
    real = ids < vocabulary
    if FIRST and PDL:
        tl.extra.cuda.gdc_wait()
    # where an earlier level ran before this one, what it has waited for is there
    base = Logits + lane.to(tl.int64) * lane_apart + (depth - 1) * row_apart
    logits = tl.load(base + ids, mask=real, other=-float("inf")).to(tl.float32)
    at = ids.to(tl.int64)[:, None] * rank + r[None, :]
    factor = tl.load(Factor + at, mask=real[:, None] & (r < rank)[None, :], other=0.0)
    if PDL:
        if not FIRST:
            tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot = slot_at(lane, depth, inner, expanded, branches)
    above = slot_at(lane, depth - 1, inner, expanded, branches)
    token = _token_before(
        Leads, Map, Before, lane, inner, above, before_apart, before_at, tl.num_programs(1), TILES, FIRST,
        MAPPED,
    )  # fmt: skip
    logits = add_bias(logits, factor, Table, token, rank, RANK)
    tl.store(Biased + slot.to(tl.int64) * vocabulary + ids, logits, mask=real)
    order = tl.where(tl.abs(logits) < float("inf"), ordered(logits), NO_ORDER)
    best = tl.max(order, 0)
    lowest = tl.min(tl.where(order == best, ids, TOP_ID), 0)
    key = tl.where(best == NO_ORDER, NO_KEY, key_of(best, lowest))
    tl.store(Leads + slot.to(tl.int64) * tl.num_programs(1) + tile, key)


@triton.jit
def _depth_of(row, slots, first, branches):
    """Lane, depth and place in its level of a row of all slots from depth `first` on."""
    lane, place = row // slots, row % slots
    begun = tl.where(first == 1, 1, branches)
    depth = tl.where(place < begun, first, first + 1 + (place - begun) // branches)
    inner = tl.where(place < begun, place, (place - begun) % branches)
    return lane, depth, inner


@triton.jit(do_not_specialize=["slots", "first", "expanded", "branches", "vocabulary", "rows_all"])
def kept_tiles(
    Logits, PartKeys, PartSums, lane_apart, row_apart,
    slots, first, expanded, branches, vocabulary, rows_all,
    BLOCK_V: tl.constexpr, TOP: tl.constexpr, BIASED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What is kept of a tile of one slot's logits; grid (lanes x slots, tiles)."""
    row, tile = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane, depth, inner = _depth_of(row, slots, first, branches)
    slot = slot_at(lane, depth, inner, expanded, branches)
    ids = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    if BIASED:
        base = Logits + slot.to(tl.int64) * vocabulary
    else:
        base = Logits + lane.to(tl.int64) * lane_apart + (depth - 1) * row_apart
    logits = tl.load(base + ids, mask=ids < vocabulary, other=-float("inf")).to(tl.float32)
    at, apart = slot * tl.num_programs(1) + tile, rows_all * tl.num_programs(1)
    order = tl.where(ids < vocabulary, ordered(logits), NO_ORDER)
    leave_sums(PartSums, at, apart, logits, order)
    leave_top(PartKeys, at, order, ids, TOP)


@triton.jit
def _rooted(
    PartKeys, Before, lane, depth, inner, first, expanded, branches, before_apart, before_at, tiles, top,
    TILES: tl.constexpr, DEPTHS: tl.constexpr,
):  # fmt: skip
    """Whether everything that a node hangs on could be drafted."""
    above, tile = tl.arange(0, DEPTHS), tl.arange(0, TILES)
    between = (above >= first) & (above < depth)
    slot = slot_at(lane, tl.maximum(above, 1), inner, expanded, branches)
    at = (slot[:, None].to(tl.int64) * tiles + tile[None, :]) * top
    lead = tl.load(PartKeys + at, mask=between[:, None] & (tile < tiles)[None, :], other=NO_KEY)
    best = value_of(order_of_key(tl.max(lead, 1)))
    lacks = tl.sum((between & ~(tl.abs(best) < float("inf"))).to(tl.int32), 0)
    root = tl.load(Before + lane * before_apart + before_at + inner)
    return (root >= 0) & (lacks == 0)


@triton.jit(
    do_not_specialize=[
        "slots", "first", "nodes", "expanded", "branches", "rows_out", "before_apart", "before_at", "tiles",
        "top", "rows_all",
    ]
)  # fmt: skip
def keep_best(
    PartKeys, PartSums, Map, Before,
    Tokens, Ranks, LogQ, Gaps, Margins, Lse, Ids, Values, Rows,
    slots, first, nodes, expanded, branches, rows_out, before_apart, before_at, tiles, top, rows_all,
    TILES: tl.constexpr, TOP: tl.constexpr, WIDTH: tl.constexpr, DEPTHS: tl.constexpr,
    MAPPED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Join the tiles of one slot and store the node under it; grid (lanes x slots, 2), the sum beside."""
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane, depth, inner = _depth_of(row, slots, first, branches)
    slot = slot_at(lane, depth, inner, expanded, branches)
    if tl.program_id(1) == 1:
        store_lse(Lse, PartSums, slot, slot, rows_all, tiles, TILES)
        return
    value, token = candidates(PartKeys, Map, Ids, Values, slot, slot, tiles, top, TILES, TOP, MAPPED)
    place = tl.arange(0, TOP)
    rooted = _rooted(
        PartKeys, Before, lane, depth, inner, first, expanded, branches, before_apart, before_at, tiles, TOP,
        TILES, DEPTHS,
    )  # fmt: skip
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
    chained = {"MAPPED": ids is not None, "PDL": pdl, "launch_pdl": pdl}
    if bias is not None:
        rank, tiles = bias.table.shape[1], scratch.leads.shape[1]
        for depth in range(first, tree.length + 1):
            per = 1 if depth == 1 else branches
            lead_tiles[(count * per, tiles)](
                logits, *bias, mapped, before, scratch.biased, scratch.leads,
                *apart, per, depth, tree.expanded, branches, *hangs, vocabulary, rank,
                BLOCK_V=BLOCK, TILES=power(tiles), RANK=power(rank), FIRST=depth == first, num_warps=4,
                **chained,
            )  # fmt: skip
    top, tiles = out.ids.shape[2], -(-vocabulary // KEPT_BLOCK)
    slots, rows_all = tree.expanded - (first == 2), count * tree.expanded
    shared = {"TOP": power(top), "PDL": pdl, "launch_pdl": pdl}
    kept_tiles[(count * slots, tiles)](
        logits if bias is None else scratch.biased, *scratch.parts, *apart,
        slots, first, tree.expanded, branches, vocabulary, rows_all,
        BLOCK_V=KEPT_BLOCK, BIASED=bias is not None, num_warps=4, **shared,
    )  # fmt: skip
    keep_best[(count * slots, 2)](
        *scratch.parts, mapped, before, *out,
        slots, first, tree.nodes, tree.expanded, branches, out.rows.shape[1], *hangs, tiles, top, rows_all,
        TILES=power(tiles), WIDTH=law.top_k or top, DEPTHS=power(tree.length + 1), MAPPED=ids is not None,
        num_warps=8 if tiles > 64 else 4, **shared,
    )  # fmt: skip
