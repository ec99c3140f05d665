"""Which tile `lm_head_topk` uses and how the vocabulary is cut: fixed tables, so that a launch repeats."""

from __future__ import annotations

from typing import NamedTuple

from dflash.kernels.attention_plan import Mode

MAX_TOP = 32
MAX_ASKED = 64
MAX_PARTS = 512
MAX_KEYS = 8192
ROWS_A_TILE = 64
# winner and runner-up of a race
RACERS = 2
# keys, and tiles' sums, that one warp of the merge holds
KEYS_A_WARP = 512
TILES_A_WARP = 256
KEYS_OF_4_WARPS = 512


class HeadTile(NamedTuple):
    """One configuration of the pass over the vocabulary."""

    block_v: int
    """Tokens a tile."""
    block_d: int
    warps: int
    stages: int
    programs: int
    """Parts that the vocabulary is cut into at most; the merge of a row holds `MAX_KEYS` keys."""
    registers: int | None = None
    """Most registers a thread, so that more programs fit a multiprocessor."""
    prefetch: int = 0
    """Columns of a program's first weights that are asked for before the preceding kernel has ended."""


class HeadPlan(NamedTuple):
    """What one launch uses."""

    tile: HeadTile
    block_n: int
    """Rows of hidden states a tile."""
    row_tiles: int
    share: int
    """Tiles of the vocabulary a part."""
    parts: int
    tiles: int
    """Tiles of the vocabulary in all."""
    top: int
    """Keys a part: 1, or the next power of two from 8 on, as 8 threads share a row."""
    cells: int
    """Warps that stand side by side over a tile's tokens."""
    merge_lists: int
    """Parts, padded."""
    merge_warps: int
    merge_tiles: int
    """Tiles whose sums the merge loads at once."""


# by rows of hidden states, padded, and bytes a number; of two bytes from sweeps on an H200, by
# dflash/bench/head_sweep.py, with 128 tokens a tile as 64 rows would else be read as often as the head
HEAD_TILES: dict[tuple[int, int], HeadTile] = {
    (16, 2): HeadTile(128, 64, 4, 3, 264, None, 256),
    (32, 2): HeadTile(128, 64, 4, 3, 264, None, 256),
    (64, 2): HeadTile(128, 64, 4, 4, 264, None, 256),
    (16, 4): HeadTile(64, 32, 4, 3, 264, None, 64),
    (32, 4): HeadTile(32, 32, 8, 3, 264, None, 64),
    (64, 4): HeadTile(16, 16, 8, 3, 264, None, 64),
}
# of two bytes, where every tile of the vocabulary can have a program
SMALL_TILES: dict[int, HeadTile] = {
    16: HeadTile(128, 64, 4, 4, MAX_PARTS, None, 256),
    32: HeadTile(128, 64, 4, 4, 264, None, 256),
}


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _kept(top: int) -> int:
    return 1 if top == 1 else max(8, _power(top))


def _table_tile(block_n: int, item: int, top: int, vocabulary: int) -> HeadTile:
    tile = HEAD_TILES[block_n, item]
    if item == 2 and vocabulary <= MAX_PARTS * tile.block_v:
        tile = SMALL_TILES.get(block_n, tile)
    if block_n * _kept(top) <= KEYS_OF_4_WARPS:
        return tile
    # lists of more keys would take too many registers
    return tile._replace(block_v=min(tile.block_v, 64), warps=8)


def head_plan(rows: int, vocabulary: int, item: int, top: int, mode: Mode, tile: HeadTile | None) -> HeadPlan:
    """Choose the launch for sizes known on the host.

    Args:
        rows: of hidden states.
        vocabulary: rows of the head.
        item: bytes a number of the head.
        top: how many tokens a row are wanted.
        mode: `fast` picks the tile by the rows; `replay-exact` takes the widest whatever the rows, so that a
            row's bits do not depend on how many others there are.
        tile: a configuration to use instead of the table's (for sweeps and tests).
    """
    exact = mode == "replay-exact"
    block_n = ROWS_A_TILE if exact else min(max(_power(rows), 16), ROWS_A_TILE)
    tile = tile or _table_tile(block_n, item, top, vocabulary)
    row_tiles = _ceil_div(rows, block_n)
    tiles = _ceil_div(vocabulary, tile.block_v)
    kept = _kept(top)
    most = min(tile.programs, MAX_PARTS, MAX_KEYS // kept)
    share = _ceil_div(tiles, most if exact else max(1, most // row_tiles))
    parts = _ceil_div(tiles, share)
    lists = _power(parts)
    # by what does not change with the split, as the order of sums follows it
    warps = min(max(min(_power(tiles), MAX_PARTS) * kept // KEYS_A_WARP, 4), 8)
    at_once = min(_power(tiles), TILES_A_WARP * warps)
    cells = min(tile.block_v // 16, tile.warps)
    return HeadPlan(tile, block_n, row_tiles, share, parts, tiles, kept, cells, lists, warps, at_once)
