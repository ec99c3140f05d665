"""A few rows times two tiles of a weight's rows, the rows' norm on the way; splits of the depth."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.cache_rows import prefetch


@triton.jit
def enter(
    W, left, right, low, depth, PREFETCH: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Ask for the program's weights, which nothing writes, then wait for what came before."""
    if PDL:
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
        if PREFETCH > 0:
            line = tl.minimum(low + tl.arange(0, PREFETCH // 64) * 64, depth - 1)[None, :]
            prefetch(W + left.to(tl.int64)[:, None] * depth + line)
            prefetch(W + right.to(tl.int64)[:, None] * depth + line)
        tl.extra.cuda.gdc_wait()
        if not EARLY:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def pair_product(
    X, W, Norm, rows, left, right, low, high, depth, stride_x,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, NORM: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Depth low..high of the rows' products with the weight's rows `left` and `right` [HALF].

    Returns two [BLOCK_M, HALF] in float32 and the rows' sums of squares [BLOCK_M]. The rows are scaled by the
    norm's weight here; one over their root mean square commutes with the product and is left to the caller.
    """
    k = tl.arange(0, BLOCK_K)
    x_rows = X + rows.to(tl.int64)[:, None] * stride_x
    a_rows = W + left.to(tl.int64)[:, None] * depth
    b_rows = W + right.to(tl.int64)[:, None] * depth
    if SWAP:
        a_sum = tl.zeros([HALF, BLOCK_M], tl.float32)
        b_sum = tl.zeros([HALF, BLOCK_M], tl.float32)
    else:
        a_sum = tl.zeros([BLOCK_M, HALF], tl.float32)
        b_sum = tl.zeros([BLOCK_M, HALF], tl.float32)
    gram = tl.zeros([BLOCK_M, BLOCK_M], tl.float32)
    for start in tl.range(low, high, BLOCK_K, num_stages=STAGES):
        at = (start + k)[None, :]
        if EVEN:
            x, a, b = tl.load(x_rows + at), tl.load(a_rows + at), tl.load(b_rows + at)
        else:
            keep = at < depth
            x = tl.load(x_rows + at, mask=keep, other=0.0)
            a = tl.load(a_rows + at, mask=keep, other=0.0)
            b = tl.load(b_rows + at, mask=keep, other=0.0)
        if NORM:
            # its diagonal, made by the matrix unit: a sum over each row would wait for all threads
            gram = tl.dot(x, tl.trans(x), gram, input_precision="ieee")
            gain = tl.load(Norm + at) if EVEN else tl.load(Norm + at, mask=at < depth, other=0.0)
            x = (x.to(tl.float32) * gain.to(tl.float32)).to(a.dtype)
        if SWAP:
            a_sum = tl.dot(a, tl.trans(x), a_sum, input_precision="ieee")
            b_sum = tl.dot(b, tl.trans(x), b_sum, input_precision="ieee")
        else:
            a_sum = tl.dot(x, tl.trans(a), a_sum, input_precision="ieee")
            b_sum = tl.dot(x, tl.trans(b), b_sum, input_precision="ieee")
    if SWAP:
        a_sum, b_sum = tl.trans(a_sum), tl.trans(b_sum)
    m = tl.arange(0, BLOCK_M)
    squares = tl.sum(tl.where(m[:, None] == m[None, :], gram, 0.0), 1)
    return a_sum, b_sum, squares


@triton.jit
def leave_split(
    Parts, Squares, Tickets, a_sum, b_sum, squares, split, tile, tiles,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Store this split's sums; whether all splits of the tile have done so."""
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, HALF)
    place = (split * tiles + tile).to(tl.int64)
    at = place * (2 * BLOCK_M * HALF) + m[:, None] * HALF + n[None, :]
    tl.store(Parts + at, a_sum)
    tl.store(Parts + at + BLOCK_M * HALF, b_sum)
    if NORM:
        tl.store(Squares + place * BLOCK_M + m, squares)
    # orders the other threads' stores before the release below
    tl.debug_barrier()
    return tl.atomic_add(Tickets + tile, 1, sem="acq_rel") == SPLITS - 1


@triton.jit
def sum_splits(
    Parts, Squares, Tickets, tile, tiles,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Add up the splits of a tile in their order, whoever ended last, and put its counter back."""
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, HALF)
    a_sum = tl.zeros([BLOCK_M, HALF], tl.float32)
    b_sum = tl.zeros([BLOCK_M, HALF], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for split in range(SPLITS):
        place = (split * tiles + tile).to(tl.int64)
        at = place * (2 * BLOCK_M * HALF) + m[:, None] * HALF + n[None, :]
        a_sum += tl.load(Parts + at, cache_modifier=".cg")
        b_sum += tl.load(Parts + at + BLOCK_M * HALF, cache_modifier=".cg")
        if NORM:
            squares += tl.load(Squares + place * BLOCK_M + m, cache_modifier=".cg")
    tl.store(Tickets + tile, 0)
    return a_sum, b_sum, squares
