"""The kernels behind `target_slots`: a pass over tiles of each row's vocabulary, and a merge by row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.lm_head_draw import finite
from dflash.kernels.lm_head_merge import store_choice
from dflash.kernels.race_noise import near_log_exponential, words_of_tile
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import BLOCK, SlotColumns, SlotScratch, cell_of, power, row_stride
from dflash.kernels.row_cells import largest_of_row, leave_cells, search_plan
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

# the order in which a tile's numbers are summed depends on it, and so do bits that files keep
TILE_WARPS = 4


def merge_warps(tiles: int) -> int:
    """Warps of a program that looks at all cells of a row."""
    return 8 if tiles > 64 else 4


@triton.jit
def _leave_pick(PartPicks, PartLogits, at, order, logits, ids):
    """Leave the key of the highest score, `NO_KEY` if there is none, and its logit; return its id."""
    best = tl.max(order, 0)
    first = tl.min(tl.where(order == best, ids, TOP_ID), 0)
    tl.store(PartPicks + at, tl.where(best == NO_ORDER, NO_KEY, key_of(best, first)))
    tl.store(PartLogits + at, tl.sum(tl.where(ids == first, logits, 0.0), 0))
    return first


@triton.jit
def _leave_picks(
    PartPicks, PartLogits, Keys, at, logits, tempered, position, lane, start, ids, vocabulary,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Leave the two tokens of a tile that are ahead in the race, by noise that is good enough for that."""
    zero = tl.zeros([1], tl.uint32)
    k0 = tl.load(Keys + 2 * lane).to(tl.uint32, bitcast=True)
    k1 = tl.load(Keys + 2 * lane + 1).to(tl.uint32, bitcast=True)
    words = words_of_tile(start, zero + position, zero, zero, zero + k0, zero + k1, BLOCK_V, 1)
    noise = near_log_exponential(tl.reshape(words, [BLOCK_V]))
    order = tl.where(ids < vocabulary, ordered(logits * tempered - noise), NO_ORDER)
    first = _leave_pick(PartPicks, PartLogits, 2 * at, order, logits, ids)
    order = tl.where(ids == first, NO_ORDER, order)
    _leave_pick(PartPicks, PartLogits, 2 * at + 1, order, logits, ids)


