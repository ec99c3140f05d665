"""`dflash tune`: which policy to run, by replaying many on one recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dflash.cli.cost_text import profile_text
from dflash.cli.options import (
    FiniteFloat,
    files_argument,
    json_option,
    output_option,
    overwrite_option,
    say_left_out,
)
from dflash.cli.output import bar, emit, talk
from dflash.cli.outputs import check_outputs, write_output
from dflash.cli.policy_cell import counted
from dflash.cli.tune_text import caveats, render
from dflash.draftfile.publish import whole_file
from dflash.draftfile.reader import DraftFile
from dflash.draftfile.run import open_run
from dflash.policy.policy_file import policy_toml
from dflash.policy.registry import Policy
from dflash.replay.cost_source import cost_of
from dflash.replay.errors import BestUnknown, SpeedUpUnknown
from dflash.replay.run import recorded_policy
from dflash.replay.steered import largest_shape
from dflash.replay.sweep import expand, suggested, unique
from dflash.replay.tune import steps
from dflash.replay.tune import tune as search_policies
from dflash.replay.tune_document import document
from dflash.replay.tuned import Search, Tuned
from dflash.report.surface import draw_surface, require_plots

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command()
@files_argument
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="POLICY",
    help="Policies to try: a short form in which a value may be a|b|c, low..high or low..high..step, as "
    "'match:length=1..5,branches=1|3'; repeatable. Without it: the recorded rule in every shape within the "
    "recorded one, and on dense files the controls that need no confidence.",
)
@click.option(
    "--search",
    type=click.Choice([search.value for search in Search]),
    default=Search.GRID.value,
    show_default=True,
    help="Judge every policy on every request, or drop the slower two thirds on growing samples.",
)
@click.option(
    "--max-divergence",
    type=FiniteFloat(0, 1),
    default=0.0,
    show_default=True,
    help="Share of rounds in which the recommended policy may accept what the target would not have chosen.",
)
@click.option(
    "--cost",
    "costs",
    multiple=True,
    type=click.Path(path_type=Path),
    callback=say_left_out,
    help="A step-time profile (JSON), or draft files whose times are fitted in place of FILE's; repeatable.",
)
@click.option(
    "--batch", type=FiniteFloat(1), help="Requests a forward to tune for; as recorded unless given."
)
@click.option("--rejudge", is_flag=True, help="Do not walk dense files: re-judge their live rounds.")
@output_option("the best policy as TOML, for `record --policy PATH`,")
@click.option("--surface", type=_PATH, metavar="PNG", help="Draw the speed-up over (branches, length).")
@click.option("--save-cost", type=_PATH, metavar="JSON", help="Write the fitted step-time profile.")
@overwrite_option
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Policies to print.")
@json_option
def tune(
    files: Sequence[Path],
    sweeps: Sequence[str],
    search: str,
    max_divergence: float,
    costs: Sequence[Path],
    batch: float | None,
    rejudge: bool,
    output: Path | None,
    surface: Path | None,
    save_cost: Path | None,
    overwrite: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Find the policy to run: replay many on the FILEs of one run and price their rounds.

    Prints the policies from the fastest down with 95 % intervals over requests, the Pareto front of speed-up,
    divergence and verified rows, the cost model with its residuals and assumptions, and the surface of
    speed-up over (branches, length).
    """
    run = open_run(files)
    check_outputs((output, surface, save_cost), (*(file.path for file in run.files), *costs), overwrite)
    if surface is not None:
        require_plots(surface)
    policies = _policies(sweeps, run.files, max_divergence > 0, not rejudge)
    model = cost_of(run.files, costs, batch)
    if surface is not None and not model.plain_timed:
        raise SpeedUpUnknown(str(surface))
    how = Search(search)
    groups = sum(file.row_groups for file in run.files)
    with bar("tune", total=steps(how, run.requests, len(policies), groups)) as (progress, task):
        found = search_policies(
            run.files,
            policies,
            model,
            search=how,
            max_divergence=max_divergence,
            dense=not rejudge,
            progress=lambda: progress.advance(task),
        )
    result = document(run, recorded_policy(run.files[0]), found)
    emit(result, as_json, lambda console: render(found, limit, console))
    _write(found, output, surface, save_cost, overwrite)


def _policies(sweeps: Sequence[str], files: Sequence[DraftFile], lossy: bool, walks: bool) -> list[Policy]:
    if sweeps:
        return unique(policy for text in sweeps for policy in expand(text))
    first = files[0]
    walks = walks and first.header.dense
    recorded = recorded_policy(first)
    shape, lanes = (largest_shape(first), first.header.lanes) if walks else (recorded.shape, None)
    return suggested(recorded, shape, lossy=lossy, lanes=lanes)


def _write(
    found: Tuned, output: Path | None, surface: Path | None, save_cost: Path | None, overwrite: bool
) -> None:
    best = found.candidates[found.best]
    if output is not None:
        if not found.told():
            raise BestUnknown(str(output))
        write_output(output, policy_toml(best.policy.to_dict(), _comment(found)), overwrite=overwrite)
        talk(f"policy: {output}")
    if surface is not None:
        with whole_file(surface, overwrite=overwrite) as file:
            draw_surface(found.surface, f"speed-up at batch {found.model.batch:g}", file)
        talk(f"surface: {surface}")
    if save_cost is not None:
        write_output(save_cost, profile_text(found.model), overwrite=overwrite)
        talk(f"step times: {save_cost}")


def _comment(found: Tuned) -> str:
    best = found.candidates[found.best]
    speed = best.speed
    told = f"predicted tokens/s a request {speed.tokens_per_second:.4g}"
    if found.model.plain_timed:
        told = f"predicted speed-up {_with_interval(speed.speed_up, speed.interval)}"
    lines = [str(best.policy), told]
    if best.row.tau is not None:
        lines.append(
            f"predicted tau {_with_interval(best.row.tau, best.row.interval)} ({best.row.exactness})"
        )
    return "\n".join(
        [*lines, *caveats(found), f"batch {found.model.batch:g}, {counted(found.requests, 'request')}"]
    )


def _with_interval(value: float, interval: Any) -> str:
    return f"{value:.3f}" + ("" if interval is None else f", 95 % {interval.low:.3f} to {interval.high:.3f}")
