"""`dflash bench step`: how long drafting and verifying take on this machine, as a step-time profile."""

from __future__ import annotations

from pathlib import Path

import click

from dflash.cli.bench_record import PROMPTS
from dflash.cli.cost_text import profile_text, render_cost
from dflash.cli.options import json_option, output_option, overwrite_option, target_option
from dflash.cli.output import bar, emit, talk
from dflash.cli.outputs import check_outputs


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
    output: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Time rounds in several shapes and lanes, and fit a step-time profile to them.

    A round takes draft(length, branches) + verify(nodes, batch, context). `dflash tune`, `replay` and
    `record` read the profile with --cost.
    """
    check_outputs([output], (), overwrite)
    from dflash.bench.step import measure, settings_of
    from dflash.engine.chat import Defaults
    from dflash.engine.prompts import text_prompt
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
    document = {
        "schema": "dflash.bench_step/1",
        "target": target,
        "drafter": drafter,
        "runs": [run._asdict() for run in runs],
        "cost": model.to_dict(),
    }
    emit(document, as_json, lambda console: render_cost(model, console))
    if output is not None:
        output.write_text(profile_text(model), encoding="utf-8")
        talk(f"step times: {output}")
