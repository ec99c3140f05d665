"""Which tile, how many splits: fixed tables of the small products, the same at every launch."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dflash.kernels.attention_plan import Mode

Product = Literal["qkv", "gate-up", "rows"]
Size = Literal["small", "large"]

EXACT_ROWS = 64
SMALL_WEIGHT = 1 << 21
LEAST_SPLIT = 512


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


class ProductPlan(NamedTuple):
    """What one launch uses."""

    tile: ProductTile
    block_m: int
    row_tiles: int
    column_tiles: int
    splits: int
    blocks: int
    """Depth of a split, in `block_k`."""


# not measured yet: chosen by bytes in flight, to be swept by dflash/bench/product_sweep.py.
# small: weights of at most two million numbers, where latency counts; a depth split costs a merge there
TILES: dict[tuple[Product, int, Size], ProductTile] = {
    ("qkv", 16, "small"): ProductTile(16, 64, 4, 4, 1, True, 512, False),
    ("qkv", 32, "small"): ProductTile(16, 64, 4, 4, 1, True, 512, False),
    ("qkv", 64, "small"): ProductTile(16, 128, 4, 4, 1, True, 1024, True),
    ("qkv", 16, "large"): ProductTile(32, 128, 4, 4, 132, False, 1024, True),
    ("qkv", 32, "large"): ProductTile(32, 128, 4, 4, 132, False, 1024, True),
    ("qkv", 64, "large"): ProductTile(64, 64, 4, 4, 132, True, 1024, True),
    ("gate-up", 16, "small"): ProductTile(16, 64, 4, 4, 1, True, 512, False),
    ("gate-up", 32, "small"): ProductTile(16, 64, 4, 4, 1, True, 512, False),
    ("gate-up", 64, "small"): ProductTile(16, 128, 4, 4, 1, True, 1024, True),
    ("gate-up", 16, "large"): ProductTile(32, 128, 4, 4, 132, False, 1024, True),
    ("gate-up", 32, "large"): ProductTile(32, 128, 4, 4, 132, False, 1024, True),
    ("gate-up", 64, "large"): ProductTile(64, 64, 4, 4, 132, True, 1024, True),
    ("rows", 16, "small"): ProductTile(8, 256, 2, 3, 1, False, 1024, True),
    ("rows", 32, "small"): ProductTile(8, 256, 2, 3, 1, False, 1024, True),
    ("rows", 64, "small"): ProductTile(16, 128, 4, 4, 1, False, 2048, True),
    ("rows", 16, "large"): ProductTile(32, 128, 4, 4, 264, False, 1024, True),
    ("rows", 32, "large"): ProductTile(32, 128, 4, 4, 264, False, 1024, True),
    ("rows", 64, "large"): ProductTile(64, 64, 4, 4, 264, True, 1024, True),
}


def block_of(rows: int, mode: Mode) -> int:
    """Rows of a tile: those of the call, rounded up; always the same in `replay-exact`."""
    return EXACT_ROWS if mode == "replay-exact" else min(max(1 << (rows - 1).bit_length(), 16), EXACT_ROWS)


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
    size: Size = "small" if 2 * pairs * depth <= SMALL_WEIGHT else "large"
    tile = tile or TILES[product, block_m, size]
    row_tiles = -(-rows // block_m)
    column_tiles = pairs // group * -(-group // tile.half) if group else -(-pairs // tile.half)
    busy = column_tiles * (1 if mode == "replay-exact" else row_tiles)
    wanted = min(tile.programs // busy, depth // LEAST_SPLIT)
    blocks = -(-depth // (max(wanted, 1) * tile.block_k))
    splits = -(-depth // (blocks * tile.block_k))
    return ProductPlan(tile, block_m, row_tiles, column_tiles, splits, blocks)
