"""Floats with ids as int64 keys: the largest key is the largest value, and of equal ones the lowest id."""

from __future__ import annotations

import triton
import triton.language as tl

NO_KEY = tl.constexpr(-0x8000000000000000)
NO_ORDER = tl.constexpr(-0x80000000)
TOP_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def ordered(x):
    """float32 as int32 in the same order; NaN is above all, -0 is 0."""
    bits = tl.where(x == 0.0, 0, x.to(tl.int32, bitcast=True))
    bits = tl.where(x != x, 0x7FC00000, bits)
    return bits ^ ((bits >> 31) & TOP_ID)


@triton.jit
def value_of(order):
    """The float32 whose order this is."""
    return (order ^ ((order >> 31) & TOP_ID)).to(tl.float32, bitcast=True)


@triton.jit
def key_of(order, ids):
    """Keys of ordered values and their ids."""
    return (order.to(tl.int64) << 32) | (ids ^ TOP_ID).to(tl.int64)


@triton.jit
def order_of_key(key):
    """The ordered value of a key."""
    return (key >> 32).to(tl.int32)


@triton.jit
def id_of_key(key):
    """The id of a key."""
    return (key & 0xFFFFFFFF).to(tl.int32) ^ TOP_ID


@triton.jit
def settle_lists(lists, LISTS: tl.constexpr, N: tl.constexpr, LENGTH: tl.constexpr, TURN: tl.constexpr):
    """Sort lists of keys `[LISTS, N, LENGTH]` that rise and then fall, or fall and then rise (Batcher 1968).

    Even lists fall and odd ones rise, with `TURN` 1 the other way round. A length is 32 at most.
    """
    for step in tl.static_range(5):
        if LENGTH >> step > 1:
            pairs = tl.reshape(lists, [LISTS * N << step, 2, LENGTH >> step + 1])
            # a sum of two less the one is the other, with no shuffle but the sum's
            other = tl.sum(pairs, 1, keep_dims=True) - pairs
            falls = (((tl.arange(0, LISTS * N << step) >> step) // N + TURN) & 1) == 0
            large = falls[:, None] == (tl.arange(0, 2) == 0)[None, :]
            kept = tl.where((pairs > other) == large[:, :, None], pairs, other)
            lists = tl.reshape(kept, [LISTS, N, LENGTH])
    return lists


@triton.jit
def _join_halves(lists, LEFT: tl.constexpr, N: tl.constexpr, LENGTH: tl.constexpr):
    """`LEFT` lists of twice as many, sorted for the next join."""
    LISTS: tl.constexpr = 2 if LEFT > 1 else 1
    most = tl.reshape(tl.max(tl.reshape(lists, [2, LEFT * N, LENGTH]), 0), [LISTS, LEFT * N // LISTS, LENGTH])
    return settle_lists(most, LISTS, LEFT * N // LISTS, LENGTH, 0)


@triton.jit
def join_lists(lists, LISTS: tl.constexpr, N: tl.constexpr, LENGTH: tl.constexpr):
    """The largest `LENGTH` keys `[N, LENGTH]` of lists `[LISTS, N, LENGTH]`, falling.

    The first half of the lists fall and the second half rise: what is far apart, most often in one thread, is
    joined first. There are 1,024 lists at most.
    """
    for step in tl.static_range(10):
        if LISTS >> step > 1:
            lists = _join_halves(lists, LISTS >> step + 1, N, LENGTH)
    return tl.reshape(lists, [N, LENGTH])
