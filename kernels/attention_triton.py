"""Split-context attention over a trunk and a tree tail, in Triton.

One program owns (row tile, KV head, chunk of the context); all query heads of a KV head share its K/V.
Chunks merge by log-sum-exp in chunk order, in a second kernel or by the last program to arrive.
"""

from __future__ import annotations

import triton
import triton.language as tl

EMPTY = tl.constexpr(-1.0e30)
TAIL_STAGES = tl.constexpr(1)


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _fresh(value, COMPILED: tl.constexpr):
    """The same scalar, opaque to the compiler: addresses made from it are not kept in registers over the loop."""
    if COMPILED:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1)
    return value


@triton.jit
def _chunk_of(total, BLOCK_N: tl.constexpr, MIN_CHUNK: tl.constexpr, MAX_PARTS: tl.constexpr):
    """Chunk length of `replay-exact`: a function of this lane's own bucketed length and nothing else."""
    bucket = total - 1
    bucket |= bucket >> 1
    bucket |= bucket >> 2
    bucket |= bucket >> 4
    bucket |= bucket >> 8
    bucket |= bucket >> 16
    chunk = tl.maximum((bucket + MAX_PARTS) // MAX_PARTS, MIN_CHUNK)
    return tl.cdiv(chunk, BLOCK_N) * BLOCK_N


@triton.jit
def _shares(Lengths, batch, tail, items, BATCH_PAD: tl.constexpr, BLOCK_N: tl.constexpr, MIN_CHUNK: tl.constexpr):
    """Cut every lane by one common chunk: totals, parts, ends [BATCH_PAD] and the chunk length."""
    lanes = tl.arange(0, BATCH_PAD)
    real = lanes < batch
    totals = tl.load(Lengths + lanes, mask=real, other=0) + tail
    totals = tl.where(real, tl.maximum(totals, 1), 0)
    chunk = tl.maximum(tl.cdiv(tl.sum(totals, 0), items), MIN_CHUNK)
    chunk = tl.cdiv(chunk, BLOCK_N) * BLOCK_N
    parts = tl.cdiv(totals, chunk)
    return totals, parts, tl.cumsum(parts, 0), chunk


@triton.jit
def _pick(values, lane, BATCH_PAD: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, BATCH_PAD) == lane, values, 0), 0)


@triton.jit
def _by_lane(
    Lengths, lane, batch, tail, items,
    BATCH_PAD: tl.constexpr, BLOCK_N: tl.constexpr, MIN_CHUNK: tl.constexpr, MAX_PARTS: tl.constexpr,
):  # fmt: skip
    """Where a lane's partials lie: its rows in all, parts, first item, chunk length."""
    if MAX_PARTS > 0 or BATCH_PAD == 1:
        total = tl.maximum(tl.load(Lengths + lane) + tail, 1)
        if MAX_PARTS > 0:
            chunk = _chunk_of(total, BLOCK_N, MIN_CHUNK, MAX_PARTS)
        else:
            chunk = tl.cdiv(tl.maximum(tl.cdiv(total, items), MIN_CHUNK), BLOCK_N) * BLOCK_N
        return total, tl.cdiv(total, chunk), lane * MAX_PARTS, chunk
    totals, parts, ends, chunk = _shares(Lengths, batch, tail, items, BATCH_PAD, BLOCK_N, MIN_CHUNK)
    mine = _pick(parts, lane, BATCH_PAD)
    return _pick(totals, lane, BATCH_PAD), mine, _pick(ends, lane, BATCH_PAD) - mine, chunk


@triton.jit
def _by_item(
    Lengths, item, batch, tail, items,
    BATCH_PAD: tl.constexpr, BLOCK_N: tl.constexpr, MIN_CHUNK: tl.constexpr, MAX_PARTS: tl.constexpr,
):  # fmt: skip
    """What a work item is: its lane (past the batch: none), its part, and the lane's `_by_lane` facts."""
    if MAX_PARTS > 0 or BATCH_PAD == 1:
        lane = item // MAX_PARTS if MAX_PARTS > 0 else 0
        total, parts, first, chunk = _by_lane(
            Lengths, lane, batch, tail, items, BATCH_PAD, BLOCK_N, MIN_CHUNK, MAX_PARTS
        )
        part = item - first
        return tl.where(part < parts, lane, batch), part, total, parts, first, chunk
    totals, parts, ends, chunk = _shares(Lengths, batch, tail, items, BATCH_PAD, BLOCK_N, MIN_CHUNK)
    done = (ends <= item) & (tl.arange(0, BATCH_PAD) < batch)
    lane = tl.sum(done.to(tl.int32), 0)
    mine = _pick(parts, lane, BATCH_PAD)
    first = _pick(ends, lane, BATCH_PAD) - mine
    return lane, item - first, _pick(totals, lane, BATCH_PAD), mine, first, chunk


