"""Which tile, how many splits: fixed tables of the small products, the same at every launch."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dflash.kernels.attention_plan import Mode

Product = Literal["qkv", "gate-up", "rows"]
Size = Literal["small", "deep", "medium", "long", "large", "wide"]

EXACT_ROWS = 64
SMALL_WEIGHT = 1 << 21
MEDIUM_WEIGHT = 1 << 24
HEAVY_WEIGHT = 1 << 25
DEEP = 1024
LONG = 8192
WIDE = 16384
LEAST_SPLIT = 256


class ProductTile(NamedTuple):
    """One configuration of the product kernels."""

    half: int
    """Columns of each of a program's two tiles of the output."""
    block_k: int
    warps: int
    stages: int
    programs: int
    """Programs that the depth is split for; 1 never splits."""
    swap: bool
    """The weight is the left operand of the matrix unit, so that few rows are few columns to it."""
    prefetch: int
    """Elements of each weight row that a program asks for before the preceding kernel has ended; 0 or a
    power of two."""
    early: bool
    """Let the next kernel start before this one has waited for the one before."""
    ways: int = 1
    """Parts of the depth that a program's warps work on at once, `block_k` each; 1, or one a warp."""
    bulk: bool = False
    """Ask for what is prefetched by the row instead of by the line."""


class ProductPlan(NamedTuple):
    """What one launch uses."""

    tile: ProductTile
    block_m: int
    row_tiles: int
    column_tiles: int
    splits: int
    blocks: int
    """Depth of a split, in turns of `block_k` x `ways`."""


# swept on an H200 by dflash/bench/product_sweep.py, norms carried as in a step; those of 64 rows are not, but
# for the small and the widest
TILES: dict[tuple[Product, int, Size], ProductTile] = {
    ("qkv", 16, "small"): ProductTile(8, 64, 2, 6, 1, False, 2048, False, 2),
    ("qkv", 32, "small"): ProductTile(8, 64, 2, 4, 1, False, 1024, False),
    ("qkv", 64, "small"): ProductTile(8, 64, 4, 6, 1, False, 512, True),
    ("qkv", 16, "medium"): ProductTile(16, 64, 2, 5, 132, False, 256, False, 2),
    ("qkv", 32, "medium"): ProductTile(8, 256, 2, 5, 132, False, 512, True),
    ("qkv", 64, "medium"): ProductTile(64, 64, 4, 6, 132, True, 512, False),
    ("qkv", 16, "large"): ProductTile(16, 128, 2, 5, 132, False, 1024, False),
    ("qkv", 32, "large"): ProductTile(64, 64, 4, 6, 132, True, 256, True),
    ("qkv", 64, "large"): ProductTile(64, 64, 4, 6, 132, True, 512, False),
    ("gate-up", 16, "small"): ProductTile(16, 64, 2, 6, 1, True, 2048, False, 2),
    ("gate-up", 32, "small"): ProductTile(16, 64, 4, 9, 1, True, 2048, False),
    ("gate-up", 64, "small"): ProductTile(16, 64, 4, 7, 1, False, 512, False),
    ("gate-up", 16, "medium"): ProductTile(16, 128, 2, 5, 132, False, 1024, False),
    ("gate-up", 32, "medium"): ProductTile(8, 256, 2, 4, 132, False, 1024, False),
    ("gate-up", 64, "medium"): ProductTile(64, 64, 4, 4, 132, True, 1024, True),
    ("gate-up", 16, "large"): ProductTile(32, 128, 2, 5, 132, False, 512, False),
    ("gate-up", 32, "large"): ProductTile(64, 128, 4, 5, 132, True, 256, True),
    ("gate-up", 64, "large"): ProductTile(64, 64, 4, 4, 132, True, 1024, True),
    ("rows", 16, "small"): ProductTile(8, 64, 2, 6, 1, False, 2048, False, 2),
    ("rows", 32, "small"): ProductTile(8, 64, 2, 6, 1, False, 512, False),
    ("rows", 64, "small"): ProductTile(16, 64, 4, 9, 1, False, 512, False),
    ("rows", 16, "deep"): ProductTile(8, 64, 4, 3, 1, False, 2048, False, 4),
    ("rows", 32, "deep"): ProductTile(8, 64, 4, 3, 1, False, 2048, True, 4),
    ("rows", 64, "deep"): ProductTile(8, 256, 4, 3, 1, False, 1024, True),
    ("rows", 16, "medium"): ProductTile(8, 64, 2, 9, 132, False, 512, False),
    ("rows", 32, "medium"): ProductTile(16, 128, 2, 5, 264, False, 256, True, bulk=True),
    ("rows", 64, "medium"): ProductTile(64, 64, 4, 4, 264, True, 1024, True),
    ("rows", 16, "long"): ProductTile(32, 128, 4, 5, 132, False, 256, False),
    ("rows", 32, "long"): ProductTile(16, 128, 2, 6, 264, True, 256, True),
    ("rows", 64, "long"): ProductTile(64, 64, 4, 4, 264, True, 1024, True),
    ("rows", 16, "large"): ProductTile(64, 128, 8, 3, 132, True, 256, True),
    ("rows", 32, "large"): ProductTile(64, 128, 8, 3, 132, True, 256, True),
    ("rows", 64, "large"): ProductTile(64, 64, 4, 4, 264, True, 1024, True),
    ("rows", 16, "wide"): ProductTile(64, 64, 4, 9, 132, True, 512, True),
    ("rows", 32, "wide"): ProductTile(64, 64, 4, 9, 132, True, 512, True),
    ("rows", 64, "wide"): ProductTile(64, 64, 4, 4, 264, True, 1024, True),
}

