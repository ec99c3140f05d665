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
