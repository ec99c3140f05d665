"""Philox4x32-10 in Triton, for kernels that draw their own noise."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl


@triton.jit
def coin_word(position, purpose, path, depth, k0, k1):
    """A node's coin: word (depth-1) % 4 of counter (position, purpose, path hash, (depth-1) // 4)."""
    index = depth - 1
    zero = (index * 0).to(tl.uint32)
    w0, w1, w2, w3 = philox_impl(
        zero + position, zero + purpose, zero + path, (index // 4).to(tl.uint32), k0, k1
    )
    which = index % 4
    return tl.where(which == 0, w0, tl.where(which == 1, w1, tl.where(which == 2, w2, w3)))


@triton.jit
def unit64(word):
    """Map a word to (0, 1): (w + 1/2) / 2**32 in float64."""
    return (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10


@triton.jit
def philox_kernel(Counters, Keys, Out, count, BLOCK: tl.constexpr):
    """Four words a counter; grid (blocks of counters)."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    c0 = tl.load(Counters + 4 * i, mask=live, other=0).to(tl.uint32, bitcast=True)
    c1 = tl.load(Counters + 4 * i + 1, mask=live, other=0).to(tl.uint32, bitcast=True)
    c2 = tl.load(Counters + 4 * i + 2, mask=live, other=0).to(tl.uint32, bitcast=True)
    c3 = tl.load(Counters + 4 * i + 3, mask=live, other=0).to(tl.uint32, bitcast=True)
    k0 = tl.load(Keys + 2 * i, mask=live, other=0).to(tl.uint32, bitcast=True)
    k1 = tl.load(Keys + 2 * i + 1, mask=live, other=0).to(tl.uint32, bitcast=True)
    w0, w1, w2, w3 = philox_impl(c0, c1, c2, c3, k0, k1)
    tl.store(Out + 4 * i, w0.to(tl.int32, bitcast=True), mask=live)
    tl.store(Out + 4 * i + 1, w1.to(tl.int32, bitcast=True), mask=live)
    tl.store(Out + 4 * i + 2, w2.to(tl.int32, bitcast=True), mask=live)
    tl.store(Out + 4 * i + 3, w3.to(tl.int32, bitcast=True), mask=live)