# so many rows, of prompts, of many lanes and of dense rows, that a program may take wide tiles: from 128 and
# from 256 on; 192 and 512 were swept, in whole steps
MANY: dict[tuple[int, Product, Size], ProductTile] = {
    (128, "gate-up", "small"): ProductTile(64, 64, 4, 5, 1, True, 512, True),
    (256, "qkv", "small"): ProductTile(32, 64, 4, 4, 1, False, 512, True),
    (256, "gate-up", "small"): ProductTile(64, 64, 4, 3, 1, True, 512, True),
    (256, "rows", "small"): ProductTile(32, 64, 4, 5, 1, False, 512, False),
    (256, "rows", "deep"): ProductTile(32, 64, 4, 4, 1, False, 512, True),
}

# where a norm of heads keeps each head in one program; half of them at least, as heads are
HEAD_TILES: dict[int, ProductTile] = {
    16: ProductTile(64, 64, 4, 6, 132, True, 512, False),
    32: ProductTile(64, 64, 4, 6, 132, True, 512, False),
    64: ProductTile(64, 64, 4, 6, 132, True, 512, False),
}


def block_of(rows: int, mode: Mode) -> int:
    """Rows of a tile: those of the call, rounded up; always the same in `replay-exact`."""
    return EXACT_ROWS if mode == "replay-exact" else min(max(1 << (rows - 1).bit_length(), 16), EXACT_ROWS)


def size_of(product: Product, columns: int, depth: int) -> Size:
    """What limits a product: with a small weight the latency, which grows with the depth; else its bytes."""
    numbers = columns * depth
    if product == "rows" and columns >= WIDE:
        return "wide"
    if numbers <= SMALL_WEIGHT:
        return "deep" if product == "rows" and depth >= DEEP else "small"
    if product == "rows" and depth >= LONG and numbers < HEAVY_WEIGHT:
        return "long"
    return "medium" if numbers < MEDIUM_WEIGHT else "large"


def product_plan(
    product: Product,
    rows: int,
    pairs: int,
    depth: int,
    mode: Mode,
    tile: ProductTile | None,
    group: int = 0,
) -> ProductPlan:
    """Choose the launch of a product; `replay-exact` looks at the weight only.

    Args:
        product: which kernel.
        rows: rows of the input.
        pairs: half the columns of the output, gate and up counted as one.
        depth: columns of the weight.
        mode: `fast`, or `replay-exact`: a row's bits do not depend on the other rows.
        tile: a configuration to use instead of the table's (for sweeps and tests).
        group: pairs that no tile may cross, as those of a head; 0 for none.
    """
    block_m = block_of(rows, mode)
    tile = tile or _tile(product, rows, block_m, size_of(product, 2 * pairs, depth), mode)
    row_tiles = -(-rows // block_m)
    column_tiles = pairs // group * -(-group // tile.half) if group else -(-pairs // tile.half)
    busy = column_tiles * (1 if mode == "replay-exact" else row_tiles)
    wanted = min(tile.programs // busy, depth // LEAST_SPLIT)
    turn = tile.block_k * tile.ways
    blocks = -(-depth // (max(wanted, 1) * turn))
    splits = -(-depth // (blocks * turn))
    return ProductPlan(tile, block_m, row_tiles, column_tiles, splits, blocks)


def _tile(product: Product, rows: int, block_m: int, size: Size, mode: Mode) -> ProductTile:
    """The table's configuration."""
    for least in (256, 128) if mode == "fast" else ():
        if rows >= least and (least, product, size) in MANY:
            return MANY[least, product, size]
    return TILES[product, block_m, size]
