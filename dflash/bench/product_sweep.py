"""Find the tiles of kernels/product_plan.py.

Run as `python -m dflash.bench.product_sweep OUT.json [SHAPE-NUMBER…]`; those of steps are numbered last.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import torch

from dflash.bench.kernel_inputs import MAX_RELATIVE_ERROR, relative_error
from dflash.bench.kernel_products import (
    PRODUCT_SHAPES,
    STEP_SHAPES,
    ProductShape,
    expected_product,
    make_products,
    make_shared,
    run_product,
    scratch_of,
)
from dflash.bench.kernel_timing import rotations, time_graph
from dflash.bench.sweep_run import run_sweep
from dflash.kernels.product_plan import ProductTile, block_of, size_of

WORKERS = 14
SHARED = 227 << 10


_HALVES = {"small": (8, 16), "deep": (8, 16), "medium": (8, 16), "long": (16, 32)}
IN_FLIGHT = 768


def tiles_of(shape: ProductShape) -> Iterator[ProductTile]:
    """Tiles to try: what fits the device, with programs enough and as many columns in flight as another."""
    rows = block_of(shape.rows, "fast")
    size = size_of(shape.kernel, shape.columns, shape.depth)
    for half, swap, warps, block_k in itertools.product(
        _HALVES.get(size, (32, 64)), [False, True], [1, 2, 4, 8], [16, 32, 64, 128, 256]
    ):
        if (shape.head_norms and half < shape.head // 2) or (swap and half == 8):
            continue
        for ways in {1, warps} if size in _HALVES else {1}:
            turn = block_k * ways
            one = ways == 1
            if not 64 <= turn <= (256 if one else 512) or shape.depth % (turn if one else 64):
                continue
            if block_k > 64 and not one or one and not _fills(half * rows, warps):
                continue
            stages = min(max(2, IN_FLIGHT // turn), 9)
            if stages * turn * (2 * half + rows) * 2 <= SHARED:
                programs = 1 if size in ("small", "deep") else 132
                yield ProductTile(half, block_k, warps, stages, programs, swap, 1024, False, ways)


def _fills(numbers: int, warps: int) -> bool:
    """Whether a tile's products give each warp something to do, and none too much."""
    return 64 * warps <= numbers <= 512 * warps or (warps == 8 and numbers >= 4096)


def compiled_as(shape: ProductShape, tile: ProductTile) -> tuple[object, ...]:
    """Shapes that agree in this share compiled code."""
    even = shape.depth % (tile.block_k * tile.ways) == 0
    return shape.kernel, block_of(shape.rows, "fast"), shape.head, *shape[-2:], even, tile


def _compile(job: tuple[ProductShape, ProductTile]) -> None:
    shape, tile = job
    small = shape._replace(columns=2 * tile.half * 4 if not shape.head else shape.columns)
    inputs = make_products(small, 1)[0]
    try:
        run_product(small, inputs, make_shared(small), tile=tile)
        torch.cuda.synchronize()
    except Exception as error:
        print("compile", shape.name, tile, repr(error)[:200], flush=True)


def run_time_parts(tile: ProductTile) -> Iterator[ProductTile]:
    """Other splits and prefetches of a good tile; prefetch is compiled anew."""
    splits = [1] if tile.programs == 1 else [132, 264, 528]
    for programs, prefetch in itertools.product(splits, [512, 1024, 2048]):
        yield tile._replace(programs=programs, prefetch=prefetch)


@torch.inference_mode()
def sweep(shape: ProductShape) -> list[dict]:
    """Time every tile of a shape, then other parts of the best; the wrong ones are left out."""
    sets, shared = make_products(shape, rotations(shape.bytes)), make_shared(shape)
    expected = expected_product(shape, sets[0], shared)
    rows = []

    def measure(tile: ProductTile) -> None:
        out = torch.full_like(expected, torch.nan, dtype=torch.bfloat16)
        try:
            given = {"tile": tile, "out": out, "scratch": scratch_of(shape, "fast", tile)}
            error = relative_error(run_product(shape, sets[0], shared, **given), expected)
            if error > MAX_RELATIVE_ERROR:
                print("WRONG", shape.name, tile, error, flush=True)
                return
            calls = [lambda s=s: run_product(shape, s, shared, **given) for s in sets]
            timing = time_graph(calls, replays=8)
        except Exception as failure:
            print("fail", shape.name, tile, repr(failure)[:200], flush=True)
            return
        rows.append({"us": timing.median_us, "error": error, "tile": tile._asdict()})

    for tile in tiles_of(shape):
        measure(tile)
    rows.sort(key=lambda row: row["us"])
    for row in rows[:1]:
        for tile in run_time_parts(ProductTile(**row["tile"])):
            measure(tile)
    return sorted(rows, key=lambda row: row["us"])


def main(out: str, *numbers: str) -> None:
    """Sweep shapes and write every result."""
    every = [*PRODUCT_SHAPES, *STEP_SHAPES]
    shapes = [every[int(i)] for i in numbers] or every
    jobs = {compiled_as(s, t): (s, t) for s in shapes for t in tiles_of(s)}
    run_sweep(out, shapes, list(jobs.values()), _compile, sweep, workers=WORKERS)


if __name__ == "__main__":
    main(*sys.argv[1:])
