"""A tile of `lm_head_topk` as cells, each the tokens that one warp holds of a row: searched without barriers.

Tokens of a tile are [REP, CELLS, 2, 8] as tensor cores lay out a product: warps stand side by side, and 8
threads of each share a row. What comes out does not depend on it, but its speed does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.sort_keys import (
    NO_KEY,
    NO_ORDER,
    TOP_ID,
    join_lists,
    key_of,
    order_of_key,
    settle_lists,
)


@triton.jit
def in_cells(x, BLOCK_V: tl.constexpr, N: tl.constexpr, CELLS: tl.constexpr):
    """`[BLOCK_V, N]` as `[a thread's own, CELLS, 8, N]`."""
    REP: tl.constexpr = BLOCK_V // (16 * CELLS)
    apart = tl.permute(tl.reshape(x, [REP, CELLS, 2, 8, N]), (0, 2, 1, 3, 4))
    return tl.reshape(apart, [REP * 2, CELLS, 8, N])


@triton.jit
def best_in_cells(order, ids):
    """The highest order of each cell `[CELLS, N]`, and the lowest id that has it."""
    high = tl.max(tl.max(order, 0), 1)
    has = order == high[:, None, :][None, :, :, :]
    return high, tl.min(tl.min(tl.where(has, ids, TOP_ID), 0), 1)


@triton.jit
def without(order, ids, first):
    """The orders but those of one token a cell."""
    return tl.where(ids == first[:, None, :][None, :, :, :], NO_ORDER, order)


@triton.jit
def _lists(found, CELLS: tl.constexpr, LENGTH: tl.constexpr, N: tl.constexpr):
    """`[SETS, CELLS, 8, N]` as lists `[CELLS, N, LENGTH]`."""
    lists = tl.reshape(tl.permute(found, (1, 3, 0, 2)), [CELLS, N, LENGTH])
    # with a new axis the compiler lays them out anew: equal places of all cells in one thread
    return tl.reshape(tl.expand_dims(lists, 0), [CELLS, N, LENGTH])


@triton.jit
def _list_cells(order, ids, rounds, CELLS: tl.constexpr, LENGTH: tl.constexpr, N: tl.constexpr):
    """The best keys of each cell `[CELLS, N, LENGTH]`, `rounds` of them, as `join_lists` takes them."""
    SETS: tl.constexpr = LENGTH // 8
    slot = (tl.arange(0, SETS) * 8)[:, None, None] + tl.arange(0, 8)[None, None, :]
    rises = (tl.arange(0, CELLS) >= (CELLS + 1) // 2)[None, :, None]
    turn = tl.where(rises, LENGTH - 1 - slot, slot)[:, :, :, None]
    # of the axes of `order`, so that what is found stays where it was found
    found = tl.full([SETS, CELLS, 8, N], NO_ORDER, tl.int32)
    found_ids = tl.zeros([SETS, CELLS, 8, N], tl.int32)
    for one in tl.range(0, rounds):
        high, first = best_in_cells(order, ids)
        found = tl.where(turn == one, high[:, None, :][None, :, :, :], found)
        found_ids = tl.where(turn == one, first[:, None, :][None, :, :, :], found_ids)
        order = without(order, ids, first)
    return key_of(_lists(found, CELLS, LENGTH, N), _lists(found_ids, CELLS, LENGTH, N))


@triton.jit
def keep_top(best, order, ids, reached, CELLS: tl.constexpr, LENGTH: tl.constexpr, N: tl.constexpr):
    """Put a tile's values into the best keys so far `[N, LENGTH]`, which rise.

    What is below the order `reached` of its row need not be kept.
    """
    below = tl.where(reached > NO_ORDER, reached - 1, NO_ORDER)
    border = tl.maximum(order_of_key(tl.min(best, 1)), below)
    better = tl.sum(tl.sum((order > border[None, None, None, :]).to(tl.int32), 0), 1)
    rounds = tl.minimum(tl.max(tl.max(better, 1), 0), LENGTH)
    if rounds > 0:
        lists = _list_cells(order, ids, rounds, CELLS, LENGTH, N)
        # of what rises and what falls, the larger at each place are the largest of both
        most = tl.maximum(best, join_lists(lists, CELLS, N, LENGTH))
        best = tl.reshape(settle_lists(tl.reshape(most, [1, N, LENGTH]), 1, N, LENGTH, 1), [N, LENGTH])
    return best


@triton.jit
def _logit_of(logits, ids, first):
    return tl.sum(tl.sum(tl.where(ids == first[:, None, :][None, :, :, :], logits, 0.0), 0), 1)


@triton.jit
def leave_picks(PartPicks, PartLogits, at, order, logits, ids, live):
    """Leave the keys of a tile's two highest scores, at 2 at and 2 at + 1, and their logits.

    Returns the keys of the highest.
    """
    high, first = best_in_cells(order, ids)
    one, one_logit = key_of(high, first), _logit_of(logits, ids, first)
    high, second = best_in_cells(without(order, ids, first), ids)
    two, two_logit = key_of(high, second), _logit_of(logits, ids, second)
    best = tl.max(one, 0)
    won = one == best[None, :]
    rest, rest_logit = tl.where(won, two, one), tl.where(won, two_logit, one_logit)
    follower = tl.max(rest, 0)
    tl.store(PartPicks + 2 * at, best, mask=live)
    tl.store(PartLogits + 2 * at, tl.sum(tl.where(won, one_logit, 0.0), 0), mask=live)
    tl.store(PartPicks + 2 * at + 1, follower, mask=live)
    follows = rest == follower[None, :]
    tl.store(PartLogits + 2 * at + 1, tl.sum(tl.where(follows, rest_logit, 0.0), 0), mask=live)
    return best


@triton.jit
def leave_none(PartPicks, at, live):
    """Leave no pick."""
    none = tl.zeros_like(at).to(tl.int64) + NO_KEY
    tl.store(PartPicks + 2 * at, none, mask=live)
    tl.store(PartPicks + 2 * at + 1, none, mask=live)
