"""Which tile, how many programs, how long a chunk: fixed tables, so that a launch is the same every time."""

from __future__ import annotations

from typing import Literal, NamedTuple

Mode = Literal["fast", "replay-exact"]
Regime = Literal["short", "long", "wave", "full", "exact", "exact full"]

EXACT_PARTS = 16
EXACT_MIN_CHUNK = 256
SHORT_ROWS = 2048
WAVE_PROGRAMS = 120
FULL_PROGRAMS = 240
FEW_CHUNKS = 4
CROWD = 32


class Tile(NamedTuple):
    """One configuration of the attention kernels."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    programs: int
    """Programs that the whole launch aims at in `fast`: about what one wave of the device holds."""
    min_chunk: int
    ticket: bool
    """The last program to arrive merges; otherwise a second kernel does."""
    merge_rows: int
    """Packed rows that one program of the merge takes where a lane has more than a few chunks."""
    merge_splits: int
    """Chunks that it loads at once."""
    half: bool = False
    """Partials in the dtype of q instead of float32, where their traffic rivals that of K/V."""
    prefetch: int = 0
    """Cache rows that a program asks for before the preceding kernel has ended; 0 or a power of two."""
    merge_warps: int = 2
    two_loops: bool = False
    """Whole trunk tiles in a loop of their own, without masks: faster tiles, a later start of the tail."""
    registers: int | None = None
    """Most registers a thread of the chunk kernel, so that programs of the launches to come fit beside it."""


class Plan(NamedTuple):
    """What one launch uses."""

    tile: Tile
    merge_rows: int
    merge_splits: int
    row_tiles: int
    items: int
    """Work items that `fast` cuts a batch into; `replay-exact` does not read it."""
    grid_items: int
    min_chunk: int
    max_parts: int
    """Chunks a lane can have in `replay-exact`; 0 in `fast`."""
    head_pad: int


# swept on an H200 by dflash/bench/kernel_sweep.py, those of small models in whole steps by
# dflash/bench/step_sweep.py; rows are the packed query rows of a KV head, rounded up.
# short: few lanes and at most 2,048 rows, where latency counts; long: few lanes; wave, full: one or two
# programs a multiprocessor without splitting any context. `replay-exact` has two tiles a row count, for few
# programs and for many, that differ in how early they load and in nothing that they compute
TILES: dict[tuple[int, int, Regime], Tile] = {
    (64, 16, "short"): Tile(16, 128, 4, 2, 264, 128, False, 1, 16, False, 128, 1, True),
    (64, 16, "long"): Tile(16, 64, 4, 3, 396, 512, False, 1, 16, False, 0, 1),
    (64, 16, "wave"): Tile(16, 64, 4, 3, 396, 256, False, 2, 8, False, 0, 1, False, 160),
    (64, 16, "full"): Tile(16, 64, 4, 3, 132, 64, True, 1, 16),
    (64, 16, "exact"): Tile(16, 128, 4, 3, 132, 128, False, 1, 16, False, 128, 1, True),
    (64, 16, "exact full"): Tile(16, 128, 4, 2, 132, 128, False, 1, 16, False, 0, 1, True),
    (64, 32, "short"): Tile(64, 64, 4, 3, 264, 64, False, 1, 16, False, 128, 1),
    (64, 32, "long"): Tile(32, 64, 4, 3, 264, 256, False, 1, 16, False, 0, 1),
    (64, 32, "wave"): Tile(64, 64, 4, 3, 396, 256, False, 2, 8, False, 0, 1, False, 168),
    (64, 32, "full"): Tile(32, 64, 4, 3, 132, 64, True, 1, 16),
    (64, 32, "exact"): Tile(32, 64, 4, 3, 132, 128, False, 1, 16, True, 0, 1),
    (64, 32, "exact full"): Tile(32, 64, 4, 3, 132, 128, False, 1, 16, True, 0, 1),
    (64, 64, "short"): Tile(64, 64, 4, 3, 132, 64, False, 1, 16, True, 128, 1),
    (64, 64, "long"): Tile(64, 64, 4, 3, 132, 192, False, 1, 32, False, 256, 1),
    (64, 64, "wave"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (64, 64, "full"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16),
    (64, 64, "exact"): Tile(64, 64, 4, 3, 132, 128, False, 1, 16, True, 256, 1, True),
    (64, 64, "exact full"): Tile(64, 64, 4, 3, 132, 128, False, 1, 16, True, 0, 1, True),
    (64, 128, "short"): Tile(64, 64, 4, 3, 264, 128, False, 1, 16, True, 128, 1),
    (64, 128, "long"): Tile(128, 64, 8, 3, 132, 128, False, 1, 16, True, 256, 1, True),
    (64, 128, "wave"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (64, 128, "full"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (64, 128, "exact"): Tile(128, 64, 8, 3, 132, 128, False, 1, 16, True, 0, 1, True),
    (64, 128, "exact full"): Tile(128, 64, 8, 3, 132, 128, False, 1, 16, True, 0, 1, True),
    (64, 256, "short"): Tile(64, 64, 4, 3, 264, 128, False, 1, 16, True, 128, 1),
    (64, 256, "long"): Tile(128, 64, 8, 3, 132, 128, False, 1, 16, True, 0, 1, True),
    (64, 256, "wave"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (64, 256, "full"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (64, 256, "exact"): Tile(128, 64, 8, 3, 132, 128, False, 1, 16, True, 0, 1, True),
    (64, 256, "exact full"): Tile(128, 64, 8, 3, 132, 128, False, 1, 16, True, 0, 1, True),
    (128, 16, "short"): Tile(16, 64, 4, 3, 264, 128, False, 1, 16, False, 128, 1),
    (128, 16, "long"): Tile(16, 128, 4, 3, 132, 128, False, 1, 32, False, 0, 1, True),
    (128, 16, "wave"): Tile(16, 64, 4, 3, 396, 512, False, 2, 8, False, 0, 1),
    (128, 16, "full"): Tile(16, 64, 4, 4, 132, 64, True, 1, 16),
    (128, 16, "exact"): Tile(16, 128, 4, 3, 132, 128, False, 1, 16, False, 128, 1, True),
    (128, 16, "exact full"): Tile(16, 128, 4, 2, 132, 128, False, 1, 16, False, 0, 1, True),
    (128, 32, "short"): Tile(32, 64, 4, 3, 264, 128, False, 1, 16, False, 128, 1),
    (128, 32, "long"): Tile(32, 64, 4, 3, 264, 256, False, 1, 16, False, 0, 1),
    (128, 32, "wave"): Tile(32, 64, 4, 3, 264, 256, False, 2, 8, False, 0, 1),
    (128, 32, "full"): Tile(32, 64, 4, 3, 132, 64, True, 1, 16),
    (128, 32, "exact"): Tile(32, 64, 4, 3, 132, 128, False, 1, 16, True, 0, 1),
    (128, 32, "exact full"): Tile(32, 64, 4, 3, 132, 128, False, 1, 16, True, 0, 1),
    (128, 64, "short"): Tile(64, 32, 4, 4, 396, 128, False, 1, 16, True, 64, 1),
    (128, 64, "long"): Tile(64, 64, 4, 4, 132, 64, False, 1, 16, True, 64, 1),
    (128, 64, "wave"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (128, 64, "full"): Tile(64, 32, 4, 4, 132, 64, True, 1, 16),
    (128, 64, "exact"): Tile(64, 64, 4, 4, 132, 128, False, 1, 16, True, 256, 1, True),
    (128, 64, "exact full"): Tile(64, 64, 4, 3, 132, 128, False, 1, 16, True, 0, 1, True),
    (128, 128, "short"): Tile(64, 32, 4, 4, 396, 128, False, 1, 16, True, 64, 1),
    (128, 128, "long"): Tile(128, 64, 8, 3, 132, 64, False, 2, 16, True, 128, 1, False, 160),
    (128, 128, "wave"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (128, 128, "full"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (128, 128, "exact"): Tile(128, 64, 8, 3, 132, 64, False, 1, 16, True, 0, 1, True),
    (128, 128, "exact full"): Tile(128, 64, 8, 3, 132, 64, False, 1, 16, True, 0, 1, True),
    (128, 256, "short"): Tile(128, 64, 8, 3, 132, 64, False, 1, 16, True, 0, 1, True),
    (128, 256, "long"): Tile(128, 64, 8, 3, 132, 64, False, 1, 16, True, 0, 1, True),
    (128, 256, "wave"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (128, 256, "full"): Tile(64, 64, 4, 4, 132, 64, True, 1, 16, False, 0, 2, True),
    (128, 256, "exact"): Tile(128, 64, 8, 3, 132, 64, False, 1, 16, True, 0, 1, True),
    (128, 256, "exact full"): Tile(128, 64, 8, 3, 132, 64, False, 1, 16, True, 0, 1, True),
}


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def regime_of(batch: int, kv_heads: int, rows: int, capacity: int, mode: Mode = "fast") -> Regime:
    """Say what limits a launch."""
    programs = batch * kv_heads * _ceil_div(rows, 64)
    if mode == "replay-exact":
        return "exact full" if programs > CROWD else "exact"
    if programs >= WAVE_PROGRAMS:
        return "full" if programs >= FULL_PROGRAMS else "wave"
    return "short" if capacity <= SHORT_ROWS else "long"


def _merge_block(tile: Tile, share: int) -> tuple[int, int]:
    """Rows and chunks that are merged at once: with a ticket, one program merges a row tile."""
    if tile.ticket:
        return 8, 4
    return (2, 8) if share <= FEW_CHUNKS else (tile.merge_rows, tile.merge_splits)


def plan(
    batch: int,
    queries: int,
    kv_heads: int,
    group: int,
    head: int,
    capacity: int,
    mode: Mode,
    tile: Tile | None,
) -> Plan:
    """Choose the launch for sizes known on the host; lengths stay on the device.

    Args:
        batch: lanes.
        queries: query rows a lane.
        kv_heads: K/V heads.
        group: query heads a K/V head.
        head: head dimension.
        capacity: most cache rows a lane can hold.
        mode: `fast` fills the device; `replay-exact` cuts each lane by its own length only.
        tile: a configuration to use instead of the table's (for sweeps and tests).
    """
    head_pad = 64 if head <= 64 else 128
    rows = queries * group
    exact = mode == "replay-exact"
    regime = regime_of(batch, kv_heads, rows, capacity, mode)
    tile = tile or TILES[head_pad, min(max(1 << (rows - 1).bit_length(), 16), 256), regime]
    row_tiles = _ceil_div(rows, tile.block_m)
    if exact:
        rows, splits = tile.merge_rows, tile.merge_splits
        grid_items = batch * EXACT_PARTS
        return Plan(tile, rows, splits, row_tiles, 1, grid_items, EXACT_MIN_CHUNK, EXACT_PARTS, head_pad)
    share = max(1, tile.programs // (kv_heads * row_tiles * batch))
    items = share * batch
    bound = items + (batch if batch > 1 else 0)
    grid_items = min(bound, batch * _ceil_div(capacity, tile.min_chunk))
    rows, splits = _merge_block(tile, share)
    return Plan(tile, rows, splits, row_tiles, items, grid_items, tile.min_chunk, 0, head_pad)