@triton.jit(do_not_specialize=["slots", "rows_in", "nodes", "rows_all"])
def judge_tiles(
    Logits, Tokens, Depths, Children, Temperatures, Keys, Lengths,
    Orders, PartSums, PartPicks, PartLogits, PartMass,
    stride, slots, rows_in, nodes, vocabulary, rows_all,
    BLOCK_V: tl.constexpr, CELL: tl.constexpr, KIDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What a tile of a row's logits adds; grid (rows, tiles)."""
    row, tile = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane, slot = row // slots, row % slots
    start = tile * BLOCK_V
    ids = start + tl.arange(0, BLOCK_V)
    base = Logits + (lane * rows_in + slot).to(tl.int64) * stride
    logits = tl.load(base + ids, mask=ids < vocabulary, other=-float("inf")).to(tl.float32)
    order = tl.where(ids < vocabulary, ordered(logits), NO_ORDER)
    highest = value_of(tl.max(order, 0))
    temperature = tl.load(Temperatures + lane)
    tempered = 1.0 / tl.where(temperature > 0, temperature, 1.0)
    below = logits - finite(highest)
    plain = tl.exp(below)
    scaled, mass = below, plain
    if temperature > 0:
        scaled = below * tempered
        mass = tl.exp(scaled)
    at, apart = row * tl.num_programs(1) + tile, rows_all * tl.num_programs(1)
    tl.store(PartSums + at, highest)
    tl.store(PartSums + apart + at, tl.sum(plain, 0))
    tl.store(PartSums + 2 * apart + at, tl.sum(mass, 0))
    # a finite stand-in for -inf, whose mass is 0
    tl.store(PartSums + 3 * apart + at, tl.sum(mass * tl.maximum(scaled, -1e4), 0))
    for kid in tl.static_range(KIDS):
        child = tl.load(Children + slot * KIDS + kid)
        token = tl.load(Tokens + lane * nodes + child, mask=child >= 0, other=-1)
        limit = tl.load(base + token, mask=token >= 0, other=float("inf")).to(tl.float32)
        tl.store(PartMass + kid * apart + at, tl.sum(tl.where(logits > limit, mass, 0.0), 0))
    leave_cells(Orders, at, order, CELL)
    if temperature > 0:
        position = (tl.load(Lengths + lane) + 1 + tl.load(Depths + slot)).to(tl.uint32, bitcast=True)
        _leave_picks(
            PartPicks, PartLogits, Keys, at, logits, tempered, position, lane, start, ids, vocabulary, BLOCK_V
        )  # fmt: skip


@triton.jit
def _store_nodes(
    Base, Tokens, Children, PartMass, NodeLogit, NodeMass, row, lane, slot, nodes, rows_all, tiles, fade,
    total, TILES: tl.constexpr, KIDS: tl.constexpr,
):  # fmt: skip
    """Logits of the slot's nodes and the mass of likelier tokens."""
    tile = tl.arange(0, TILES)
    for kid in tl.static_range(KIDS):
        child = tl.load(Children + slot * KIDS + kid)
        token = tl.load(Tokens + lane * nodes + child, mask=child >= 0, other=-1)
        logit = tl.load(Base + token, mask=token >= 0, other=float("nan")).to(tl.float32)
        at = kid * rows_all * tiles + row * tiles + tile
        part = tl.load(PartMass + at, mask=tile < tiles, other=0.0)
        mass = tl.minimum(tl.sum(part * fade, 0) / total, 1.0)
        tl.store(NodeLogit + lane * nodes + child, logit, mask=child >= 0)
        tl.store(NodeMass + lane * nodes + child, tl.where(token >= 0, mass, float("nan")), mask=child >= 0)


@triton.jit
def highest_of(PartSums, row, tiles, TILES: tl.constexpr):
    """The largest logit of a row, NaN if there is one."""
    tile = tl.arange(0, TILES)
    m = tl.load(PartSums + row * tiles + tile, mask=tile < tiles, other=-float("inf"))
    return value_of(tl.max(tl.where(tile < tiles, ordered(m), NO_ORDER), 0))


@triton.jit
def _store_sums(
    PartSums, Lse, LseP, Entropy, row, rows_all, tiles, highest, temperature, TILES: tl.constexpr
):  # fmt: skip
    """Log-sum-exps and entropy; returns each tile's weight under the temperature, and their sum of masses."""
    tile = tl.arange(0, TILES)
    at, apart, real = row * tiles + tile, rows_all * tiles, tile < tiles
    tempered = 1.0 / tl.where(temperature > 0, temperature, 1.0)
    m = tl.load(PartSums + at, mask=real, other=-float("inf"))
    some = m != -float("inf")
    shift = tl.where(some, finite(m) - finite(highest), 0.0)
    plain = tl.load(PartSums + apart + at, mask=real, other=0.0)
    mass = tl.load(PartSums + 2 * apart + at, mask=real, other=0.0)
    moment = tl.load(PartSums + 3 * apart + at, mask=real, other=0.0)
    fade = tl.where(some, tl.exp(shift * tempered), 0.0)
    total = tl.sum(mass * fade, 0)
    mean = tl.sum(tl.where(some, fade * (moment + mass * shift * tempered), 0.0), 0) / total
    tl.store(Lse + row, finite(highest) + tl.log(tl.sum(tl.where(some, plain * tl.exp(shift), 0.0), 0)))
    lse_p = finite(highest) * tempered + tl.log(total)
    tl.store(LseP + row, tl.where(temperature > 0, lse_p, float("nan")))
    tl.store(Entropy + row, tl.log(total) - mean)
    return fade, total


@triton.jit
def _store_greedy(best, Choice, Logit, Gap, row, TOP: tl.constexpr):
    """Store the choice at temperature 0, in the arithmetic of `store_choice`."""
    place, logit = tl.arange(0, TOP), value_of(order_of_key(best))
    highest = tl.sum(tl.where(place == 0, logit, 0.0), 0)
    scaled = value_of(ordered(logit - tl.where(highest == highest, highest, 0.0)))
    second = tl.sum(tl.where(place == 1, scaled, 0.0), 0)
    tl.store(Choice + row, tl.sum(tl.where(place == 0, id_of_key(best), 0), 0))
    tl.store(Logit + row, highest)
    tl.store(Gap + row, tl.sum(tl.where(place == 0, scaled, 0.0), 0) - second)


@triton.jit(
    do_not_specialize=[
        "slots", "rows_in", "nodes", "rows_all", "cells", "tiles", "top", "expanded", "asked",
    ]
)  # fmt: skip
def merge_slots(
    Logits, Tokens, Asked, Depths, Children, Temperatures, Keys, Lengths,
    Orders, PartSums, PartPicks, PartLogits, PartMass,
    Ids, Values, Choice, ChoiceLogit, Gap, Lse, LseP, Entropy, NodeLogit, NodeMass, Found,
    stride, slots, rows_in, nodes, vocabulary, rows_all, cells, tiles, top, expanded, asked,
    CELLS: tl.constexpr, SPAN: tl.constexpr, CELL: tl.constexpr, FINE: tl.constexpr, TOP: tl.constexpr,
    TILES: tl.constexpr, KIDS: tl.constexpr,
    ASKED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A part of what the tiles of one row come to; grid (rows, 3), parts beside each other."""
    row, part = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane, slot = row // slots, row % slots
    base = Logits + (lane * rows_in + slot).to(tl.int64) * stride
    temperature = tl.load(Temperatures + lane)
    if part == 0:
        if temperature > 0:
            position = (tl.load(Lengths + lane) + 1 + tl.load(Depths + slot)).to(tl.uint32, bitcast=True)
            zero = (position * 0).to(tl.uint32)
            k0 = tl.load(Keys + 2 * lane).to(tl.uint32, bitcast=True)
            k1 = tl.load(Keys + 2 * lane + 1).to(tl.uint32, bitcast=True)
            store_choice(
                PartPicks, PartLogits, Choice, ChoiceLogit, Gap, Ids, row, tiles,
                highest_of(PartSums, row, tiles, TILES), temperature, temperature > 0,
                (position, zero, zero, k0, k1), 2 * TILES, False,
            )  # fmt: skip
    elif part == 1:
        best = largest_of_row(Orders, base, row, cells, vocabulary, CELLS, SPAN, CELL, FINE, TOP)
        place = tl.arange(0, TOP)
        tl.store(Ids + row * top + place, id_of_key(best), mask=place < top)
        tl.store(Values + row * top + place, value_of(order_of_key(best)), mask=place < top)
        if not temperature > 0:
            _store_greedy(best, Choice, ChoiceLogit, Gap, row, TOP)
    else:
        fade, total = _store_sums(
            PartSums, Lse, LseP, Entropy, row, rows_all, tiles, highest_of(PartSums, row, tiles, TILES),
            temperature, TILES,
        )  # fmt: skip
        _store_nodes(
            base, Tokens, Children, PartMass, NodeLogit, NodeMass, row, lane, slot, nodes, rows_all, tiles,
            fade, total, TILES, KIDS,
        )  # fmt: skip
        if ASKED > 0:
            j = tl.arange(0, ASKED)
            at, wanted = (lane * expanded + slot) * asked + j, (j < asked) & (slot < expanded)
            token = tl.load(Asked + at, mask=wanted, other=0)
            tl.store(Found + at, tl.load(base + token).to(tl.float32), mask=wanted)


def launch_slots(
    logits: Tensor, tokens: Tensor, asked: Tensor, tree: RoundTree, lanes: RoundLanes, out: SlotColumns,
    scratch: SlotScratch, kids: int, pdl: bool,
) -> None:  # fmt: skip
    """Run both kernels."""
    rows, slots, top = out.choice.numel(), tree.nodes + 1, out.ids.shape[2]
    tiles, wanted = scratch.picks.shape[1], asked.shape[2]
    of_lanes = (lanes.temperatures, lanes.keys, lanes.lengths)
    vocabulary, cells = logits.shape[2], scratch.orders.shape[1]
    shared = {"KIDS": kids, "PDL": pdl, "launch_pdl": pdl}
    judge_tiles[(rows, tiles)](
        logits, tokens, tree.depths, tree.children, *of_lanes, *scratch,
        row_stride(logits), slots, logits.shape[1], tree.nodes, vocabulary, rows,
        BLOCK_V=BLOCK, CELL=cell_of(vocabulary), num_warps=TILE_WARPS, **shared,
    )  # fmt: skip
    merge_slots[(rows, 3)](
        logits, tokens, asked, tree.depths, tree.children, *of_lanes, *scratch, *out,
        row_stride(logits), slots, logits.shape[1], tree.nodes, vocabulary, rows, cells, tiles, top,
        tree.expanded, wanted, TILES=power(tiles), ASKED=power(wanted) if asked.numel() else 0,
        num_warps=merge_warps(tiles), **search_plan(vocabulary, top), **shared,
    )  # fmt: skip
