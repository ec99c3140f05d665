"""`dflash train`: train a drafter for a target, from its own words or from draft files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dflash.cli.options import (
    FiniteFloat,
    device_option,
    dtype_option,
    json_option,
    overwrite_option,
    say_left_out,
    target_option,
)

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_MANY = click.IntRange(1, 2**31 - 1)


@click.command()
@click.option("--family", type=click.Choice(["dflash", "dspark"]), required=True, help="Kind of drafter.")
@target_option
@click.option("--online", is_flag=True, help="Learn from texts that the target writes while it is trained.")
@click.option(
    "--draft-files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    callback=say_left_out,
    help="Learn from recordings with --features all, files or folders; repeatable.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the checkpoint, the drafter and its card.",
)
@click.option("--layers", type=_MANY, default=3, show_default=True, help="Of the drafter.")
@click.option("--drafts", type=click.IntRange(1, 64), default=7, show_default=True, help="Tokens a block.")
@click.option(
    "--taps",
    metavar="N,N,...",
    help="Hidden states to read, as transformers counts them.  [default: five, evenly; a file's own]",
)
@click.option(
    "--markov-rank",
    type=click.IntRange(0, 4096),
    default=32,
    show_default=True,
    help="Of dspark's head that reads the token before; 0 leaves it out.",
)
@click.option("--mask-token", type=click.IntRange(0), help="Id of an unused token.  [default: found]")
@click.option(
    "--init",
    type=click.Choice(["target", "random"]),
    default="target",
    show_default=True,
    help="Start from the target's last layers, or from noise.",
)
@click.option("--steps", type=_MANY, default=4000, show_default=True, help="Optimiser steps.")
@click.option("--step-texts", type=_MANY, default=24, show_default=True, help="Texts a step.")
@click.option("--anchors", type=_MANY, default=64, show_default=True, help="Blocks of each of them.")
@click.option(
    "--rate",
    type=FiniteFloat(0.0, open_minimum=True),
    default=0.01,
    show_default=True,
    help="Peak learning rate of Muon; AdamW's is a tenth.",
)
@click.option(
    "--decay",
    type=FiniteFloat(0.0, open_minimum=True),
    default=4.0,
    show_default=True,
    help="The k-th draft of a block weighs exp(-k/decay).",
)
@click.option("--texts", type=_MANY, default=4096, show_default=True, help="Written texts kept at once.")
@click.option("--streams", type=_MANY, default=1024, show_default=True, help="Texts written at once.")
@click.option("--length", type=click.IntRange(16), default=512, show_default=True, help="Tokens of a text.")
@click.option("--longest-user", type=_MANY, default=256, show_default=True, help="Tokens of a user turn.")
@click.option("--longest-answer", type=_MANY, default=192, show_default=True, help="Tokens of an answer.")
@click.option("--rounds", type=_MANY, default=1, show_default=True, help="How often all texts are new.")
@click.option(
    "--greedy",
    type=FiniteFloat(0.0, 1.0),
    default=0.5,
    show_default=True,
    help="Share of texts with greedy answers; others have temperatures up to 1.",
)
@click.option("--prompts", type=_FILE, metavar="FILE", help="Prompts that some of the texts start with.")
@click.option(
    "--prompted",
    type=FiniteFloat(0.0, 1.0),
    default=0.3,
    show_default=True,
    help="Share of texts that start with one of them.",
)
@click.option("--evaluate", type=_FILE, metavar="FILE", help="Prompts for the card's tau, by category.")
@click.option(
    "--max-new-tokens", type=_MANY, default=128, show_default=True, help="Longest answer in that tau."
)
@click.option("--held-out", type=_MANY, default=64, show_default=True, help="Texts kept for tau on the way.")
@click.option("--measure-every", type=_MANY, default=500, show_default=True, help="Steps between two taus.")
@click.option("--save-every", type=_MANY, default=2000, show_default=True, help="Steps between checkpoints.")
@click.option("--seed", type=click.IntRange(0, 2**62), default=0, show_default=True, help="Of everything.")
@device_option
@dtype_option
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in the output folder.")
@overwrite_option
@json_option
def train(as_json: bool, **options: Any) -> int:
    """Train a block drafter for a target.

    Either --online, where the target writes what is learned from, or from --draft-files, where recordings
    hold its hidden states. The folder gets config.json and model.safetensors in the family's public layout,
    a card, and a checkpoint that --resume goes on from.
    """
    # models are heavy to import: `train --help` does without
    from dflash.cli.train_run import run

    return run(as_json, options)
