"""Merging the chunks of a lane by log-sum-exp, in chunk order."""

from __future__ import annotations

import triton
import triton.language as tl

EMPTY = tl.constexpr(-1.0e30)


@triton.jit
def merge_rows(
    PartO, PartL, first, parts, head, heads, row0, rows_live, rows_all,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp merge of a lane's partials, in chunk order: [ROWS, HEAD_PAD] float32."""
    rows = row0 + tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_PAD)
    m = tl.full([ROWS], EMPTY, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
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
        mass = mass * fade + tl.sum(weight, 0)
        acc = acc * fade[:, None] + tl.sum(o * weight[:, :, None], 0)
        m = m_new
    return acc * (1.0 / mass)[:, None]


@triton.jit
def store_rows(
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
def merge_if_last(
    Tickets, Out, PartO, PartL, lane, head, heads, tile, first, parts, queries, rows_all,
    stride_ob, stride_on, stride_oh, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr,
):  # fmt: skip
    """Count this chunk in; the program that completes the lane merges it and resets the counter."""
    # orders the other threads' partial stores before the release below
    tl.debug_barrier()
    ticket = Tickets + (lane * heads + head) * tl.num_programs(0) + tile
    if tl.atomic_add(ticket, 1, sem="acq_rel") == parts - 1:
        for row0 in tl.range(
            tile * BLOCK_M, tl.minimum(tile * BLOCK_M + BLOCK_M, queries * GROUP), MERGE_ROWS
        ):
            merged = merge_rows(
                PartO, PartL, first, parts, head, heads, row0, queries * GROUP, rows_all,
                HEAD, HEAD_PAD, MERGE_ROWS, MERGE_SPLITS,
            )  # fmt: skip
            store_rows(
                Out, merged, lane, head, row0, queries, stride_ob, stride_on, stride_oh,
                GROUP, HEAD, HEAD_PAD, MERGE_ROWS,
            )  # fmt: skip
        tl.store(ticket, 0)
