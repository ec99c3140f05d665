"""`dflash bench decode`: tokens a second, plain and speculative, with and without recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.bench_step import SHAPES
from dflash.cli.options import FiniteFloat, feature_dtype_option, json_option, target_option
from dflash.cli.output import emit, talk
from dflash.errors import UsageError


@click.command()
@target_option
@click.option(
    "--shape", type=click.Choice(SHAPES),
    help="Instead: a model of this shape, with random weights and a random drafter that is never right.",
)  # fmt: skip
@click.option("--drafter", default="default", show_default=True, help="A block drafter of the target.")
@click.option(
    "--lanes", multiple=True, type=click.IntRange(1, 1024), default=(1, 8, 64), show_default=True,
    help="Requests at once; repeatable.",
)  # fmt: skip
@click.option("--length", type=click.IntRange(1, 62), help="Draft length.  [default: the drafter's block]")
@click.option("--branches", type=click.IntRange(1, 62), default=1, show_default=True, help="Of each draft.")
@click.option(
    "--temperature", type=FiniteFloat(0.0, 100.0), default=0.0, show_default=True, help="0 is greedy."
)
@click.option(
    "--prompt-tokens", type=click.IntRange(1), default=64, show_default=True, help="Of every prompt."
)
@click.option(
    "--max-new-tokens", type=click.IntRange(2), default=256, show_default=True, help="Of every answer."
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Runs of each side.")
@click.option(
    "--prompts", "prompt_files", multiple=True, metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Decode these instead, one after the other in the lanes, to the ends of their answers; repeatable, "
    "with a rate for each file.",
)  # fmt: skip
@click.option(
    "--features", multiple=True, type=click.Choice(["none", "fingerprint", "all"]), default=("fingerprint",),
    show_default=True, help="What recorded sides keep of hidden states; repeatable, each a side of its own.",
)  # fmt: skip
@feature_dtype_option
@click.option("--dense", is_flag=True, help="One more recorded side of each policy, dense.")
@click.option("--recorded/--no-recorded", default=True, help="What recording adds.")
@click.option(
    "--peers", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="Let transformers generate 64 tokens for each of the first N prompts: plain, and by prompt lookup.",
)  # fmt: skip
@click.option("--host", is_flag=True, help="Rounds that go through the host, too.")
@click.option(
    "--chain", type=click.IntRange(1, 64), help="Rounds queued at once.  [default: 2, and 4 for plain ones]"
)
@click.option(
    "--groups", is_flag=True,
    help="Policies without control in two groups of lanes, too, whose rounds run at the same time.",
)  # fmt: skip
@click.option(
    "--policy", "policies", multiple=True, default=("match",), show_default=True, metavar="POLICY",
    help="Of the speculative sides; repeatable, each a side of its own.",
)  # fmt: skip
@click.option(
    "--cost", type=click.Path(path_type=Path, dir_okay=False), metavar="PROFILE.json",
    help="Step times, for controls that predict them.  [default: taken before, where one does]",
)  # fmt: skip
@json_option
def decode(as_json: bool, **options: Any) -> None:
    """Decode one request a lane on this GPU, sides in turn, and compare their rates.

    Answers never end early, but for those of --prompts. Rates are from the first token to the last, so that
    no start is in them; prompts are, where they are read while others decode. Times are of the host's clock.
    Ctrl-C ends it with what was measured by then.
    """
    import torch

    from dflash.bench.decode import first_token, peer_prompts
    from dflash.bench.decode_document import document
    from dflash.bench.decode_peers import measure_peers
    from dflash.bench.kernels import NoDevice

    if not torch.cuda.is_available():
        raise NoDevice("dflash bench decode")
    subject, given = _asked(options)
    measured = _measured(subject, given, options["lanes"])
    first, others, count = None, [], options["peers"]
    try:
        if not measured.interrupted:
            talk("first tokens")
            first = first_token(subject, given)
        if count and not measured.interrupted:
            prompts = peer_prompts(subject, given, count)
            others = measure_peers(subject.target, prompts, given.length, talk)
    except KeyboardInterrupt:
        measured.interrupted = True
    if not measured.results:
        raise KeyboardInterrupt
    found = document(subject, given, measured, first, others)
    names = [file.name for file in options["prompt_files"]]
    emit(found, as_json, lambda console: _render(found, names, console))
    if measured.interrupted:
        raise KeyboardInterrupt


def _measured(subject: Any, given: Any, lanes: Sequence[int]) -> Any:
    """All sides at some numbers of lanes, with step times of just each where a control needs some."""
    from dflash.bench.decode import measure
    from dflash.bench.round_profile import profile_rounds

    return measure(subject, given, lanes, talk, lambda count: profile_rounds(subject, given, [count], talk))


def _asked(options: Mapping[str, Any]) -> tuple[Any, Any]:
    """What decodes, and what is decoded."""
    import torch

    from dflash.bench.decode import DecodeSettings, Kept
    from dflash.bench.decode_models import RandomSubject, random_target
    from dflash.engine.features import FeatureMode
    from dflash.replay.cost import load_cost

    files, cost = options["prompt_files"], options["cost"]
    if options["feature_dtype"] is not None and "all" not in options["features"]:
        raise UsageError("Expected --features all with --feature-dtype.")
    dtype: Any = options["feature_dtype"] or "bf16"
    kept = [Kept(FeatureMode(features), dtype) for features in dict.fromkeys(options["features"])]
    if options["dense"]:
        kept.append(kept[0]._replace(dense=True))
    if options["shape"] is not None:
        subject = RandomSubject(random_target(options["shape"], "cuda", torch.bfloat16))
        longest = subject.block
    else:
        subject, longest = _loaded(options["target"], options["drafter"], endless=not files)
    given = DecodeSettings(
        length=options["length"] or longest,
        branches=options["branches"],
        temperature=options["temperature"],
        prompt_tokens=options["prompt_tokens"],
        new_tokens=options["max_new_tokens"],
        repeats=options["repeats"],
        kept=tuple(kept) if options["recorded"] else (),
        host=options["host"],
        chain=options["chain"],
        groups=options["groups"],
        policies=tuple(dict.fromkeys(options["policies"])),
        step_time=None if cost is None else load_cost(cost).step_time,
        lists=tuple(map(_read, files)),
    )
    return subject, given


def _read(path: Path) -> tuple[Any, ...]:
    """All prompts of a file, none of which may be unusable."""
    from dflash.engine.prompts.files import check_prompts, read_prompt_file

    return check_prompts(read_prompt_file(path), name=path.name).prompts


def _loaded(target: str, drafter: str, *, endless: bool) -> tuple[Any, int]:
    """A target, which may never end an answer, and the length of its drafter's block."""
    from dataclasses import replace

    from dflash.bench.decode_models import Subject
    from dflash.drafters.build import default_length, parse_drafter
    from dflash.target.load import load_target

    loaded = load_target(target, device="cuda")
    if endless:
        loaded = replace(loaded, eos=frozenset())
    return Subject(loaded, drafter, drafter), default_length(parse_drafter(drafter))


