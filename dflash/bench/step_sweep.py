"""Find tiles in whole steps, where a launch costs what it leaves of the device to the launches around it.

Run as `python -m dflash.bench.step_sweep OUT.json [CASE…]`, a case by its number. Each tile of
kernels/attention_plan.py and kernels/product_plan.py that a step uses is exchanged for its neighbours, one
at a time; differences under one percent are noise.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dflash.bench.kernel_inputs import relative_error
from dflash.bench.kernel_products import STEP_SHAPES
from dflash.bench.step_compare import time_step
from dflash.bench.step_shapes import make_target
from dflash.bench.step_ways import VerifyCase, native_verify, verify_case
from dflash.bench.sweep_run import run_sweep
from dflash.kernels import attention_plan, product_plan
from dflash.kernels.attention_plan import Regime, Tile
from dflash.kernels.product_plan import ProductTile

WORKERS = 14
REPEATS = 12
# of logits in bf16, from those of the default tiles
MAX_ERROR = 5e-2
# enough for what differs between layers' launches, and small enough for many processes
LAYERS = 8

Table = dict[Any, Any]


class StepCase(NamedTuple):
    """A step, and which entries of the tables it uses."""

    model: str
    nodes: int
    context: int
    batch: int
    attention: tuple[int, int, Regime]
    first_product: int
    """Where the step's four products stand in `STEP_SHAPES`."""
    kernel: str = "step"
    target_us: float = 0.0

    @property
    def name(self) -> str:
        """How the case is printed."""
        return f"{self.model} ctx{self.context} n{self.nodes} b{self.batch}"

    @property
    def rows(self) -> int:
        """Rows of all lanes."""
        return self.batch * (self.nodes + 1)


SMALL = "smollm2-135m"
CASES = (
    StepCase(SMALL, 0, 512, 1, (64, 16, "short"), 0),
    StepCase(SMALL, 7, 512, 1, (64, 32, "short"), 0),
    StepCase(SMALL, 16, 512, 1, (64, 64, "short"), 4),
    StepCase(SMALL, 16, 4096, 1, (64, 64, "long"), 4),
    StepCase(SMALL, 7, 512, 8, (64, 32, "short"), 16),
    StepCase(SMALL, 0, 512, 64, (64, 16, "wave"), 16),
    StepCase(SMALL, 2, 512, 64, (64, 16, "wave"), 16),
    StepCase(SMALL, 7, 512, 64, (64, 32, "wave"), 16),
    StepCase("llama-3.2-1b", 16, 4096, 1, (64, 128, "long"), 8),
    StepCase("llama-3.1-8b", 16, 4096, 1, (128, 128, "long"), 12),
)


class Trial(NamedTuple):
    """One entry of a table, and another tile for it."""

    kind: str
    key: Any
    tile: Tile | ProductTile


def trials_of(case: StepCase) -> Iterator[Trial]:
    """Every neighbour of every tile that the step uses, the tiles themselves first."""
    for tile in dict.fromkeys(attention_neighbours(attention_plan.TILES[case.attention])):
        yield Trial("attention", case.attention, tile)
    for shape in STEP_SHAPES[case.first_product : case.first_product + 4]:
        kind, key, table = product_entry(shape.kernel, case.rows, shape.columns, shape.depth)
        for tile in dict.fromkeys(product_neighbours(table[key])):
            yield Trial(kind, key, tile)


def product_entry(product: Any, rows: int, columns: int, depth: int) -> tuple[str, Any, Table]:
    """The entry that a product of a step takes: of which table, its key, and the table."""
    size = product_plan.size_of(product, columns, depth)
    for least in (256, 128):
        if rows >= least and (least, product, size) in product_plan.MANY:
            return "many", (least, product, size), product_plan.MANY
    return "products", (product, product_plan.block_of(rows, "fast"), size), product_plan.TILES


