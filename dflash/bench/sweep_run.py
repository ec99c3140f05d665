"""The course of a sweep: compile every tile in parallel processes, then time shape after shape."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

BEST = 3


def run_sweep(
    out: str,
    shapes: Sequence[Any],
    jobs: Sequence[Any],
    compile_one: Callable[[Any], None],
    sweep: Callable[[Any], list[dict]],
    *,
    workers: int,
) -> None:
    """Sweep shapes; the results so far are written after each, the best tiles printed.

    Args:
        out: a JSON file of all rows by shape.
        shapes: with `kernel`, `name` and `target_us`.
        jobs: what `compile_one` compiles, in this many `workers`; the caches on disk carry it over.
        sweep: times one shape; rows in order of time.
    """
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(compile_one, jobs, chunksize=2)
    print("compiled", len(jobs), flush=True)
    results = {}
    for shape in shapes:
        rows = sweep(shape)
        results[f"{shape.kernel} {shape.name}"] = rows
        Path(out).write_text(json.dumps(results))
        print(f"{shape.kernel:8}{shape.name:40} target {shape.target_us:6.1f}  of {len(rows)}", flush=True)
        for row in rows[:BEST]:
            print(f"    {row['us']:8.2f}  {tuple(row['tile'].values())}", flush=True)
        torch.cuda.empty_cache()