def _render(found: Mapping[str, Any], names: Sequence[str], console: Console) -> None:
    console.print(f"{found['target']}, drafter {found['drafter']}, on {found['device']}")
    parts = names if len(names) > 1 else []
    table = Table(box=None, pad_edge=False)
    columns = ("tokens/s", *parts, "x plain", "emitted/round", "us/round", "recording", "once", "written")
    for name in ("lanes", "side", *columns):
        table.add_column(name, justify="left" if name == "side" else "right")
    for row in found["rows"]:
        adds = [_share(row["overhead"]), _once(row["once_ms"]), _share(row["overhead_written"])]
        rates = [f"{rate:,.0f}" for rate in (row["tokens_per_second"], *row["part_rates"][: len(parts)])]
        table.add_row(
            str(row["lanes"]), row["side"], *rates, f"{row['speed_up']:.2f}",
            f"{row['emitted_per_round']:.2f}", f"{row['round_us']:,.0f}", *adds,
        )  # fmt: skip
    console.print(table)
    if first := found["first_token_ms"]:
        console.print(f"first token: {first['cold']:.1f} ms, {first['warm']:.1f} ms after a warm-up")
    for peer in found["peers"]:
        rate = peer["failure"] or f"{peer['tokens_per_second']:,.1f} tokens/s with prompts, one by one"
        console.print(f"{peer['name']}: {rate}")
    if found["interrupted"]:
        console.print("interrupted: what is missing was not measured")
    console.print(
        "recording: what it adds to a round while decoding; once: before the first token and after the last "
        "one of a run; written: to a round, until the file is closed"
    )


def _once(added: Mapping[str, float] | None) -> str:
    return "" if added is None else f"{added['before']:+.0f} {added['after']:+.0f} ms"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"
