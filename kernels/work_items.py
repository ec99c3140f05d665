"""How a ragged batch is cut into work items of equal length, on the device and without a prologue kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _chunk_of(total, min_chunk, BLOCK_N: tl.constexpr, MAX_PARTS: tl.constexpr):
    """Chunk length of `replay-exact`: a function of this lane's own bucketed length and nothing else."""
    bucket = total - 1
    bucket |= bucket >> 1
    bucket |= bucket >> 2
    bucket |= bucket >> 4
    bucket |= bucket >> 8
    bucket |= bucket >> 16
    chunk = tl.maximum((bucket + MAX_PARTS) // MAX_PARTS, min_chunk)
    return tl.cdiv(chunk, BLOCK_N) * BLOCK_N


@triton.jit
def _shares(Lengths, batch, tail, items, min_chunk, BATCH_PAD: tl.constexpr, BLOCK_N: tl.constexpr):
    """Cut every lane by one common chunk: totals, parts, ends [BATCH_PAD] and the chunk length."""
    lanes = tl.arange(0, BATCH_PAD)
    real = lanes < batch
    totals = tl.where(real, tl.load(Lengths + lanes, mask=real, other=0) + tail, 0)
    chunk = tl.maximum(tl.cdiv(tl.sum(totals, 0), items), min_chunk)
    chunk = tl.cdiv(chunk, BLOCK_N) * BLOCK_N
    parts = tl.where(real, tl.maximum(tl.cdiv(totals, chunk), 1), 0)
    return totals, parts, tl.cumsum(parts, 0), chunk


@triton.jit
def _pick(values, lane, BATCH_PAD: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, BATCH_PAD) == lane, values, 0), 0)


@triton.jit
def items_of_lane(
    Lengths, lane, batch, tail, items, min_chunk,
    BATCH_PAD: tl.constexpr, BLOCK_N: tl.constexpr, MAX_PARTS: tl.constexpr,
):  # fmt: skip
    """Where a lane's partials lie: its rows with the tail, parts, first item, chunk length.

    The last part takes all rows that are left.
    """
    if MAX_PARTS > 0 or BATCH_PAD == 1:
        length = tl.load(Lengths + lane)
        total = length + tail
        most = MAX_PARTS
        if MAX_PARTS > 0:
            chunk = _chunk_of(total, min_chunk, BLOCK_N, MAX_PARTS)
        else:
            # several parts share the trunk: counting the tail in could cost each of them one more tile, and
            # a part for what is left of it one more program than there is room for
            rows = tl.where(items > 1, length, total)
            chunk = tl.cdiv(tl.maximum(tl.cdiv(rows, items), min_chunk), BLOCK_N) * BLOCK_N
            most = items
        return total, tl.maximum(tl.minimum(tl.cdiv(total, chunk), most), 1), lane * MAX_PARTS, chunk
    totals, parts, ends, chunk = _shares(Lengths, batch, tail, items, min_chunk, BATCH_PAD, BLOCK_N)
    mine = _pick(parts, lane, BATCH_PAD)
    return _pick(totals, lane, BATCH_PAD), mine, _pick(ends, lane, BATCH_PAD) - mine, chunk


@triton.jit
def item_of_grid(
    Lengths, item, batch, tail, items, min_chunk,
    BATCH_PAD: tl.constexpr, BLOCK_N: tl.constexpr, MAX_PARTS: tl.constexpr,
):  # fmt: skip
    """What a work item is: its lane (past the batch: none), its part, and `items_of_lane`'s facts."""
    if MAX_PARTS > 0 or BATCH_PAD == 1:
        lane = item // MAX_PARTS if MAX_PARTS > 0 else 0
        total, parts, first, chunk = items_of_lane(
            Lengths, lane, batch, tail, items, min_chunk, BATCH_PAD, BLOCK_N, MAX_PARTS
        )
        part = item - first
        return tl.where(part < parts, lane, batch), part, total, parts, first, chunk
    totals, parts, ends, chunk = _shares(Lengths, batch, tail, items, min_chunk, BATCH_PAD, BLOCK_N)
    done = (ends <= item) & (tl.arange(0, BATCH_PAD) < batch)
    lane = tl.sum(done.to(tl.int32), 0)
    mine = _pick(parts, lane, BATCH_PAD)
    first = _pick(ends, lane, BATCH_PAD) - mine
    return lane, item - first, _pick(totals, lane, BATCH_PAD), mine, first, chunk
