"""`dflash plan`: the plain formulas of speculative decoding, with their assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dflash.cli.options import FiniteFloat, json_option, say_left_out
from dflash.cli.output import emit
from dflash.cli.plan_text import render
from dflash.draftfile.run import open_run
from dflash.errors import UsageError
from dflash.replay.plan import KvShape, acceptance, grid, memory
from dflash.replay.plan_measured import Measured, measure

SCHEMA = "dflash.plan/1"
DEFINITIONS = {
    "alpha": "chance that a drafted token is accepted, given that all before it on its branch are; measured: "
    "accepted nodes of all nodes tried along the first branch, pooled over live rounds",
    "tau": "accepted nodes + 1 per live round, before truncation",
    "draft cost": "time of one draft step over that of one target step",
    "speed-up": "tokens a second against one-token decoding of the same target",
}
_COUNT = click.IntRange(min=1)


@click.command()
@click.argument(
    "files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...", callback=say_left_out
)
@click.option("--alpha", type=FiniteFloat(0, 1), help="Acceptance of one drafted token; measured in FILE.")
@click.option("--length", type=click.IntRange(0, 128), help="Drafted tokens of a branch; 4, or FILE's.")
@click.option("--branches", type=click.IntRange(1, 64), help="Branches of a round; 3, or FILE's.")
@click.option("--draft-cost", type=FiniteFloat(0), help="Draft step over target step, for the speed-up.")
@click.option("--layers", type=_COUNT, help="Layers of the target, for the bytes of its keys and values.")
@click.option("--kv-heads", type=_COUNT, help="Key-value heads of a layer.")
@click.option("--head-dim", type=_COUNT, help="Width of a head.")
@click.option("--kv-bytes", type=_COUNT, help="Bytes of a stored value; 2 unless given.")
@click.option("--concurrency", type=_COUNT, help="Requests at once; 1 unless given.")
@json_option
def plan(
    files: Sequence[Path],
    alpha: float | None,
    length: int | None,
    branches: int | None,
    draft_cost: float | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    kv_bytes: int | None,
    concurrency: int | None,
    as_json: bool,
) -> None:
    """Predict tau, speed-up and memory by the plain formulas, assumptions stated.

    With FILEs of one run, alpha and the shape are the recorded ones, and the formulas' tau stands
    beside the measured one: where they part, the assumptions do not hold.

    \b
        dflash plan --alpha 0.75 --length 4 --layers 32 --kv-heads 32 --head-dim 128
    """
    measured = measure(open_run(files).files) if files else None
    if alpha is None and measured is None:
        raise UsageError("Expected --alpha, or a draft FILE to measure it in; found neither.")
    rate = measured.alpha if alpha is None and measured is not None else float(alpha or 0.0)
    depth = length if length is not None else (measured.length if measured else 4)
    width = branches if branches is not None else (measured.branches if measured else 3)
    kv = _kv(layers, kv_heads, head_dim, kv_bytes, concurrency)
    quantities = acceptance(rate, depth, width, draft_cost)
    if kv is not None:
        quantities += memory(kv, depth, width, concurrency or 1)
    cells = grid(rate, range(1, max(8, depth) + 1), range(1, max(4, width) + 1), draft_cost)
    document = {
        "schema": SCHEMA,
        "inputs": {
            "alpha": rate,
            "length": depth,
            "branches": width,
            "draft_cost": draft_cost,
            "kv": None if kv is None else kv._asdict(),
            "concurrency": concurrency or 1,
        },
        "quantities": [item._asdict() for item in quantities],
        "grid": [cell._asdict() for cell in cells],
        "measured": None if measured is None else _measured(measured),
        "definitions": DEFINITIONS,
    }
    emit(document, as_json, lambda console: render(document, console))


def _kv(
    layers: int | None, heads: int | None, dim: int | None, width: int | None, concurrency: int | None
) -> KvShape | None:
    if (layers, heads, dim, width, concurrency) == (None,) * 5:
        return None
    if layers is None or heads is None or dim is None:
        raise UsageError("The bytes of keys and values need --layers, --kv-heads and --head-dim together.")
    return KvShape(layers, heads, dim, 2 if width is None else width)


def _measured(measured: Measured) -> dict[str, Any]:
    return measured._asdict() | {
        "positions": [item._asdict() for item in measured.positions],
        "tau": [item._asdict() for item in measured.tau],
    }
