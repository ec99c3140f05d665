"""The kernels behind `draft_level`: a pass over tiles of each row's vocabulary, and a draw by row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.lm_head_draw import finite
from dflash.kernels.race_noise import log_exponential, words_of_ids
from dflash.kernels.round_draft import DraftColumns, DraftLaw, DraftScratch, LowRank
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import BLOCK, cell_of, cells_of, power, row_stride
from dflash.kernels.round_slots_triton import TILE_WARPS, highest_of, merge_warps
from dflash.kernels.row_cells import largest_of_row, leave_cells, search_plan
from dflash.kernels.sort_keys import NO_KEY, NO_ORDER, TOP_ID, id_of_key, order_of_key, ordered, value_of

# columns of a bias that are held at once
HELD = tl.constexpr(8)


@triton.jit
def load_factor(Factor, ids, real, start, rank: tl.constexpr, COLUMNS: tl.constexpr):
    """Columns from `start` on of the factor's rows of ids."""
    r = start + tl.arange(0, COLUMNS)
    at = ids.to(tl.int64)[:, None] * rank + r[None, :]
    return tl.load(Factor + at, mask=real[:, None] & (r < rank)[None, :], other=0.0)


@triton.jit
def bias_of(Factor, Table, token, ids, real, rank: tl.constexpr, RANK: tl.constexpr):
    """The bias of ids by the token before."""
    COLUMNS: tl.constexpr = RANK if RANK < HELD else HELD
    bias = tl.zeros(ids.shape, tl.float32)
    for start in tl.range(0, RANK, COLUMNS):
        r = start + tl.arange(0, COLUMNS)
        row = tl.load(Table + token.to(tl.int64) * rank + r, mask=r < rank, other=0.0)
        factor = load_factor(Factor, ids, real, start, rank, COLUMNS)
        bias += tl.sum(factor.to(tl.float32) * row.to(tl.float32)[None, :], 1)
    return bias


@triton.jit
def slot_at(lane, depth, inner, expanded, branches):
    """The expanded slot that nodes of a depth hang on, of all lanes' slots."""
    return lane * expanded + tl.where(depth == 1, 0, 1 + (depth - 2) * branches + inner)


@triton.jit
def leave_sums(PartSums, at, apart, logits, order):
    """Leave a tile's largest logit and its sum of exponentials below that."""
    highest = value_of(tl.max(order, 0))
    tl.store(PartSums + at, highest)
    tl.store(PartSums + apart + at, tl.sum(tl.exp(logits - finite(highest)), 0))


@triton.jit
def leave_cell_sums(Orders, PartSums, at, apart, logits, order, CELL: tl.constexpr):
    """Leave of each cell of a tile its largest order, as logit too, and its sum of exponentials below."""
    CELLS: tl.constexpr = order.shape[0] // CELL
    best = tl.max(tl.reshape(order, [CELLS, CELL]), 1)
    some = best != NO_ORDER
    highest = tl.where(some, value_of(best), -float("inf"))
    below = tl.reshape(logits, [CELLS, CELL]) - finite(highest)[:, None]
    cell = at.to(tl.int64) * CELLS + tl.arange(0, CELLS)
    tl.store(Orders + cell, best)
    tl.store(PartSums + cell, highest)
    tl.store(PartSums + apart.to(tl.int64) * CELLS + cell, tl.sum(tl.exp(below), 1))


