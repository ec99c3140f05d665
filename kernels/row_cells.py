"""The largest tokens of a row in two passes: tiles leave the maximum of each cell, merges read few cells."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.round_slots import cell_of, cells_of, power
from dflash.kernels.sort_keys import NO_KEY, NO_ORDER, id_of_key, key_of, ordered

# keys that one sort looks at; more are halved by looking at the largest of neighbours first
SORTED = 256


def search_plan(vocabulary: int, top: int) -> dict[str, int]:
    """Constants of a kernel that calls `largest_of_row`."""
    kept, cell = power(top), cell_of(vocabulary)
    cells = power(max(cells_of(vocabulary), top))
    spans = {"SPAN": max(1, cells // max(SORTED, kept)), "FINE": max(1, kept * cell // max(SORTED, kept))}
    return {"CELLS": cells, "CELL": cell, "TOP": kept, **spans}


@triton.jit
def leave_cells(Orders, at, order, CELL: tl.constexpr):
    """Leave the largest order of each cell of a tile, `NO_ORDER` for a cell without tokens."""
    CELLS: tl.constexpr = order.shape[0] // CELL
    best = tl.max(tl.reshape(order, [CELLS, CELL]), 1)
    tl.store(Orders + at.to(tl.int64) * CELLS + tl.arange(0, CELLS), best)


@triton.jit
def _largest_spans(keys, SPAN: tl.constexpr, TOP: tl.constexpr):
    """The keys `[TOP]` of the spans of neighbours with the largest, best first."""
    best = keys
    if SPAN > 1:
        best = tl.max(tl.reshape(keys, [keys.shape[0] // SPAN, SPAN]), 1)
    return tl.topk(best, TOP)


@triton.jit
def _members(start, there, SPAN: tl.constexpr, TOP: tl.constexpr):
    """Ids `[TOP, SPAN]` from each start on, and which of them are there."""
    ids = tl.where(there, start, 0)[:, None] + tl.arange(0, SPAN)[None, :]
    return ids, tl.broadcast_to(there[:, None], [TOP, SPAN])


@triton.jit
def _keys_of_cells(Orders, cell, there):
    order = tl.load(Orders + cell, mask=there, other=NO_ORDER)
    return tl.where(order == NO_ORDER, NO_KEY, key_of(order, cell))


@triton.jit
def _keys_of_tokens(Base, ids, there):
    logits = tl.load(Base + ids, mask=there, other=-float("inf")).to(tl.float32)
    return tl.where(there, key_of(ordered(logits), ids), NO_KEY)


@triton.jit
def largest_of_row(
    Orders, Base, row, cells, vocabulary,
    CELLS: tl.constexpr, SPAN: tl.constexpr, CELL: tl.constexpr, FINE: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """The keys `[TOP]` of a row's largest logits, best first.

    A span, be it of cells or of tokens, that holds one of the `TOP` best has fewer than `TOP` spans before it
    in the order (largest value, lowest id): each of those holds a better one. So the `TOP` first spans hold
    all of the best, ties included.
    """
    Orders += row.to(tl.int64) * cells
    cell = tl.arange(0, CELLS)
    best = _largest_spans(_keys_of_cells(Orders, cell, cell < cells), SPAN, TOP)
    if SPAN > 1:
        near, there = _members(id_of_key(best) // SPAN * SPAN, best != NO_KEY, SPAN, TOP)
        keys = _keys_of_cells(Orders, near, there & (near < cells))
        best = tl.topk(tl.reshape(keys, [TOP * SPAN]), TOP)
    ids, there = _members(id_of_key(best) * CELL, best != NO_KEY, CELL, TOP)
    keys = _keys_of_tokens(Base, ids, there & (ids < vocabulary))
    best = _largest_spans(tl.reshape(keys, [TOP * CELL]), FINE, TOP)
    if FINE > 1:
        ids, there = _members(id_of_key(best) // FINE * FINE, best != NO_KEY, FINE, TOP)
        keys = _keys_of_tokens(Base, ids, there & (ids < vocabulary))
        best = tl.topk(tl.reshape(keys, [TOP * FINE]), TOP)
    return best