@triton.jit
def _tile_ptrs(
    Base, Pages, start, total, stride_page, stride_row,
    HEAD_PAD: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Pointers [BLOCK_N, HEAD_PAD] to the cache rows start..start+BLOCK_N, through the page table if paged."""
    offs = tl.arange(0, BLOCK_N)
    d = tl.arange(0, HEAD_PAD)[None, :]
    if PAGE == 0:
        return Base + tl.cast(start, tl.int64) * stride_row + (offs[:, None] * stride_row + d)
    if PAGE >= BLOCK_N:
        page = tl.load(Pages + start // PAGE).to(tl.int64)
        return Base + page * stride_page + ((start % PAGE + offs)[:, None] * stride_row + d)
    rows = start + offs
    if MASKED:
        page = tl.load(Pages + rows // PAGE, mask=rows < total, other=0).to(tl.int64)
    else:
        page = tl.load(Pages + rows // PAGE).to(tl.int64)
    return Base + (page * stride_page + (rows % PAGE) * stride_row)[:, None] + d


@triton.jit
def _aligned(words, before):
    """Shift words so that bit i speaks of the tile's row i; `before` rows of the tile are trunk, seen by all."""
    up = tl.minimum(tl.maximum(before, 0), 63).to(tl.int64)
    down = tl.minimum(tl.maximum(-before, 0), 63).to(tl.int64)
    ones = tl.full([], 1, tl.int64)
    shifted = ((words >> down) & ~((ones << 63) >> down << 1)) << up
    return tl.where(before >= 64, -ones, shifted | ((ones << up) - 1))


@triton.jit
def _bits(words, index):
    """Bit `index` (0-63) of int64 words, by 32-bit shifts."""
    low = (words & 0xFFFFFFFF).to(tl.uint32)
    high = ((words >> 32) & 0xFFFFFFFF).to(tl.uint32)
    half = tl.where(index < 32, low, high)
    return ((half >> (index & 31).to(tl.uint32)) & 1) != 0


@triton.jit
def _online(q, k, v, acc, m, l, scale, seen, MASKED: tl.constexpr):
    """One tile of online softmax in base 2."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        s = tl.where(seen, s, -float("inf"))
    m_new = tl.maximum(m, tl.max(s, 1))
    p = tl.exp2(s - m_new[:, None])
    fade = tl.exp2(m - m_new)
    l = l * fade + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return acc, m_new, l


@triton.jit
def _merge(
    PartO, PartL, first, parts, head, heads, row0, rows_live, rows_all,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp merge of a lane's partials, in chunk order: [ROWS, HEAD_PAD] float32."""
    rows = row0 + tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_PAD)
    m = tl.full([ROWS], EMPTY, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    for base in tl.range(0, parts, SPLITS):
        part = base + tl.arange(0, SPLITS)
        live = (part < parts)[:, None] & (rows < rows_live)[None, :]
        at = ((first + part).to(tl.int64) * heads + head) * rows_all
        at = at[:, None] + rows[None, :]
        lse = tl.load(PartL + at, mask=live, other=EMPTY, cache_modifier=".cg")
        o = tl.load(
            PartO + at[:, :, None] * HEAD + d[None, None, :],
            mask=live[:, :, None] & (d < HEAD)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        ).to(tl.float32)
        m_new = tl.maximum(m, tl.max(lse, 0))
        weight = tl.where((part < parts)[:, None], tl.exp2(lse - m_new[None, :]), 0.0)
        fade = tl.exp2(m - m_new)
        l = l * fade + tl.sum(weight, 0)
        acc = acc * fade[:, None] + tl.sum(o * weight[:, :, None], 0)
        m = m_new
    return acc / l[:, None]


@triton.jit
def _store_rows(
    Out, values, lane, head, row0, queries, stride_ob, stride_on, stride_oh,
    GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Scatter packed rows [ROWS, HEAD_PAD] back to [batch, queries, heads, head]."""
    rows = row0 + tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_PAD)
    at = rows // GROUP * stride_on + (head * GROUP + rows % GROUP) * stride_oh
    keep = (rows < queries * GROUP)[:, None] & (d < HEAD)[None, :]
    ptrs = Out + lane.to(tl.int64) * stride_ob + at[:, None] + d[None, :]
    tl.store(ptrs, values.to(Out.dtype.element_ty), mask=keep)


@triton.jit
def _walk_trunk(
    q, acc, m, l, K, V, Pages, low, high, total, stride_kp, stride_kr, stride_vp, stride_vr, scale,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Whole tiles of the trunk: no mask but that of a padded head."""
    inside = (tl.arange(0, HEAD_PAD) < HEAD)[None, :]
    for start in tl.range(low, high, BLOCK_N, num_stages=STAGES):
        k_ptrs = _tile_ptrs(K, Pages, start, total, stride_kp, stride_kr, HEAD_PAD, BLOCK_N, PAGE, False)
        v_ptrs = _tile_ptrs(V, Pages, start, total, stride_vp, stride_vr, HEAD_PAD, BLOCK_N, PAGE, False)
        if HEAD < HEAD_PAD:
            k = tl.load(k_ptrs, mask=inside, other=0.0)
            v = tl.load(v_ptrs, mask=inside, other=0.0)
        else:
            k = tl.load(k_ptrs)
            v = tl.load(v_ptrs)
        acc, m, l = _online(q, k, v, acc, m, l, scale, 0, False)
    return acc, m, l


@triton.jit
def _walk_tail(
    q, words, acc, m, l, K, V, Pages, low, high, length, total, stride_kp, stride_kr, stride_vp, stride_vr, scale,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, TAIL_N: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Tiles that reach past the trunk: rows that no word of this program names are not even read."""
    inside = (tl.arange(0, HEAD_PAD) < HEAD)[None, :]
    index = tl.arange(0, TAIL_N)
    union = tl.reduce(words, 0, _or)
    for start in tl.range(low, high, TAIL_N, num_stages=TAIL_STAGES):
        real = _bits(_aligned(union, length - start), index)
        keep = real[:, None] & inside
        seen = _bits(_aligned(words, length - start)[:, None], index[None, :])
        k = tl.load(
            _tile_ptrs(K, Pages, start, total, stride_kp, stride_kr, HEAD_PAD, TAIL_N, PAGE, True), mask=keep, other=0.0
        )
        v = tl.load(
            _tile_ptrs(V, Pages, start, total, stride_vp, stride_vr, HEAD_PAD, TAIL_N, PAGE, True), mask=keep, other=0.0
        )
        acc, m, l = _online(q, k, v, acc, m, l, scale, seen, True)
    return acc, m, l


@triton.jit
def _walk(
    q, Words, rows, live, K, V, Pages, low, high, length, tail, stride_kp, stride_kr, stride_vp, stride_vr, scale,
    GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, PAGE: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """Attend cache rows low..high: normalised output [BLOCK_M, HEAD_PAD] and base-2 log-sum-exp [BLOCK_M]."""
    TAIL_N: tl.constexpr = 32 if BLOCK_N < 64 or BLOCK_M >= 256 else 64
    m = tl.full([BLOCK_M], EMPTY, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    total = length + tail
    middle = tl.maximum(tl.minimum(high, length // BLOCK_N * BLOCK_N), low)
    acc, m, l = _walk_trunk(
        q, acc, m, l, K, V, Pages, low, middle, total, stride_kp, stride_kr, stride_vp, stride_vr, scale,
        HEAD, HEAD_PAD, BLOCK_N, STAGES, PAGE,
    )  # fmt: skip
    if middle < high:
        ones = tl.full([], 1, tl.int64)
        every = tl.where(tail < 64, (ones << tl.minimum(tail, 63).to(tl.int64)) - 1, -ones)
        words = tl.zeros([BLOCK_M], tl.int64) + every
        if TREE:
            words &= tl.load(Words + rows // GROUP, mask=live, other=0)
        acc, m, l = _walk_tail(
            q, words, acc, m, l, K, V, Pages, middle, high, length, total, stride_kp, stride_kr, stride_vp, stride_vr,
            scale, HEAD, HEAD_PAD, TAIL_N, PAGE,
        )  # fmt: skip
    return acc / tl.where(l > 0, l, 1.0)[:, None], tl.where(l > 0, m + tl.log2(tl.where(l > 0, l, 1.0)), EMPTY)


@triton.jit
def _merge_if_last(
    Tickets, Out, PartO, PartL, lane, head, heads, tile, first, parts, queries, rows_all,
    stride_ob, stride_on, stride_oh, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr,
):  # fmt: skip
    """Count this chunk in; the program that completes the lane merges it and resets the counter."""
    # orders the other threads' partial stores before the release below
    tl.debug_barrier()
    ticket = Tickets + (lane * heads + head) * tl.num_programs(0) + tile
    if tl.atomic_add(ticket, 1, sem="acq_rel") == parts - 1:
        for row0 in tl.range(tile * BLOCK_M, tl.minimum(tile * BLOCK_M + BLOCK_M, queries * GROUP), MERGE_ROWS):
            merged = _merge(
                PartO, PartL, first, parts, head, heads, row0, queries * GROUP, rows_all,
                HEAD, HEAD_PAD, MERGE_ROWS, MERGE_SPLITS,
            )  # fmt: skip
            _store_rows(
                Out, merged, lane, head, row0, queries, stride_ob, stride_on, stride_oh,
                GROUP, HEAD, HEAD_PAD, MERGE_ROWS,
            )  # fmt: skip
        tl.store(ticket, 0)


@triton.jit(do_not_specialize=["batch", "queries", "tail", "items", "scale"])
def attend_chunks(
    Q, K, V, Words, Lengths, Pages, Out, PartO, PartL, Tickets,
    stride_qb, stride_qn, stride_qh, stride_kp, stride_kh, stride_kr, stride_vp, stride_vh, stride_vr,
    stride_ob, stride_on, stride_oh, stride_pages, stride_words, scale, batch, queries, tail, items,
    GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BATCH_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, MIN_CHUNK: tl.constexpr,
    MAX_PARTS: tl.constexpr, PAGE: tl.constexpr, TREE: tl.constexpr, TICKET: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr, PDL: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """Attend one chunk of one lane for a tile of packed rows; grid (row tiles, KV heads, work items)."""
    tile, head, item = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, rows_all = tl.num_programs(1), tl.num_programs(0) * BLOCK_M
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane, part, total, parts, first, chunk = _by_item(
        Lengths, item, batch, tail, items, BATCH_PAD, BLOCK_N, MIN_CHUNK, MAX_PARTS
    )
    if lane < batch:
        length = tl.load(Lengths + lane)
        lane64 = lane.to(tl.int64)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        d = tl.arange(0, HEAD_PAD)
        live = rows < queries * GROUP
        at = rows // GROUP * stride_qn + (head * GROUP + rows % GROUP) * stride_qh
        keep = live[:, None] & (d < HEAD)[None, :]
        q = tl.load(Q + lane64 * stride_qb + at[:, None] + d[None, :], mask=keep, other=0.0)
        cache_lane = lane64 if PAGE == 0 else lane64 * 0
        o, lse = _walk(
            q, Words + lane64 * stride_words, rows, live, K + cache_lane * stride_kp + head.to(tl.int64) * stride_kh,
            V + cache_lane * stride_vp + head.to(tl.int64) * stride_vh, Pages + lane64 * stride_pages,
            part * chunk, tl.minimum(part * chunk + chunk, length + tail), length, tail,
            stride_kp, stride_kr, stride_vp, stride_vr, scale,
            GROUP, HEAD, HEAD_PAD, BLOCK_M, BLOCK_N, STAGES, PAGE, TREE,
        )  # fmt: skip
        tile = _fresh(tile, COMPILED)
        if parts == 1:
            _store_rows(
                Out, o, lane, head, tile * BLOCK_M, queries, stride_ob, stride_on, stride_oh,
                GROUP, HEAD, HEAD_PAD, BLOCK_M,
            )  # fmt: skip
        else:
            rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
            at_part = (item.to(tl.int64) * heads + head) * rows_all + rows
            live = rows < queries * GROUP
            keep = live[:, None] & (d < HEAD)[None, :]
            tl.store(PartO + at_part[:, None] * HEAD + d[None, :], o.to(PartO.dtype.element_ty), mask=keep)
            tl.store(PartL + at_part, lse, mask=live)
            if TICKET:
                _merge_if_last(
                    Tickets, Out, PartO, PartL, lane, head, heads, tile, first, parts, queries, rows_all,
                    stride_ob, stride_on, stride_oh, GROUP, HEAD, HEAD_PAD, BLOCK_M, MERGE_ROWS, MERGE_SPLITS,
                )  # fmt: skip


@triton.jit(do_not_specialize=["batch", "queries", "tail", "items"])
def merge_chunks(
    Lengths, Out, PartO, PartL, stride_ob, stride_on, stride_oh, batch, queries, tail, items,
    GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BATCH_PAD: tl.constexpr,
    ROWS_ALL: tl.constexpr, BLOCK_N: tl.constexpr, MIN_CHUNK: tl.constexpr, MAX_PARTS: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the partials of a few packed rows of one lane; grid (row blocks, KV heads, lanes)."""
    row0, head, lane = tl.program_id(0) * MERGE_ROWS, tl.program_id(1), tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    _, parts, first, _ = _by_lane(Lengths, lane, batch, tail, items, BATCH_PAD, BLOCK_N, MIN_CHUNK, MAX_PARTS)
    if parts > 1:
        merged = _merge(
            PartO, PartL, first, parts, head, tl.num_programs(1), row0, queries * GROUP, ROWS_ALL,
            HEAD, HEAD_PAD, MERGE_ROWS, MERGE_SPLITS,
        )  # fmt: skip
        _store_rows(
            Out, merged, lane, head, row0, queries, stride_ob, stride_on, stride_oh, GROUP, HEAD, HEAD_PAD, MERGE_ROWS
        )  # fmt: skip
