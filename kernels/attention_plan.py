"""Which tile, how many programs, how long a chunk: fixed tables, so that a launch is the same every time."""

from __future__ import annotations

from typing import Literal, NamedTuple

Mode = Literal["fast", "replay-exact"]

EXACT_PARTS = 16
EXACT_MIN_CHUNK = 256


class Tile(NamedTuple):
    """One configuration of the attention kernels."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    programs: int
    """Programs that the whole launch aims at in `fast`: what one wave of the device holds."""
    min_chunk: int
    ticket: bool
    """The last program to arrive merges; otherwise a second kernel does."""
    merge_rows: int
    merge_splits: int
    half: bool = False
    """Partials in the dtype of q instead of float32, where their traffic rivals that of K/V."""


class Plan(NamedTuple):
    """What one launch uses."""

    tile: Tile
    row_tiles: int
    items: int
    """Work items that `fast` cuts a batch into; `replay-exact` does not read it."""
    grid_items: int
    min_chunk: int
    max_parts: int
    """Chunks a lane can have in `replay-exact`; 0 in `fast`."""
    head_pad: int


TILES: dict[tuple[int, int], Tile] = {
    (64, 16): Tile(16, 64, 4, 3, 264, 64, True, 4, 8),
    (64, 32): Tile(32, 64, 4, 3, 264, 64, True, 4, 8),
    (64, 64): Tile(64, 64, 4, 3, 264, 128, False, 4, 8),
    (64, 128): Tile(128, 64, 8, 3, 132, 128, False, 4, 8),
    (64, 256): Tile(256, 64, 8, 3, 132, 256, False, 4, 8),
    (128, 16): Tile(16, 64, 4, 3, 264, 64, True, 4, 8),
    (128, 32): Tile(32, 64, 4, 3, 264, 128, True, 4, 8),
    (128, 64): Tile(64, 64, 4, 3, 264, 128, False, 4, 8),
    (128, 128): Tile(128, 64, 8, 3, 264, 256, False, 4, 8),
    (128, 256): Tile(256, 64, 16, 2, 132, 256, False, 4, 8, True),
}


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def plan(
    batch: int, queries: int, kv_heads: int, group: int, head: int, capacity: int, mode: Mode, tile: Tile | None
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
    tile = tile or TILES[head_pad, min(max(_pow2(rows), 16), 256)]
    row_tiles = _ceil_div(rows, tile.block_m)
    if mode == "replay-exact":
        return Plan(tile, row_tiles, 1, batch * EXACT_PARTS, EXACT_MIN_CHUNK, EXACT_PARTS, head_pad)
    items = max(1, tile.programs // (kv_heads * row_tiles * batch)) * batch
    bound = items + (batch if batch > 1 else 0)
    grid_items = min(bound, batch * _ceil_div(capacity, tile.min_chunk))
    return Plan(tile, row_tiles, items, grid_items, tile.min_chunk, 0, head_pad)
