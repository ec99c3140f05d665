"""Cache rows: their addresses, contiguous or paged, and the 64-bit words that say who sees them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_ptrs(
    Base, Pages, start, last, d, stride_page, stride_row, BLOCK_N: tl.constexpr, PAGE: tl.constexpr
):  # fmt: skip
    """Pointers [BLOCK_N, d] to the cache rows start..start+BLOCK_N, through the page table if paged.

    Table entries past row `last` are not read; the rows themselves are masked by the caller.
    """
    offs = tl.arange(0, BLOCK_N)
    if PAGE == 0:
        return Base + tl.cast(start, tl.int64) * stride_row + (offs[:, None] * stride_row + d[None, :])
    if PAGE >= BLOCK_N:
        page = tl.load(Pages + start // PAGE).to(tl.int64)
        return Base + page * stride_page + ((start % PAGE + offs)[:, None] * stride_row + d[None, :])
    rows = tl.minimum(start + offs, last)
    page = tl.load(Pages + rows // PAGE).to(tl.int64)
    return Base + (page * stride_page + (rows % PAGE) * stride_row)[:, None] + d[None, :]


@triton.jit
def prefetch(ptrs):
    """Ask for lines to come into L2, given by an address in each."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [ptrs.to(tl.int64, bitcast=True)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def prefetch_spans(starts, numbers):
    """Ask for spans of memory to come into L2, each by its address and its multiple of 16 bytes, or 0."""
    tl.inline_asm_elementwise(
        "{ .reg .pred some; setp.ne.u32 some, $2, 0; "
        "@some cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }",
        "=r,l,r", [starts.to(tl.int64, bitcast=True), numbers],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def prefetch_rows(
    K, V, Pages, start, last, stride_kp, stride_kr, stride_vp, stride_vr,
    HEAD: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Ask for a chunk's first rows to come into L2; nothing is read, so the data need not be final."""
    LINES: tl.constexpr = (HEAD + 63) // 64
    line = tl.arange(0, LINES) * 64
    begin = tl.minimum(start, tl.maximum(last + 1 - ROWS, 0)) // ROWS * ROWS
    k_ptrs = tile_ptrs(K, Pages, begin, last, line, stride_kp, stride_kr, ROWS, PAGE)
    v_ptrs = tile_ptrs(V, Pages, begin, last, line, stride_vp, stride_vr, ROWS, PAGE)
    prefetch(k_ptrs)
    prefetch(v_ptrs)


@triton.jit
def prefetch_lines(starts, HEAD: tl.constexpr):
    """Ask for whole rows of HEAD numbers, given by their addresses."""
    LINES: tl.constexpr = (HEAD + 63) // 64
    prefetch(starts[:, None] + (tl.arange(0, LINES) * 64)[None, :])


@triton.jit
def words_at(words, before):
    """Shift words so that bit i speaks of the tile's row i; `before` of its rows are trunk, seen by all."""
    up = tl.minimum(tl.maximum(before, 0), 63).to(tl.int64)
    down = tl.minimum(tl.maximum(-before, 0), 63).to(tl.int64)
    ones = tl.full([], 1, tl.int64)
    shifted = ((words >> down) & ~((ones << 63) >> down << 1)) << up
    return tl.where(before >= 64, -ones, shifted | ((ones << up) - 1))


@triton.jit
def bits_of(words, index):
    """Bit `index` (0-63) of int64 words, by 32-bit shifts."""
    low = (words & 0xFFFFFFFF).to(tl.uint32)
    high = ((words >> 32) & 0xFFFFFFFF).to(tl.uint32)
    half = tl.where(index < 32, low, high)
    return ((half >> (index & 31).to(tl.uint32)) & 1) != 0
