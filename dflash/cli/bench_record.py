"""`dflash bench record`: what recording adds to decoding time."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.options import FiniteFloat, json_option, target_option
from dflash.cli.output import emit, talk

PROMPTS = (
    "Explain rainbows to a child.",
    "List the months of the year, then list them again.",
    "Write a short story about a lighthouse keeper.",
    "What are the three states of water? Explain each of them.",
)


@click.command()
@target_option
@click.option("--drafter", default="ngram", show_default=True, help="ngram, self or none.")
@click.option(
    "--temperature",
    type=FiniteFloat(0.0, 100.0),
    default=0.0,
    show_default=True,
    help="Of the target; 0 is greedy.",
)
@click.option(
    "--pairs",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Prompts, each decoded three times.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(2, 4096),
    default=48,
    show_default=True,
    help="Longest answer, in tokens.",
)
@json_option
def record(
    target: str, drafter: str, temperature: float, pairs: int, max_new_tokens: int, as_json: bool
) -> None:
    """Decode prompts without recording, with it, and with it in a process of its own; compare the times."""
    from dflash.bench.record import measure
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
        defaults=Defaults(Sampling(temperature), seed=0, max_new_tokens=max_new_tokens),
        length=5,
        branches=2,
    )
    talk(f"decoding {pairs} prompts three times")
    cost = measure(load_target(target), settings, [text_prompt(text) for text in PROMPTS], pairs)
    document = {
        "schema": "dflash.bench_record/1",
        "target": target,
        "drafter": drafter,
        "temperature": temperature,
        "tokens": cost.tokens,
        "overhead_median": cost.overhead,
        "overhead_median_process": cost.overhead_apart,
        "pairs": [
            {"on_s": pair.on, "process_s": pair.apart, "off_s": pair.off, "tokens": pair.tokens}
            for pair in cost.pairs
        ],
    }

    def render(console: Console) -> None:
        table = Table("pair", "tokens", "on, s", "process, s", "off, s", "on/off", "process/off")
        for number, pair in enumerate(cost.pairs):
            table.add_row(
                str(number),
                str(pair.tokens),
                f"{pair.on:.3f}",
                f"{pair.apart:.3f}",
                f"{pair.off:.3f}",
                f"{pair.on / pair.off:.3f}",
                f"{pair.apart / pair.off:.3f}",
            )
        console.print(table)
        console.print(
            f"recording adds {100 * cost.overhead:.1f} %, in a process of its own "
            f"{100 * cost.overhead_apart:.1f} % (medians of on/off - 1 over pairs)"
        )

    emit(document, as_json, render)
