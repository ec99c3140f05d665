"""A few rows times two tiles of a weight's rows, the rows' norm on the way; splits of the depth."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.cache_rows import prefetch, prefetch_spans

# numbers of splits that are on their way at once, of small tiles and of others, as registers allow
SMALL_TILE = tl.constexpr(2048)
MOST_OF_SMALL = tl.constexpr(8192)
MOST_AT_ONCE = tl.constexpr(4096)
# numbers that shares of a later weight are multiples of: whole lines
SHARE = tl.constexpr(128)


@triton.jit
def ask_later(Later, numbers):
    """Ask for this program's share of a weight that a later launch reads, by one thread: more take longer."""
    THREADS: tl.constexpr = tl.extra.cuda.num_threads()
    program = tl.program_id(0) + tl.num_programs(0) * (
        tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
    )
    programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    share = tl.cdiv(tl.cdiv(numbers, programs), SHARE) * SHARE
    begin = program * share
    size: tl.constexpr = Later.dtype.element_ty.primitive_bitwidth // 8
    own = tl.maximum(tl.minimum(share, numbers - begin), 0) * size // 16 * 16
    thread = tl.arange(0, THREADS)
    prefetch_spans(Later + begin + thread, tl.where(thread == 0, own, 0))


@triton.jit
def enter(
    W, left, right, share, depth, Later, later,
    PREFETCH: tl.constexpr, BULK: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Ask for the program's share of its weights, which nothing writes, then wait for what came before.

    Meanwhile `later` numbers of a weight that a later launch reads come into L2, too, unless it is None.
    """
    if PDL:
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
        if PREFETCH > 0:
            low = tl.program_id(2) * share
        if PREFETCH > 0 and BULK:
            rows = tl.join(left, right).to(tl.int64) * depth
            size: tl.constexpr = W.dtype.element_ty.primitive_bitwidth // 8
            most = tl.minimum(PREFETCH, depth - low) * size
            prefetch_spans(W + rows + low, tl.zeros(rows.shape, tl.int32) + most)
        elif PREFETCH > 0:
            line = tl.minimum(low + tl.arange(0, PREFETCH // 64) * 64, depth - 1)[None, :]
            prefetch(W + left.to(tl.int64)[:, None] * depth + line)
            prefetch(W + right.to(tl.int64)[:, None] * depth + line)
        if Later is not None:
            ask_later(Later, later)
        tl.extra.cuda.gdc_wait()
        if not EARLY:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _load(rows, at, depth, EVEN: tl.constexpr):
    """Columns of some rows of a weight, zero past the depth."""
    if EVEN:
        return tl.load(rows + at)
    return tl.load(rows + at, mask=at < depth, other=0.0)


@triton.jit
def _turned(x, WAYS: tl.constexpr):
    """The last two dimensions in turn."""
    return tl.trans(x, (0, 2, 1)) if WAYS > 1 else tl.trans(x)


@triton.jit
def pair_product(
    X, W, Norm, rows, live, left, right, low, high, depth, stride_x,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, BLOCK_K: tl.constexpr, WAYS: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, NORM: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Depth low..high of the rows' products with the weight's rows `left` and `right` [HALF].

    With several ways, each warp takes BLOCK_K columns of a turn of its own, which are added up at the end: a
    chain of products that wait for one another is as much shorter.

    Returns two [BLOCK_M, HALF] in float32 and the rows' sums of squares [BLOCK_M]. The rows are scaled by the
    norm's weight here; one over their root mean square commutes with the product and is left to the caller.
    """
    GRAM: tl.constexpr = BLOCK_M < 64 and not (SWAP and HALF >= 64)
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)[None, :]
    x_rows = X + rows.to(tl.int64)[:, None] * stride_x
    a_rows = W + left.to(tl.int64)[:, None] * depth
    b_rows = W + right.to(tl.int64)[:, None] * depth
    here, diagonal = live[:, None], m[:, None] == m[None, :]
    if WAYS > 1:
        k = k[None, :, :] + tl.arange(0, WAYS)[:, None, None] * BLOCK_K
        x_rows, a_rows, b_rows = x_rows[None, :, :], a_rows[None, :, :], b_rows[None, :, :]
        here, diagonal = here[None, :, :], diagonal[None, :, :]
        a_sum = tl.zeros([WAYS, HALF, BLOCK_M] if SWAP else [WAYS, BLOCK_M, HALF], tl.float32)
        gram = tl.zeros([WAYS, BLOCK_M, BLOCK_M], tl.float32)
        squares = tl.zeros([WAYS, BLOCK_M], tl.float32)
    else:
        a_sum = tl.zeros([HALF, BLOCK_M] if SWAP else [BLOCK_M, HALF], tl.float32)
        gram = tl.zeros([BLOCK_M, BLOCK_M], tl.float32)
        squares = tl.zeros([BLOCK_M], tl.float32)
    b_sum = a_sum
    for start in tl.range(low, high, BLOCK_K * WAYS, num_stages=STAGES):
        at = start + k
        a, b = _load(a_rows, at, depth, EVEN), _load(b_rows, at, depth, EVEN)
        # rows that are not there cost no traffic: with few rows, x is as much as the weight
        x = tl.load(x_rows + at, mask=here if EVEN else here & (at < depth), other=0.0)
        if NORM:
            if GRAM:
                # its diagonal, made by the matrix unit: a sum over each row would wait for all threads
                gram = tl.dot(x, _turned(x, WAYS), gram, input_precision="ieee")
            else:
                # beside products that are wgmmas, another product would make them wait
                wide = x.to(tl.float32)
                squares += tl.sum(wide * wide, 2 if WAYS > 1 else 1)
            gain = _load(Norm, at, depth, EVEN)
            x = (x.to(tl.float32) * gain.to(tl.float32)).to(a.dtype)
        if SWAP:
            a_sum = tl.dot(a, _turned(x, WAYS), a_sum, input_precision="ieee")
            b_sum = tl.dot(b, _turned(x, WAYS), b_sum, input_precision="ieee")
        else:
            a_sum = tl.dot(x, _turned(a, WAYS), a_sum, input_precision="ieee")
            b_sum = tl.dot(x, _turned(b, WAYS), b_sum, input_precision="ieee")
    if GRAM:
        squares = tl.sum(tl.where(diagonal, gram, 0.0), 2 if WAYS > 1 else 1)
    if WAYS > 1:
        a_sum, b_sum, squares = tl.sum(a_sum, 0), tl.sum(b_sum, 0), tl.sum(squares, 0)
    if SWAP:
        a_sum, b_sum = tl.trans(a_sum), tl.trans(b_sum)
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
def _add_split(
    Parts, Squares, a_sum, b_sum, squares, split, tile, tiles,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, HALF)
    place = (split * tiles + tile).to(tl.int64)
    at = place * (2 * BLOCK_M * HALF) + m[:, None] * HALF + n[None, :]
    a_sum += tl.load(Parts + at, cache_modifier=".cg")
    b_sum += tl.load(Parts + at + BLOCK_M * HALF, cache_modifier=".cg")
    if NORM:
        squares += tl.load(Squares + place * BLOCK_M + m, cache_modifier=".cg")
    return a_sum, b_sum, squares