def attention_neighbours(tile: Tile) -> Iterator[Tile]:
    """Tiles that differ in one thing, or in two that belong together."""
    yield tile
    for block_m, warps in ((16, 2), (16, 4), (32, 2), (32, 4), (64, 4), (64, 8), (128, 8)):
        yield tile._replace(block_m=block_m, warps=warps)
    for block_n, stages in itertools.product((32, 64, 128), (2, 3, 4)):
        yield tile._replace(block_n=block_n, stages=stages)
    for programs, min_chunk in itertools.product((66, 132, 198, 264, 396), (32, 64, 128, 192, 256)):
        yield tile._replace(programs=programs, min_chunk=min_chunk)
    for merge_rows, merge_splits in ((1, 8), (1, 16), (1, 32), (2, 8), (2, 16)):
        yield tile._replace(merge_rows=merge_rows, merge_splits=merge_splits)
    for prefetch in (0, 64, 128, 256):
        yield tile._replace(prefetch=prefetch)
    for registers in (None, 96, 128, 160):
        yield tile._replace(registers=registers)
    yield tile._replace(half=not tile.half)
    yield tile._replace(two_loops=not tile.two_loops)


def product_neighbours(tile: ProductTile) -> Iterator[ProductTile]:
    """Tiles that start the next launch at another time, or leave it more room, and others."""
    yield tile
    for stages, early in itertools.product(range(2, 10), (False, True)):
        yield tile._replace(stages=stages, early=early)
    for prefetch, early in itertools.product((256, 512, 1024, 2048), (False, True)):
        yield tile._replace(prefetch=prefetch, early=early)
    for half, early in itertools.product(
        {tile.half // 2, tile.half, 2 * tile.half} & {8, 16, 32, 64}, (False, True)
    ):
        swap = tile.swap and half > 8
        yield tile._replace(half=half, swap=swap, early=early)
        for warps in {tile.warps // 2, 2 * tile.warps} & {2, 4, 8}:
            ways = 1 if tile.ways == 1 else warps
            yield tile._replace(half=half, swap=swap, early=early, warps=warps, ways=ways)
    if tile.programs > 1:
        for programs in (132, 264, 396):
            yield tile._replace(programs=programs)


@contextmanager
def exchanged(trial: Trial) -> Iterator[None]:
    """The trial's tile in its table, for a while."""
    tables: dict[str, Table] = {
        "attention": attention_plan.TILES,
        "products": product_plan.TILES,
        "many": product_plan.MANY,
    }
    table = tables[trial.kind]
    before = table[trial.key]
    table[trial.key] = trial.tile
    try:
        yield
    finally:
        table[trial.key] = before


@lru_cache(maxsize=1)
def _target(model: str) -> Any:
    changes = {} if model == SMALL else {"num_hidden_layers": LAYERS}
    return make_target(model, "cuda", torch.bfloat16, **changes)


@lru_cache(maxsize=1)
def _case(case: StepCase) -> VerifyCase:
    return verify_case(_target(case.model), case.nodes, case.context, case.batch)


def _compile(job: tuple[StepCase, Trial]) -> None:
    case, trial = job
    try:
        with exchanged(trial):
            native_verify(_case(case)).call()
        torch.cuda.synchronize()
    except Exception as error:
        print("compile", case.name, trial, repr(error)[:200], flush=True)


@torch.inference_mode()
def sweep(case: StepCase) -> list[dict[str, Any]]:
    """Time the step under every trial; those whose logits are others are left out."""
    made = _case(case)
    default = native_verify(made)
    expected: Tensor = default.call().clone()
    rows = [{"us": time_step(default, REPEATS)[0], "kind": "default", "key": "", "tile": {}}]
    for trial in trials_of(case):
        try:
            with exchanged(trial):
                ready = native_verify(made)
            error = relative_error(ready.call(), expected)
            if error > MAX_ERROR:
                print("WRONG", case.name, trial, error, flush=True)
                continue
            median = time_step(ready, REPEATS)[0]
        except Exception as failure:
            print("fail", case.name, trial, repr(failure)[:200], flush=True)
            continue
        rows.append({"us": median, "kind": trial.kind, "key": str(trial.key), "tile": trial.tile._asdict()})
    return sorted(rows, key=lambda row: row["us"])


def main(out: str, *numbers: str) -> None:
    """Sweep cases and write every result."""
    cases = [CASES[int(number)] for number in numbers] or list(CASES)
    jobs = [(case, trial) for case in cases for trial in trials_of(case)]
    run_sweep(out, cases, jobs, _compile, sweep, workers=WORKERS)


if __name__ == "__main__":
    main(*sys.argv[1:])
