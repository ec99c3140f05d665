"""The Triton kernel of `accept_tree`: every node is judged at once, one program a lane."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.philox_triton import coin_word, unit64

ACCEPT = tl.constexpr(2)


@triton.jit
def _popcount(word):
    """Set bits of int64 words; every step stays clear of signed overflow."""
    word = word - ((word >> 1) & 0x5555555555555555)
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F
    word = word + (word >> 8)
    word = word + (word >> 16)
    return ((word + (word >> 32)) & 0x7F).to(tl.int32)


@triton.jit
def _coin_passes(LogP, LogQ, Keys, Positions, Paths, lane, at, real, depth, PATHS: tl.constexpr):
    """The test of speculative sampling, log(u) <= log p - log q, in float64 from float32 as stored."""
    logp = tl.load(LogP + at, mask=real, other=0.0).to(tl.float64)
    logq = tl.load(LogQ + at, mask=real, other=0.0).to(tl.float64)
    k0 = tl.load(Keys + 2 * lane).to(tl.uint32, bitcast=True)
    k1 = tl.load(Keys + 2 * lane + 1).to(tl.uint32, bitcast=True)
    position = tl.load(Positions + lane).to(tl.uint32, bitcast=True)
    path = (depth * 0).to(tl.uint32)
    if PATHS:
        path = tl.load(Paths + at, mask=real, other=0).to(tl.uint32, bitcast=True)
    word = coin_word(position, ACCEPT, path, tl.maximum(depth, 1), k0, k1)
    return tl.log(unit64(word)) <= logp - logq


@triton.jit
def _path_sums(logp, parent, depth, deepest, NODES: tl.constexpr):
    """Cumulative log p in float64, added from the anchor down."""
    total = tl.zeros([NODES], tl.float64)
    for level in range(1, deepest + 1):
        above = tl.where(parent >= 0, tl.gather(total, tl.maximum(parent, 0), 0), 0.0)
        total = tl.where(depth == level, above + logp, total)
    return total


@triton.jit(do_not_specialize=["nodes"])
def accept_lane(
    Tokens, Parents, Words, Choices, Tie, LogP, LogQ, Residual, Keys, Positions, Paths,
    Count, Path, Bonus, Slot, nodes,
    NODES: tl.constexpr, SPECULATIVE: tl.constexpr, PATHS: tl.constexpr, TIES: tl.constexpr,
):  # fmt: skip
    """Judge one lane's tree; grid (lanes)."""
    lane = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, NODES)
    real = node < nodes
    at = lane * nodes + node
    parent = tl.load(Parents + at, mask=real, other=-2)
    token = tl.load(Tokens + at, mask=real, other=-1)
    word = tl.load(Words + at + lane + 1, mask=real, other=0)
    depth = _popcount(word)
    usable = (parent >= -1) & (token >= 0) & (depth > 0)
    if SPECULATIVE:
        ok = usable & _coin_passes(LogP, LogQ, Keys, Positions, Paths, lane, at, real, depth, PATHS)
        column = node[:, None] + tl.zeros([1, NODES], tl.int32)
        rivals = (parent[None, :] == parent[:, None]) & (node[None, :] > column) & ok[:, None]
        ok = ok & (tl.sum(rivals.to(tl.int32), 0) == 0)
    else:
        ok = usable & (token == tl.load(Choices + lane * (nodes + 1) + parent + 1, mask=usable, other=-1))
    own = tl.full([NODES], 1, tl.int64) << node.to(tl.int64)
    good = tl.sum(tl.where(ok, own, 0), 0)
    whole = ok & ((word & good) == word)
    deepest = tl.max(tl.where(whole, depth, 0), 0)
    final = whole & (depth == deepest)
    if TIES:
        logp = tl.load(Tie + at, mask=real, other=0.0).to(tl.float64)
        total = tl.where(final, _path_sums(logp, parent, depth, deepest, NODES), -float("inf"))
        final = final & (total == tl.max(total, 0))
    best = tl.min(tl.where(final, node, NODES), 0)
    best = tl.where(best == NODES, -1, best)
    path_word = tl.sum(tl.where(node == best, word, 0), 0)
    tl.store(Path + lane * nodes + depth - 1, node, mask=(path_word & own) != 0)
    tl.store(Path + at, tl.full([NODES], -1, tl.int32), mask=real & (node >= deepest))
    bonus = tl.load(Choices + lane * (nodes + 1) + best + 1)
    if SPECULATIVE:
        child = tl.max(tl.where(usable & (parent == best), node, -1), 0)
        bonus = tl.load(Residual + lane * nodes + child, mask=child >= 0, other=bonus)
    tl.store(Count + lane, deepest)
    tl.store(Bonus + lane, bonus)
    tl.store(Slot + lane, best + 1)
