"""The kernels of a layer's products: Q/K/V with rotary positions and append, gate/up, rows."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.pair_product import enter, leave_split, pair_product, sum_splits

# wider tiles have no registers for what could be loaded before the products
MOST_AHEAD = tl.constexpr(16)
MOST_TURNS = tl.constexpr(2048)


@triton.jit
def _root(squares, depth, eps):
    """One over the root mean square of each row."""
    return tl.rsqrt(squares / depth + eps)[:, None]


@triton.jit
def _own_rows(count, BLOCK_M: tl.constexpr):
    """The rows of this program, and which of them there are."""
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    return rows, rows < count


@triton.jit
def _load_squares(Before, rows, count, base, parts, PARTS: tl.constexpr):
    """What parts base, base + 1, … of a preceding kernel add to each row's squares, [BLOCK_M, PARTS]."""
    part = (base + tl.arange(0, PARTS))[None, :]
    return tl.load(Before + part * count + tl.minimum(rows, count - 1)[:, None], mask=part < parts, other=0.0)


@triton.jit
def _multiply(
    X, W, Norm, Before, rows, count, left, right, depth, blocks, parts, stride_x,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, BLOCK_K: tl.constexpr, WAYS: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """This program's two tiles over its share of the depth, and the first carried squares."""
    share = blocks * (BLOCK_K * WAYS)
    low = tl.program_id(2) * share
    # on their way while the products are made
    before = _load_squares(Before, rows, count, 0, parts, PARTS) if PARTS > 0 else count
    a_sum, b_sum, squares = pair_product(
        X, W, Norm, rows, rows < count, left, right, low, tl.minimum(low + share, depth), depth,
        stride_x, BLOCK_M, HALF, BLOCK_K, WAYS, STAGES, EVEN, NORM, SWAP,
    )  # fmt: skip
    return a_sum, b_sum, squares, before


@triton.jit
def _join(
    Before, Parts, Squares, Tickets, a_sum, b_sum, squares, before, rows, count, parts,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The two tiles over the whole depth with all their squares, and whether this program has them."""
    split = tl.program_id(2)
    mine = split >= 0
    if SPLITS > 1:
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tiles = tl.num_programs(0) * tl.num_programs(1)
        mine = leave_split(
            Parts, Squares, Tickets, a_sum, b_sum, squares, split, tile, tiles, BLOCK_M, HALF, SPLITS, NORM
        )
        if mine:
            a_sum, b_sum, squares = sum_splits(
                Parts, Squares, Tickets, tile, tiles, BLOCK_M, HALF, SPLITS, NORM
            )
    if PARTS > 0:
        squares = tl.sum(before, 1)
        for base in tl.range(PARTS, parts, PARTS):
            squares += tl.sum(_load_squares(Before, rows, count, base, parts, PARTS), 1)
    return a_sum, b_sum, squares, mine


@triton.jit
def _products(
    X, W, Norm, Before, Parts, Squares, Tickets, rows, count, left, right, depth, blocks, parts, stride_x,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, BLOCK_K: tl.constexpr, WAYS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr, EVEN: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """This program's two tiles over the whole depth, and whether it is the one that has them."""
    a_sum, b_sum, squares, before = _multiply(
        X, W, Norm, Before, rows, count, left, right, depth, blocks, parts, stride_x,
        BLOCK_M, HALF, BLOCK_K, WAYS, STAGES, EVEN, NORM, PARTS, SWAP,
    )  # fmt: skip
    return _join(
        Before, Parts, Squares, Tickets, a_sum, b_sum, squares, before, rows, count, parts,
        BLOCK_M, HALF, SPLITS, NORM, PARTS,
    )  # fmt: skip


@triton.jit
def _residual(
    Residual, rows, own, keep, stride, LOAD: tl.constexpr, BLOCK_M: tl.constexpr, HALF: tl.constexpr
):
    """A tile of the residual, or zeros."""
    if LOAD:
        at = Residual + rows.to(tl.int64)[:, None] * stride + own[None, :]
        return tl.load(at, mask=keep, other=0.0)
    return tl.zeros([BLOCK_M, HALF], Residual.dtype.element_ty)


@triton.jit
def _leave_half(
    Out, Gained, value, gain, rows, own, keep, stride_out, stride_gained, CARRY: tl.constexpr
):  # fmt: skip
    """Store a tile of the output, and its rows with gain for the norm ahead; return its sums of squares."""
    stored = value.to(Out.dtype.element_ty)
    tl.store(Out + rows.to(tl.int64)[:, None] * stride_out + own[None, :], stored, mask=keep)
    wide = tl.where(keep, stored.to(tl.float32), 0.0)
    if CARRY:
        to = Gained + rows.to(tl.int64)[:, None] * stride_gained + own[None, :]
        tl.store(to, (wide * gain.to(tl.float32)[None, :]).to(Out.dtype.element_ty), mask=keep)
    return tl.sum(wide * wide, 1)


@triton.jit(do_not_specialize=["count", "blocks", "parts", "eps", "later"])
def row_kernel(
    X, W, Norm, Before, Bias, Residual, Out, Gain, Gained, Sums, Parts, Squares, Tickets,
    stride_x, stride_residual, stride_out, stride_gained, count, columns, depth, blocks, parts, eps,
    Later, later,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, BLOCK_K: tl.constexpr, WAYS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr, EVEN: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, CARRY: tl.constexpr, SWAP: tl.constexpr, PREFETCH: tl.constexpr,
    BULK: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rows times a weight, plus bias and residual; grid (column tiles, row tiles, splits)."""
    AHEAD: tl.constexpr = HALF <= MOST_AHEAD
    rows, live = _own_rows(count, BLOCK_M)
    own = tl.program_id(0) * (2 * HALF) + tl.arange(0, HALF)
    left, right = tl.minimum(own, columns - 1), tl.minimum(own + HALF, columns - 1)
    keep_a, keep_b = live[:, None] & (own < columns)[None, :], live[:, None] & (own + HALF < columns)[None, :]
    gain_a = tl.load(Gain + left) if CARRY else left
    gain_b = tl.load(Gain + right) if CARRY else right
    enter(W, left, right, blocks * (BLOCK_K * WAYS), depth, Later, later, PREFETCH, BULK, EARLY, PDL)
    rest_a = _residual(Residual, rows, own, keep_a, stride_residual, RESIDUAL and AHEAD, BLOCK_M, HALF)
    rest_b = _residual(Residual, rows, own + HALF, keep_b, stride_residual, RESIDUAL and AHEAD, BLOCK_M, HALF)
    a, b, squares, before = _multiply(
        X, W, Norm, Before, rows, count, left, right, depth, blocks, parts, stride_x,
        BLOCK_M, HALF, BLOCK_K, WAYS, STAGES, EVEN, NORM, PARTS, SWAP,
    )  # fmt: skip
    if RESIDUAL and not AHEAD:
        # on their way while the splits are joined
        rest_a = _residual(Residual, rows, own, keep_a, stride_residual, True, BLOCK_M, HALF)
        rest_b = _residual(Residual, rows, own + HALF, keep_b, stride_residual, True, BLOCK_M, HALF)
    a, b, squares, mine = _join(
        Before, Parts, Squares, Tickets, a, b, squares, before, rows, count, parts,
        BLOCK_M, HALF, SPLITS, NORM, PARTS,
    )  # fmt: skip
    if mine:
        if NORM or PARTS > 0:
            root = _root(squares, depth, eps)
            a, b = a * root, b * root
        if BIAS:
            a += tl.load(Bias + left).to(tl.float32)[None, :]
            b += tl.load(Bias + right).to(tl.float32)[None, :]
        if RESIDUAL:
            a, b = a + rest_a.to(tl.float32), b + rest_b.to(tl.float32)
        sums = _leave_half(Out, Gained, a, gain_a, rows, own, keep_a, stride_out, stride_gained, CARRY)
        sums += _leave_half(
            Out, Gained, b, gain_b, rows, own + HALF, keep_b, stride_out, stride_gained, CARRY
        )
        if CARRY:
            tl.store(Sums + tl.program_id(0) * count + rows, sums, mask=live)


@triton.jit(do_not_specialize=["count", "blocks", "parts", "eps", "later"])
def gate_up_kernel(
    X, W, Norm, Before, Out, Parts, Squares, Tickets,
    stride_x, stride_out, count, inner, depth, blocks, parts, eps,
    Later, later,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, BLOCK_K: tl.constexpr, WAYS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr, EVEN: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr, SWAP: tl.constexpr,
    PREFETCH: tl.constexpr, BULK: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of normed rows; grid (column tiles, row tiles, splits)."""
    rows, live = _own_rows(count, BLOCK_M)
    own = tl.program_id(0) * HALF + tl.arange(0, HALF)
    left = tl.minimum(own, inner - 1)
    enter(W, left, left + inner, blocks * (BLOCK_K * WAYS), depth, Later, later, PREFETCH, BULK, EARLY, PDL)
    gate, up, squares, mine = _products(
        X, W, Norm, Before, Parts, Squares, Tickets, rows, count, left, left + inner, depth, blocks, parts,
        stride_x, BLOCK_M, HALF, BLOCK_K, WAYS, STAGES, SPLITS, EVEN, NORM, PARTS, SWAP,
    )  # fmt: skip
    if mine:
        if NORM or PARTS > 0:
            root = _root(squares, depth, eps)
            gate, up = gate * root, up * root
        value = gate / (1.0 + tl.exp(-gate)) * up
        to = Out + rows.to(tl.int64)[:, None] * stride_out + own[None, :]
        tl.store(to, value.to(Out.dtype.element_ty), mask=live[:, None] & (own < inner)[None, :])


@triton.jit
def _head_norm(a, b, a_gain, b_gain, real, eps, TURN: tl.constexpr):
    """RMSNorm of whole heads, given as their halves [rows, half]."""
    squares = tl.where(real[None, :], a * a + b * b, 0.0)
    root = tl.rsqrt(tl.sum(squares, 1) / (2 * TURN) + eps)[:, None]
    return a * root * a_gain.to(tl.float32)[None, :], b * root * b_gain.to(tl.float32)[None, :]


@triton.jit
def _turns(Cos, Sin, position, left, TURN: tl.constexpr):
    """Cosines and sines of the pairs (i, i + half a head) at the rows' positions."""
    at = position[:, None] * TURN + left[None, :]
    return tl.load(Cos + at), tl.load(Sin + at)


@triton.jit
def _append(
    Cache, a, b, head, block, row, own, real, stride_b, stride_h, stride_r, TURN: tl.constexpr
):  # fmt: skip
    """Write a head of K or V where the rows have their places; a negative block has none."""
    to = Cache + (block * stride_b + row * stride_r + head.to(tl.int64) * stride_h)[:, None] + own[None, :]
    keep = (block >= 0)[:, None] & real[None, :]
    tl.store(to, a.to(Cache.dtype.element_ty), mask=keep)
    tl.store(to + TURN, b.to(Cache.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["count", "blocks", "parts", "eps", "head_eps", "later"])
def qkv_kernel(
    X, W, Norm, Before, Bias, QNorm, KNorm, Cos, Sin, Positions, Places, Q, K, V, Parts, Squares, Tickets,
    stride_x, stride_q, stride_kb, stride_kh, stride_kr, stride_vb, stride_vh, stride_vr,
    count, depth, blocks, parts, eps, head_eps, Later, later,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, TURN: tl.constexpr, BLOCK_M: tl.constexpr,
    HALF: tl.constexpr, BLOCK_K: tl.constexpr, WAYS: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, EVEN: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr,
    HEAD_NORM: tl.constexpr, SWAP: tl.constexpr, PREFETCH: tl.constexpr, BULK: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Queries to Q, keys and values to the cache; grid (heads x pieces of a half, row tiles, splits)."""
    PIECES: tl.constexpr = (TURN + HALF - 1) // HALF
    AHEAD: tl.constexpr = HALF * BLOCK_M <= MOST_TURNS
    rows, live = _own_rows(count, BLOCK_M)
    head = tl.program_id(0) // PIECES
    own = tl.program_id(0) % PIECES * HALF + tl.arange(0, HALF)
    real = own < TURN
    inside = tl.minimum(own, TURN - 1)
    left = head * (2 * TURN) + inside
    gain = QNorm if head < HEADS else KNorm
    if HEAD_NORM and AHEAD:
        a_gain, b_gain = tl.load(gain + inside), tl.load(gain + TURN + inside)
    enter(W, left, left + TURN, blocks * (BLOCK_K * WAYS), depth, Later, later, PREFETCH, BULK, EARLY, PDL)
    position = tl.load(Positions + rows, mask=live, other=0).to(tl.int64)
    block = tl.load(Places + 2 * rows, mask=live, other=-1).to(tl.int64)
    row = tl.load(Places + 2 * rows + 1, mask=live, other=0).to(tl.int64)
    if AHEAD:
        cos, sin = _turns(Cos, Sin, position, inside, TURN)
    a, b, squares, mine = _products(
        X, W, Norm, Before, Parts, Squares, Tickets, rows, count, left, left + TURN, depth, blocks, parts,
        stride_x, BLOCK_M, HALF, BLOCK_K, WAYS, STAGES, SPLITS, EVEN, NORM, PARTS, SWAP,
    )  # fmt: skip
    if mine:
        if NORM or PARTS > 0:
            root = _root(squares, depth, eps)
            a, b = a * root, b * root
        if BIAS:
            a += tl.load(Bias + left).to(tl.float32)[None, :]
            b += tl.load(Bias + TURN + left).to(tl.float32)[None, :]
        if head < HEADS + KV_HEADS:
            if HEAD_NORM:
                if not AHEAD:
                    a_gain, b_gain = tl.load(gain + inside), tl.load(gain + TURN + inside)
                a, b = _head_norm(a, b, a_gain, b_gain, real, head_eps, TURN)
            if not AHEAD:
                cos, sin = _turns(Cos, Sin, position, inside, TURN)
            a, b = a * cos - b * sin, b * cos + a * sin
        if head < HEADS:
            keep = live[:, None] & real[None, :]
            to = Q + rows.to(tl.int64)[:, None] * stride_q + head * (2 * TURN) + own[None, :]
            tl.store(to, a.to(Q.dtype.element_ty), mask=keep)
            tl.store(to + TURN, b.to(Q.dtype.element_ty), mask=keep)
        elif head < HEADS + KV_HEADS:
            _append(
                K, a, b, head - HEADS, block, row, own, real, stride_kb, stride_kh, stride_kr, TURN
            )  # fmt: skip
        else:
            _append(
                V, a, b, head - HEADS - KV_HEADS, block, row, own, real, stride_vb, stride_vh, stride_vr, TURN
            )  # fmt: skip