@triton.jit(do_not_specialize=["per", "slot", "before_apart", "before_at"])
def draft_tiles(
    Logits, Table, Factor, Before, Biased, Orders, PartSums,
    lane_apart, row_apart, per, slot, before_apart, before_at, vocabulary, rank: tl.constexpr,
    BLOCK_V: tl.constexpr, CELL: tl.constexpr, RANK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What a tile of a row's logits adds; grid (rows, tiles)."""
    row, tile = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane = row // per
    ids = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    real = ids < vocabulary
    base = Logits + lane.to(tl.int64) * lane_apart + slot * row_apart
    logits = tl.load(base + ids, mask=real, other=-float("inf")).to(tl.float32)
    at, apart = row * tl.num_programs(1) + tile, tl.num_programs(0) * tl.num_programs(1)
    if RANK > 0:
        token = tl.maximum(tl.load(Before + lane * before_apart + before_at + row % per), 0)
        logits = tl.where(real, logits + bias_of(Factor, Table, token, ids, real, rank, RANK), -float("inf"))
        tl.store(Biased + row.to(tl.int64) * vocabulary + ids, logits, mask=real)
        leave_cell_sums(
            Orders, PartSums, at, apart, logits, tl.where(real, ordered(logits), NO_ORDER), CELL
        )  # fmt: skip
    else:
        order = tl.where(real, ordered(logits), NO_ORDER)
        leave_sums(PartSums, at, apart, logits, order)
        leave_cells(Orders, at, order, CELL)


@triton.jit
def _law(value, place, temperature, drawn, top_p, WIDTH: tl.constexpr, CUT: tl.constexpr):
    """log q of candidates in order of logit, in float64; -inf where nothing can be drawn."""
    allowed = (place < WIDTH) & (tl.abs(value) < float("inf"))
    scaled = tl.where(allowed, value.to(tl.float64) / temperature, -float("inf"))
    highest = tl.max(scaled, 0)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    log_q = scaled - (highest + tl.log(tl.sum(tl.exp(scaled - highest), 0)))
    if CUT:
        kept = tl.sum((tl.cumsum(tl.exp(log_q), 0) < top_p).to(tl.int32), 0)
        inside = allowed & ((place <= kept) | (drawn == 0))
        log_q = tl.where(inside, log_q, -float("inf"))
        log_q = log_q - tl.log(tl.sum(tl.exp(log_q), 0))
    return log_q


@triton.jit
def _win(score, token, COUNT: tl.constexpr):
    """The turn in which each candidate wins, COUNT for none, and the best score that is left out."""
    turn = tl.full(score.shape, COUNT, tl.int32)
    for one in tl.static_range(COUNT):
        open_score = tl.where(turn == COUNT, score, -float("inf"))
        best = tl.max(open_score, 0)
        first = tl.min(tl.where((turn == COUNT) & (score == best), token, TOP_ID), 0)
        turn = tl.where((token == first) & (open_score > -float("inf")), one, turn)
    return turn, tl.max(tl.where(turn == COUNT, score, -float("inf")), 0)


@triton.jit
def _conditional(log_q, turn, COUNT: tl.constexpr):
    """log q of each winner given that those before it are out."""
    found = log_q
    for one in tl.static_range(1, COUNT):
        # the sum of what is left keeps digits that 1 less what is gone would lose
        left = tl.sum(tl.where(turn >= one, tl.exp(log_q), 0.0), 0)
        found = tl.where(turn == one, log_q - tl.log(tl.where(left > 0.0, left, 1.0)), found)
    return tl.minimum(found, 0.0)


@triton.jit
def store_lse(Lse, PartSums, slot, row, rows_all, tiles, TILES: tl.constexpr):
    """The log-sum-exp of a row's tiles."""
    tile = tl.arange(0, TILES)
    m = tl.load(PartSums + row * tiles + tile, mask=tile < tiles, other=-float("inf"))
    mass = tl.load(PartSums + (rows_all + row) * tiles + tile, mask=tile < tiles, other=0.0)
    highest = finite(highest_of(PartSums, row, tiles, TILES))
    some = m != -float("inf")
    total = tl.sum(tl.where(some, mass * tl.exp(tl.where(some, finite(m) - highest, 0.0)), 0.0), 0)
    lse = highest + tl.log(tl.where(total == 0.0, 1.0, total))
    tl.store(Lse + slot, tl.where(total == 0.0, -float("inf"), lse))


@triton.jit
def candidates(
    Orders, Base, Map, Ids, Values, slot, row, cells, vocabulary, top,
    CELLS: tl.constexpr, SPAN: tl.constexpr, CELL: tl.constexpr, FINE: tl.constexpr, TOP: tl.constexpr,
    MAPPED: tl.constexpr,
):  # fmt: skip
    """Logits and tokens of a row's best candidates, best first, as the drafter sees and stores them."""
    keys = largest_of_row(Orders, Base, row, cells, vocabulary, CELLS, SPAN, CELL, FINE, TOP)
    value, token = value_of(order_of_key(keys)), id_of_key(keys)
    value = tl.where(keys == NO_KEY, -float("inf"), value)
    if MAPPED:
        token = tl.load(Map + token, mask=keys != NO_KEY, other=TOP_ID)
    place = tl.arange(0, TOP)
    tl.store(Ids + slot * top + place, token, mask=place < top)
    tl.store(Values + slot * top + place, value, mask=place < top)
    return value, token


@triton.jit(
    do_not_specialize=[
        "per", "depth", "nodes", "expanded", "branches", "rows_out", "before_apart", "before_at", "cells",
        "tiles", "top", "top_p",
    ]
)  # fmt: skip
def draft_draw(
    Logits, Biased, Orders, PartSums, Map, Before, Temperatures, Keys, Lengths,
    Tokens, Ranks, LogQ, Gaps, Margins, Lse, Ids, Values, Rows,
    lane_apart, row_apart, vocabulary,
    per, depth, nodes, expanded, branches, rows_out, before_apart, before_at, cells, tiles, top, top_p,
    CELLS: tl.constexpr, SPAN: tl.constexpr, CELL: tl.constexpr, FINE: tl.constexpr, TOP: tl.constexpr,
    TILES: tl.constexpr, WIDTH: tl.constexpr,
    COUNT: tl.constexpr, CUT: tl.constexpr, BIASED: tl.constexpr, MAPPED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Join the tiles of one row and draw the nodes that hang on it; grid (rows, 2), the sum beside."""
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane, inner = row // per, row % per
    slot = slot_at(lane, depth, inner, expanded, branches)
    if tl.program_id(1) == 1:
        store_lse(Lse, PartSums, slot, row, tl.num_programs(0), tiles, TILES)
        return
    if BIASED:
        base = Biased + row.to(tl.int64) * vocabulary
    else:
        base = Logits + lane.to(tl.int64) * lane_apart + (depth - 1) * row_apart
    value, token = candidates(
        Orders, base, Map, Ids, Values, slot, row, cells, vocabulary, top, CELLS, SPAN, CELL, FINE,
        TOP, MAPPED,
    )  # fmt: skip
    place = tl.arange(0, TOP)
    temperature = tl.load(Temperatures + lane)
    drawn = temperature > 0
    divisor = tl.where(drawn, temperature, 1.0).to(tl.float64)
    log_q = _law(value, place, divisor, drawn, top_p, WIDTH, CUT)
    position = (tl.load(Lengths + lane) + depth).to(tl.uint32, bitcast=True)
    zero = (position * 0).to(tl.uint32)
    k0 = tl.load(Keys + 2 * lane).to(tl.uint32, bitcast=True)
    k1 = tl.load(Keys + 2 * lane + 1).to(tl.uint32, bitcast=True)
    noise = log_exponential(words_of_ids(token, position, zero, zero, k0, k1)).to(tl.float64)
    possible = log_q > -float("inf")
    score = tl.where(drawn, tl.where(possible, log_q, 0.0) - noise, value.to(tl.float64))
    score = tl.where(possible, score, -float("inf"))
    turn, over = _win(score, token, COUNT)
    parent = tl.load(Before + lane * before_apart + before_at + inner)
    node = (depth - 1) * branches + inner
    margin = tl.sum(tl.where(place == 0, value, 0.0), 0) - tl.sum(tl.where(place == 1, value, 0.0), 0)
    given = tl.where(drawn, _conditional(tl.where(possible, log_q, -1e4), turn, COUNT), 0.0)
    some = over > -float("inf")
    gap = tl.where(some, (score - tl.where(some, over, 0.0)).to(tl.float32), float("nan"))
    for one in tl.static_range(COUNT):
        won = (turn == one) & (parent >= 0)
        there = tl.max(won.to(tl.int32), 0) > 0
        chosen = tl.sum(tl.where(won, token, 0), 0)
        at = lane * nodes + node + one
        tl.store(Tokens + at, tl.where(there, chosen, -1))
        tl.store(Ranks + at, tl.sum(tl.where(won, place, 0), 0))
        tl.store(LogQ + at, tl.sum(tl.where(won, given, 0.0), 0).to(tl.float32))
        tl.store(Gaps + at, tl.where(there, tl.sum(tl.where(won, gap, 0.0), 0), float("nan")))
        tl.store(Margins + at, margin)
        tl.store(Rows + lane * rows_out + 1 + node + one, chosen)


def launch_level(
    logits: Tensor, depth: int, bias: LowRank | None, law: DraftLaw, tree: RoundTree, lanes: RoundLanes,
    out: DraftColumns, ids: Tensor | None, scratch: DraftScratch, pdl: bool,
) -> None:  # fmt: skip
    """Run both kernels; a tensor that is not there is stood in for by one that is not read."""
    per = 1 if depth == 1 else tree.branches
    rows, top, vocabulary = len(logits) * per, out.ids.shape[2], logits.shape[2]
    before = lanes.anchors if depth == 1 else out.tokens
    hangs = (1, 0) if depth == 1 else (tree.nodes, (depth - 2) * tree.branches)
    table = bias or LowRank(logits, logits)
    rank = 0 if bias is None else bias.table.shape[1]
    apart = (logits.stride(0), row_stride(logits))
    tiles, cells = -(-vocabulary // BLOCK), cells_of(vocabulary)
    parts = cells if rank else tiles
    shared = {"PDL": pdl, "launch_pdl": pdl}
    draft_tiles[(rows, tiles)](
        logits, *table, before, *scratch,
        *apart, per, depth - 1, *hangs, vocabulary, rank,
        BLOCK_V=BLOCK, CELL=cell_of(vocabulary), RANK=power(rank) if rank else 0,
        num_warps=2 * TILE_WARPS if rank else TILE_WARPS, **shared,
    )  # fmt: skip
    draft_draw[(rows, 2)](
        logits, *scratch, before if ids is None else ids, before,
        lanes.draft_temperatures, lanes.keys, lanes.lengths, *out,
        *apart, vocabulary, per, depth, tree.nodes, tree.expanded, tree.branches, out.rows.shape[1], *hangs,
        cells, parts, top, law.top_p,
        TILES=power(parts), WIDTH=law.top_k or top,
        COUNT=tree.branches if depth == 1 else 1, CUT=law.top_p < 1.0, BIASED=rank > 0,
        MAPPED=ids is not None, num_warps=merge_warps(tiles), **search_plan(vocabulary, top), **shared,
    )  # fmt: skip
