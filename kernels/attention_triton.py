"""The two attention kernels: chunks of a context that is split over programs, and their merge.

One program owns (row tile, KV head, chunk of a lane); all query heads of a KV head share one read of its K/V.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.attend_rows import attend_rows
from dflash.kernels.cache_rows import prefetch_lines, prefetch_rows
from dflash.kernels.chunk_merge import merge_if_last, merge_rows, store_rows
from dflash.kernels.work_items import item_of_grid, items_of_lane


@triton.jit
def _fresh(value, COMPILED: tl.constexpr):
    """The same scalar, opaque to the compiler: no address made from it stays in registers over the loop."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1
        )
    return value


@triton.jit
def _prefetch_item(
    Q, K, V, Pages, Lengths, item, batch, tail, items, min_chunk, capacity, head, rows,
    stride_qb, stride_qn, stride_qh, stride_kp, stride_kr, stride_vp, stride_vr, stride_pages,
    GROUP: tl.constexpr, HEAD: tl.constexpr, BATCH_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr, MAX_PARTS: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Fetch an item's queries and first rows into L2 early; lengths may be stale: bound them."""
    lane, part, total, _, _, chunk = item_of_grid(
        Lengths, item, batch, tail, items, min_chunk, BATCH_PAD, BLOCK_N, MAX_PARTS
    )
    if lane < batch:
        lane64 = lane.to(tl.int64)
        base = lane64 if PAGE == 0 else lane64 * 0
        last = tl.minimum(tl.maximum(total, 1), capacity) - 1
        prefetch_rows(
            K + base * stride_kp, V + base * stride_vp, Pages + lane64 * stride_pages, part * chunk, last,
            stride_kp, stride_kr, stride_vp, stride_vr, HEAD, ROWS, PAGE,
        )  # fmt: skip
        at = rows // GROUP * stride_qn + (head * GROUP + rows % GROUP) * stride_qh
        prefetch_lines(Q + lane64 * stride_qb + at, HEAD)


@triton.jit
def _load_words(Words, rows, live, every, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, TREE: tl.constexpr):
    """Which of the rows after the trunk each packed row sees; `every` one without a tree."""
    words = tl.zeros([BLOCK_M], tl.int64) + every
    if TREE:
        words &= tl.load(Words + rows // GROUP, mask=live, other=0)
    return words


@triton.jit
def _first_bits(count):
    """The word whose first `count` bits are set."""
    ones = tl.full([], 1, tl.int64)
    return tl.where(count < 64, (ones << tl.minimum(count, 63).to(tl.int64)) - 1, -ones)


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _leave_part(
    PartO, PartL, o, lse, item, head, heads, tile, queries, rows_all,
    GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Store a chunk's output and log-sum-exp for the merge."""
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD_PAD)
    live = rows < queries * GROUP
    at = (item.to(tl.int64) * heads + head) * rows_all + rows
    keep = live[:, None] & (d < HEAD)[None, :]
    tl.store(PartO + at[:, None] * HEAD + d[None, :], o.to(PartO.dtype.element_ty), mask=keep)
    tl.store(PartL + at, lse, mask=live)


@triton.jit
def _deliver(
    Tickets, Out, PartO, PartL, o, lse, item, lane, head, heads, tile, first, parts, queries, rows_all,
    stride_ob, stride_on, stride_oh, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, TICKET: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr,
):  # fmt: skip
    """Write the only chunk of a lane to the output; leave one of several to the merge."""
    if parts == 1:
        store_rows(
            Out, o, lane, head, tile * BLOCK_M, queries, stride_ob, stride_on, stride_oh,
            GROUP, HEAD, HEAD_PAD, BLOCK_M,
        )  # fmt: skip
    else:
        _leave_part(
            PartO, PartL, o, lse, item, head, heads, tile, queries, rows_all, GROUP, HEAD, HEAD_PAD, BLOCK_M
        )  # fmt: skip
        if TICKET:
            merge_if_last(
                Tickets, Out, PartO, PartL, lane, head, heads, tile, first, parts, queries, rows_all,
                stride_ob, stride_on, stride_oh, GROUP, HEAD, HEAD_PAD, BLOCK_M, MERGE_ROWS, MERGE_SPLITS,
            )  # fmt: skip


@triton.jit
def _load_queries(
    Q, head, rows, live, stride_qn, stride_qh, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr
):  # fmt: skip
    """Packed query rows [BLOCK_M, HEAD_PAD] of a KV head, zero past the last."""
    d = tl.arange(0, HEAD_PAD)
    at = rows // GROUP * stride_qn + (head * GROUP + rows % GROUP) * stride_qh
    return tl.load(Q + at[:, None] + d[None, :], mask=live[:, None] & (d < HEAD)[None, :], other=0.0)


@triton.jit(do_not_specialize=["batch", "queries", "tail", "items", "min_chunk", "scale", "capacity"])
def attend_chunks(
    Q, K, V, Words, Lengths, Pages, Out, PartO, PartL, Tickets,
    stride_qb, stride_qn, stride_qh, stride_kp, stride_kh, stride_kr, stride_vp, stride_vh, stride_vr,
    stride_ob, stride_on, stride_oh, stride_pages, stride_words,
    scale, batch, queries, tail, items, min_chunk, capacity,
    GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BATCH_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, MAX_PARTS: tl.constexpr,
    PAGE: tl.constexpr, TREE: tl.constexpr, TICKET: tl.constexpr, MERGE_ROWS: tl.constexpr,
    MERGE_SPLITS: tl.constexpr, PREFETCH: tl.constexpr, TWO_LOOPS: tl.constexpr, PDL: tl.constexpr,
    COMPILED: tl.constexpr,
):  # fmt: skip
    """Attend one chunk of one lane for a tile of packed rows; grid (row tiles, KV heads, work items)."""
    tile, head, item = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, rows_all = tl.num_programs(1), tl.num_programs(0) * BLOCK_M
    K += head.to(tl.int64) * stride_kh
    V += head.to(tl.int64) * stride_vh
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    live = rows < queries * GROUP
    if PDL:
        if PREFETCH > 0:
            _prefetch_item(
                Q, K, V, Pages, Lengths, item, batch, tail, items, min_chunk, capacity, head,
                tl.minimum(rows, queries * GROUP - 1), stride_qb, stride_qn, stride_qh, stride_kp, stride_kr,
                stride_vp, stride_vr, stride_pages,
                GROUP, HEAD, BATCH_PAD, BLOCK_N, MAX_PARTS, PAGE, PREFETCH,
            )  # fmt: skip
        tl.extra.cuda.gdc_wait()
        # `merge_chunks` relies on this order: when it starts, all that came before this kernel is done
        tl.extra.cuda.gdc_launch_dependents()
    every = _first_bits(tail)
    if BATCH_PAD == 1:
        # the only lane is known: these loads need not wait for its length
        q = _load_queries(Q, head, rows, live, stride_qn, stride_qh, GROUP, HEAD, HEAD_PAD)
        words = _load_words(Words, rows, live, every, GROUP, BLOCK_M, TREE)
    lane, part, total, parts, first, chunk = item_of_grid(
        Lengths, item, batch, tail, items, min_chunk, BATCH_PAD, BLOCK_N, MAX_PARTS
    )
    if lane < batch:
        length = total - tail
        lane64 = lane.to(tl.int64)
        if BATCH_PAD > 1:
            q_lane = Q + lane64 * stride_qb
            q = _load_queries(q_lane, head, rows, live, stride_qn, stride_qh, GROUP, HEAD, HEAD_PAD)
            words = _load_words(Words + lane64 * stride_words, rows, live, every, GROUP, BLOCK_M, TREE)
        union = tl.reduce(words, 0, _or) if TREE else every
        cache_lane = lane64 if PAGE == 0 else lane64 * 0
        o, lse = attend_rows(
            q, words, union,
            K + cache_lane * stride_kp, V + cache_lane * stride_vp, Pages + lane64 * stride_pages,
            part * chunk, tl.where(part + 1 < parts, part * chunk + chunk, total), length, total,
            stride_kp, stride_kr, stride_vp, stride_vr, scale,
            HEAD, HEAD_PAD, BLOCK_M, BLOCK_N, STAGES, PAGE, TWO_LOOPS,
        )  # fmt: skip
        _deliver(
            Tickets, Out, PartO, PartL, o, lse, item, lane, head, heads, _fresh(tile, COMPILED), first, parts,
            queries, rows_all, stride_ob, stride_on, stride_oh,
            GROUP, HEAD, HEAD_PAD, BLOCK_M, TICKET, MERGE_ROWS, MERGE_SPLITS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["batch", "queries", "tail", "items", "min_chunk"])
def merge_chunks(
    Lengths, Out, PartO, PartL, stride_ob, stride_on, stride_oh, batch, queries, tail, items, min_chunk,
    GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BATCH_PAD: tl.constexpr,
    ROWS_ALL: tl.constexpr, BLOCK_N: tl.constexpr, MAX_PARTS: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the partials of a few packed rows of one lane; grid (row blocks, KV heads, lanes).

    Lengths are read before the wait: `attend_chunks` writes none, and had waited for whoever did.
    """
    row0, head, lane = tl.program_id(0) * MERGE_ROWS, tl.program_id(1), tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    _, parts, first, _ = items_of_lane(
        Lengths, lane, batch, tail, items, min_chunk, BATCH_PAD, BLOCK_N, MAX_PARTS
    )
    if PDL:
        tl.extra.cuda.gdc_wait()
    if parts > 1:
        merged = merge_rows(
            PartO, PartL, first, parts, head, tl.num_programs(1), row0, queries * GROUP, ROWS_ALL,
            HEAD, HEAD_PAD, MERGE_ROWS, MERGE_SPLITS,
        )  # fmt: skip
        store_rows(
            Out, merged, lane, head, row0, queries, stride_ob, stride_on, stride_oh,
            GROUP, HEAD, HEAD_PAD, MERGE_ROWS,
        )  # fmt: skip
