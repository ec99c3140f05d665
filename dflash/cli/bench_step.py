"""`dflash bench step`: how long drafting and verifying take on this machine, as a step-time profile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.bench_record import PROMPTS
from dflash.cli.cost_text import profile_text, render_cost
from dflash.cli.options import json_option, output_option, overwrite_option, target_option
from dflash.cli.output import bar, emit, talk
from dflash.cli.outputs import check_outputs, write_output
from dflash.replay.cost import CostModel

if TYPE_CHECKING:
    from dflash.bench.step import Setting

SHAPES = ("smollm2-135m", "llama-3.2-1b", "llama-3.1-8b")


@click.command()
@target_option
@click.option("--drafter", default="ngram", show_default=True, help="What drafts, as in `dflash record`.")
@click.option(
    "--length", type=click.IntRange(1), default=5, show_default=True, help="Longest draft to measure."
)
@click.option("--branches", type=click.IntRange(1), default=2, show_default=True, help="Most branches.")
@click.option("--lanes", type=click.IntRange(1), default=1, show_default=True, help="Most requests at once.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(2, 4096),
    default=32,
    show_default=True,
    help="Answer of each run, in tokens.",
)
@click.option(
    "--rounds",
    type=click.Choice(["host", "device"]),
    default="host",
    show_default=True,
    help="`device`: whole rounds of a block drafter on this GPU, as --rounds device of `record` runs them.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="Instead, time one step of model shapes on this GPU: native, transformers, graphs, torch.compile.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice(SHAPES),
    help="With --compare, a model shape; the profile is the first one's.  [default: all]",
)
@click.option(
    "--compiled/--no-compiled", default=True, help="With --compare, what torch.compile builds, too."
)
@output_option("the step-time profile for --cost, as JSON,")
@overwrite_option
@json_option
def step(
    target: str,
    drafter: str,
    length: int,
    branches: int,
    lanes: int,
    max_new_tokens: int,
    rounds: str,
    compare: bool,
    shapes: tuple[str, ...],
    compiled: bool,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Time rounds in several shapes and lanes, and fit a step-time profile to them.

    A round takes draft(length, branches, batch) + verify(nodes, batch, context). `dflash tune`, `replay` and
    `record` read the profile with --cost.
    """
    check_outputs([output], (), overwrite)
    if compare:
        _compare(shapes or SHAPES, compiled, output, overwrite, as_json)
        return
    if rounds == "device":
        document, model = _on_device(target, drafter, length, branches, lanes)
        emit(document, as_json, lambda console: render_cost(model, console))
        _write(model, output, overwrite)
        return
    from dflash.bench.step import measure, settings_of
    from dflash.engine.prompts.chat import Defaults
    from dflash.engine.prompts.files import text_prompt
    from dflash.engine.settings import RecordSettings
    from dflash.policy.registry import parse_policy
    from dflash.target.load import load_target
    from dflash.target.sampling import Sampling

    settings = RecordSettings(
        output=Path("unused"),
        drafter=drafter,
        policy=parse_policy("match"),
        defaults=Defaults(Sampling(0.0), seed=0, max_new_tokens=max_new_tokens),
        length=length,
        branches=branches,
    )
    runs = list(settings_of(length, branches, lanes))
    talk(f"decoding in {len(runs)} settings")
    with bar("bench step", total=len(runs)) as (progress, task):
        prompts = [text_prompt(text) for text in PROMPTS]
        model = measure(load_target(target), settings, prompts, runs, lambda: progress.advance(task))
    document = _document(target, drafter, runs, model)
    emit(document, as_json, lambda console: render_cost(model, console))
    _write(model, output, overwrite)


def _document(target: str, drafter: str, runs: Sequence[Setting], model: CostModel) -> dict[str, Any]:
    return {
        "schema": "dflash.bench_step/1",
        "target": target,
        "drafter": drafter,
        "runs": [run._asdict() for run in runs],
        "cost": model.to_dict(),
    }


def _write(model: CostModel, output: Path | None, overwrite: bool) -> None:
    if output is not None:
        write_output(output, profile_text(model), overwrite=overwrite)
        talk(f"step times: {output}")


def _on_device(
    target: str, drafter: str, length: int, branches: int, lanes: int
) -> tuple[dict[str, Any], CostModel]:
    """Whole rounds at several lanes, and what came of it."""
    import torch

    from dflash.bench.decode import DecodeSettings
    from dflash.bench.decode_models import Subject
    from dflash.bench.kernels import NoDevice
    from dflash.bench.round_profile import ASSUMPTIONS, lanes_of, profile_rounds, settings_of
    from dflash.target.load import load_target

    if not torch.cuda.is_available():
        raise NoDevice("dflash bench step --rounds device")
    counts, subject = lanes_of(lanes), Subject(load_target(target, device="cuda"), drafter, drafter)
    step_time = profile_rounds(subject, DecodeSettings(length, branches), counts, talk)
    model = CostModel(step_time, "measured", float(lanes), (), ASSUMPTIONS, 0)
    return _document(target, drafter, settings_of(length, branches, counts), model), model


def _compare(
    shapes: Sequence[str], compiled: bool, output: Path | None, overwrite: bool, as_json: bool
) -> None:
    from dflash.bench.step_compare import compare, document

    found = document(compare(shapes, compiled=compiled, say=talk))
    emit(found, as_json, lambda console: _render(found["rows"], console))
    if output is not None:
        text = json.dumps(found["profile"]["step_time"], indent=2) + "\n"
        write_output(output, text, overwrite=overwrite)
        talk(f"step times of {found['profile']['of']}: {output}")


def _render(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("step", "by", "us", "floor us", "goal us", "of goal", "note"):
        table.add_column(name, justify="left" if name in ("step", "by", "note") else "right")
    for row in rows:
        us, goal = row["median_us"], row["goal_us"]
        times = ("-", "-") if us is None else (f"{us:.1f}", f"{us / goal:.2f}x")
        note = row["failure"] or ""
        table.add_row(
            row["shape"], row["name"], times[0], f"{row['floor_us']:.1f}", f"{goal:.0f}", times[1], note
        )
    console.print(table)
