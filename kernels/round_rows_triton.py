"""The kernels behind `keep_rows` and `spread_lane`: a program a cache, KV head, and lane or few rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.round_rows import RowStores
from dflash.kernels.round_slots import power

# rows that a program reads once and writes to every lane
ROWS = 32


@triton.jit(do_not_specialize=["nodes", "kept", "capacity"])
def keep_head(
    Like, Addresses, Path, Lengths, nodes, kept, capacity, head, lane_apart,
    KEPT: tl.constexpr, HEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Move a head's rows, all read before any is written; grid (caches, lanes, KV heads)."""
    store, lane, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    place, column = tl.arange(0, KEPT), tl.arange(0, HEAD)
    node = tl.load(Path + lane * nodes + place, mask=place < kept, other=-1)
    base = tl.load(Addresses + store).to(Like.dtype, bitcast=True)
    first = tl.load(Lengths + lane) + 1
    head_base = base + lane.to(tl.int64) * lane_apart + group.to(tl.int64) * capacity * head
    moves = (node >= 0)[:, None] & (column < head)[None, :]
    rows = tl.load(head_base + (first + node)[:, None].to(tl.int64) * head + column[None, :], mask=moves)
    tl.debug_barrier()
    tl.store(head_base + (first + place)[:, None].to(tl.int64) * head + column[None, :], rows, mask=moves)


def launch_keep(stores: RowStores, path: Tensor, lengths: Tensor, kept: int, pdl: bool) -> None:
    """Run the kernel."""
    like = stores.stores[0]
    lanes, groups, capacity, head = like.shape
    keep_head[(len(stores.stores), lanes, groups)](
        like, stores.addresses, path, lengths, path.shape[1], kept, capacity, head, like.stride(0),
        KEPT=power(kept), HEAD=power(head), PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip


@triton.jit(do_not_specialize=["lane", "length", "lanes", "source_rows", "goal_rows", "head"])
def spread_head(
    Like, Sources, Goals, lane, length, lanes, source_rows, goal_rows, head,
    BLOCK: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Copy a few rows of a head to every lane; grid (caches, KV heads, rows / BLOCK)."""
    store, group, groups = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row, column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, HEAD)
    moves = (row < length)[:, None] & (column < head)[None, :]
    at = row[:, None].to(tl.int64) * head + column[None, :]
    source = tl.load(Sources + store).to(Like.dtype, bitcast=True)
    goal = tl.load(Goals + store).to(Like.dtype, bitcast=True)
    rows = tl.load(source + (lane * groups + group).to(tl.int64) * source_rows * head + at, mask=moves)
    for one in range(lanes):
        tl.store(goal + (one * groups + group).to(tl.int64) * goal_rows * head + at, rows, mask=moves)


def launch_spread(source: RowStores, goal: RowStores, lane: int, length: int) -> None:
    """Run the kernel."""
    if not length:
        return
    _, groups, source_rows, head = source.stores[0].shape
    lanes, _, goal_rows, _ = goal.stores[0].shape
    spread_head[(len(source.stores), groups, -(-length // ROWS))](
        source.stores[0], source.addresses, goal.addresses, lane, length, lanes, source_rows, goal_rows, head,
        BLOCK=ROWS, HEAD=power(head), num_warps=4,
    )  # fmt: skip
