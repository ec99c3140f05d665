"""Find the tiles of kernels/product_plan.py.

Run as `python -m dflash.bench.product_sweep OUT.json [SHAPE-NUMBER…]`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import torch

from dflash.bench.kernel_inputs import MAX_RELATIVE_ERROR, relative_error
from dflash.bench.kernel_products import (
    PRODUCT_SHAPES,
    ProductShape,
    expected_product,
    make_products,
    make_shared,
    run_product,
)
from dflash.bench.kernel_timing import rotations, time_graph
from dflash.bench.sweep_run import run_sweep
from dflash.kernels.product_plan import SMALL_WEIGHT, ProductTile, block_of

WORKERS = 14
SHARED = 227 << 10


def tiles_of(shape: ProductShape) -> Iterator[ProductTile]:
    """Tiles to try: what fits the device, with programs enough, and depths that tiles divide."""
    rows = block_of(shape.rows, "fast")
    small = shape.columns * shape.depth <= SMALL_WEIGHT
    halves, depths = ([8, 16, 32], [64, 128, 256]) if small else ([16, 32, 64], [64, 128])
    for half, block_k, warps, swap in itertools.product(halves, depths, [2, 4, 8], [False, True]):
        if (shape.head_norms and half < shape.head // 2) or (swap and half == 8) or shape.depth % block_k:
            continue
        if (warps == 2 and half * rows > 16 * 32) or (warps == 8 and half * rows < 32 * 64):
            continue
        for stages in {64: [4, 6, 9], 128: [3, 5], 256: [2, 3]}[block_k][: 3 if small else 2]:
            if stages * block_k * (2 * half + rows) * 2 <= SHARED:
                yield ProductTile(half, block_k, warps, stages, 1 if small else 132, swap, 1024, False)


def compiled_as(shape: ProductShape, tile: ProductTile) -> tuple[object, ...]:
    """Shapes that agree in this share compiled code."""
    return shape.kernel, block_of(shape.rows, "fast"), shape.head, *shape[-2:], tile


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
    """Other splits, prefetches and starts of a good tile; prefetch and start are compiled anew."""
    splits = [1] if tile.programs == 1 else [1, 132, 264]
    for programs, prefetch, early in itertools.product(splits, [512, 2048], [False, True]):
        yield tile._replace(programs=programs, prefetch=prefetch, early=early)


@torch.inference_mode()
def sweep(shape: ProductShape) -> list[dict]:
    """Time every tile of a shape, then other parts of the best; the wrong ones are left out."""
    sets, shared = make_products(shape, rotations(shape.bytes)), make_shared(shape)
    expected = expected_product(shape, sets[0], shared)
    rows = []

    def measure(tile: ProductTile) -> None:
        out = torch.full_like(expected, torch.nan, dtype=torch.bfloat16)
        try:
            error = relative_error(run_product(shape, sets[0], shared, tile=tile, out=out), expected)
            if error > MAX_RELATIVE_ERROR:
                print("WRONG", shape.name, tile, error, flush=True)
                return
            calls = [lambda s=s: run_product(shape, s, shared, tile=tile, out=out) for s in sets]
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
    shapes = [PRODUCT_SHAPES[int(i)] for i in numbers] or PRODUCT_SHAPES
    jobs = {compiled_as(s, t): (s, t) for s in shapes for t in tiles_of(s)}
    run_sweep(out, shapes, list(jobs.values()), _compile, sweep, workers=WORKERS)


if __name__ == "__main__":
    main(*sys.argv[1:])
