"""`dflash bench kernels`: the attention and acceptance kernels against their peers on this GPU."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dflash.cli.options import json_option, output_option
from dflash.cli.output import emit, talk
from dflash.cli.outputs import check_outputs, write_output


@click.command()
@click.option(
    "--compiled/--no-compiled", default=True, help="Measure peers built by torch.compile (minutes)."
)
@click.option(
    "--gate/--no-gate",
    default=True,
    help="Run `pytest -m gpu` first; outputs are always compared with float64.",
)
@click.option("--seconds", type=click.IntRange(1), help="Leave out the peers not begun by then.", metavar="N")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(["tree", "step", "block", "accept", "qkv", "gate-up", "rows", "head", "pack"]),
    help="Measure these kernels only; repeatable.",
)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@output_option("the raw results")
@json_option
def kernels(
    compiled: bool,
    gate: bool,
    seconds: int | None,
    only: tuple[str, ...],
    markdown: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Time each kernel at each shape of its target table, beside whatever else could be installed.

    Nothing is reported if a check fails: the tests, or a comparison with float64.
    """
    from dflash.bench.kernel_table import as_markdown, as_text
    from dflash.bench.kernels import document, measure

    check_outputs([output], (), overwrite=True)
    results = document(measure(gate=gate, compiled=compiled, seconds=seconds, only=only, progress=talk))
    lines = as_markdown(results) if markdown else as_text(results)
    emit(
        results, as_json, lambda console: console.print(lines, soft_wrap=True, highlight=False, markup=False)
    )
    if output is not None:
        write_output(output, json.dumps(results, indent=1) + "\n", overwrite=True)