@triton.jit
def sum_splits(
    Parts, Squares, Tickets, tile, tiles,
    BLOCK_M: tl.constexpr, HALF: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Add up the splits of a tile in their order, whoever ended last, and put its counter back."""
    a_sum = tl.zeros([BLOCK_M, HALF], tl.float32)
    b_sum = tl.zeros([BLOCK_M, HALF], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    MOST: tl.constexpr = MOST_OF_SMALL if BLOCK_M * HALF <= SMALL_TILE else MOST_AT_ONCE
    AT_ONCE: tl.constexpr = max(1, min(SPLITS, MOST // (BLOCK_M * HALF)))
    WHOLE: tl.constexpr = SPLITS // AT_ONCE * AT_ONCE
    for base in tl.range(0, WHOLE, AT_ONCE):
        for split in tl.static_range(AT_ONCE):
            a_sum, b_sum, squares = _add_split(
                Parts, Squares, a_sum, b_sum, squares, base + split, tile, tiles, BLOCK_M, HALF, NORM
            )
    for split in tl.static_range(WHOLE, SPLITS):
        a_sum, b_sum, squares = _add_split(
            Parts, Squares, a_sum, b_sum, squares, split, tile, tiles, BLOCK_M, HALF, NORM
        )
    tl.store(Tickets + tile, 0)
    return a_sum, b_sum, squares
