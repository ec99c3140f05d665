"""`dflash record`: run a speculative decoder on live prompts and write a draft file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dflash.cli.options import (
    FiniteFloat,
    device_option,
    dtype_option,
    feature_dtype_option,
    json_option,
    overwrite_option,
    quantisation_option,
    target_option,
)

_LIMIT = 2**31 - 1


@click.command()
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option(
    "--prompts", "prompt_file", metavar="FILE|-", help="Text lines or JSON Lines (.gz, .zst); - is stdin."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Draft file to write; with --shard a folder too.  [default: dflash-<UTC time>.parquet]",
)
@target_option
@quantisation_option("--target-quant", "the target")
@click.option(
    "--drafter",
    help="default (comes with this package), ngram, suffix, self, model:PLACE, dflash:PLACE, dspark:PLACE, "
    "file:RUN.parquet or none; a union as default+suffix.  [default: default where it fits, else ngram]",
)
@quantisation_option("--draft-quant", "drafters that are models (self is always int8)")
@click.option(
    "--target-impl",
    type=click.Choice(["auto", "native", "captured", "generic"]),
    default="auto",
    show_default=True,
    help="What scores drafted trees: this package's layers, transformers' layers in CUDA graphs, or those as "
    "they are. auto: on a GPU the first that computes the model.",
)
@click.option(
    "--draft-impl",
    type=click.Choice(["auto", "native", "generic"]),
    default="auto",
    show_default=True,
    help="The same for a dflash or dspark drafter.",
)
@click.option(
    "--numerics",
    type=click.Choice(["fast", "replay-exact"]),
    default="fast",
    show_default=True,
    help="replay-exact: the same bits whatever the batch, with --target-impl native.",
)
@click.option(
    "--rounds",
    type=click.Choice(["auto", "host", "device"]),
    default="auto",
    show_default=True,
    help="Whole rounds on the device, or through the host; auto: on the device where a native or captured "
    "target can.",
)
@click.option(
    "--overlap",
    type=click.Choice(["none", "groups", "auto"]),
    default="none",
    show_default=True,
    help="groups: rounds of two halves of the lanes run at the same time, with --target-impl native; auto: "
    "where a --cost profile says that this can cost 3 % at most.",
)
@click.option(
    "--proposal",
    type=click.Choice(["deterministic", "shared", "independent"]),
    help="Law of drafted tokens at a temperature above 0.  [default: what the rule wants]",
)
@click.option(
    "--policy",
    default="match",
    show_default=True,
    help="Acceptance policy, NAME:key=value,... or FILE.toml; see `dflash policies`.",
)
@click.option(
    "-P", "pairs", multiple=True, metavar="KEY=VALUE", help="One more parameter of the policy; repeatable."
)
@click.option(
    "--length",
    type=click.IntRange(0, 128),
    help="Largest depth of a draft; 0 is plain decoding.  [default: 5; a block drafter's whole block]",
)
@click.option(
    "--branches",
    type=click.IntRange(1, 64),
    help="Most branches of a draft, by each drafter of a union.  [default: 2, or all of the --tree; 1 for "
    "rules that judge chains alone]",
)
@click.option(
    "--tree",
    metavar="N,N,...",
    help="Children by depth, as 3,2, for drafters that are models.  [default: all branches at the anchor]",
)
@click.option(
    "--temperature",
    type=FiniteFloat(0.0, 100.0),
    default=0.0,
    show_default=True,
    help="Of the target; 0 is greedy.",
)
@click.option(
    "--top-k",
    type=click.IntRange(0, _LIMIT),
    default=0,
    show_default=True,
    help="Of the target; 0 cuts nothing.",
)
@click.option(
    "--top-p",
    type=FiniteFloat(0.0, 1.0, open_minimum=True),
    default=1.0,
    show_default=True,
    help="Of the target; 1 cuts nothing.",
)
@click.option(
    "--draft-temperature", type=FiniteFloat(0.0, 100.0), help="Of the drafter.  [default: the target's]"
)
@click.option(
    "--draft-top-k",
    type=click.IntRange(0, _LIMIT),
    default=8,
    show_default=True,
    help="Of the drafter; 0 cuts nothing.",
)
@click.option(
    "--draft-top-p",
    type=FiniteFloat(0.0, 1.0, open_minimum=True),
    default=1.0,
    show_default=True,
    help="Of the drafter.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Of all noise.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1, _LIMIT),
    default=128,
    show_default=True,
    help="Longest answer, in tokens.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable.")
@click.option("--system", metavar="TEXT", help="System message of prompts that bring none.")
@click.option("--raw", is_flag=True, help="Send text as it is, without the chat template.")
@click.option("--skip-bad", is_flag=True, help="Leave bad lines of a file out instead of refusing it.")
@click.option(
    "--lanes", type=click.IntRange(1, 1024), default=1, show_default=True, help="Requests decoded at once."
)
@click.option(
    "--warm",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draft file whose texts fill the suffix drafter's store; repeatable.",
)
@click.option("--dense", is_flag=True, help="Draft from every committed position, so that replay can walk.")
@click.option(
    "--features",
    type=click.Choice(["none", "fingerprint", "all"]),
    default="fingerprint",
    show_default=True,
    help="What to keep of hidden states; all of them are what `dflash train` learns from.",
)
@feature_dtype_option
@click.option(
    "--store-topk",
    type=click.IntRange(2, 1024),
    default=16,
    show_default=True,
    help="Top logits kept a slot.",
)
@device_option
@dtype_option
@click.option("--no-text", is_flag=True, help="Keep no prompt text in the file.")
@click.option(
    "--cost",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PROFILE.json",
    help="Step times, for controls that predict them and for the header.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Answer every N-th prompt of the list, from the I-th on, counted from 0; N such files are one run.",
)
@click.option(
    "--metrics",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep what the run is doing there, as Prometheus text, new every 5 seconds.",
)
@click.option("--no-host", is_flag=True, help="Keep no machine name in the file.")
@click.option(
    "--sync-seconds",
    type=FiniteFloat(0.0, open_minimum=True),
    default=5.0,
    show_default=True,
    help="Longest time that a power cut may cost.",
)
@click.option(
    "--recorder",
    type=click.Choice(["auto", "inline", "process"]),
    default="auto",
    show_default=True,
    help="Write in the decoding process, or in one of its own; auto: of its own where decoding has a GPU.",
)
@click.option(
    "--warm-up/--no-warm-up",
    default=None,
    help="Compile kernels and capture graphs before the first prompt, which would wait for it.  "
    "[default: on a GPU]",
)
@click.option("--resume", is_flag=True, help="Keep what a broken recording had finished, run the rest.")
@overwrite_option
@json_option
@click.option(
    "--json-lines", is_flag=True, help="Print each answer as a line of JSON when it ends, in that order."
)
def record(prompts: tuple[str, ...], prompt_file: str | None, as_json: bool, **options: Any) -> int:
    """Decode prompts speculatively and keep the scratch paper.

    Prompts are words on the command line, lines of --prompts, or typed at a terminal. The answer to a prompt
    given as words is streamed to stdout; what was drafted, judged and accepted goes to the draft file.
    """
    # models are heavy to import: `record --help` does without
    from dflash.cli.record_run import run

    return run(prompts, prompt_file, as_json, options)
