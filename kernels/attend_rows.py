"""Attention of a tile of packed query rows over a chunk of the context."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.cache_rows import bits_of, tile_ptrs, words_at
from dflash.kernels.chunk_merge import EMPTY


@triton.jit
def _walk_tiles(
    q, words, union, acc, m, mass, K, V, Pages, low, high, length, total,
    stride_kp, stride_kr, stride_vp, stride_vr, scale,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    PAGE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Online softmax in base 2 over the tiles of cache rows low..high; unmasked only within the trunk.

    Rows past the trunk that no word of this program names are not read: they may hold anything.
    """
    index = tl.arange(0, BLOCK_N)
    d = tl.arange(0, HEAD_PAD)
    for start in tl.range(low, high, BLOCK_N, num_stages=STAGES):
        k_ptrs = tile_ptrs(K, Pages, start, total - 1, d, stride_kp, stride_kr, BLOCK_N, PAGE)
        v_ptrs = tile_ptrs(V, Pages, start, total - 1, d, stride_vp, stride_vr, BLOCK_N, PAGE)
        if MASKED or HEAD < HEAD_PAD:
            keep = (d < HEAD)[None, :]
            if MASKED:
                keep = bits_of(words_at(union, length - start), index)[:, None] & keep
            k = tl.load(k_ptrs, mask=keep, other=0.0)
            v = tl.load(v_ptrs, mask=keep, other=0.0)
        else:
            k = tl.load(k_ptrs)
            v = tl.load(v_ptrs)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:  # noqa: SIM102
            if start + BLOCK_N > length:
                seen = bits_of(words_at(words, length - start)[:, None], index[None, :])
                s = tl.where(seen, s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - m_new[:, None])
        fade = tl.exp2(m - m_new)
        mass = mass * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        m = m_new
    return acc, m, mass


@triton.jit
def attend_rows(
    q, words, union, K, V, Pages, low, high, length, total, stride_kp, stride_kr, stride_vp, stride_vr, scale,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, PAGE: tl.constexpr, TWO_LOOPS: tl.constexpr,
):  # fmt: skip
    """Attend cache rows low..high: normalised output [BLOCK_M, HEAD_PAD] and base-2 log-sum-exp [BLOCK_M].

    A masked tile has 64 rows at most, which is what a word speaks of.
    """
    BLOCK_TAIL: tl.constexpr = BLOCK_N if BLOCK_N < 64 else 64
    m = tl.full([BLOCK_M], EMPTY, tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    middle = low
    if TWO_LOOPS:
        middle = tl.maximum(tl.minimum(high, length // BLOCK_N * BLOCK_N), low)
        acc, m, mass = _walk_tiles(
            q, words, union, acc, m, mass, K, V, Pages, low, middle, length, total,
            stride_kp, stride_kr, stride_vp, stride_vr, scale, HEAD, HEAD_PAD, BLOCK_N, STAGES, PAGE, False,
        )  # fmt: skip
    # the branch keeps ptxas from putting a wait after every wgmma of both loops
    if middle < high:
        acc, m, mass = _walk_tiles(
            q, words, union, acc, m, mass, K, V, Pages, middle, high, length, total,
            stride_kp, stride_kr, stride_vp, stride_vr, scale,
            HEAD, HEAD_PAD, BLOCK_TAIL, 2 if TWO_LOOPS else STAGES, PAGE, True,
        )  # fmt: skip
    full = tl.where(mass > 0, mass, 1.0)
    return acc * (1.0 / full)[:, None], tl.where(mass > 0, m + tl.log2(full), EMPTY)
