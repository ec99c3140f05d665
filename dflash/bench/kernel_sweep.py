"""Find the tiles of kernels/attention_plan.py.

Run as `python -m dflash.bench.kernel_sweep OUT.json [SHAPE-NUMBER…]`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import torch

from dflash.bench.kernel_inputs import Inputs, expected_output, make_inputs, relative_error
from dflash.bench.kernel_shapes import EXTRA, SHAPES, Shape
from dflash.bench.kernel_timing import rotations, time_graph
from dflash.bench.sweep_run import run_sweep
from dflash.kernels.attention_plan import Tile, regime_of
from dflash.kernels.attention_scratch import Scratch
from dflash.kernels.block_attention import block_attention
from dflash.kernels.tree_attention import attention_scratch, tree_attention

WORKERS = 10


def call(
    shape: Shape, inputs: Inputs, tile: Tile | None, scratch: Scratch, out: torch.Tensor, mode: str = "fast"
) -> None:
    """Run the kernel of a shape once."""
    if inputs.words is None:
        block_attention(*inputs[:4], tile=tile, scratch=scratch, out=out, mode=mode)
    else:
        tree_attention(*inputs[:5], shape.tail, tile=tile, scratch=scratch, out=out, mode=mode)


def compiled_parts(shape: Shape) -> Iterator[Tile]:
    """Tiles that differ in what is compiled; programs and chunk length are arguments of the kernel."""
    rows = max(16, 1 << (shape.nodes * shape.heads // shape.kv_heads - 1).bit_length())
    regime = regime_of(shape.batch, shape.kv_heads, rows, shape.context + shape.tail)
    widths = {16: [16], 32: [16, 32], 64: [64], 128: [64, 128], 256: [64, 128]}[rows]
    if regime == "short" and rows == 64:
        widths = [16, 32, 64]
    for block_m, block_n, stages, loops in itertools.product(widths, [32, 64, 128], [2, 3, 4], [False, True]):
        fetch = {"short": [64, 128], "long": [0, 64, 256]}.get(regime, [0])
        if (block_n == 128) > loops or (block_n == 32 and block_m != 64) or block_n * stages > 384:
            continue
        for prefetch in fetch:
            warps, ticket = 8 if block_m == 128 else 4, regime in ("wave", "full")
            found = Tile(block_m, block_n, warps, stages, 0, 0, ticket, 1, 16, two_loops=loops)
            yield found._replace(prefetch=prefetch, merge_warps=2 if ticket else 1)


def merge_parts(tile: Tile) -> Iterator[Tile]:
    """Other ways to merge what one tile leaves."""
    for half, (rows, splits, warps) in itertools.product(
        [False, True], [(1, 16, 1), (1, 32, 1), (2, 8, 1), (2, 16, 1), (1, 16, 2)]
    ):
        yield tile._replace(half=half, merge_rows=rows, merge_splits=splits, merge_warps=warps)


def run_time_parts(shape: Shape, tile: Tile) -> Iterator[Tile]:
    """The programs and chunk lengths to try with one compiled tile."""
    seen = set()
    tiles = -(-shape.nodes * shape.heads // shape.kv_heads // tile.block_m)
    for programs in (132, 264, 396):
        share = max(1, programs // (shape.kv_heads * shape.batch * tiles))
        least = -(-(shape.context + shape.tail) // share)
        for min_chunk in (64, 128, 256, 512):
            effective = max(least, min_chunk)
            if min_chunk >= tile.block_n and effective not in seen:
                seen.add(effective)
                yield tile._replace(programs=programs, min_chunk=min_chunk)


def _prepare(shape: Shape, inputs: Inputs, tile: Tile) -> tuple[Scratch, torch.Tensor]:
    scratch = attention_scratch(*inputs[:5], shape.tail, tile=tile)
    return scratch, torch.full_like(inputs.q, torch.nan)


def _compile(job: tuple[Shape, Tile]) -> None:
    shape, tile = job
    small = shape._replace(context=64)
    inputs = make_inputs(small, 1)[0]
    tile = tile._replace(programs=264, min_chunk=128)
    try:
        call(small, inputs, tile, *_prepare(small, inputs, tile))
        torch.cuda.synchronize()
    except Exception as error:
        print("compile", shape.name, tile, repr(error)[:200], flush=True)


def sweep(shape: Shape) -> list[dict]:
    """Time every tile of a shape, then other merges of the best; the wrong ones are left out."""
    sets = make_inputs(shape, rotations(shape.bytes))
    lanes = sorted({0, shape.batch - 1})
    expected = expected_output(shape, sets[0], lanes)
    rows = []

    def measure(tile: Tile) -> None:
        try:
            scratch, out = _prepare(shape, sets[0], tile)
            call(shape, sets[0], tile, scratch, out)
            error = relative_error(out[lanes], expected)
            if error > 1e-2:
                print("WRONG", shape.name, tile, error, flush=True)
                return
            timing = time_graph([lambda s=s: call(shape, s, tile, scratch, out) for s in sets], replays=8)
        except Exception as failure:
            print("fail", shape.name, tile, repr(failure)[:200], flush=True)
            return
        rows.append({"us": timing.median_us, "error": error, "tile": tile._asdict()})

    for part in compiled_parts(shape):
        for tile in run_time_parts(shape, part):
            measure(tile)
    rows.sort(key=lambda row: row["us"])
    for row in rows[:2]:
        if not row["tile"]["ticket"]:
            for tile in merge_parts(Tile(**row["tile"])):
                measure(tile)
    return sorted(rows, key=lambda row: row["us"])


def main(out: str, *numbers: str) -> None:
    """Sweep shapes and write every result."""
    shapes = [*SHAPES, *EXTRA]
    shapes = [shapes[int(i)] for i in numbers] or shapes
    jobs = {}
    for shape in shapes:
        for tile in compiled_parts(shape):
            jobs[shape._replace(context=0, target_us=0), tile] = (shape, tile)
    run_sweep(out, shapes, list(jobs.values()), _compile, sweep, workers=WORKERS)


if __name__ == "__main__":
    main(*sys.argv[1:])
