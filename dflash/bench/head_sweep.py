"""Find the tiles of kernels/lm_head_plan.py and kernels/pack_features.py.

Run as `python -m dflash.bench.head_sweep OUT.json [SHAPE-NUMBER…]`; packs are numbered after heads.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dflash.bench.kernel_head import HEAD_SHAPES, HeadShape, expected_head, make_heads, numbers_of, our_heads
from dflash.bench.kernel_inputs import MAX_RELATIVE_ERROR, relative_error
from dflash.bench.kernel_pack import PACK_SHAPES, PackShape, error_of, make_packs, our_packs
from dflash.bench.kernel_timing import rotations, time_graph
from dflash.bench.sweep_run import run_sweep
from dflash.kernels.lm_head_plan import HeadTile
from dflash.kernels.pack_features import PackTile

WORKERS = 14
SHARED = 200 << 10


def head_tiles(shape: HeadShape) -> Iterator[HeadTile]:
    """Tiles that differ in what is compiled, where their stages fit the device."""
    rows = min(max(16, 1 << (shape.rows - 1).bit_length()), 64)
    for block_v, block_d, stages, warps, prefetch in itertools.product(
        [64, 128], [64, 128], [3, 4], [4, 8], [256]
    ):
        if stages * block_d * (block_v + rows) * 2 > SHARED:
            continue
        yield HeadTile(block_v, block_d, warps, stages, 264, None, prefetch)


def pack_tiles(shape: PackShape) -> Iterator[PackTile]:
    """Tiles of the packing kernel."""
    for groups, warps, programs in itertools.product([4, 8, 16, 32], [2, 4, 8], [132, 264, 528]):
        yield PackTile(groups, warps, programs)


def _compile(job: tuple[HeadShape, HeadTile]) -> None:
    shape, tile = job
    try:
        with torch.inference_mode():
            small = shape._replace(vocabulary=4096)
            our_heads(small, make_heads(small, 1), tile=tile)[0]()
        torch.cuda.synchronize()
    except Exception as error:
        print("compile", shape.name, tile, repr(error)[:200], flush=True)


def _measure(
    name: str, tile: Any, calls: list[Callable[[], object]], error: Callable[[], float]
) -> list[dict]:
    """One row, or none if the tile is wrong or does not run."""
    try:
        found = error()
        if not found <= MAX_RELATIVE_ERROR:
            print("WRONG", name, tile, found, flush=True)
            return []
        return [{"us": time_graph(calls, replays=8).median_us, "error": found, "tile": tile._asdict()}]
    except Exception as failure:
        print("fail", name, tile, repr(failure)[:200], flush=True)
        return []


@torch.inference_mode()
def sweep_head(shape: HeadShape) -> list[dict]:
    """Time every tile of a shape, then other numbers of programs of the best three."""
    sets = make_heads(shape, rotations(shape.bytes))
    expected = expected_head(shape, sets[0])

    def measure(tile: HeadTile) -> list[dict]:
        calls = our_heads(shape, sets, tile=tile)
        return _measure(shape.name, tile, calls, lambda: relative_error(numbers_of(calls[0]()), expected))

    rows = [row for tile in head_tiles(shape) for row in measure(tile)]
    for row in sorted(rows, key=lambda row: row["us"])[:2]:
        for programs in (132, 198, 396, 512):
            rows += measure(HeadTile(**row["tile"])._replace(programs=programs))
    return sorted(rows, key=lambda row: row["us"])


@torch.inference_mode()
def sweep_pack(shape: PackShape) -> list[dict]:
    """Time every tile of a shape."""
    sets = make_packs(shape, rotations(shape.bytes))
    rows = []
    for tile in pack_tiles(shape):
        for inputs in sets:
            inputs.ring.written.zero_()
        calls = our_packs(sets, tile)
        calls[0]()
        rows += _measure(shape.name, tile, calls, lambda: error_of(shape, sets[0]))
    return sorted(rows, key=lambda row: row["us"])


def main(out: str, *numbers: str) -> None:
    """Sweep shapes and write every result."""
    every = [*HEAD_SHAPES, *PACK_SHAPES]
    shapes = [every[int(i)] for i in numbers] or every
    jobs = [(shape, tile) for shape in shapes if isinstance(shape, HeadShape) for tile in head_tiles(shape)]
    run_sweep(out, shapes, jobs, _compile, _sweep, workers=WORKERS)


def _sweep(shape: HeadShape | PackShape) -> list[dict]:
    return sweep_head(shape) if isinstance(shape, HeadShape) else sweep_pack(shape)


if __name__ == "__main__":
    main(*sys.argv[1:])
